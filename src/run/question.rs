//! The question that's asked before a handler runs again: did the earlier attempt, which ended without an answer, have
//! its effect?

use std::{any::Any, time::Duration};

use crate::{
    error::Error,
    invocation::Refusals,
    observe,
    protocol::Refusal,
    run::{
        context::{OperationContext, refusals_around},
        driver::Driver,
        refusal::{self, not_known, refusal_error},
        response::Verdict,
        right::Right,
        watch::Ended,
    },
    time::Timestamp,
};

/// The answer to the question: the outcome and how to record it, or why there's no outcome. `U` is the caller's answer.
pub(crate) type Asked<U> = Result<(Verdict, U), NoOutcome>;

/// Why the question has no outcome as its answer.
pub(crate) enum NoOutcome {
    /// The earlier attempt had no effect, and will have none.
    DidNotHappen,
    /// It isn't known yet.
    NotKnown {
        /// How long to wait before the question is asked again, if the answer says that.
        ask_again_after: Option<Duration>,
        /// The error of the question itself.
        cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl NoOutcome {
    /// The question failed.
    pub(crate) fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::NotKnown { ask_again_after: None, cause: Some(cause.into()) }
    }
}

/// Why a wrapper has no answer.
pub(crate) enum Stopped {
    /// The library returns this error instead of an answer.
    Refused(Error),
    /// The handler panicked with this payload; the claim is already settled.
    Panicked(Box<dyn Any + Send>),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl OperationContext {
    /// The context of the question before a handler with this context. The question stages no writes, and its refused
    /// steps aren't the handler's.
    pub(super) fn of_question(&self) -> Self {
        let refusals = Refusals::inside(refusals_around(&self.invocation));
        Self { staging: None, refusals, ..self.clone() }
    }
}

/// Continues after a question that gave no outcome. Returns the right if the handler may run.
///
/// # Errors
///
/// The handler doesn't run. The record stays STARTED, so that the next attempt asks again.
pub(super) async fn without_outcome<'t>(
    driver: &Driver,
    mut right: Right<'t>,
    asked: Ended<NoOutcome>,
) -> Result<Right<'t>, Stopped> {
    let key = right.key().clone();
    match asked {
        Ended::Returned(NoOutcome::DidNotHappen) => match right.did_not_happen().await {
            Ok(()) => Ok(right),
            Err(refused) => Err(refused.error.into()),
        },
        Ended::Returned(NoOutcome::NotKnown { ask_again_after, cause }) => {
            let until = leave(driver, &mut right, ask_again_after).await;
            Err(not_known(&key, &driver.rules(), until, cause, driver.now()).into())
        }
        Ended::Panicked(payload) => {
            observe::panicked(&key, right.generation());
            leave(driver, &mut right, None).await;
            Err(Stopped::Panicked(payload))
        }
        // Nothing was asked, so the next attempt may ask at once.
        Ended::NotBegun => {
            leave(driver, &mut right, Some(Duration::ZERO)).await;
            Err(refusal_error(&key, Refusal::NoTimeLeft, None, driver.now()).into())
        }
        // No time is left for a write. The end of the lease frees the key for the next attempt.
        Ended::CutOff => {
            observe::cut_off(&key, right.generation(), driver.now());
            let until = right.lease_until().map(|lease_until| driver.rules().claimable_at(lease_until));
            Err(refusal::question_cut_off(&key, until, driver.now()).into())
        }
    }
}

/// Leaves the claim to the next attempt, which may ask again from the returned time on.
async fn leave(driver: &Driver, right: &mut Right<'_>, ask_again_after: Option<Duration>) -> Timestamp {
    let until = right.unanswered_until(driver.now(), ask_again_after);
    // If the write fails, the end of the lease frees the key.
    let _ = right.settle(Verdict::Unanswered { until: Some(until) }).await;
    driver.rules().unanswered_until(until)
}
