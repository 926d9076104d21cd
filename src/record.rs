//! What a store holds for one scoped key: the [`Record`], and the words it is written in.

use std::{fmt, sync::Arc};

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::{Hex, parse_hex},
    outcome::Outcome,
    time::Timestamp,
};

/// The version of the record format that this library writes, and the only one that it reads.
/// A record of another version is corrupt to it: never treated as absent, never executed.
pub const RECORD_VERSION: u32 = 2;

/// Who holds a claim: 128 bits drawn from the operating system at every claim.
///
/// Never from a generator in memory, which a snapshot of the sandbox would copy; never the request id,
/// which Lambda's asynchronous retries share. By it, an executor knows its own claim again when the
/// answer to it was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner([u8; 16]);

impl Owner {
    /// Draws a new owner from the operating system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system has no random bits to give.
    pub fn random() -> Result<Self, Error> {
        random_bits("a claim's owner").map(Self)
    }

    /// The owner that these bytes stand for: for stores that read it back, and for tests.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The owner that 32 hexadecimal digits stand for.
    pub fn from_hex(digits: &str) -> Option<Self> {
        parse_hex(digits).map(Self)
    }

    /// The owner's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Bits that the operating system draws for `what`.
#[expect(clippy::disallowed_methods, reason = "the one place that draws random bits")]
pub(crate) fn random_bits(what: &str) -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the operating system gave no random bits for {what}"))
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
/// A handler may pass it on, so that what it writes to can refuse a number lower than the last it saw.
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

    /// A first claim's generation: the time, so that it grows even after the record was swept away.
    pub(crate) const fn first(now: Timestamp) -> Self {
        Self(now.as_millis())
    }

    /// A later claim's generation.
    pub(crate) fn next(self, now: Timestamp) -> Self {
        Self(self.0.saturating_add(1).max(now.as_millis()))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A record's stored state, by name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// A claim stands.
    Started,
    /// The outcome is stored.
    Completed,
    /// A final failure is stored.
    Failed,
    /// The key was given back.
    Released,
}

impl Status {
    /// The status as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "STARTED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Released => "RELEASED",
        }
    }

    /// The status that is stored as `text`.
    pub fn from_stored(text: &str) -> Option<Self> {
        [Self::Started, Self::Completed, Self::Failed, Self::Released]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// A record's state with all that belongs to it, so that none can be half-settled.
///
/// "Stale" and "expired" are not states: they are computed from the times and the clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A claim stands, under a lease.
    Started {
        /// Until when the claim stands without an answer.
        lease_until: Timestamp,
    },
    /// The operation is done; this is its outcome.
    Completed(Outcome),
    /// The operation failed for good; this is the failure.
    Failed(Outcome),
    /// The key was given back; the next delivery claims it anew.
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

/// What a store holds for one scoped key.
///
/// Its fields are public and it is exhaustive by decision: a store that someone else writes must be
/// able to build one, and must not silently drop a field that a new version adds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Who claimed the key last, or the operator who resolved it since.
    pub owner: Owner,
    /// The fencing token of that claim, or of the operator's write.
    pub generation: Generation,
    /// How many claims this operation has had, this one included.
    pub attempt: u32,
    /// The fingerprint of the request that made the claim.
    pub fingerprint: Fingerprint,
    /// When that claim was made.
    pub lock_acquired_at: Timestamp,
    /// Until when the record counts, in whole seconds, since DynamoDB's sweeper counts in them. `None` is forever: an
    /// at-most-once claim that isn't settled, which no sweeper may remove.
    pub expires_at: Option<Timestamp>,
    /// Whether an earlier attempt of this operation ended without an answer, so that it may have had effects: its
    /// process was killed or frozen, or its handler was dropped, cut off or panicked. A release keeps it, and so do
    /// the claims that follow with the same fingerprint.
    pub interrupted: bool,
    /// The invocation that made the claim, for people who search the logs; no rule looks at it.
    pub request_id: Option<Arc<str>>,
    /// The state, with what belongs to it.
    pub state: State,
}

impl Record {
    /// The state's name.
    pub const fn status(&self) -> Status {
        self.state.status()
    }

    /// Until when the claim stands, if one does.
    pub const fn lease_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Started { lease_until } => Some(lease_until),
            _ => None,
        }
    }

    /// The lock of the claim that made this record, under this lease: what makes it the same record, but STARTED.
    ///
    /// ```
    /// use lambda_idempotency::{Fingerprint, Generation, Lock, Owner, Record, State, Timestamp};
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
    ///     expires_at: Some(Timestamp::from_millis(90_000_000)),
    ///     interrupted: false,
    ///     request_id: None,
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
            expires_at: self.expires_at,
            interrupted: self.interrupted,
            request_id: self.request_id.clone(),
        }
    }
}

/// A STARTED record: what a claim writes.
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
    /// See [`Record::expires_at`].
    pub expires_at: Option<Timestamp>,
    /// See [`Record::interrupted`].
    pub interrupted: bool,
    /// See [`Record::request_id`].
    pub request_id: Option<Arc<str>>,
}

impl From<Lock> for Record {
    fn from(lock: Lock) -> Self {
        Self {
            owner: lock.owner,
            generation: lock.generation,
            attempt: lock.attempt,
            fingerprint: lock.fingerprint,
            lock_acquired_at: lock.lock_acquired_at,
            expires_at: lock.expires_at,
            interrupted: lock.interrupted,
            request_id: lock.request_id,
            state: State::Started { lease_until: lock.lease_until },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_grow_whatever_the_clock_does() {
        let first = Generation::first(Timestamp::from_millis(1000));
        assert_eq!(first.next(Timestamp::from_millis(5000)).get(), 5000);
        assert_eq!(first.next(Timestamp::from_millis(10)).get(), 1001);
        assert_eq!(first.next(Timestamp::from_millis(1000)).get(), 1001);
    }

    #[test]
    fn owners_differ_and_show_only_their_beginning() {
        let (a, b) = (Owner::random().unwrap(), Owner::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(Owner::from_hex(&a.to_string()), Some(a));
        assert!(!format!("{a:?}").contains(&a.to_string()));
        assert_eq!(Owner::from_hex("xyz"), None);
    }

    #[test]
    fn a_status_is_stored_by_its_name() {
        for status in [Status::Started, Status::Completed, Status::Failed, Status::Released] {
            assert_eq!(Status::from_stored(status.as_str()), Some(status));
        }
        assert_eq!(Status::from_stored("EXPIRED"), None);
    }
}
