//! The [`Claim`]: the exclusive right to run one operation, and [`ClaimHandle`], what a handler may
//! ask of it.

mod commit;

pub use commit::{Commitment, NotMade};

use std::{
    any::Any,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use crate::{
    engine::{Engine, Timing, Verdict},
    error::{Error, ErrorKind},
    invocation,
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{Action, Decline, End, Event, Fault, Held, Input, Intent, Refusal, State, step},
    record::{Generation, Lock, Record, Status},
    store::{OwnWrites, StoreError},
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
    claimed: Arc<Claimed>,
    /// The machine, in the state that holds the claim; gone once it is being settled.
    state: Option<Box<State>>,
    timing: Timing,
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
        state: Box<State>,
        held: Held,
        timing: Timing,
        lock: Option<Box<Lock>>,
    ) -> Self {
        let lease_until = AtomicU64::new(held.lease_until.as_millis());
        let claimed = Arc::new(Claimed { key, held, lease_until });
        Self { engine, claimed, state: Some(state), timing, lock }
    }

    /// What the handler may know of the claim.
    pub fn handle(&self) -> ClaimHandle {
        ClaimHandle { claim: Arc::clone(&self.claimed) }
    }

    /// How long its lease is, and when its handler is cut off.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn key(&self) -> &StoredKey {
        &self.claimed.key
    }

    /// The claim as it is held now.
    pub(crate) fn held(&self) -> Held {
        Held { lease_until: self.claimed.lease_until(), ..self.claimed.held.clone() }
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
        let key = self.key().clone();
        match self.settle(Verdict::Release).await {
            Settled { end: End::Recorded, .. } => Ok(()),
            Settled { end, store_error, .. } => Err(settle_error(&key, end, store_error)),
        }
    }

    async fn record(self, verdict: Verdict) -> Result<Completion, Error> {
        let (engine, key, until) = (Arc::clone(&self.engine), self.key().clone(), self.answer_by());
        match self.settle(verdict).await {
            Settled { end: End::Recorded, .. } => Ok(Completion::Recorded),
            Settled { end: End::Superseded(record), .. } => {
                let outcome = engine.successors_outcome(&key, &record, ErrorKind::Fenced, until).await;
                outcome.map(Completion::Superseded)
            }
            Settled { end, store_error, .. } => Err(settle_error(&key, end, store_error)),
        }
    }

    /// What to settle it with, prepared while the claim is still held: a future that is dropped here leaves a claim that
    /// was abandoned, and says so.
    async fn intent(&self, verdict: Verdict) -> Option<Intent> {
        let until = self.state.as_ref()?.prepare_until(self.engine.clock.now());
        Some(self.engine.intent(self.key(), self.claimed.held.owner, verdict, until).await)
    }

    /// By when the caller has its answer.
    pub(crate) fn answer_by(&self) -> Option<Timestamp> {
        self.timing.limits.answer_by
    }

    /// Settles the claim, and tells how that ended.
    pub(crate) async fn settle(mut self, verdict: Verdict) -> Settled {
        let copied = self.lock.take().and_then(|lock| Some((Some(lock), verdict.response()?.clone())));
        let Some(intent) = self.intent(verdict).await else { return Settled::not_held() };
        let status = intent.status();
        let Some(state) = self.state.take() else { return Settled::not_held() };
        let settled = self.engine.settle(self.key(), state, intent, copied).await;
        self.tell(&settled, status);
        settled
    }

    /// T8: settles the claim together with the handler's own writes.
    ///
    /// # Errors
    ///
    /// The claim, still held, if the transaction was definitely not made.
    pub(crate) async fn settle_with(
        mut self,
        verdict: Verdict,
        writes: &OwnWrites,
    ) -> Result<Settled, Turned<Self>> {
        let copied = self.lock.clone().and_then(|lock| Some((Some(lock), verdict.response()?.clone())));
        let Some(intent) = self.intent(verdict).await.map(Intent::committed) else {
            return Ok(Settled::not_held());
        };
        let Some(state) = self.state.take() else { return Ok(Settled::not_held()) };
        match self.engine.settle_with(self.key(), state, intent, Some(writes), copied).await {
            Ok(settled) => {
                self.tell(&settled, Status::Completed);
                Ok(settled)
            }
            Err(turned) => {
                self.state = Some(turned.right);
                Err(Turned {
                    right: self,
                    why: turned.why,
                    details: turned.details,
                    store_error: turned.store_error,
                })
            }
        }
    }

    fn tell(&self, settled: &Settled, status: Status) {
        let (key, held) = (self.key(), self.held());
        let cause = settled.store_error.as_ref().map(|error| error as _);
        match &settled.end {
            End::Recorded => observe::settled(key, &held, status),
            End::Superseded(_) | End::Fenced(_) => observe::fenced(key, &held),
            End::Unrecorded(_) => observe::unrecorded(key, &held, cause),
            End::Unresolved(_) => observe::unresolved(key, cause),
            // Whoever answers has the error for it, and tells.
            End::NotCommitted(_) => {}
        }
    }

    /// T7: asks for the claim to stand until then.
    pub(crate) async fn extend_until(&mut self, until: Timestamp) -> Extended {
        let now = self.engine.clock.now();
        let Some(Action::Apply(write)) = self.step(Event::Extend(until)) else { return Extended::NotNow };
        let call_until = self.state.as_ref().and_then(|state| state.call_until(now));
        let extending = self.engine.store.apply(self.key(), &write);
        let event = match self.engine.in_time(now, call_until, extending).await {
            Ok(written) => Event::Answered(written),
            Err(error) => {
                Event::Failed(Fault { kind: error.kind(), maybe_applied: error.is_maybe_applied() })
            }
        };
        match self.step(event) {
            Some(Action::Extended(held)) => {
                self.claimed.lease_until.store(held.lease_until.as_millis(), Ordering::Relaxed);
                observe::extended(self.key(), &held);
                Extended::Until(held.lease_until)
            }
            Some(Action::Lost) => {
                observe::fenced(self.key(), &self.held());
                Extended::Lost
            }
            _ => {
                observe::not_extended(self.key(), &self.held());
                Extended::NotNow
            }
        }
    }

    /// The state stays where it is: whoever drops the future of an extension still holds the claim.
    fn step(&mut self, event: Event) -> Option<Action> {
        let input = Input { now: self.engine.clock.now(), event };
        let mut state = self.state.take()?;
        let (next, action) = step(*state, input);
        *state = next;
        self.state = Some(state);
        Some(action)
    }
}

