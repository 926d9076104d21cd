//! Tests the Redis store against a real server, and over failing connections.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![expect(clippy::disallowed_methods, reason = "these tests measure real timeouts")]

mod cluster;
mod drops;
mod failover;
mod faults;
mod fitness;
mod fixtures;
mod frozen;
mod records;
mod refusals;
mod rotation;
mod tls;
mod wire;
