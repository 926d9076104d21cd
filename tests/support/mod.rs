//! Support that several tests share: an embedded DynamoDB, a Redis, and stores that are wrong on purpose.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

#[cfg(feature = "dynamodb")]
pub mod emulator;
pub mod faulty;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
