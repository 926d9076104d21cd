//! The wrappers as a function uses them, with events and requests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "support/api.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod api;
#[path = "support/audit.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod audit;
#[path = "wrappers/batch.rs"]
mod batch;
#[path = "support/cases.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod cases;
#[path = "support/clauses.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod clauses;
#[cfg(feature = "dynamodb")]
#[path = "support/emulator.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod emulator;
#[path = "wrappers/event.rs"]
mod event;
#[path = "support/front_ends.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod front_ends;
#[path = "wrappers/http.rs"]
mod http;
#[cfg(feature = "sqs")]
#[path = "support/http_server.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod http_server;
#[path = "support/recording.rs"]
#[expect(unreachable_pub, reason = "as in other support")]
mod recording;
#[path = "support/secrets.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod secrets;
#[path = "wrappers/silence.rs"]
mod silence;
#[path = "wrappers/store.rs"]
mod store;
#[cfg(feature = "dynamodb")]
#[path = "wrappers/transactions.rs"]
mod transactions;
