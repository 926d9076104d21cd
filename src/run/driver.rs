//! [`Driver`]: performs the actions of the protocol's machine, and feeds the store's answers back to the machine.

use std::{
    any::Any,
    future::poll_fn,
    sync::{Arc, Mutex, Once, PoisonError, Weak},
    task::Poll,
    time::Duration,
};

use crate::{
    error::Error,
    fingerprint::Fingerprint,
    future::BoxFuture,
    internal::{SettingsExt as _, StoredKeyExt as _},
    invocation::Invocation,
    key::StoredKey,
    protocol::{
        Action, Decline, End, Event, Fault, Held, Input, Limits, Plan, Reconcile, Refusal, Rules, State, step,
    },
    record::{Owner, Record},
    run::{brake::Brake, cache::LocalCache, refusal::Refused, staging::NO_TRANSACTIONS},
    settings::Settings,
    span::{OperationSpan, current_trace},
    store::{
        Cipher, CommitOutcome, OwnWrites, Put, PutOutcome, Store, StoreError, StoreErrorKind, Transactions,
    },
    time::{Clock, LaterClock, Timestamp},
};

/// The first pause before a retry. Each further pause is twice as long, up to a cap. Most faults are over in a moment,
/// and a store answers within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// How operations are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// A claim before the handler, and a settlement after it.
    #[default]
    Claimed,
    /// At most one read before the handler, and one transaction with the handler's outcome and writes after it.
    Optimistic { reads_first: bool },
}

/// Draws a claim's owner. Only simulations replace this function, so that their runs are repeatable.
pub(crate) type OwnerSource = Arc<dyn Fn() -> Result<Owner, Error> + Send + Sync>;

/// Performs the machine's actions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: Arc<Settings>,
    /// The clock. Every time limit is kept by it.
    pub(crate) clock: LaterClock,
    /// Whether the operation has a reconciler.
    pub(crate) is_reconciled: bool,
    /// The span of the operation that it drives.
    pub(crate) span: OperationSpan,
}

/// The part of a [`Driver`] that all operations of a process share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) owners: OwnerSource,
    pub(crate) cache: Option<LocalCache>,
    pub(crate) brake: Brake,
    pub(crate) cipher: Option<Arc<dyn Cipher>>,
    /// Whether the store is only a substitute, because the environment names none. Then the mode must stay `off`.
    pub(crate) lacks_store: bool,
    /// Whether the environment requires that idempotency is enforced.
    pub(crate) is_required: bool,
    /// Whether the process runs in a Lambda function, so that there are invocations.
    pub(crate) is_in_lambda: bool,
    /// Whether Lambda takes a snapshot of this process at the end of its init.
    pub(crate) is_snapshotted: bool,
    /// Makes sure that an operation outside any invocation is logged once.
    pub(crate) no_invocation: Once,
    /// Makes sure that an unknown deadline is logged once.
    pub(crate) unknown_deadline: Once,
}

/// The shared parts of the operations of this process, if Lambda takes a snapshot of it: one entry per built `Idempotency`.
static SNAPSHOTTED: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Shared {
    /// Shares these parts. If Lambda takes a snapshot of this process, [`snapshotted`](Self::snapshotted) returns them.
    pub(crate) fn share(self) -> Arc<Self> {
        let shared = Arc::new(self);
        if shared.is_snapshotted {
            let mut all = SNAPSHOTTED.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|shared| shared.strong_count() > 0);
            all.push(Arc::downgrade(&shared));
        }
        shared
    }

    /// The parts that must forget their connections and copies when Lambda restores the snapshot.
    #[cfg(feature = "events")]
    pub(crate) fn snapshotted() -> Vec<Arc<Self>> {
        let all = SNAPSHOTTED.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Forgets what a snapshot mustn't keep, and what mustn't be used after a restore.
    #[cfg(feature = "events")]
    pub(crate) fn forget(&self) {
        self.store.close_connections();
        self.clear_cache();
    }

    pub(crate) fn clear_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }
}

/// Sends one operation's requests: to the store, or in the caller's transaction.
pub(crate) trait Requests: Sync {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>>;

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>>;

    /// Sends `put` together with the handler's own writes.
    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        submission: u32,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>>;

    /// Sends the handler's own writes without a record, under a token derived from `owner`.
    fn commit_alone<'a>(
        &'a self,
        _: &'a StoredKey,
        _: Owner,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let error = StoreError::new(StoreErrorKind::Rejected, "these requests can't commit writes alone");
        Box::pin(std::future::ready(Err(error)))
    }

    /// Whether a success is committed: with the handler's own writes, or by the end of the caller's transaction.
    fn commits(&self) -> bool;
}

