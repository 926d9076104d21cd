//! One conditional write, and the record that results from it.

use crate::{
    outcome::Outcome,
    record::{Generation, Lock, Owner, Record, State, Status},
    time::Timestamp,
};

/// One conditional write: a transition of the protocol, with all its values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// T1, absent → STARTED: writes the lock if there is no record.
    Claim(Lock),
    /// T2, an expired or released record → STARTED: replaces the whole record with the lock, if the record's
    /// status, owner, generation, expiry and lease are as seen. Only a STARTED record has a lease.
    Reclaim {
        /// The version that was seen.
        seen: Revision,
        /// The lock that replaces the record.
        lock: Lock,
    },
    /// T3, stale STARTED → STARTED: sets all fields of the lock but the fingerprint, if the record is STARTED and its
    /// owner, generation, lock time and lease are as seen. If the lock has the owner and the generation that were seen,
    /// it's T9: the claim stays, and its lease ends sooner. A store treats both alike.
    TakeOver {
        /// The version that was seen.
        seen: Revision,
        /// The lock that replaces the stored one. Both have the same fingerprint.
        lock: Lock,
    },
    /// T4 to T6, STARTED → settled: applies if the record is STARTED and has this owner and generation. The
    /// condition doesn't test the time: a claim whose lease has expired can still settle until it's taken over.
    Settle {
        /// The claim's owner.
        owner: Owner,
        /// The claim's generation.
        generation: Generation,
        /// The state that the record gets.
        settlement: Settlement,
    },
    /// T7, STARTED → STARTED: extends the lease, and the expiry with it, if the record is STARTED, has this
    /// owner and generation, and its lease ends before `lease_until`. It never shortens a lease, so a late extension is
    /// harmless. Nothing else changes. Neither the stored lease nor `lease_until` is compared with the current time.
    Extend {
        /// The claim's owner.
        owner: Owner,
        /// The claim's generation.
        generation: Generation,
        /// When the extended lease ends.
        lease_until: Timestamp,
        /// When the record expires. `None` means never, and removes the expiry.
        expires_at: Option<Timestamp>,
    },
    /// Stores the outcome of a run without a claim: no record, or an expired or released one → settled. Writes the
    /// whole record. If `seen` is `None`, no record may exist. Otherwise, the [`Revision`] of the stored record must
    /// equal `seen` in all six fields. Nothing of an earlier record remains. The protocol writes only settled records
    /// this way, but a store must accept a record in any state.
    Conclude {
        /// The version that was seen; `None` if there was no record.
        seen: Option<Revision>,
        /// The record that replaces the earlier one.
        record: Record,
    },
    /// An operator's write, any status → settled: sets a new owner and generation and settles the record, if its
    /// version is exactly the one that was seen. Nothing of an earlier outcome remains. A claim that still runs under
    /// the old owner is fenced.
    Resolve {
        /// The version that was seen.
        seen: Revision,
        /// The owner drawn for this write. After a lost answer, a record with this owner shows that the write was
        /// applied.
        owner: Owner,
        /// The new generation.
        generation: Generation,
        /// The state that the record gets.
        settlement: Settlement,
    },
}

/// How a claim is settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Settlement {
    /// T4: stores the outcome and its expiry.
    Complete(Outcome, Timestamp),
    /// T5: stores the permanent failure and its expiry.
    Fail(Outcome, Timestamp),
    /// T6: releases the key.
    Release {
        /// When the record expires.
        expires_at: Timestamp,
        /// The new value of [`Record::interrupted`].
        interrupted: bool,
    },
}

impl Settlement {
    /// The status that the record gets.
    pub const fn status(&self) -> Status {
        match self {
            Self::Complete(..) => Status::Completed,
            Self::Fail(..) => Status::Failed,
            Self::Release { .. } => Status::Released,
        }
    }
}

/// The version of a record that a compare-and-set expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// The status.
    pub status: Status,
    /// The owner.
    pub owner: Owner,
    /// The generation.
    pub generation: Generation,
    /// When the claim was made.
    pub lock_acquired_at: Timestamp,
    /// When the lease of a STARTED record ends. Other records have none.
    pub lease_until: Option<Timestamp>,
    /// When the record expires; `None` means never.
    pub expires_at: Option<Timestamp>,
}

