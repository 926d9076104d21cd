//! Claims, runs and settles: the core of every wrapper.

use std::{
    any::{Any, type_name},
    error::Error as _,
    future::{Future, Ready, ready},
    panic::resume_unwind,
    sync::Arc,
};

use crate::{
    claim::{Claim, ClaimHandle, Replay, Settled, Turned},
    engine::{
        Begun, Engine, Verdict,
        drive::{DEFAULT_RETRY, Refused, RefusedBy, in_progress, refusal_error},
        guard::{CutOff, Ended, watch},
        lease::keep,
        open::{Mode, Open, Opened},
    },
    error::{Error, ErrorKind, RecordedFailure},
    fingerprint::Fingerprint,
    invocation::{Invocation, OperationContext, Refusals, Running, within},
    key::StoredKey,
    observe,
    policy::{Execution, OnHandlerError, OnStoreFailure},
    protocol::{Decline, End, Refusal},
    record::Generation,
    staging::{AnyAnswer, Staging},
    store::{OwnWrites, StoreError, StoreErrorKind},
    time::Timestamp,
};

/// One delivery of one operation.
pub(crate) struct Target {
    pub(crate) key: StoredKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) invocation: Invocation,
    /// When the handler is cut off, if that's before its claim's own time.
    pub(crate) cut_off: Option<Timestamp>,
    pub(crate) mode: Mode,
}

/// A wrapper's answer.
pub(crate) enum Protected<T> {
    /// The handler ran now, and this is its answer.
    Ran(T),
    /// Like `Ran`, but the outcome isn't known to be stored.
    RanUnrecorded(T),
    /// The record has the outcome.
    Replayed(Replay),
}

/// Why a wrapper has no answer.
pub(crate) enum Stopped {
    /// The library refused.
    Refused(Error),
    /// The handler panicked with this payload; the claim is already settled.
    Panicked(Box<dyn Any + Send>),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// The right that a handler runs under.
enum Right {
    Claim(Claim),
    Open(Open),
}

/// How a handler's result was settled.
enum Finished<U> {
    Answered(Result<Protected<U>, Error>),
    /// Neither the handler's writes nor its outcome were applied.
    NotCommitted {
        right: Box<Right>,
        why: Decline,
        details: Option<Box<dyn Any + Send + Sync>>,
        error: Error,
    },
}

/// Downcasts the answer to a declined transaction to the handler's own type, which is judged.
pub(crate) fn as_it_is<T: 'static>(answer: AnyAnswer) -> Option<Ready<T>> {
    answer.downcast::<T>().ok().map(|answer| ready(*answer))
}

impl Engine {
    /// Like [`protect_caught`](Self::protect_caught), but resumes the handler's panic.
    ///
    /// # Errors
    ///
    /// As [`protect_caught`](Self::protect_caught).
    pub(crate) async fn protect<T, U, Fut, Again>(
        self: &Arc<Self>,
        operation: Target,
        handler: impl FnOnce() -> Fut,
        judge: impl FnMut(T, OnHandlerError) -> (Verdict, U),
        again: impl FnMut(AnyAnswer) -> Option<Again>,
    ) -> Result<Protected<U>, Error>
    where
        Fut: Future<Output = T>,
        Again: Future<Output = T>,
    {
        self.protect_caught(operation, handler, judge, again).await.map_err(|stopped| match stopped {
            Stopped::Refused(error) => error,
            // The runtime gets the original panic.
            Stopped::Panicked(payload) => resume_unwind(payload),
        })
    }