/// Requests in a transaction of the caller's own.
pub(crate) trait Inside: Requests + Send {
    /// Commits the transaction if `commits`, and otherwise rolls it back. Does nothing to a transaction that the caller
    /// ends, or that has ended.
    fn end(&self, commits: bool) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Whether the caller's code has ended the transaction itself.
    fn has_ended(&self) -> bool;
}

/// Requests to a store, with the handler's own writes if there are any.
pub(crate) struct ToStore<'a> {
    store: &'a dyn Store,
    writes: Option<&'a OwnWrites>,
}

/// The result of driving the machine.
pub(crate) struct Driven {
    /// The machine's last action.
    pub(crate) action: Action,
    /// The store's last error, if a request failed.
    pub(crate) store_error: Option<StoreError>,
    /// The record of the last answered put, if it was applied.
    applied: Option<Record>,
    /// The store's details about a failed condition of the handler's writes.
    details: Option<Box<dyn Any + Send + Sync>>,
}

/// Whether the handler may run.
pub(super) enum Opened {
    /// The key is claimed.
    Claimed(Held),
    /// The key is claimable, but not claimed.
    Open,
    /// The record has an outcome.
    Recorded(Box<Record>),
}

/// How a settlement ended, and the store's last error.
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) store_error: Option<StoreError>,
}

/// A transaction whose last attempt wasn't applied. If there's a claim, the machine still holds it.
pub(super) struct Declined {
    pub(super) why: Decline,
    /// The store's details about the failed condition.
    pub(super) details: Option<Box<dyn Any + Send + Sync>>,
    pub(super) store_error: Option<StoreError>,
    /// Whether an earlier attempt may still be applied.
    pub(super) is_in_doubt: bool,
}

impl Driver {
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the driver of an operation that begins now in `invocation`. From now on, each time limit is kept by the
    /// wall clock and by the monotonic clock.
    pub(crate) fn begun(&self, invocation: &Invocation) -> Self {
        Self { clock: self.clock.begun(invocation.began()), ..self.clone() }
    }

    /// Notes for `fail_open` that `key` runs, or has an outcome.
    pub(crate) fn knows(&self, key: &StoredKey) {
        if self.settings.fail_open {
            self.shared.brake.enter(key).knows_the_key();
        }
    }

    /// The local cache, if there's one and the settings use it.
    pub(crate) fn cache(&self) -> Option<&LocalCache> {
        self.shared.cache.as_ref().filter(|_| self.settings.local_cache > 0)
    }

