//! The time limits of calls to the store.

use std::time::Duration;

use crate::time::Timestamp;

/// When calls to the store must end, so that the resulting answer still reaches the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The limit of the claims and reads that decide whether the handler runs. `None` means no limit.
    pub ask_by: Option<Timestamp>,
    /// The limit of all other calls except extensions: the deadline less the reserve, or the time when the front end
    /// stops waiting, whichever is earlier.
    pub answer_by: Option<Timestamp>,
    /// The limit of a settlement's first call if at most `reserve` is left for the settlement.
    pub last_call: Option<Timestamp>,
    /// Calls to the store must end this long before the deadline.
    pub reserve: Duration,
    /// How long a settlement is retried while the store fails.
    pub settle_within: Duration,
    /// The maximum number of retries of a settlement. `None` means that only the time ends them. Only the model checker
    /// sets a number, since its space must be finite.
    pub max_retries: Option<u8>,
}

impl Limits {
    /// The limits of an invocation whose deadline is unknown.
    pub const fn unknown(settle_within: Duration) -> Self {
        Self {
            ask_by: None,
            answer_by: None,
            last_call: None,
            reserve: Duration::ZERO,
            settle_within,
            max_retries: None,
        }
    }
}
