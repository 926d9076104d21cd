//! The [`Claim`]: the exclusive right to run one operation, and [`ClaimHandle`], the handler's view of it.

mod commit;

pub use commit::{NotCommitted, Settled};

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
    policy::Execution,
    protocol::{Action, Decline, End, Event, Fault, Held, Input, Intent, Refusal, State, step},
    record::{Generation, Lock, Record, Status},
    store::{OwnWrites, StoreError},
    time::Timestamp,
};

/// The exclusive right to run one operation, held under a lease.
///
/// Settle it by [`complete`](Self::complete), [`fail`](Self::fail) or [`release`](Self::release), each of
/// which consumes it. Dropping a claim settles nothing: its lease frees the key, and the library logs one
/// warning that says when.
#[must_use = "a claim that is not settled blocks its key until the lease ends"]
pub struct Claim {
    engine: Arc<Engine>,
    claimed: Arc<Claimed>,
    /// The machine, in the state that holds the claim; `None` once it's being settled.
    state: Option<Box<State>>,
    timing: Timing,
    /// The record that the claim wrote, if a copy of its outcome may be cached.
    lock: Option<Box<Lock>>,
}

/// How [`Claim::complete`] and [`Claim::fail`] ended, when they didn't fail.
#[derive(Debug)]
#[must_use = "a superseded claim's own result is not the operation's outcome"]
pub enum Settled {
    /// The outcome is stored.
    Recorded,
    /// The claim had been taken over, and the successor settled first: answer with its outcome.
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
    /// Whether the outcome is a permanent failure.
    pub fn is_failure(&self) -> bool {
        self.is_failure
    }

    /// The response's bytes, as recorded.
    pub fn response(&self) -> &Bytes {
        &self.response
    }

    /// Returns the response's bytes, as recorded.
    pub fn into_response(self) -> Bytes {
        self.response
    }

    /// The generation that recorded the outcome.
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

    /// Returns the handler's view of the claim.
    pub fn handle(&self) -> ClaimHandle {
        ClaimHandle { claim: Arc::clone(&self.claimed) }
    }

    /// The lease's length, and when the handler is cut off.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn key(&self) -> &StoredKey {
        &self.claimed.key
    }

    /// The claim with its current lease.
    pub(crate) fn held(&self) -> Held {
        Held { lease_until: self.claimed.lease_until(), ..self.claimed.held.clone() }
    }

    /// T4: stores `response` as the operation's outcome.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: another claim took over, and is still running, or its response can't be read
    ///   right now.
    /// - [`ErrorKind::NotRetained`]: the successor settled first, without keeping its response.
    /// - [`ErrorKind::Unrecorded`]: the outcome isn't known to be stored. The operation happened; answer with
    ///   its response, since an error would make the caller repeat it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the outcome stored, not stored, or about to be stored; the lease frees the key.
    pub async fn complete(self, response: impl Into<Bytes>) -> Result<Settled, Error> {
        self.record(Verdict::Complete(response.into())).await
    }

    /// T5: stores `failure` as the operation's outcome: it failed permanently, and won't run again.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, failure: impl Into<Bytes>) -> Result<Settled, Error> {
        self.record(Verdict::Fail(Some(failure.into()))).await
    }

    /// T6: releases the key; the next delivery runs the handler.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Fenced`]: the claim had been taken over, so there's nothing left to release.
    /// - [`ErrorKind::Unrecorded`]: the key isn't known to be released; the lease frees it.
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

    async fn record(self, verdict: Verdict) -> Result<Settled, Error> {
        let (engine, key, until) = (Arc::clone(&self.engine), self.key().clone(), self.answer_by());
        match self.settle(verdict).await {
            Settled { end: End::Recorded, .. } => Ok(Settled::Recorded),
            Settled { end: End::Superseded(record), .. } => {
                let outcome = engine.successors_outcome(&key, &record, ErrorKind::Fenced, until).await;
                outcome.map(Settled::Superseded)
            }
            Settled { end, store_error, .. } => Err(settle_error(&key, end, store_error)),
        }
    }

    /// Prepares the settlement while the claim is still held. So dropping this future leaves an abandoned
    /// claim, which is logged.
    async fn intent(&self, verdict: Verdict) -> Option<Intent> {
        let until = self.state.as_ref()?.prepare_until(self.engine.clock.now());
        Some(self.engine.intent(self.key(), self.claimed.held.owner, verdict, until).await)
    }

    /// When the caller's answer is due.
    pub(crate) fn answer_by(&self) -> Option<Timestamp> {
        self.timing.limits.answer_by
    }

    /// Settles the claim, and reports how that ended.
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
    /// The claim, still held, if the transaction was definitely not applied.
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
            // The code that answers has the error, and logs it.
            End::NotCommitted(_) => {}
        }
    }

    /// T7: extends the lease to `until`.
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

    /// The state never leaves the claim, so dropping an extension's future doesn't lose it.
    fn step(&mut self, event: Event) -> Option<Action> {
        let input = Input { now: self.engine.clock.now(), event };
        let mut state = self.state.take()?;
        let (next, action) = step(*state, input);
        *state = next;
        self.state = Some(state);
        Some(action)
    }
}

