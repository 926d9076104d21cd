//! Tests of the layer's program with a function behind it, on loopback: how events pass through the proxy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "the program runs in real time")]

mod batch;
mod bench;
mod callers;
mod choices;
mod cors;
#[cfg(feature = "kms")]
mod encryption;
mod events;
mod http_events;
mod jwt;
mod kafka;
mod logs;
mod memory;
mod messages;
mod process;
mod settings;
mod takeover;
mod wire;
