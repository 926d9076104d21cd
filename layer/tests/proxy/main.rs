//! The program with a function behind it, without any network: an event's way through the proxy.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![expect(clippy::disallowed_methods, reason = "these tests measure real time")]

mod batch;
mod bench;
mod events;
mod http_events;
mod process;
mod wire;