    /// Draws an owner.
    pub(crate) fn owner(&self) -> Result<Owner, Error> {
        (self.shared.owners)()
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            skew_margin: self.settings.skew_margin,
            retention: self.settings.retention,
            execution: self.settings.execution,
            // A run that isn't enforced asks nothing.
            reconcile: (self.is_reconciled && self.settings.is_enforced()).then_some(Reconcile {
                arrives_within: self.settings.effects_arrive_within,
                reruns_when_absent: self.settings.rerun_when_absent,
            }),
        }
    }

    /// Returns the machine for one operation.
    pub(crate) fn machine(
        &self,
        owner: Owner,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        limits: Limits,
    ) -> Box<State> {
        // Boxed, since the state passes through many futures, each of which would reserve space for it.
        Box::new(State::new(Plan {
            rules: self.rules(),
            owner,
            fingerprint,
            limits,
            request_id: invocation.request_id().cloned(),
            trace: current_trace(),
        }))
    }

    /// Returns a [`ToStore`], which sends requests to this driver's store.
    pub(crate) fn to_store<'a>(&'a self, writes: Option<&'a OwnWrites>) -> ToStore<'a> {
        ToStore { store: &**self.store(), writes }
    }

    /// Performs the machine's actions, and returns the first one that isn't a request or a pause, such as
    /// [`Action::Claimed`] or [`Action::Settled`].
    pub(crate) async fn drive(
        &self,
        key: &StoredKey,
        state: &mut State,
        mut event: Event,
        requests: &dyn Requests,
    ) -> Driven {
        let (mut store_error, mut applied, mut details) = (None, None, None);
        // Whether a request was sent and failed. If there's no time left for a request, it isn't sent, and that isn't a
        // failure of the store.
        let mut has_failed = false;
        // Whether another executor's record may be judged stale. Other executors know only the wall clock. If this
        // process's wall clock was set back, the earlier time is the safe one to judge by.
        let is_judging = matches!(event, Event::Begin | Event::Look | Event::Lock);
        loop {
            let (wall, now) = self.clock.read();
            let action = step(state, Input { now: if is_judging { wall } else { now }, event });
            let until = state.call_until(now);
            event = match action {
                Action::Put(put) => match self.in_time(now, until, requests.put(key, &put)).await {
                    Ok(written) => {
                        applied = (written == PutOutcome::Applied).then(|| put.into_record());
                        Event::Answered(written)
                    }
                    Err(error) => failed(error, &mut store_error),
                },
                Action::Commit { put, submission } => {
                    let answer = self.in_time(now, until, requests.commit(key, &put, submission)).await;
                    let event = committed(answer, &mut details, &mut store_error);
                    let is_applied = event == Event::Answered(PutOutcome::Applied);
                    applied = is_applied.then(|| put.into_record());
                    event
                }
                Action::CommitAlone => {
                    let call = requests.commit_alone(key, state.plan().owner);
                    committed(self.in_time(now, until, call).await, &mut details, &mut store_error)
                }
                Action::Read => match self.in_time(now, until, requests.read(key)).await {
                    Ok(record) => Event::Found(record),
                    Err(error) => failed(error, &mut store_error),
                },
                Action::Pause(nth) => {
                    let pause = pause(nth, state.plan().owner);
                    self.clock().sleep(state.pause_for(pause, now)).await;
                    Event::Resumed
                }
                Action::Refused(Refusal::Unavailable) if !has_failed => {
                    let action = Action::Refused(Refusal::NoTimeLeft);
                    return Driven { action, store_error, applied, details };
                }
                action => return Driven { action, store_error, applied, details },
            };
            if self.settings.fail_open && is_answer(&event) {
                self.shared.brake.answered();
            }
            has_failed |= matches!(event, Event::Failed(_)) && until.is_none_or(|until| now < until);
        }
    }

    /// Drives the machine from `event`, which claims the key or looks at it, until the machine says whether the handler may
    /// run.
    pub(super) async fn open(
        &self,
        key: &StoredKey,
        state: &mut State,
        event: Event,
        requests: &dyn Requests,
    ) -> Result<Opened, Refused> {
        let (opened, store_error) = self.drive(key, state, event, requests).await.opened();
        opened.map_err(|refusal| Refused::of(key, refusal, store_error, state, self.now()))
    }

    /// Awaits `call` until the time `until`. After that, it drops the call and returns an ambiguous error.
    pub(crate) async fn in_time<T>(
        &self,
        now: Timestamp,
        until: Option<Timestamp>,
        call: BoxFuture<'_, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        bounded(self.clock(), now, until, call).await
    }
}

impl Driven {
    /// Returns how a transaction ended. `state` is the machine that was driven.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied.
    pub(super) fn committed(self, state: &State) -> Result<Ending, Declined> {
        let Action::Declined(why) = self.action else { return Ok(self.settled()) };
        let Self { details, store_error, .. } = self;
        Err(Declined { why, details, store_error, is_in_doubt: state.is_in_doubt() })
    }

    /// Returns how a settlement without the handler's own writes ended.
    pub(super) fn settled(self) -> Ending {
        let end = match self.action {
            Action::Settled(end) => end,
            // The machine held nothing to settle, so it sent nothing.
            _ => End::NotCommitted(Refusal::Unavailable),
        };
        Ending { end, store_error: self.store_error }
    }

    /// The record that stores the outcome, if a put of this run stored it.
    pub(super) fn recorded(&self) -> Option<&Record> {
        self.applied.as_ref().filter(|_| self.action == Action::Settled(End::Recorded))
    }

    /// Returns whether the handler may run, and the store's last error.
    pub(super) fn opened(self) -> (Result<Opened, Refusal>, Option<StoreError>) {
        let opened = match self.action {
            Action::Claimed(held) | Action::Ask(held) => Ok(Opened::Claimed(held)),
            Action::Open => Ok(Opened::Open),
            Action::Replay(record) => Ok(Opened::Recorded(Box::new(record))),
            Action::Refused(refusal) => Err(refusal),
            _ => Err(Refusal::Unavailable),
        };
        (opened, self.store_error)
    }
}

impl Requests for ToStore<'_> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        self.store.put(key, put)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.store.read(key)
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        submission: u32,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let (transactions, writes) = self.transaction()?;
            let Record { owner, generation, .. } = put.record();
            let token =
                key.derive(&format!("transaction {submission} of {owner} in generation {generation}"));
            transactions.commit(key, put, writes, &token).await
        })
    }

    fn commit_alone<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let (transactions, writes) = self.transaction()?;
            let token = key.derive(&format!("writes of {owner} without a record"));
            transactions.commit_alone(writes, &token).await
        })
    }

    fn commits(&self) -> bool {
        self.writes.is_some()
    }
}

