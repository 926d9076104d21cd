//! The [`Store`] contract: what the library asks of the thing that keeps its records.

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

/// A conditional key-value map: it knows no clock and no rule.
///
/// All rules live in one pure machine, which decides what to write and on which condition. A store
/// writes just that, in one atomic step, or says what stands in the way.
///
/// # Contract
///
/// - [`apply`](Self::apply) makes the write if and only if its condition holds, in one atomic step for
///   the key: [`Write::apply_to`] says exactly when, and what the record is then. A store that can read
///   and write under a lock of its own may call that function; one that cannot says the same in
///   conditions of its own.
/// - When the condition fails, nothing changes, and the answer has the record that stood in the way, as
///   it was at that very moment.
/// - [`read`](Self::read) is strongly consistent: it sees every write that was answered before it began.
/// - What is stored comes back equal in every field.
/// - A store neither judges nor removes a record because it is old, except by a sweeper that acts on
///   `expires_at` alone, at that time or later.
///
/// # Errors
///
/// An error is *ambiguous* if the write may have been made all the same, now or later: after a
/// time-out, a lost connection, an answer that says nothing. Such an error is marked with
/// [`StoreError::maybe_applied`], also if only one of several attempts inside the store was ambiguous.
/// A failed condition is not an error, and is always definite.
///
/// A record that cannot be understood is [`StoreErrorKind::Corrupt`], never absent.
///
/// # Cancel safety
///
/// Dropping a future may leave the write made, not made, or still to come.
///
/// # Example
///
/// [`MemoryStore`](memory::MemoryStore) is the contract in a few lines. `conformance::check` (feature
/// `conformance`) proves a store of your own.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Makes `write` on `key` if its condition holds.
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<Written, StoreError>>;

    /// Reads the record of `key`, strongly consistent.
    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// The capability to keep a large response beside the record, if the store has it. Without it,
    /// every response is kept in the record, whatever its size.
    fn parts(&self) -> Option<&dyn ResponseParts> {
        None
    }

    /// The capability to settle a record and to make the handler's own writes in one transaction, if the store has it.
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
    ) -> BoxFuture<'a, Result<Written, StoreError>> {
        (**self).apply(key, write)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        (**self).read(key)
    }

    fn parts(&self) -> Option<&dyn ResponseParts> {
        (**self).parts()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        (**self).transactions()
    }
}

/// A store's optional capability: a response that is too large for the record is kept in siblings.
///
/// The engine writes the parts before the completion that makes them visible, and reads them when a
/// replay needs them.
pub trait ResponseParts: Send + Sync {
    /// The largest response, as kept, that goes into the record itself; in bytes.
    fn inline_limit(&self) -> usize;

    /// Keeps `bytes` in siblings of `key` that belong to `owner` alone, until a day after `expires_at`,
    /// and returns how many there are. Writing the same again is harmless.
    ///
    /// # Errors
    ///
    /// If any part could not be written; the completion then says that the response is not retained.
    fn write_parts<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>>;

    /// The bytes that were kept in `count` siblings of `key` by `owner`, strongly consistent, and no
    /// more than `limit` of them.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if a part is missing or there are more bytes than `limit`.
    fn read_parts<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>>;
}

/// Writes of a handler's own, in the types of one kind of store; for DynamoDB, `store::dynamodb::Transaction`.
pub trait Writes: Any + Clone + Send + Sync {
    /// Puts what `more` has behind what is here.
    fn append(&mut self, more: Self);
}

/// [`Writes`] of whatever type.
pub type OwnWrites = dyn Any + Send + Sync;

/// A store's optional capability: a write of the protocol and writes of the handler's own in one transaction, so that
/// either all of them are made or none is.
pub trait Transactions: Send + Sync {
    /// Whether `writes` can be made together with one on the record of `key`, as far as that can be told before
    /// anything is sent.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`], with what is wrong: they are of another store's type, too many, too large, two of
    /// them are on one item, or one is on the record itself.
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError>;

