//! The client against a scripted server: which requests it sends again, when, and what its caller gets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod answers;
mod budget;
mod keys;
mod layer;
mod lost;
mod silence;
mod stage;

use testkit::http_server;
use testkit::{audit, recording};