    /// Claims, runs `handler` under the claim, and settles by what `judge` returns for its result: the
    /// verdict, and the caller's answer. Writes that the handler has staged are committed with it. If one of
    /// the handler's own conditions fails, `again` turns the answer of its `on_declined` closure into a
    /// result; `None` means that the type is wrong.
    ///
    /// # Errors
    ///
    /// As [`Operation::begin`](crate::Operation::begin), when nothing ran; [`ErrorKind::InProgress`] or
    /// [`ErrorKind::OutcomeUnknown`] when the handler was cut off, or when another claim took over and is
    /// still running; [`ErrorKind::Declined`], and the other errors of a transaction that isn't applied. Or
    /// the handler's panic.
    pub(crate) async fn protect_caught<T, U, Fut, Again>(
        self: &Arc<Self>,
        operation: Target,
        handler: impl FnOnce() -> Fut,
        mut judge: impl FnMut(T, OnHandlerError) -> (Verdict, U),
        mut again: impl FnMut(AnyAnswer) -> Option<Again>,
    ) -> Result<Protected<U>, Stopped>
    where
        Fut: Future<Output = T>,
        Again: Future<Output = T>,
    {
        let Target { key, fingerprint, invocation, cut_off: latest, mode } = operation;
        let mut right = match self.right(&key, fingerprint, &invocation, mode).await {
            Ok(Ok(right)) => right,
            Ok(Err(replay)) => return Ok(Protected::Replayed(replay)),
            Err(refused)
                if refused.by == RefusedBy::Store
                    && self.settings.on_store_failure == OnStoreFailure::RunUnprotected =>
            {
                observe::unprotected("store failure");
                let surroundings = OperationContext::unprotected(invocation);
                let on_error = self.settings.effective_on_handler_error();
                let running = Box::pin(within(surroundings, async { judge(handler().await, on_error).1 }));
                return self.unclaimed(running).await.map(Protected::RanUnrecorded);
            }
            Err(refused) => return Err(refused.error.into()),
        };
        let staging = Staging::new(Arc::clone(&self.store), key.clone());
        let refusals = Refusals::default();
        let surroundings = OperationContext {
            invocation,
            claim: right.handle(),
            staging: Some(staging.clone()),
            refusals: refusals.clone(),
            running: Some(Running::inside(key.clone())),
        };
        // Judging the answer, such as serialising it, runs the user's code too, and may panic. Boxed, since
        // every future that contains it would otherwise reserve its size again.
        let running = Box::pin(within(surroundings.clone(), async {
            let result = handler().await;
            let on_error = self.on_handler_error(&refusals);
            Ok(judge(result, on_error))
        }));
        let mut ended: Ended<Result<_, Error>> = self.watch_under(&mut right, latest, running).await;
        right.tell_ran(&ended);
        // The reason for calling `on_declined`, once it's called.
        let mut not_made: Option<Error> = None;
        loop {
            // A task that outlives the handler may still have the handle: it can't stage anything more.
            let staged = staging.close();
            let (verdict, answer) = match (ended, not_made.take()) {
                (Ended::Returned(Ok(judged)), _) => judged,
                (Ended::Returned(Err(error)), _) => {
                    let message = "its own condition failed";
                    return Box::pin(self.declined(&key, right, message, error)).await;
                }
                // The handler has run, so this isn't like a run that never began: at most once, it must not
                // run again.
                (Ended::NotBegun, Some(error)) => {
                    let message = "its own writes were not made";
                    return Box::pin(self.declined(&key, right, message, error)).await;
                }
                (Ended::Panicked(payload), _) => {
                    right.tell_panicked();
                    // It's reported as a panic, however the settlement ends.
                    let verdict = match self.failure("Panic", "the handler panicked") {
                        // It gave no answer, and the next run has to know that.
                        Verdict::Release => Verdict::Interrupted,
                        recorded => recorded,
                    };
                    let _ = right.settle(verdict).await;
                    return Err(Stopped::Panicked(payload));
                }
                (Ended::CutOff, _) => return Err(self.cut_off(&key, right).into()),
                (Ended::NotBegun, None) => return Err(Box::pin(self.give_back(&key, right)).await.into()),
            };
            // Boxed like the handler's future: the settlement's is the largest future here.
            let finishing = Box::pin(self.finish(&key, right, answer, verdict, staged.writes));
            let (why, details, error) = match finishing.await {
                Finished::Answered(answered) => return Ok(answered?),
                Finished::NotCommitted { right: still, why, details, error } => {
                    right = *still;
                    (why, details, error)
                }
            };
            observe::not_committed(&key, &error);
            let (Decline::Condition, Some(details), Some(on_declined)) = (why, details, staged.on_declined)
            else {
                let message = "its own writes were not made";
                return Box::pin(self.declined(&key, right, message, error)).await;
            };
            not_made = Some(error);
            staging.reopen();
            let answering = Box::pin(within(surroundings.clone(), async {
                match on_declined(&*details).and_then(&mut again) {
                    Some(answer) => {
                        let result = answer.await;
                        Ok(judge(result, self.on_handler_error(&refusals)))
                    }
                    None => Err(of_another_type::<T>(&key)),
                }
            }));
            ended = self.watch_under(&mut right, latest, answering).await;
        }
    }