impl Revision {
    /// The version of `record`.
    pub const fn of(record: &Record) -> Self {
        Self {
            status: record.status(),
            owner: record.owner,
            generation: record.generation,
            lock_acquired_at: record.lock_acquired_at,
            lease_until: record.lease_until(),
            expires_at: record.expires_at,
        }
    }
}

/// The store's answer to a [`Write`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum WriteOutcome {
    /// The write was applied.
    Applied,
    /// The condition failed. Contains the record that the condition was checked against, if there was one.
    Refused(Option<Record>),
}

impl Write {
    /// Whether this write is T9, which ends a claim's own lease sooner.
    pub fn is_interruption(&self) -> bool {
        matches!(self, Self::TakeOver { seen, lock }
            if (seen.owner, seen.generation) == (lock.owner, lock.generation))
    }

    /// Returns the lock that a claiming write stores; `None` for other writes.
    pub fn lock(&self) -> Option<&Lock> {
        match self {
            write if write.is_interruption() => None,
            Self::Claim(lock) | Self::Reclaim { lock, .. } | Self::TakeOver { lock, .. } => Some(lock),
            Self::Settle { .. } | Self::Extend { .. } | Self::Conclude { .. } | Self::Resolve { .. } => None,
        }
    }

    /// Returns the owner and generation of a delivery's settlement or conclusion; `None` for other writes.
    pub(crate) const fn settled_as(&self) -> Option<(Owner, Generation)> {
        match self {
            Self::Settle { owner, generation, .. } => Some((*owner, *generation)),
            Self::Conclude { record, .. } => Some((record.owner, record.generation)),
            _ => None,
        }
    }

    /// The contract in code: returns the record that this write makes of `current`, or `None` if the condition
    /// fails.
    pub fn apply_to(&self, current: Option<&Record>) -> Option<Record> {
        match (self, current) {
            (Self::Claim(lock), None) => Some(lock.clone().into()),
            (Self::Reclaim { seen, lock }, Some(record)) if reclaim_condition(seen, record) => {
                Some(lock.clone().into())
            }
            (Self::TakeOver { seen, lock }, Some(record)) if take_over_condition(seen, record) => {
                // Keep the stored fingerprint. It equals the lock's, since T3 is only for equal fingerprints.
                Some(Record { fingerprint: record.fingerprint, ..lock.clone().into() })
            }
            (Self::Settle { owner, generation, settlement }, Some(record))
                if record.status() == Status::Started
                    && record.owner == *owner
                    && record.generation == *generation =>
            {
                Some(settled(record.clone(), settlement))
            }
            (Self::Extend { owner, generation, lease_until, expires_at }, Some(record))
                if record.owner == *owner
                    && record.generation == *generation
                    && record.lease_until().is_some_and(|ends| ends < *lease_until) =>
            {
                let state = State::Started { lease_until: *lease_until };
                Some(Record { state, expires_at: *expires_at, ..record.clone() })
            }
            (Self::Conclude { seen, record }, current) if *seen == current.map(Revision::of) => {
                Some(record.clone())
            }
            (Self::Resolve { seen, owner, generation, settlement }, Some(record))
                if Revision::of(record) == *seen =>
            {
                let resolved = Record { owner: *owner, generation: *generation, ..record.clone() };
                Some(settled(resolved, settlement))
            }
            _ => None,
        }
    }
}

fn reclaim_condition(seen: &Revision, record: &Record) -> bool {
    record.status() == seen.status
        && record.owner == seen.owner
        && record.generation == seen.generation
        && record.expires_at == seen.expires_at
        && record.lease_until() == seen.lease_until
}

fn take_over_condition(seen: &Revision, record: &Record) -> bool {
    record.status() == Status::Started
        && record.owner == seen.owner
        && record.generation == seen.generation
        && record.lock_acquired_at == seen.lock_acquired_at
        && record.lease_until() == seen.lease_until
}

fn settled(record: Record, settlement: &Settlement) -> Record {
    match settlement.clone() {
        Settlement::Complete(outcome, expires_at) => {
            Record { state: State::Completed(outcome), expires_at: Some(expires_at), ..record }
        }
        Settlement::Fail(outcome, expires_at) => {
            Record { state: State::Failed(outcome), expires_at: Some(expires_at), ..record }
        }
        Settlement::Release { expires_at, interrupted } => {
            Record { state: State::Released, expires_at: Some(expires_at), interrupted, ..record }
        }
    }
}
