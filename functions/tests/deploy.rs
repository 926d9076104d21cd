//! Tests the deployed form: each function answers every event as the event's name says, the template fits the
//! functions, and cargo-lambda runs them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

#[path = "deploy/any_api.rs"]
mod any_api;
#[path = "deploy/any_source.rs"]
mod any_source;
#[path = "deploy/any_work.rs"]
mod any_work;
#[path = "../../tests/support/api.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod api;
#[path = "deploy/aws.rs"]
mod aws;
#[path = "deploy/cargo_lambda.rs"]
mod cargo_lambda;
#[path = "../../tests/support/cases.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod cases;
#[path = "../../tests/support/clauses.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod clauses;
#[path = "deploy/client.rs"]
mod client;
#[path = "deploy/contract.rs"]
mod contract;
#[path = "deploy/emulator.rs"]
mod emulator;
#[path = "deploy/events.rs"]
mod events;
#[path = "../../tests/support/front_ends.rs"]
#[expect(unreachable_pub, reason = "other tests use it too")]
mod front_ends;
#[path = "../../tests/support/http_server.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod http_server;
#[path = "deploy/in_transaction.rs"]
mod in_transaction;
#[path = "../../tests/support/secrets.rs"]
#[expect(dead_code, unreachable_pub, reason = "other tests use the rest of it")]
mod secrets;
#[path = "deploy/shapes.rs"]
mod shapes;
#[path = "deploy/silence.rs"]
mod silence;
#[path = "deploy/sources.rs"]
mod sources;
#[path = "deploy/stage.rs"]
mod stage;
#[path = "deploy/template.rs"]
mod template;