    /// Settles when the handler's writes were definitely not applied and `on_declined` gives no other answer:
    /// like any handler error. Callers box it, so that no other path reserves its size.
    async fn declined<U>(
        &self,
        key: &StoredKey,
        right: Right,
        message: &str,
        error: Error,
    ) -> Result<Protected<U>, Stopped> {
        // A transient store failure isn't an outcome of the operation, even if errors are recorded: the
        // caller should retry. At most once, the handler has run, so it's recorded anyway.
        let passes = error.kind() == ErrorKind::Unavailable;
        let verdict = match self.settings.execution {
            Execution::AtLeastOnce if passes => Verdict::Release,
            _ => self.failure("Declined", message),
        };
        let answer_by = right.answer_by();
        match right.settle(verdict).await {
            // A successor's outcome, or that of an earlier attempt of the same transaction that was applied
            // after all.
            Some(Settled { end: End::Superseded(record), .. }) => Ok(Protected::Replayed(
                self.successors_outcome(key, &record, ErrorKind::InProgress, answer_by).await?,
            )),
            // Without a claim, nothing fences an earlier attempt that's still on its way.
            Some(Settled { end: End::Unresolved(until), store_error, .. }) => {
                Err(self.unresolved(key, until, store_error).into())
            }
            _ => Err(error.into()),
        }
    }

    /// Returns the right to run: a claim, or optimistic permission. Or the recorded outcome.
    async fn right(
        self: &Arc<Self>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        mode: Mode,
    ) -> Result<Result<Right, Replay>, Refused> {
        match mode {
            Mode::Claimed => Ok(match self.begin(key, fingerprint, invocation).await? {
                Begun::Claimed(claim) => Ok(Right::Claim(claim)),
                Begun::Replay(replay) => Err(replay),
            }),
            Mode::Optimistic { reads_first } => {
                Ok(match self.open(key, fingerprint, invocation, reads_first).await? {
                    Opened::Open(open) => Ok(Right::Open(open)),
                    Opened::Replay(replay) => Err(replay),
                })
            }
        }
    }

    /// Polls the handler until its time is over, and extends its claim while it runs.
    async fn watch_under<T>(
        &self,
        right: &mut Right,
        latest: Option<Timestamp>,
        running: impl Future<Output = T>,
    ) -> Ended<T> {
        let cut_off = CutOff::at(Some(latest.map_or(right.cut_off(), |latest| latest.min(right.cut_off()))));
        match right {
            Right::Claim(claim) if claim.timing().is_extended() => {
                let keeping = Box::pin(keep(claim, &cut_off, latest));
                watch(running, &*self.clock, &cut_off, Some(keeping)).await
            }
            _ => watch(running, &*self.clock, &cut_off, None).await,
        }
    }

    /// Decides whether a handler's error is recorded. An error that contains this library's own retryable
    /// refusal of a nested step isn't, even at most once: recording it would lose the step.
    fn on_handler_error(&self, refusals: &Refusals) -> OnHandlerError {
        match self.settings.effective_on_handler_error() {
            OnHandlerError::Record if refusals.is_any_kept() => OnHandlerError::Release,
            policy => policy,
        }
    }

    /// The verdict for a failed handler.
    fn failure(&self, error_type: &str, message: &str) -> Verdict {
        match self.settings.effective_on_handler_error() {
            OnHandlerError::Release => Verdict::Release,
            OnHandlerError::Record => Verdict::failure(&RecordedFailure::new(error_type, message)),
        }
    }

    /// Runs a handler without a claim, to its end.
    ///
    /// # Errors
    ///
    /// The handler's panic.
    pub(crate) async fn unclaimed<T>(&self, running: impl Future<Output = T>) -> Result<T, Stopped> {
        match watch(running, &*self.clock, &CutOff::at(None), None).await {
            Ended::Returned(value) => Ok(value),
            Ended::Panicked(payload) => Err(Stopped::Panicked(payload)),
            // Unreachable: there's no limit.
            Ended::CutOff | Ended::NotBegun => {
                Err(Error::new(ErrorKind::Unavailable, "the handler was stopped").into())
            }
        }
    }

