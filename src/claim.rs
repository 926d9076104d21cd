//! The [`Claim`]: the exclusive right to run one operation, and [`ClaimHandle`], what a handler may
//! ask of it.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{
    engine::{Engine, Verdict},
    error::{Error, ErrorKind},
    invocation,
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{End, Held, Intent, Refusal, State},
    record::{Generation, Lock, Record, Status},
    store::StoreError,
    time::Timestamp,
};

/// The exclusive right to run one operation, held under a lease.
///
/// Settle it by [`complete`](Self::complete), [`fail`](Self::fail) or [`release`](Self::release), each
/// of which takes it. A claim that is dropped settles nothing: its lease frees the key, and one warning
/// says when.
#[must_use = "a claim that is not settled blocks its key until the lease ends"]
pub struct Claim {
    engine: Arc<Engine>,
    key: StoredKey,
    /// The machine, in the state that holds the claim; gone once it is being settled.
    state: Option<State>,
    held: Held,
    /// When the handler must be cut off, where nothing else ends it in time.
    cut_off: Option<Timestamp>,
    /// What the claim wrote, where a copy of its outcome may be kept.
    lock: Option<Box<Lock>>,
}

/// How [`Claim::complete`] and [`Claim::fail`] ended, when they did not fail.
#[derive(Debug)]
#[must_use = "a superseded claim's own result is not the operation's outcome"]
pub enum Completion {
    /// The outcome is stored.
    Recorded,
    /// The claim had been taken over, and the successor settled first: its outcome stands, and is the
    /// one to answer with.
    Superseded(Replay),
}

/// An outcome from the record.
#[derive(Clone, PartialEq, Eq)]
pub struct Replay {
    pub(crate) is_failure: bool,
    pub(crate) response: Bytes,
    pub(crate) generation: Generation,
}

impl Replay {
    /// Whether the outcome is a final failure.
    pub fn is_failure(&self) -> bool {
        self.is_failure
    }

    /// The response's bytes, as they were recorded.
    pub fn response(&self) -> &Bytes {
        &self.response
    }

    /// The response's bytes, as they were recorded.
    pub fn into_response(self) -> Bytes {
        self.response
    }

    /// The generation that recorded it.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

impl fmt::Debug for Replay {
    /// Shows the shape, never the response.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("is_failure", &self.is_failure)
            .field("response_bytes", &self.response.len())
            .field("generation", &self.generation)
            .finish()
    }
}

impl Claim {
    pub(crate) fn new(
        engine: Arc<Engine>,
        key: StoredKey,
        state: State,
        held: Held,
        cut_off: Option<Timestamp>,
        lock: Option<Box<Lock>>,
    ) -> Self {
        Self { engine, key, state: Some(state), held, cut_off, lock }
    }

    /// What the handler may know of the claim.
    pub fn handle(&self) -> ClaimHandle {
        ClaimHandle { claim: Arc::new(Claimed { key: self.key.clone(), held: self.held.clone() }) }
    }

    /// When the handler must be cut off, where nothing else ends it before the lease does.
    pub(crate) fn cut_off(&self) -> Option<Timestamp> {
        self.cut_off
    }

    pub(crate) fn key(&self) -> &StoredKey {
        &self.key
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// T4: stores `response` as the operation's outcome.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim had been taken over, and the successor is still at work, or its response
    ///   cannot be read just now.
    /// - [`ErrorKind::NotRetained`]: the successor settled first, without keeping its response.
    /// - [`ErrorKind::Unrecorded`]: the outcome is not known to be stored. The operation happened; answer
    ///   with its response, since an error would make the caller repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the outcome stored, not stored, or still to be; the lease frees the key.
    pub async fn complete(self, response: impl Into<Bytes>) -> Result<Completion, Error> {
        self.record(Verdict::Complete(response.into())).await
    }

    /// T5: stores `failure` as the operation's outcome: it failed for good, and is not to run again.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, failure: impl Into<Bytes>) -> Result<Completion, Error> {
        self.record(Verdict::Fail(Some(failure.into()))).await
    }

    /// T6: gives the key back; the next delivery runs the handler.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim had been taken over, and nothing was left to give back.
    /// - [`ErrorKind::Unrecorded`]: the key is not known to be released; the lease frees it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the key released or not; the lease frees it.
    pub async fn release(self) -> Result<(), Error> {
        let key = self.key.clone();
        match self.settle(Verdict::Release).await {
            Settled { end: End::Recorded, .. } => Ok(()),
            Settled { end, store_error, .. } => Err(settle_error(&key, end, store_error)),
        }
    }

