//! The Redis store against a real server, and over failing connections.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![cfg(feature = "redis")]
#![expect(clippy::disallowed_methods, reason = "these tests measure real timeouts")]

#[path = "support/cut.rs"]
mod cut;
#[path = "support/redis.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test uses some of it")]
mod server;

mod redis {
    mod cluster;
    mod drops;
    mod failover;
    mod faults;
    mod fixtures;
    mod records;
    mod refusals;
    mod tls;
    mod wire;
}