    /// Makes `write` on `key`, if its condition holds, and with it `writes`, if theirs hold; or nothing.
    ///
    /// `token` names this transaction, in at most 36 characters: if it was made before, it is not made again, and
    /// answered as then. Whoever uses a token again uses it with the same write and writes.
    ///
    /// # Errors
    ///
    /// As [`Store::apply`]. That one of the handler's own conditions failed says nothing of an earlier attempt inside the
    /// store, unlike the record's: if that attempt was ambiguous, this is an ambiguous error, and not
    /// [`Committed::Declined`]. [`StoreErrorKind::Conflict`] says that another transaction has one of the items just now;
    /// if it is marked [`maybe_applied`](StoreError::maybe_applied), that may be this very one, sent before.
    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Committed, StoreError>>;
}

/// What became of a transaction that was answered.
#[derive(Debug)]
#[must_use]
pub enum Committed {
    /// What became of the write to the record. If it was refused, nothing was written, whatever stood in the way of
    /// the handler's own writes too.
    Answered(Written),
    /// The record's condition held, and one of the handler's own failed. Nothing was written, and nothing of this call
    /// is on its way. This is what the store tells about it, in its own types.
    Declined(Box<dyn Any + Send + Sync>),
}

/// One conditional write: a transition of the protocol, with all the values it needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// T1, absent → STARTED: writes the lock if there is no record.
    Claim(Lock),
    /// T2, a record that no longer counts → STARTED: replaces the whole record by the lock, if status,
    /// owner, generation and expiry (and the lease of a STARTED one) are as seen.
    Reclaim {
        /// The version that was seen.
        seen: Seen,
        /// What takes its place.
        lock: Lock,
    },
    /// T3, stale STARTED → STARTED: puts a new owner, generation, times and attempt into the record, if
    /// it is STARTED and owner, generation, time of the lock and lease are as seen.
    TakeOver {
        /// The version that was seen.
        seen: Seen,
        /// What takes its place; its fingerprint is the one that is there.
        lock: Lock,
    },
    /// T4 to T6, STARTED → settled: if the record is STARTED and has this owner and generation. There
    /// is no test of the time: a lease that has run out but was not taken over may still be settled.
    Settle {
        /// The claim's owner.
        owner: Owner,
        /// The claim's generation.
        generation: Generation,
        /// What the record becomes.
        settlement: Settlement,
    },
    /// T7, STARTED → STARTED: moves the lease, and the expiry with it, if the record is STARTED, has this owner and
    /// generation, and its lease ends before the new one. A lease is never shortened, so that an extension which
    /// arrives late does no harm. Nothing else changes, and neither lease is compared with the time.
    Extend {
        /// The claim's owner.
        owner: Owner,
        /// The claim's generation.
        generation: Generation,
        /// Until when the claim is to stand.
        lease_until: Timestamp,
        /// Until when the record is to count; `None` is forever, and removes the expiry.
        expires_at: Option<Timestamp>,
    },
    /// Without a claim, absent or a record that no longer counts → settled: puts the whole record, if there is none,
    /// or the one that is there is the very version that was seen, in all six parts. Nothing of an earlier record
    /// stays. The machine puts settled records; to a store, it is a record as any other, whatever its state.
    Conclude {
        /// The version that was seen; `None` if there was no record.
        seen: Option<Seen>,
        /// What takes its place.
        record: Record,
    },
    /// An operator's write, whatever the status is → settled: puts a new owner and generation into the
    /// record and settles it, if it is the very version that was seen. Nothing of an outcome that was
    /// there before stays. A claim that still runs under the old owner finds itself fenced.
    Resolve {
        /// The version that was seen.
        seen: Seen,
        /// The owner drawn for this write: by it, the operator knows its own write again.
        owner: Owner,
        /// The generation that it gets.
        generation: Generation,
        /// What the record becomes.
        settlement: Settlement,
    },
}