/// What became of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// The claim stands until then.
    Until(Timestamp),
    /// It stands as before.
    NotNow,
    /// It has been taken over.
    Lost,
}

/// A transaction that was definitely not made.
pub(crate) struct Turned<R> {
    /// What it was to be made under, held as before.
    pub(crate) right: R,
    pub(crate) why: Decline,
    /// What the store tells of a condition that failed.
    pub(crate) details: Option<Box<dyn Any + Send + Sync>>,
    pub(crate) store_error: Option<StoreError>,
}

impl<R> Turned<R> {
    /// The same under another right.
    pub(crate) fn map<S>(self, f: impl FnOnce(R) -> S) -> Turned<S> {
        let Self { right, why, details, store_error } = self;
        Turned { right: f(right), why, details, store_error }
    }
}

/// How a settlement ended, and the store's last error on the way.
pub(crate) struct Settled {
    pub(crate) end: End,
    pub(crate) store_error: Option<StoreError>,
}

impl Settled {
    /// Never: a claim is held until it is settled.
    fn not_held() -> Self {
        Self { end: End::Unrecorded(Refusal::Unavailable), store_error: None }
    }
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
            observe::abandoned(self.key(), &self.held());
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", self.key()).field("held", &self.held()).finish_non_exhaustive()
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
    /// The claim as it was made.
    held: Held,
    /// Until when it stands now, in milliseconds: an extension moves it.
    lease_until: AtomicU64,
}

impl Claimed {
    fn lease_until(&self) -> Timestamp {
        Timestamp::from_millis(self.lease_until.load(Ordering::Relaxed))
    }
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

    /// Whether an earlier attempt ended without an answer, so that it may have had effects: its process was killed or
    /// frozen, or its handler was dropped, cut off or panicked. It stays so however many attempts come between, also
    /// where one of them gave the key back.
    pub fn is_takeover(&self) -> bool {
        self.claim.held.is_takeover
    }

    /// The fencing token: grows with every claim of the key. What the handler writes to can keep the
    /// highest it has seen and refuse a lower one.
    pub fn generation(&self) -> Generation {
        self.claim.held.generation
    }

    /// Until when the claim stands. Where leases are extended, it moves.
    pub fn lease_until(&self) -> Timestamp {
        self.claim.lease_until()
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
