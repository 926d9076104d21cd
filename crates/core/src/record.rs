//! The [`Record`] that a store holds for one scoped key, and the types of its fields.

use std::{fmt, sync::Arc};

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::{Hex, parse_hex},
    outcome::Outcome,
    settings::Execution,
    time::Timestamp,
};

/// The version of the record format that this library writes, and the only one it reads. A record of another
/// version is corrupt: it's never treated as absent, and its operation never runs.
pub const RECORD_VERSION: u32 = 3;

/// Identifies who holds a claim: 128 bits that the operating system draws for every claim.
///
/// The bits never come from a generator in memory, since a sandbox snapshot would copy the generator's state. The
/// request ID isn't used, since Lambda's asynchronous retries share it. The owner lets an executor recognise its own
/// claim when the claim's response was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u8; 16]);

impl Owner {
    /// Draws a new owner from the operating system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system can't provide random bits.
    pub fn random() -> Result<Self, Error> {
        random_bits("a claim's owner").map(Self)
    }

    /// The owner with these bytes, for stores that read it back and for tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Parses an owner from 32 hexadecimal digits.
    pub fn from_hex(digits: &str) -> Option<Self> {
        parse_hex(digits).map(Self)
    }

    /// The owner's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Draws random bits from the operating system. An error says that `what` needed them.
#[expect(clippy::disallowed_methods, reason = "the one place that draws random bits")]
pub fn random_bits(what: &str) -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the operating system returned no random bits for {what}"))
            .with_source(std::io::Error::other(error.to_string()))
    })?;
    Ok(bytes)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({}…)", Hex(&self.0[..4]))
    }
}

/// The fencing token: a number that grows with every claim of a key.
///
/// A handler may pass it on, so that a downstream system can refuse a number lower than the last it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    /// The generation with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The generation's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns a first claim's generation: the current time. So a key's generation grows even if an earlier record of
    /// the key was swept.
    pub(crate) const fn first(now: Timestamp) -> Self {
        Self(now.as_millis())
    }

    /// Returns the next claim's generation: the current time, but at least one more than this one.
    pub(crate) fn next(self, now: Timestamp) -> Self {
        Self(self.0.saturating_add(1).max(now.as_millis()))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a record's stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The key is claimed.
    Started,
    /// The outcome is stored.
    Completed,
    /// A permanent failure is stored.
    Failed,
    /// The key was released.
    Released,
}

impl Status {
    /// The status's stored name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "STARTED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Released => "RELEASED",
        }
    }

    /// Parses the status that is stored as `text`.
    pub fn from_stored(text: &str) -> Option<Self> {
        [Self::Started, Self::Completed, Self::Failed, Self::Released]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// What a record says of attempts that ended without an answer, so that they may have had effects: the process was killed
/// or frozen, or the handler was dropped, was cut off, panicked, or doesn't know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// No attempt is known to have ended so.
    #[default]
    None,
    /// An earlier attempt ended without an answer. The record's own claim may still run.
    Interrupted,
    /// The record's own claim ended without an answer, and nothing runs under it any more. Only a STARTED record has this
    /// mark, and only an executor with a reconciler sets it. Its lease ends when the next attempt may begin.
    Unanswered,
    /// An attempt ended without an answer, and the outcome was found by asking the remote system. Only a COMPLETED or
    /// FAILED record has this mark.
    Reconciled,
}

impl Mark {
    /// All marks that a record can have.
    pub const ALL: [Self; 4] = [Self::None, Self::Interrupted, Self::Unanswered, Self::Reconciled];

    /// The stored name. [`None`](Self::None) has none.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Interrupted => Some("interrupted"),
            Self::Unanswered => Some("unanswered"),
            Self::Reconciled => Some("reconciled"),
        }
    }

    /// Whether an attempt of the operation ended without an answer.
    pub const fn is_interrupted(self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether a record with this status can have the mark.
    pub const fn fits(self, status: Status) -> bool {
        match self {
            Self::None | Self::Interrupted => true,
            Self::Unanswered => matches!(status, Status::Started),
            Self::Reconciled => matches!(status, Status::Completed | Status::Failed),
        }
    }
}