/// How a claim is settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Settlement {
    /// T4: stores the outcome, and until when it counts.
    Complete(Outcome, Timestamp),
    /// T5: stores the final failure, and until when it counts.
    Fail(Outcome, Timestamp),
    /// T6: gives the key back.
    Release {
        /// Until when the record counts.
        expires_at: Timestamp,
        /// What becomes of [`Record::interrupted`].
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
pub struct Seen {
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

impl Seen {
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

/// What became of a [`Write`] that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Written {
    /// It was made.
    Applied,
    /// Its condition failed: this is what was there, if anything.
    Refused(Option<Record>),
}

impl Write {
    /// The lock that a claiming write leaves behind.
    pub const fn lock(&self) -> Option<&Lock> {
        match self {
            Self::Claim(lock) | Self::Reclaim { lock, .. } | Self::TakeOver { lock, .. } => Some(lock),
            Self::Settle { .. } | Self::Extend { .. } | Self::Conclude { .. } | Self::Resolve { .. } => None,
        }
    }

    /// The owner and the generation under which it settles, where it settles what a delivery has done.
    pub(crate) const fn settled_as(&self) -> Option<(Owner, Generation)> {
        match self {
            Self::Settle { owner, generation, .. } => Some((*owner, *generation)),
            Self::Conclude { record, .. } => Some((record.owner, record.generation)),
            _ => None,
        }
    }

    /// The contract itself: what the record is after this write met `current`, or `None` if the
    /// condition fails.
    pub fn apply_to(&self, current: Option<&Record>) -> Option<Record> {
        match (self, current) {
            (Self::Claim(lock), None) => Some(lock.clone().into()),
            (Self::Reclaim { seen, lock }, Some(record)) if reclaim_condition(seen, record) => {
                Some(lock.clone().into())
            }
            (Self::TakeOver { seen, lock }, Some(record)) if take_over_condition(seen, record) => {
                // The fingerprint stays: it is equal, or this would be another operation.
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
            (Self::Conclude { seen, record }, current) if *seen == current.map(Seen::of) => {
                Some(record.clone())
            }
            (Self::Resolve { seen, owner, generation, settlement }, Some(record))
                if Seen::of(record) == *seen =>
            {
                let resolved = Record { owner: *owner, generation: *generation, ..record.clone() };
                Some(settled(resolved, settlement))
            }
            _ => None,
        }
    }
}

fn reclaim_condition(seen: &Seen, record: &Record) -> bool {
    record.status() == seen.status
        && record.owner == seen.owner
        && record.generation == seen.generation
        && record.expires_at == seen.expires_at
        && record.lease_until() == seen.lease_until
}

fn take_over_condition(seen: &Seen, record: &Record) -> bool {
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

/// What kind of trouble a store is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// It cannot be reached, is throttled, or does not answer.
    Unavailable,
    /// Another transaction has the record just now. The write was not made.
    Conflict,
    /// It refuses the request as such: no such table, another key schema, no permission, expired credentials. It may
    /// take the same request later.
    Rejected,
    /// It will never take this content: too large for one record, or with characters that it can't keep. A settlement
    /// is then sent without its response.
    Unstorable,
    /// The record that it holds cannot be understood.
    Corrupt,
}

/// A store's error. Its text and its sources hold no key, payload or response.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    maybe_applied: bool,
    source: Option<Box<dyn StdError + Send + Sync + 'static>>,
}

impl StoreError {
    /// An error of this kind that is definite: the write was not made.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), maybe_applied: false, source: None }
    }

    /// The same error, ambiguous if `maybe_applied`: the write may have been made all the same.
    #[must_use]
    pub fn maybe_applied(mut self, maybe_applied: bool) -> Self {
        self.maybe_applied = maybe_applied;
        self
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync + 'static>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write may have been made all the same.
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
