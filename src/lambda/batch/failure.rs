//! How a record's handler fails.

use std::{any::type_name, fmt};

use crate::error::{Error, RecordedFailure};

/// How a record's handler failed: so that it may be tried again, or for good.
///
/// Any error becomes the former with `?`.
///
/// ```
/// use lambda_idempotency::lambda::batch::{Failure, SqsMessage};
///
/// async fn charge(message: SqsMessage) -> Result<String, Failure> {
///     let cents: u64 = message.body().parse()?; // comes back
///     if cents == 0 {
///         return Err(Failure::for_good("NothingToCharge", "the amount is zero")); // never runs again
///     }
///     Ok(format!("charged {cents}"))
/// }
/// ```
pub struct Failure(pub(super) How);

pub(super) enum How {
    /// The error's type, and its text if it is this library's own: another's may quote the record.
    Again(&'static str, String),
    ForGood(RecordedFailure),
}

impl Failure {
    /// A final failure, which is recorded: the handler does not run for this operation again. What becomes of the record,
    /// [`OnFinalFailure`] says.
    pub fn for_good(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self(How::ForGood(RecordedFailure::new(error_type, message)))
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let own = error.downcast_ref::<Error>().map(ToString::to_string);
        Self(How::Again(type_name::<E>(), own.unwrap_or_default()))
    }
}

impl fmt::Debug for Failure {
    /// Shows the type, never the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            How::Again(error_type, _) => write!(f, "Failure({error_type})"),
            How::ForGood(failure) => write!(f, "Failure({}, for good)", failure.error_type),
        }
    }
}

/// What becomes of a record whose handler failed for good, then and whenever it is delivered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFinalFailure {
    /// It comes back until the source gives it up: towards the dead-letter queue, or the stream's destination for failures.
    #[default]
    Return,
    /// It is acknowledged, and gone; the record in the table is what is left of it. One whose failure could not be recorded
    /// comes back all the same.
    Acknowledge,
}
