//! The commands for operators, tested with the built binary, an embedded DynamoDB, PostgreSQL and Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../../tests/support/postgres.rs"]
#[allow(dead_code, unreachable_pub, reason = "these tests use part of it")]
mod database;
#[path = "../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "these tests use part of it")]
mod server;

mod operator {
    mod bad_input;
    mod bench;
    mod keys;
    mod look;
    mod postgres;
    mod redis;
    mod settle;
    mod sweep;
    mod table;
}
