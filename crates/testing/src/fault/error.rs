//! The error that the caller gets in each fault. The rules that the model checker explores depend on this error: see
//! `verification/src/stamp.rs`.

use lambda_idempotency_core::store::StoreErrorKind;

use super::Fault;

impl Fault {
    /// The kind of the error that a store's client returns. `None` if the client returns an answer, or nothing.
    pub const fn error_kind(self) -> Option<StoreErrorKind> {
        match self {
            Self::LoseAnswer
            | Self::LoseRequest
            | Self::Late
            | Self::InternalError
            | Self::Throttle
            | Self::Outage => Some(StoreErrorKind::Unavailable),
            Self::Conflict => Some(StoreErrorKind::Conflict),
            Self::Refuse => Some(StoreErrorKind::Rejected),
            Self::Unstorable => Some(StoreErrorKind::Unstorable),
            Self::Unreadable => Some(StoreErrorKind::Corrupt),
            Self::Die
            | Self::Overlap
            | Self::Freeze
            | Self::NoTime
            | Self::Retry
            | Self::RetryLate
            | Self::HideRecord
            | Self::Silence
            | Self::SilenceAfter
            | Self::Slow => None,
        }
    }

    /// Whether the caller can't tell if the request was applied. An error says so in
    /// [`StoreError::is_maybe_applied`](lambda_idempotency_core::store::StoreError::is_maybe_applied).
    pub const fn is_ambiguous(self) -> bool {
        matches!(
            self,
            Self::LoseAnswer
                | Self::LoseRequest
                | Self::Late
                | Self::InternalError
                | Self::Silence
                | Self::SilenceAfter
        )
    }
}