impl ToStore<'_> {
    fn transaction(&self) -> Result<(&dyn Transactions, &OwnWrites), StoreError> {
        let rejected = |why: &'static str| StoreError::new(StoreErrorKind::Rejected, why);
        let transactions = self.store.transactions().ok_or_else(|| rejected(NO_TRANSACTIONS))?;
        let writes = self.writes.ok_or_else(|| rejected("the transaction has no writes"))?;
        Ok((transactions, writes))
    }
}

/// Awaits `call`, which begins at `now`, until the time `until`, by `clock` or by its timer. After that, drops the call
/// and returns an ambiguous error, since the store may still apply the request.
///
/// # Errors
///
/// The call's own error, or [`StoreErrorKind::Unavailable`]. If there was no time for the call, nothing was sent, and
/// the error is definite.
async fn bounded<T>(
    clock: &dyn Clock,
    now: Timestamp,
    until: Option<Timestamp>,
    mut call: BoxFuture<'_, Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let Some(until) = until else { return call.await };
    // The time counts from `now`, when the call was decided on. So a process that was frozen since then still
    // sends the call once.
    let left = now.until(until);
    if left.is_zero() {
        return Err(StoreError::new(StoreErrorKind::Unavailable, "no time was left to call the store"));
    }
    // Most calls are answered long before the limit, so the timer is set only after the first poll.
    let mut timer: Option<BoxFuture<'static, ()>> = None;
    poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        let is_over = match &mut timer {
            Some(timer) => clock.now() >= until || timer.as_mut().poll(cx).is_ready(),
            None => timer.insert(clock.sleep(left)).as_mut().poll(cx).is_ready(),
        };
        if !is_over {
            return Poll::Pending;
        }
        let error = StoreError::new(StoreErrorKind::Unavailable, "the store didn't answer in time");
        Poll::Ready(Err(error.maybe_applied(true)))
    })
    .await
}

/// Whether the store does its work.
fn is_answer(event: &Event) -> bool {
    match event {
        Event::Answered(_) | Event::Declined | Event::Found(_) => true,
        Event::Failed(fault) => !matches!(fault.kind, StoreErrorKind::Unavailable | StoreErrorKind::Rejected),
        _ => false,
    }
}

fn committed(
    answer: Result<CommitOutcome, StoreError>,
    details: &mut Option<Box<dyn Any + Send + Sync>>,
    last_error: &mut Option<StoreError>,
) -> Event {
    match answer {
        Ok(CommitOutcome::Answered(written)) => Event::Answered(written),
        Ok(CommitOutcome::Declined(why)) => {
            *details = Some(why);
            Event::Declined
        }
        Err(error) => failed(error, last_error),
    }
}

fn failed(error: StoreError, last_error: &mut Option<StoreError>) -> Event {
    let fault = Fault { kind: error.kind(), maybe_applied: error.is_maybe_applied() };
    *last_error = Some(error);
    Event::Failed(fault)
}

/// Returns the `nth` pause. Each pause is about twice as long as the one before, up to a cap. The owner's random bits
/// keep competing executors from retrying at the same time, without another source of randomness.
pub(super) fn pause(nth: u8, owner: Owner) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << nth.min(6));
    spread(whole, owner.as_bytes()[usize::from(nth) % 16])
}

/// Returns a duration between half of `whole` and `whole`, chosen by `bits`.
pub(super) fn spread(whole: Duration, bits: u8) -> Duration {
    whole / 2 + whole / 2 * u32::from(bits) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_with_jitter_and_a_cap() {
        let micros = |nth, byte| pause(nth, Owner::from_bytes([byte; 16])).as_micros();
        assert_eq!((micros(0, 0), micros(0, 255)), (12_500, 25_000));
        assert_eq!((micros(1, 0), micros(1, 255)), (25_000, 50_000));
        assert_eq!((micros(6, 255), micros(200, 255)), (1_600_000, 1_600_000));
        let mut bytes = [0; 16];
        bytes[1] = 255;
        let spread = |nth| pause(nth, Owner::from_bytes(bytes)).as_millis();
        assert_eq!(
            (spread(1), spread(2), spread(17)),
            (50, 50, 1600),
            "pause `nth` takes its jitter from byte `nth % 16` of the owner"
        );
    }
}
