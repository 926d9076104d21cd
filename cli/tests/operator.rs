//! The commands for operators, on the built binary, an embedded DynamoDB and a Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail where it stands")]

#[path = "../../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "this test uses some of it")]
mod server;

mod operator {
    mod bad_input;
    mod bench;
    mod keys;
    mod look;
    mod redis;
    mod settle;
    mod table;
}
