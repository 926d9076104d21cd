//! The answers that callers can get.

use lambda_idempotency::ErrorKind;

/// The answer to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Value(String),
    /// The error of this delivery's handler.
    HandlerFailed(String),
    /// A recorded failure.
    Recorded(String),
    Refused(ErrorKind),
    /// [`ErrorKind::Unavailable`], because no time is left until the deadline.
    NoTimeLeft,
    Panicked,
    /// No answer within the time limit that applies to every delivery.
    Hung,
}
