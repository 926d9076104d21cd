//! The user's closures without their types, so that a worker's type can be named.

use std::{future::Future, sync::Arc};

use serde::Serialize;

use super::{Failure, failure::How, run::Reason};
use crate::{
    engine::{Engine, Protected, Stopped, Target, Verdict, as_it_is},
    error::{Error, RecordedFailure},
    future::BoxFuture,
    key::Key,
    policy::OnHandlerError,
};

/// Returns the key of a record's operation.
pub(super) type KeyOf<R> = Arc<dyn Fn(&R) -> Result<Option<Key>, Error> + Send + Sync>;

/// A record's handler, whatever its result type.
pub(super) trait Handle<R>: Send + Sync {
    /// Claims, runs and settles.
    fn protected<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        operation: Target,
        record: R,
    ) -> BoxFuture<'a, Result<Protected<Result<(), Reason>>, Stopped>>;

    /// Runs without a claim.
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
        engine: &'a Arc<Engine>,
        operation: Target,
        record: R,
    ) -> BoxFuture<'a, Result<Protected<Result<(), Reason>>, Stopped>> {
        Box::pin(engine.protect_caught(operation, move || self(record), judge, as_it_is))
    }

    fn unprotected(&self, record: R) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move { self(record).await.map(drop) })
    }
}

/// The verdict on a handler's result, and the record's result.
fn judge<T: Serialize>(
    result: Result<T, Failure>,
    on_error: OnHandlerError,
) -> (Verdict, Result<(), Reason>) {
    match (result, on_error) {
        (Ok(value), _) => {
            let verdict = serde_json::to_vec(&value).map(|json| Verdict::Complete(json.into()));
            (verdict.unwrap_or(Verdict::CompleteOmitted), Ok(()))
        }
        (Err(Failure(How::Permanent(failure))), _) => {
            (Verdict::failure(&failure), Err(Reason::FailedForGood))
        }
        (Err(Failure(how)), OnHandlerError::Release) => (Verdict::Release, Err(Reason::of(how))),
        (Err(Failure(How::Again(error_type, _))), OnHandlerError::Record) => {
            let failure = RecordedFailure::new(error_type, "the handler returned an error");
            (Verdict::failure(&failure), Err(Reason::FailedForGood))
        }
    }
}
