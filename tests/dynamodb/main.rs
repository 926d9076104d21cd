//! Tests the DynamoDB store against an embedded DynamoDB, and over failing connections.

#![allow(clippy::type_complexity, reason = "tables of test cases have long types")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![expect(clippy::disallowed_methods, reason = "these tests measure real timeouts")]

mod bytes;
mod codes;
mod conditions;
mod config;
mod corrupt;
mod drops;
mod emulator;
mod ended;
mod faults;
mod fixtures;
mod frozen;
mod golden;
mod lasting;
mod parts;
mod rejections;
mod scan;
mod tables;
mod transactions;
mod wire;
