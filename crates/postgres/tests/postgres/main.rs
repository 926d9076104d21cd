//! Tests the PostgreSQL store against a real server, over failing connections, and on failing servers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![expect(clippy::disallowed_methods, reason = "these tests measure real timeouts")]

mod drops;
mod failover;
mod faults;
mod fixtures;
mod frozen;
mod handlers;
mod operations;
mod pooler;
mod pools;
mod rotation;
mod rows;
mod search_path;
mod statements;
mod sweep;
mod tables;
mod timeouts;
mod tls;
mod transactions;
mod wire;
