//! The client against a scripted server: which requests it sends again, when, and what its caller gets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "client/answers.rs"]
mod answers;
#[cfg(feature = "metrics")]
#[path = "support/audit.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod audit;
#[path = "client/budget.rs"]
mod budget;
#[path = "support/http_server.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod http_server;
#[path = "client/keys.rs"]
mod keys;
#[cfg(feature = "http")]
#[path = "client/layer.rs"]
mod layer;
#[path = "client/lost.rs"]
mod lost;
#[cfg(feature = "metrics")]
#[path = "support/recording.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod recording;
#[cfg(feature = "metrics")]
#[path = "support/secrets.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod secrets;
#[cfg(feature = "metrics")]
#[path = "client/silence.rs"]
mod silence;
#[path = "client/stage.rs"]
mod stage;