/// The result of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// The lease now ends at this time.
    Until(Timestamp),
    /// The lease is unchanged.
    NotNow,
    /// The claim has been taken over.
    Lost,
}

/// A transaction that was definitely not applied.
pub(crate) struct Turned<R> {
    /// The claim or the optimistic operation, held as before.
    pub(crate) right: R,
    pub(crate) why: Decline,
    /// The store's details about the failed condition.
    pub(crate) details: Option<Box<dyn Any + Send + Sync>>,
    pub(crate) store_error: Option<StoreError>,
}

impl<R> Turned<R> {
    /// Converts the right.
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
    /// Unreachable: a claim is held until it's settled.
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
            let (rules, held) = (self.engine.rules(), self.held());
            let frees_at = match rules.execution {
                Execution::AtLeastOnce => Some(rules.claimable_at(held.lease_until)),
                Execution::AtMostOnce => None,
            };
            observe::abandoned(self.key(), &held, frees_at);
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", self.key()).field("held", &self.held()).finish_non_exhaustive()
    }
}

/// A handler's view of the claim that it runs under; see [`current`].
#[derive(Clone, Debug)]
pub struct ClaimHandle {
    claim: Arc<Claimed>,
}

#[derive(Debug)]
struct Claimed {
    key: StoredKey,
    /// The claim as it was acquired.
    held: Held,
    /// When the lease ends, in milliseconds. An extension moves it.
    lease_until: AtomicU64,
}

impl Claimed {
    fn lease_until(&self) -> Timestamp {
        Timestamp::from_millis(self.lease_until.load(Ordering::Relaxed))
    }
}

impl ClaimHandle {
    /// The scoped key as stored: safe to show and to log.
    pub fn key(&self) -> &StoredKey {
        &self.claim.key
    }

    /// How many claims this operation has had, this one included: 1 on a first run.
    pub fn attempt(&self) -> u32 {
        self.claim.held.attempt
    }

    /// Whether an earlier attempt ended without an answer, so that it may have had effects: its process was
    /// killed or frozen, or its handler was dropped, cut off or panicked. Later attempts don't reset this,
    /// even if one of them released the key.
    pub fn is_takeover(&self) -> bool {
        self.claim.held.is_takeover
    }

    /// The fencing token: it grows with every claim of the key. A system that the handler writes to can
    /// remember the highest generation it has seen, and refuse lower ones.
    pub fn generation(&self) -> Generation {
        self.claim.held.generation
    }

    /// When the lease ends. An extension moves it.
    pub fn lease_until(&self) -> Timestamp {
        self.claim.lease_until()
    }

    /// Returns a key for one step of this operation, to pass on to an API that takes idempotency keys.
    ///
    /// It depends only on the scoped key and the step, so every attempt sends the same one. It has the form
    /// of a UUID (version 8, RFC 9562).
    pub fn derive_key(&self, step: &str) -> String {
        self.claim.key.derive(step)
    }
}

/// Returns the claim that the calling handler runs under, if there is one.
///
/// It's set inside the handler's future, not in tasks that the handler spawns: pass it on to those.
///
/// ```
/// if let Some(claim) = lambda_idempotency::current() {
///     println!("attempt {} under generation {}", claim.attempt(), claim.generation());
/// }
/// ```
pub fn current() -> Option<ClaimHandle> {
    invocation::current().and_then(|surroundings| surroundings.claim)
}

/// The response of a settled record, and whether it's a failure. `None` if the record isn't settled.
pub(crate) fn outcome_of(record: &Record) -> Option<(&Outcome, bool)> {
    match &record.state {
        crate::record::State::Completed(outcome) => Some((outcome, false)),
        crate::record::State::Failed(outcome) => Some((outcome, true)),
        _ => None,
    }
}
