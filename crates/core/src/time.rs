//! [`Timestamp`], and the [`Clock`] that is the library's only source of time.
//!
//! Nothing else in the library reads a clock or sleeps, so tests can check every rule about time with their own clock.

pub(crate) mod clock;
mod timestamp;

pub use clock::{Clock, system_clock};
pub use timestamp::Timestamp;
