//! [`Timestamp`], and the [`Clock`] that is the library's only source of time.
//!
//! Nothing else in the library reads a clock or sleeps, so tests can check every rule about time with their own clock.

pub(crate) use lambda_idempotency_core::internal::time::*;
pub use lambda_idempotency_core::time::{Clock, Timestamp, system_clock};
