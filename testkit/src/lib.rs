//! Code that the library's tests, the verification suite and the functions' tests share: servers that a test starts,
//! stores that are wrong on purpose, a store with a hook, a clock that tests set, samples of events, random numbers, and recordings.
//!
//! The package isn't published. Each part with heavy dependencies has a feature.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]
#![allow(clippy::disallowed_methods, reason = "the testkit waits for servers to start")]

#[cfg(feature = "http")]
pub mod api;
#[cfg(feature = "recording")]
pub mod audit;
#[cfg(feature = "http")]
pub mod cases;
#[cfg(feature = "http")]
pub mod clauses;
pub mod clock;
pub mod cut;
#[cfg(feature = "dynamodb")]
pub mod emulator;
pub mod faulty;
#[cfg(feature = "http")]
pub mod front_ends;
pub mod hooked;
#[cfg(feature = "http")]
pub mod http_server;
pub mod links;
pub mod load;
#[cfg(feature = "recording")]
pub mod logged;
#[cfg(feature = "postgres")]
pub mod pgbouncer;
pub mod ports;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod puts;
pub mod random;
#[cfg(feature = "recording")]
pub mod recording;
pub mod redis;
#[cfg(feature = "recording")]
pub mod secrets;
pub mod skip;
pub mod source;
pub mod tools;
pub mod unpaused;
