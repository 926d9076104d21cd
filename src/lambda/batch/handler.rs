//! Hides the types of the user's closures, so that the type of a worker can be named.

use std::{future::Future, sync::Arc};

use serde::Serialize;

use super::{
    handlers::Handlers,
    run::{Question, Reason},
};
use crate::{
    error::{Error, RecordedFailure},
    failure::{ErrorPolicy, Failure, OnError},
    future::BoxFuture,
    idempotency::reconcile::{Found, asked},
    internal::FailureExt as _,
    key::Key,
    run::{
        driver::Driver,
        handle::ClaimHandle,
        protect::{Protected, Stopped, Target, as_it_is, protect_caught},
        question::Asked,
        response::Verdict,
    },
};

/// Returns the key of a record's operation.
pub(super) type KeyOf<R> = Arc<dyn Fn(&R) -> Result<Option<Key>, Error> + Send + Sync>;

/// A reconciler's question about a record, without its result type.
pub(super) type QuestionOf<R> =
    Arc<dyn Fn(ClaimHandle, R) -> BoxFuture<'static, Asked<Result<(), Reason>>> + Send + Sync>;

/// Hides the result type of a reconciler's question.
pub(super) fn question_of<R, T, Q, Fut>(question: Q) -> QuestionOf<R>
where
    Q: Fn(ClaimHandle, R) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Found<T>, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    T: Serialize,
{
    Arc::new(move |claim, record| {
        let asking = question(claim, record);
        Box::pin(async {
            asked(asking.await, |value| (completed(&value), Ok(())), |_| Err(Reason::FailedForGood))
        })
    })
}

/// A record's handler, without its result type.
pub(super) trait Handle<R>: Send + Sync {
    /// Claims the record's key, runs the handler, and settles the claim. `handlers` holds the delivery's handlers, and
    /// the record's place in the batch. `question` is the reconciler's, if there's one.
    fn protected<'a>(
        &'a self,
        driver: &'a Driver,
        target: Target<'a>,
        record: R,
        handlers: (&'a Handlers, usize),
        question: Option<Question<'a>>,
    ) -> BoxFuture<'a, Result<Protected<Result<(), Reason>>, Stopped>>;

    /// Runs the handler without a claim.
    fn unprotected(&self, record: R) -> BoxFuture<'_, Result<(), Failure>>;
}

impl<R, H, Fut, T> Handle<R> for H
where
    R: Send + 'static,
    H: Fn(R) -> Fut + Send + Sync,
    Fut: Future<Output = Result<T, Failure>> + Send + 'static,
    T: Serialize + Send + 'static,
{
    fn protected<'a>(
        &'a self,
        driver: &'a Driver,
        target: Target<'a>,
        record: R,
        (handlers, place): (&'a Handlers, usize),
        question: Option<Question<'a>>,
    ) -> BoxFuture<'a, Result<Protected<Result<(), Reason>>, Stopped>> {
        let handler = move || handlers.run(place, self(record));
        Box::pin(protect_caught(driver, target, handler, judge, as_it_is, question))
    }

    fn unprotected(&self, record: R) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move { self(record).await.map(drop) })
    }
}

fn completed<T: Serialize>(value: &T) -> Verdict {
    serde_json::to_vec(value).map_or(Verdict::CompleteOmitted, Verdict::complete)
}

/// Decides how a handler's result settles the key, and why the record is redelivered if the handler failed.
fn judge<T: Serialize>(result: Result<T, Failure>, policy: ErrorPolicy) -> (Verdict, Result<(), Reason>) {
    let failure = match result {
        Ok(value) => {
            return (completed(&value), Ok(()));
        }
        Err(failure) => failure,
    };
    match policy.on(&failure) {
        OnError::Release => (Verdict::Release { interrupted: false }, Err(Reason::of(&failure))),
        OnError::Leave => (Verdict::Unanswered { until: None }, Err(Reason::of(&failure))),
        OnError::Record(said) => {
            let described = || RecordedFailure::new(failure.error_type(), "the handler returned an error");
            (Verdict::failure(&said.unwrap_or_else(described)), Err(Reason::FailedForGood))
        }
    }
}
