//! The [`Store`] contract: the operations that the library needs from a database.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

use std::{any::Any, borrow::Cow, error::Error as StdError, fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    future::BoxFuture,
    key::StoredKey,
    outcome::Outcome,
    record::{Generation, Lock, Owner, Record, State, Status},
    time::Timestamp,
};

/// A conditional key-value map. It has no clock and makes no decisions.
///
/// All rules live in one pure state machine, which decides on each write and its condition. A store applies
/// that write in one atomic step, or returns the record that made the condition fail.
///
/// # Contract
///
/// - [`apply`](Self::apply) applies the write if and only if its condition holds, in one atomic step for the
///   key. [`Write::apply_to`] defines the condition and the resulting record. A store that reads and writes
///   under its own lock can call that function. Other stores express it as conditional requests.
/// - When the condition fails, nothing changes. The answer contains the record that made it fail, as it was at
///   that moment.
/// - [`read`](Self::read) is strongly consistent: it sees every write that was answered before the read began.
/// - Every field reads back equal to what was stored.
/// - A store never judges or removes a record by its age. Only a sweeper may remove records, by `expires_at`
///   alone, at that time or later.
///
/// # Errors
///
/// An error is *ambiguous* if the write may have been applied, or may still be: after a timeout, a lost
/// connection, or an answer that doesn't say. Such an error is marked with [`StoreError::maybe_applied`], even
/// if only one of several attempts inside the store was ambiguous. A failed condition isn't an error, and is
/// always definite.
///
/// A record that can't be decoded is [`StoreErrorKind::Corrupt`], never absent.
///
/// # Cancel safety
///
/// After a dropped future, the write may have been applied, not applied, or may still be applied later.
///
/// # Example
///
/// [`MemoryStore`](memory::MemoryStore) implements the contract in a few lines. `conformance::check` (feature
/// `conformance`) tests your own store.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Applies `write` to `key` if its condition holds.
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>>;

    /// Reads the record of `key`, strongly consistent.
    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// The capability to store a large response beside the record, if this store has it. Otherwise, every
    /// response is stored in the record, whatever its size.
    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        None
    }

    /// The capability to settle a record together with the handler's own writes in one transaction, if this
    /// store has it.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        (**self).apply(key, write)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        (**self).read(key)
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        (**self).chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        (**self).transactions()
    }
}

/// Optional store capability: stores a response that's too large for the record in items beside it.
///
/// The engine writes the chunks before the completion that makes them visible, and reads them when a replay
/// needs them.
pub trait ResponseChunks: Send + Sync {
    /// The size limit for a response inside the record, in bytes as stored.
    fn inline_limit(&self) -> usize;

    /// Writes `bytes` in chunks beside `key` that belong only to `owner`, and returns their number. They're kept
    /// until a day after `expires_at`. Writing the same bytes again is harmless.
    ///
    /// # Errors
    ///
    /// If a chunk couldn't be written. The completion then records the response as not retained.
    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// Reads the bytes that `owner` wrote into `count` chunks beside `key`, strongly consistent, at most `limit`
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if a chunk is missing or there are more bytes than `limit`.
    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>>;
}

/// The handler's own writes, in the types of one kind of store; for DynamoDB, `store::dynamodb::Transaction`.
pub trait Writes: Any + Clone + Send + Sync {
    /// Appends the writes in `more`.
    fn append(&mut self, more: Self);
}

/// [`Writes`] of any type.
pub type OwnWrites = dyn Any + Send + Sync;

/// Optional store capability: applies a protocol write and the handler's own writes in one transaction, all or
/// nothing.
pub trait Transactions: Send + Sync {
    /// Checks, before anything is sent, whether `writes` can go into one transaction with a write to the record
    /// of `key`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`], with the reason: the writes belong to another store's type, are too many
    /// or too large, two of them are on one item, or one is on the record itself.
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError>;

    /// Applies `write` to `key` together with `writes`, if all their conditions hold. Otherwise applies
    /// nothing.
    ///
    /// `token` identifies this transaction, in at most 36 characters. A transaction that was already applied
    /// under this token isn't applied again, and gets the same answer. Reuse a token only with the same write
    /// and writes.
    ///
    /// # Errors
    ///
    /// As [`Store::apply`]. Unlike the record's condition, a failed condition of the handler's writes doesn't
    /// show whether an earlier attempt inside the store was applied. If that attempt was ambiguous, the result
    /// is an ambiguous error instead of [`CommitOutcome::Declined`]. [`StoreErrorKind::Conflict`] means that
    /// another transaction is using one of the items. If the error is marked
    /// [`maybe_applied`](StoreError::maybe_applied), that may be an earlier attempt of this same transaction.
    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>>;
}