    async fn record(self, verdict: Verdict) -> Result<Completion, Error> {
        let (engine, key) = (Arc::clone(&self.engine), self.key.clone());
        match self.settle(verdict).await {
            Settled { end: End::Recorded, .. } => Ok(Completion::Recorded),
            Settled { end: End::Superseded(record), .. } => {
                let outcome = engine.successors_outcome(&key, &record, ErrorKind::Fenced).await;
                outcome.map(Completion::Superseded)
            }
            Settled { end, store_error, .. } => Err(settle_error(&key, end, store_error)),
        }
    }

    /// Settles the claim, and tells how that ended.
    pub(crate) async fn settle(mut self, verdict: Verdict) -> Settled {
        let copied = self.lock.take().and_then(|lock| Some((lock, verdict.response()?.clone())));
        let intent = self.engine.intent(&self.key, self.held.owner, verdict).await;
        let status = match &intent {
            Intent::Complete(_) | Intent::Commit(_) => Status::Completed,
            Intent::Fail(_) => Status::Failed,
            Intent::Release => Status::Released,
        };
        let Some(state) = self.state.take() else {
            return Settled { end: End::Unrecorded(Refusal::Unavailable), store_error: None };
        };
        let settled = self.engine.settle(&self.key, state, intent, copied).await;
        match &settled.end {
            End::Recorded => observe::settled(&self.key, &self.held, status),
            End::Superseded(_) | End::Fenced(_) => observe::fenced(&self.key, &self.held),
            End::Unrecorded(_) | End::NotCommitted(_) | End::Unresolved(_) => {
                let cause = settled.store_error.as_ref();
                observe::unrecorded(&self.key, &self.held, cause.map(|error| error as _));
            }
        }
        settled
    }
}

/// How a settlement ended, and the store's last error on the way.
pub(crate) struct Settled {
    pub(crate) end: End,
    pub(crate) store_error: Option<StoreError>,
}

fn settle_error(key: &StoredKey, end: End, store_error: Option<StoreError>) -> Error {
    let error = match end {
        End::Unrecorded(Refusal::Mismatch) => Error::new(
            ErrorKind::Unrecorded,
            format!("{key}: the outcome is not stored, because the key is in use for another request by now"),
        ),
        End::Fenced(_) | End::Superseded(_) => Error::new(
            ErrorKind::Fenced,
            format!(
                "{key}: this run outlived its lease and was taken over; repeat to get the successor's outcome"
            ),
        ),
        End::Recorded | End::Unrecorded(_) | End::NotCommitted(_) | End::Unresolved(_) => Error::new(
            ErrorKind::Unrecorded,
            format!("{key}: the handler ran, but its outcome is not known to be stored"),
        ),
    };
    match store_error {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.state.is_some() {
            observe::abandoned(&self.key, &self.held);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.key).field("held", &self.held).finish_non_exhaustive()
    }
}

/// What a handler may know of the claim that it runs under; see [`current`].
#[derive(Clone, Debug)]
pub struct ClaimHandle {
    claim: Arc<Claimed>,
}

#[derive(Debug)]
struct Claimed {
    key: StoredKey,
    held: Held,
}

impl ClaimHandle {
    /// The scoped key, as it is stored: safe to show and to log.
    pub fn key(&self) -> &StoredKey {
        &self.claim.key
    }

    /// How many claims this operation has had, this one included: 1 on a first run.
    pub fn attempt(&self) -> u32 {
        self.claim.held.attempt
    }

    /// Whether an earlier run was left without an answer, so that it may have had effects.
    pub fn is_takeover(&self) -> bool {
        self.claim.held.is_takeover
    }

    /// The fencing token: grows with every claim of the key. What the handler writes to can keep the
    /// highest it has seen and refuse a lower one.
    pub fn generation(&self) -> Generation {
        self.claim.held.generation
    }

    /// Until when the claim stands.
    pub fn lease_until(&self) -> Timestamp {
        self.claim.held.lease_until
    }

    /// A key for one step of this operation, to pass on to an API that takes idempotency keys itself.
    ///
    /// It depends on the scoped key and the step alone, so every attempt sends the same one. It has the
    /// form of a UUID (version 8, RFC 9562).
    pub fn derive_key(&self, step: &str) -> String {
        self.claim.key.derive(step)
    }
}

/// The claim that the calling handler runs under, if it is a wrapped one.
///
/// It is known inside the handler's future, not in tasks that the handler spawns: pass it on to those.
///
/// ```
/// if let Some(claim) = lambda_idempotency::current() {
///     println!("attempt {} under generation {}", claim.attempt(), claim.generation());
/// }
/// ```
pub fn current() -> Option<ClaimHandle> {
    invocation::current().and_then(|surroundings| surroundings.claim)
}

/// The response of a settled record, where it is one.
pub(crate) fn outcome_of(record: &Record) -> Option<(&Outcome, bool)> {
    match &record.state {
        crate::record::State::Completed(outcome) => Some((outcome, false)),
        crate::record::State::Failed(outcome) => Some((outcome, true)),
        _ => None,
    }
}