impl From<bool> for Mark {
    /// The mark of a record whose operation had an interrupted attempt, or hadn't.
    fn from(is_interrupted: bool) -> Self {
        if is_interrupted { Self::Interrupted } else { Self::None }
    }
}

/// A record's state with the data that belongs to it. So a COMPLETED or FAILED record can't lack its outcome.
///
/// "Stale" and "expired" aren't states: they're computed from the times and the clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The key is claimed, under a lease.
    Started {
        /// When the lease expires.
        lease_until: Timestamp,
    },
    /// The operation is done, with this outcome.
    Completed(Outcome),
    /// The operation failed permanently, with this failure.
    Failed(Outcome),
    /// The key was released; the next delivery claims it.
    Released,
}

impl State {
    /// The state's name.
    pub const fn status(&self) -> Status {
        match self {
            Self::Started { .. } => Status::Started,
            Self::Completed(_) => Status::Completed,
            Self::Failed(_) => Status::Failed,
            Self::Released => Status::Released,
        }
    }
}

/// The record that a store holds for one scoped key.
///
/// The struct is deliberately exhaustive, with public fields: a third-party store must be able to build a record, and
/// mustn't silently drop a field that a new version adds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The owner of the last claim or, if an operator has settled the record since, the owner of the operator's write.
    pub owner: Owner,
    /// The fencing token of that claim, or of the operator's write.
    pub generation: Generation,
    /// How many claims this operation has had, the last one included.
    pub attempt: u32,
    /// The fingerprint of the request that made the claim.
    pub fingerprint: Fingerprint,
    /// When that claim was made.
    pub lock_acquired_at: Timestamp,
    /// Whether that claim's handler may run again if it ends without an answer. An unsettled claim that runs at most
    /// once is never taken over, whatever the reader's settings are.
    pub execution: Execution,
    /// When the record expires, in whole seconds, as DynamoDB's TTL counts. `None` means never: an
    /// at-most-once claim that isn't settled, which no sweeper may remove. Every other record has an expiry.
    pub expires_at: Option<Timestamp>,
    /// What's known of attempts that ended without an answer. A release keeps this, and so do later claims with the same
    /// fingerprint.
    pub mark: Mark,
    /// The id of the invocation that made the claim, for searching the logs. No rule reads it.
    pub request_id: Option<Arc<str>>,
    /// The trace of the run under that claim, such as a W3C `traceparent` or an X-Ray trace id. So a replay can be linked
    /// to the run that made its answer. No rule reads it. The type is `Arc<String>` because it's small: a record is part of
    /// many futures.
    pub trace: Option<Arc<String>>,
    /// The state, with its data.
    pub state: State,
}

impl Record {
    /// The state's name.
    pub const fn status(&self) -> Status {
        self.state.status()
    }

