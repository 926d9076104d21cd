//! How a record's handler fails.

use std::{any::type_name, fmt};

use crate::error::{Error, RecordedFailure};

/// How a record's handler failed: so that it may be retried, or permanently.
///
/// `?` turns any error into a failure that may be retried.
///
/// ```
/// use lambda_idempotency::lambda::batch::{Failure, SqsMessage};
///
/// async fn charge(message: SqsMessage) -> Result<String, Failure> {
///     let cents: u64 = message.body().parse()?; // redelivered
///     if cents == 0 {
///         return Err(Failure::permanent("NothingToCharge", "the amount is zero")); // never runs again
///     }
///     Ok(format!("charged {cents}"))
/// }
/// ```
pub struct Failure(pub(super) How);

pub(super) enum How {
    /// The error's type, and its text if it's one of this library's errors. Another error's text may quote the
    /// record.
    Again(&'static str, String),
    Permanent(RecordedFailure),
}

impl Failure {
    /// A permanent failure, which is recorded: the handler doesn't run again for this operation.
    /// [`OnPermanentFailure`] decides whether the record is redelivered.
    pub fn permanent(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        Self(How::Permanent(RecordedFailure::new(error_type, message)))
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
            How::Permanent(failure) => write!(f, "Failure({}, for good)", failure.error_type),
        }
    }
}

/// The outcome for a record whose handler failed permanently, in this delivery and later ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnPermanentFailure {
    /// Redeliver it until the source gives up on it and moves it to the dead-letter queue, or to the stream's
    /// destination for failures.
    #[default]
    Return,
    /// Acknowledge it. Only the stored failure is left of it then. If the failure couldn't be recorded, the
    /// record is redelivered.
    Acknowledge,
}
