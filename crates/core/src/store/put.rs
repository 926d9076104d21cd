//! The one write of a store: a conditional put of a whole record.

#[cfg(test)]
mod tests;

use crate::record::{Lock, Record, Status};

/// A conditional put: the record to store, and the condition on the stored one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Put {
    /// Applies if there's no record.
    Create(Record),
    /// Applies if the stored record has exactly the version that was seen; see [`Record::has_version_of`].
    Replace {
        /// The record that was seen.
        seen: Record,
        /// The record to store.
        new: Record,
    },
    /// Applies if the stored record is STARTED and has this claim's owner and generation. The lease and the expiry
    /// don't matter: an extension whose answer was lost may have moved them, and a claim whose lease has expired can
    /// still settle until it's taken over.
    Mine {
        /// The claim.
        held: Lock,
        /// The record to store. It has the claim's owner and generation.
        new: Record,
    },
}

/// The store's answer to a [`Put`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "a box would cost each duplicate an allocation")]
#[must_use]
pub enum PutOutcome {
    /// The put was applied.
    Applied,
    /// The condition failed. Contains the record that the condition was checked against, if there was one.
    Refused(Option<Record>),
}

impl Put {
    /// The record to store.
    pub const fn record(&self) -> &Record {
        match self {
            Self::Create(new) | Self::Replace { new, .. } | Self::Mine { new, .. } => new,
        }
    }

    /// The contract in code: returns the record to store, or `None` if the condition fails on `current`.
    pub fn apply_to(&self, current: Option<&Record>) -> Option<Record> {
        let holds = match (self, current) {
            (Self::Create(_), None) => true,
            (Self::Replace { seen, .. }, Some(current)) => current.has_version_of(seen),
            (Self::Mine { held, .. }, Some(current)) => {
                current.status() == Status::Started
                    && current.owner == held.owner
                    && current.generation == held.generation
            }
            _ => false,
        };
        holds.then(|| self.record().clone())
    }

    /// The record to store, by value.
    pub fn into_record(self) -> Record {
        match self {
            Self::Create(new) | Self::Replace { new, .. } | Self::Mine { new, .. } => new,
        }
    }

    /// Whether the put begins a new operation, or a new attempt after a release, so that nothing of the earlier record
    /// may remain, not even what other programs added to it. Otherwise, such additions stay.
    pub fn begins_anew(&self) -> bool {
        match self {
            Self::Create(_) => true,
            Self::Mine { .. } => false,
            Self::Replace { seen, new } if new.status() == Status::Started => {
                let is_extended_or_taken_over =
                    seen.status() == Status::Started && new.fingerprint == seen.fingerprint;
                !is_extended_or_taken_over
            }
            // An operator settles the run that the record is of. A run without a claim is another one.
            Self::Replace { seen, new } => {
                let run_of = |record: &Record| {
                    (record.attempt, record.fingerprint, record.lock_acquired_at, record.request_id.clone())
                };
                run_of(new) != run_of(seen)
            }
        }
    }
}