    /// When the claim's lease expires, if the record is STARTED.
    pub const fn lease_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Started { lease_until } => Some(lease_until),
            _ => None,
        }
    }

    /// Whether this record has the same version as `other`: the same status, owner, generation, lease and expiry. A put
    /// that replaces a record compares exactly these.
    pub fn has_version_of(&self, other: &Self) -> bool {
        self.status() == other.status()
            && self.is_claim_of(other)
            && self.lease_until() == other.lease_until()
            && self.expires_at == other.expires_at
    }

    /// Whether the record is an unsettled claim whose handler runs at most once. Only such a claim may lack an expiry.
    pub fn is_at_most_once_claim(&self) -> bool {
        self.status() == Status::Started && self.execution == Execution::AtMostOnce
    }

    /// Whether this record and `other` belong to one claim: they have the same owner and generation. Then their
    /// attempt, fingerprint, lock time, execution, request id and trace are the same too.
    pub fn is_claim_of(&self, other: &Self) -> bool {
        self.owner == other.owner && self.generation == other.generation
    }

    /// Returns the lock with this record's fields and this lease: the record as if it were STARTED.
    ///
    /// ```
    /// # extern crate lambda_idempotency_core as lambda_idempotency;
    /// use lambda_idempotency::{Fingerprint, settings::Execution, time::Timestamp};
    /// use lambda_idempotency::store::{Generation, Lock, Mark, Owner, Record, State};
    ///
    /// # fn main() -> Result<(), lambda_idempotency::Error> {
    /// let lease_until = Timestamp::from_millis(60_000);
    /// let lock = Lock {
    ///     owner: Owner::random()?,
    ///     generation: Generation::new(1),
    ///     attempt: 1,
    ///     fingerprint: Fingerprint::of(&"12.50 EUR")?,
    ///     lock_acquired_at: Timestamp::from_millis(0),
    ///     lease_until,
    ///     execution: Execution::AtLeastOnce,
    ///     expires_at: Some(Timestamp::from_millis(90_000_000)),
    ///     mark: Mark::None,
    ///     request_id: None,
    ///     trace: None,
    /// };
    /// let released = Record { state: State::Released, ..lock.clone().into() };
    /// assert_eq!(released.lock_until(lease_until), lock);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_until(&self, lease_until: Timestamp) -> Lock {
        Lock {
            owner: self.owner,
            generation: self.generation,
            attempt: self.attempt,
            fingerprint: self.fingerprint,
            lock_acquired_at: self.lock_acquired_at,
            lease_until,
            execution: self.execution,
            expires_at: self.expires_at,
            mark: self.mark,
            request_id: self.request_id.clone(),
            trace: self.trace.clone(),
        }
    }
}

/// A STARTED record, as a claim writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// See [`Record::owner`].
    pub owner: Owner,
    /// See [`Record::generation`].
    pub generation: Generation,
    /// See [`Record::attempt`].
    pub attempt: u32,
    /// See [`Record::fingerprint`].
    pub fingerprint: Fingerprint,
    /// See [`Record::lock_acquired_at`].
    pub lock_acquired_at: Timestamp,
    /// See [`State::Started`].
    pub lease_until: Timestamp,
    /// See [`Record::execution`].
    pub execution: Execution,
    /// See [`Record::expires_at`].
    pub expires_at: Option<Timestamp>,
    /// See [`Record::mark`].
    pub mark: Mark,
    /// See [`Record::request_id`].
    pub request_id: Option<Arc<str>>,
    /// See [`Record::trace`].
    pub trace: Option<Arc<String>>,
}

impl From<Lock> for Record {
    fn from(lock: Lock) -> Self {
        Self {
            owner: lock.owner,
            generation: lock.generation,
            attempt: lock.attempt,
            fingerprint: lock.fingerprint,
            lock_acquired_at: lock.lock_acquired_at,
            execution: lock.execution,
            expires_at: lock.expires_at,
            mark: lock.mark,
            request_id: lock.request_id,
            trace: lock.trace,
            state: State::Started { lease_until: lock.lease_until },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_grow_despite_clock_jumps() {
        let first = Generation::first(Timestamp::from_millis(1000));
        assert_eq!(first.next(Timestamp::from_millis(5000)).get(), 5000);
        assert_eq!(first.next(Timestamp::from_millis(10)).get(), 1001);
        assert_eq!(first.next(Timestamp::from_millis(1000)).get(), 1001);
    }

    #[test]
    fn owners_are_distinct_with_short_debug() {
        let (a, b) = (Owner::random().unwrap(), Owner::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(Owner::from_hex(&a.to_string()), Some(a));
        assert!(!format!("{a:?}").contains(&a.to_string()));
        assert_eq!(Owner::from_hex("xyz"), None);
    }

    #[test]
    fn statuses_are_stored_by_name() {
        for status in [Status::Started, Status::Completed, Status::Failed, Status::Released] {
            assert_eq!(Status::from_stored(status.as_str()), Some(status));
        }
        assert_eq!(Status::from_stored("EXPIRED"), None);
    }
}
