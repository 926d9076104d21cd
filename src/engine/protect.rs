//! What every wrapper does: claim, run, settle.

use std::{any::Any, future::Future, panic::resume_unwind, sync::Arc};

use crate::{
    claim::{Claim, Replay, Settled},
    engine::{
        Begun, Engine, Verdict,
        drive::{RefusedBy, in_progress, refusal_error},
        guard::{Ended, watch},
    },
    error::{Error, ErrorKind, RecordedFailure},
    fingerprint::Fingerprint,
    invocation::{Invocation, Surroundings, within},
    key::StoredKey,
    observe,
    policy::{Execution, OnHandlerError, OnStoreFailure},
    protocol::{End, Refusal},
    time::Timestamp,
};

/// One delivery of one operation.
pub(crate) struct Operation {
    pub(crate) key: StoredKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) invocation: Invocation,
    /// When the handler is cut off, if that is before its claim's own time.
    pub(crate) cut_off: Option<Timestamp>,
}

/// What a wrapper answers with.
pub(crate) enum Protected<T> {
    /// The handler ran now, and this is its answer.
    Ran(T),
    /// The same, and its outcome is not known to be stored.
    RanUnrecorded(T),
    /// The record has the outcome.
    Replayed(Replay),
}

/// Why a wrapper has no answer.
pub(crate) enum Stopped {
    /// By the library.
    Refused(Error),
    /// By the handler's panic, with this payload; what was to be settled is.
    Panicked(Box<dyn Any + Send>),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Engine {
    /// [`protect_caught`](Self::protect_caught), in which the handler's panic goes on.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) async fn protect<T, U, Fut>(
        self: &Arc<Self>,
        operation: Operation,
        handler: impl FnOnce() -> Fut,
        judge: impl FnOnce(T) -> (Verdict, U),
    ) -> Result<Protected<U>, Error>
    where
        Fut: Future<Output = T>,
    {
        self.protect_caught(operation, handler, judge).await.map_err(|stopped| match stopped {
            Stopped::Refused(error) => error,
            // The runtime gets the panic that it was.
            Stopped::Panicked(payload) => resume_unwind(payload),
        })
    }

    /// Claims, runs `handler` under the claim, and settles by what `judge` makes of its
    /// result: the verdict, and the answer that the caller gets.
    ///
    /// # Errors
    ///
    /// As [`Idempotency::begin`](crate::Idempotency::begin), when nothing ran; and
    /// [`ErrorKind::InProgress`] or [`ErrorKind::OutcomeUnknown`] when the handler was cut off, or when
    /// its claim was taken over by one that is still at work. Or the handler's panic.
    pub(crate) async fn protect_caught<T, U, Fut>(
        self: &Arc<Self>,
        operation: Operation,
        handler: impl FnOnce() -> Fut,
        judge: impl FnOnce(T) -> (Verdict, U),
    ) -> Result<Protected<U>, Stopped>
    where
        Fut: Future<Output = T>,
    {
        let Operation { key, fingerprint, invocation, cut_off } = operation;
        let claim = match self.begin(&key, fingerprint, &invocation).await {
            Ok(Begun::Claimed(claim)) => claim,
            Ok(Begun::Replay(replay)) => return Ok(Protected::Replayed(replay)),
            Err(refused)
                if refused.by == RefusedBy::Store
                    && self.settings.on_store_failure == OnStoreFailure::RunUnprotected =>
            {
                observe::unprotected("store failure");
                let surroundings = Surroundings { invocation, claim: None };
                let running = within(surroundings, async { judge(handler().await).1 });
                return self.unclaimed(running).await.map(Protected::RanUnrecorded);
            }
            Err(refused) => return Err(refused.error.into()),
        };
        let surroundings = Surroundings { invocation, claim: Some(claim.handle()) };
        // What the answer's own code does, such as serialising it, is the handler's too: it may panic.
        let running = within(surroundings, async { judge(handler().await) });
        let cut_off = claim.cut_off().into_iter().chain(cut_off).min();
        match watch(running, &*self.clock, cut_off).await {
            Ended::Returned((verdict, answer)) => Ok(self.settle_returned(claim, answer, verdict).await?),
            Ended::Panicked(payload) => {
                observe::panicked(claim.key(), claim.held());
                let verdict = match self.settings.effective_on_handler_error() {
                    OnHandlerError::Release => Verdict::Release,
                    OnHandlerError::Record => {
                        Verdict::failure(&RecordedFailure::new("Panic", "the handler panicked"))
                    }
                };
                // However that ends, it was a panic.
                let _ = claim.settle(verdict).await;
                Err(Stopped::Panicked(payload))
            }
            Ended::CutOff => Err(self.cut_off(claim).into()),
            Ended::NotBegun => Err(self.give_back(claim).await.into()),
        }
    }

