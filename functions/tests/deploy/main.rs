//! Tests the functions as they're deployed: each function answers its events as their names say, the template matches
//! the functions, and cargo-lambda runs them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod alarms;
mod any_api;
mod any_source;
mod any_work;
mod aws;
mod cargo_lambda;
mod client;
mod contract;
mod emulator;
mod events;
mod in_transaction;
mod outbox;
mod redelivery;
mod rehearsed;
mod shapes;
mod silence;
mod sources;
mod stage;
mod template;

use testkit::{api, cases, clauses, front_ends, http_server, secrets};
