//! The commands for operators, tested with the built binary, an embedded DynamoDB, PostgreSQL and Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

mod bad_input;
mod bench;
mod keys;
mod look;
mod postgres;
mod redis;
mod settle;
mod steps;
mod sweep;
mod table;
mod watch;
mod why;