    /// Runs a handler without a claim, to its end.
    ///
    /// # Errors
    ///
    /// Its panic.
    pub(crate) async fn unclaimed<T>(&self, running: impl Future<Output = T>) -> Result<T, Stopped> {
        match watch(running, &*self.clock, None).await {
            Ended::Returned(value) => Ok(value),
            Ended::Panicked(payload) => Err(Stopped::Panicked(payload)),
            // Never: nothing limits it.
            Ended::CutOff | Ended::NotBegun => {
                Err(Error::new(ErrorKind::Unavailable, "the handler was stopped").into())
            }
        }
    }

    /// Runs `running` to its end; `None` if that has not come by the time `at`.
    #[cfg(feature = "events")]
    pub(crate) async fn until<T>(
        &self,
        at: Option<Timestamp>,
        running: impl Future<Output = T>,
    ) -> Option<T> {
        match watch(running, &*self.clock, at).await {
            Ended::Returned(value) => Some(value),
            Ended::Panicked(payload) => resume_unwind(payload),
            Ended::CutOff | Ended::NotBegun => None,
        }
    }

    async fn settle_returned<U>(
        &self,
        claim: Claim,
        answer: U,
        verdict: Verdict,
    ) -> Result<Protected<U>, Error> {
        let key = claim.key().clone();
        let is_released = matches!(verdict, Verdict::Release);
        let Settled { end, .. } = claim.settle(verdict).await;
        match end {
            // Nothing was to be recorded, so the handler's own answer is the only one there is.
            _ if is_released => Ok(Protected::Ran(answer)),
            End::Recorded => Ok(Protected::Ran(answer)),
            // An error would make sure that it runs a second time.
            End::Unrecorded(_) | End::NotCommitted(_) | End::Unresolved(_) => {
                Ok(Protected::RanUnrecorded(answer))
            }
            End::Superseded(record) => {
                let outcome = self.successors_outcome(&key, &record, ErrorKind::InProgress).await;
                outcome.map(Protected::Replayed)
            }
            End::Fenced(until) => Err(in_progress(&key, until, self.clock.now())),
        }
    }

    /// The process was frozen between its claim and its handler. Nothing ran, so the next delivery need not wait for
    /// the lease, and where at most one may run, it may.
    async fn give_back(&self, claim: Claim) -> Error {
        let key = claim.key().clone();
        // Where that fails, the lease frees the key.
        let _ = claim.settle(Verdict::Release).await;
        refusal_error(&key, Refusal::NoTimeLeft, None, self.clock.now())
    }

    /// Nothing is settled: what the handler began may still have its effect, and the lease frees the key.
    fn cut_off(&self, claim: Claim) -> Error {
        let now = self.clock.now();
        observe::cut_off(claim.key(), claim.held(), now);
        let what = "the handler was cut off, because its time was over";
        match self.settings.execution {
            Execution::AtLeastOnce => {
                let wait = now.until(claim.held().lease_until.saturating_add(self.settings.skew_margin));
                Error::new(
                    ErrorKind::InProgress,
                    format!("{}: {what}; repeat when its lease has ended", claim.key()),
                )
                .with_retry_after(wait)
            }
            Execution::AtMostOnce => Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "{}: {what}, and at most one run is allowed; settle it by hand, with `idempotency inspect`",
                    claim.key()
                ),
            ),
        }
    }
}
