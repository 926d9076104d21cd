//! Tests the wrappers as a function uses them, with events and requests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod batch;
mod describe;
mod event;
mod http;
mod own_transactions;
mod ready;
mod silence;
mod store;
mod switch;
#[cfg(feature = "dynamodb")]
mod transactions;

#[cfg(feature = "dynamodb")]
use testkit::emulator;
use testkit::http_server;
use testkit::{api, audit, cases, clauses, front_ends, recording};