    /// Runs `running` to its end. Returns `None` if it isn't done by the time `at`.
    #[cfg(feature = "events")]
    pub(crate) async fn until<T>(
        &self,
        at: Option<Timestamp>,
        running: impl Future<Output = T>,
    ) -> Option<T> {
        match watch(running, &*self.clock, &CutOff::at(at), None).await {
            Ended::Returned(value) => Some(value),
            Ended::Panicked(payload) => resume_unwind(payload),
            Ended::CutOff | Ended::NotBegun => None,
        }
    }

    /// Settles by the verdict, with the handler's own writes if it has staged any and has succeeded.
    async fn finish<U>(
        &self,
        key: &StoredKey,
        right: Right,
        answer: U,
        verdict: Verdict,
        writes: Option<Box<OwnWrites>>,
    ) -> Finished<U> {
        let is_success = matches!(verdict, Verdict::Complete(_) | Verdict::CompleteOmitted);
        let is_released = matches!(verdict, Verdict::Release | Verdict::Interrupted);
        let answer_by = right.answer_by();
        let writes = writes.as_deref().filter(|_| is_success);
        // Without a transaction, the handler's effects under a claim have happened, whether or not the record
        // is written.
        let has_happened = writes.is_none() && matches!(right, Right::Claim(_));
        let settled = match right.settle_with(verdict, writes).await {
            Ok(settled) => settled,
            Err(Turned { right, why, details, store_error }) => {
                let error = not_made(key, why, store_error);
                return Finished::NotCommitted { right: Box::new(right), why, details, error };
            }
        };
        Finished::Answered(match settled.end {
            // Nothing was to be recorded, so the handler's own answer is the only one. The exception: its
            // declined transaction was applied after all, or may still be.
            ref end if is_released && !matches!(end, End::Superseded(_) | End::Unresolved(_)) => {
                Ok(Protected::Ran(answer))
            }
            End::Recorded => Ok(Protected::Ran(answer)),
            // An error would guarantee a second run.
            End::Unrecorded(_) | End::NotCommitted(_) if has_happened => Ok(Protected::RanUnrecorded(answer)),
            End::Superseded(record) => {
                let outcome = self.successors_outcome(key, &record, ErrorKind::InProgress, answer_by).await;
                outcome.map(Protected::Replayed)
            }
            End::Fenced(until) => Err(in_progress(key, until, self.clock.now())),
            End::Unresolved(until) => Err(self.unresolved(key, until, settled.store_error)),
            End::Unrecorded(refusal) | End::NotCommitted(refusal) => {
                let error = refusal_error(key, refusal, settled.store_error, self.clock.now());
                observe::not_committed(key, &error);
                Err(error)
            }
        })
    }

    /// The error for a transaction that may have been applied, or may still be. A retry gets its outcome, or
    /// runs again under another claim, which fences this one.
    pub(crate) fn unresolved(
        &self,
        key: &StoredKey,
        until: Option<Timestamp>,
        cause: Option<StoreError>,
    ) -> Error {
        let now = self.clock.now();
        let wait = until.map(|until| now.until(until));
        let error = Error::new(
            ErrorKind::InProgress,
            format!(
                "{key}: whether the handler's own writes and its outcome were made could not be found out; repeat, \
                 which is safe"
            ),
        )
        .with_retry_after(wait.unwrap_or(DEFAULT_RETRY));
        match cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }

    /// Releases the claim of a process that was frozen between its claim and its handler. Nothing ran, so the
    /// next delivery needn't wait for the lease, even at most once.
    async fn give_back(&self, key: &StoredKey, right: Right) -> Error {
        // If that fails, the lease frees the key.
        let _ = right.settle(Verdict::Release).await;
        refusal_error(key, Refusal::NoTimeLeft, None, self.clock.now())
    }

    /// Settles nothing: the interrupted handler may still have an effect, and the lease frees the key.
    /// Without a claim, nothing has happened, unless a declined transaction is in doubt.
    fn cut_off(&self, key: &StoredKey, right: Right) -> Error {
        let now = self.clock.now();
        observe::cut_off(key, right.generation(), now);
        let claim = match right {
            Right::Claim(claim) => claim,
            Right::Open(open) if open.is_in_doubt() => return self.unresolved(key, None, None),
            Right::Open(_) => return refusal_error(key, Refusal::NoTimeLeft, None, now),
        };
        let what = "the handler was cut off, because its time was over";
        match self.settings.execution {
            Execution::AtLeastOnce => {
                let wait = now.until(self.rules().claimable_at(claim.held().lease_until));
                Error::new(ErrorKind::InProgress, format!("{key}: {what}; repeat when its lease has ended"))
                    .with_retry_after(wait)
            }
            Execution::AtMostOnce => Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "{key}: {what}, and at most one run is allowed; settle it by hand, with `idempotency inspect`"
                ),
            ),
        }
    }
}