/// The result of a transaction that was answered.
#[derive(Debug)]
#[must_use]
pub enum CommitOutcome {
    /// The result of the write to the record. If the record's condition failed, nothing was written, even if
    /// the handler's own conditions failed too.
    Answered(WriteOutcome),
    /// The record's condition held, but one of the handler's conditions failed. Nothing was written, and no
    /// attempt of this call is still on its way. The value holds the store's details, in its own types.
    Declined(Box<dyn Any + Send + Sync>),
}

/// One conditional write: a transition of the protocol, with all the values it needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// T1, absent → STARTED: writes the lock if there is no record.
    Claim(Lock),
    /// T2, an expired or released record → STARTED: replaces the whole record with the lock, if status, owner,
    /// generation and expiry (and the lease of a STARTED one) are as seen.
    Reclaim {
        /// The version that was seen.
        seen: Revision,
        /// The lock that replaces it.
        lock: Lock,
    },
    /// T3, stale STARTED → STARTED: sets a new owner, generation, times and attempt, if the record is STARTED
    /// and its owner, generation, lock time and lease are as seen.
    TakeOver {
        /// The version that was seen.
        seen: Revision,
        /// The lock that replaces it. Its fingerprint equals the stored one.
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
    /// owner and generation, and its lease ends before the new one. It never shortens a lease, so a late
    /// extension is harmless. Nothing else changes, and neither lease is compared with the current time.
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
    /// Without a claim, absent or an expired or released record → settled: puts the whole record, if there is
    /// none or all six chunks of the stored version are as seen. Nothing of an earlier record remains. The
    /// machine only puts settled records, but a store must accept a record in any state.
    Conclude {
        /// The version that was seen; `None` if there was no record.
        seen: Option<Revision>,
        /// The record that replaces it.
        record: Record,
    },
    /// An operator's write, any status → settled: sets a new owner and generation and settles the record, if
    /// its version is exactly the one seen. Nothing of an earlier outcome remains. A claim that still runs
    /// under the old owner is fenced.
    Resolve {
        /// The version that was seen.
        seen: Revision,
        /// The owner drawn for this write. The operator recognizes its own write by it.
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
    /// T6: gives the key back.
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

/// The version of a record that a compare-and-set was decided on.
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
    /// The lease, of a STARTED record.
    pub lease_until: Option<Timestamp>,
    /// The expiry.
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

/// The result of a [`Write`] that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum WriteOutcome {
    /// The write was applied.
    Applied,
    /// The condition failed. Contains the record that was there, if any.
    Refused(Option<Record>),
}

impl Write {
    /// The lock that a claiming write stores.
    pub const fn lock(&self) -> Option<&Lock> {
        match self {
            Self::Claim(lock) | Self::Reclaim { lock, .. } | Self::TakeOver { lock, .. } => Some(lock),
            Self::Settle { .. } | Self::Extend { .. } | Self::Conclude { .. } | Self::Resolve { .. } => None,
        }
    }

    /// The owner and generation that it settles under, if it settles a delivery's work.
    pub(crate) const fn settled_as(&self) -> Option<(Owner, Generation)> {
        match self {
            Self::Settle { owner, generation, .. } => Some((*owner, *generation)),
            Self::Conclude { record, .. } => Some((record.owner, record.generation)),
            _ => None,
        }
    }

    /// The contract in code: returns the record after this write is applied to `current`, or `None` if the
    /// condition fails.
    pub fn apply_to(&self, current: Option<&Record>) -> Option<Record> {
        match (self, current) {
            (Self::Claim(lock), None) => Some(lock.clone().into()),
            (Self::Reclaim { seen, lock }, Some(record)) if reclaim_condition(seen, record) => {
                Some(lock.clone().into())
            }
            (Self::TakeOver { seen, lock }, Some(record)) if take_over_condition(seen, record) => {
                // Keep the stored fingerprint: it equals the lock's, or this would be another operation.
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

/// The category of a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store can't be reached, is throttled, or doesn't answer.
    Unavailable,
    /// Another transaction is using the record. The write wasn't applied.
    Conflict,
    /// The store rejects the request itself: no such table, another key schema, no permission, expired
    /// credentials. It may accept the same request later.
    Rejected,
    /// The store never accepts this content: too large for one record, or with characters that it can't store.
    /// The engine then sends the settlement without its response.
    Unstorable,
    /// The stored record can't be decoded.
    Corrupt,
}

/// A store's error. Its text and its sources never contain a key, payload or response.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    maybe_applied: bool,
    source: Option<Box<dyn StdError + Send + Sync + 'static>>,
}

impl StoreError {
    /// Creates a definite error of this kind: the write wasn't applied.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), maybe_applied: false, source: None }
    }

    /// Sets whether the error is ambiguous, so that the write may have been applied anyway.
    #[must_use]
    pub fn maybe_applied(mut self, maybe_applied: bool) -> Self {
        self.maybe_applied = maybe_applied;
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync + 'static>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The category of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write may have been applied anyway.
    pub fn is_maybe_applied(&self) -> bool {
        self.maybe_applied
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
