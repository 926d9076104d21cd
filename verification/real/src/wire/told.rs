//! The results of store calls, as the library gets them.

use lambda_idempotency::store::{Owner, Record, Status, StoreErrorKind};

/// The result that the library got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The write was applied, or the chunks were written.
    Applied,
    /// The condition failed. The rejection came with this record, if any.
    Refused(Option<Brief>),
    /// A read found this record.
    Found(Option<Brief>),
    /// The chunks were read.
    Parts,
    /// The store failed.
    Failed {
        /// The kind of error.
        kind: StoreErrorKind,
        /// Whether the write may have been applied.
        maybe_applied: bool,
    },
}

/// A record's owner, generation and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Brief {
    pub(super) owner: Owner,
    pub(super) generation: u64,
    pub(super) status: Status,
}

impl Brief {
    pub(super) fn of(record: &Record) -> Self {
        Self { owner: record.owner, generation: record.generation.get(), status: record.status() }
    }
}

impl Told {
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Returns the record in this result, if any.
    pub(super) fn record(&self) -> Option<Brief> {
        match self {
            Self::Refused(record) | Self::Found(record) => *record,
            _ => None,
        }
    }
}