impl Right {
    fn handle(&self) -> Option<ClaimHandle> {
        match self {
            Self::Claim(claim) => Some(claim.handle()),
            Self::Open(_) => None,
        }
    }

    fn answer_by(&self) -> Option<Timestamp> {
        match self {
            Self::Claim(claim) => claim.answer_by(),
            Self::Open(open) => open.answer_by(),
        }
    }

    fn cut_off(&self) -> Timestamp {
        match self {
            Self::Claim(claim) => claim.timing().cut_off_under(claim.held().lease_until),
            Self::Open(open) => open.cut_off(),
        }
    }

    fn key(&self) -> &StoredKey {
        match self {
            Self::Claim(claim) => claim.key(),
            Self::Open(open) => open.key(),
        }
    }

    /// The claim's generation, if there's a claim.
    fn generation(&self) -> Option<Generation> {
        match self {
            Self::Claim(claim) => Some(claim.held().generation),
            Self::Open(_) => None,
        }
    }

    /// Reports an optimistic run. For a claim, making it has already reported the run.
    fn tell_ran<T>(&self, ended: &Ended<T>) {
        if let (Self::Open(open), Ended::Returned(_) | Ended::Panicked(_)) = (self, ended) {
            observe::ran_optimistically(open.key());
        }
    }

    fn tell_panicked(&self) {
        observe::panicked(self.key(), self.generation());
    }

    async fn settle(self, verdict: Verdict) -> Option<Settled> {
        match self {
            Self::Claim(claim) => Some(claim.settle(verdict).await),
            Self::Open(open) => open.settle_with(verdict, None).await.ok(),
        }
    }

    async fn settle_with(
        self,
        verdict: Verdict,
        writes: Option<&OwnWrites>,
    ) -> Result<Settled, Turned<Self>> {
        match (self, writes) {
            (Self::Claim(claim), None) => Ok(claim.settle(verdict).await),
            (Self::Claim(claim), Some(writes)) => {
                claim.settle_with(verdict, writes).await.map_err(|turned| turned.map(Self::Claim))
            }
            (Self::Open(open), writes) => {
                open.settle_with(verdict, writes).await.map_err(|turned| turned.map(Self::Open))
            }
        }
    }
}

/// The error for a transaction that was definitely not applied.
pub(crate) fn not_made(key: &StoredKey, why: Decline, cause: Option<StoreError>) -> Error {
    let kind = match why {
        Decline::Condition => {
            let message =
                format!("{key}: a condition of the handler's own writes failed; nothing was written");
            return Error::new(ErrorKind::Declined, message);
        }
        Decline::Store(StoreErrorKind::Unavailable | StoreErrorKind::Conflict) => ErrorKind::Unavailable,
        Decline::Store(StoreErrorKind::Rejected | StoreErrorKind::Unstorable) => ErrorKind::Invalid,
        Decline::Store(StoreErrorKind::Corrupt) => ErrorKind::Corrupt,
    };
    // Say at once what to correct: most people see only the first sentence.
    let told = cause.as_ref().filter(|_| kind == ErrorKind::Invalid).map(|cause| match cause.source() {
        Some(inner) => format!(": {cause} ({inner})"),
        None => format!(": {cause}"),
    });
    let told = told.unwrap_or_default();
    let error = Error::new(
        kind,
        format!("{key}: the handler's own writes could not be made{told}; nothing was written"),
    );
    match cause {
        Some(_) if kind == ErrorKind::Invalid => error,
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

fn of_another_type<T>(key: &StoredKey) -> Error {
    let error = Error::misuse(format!(
        "{key}: the closure of `on_declined` takes or returns the wrong type. It must take the store's own type and return \
         {}, as the handler does. Nothing was written",
        type_name::<T>()
    ));
    observe::misused(&error);
    error
}
