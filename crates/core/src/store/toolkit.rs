//! Parts that several stores need: a builder that a URL can make, a record's fields, waiting with a limit, and the parameters of a store's URL.

use std::time::Duration;

pub use super::{
    admin::{foreign, parts, position},
    builder::{Configured, FromUrl},
    codec::{Field, Fields, NOT_IN_RANGE, Unreadable, Value, claim, decode, value},
    error::{innermost, sentence},
    parameter::decoded,
    random::start_random,
};
pub use crate::{
    key::{Hex, parse_hex},
    time::clock::{IDLE, LastAnswer, Stopwatch, TOO_IDLE, within},
};

/// How much longer a record or a chunk is kept than the executors need it, if the database removes it by its own clock,
/// or a sweep by a third one. Clocks never differ by a day.
pub const SWEEP_MARGIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long one attempt of a request may take, by default: a hundred times as long as a healthy database in the same
/// region takes.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
