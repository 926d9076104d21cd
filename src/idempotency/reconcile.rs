//! Asking the remote system for the effect of an attempt that ended without an answer.

use std::{
    borrow::Borrow,
    error::Error as StdError,
    fmt,
    future::{Future, Ready},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, RecordedFailure, RunError},
    format::{Format, Json},
    idempotency::{Idempotency, Operation, operation::Failing},
    key::{Key, StoredKey},
    record::Record,
    run::{
        context::current,
        driver::Way,
        handle::ClaimHandle,
        protect::{Protected, Target, protect_asking},
        question::{Asked, NoOutcome},
        replay::Replay,
        response::Verdict,
    },
    span::OperationSpan,
};

/// What the remote system says of an attempt that ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<T> {
    /// The effect happened, and this is the operation's result. It's recorded, and the handler doesn't run. First compare
    /// what was found with what was asked for.
    Happened(T),
    /// The remote system refused for good. This is recorded as a permanent failure, and the handler doesn't run.
    Failed(RecordedFailure),
    /// The effect didn't happen, and won't: the handler runs. Under at-most-once it runs only after
    /// [`rerun_when_absent`](crate::settings::Settings::rerun_when_absent).
    DidNotHappen,
    /// It isn't known yet. Nothing runs, and the next attempt asks again, after this time. More than 12 hours count as 12
    /// hours.
    NotKnownYet {
        /// How long to wait, from now on.
        ask_again_after: Duration,
    },
}

/// An operation that asks the remote system for the effect of an attempt that ended without an answer, before its handler
/// runs again. [`Operation::reconcile`] creates it, for one run.
///
/// [`guide::reconcile`](crate::guide::reconcile) says when to ask, how, what it costs, and what it can't know.
#[must_use = "nothing runs before `run`"]
pub struct Reconciled<Q, F = Json> {
    operation: Operation<F>,
    question: Q,
}

impl<Q, F: Format> fmt::Debug for Reconciled<Q, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciled").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl<F: Format> Operation<F> {
    /// Returns the same operation, which asks `question` before it runs again after an attempt that ended without an
    /// answer: whose process died, or whose handler was cut off, panicked, or returned [`Failure::unknown`].
    ///
    /// A first run costs nothing more. The question gets the new claim, and borrows what else it needs, as the handler does.
    /// It runs under that claim like a handler: it's cut off in time, and its lease is extended. If it fails, panics or is cut off, the handler doesn't
    /// run, and the key isn't released: the next attempt asks again. No question is asked before
    /// [`effects_arrive_within`](crate::settings::Settings::effects_arrive_within) has passed since the earlier lease, and
    /// under at-most-once only [`rerun_when_absent`](crate::settings::Settings::rerun_when_absent) lets the handler run
    /// again.
    ///
    /// ```
    /// # use lambda_idempotency::{ClaimHandle, Found, Idempotency, Key, RunError, store::memory::MemoryStore};
    /// # type Error = Box<dyn std::error::Error + Send + Sync>;
    /// # #[derive(serde::Serialize)]
    /// # struct Order { id: String, cents: u64 }
    /// # struct Charge { cents: u64, receipt: String }
    /// # struct Gateway;
    /// # impl Gateway {
    /// #     async fn charge(&self, _: &Order) -> Result<String, Error> { Ok("receipt 1".to_owned()) }
    /// #     async fn find(&self, _: &str) -> Result<Option<Charge>, Error> { Ok(None) }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), RunError<Error>> {
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// # let (gateway, order) = (Gateway, Order { id: "order-17".to_owned(), cents: 1250 });
    /// let charge = idempotency.operation("charge")?.reconcile(async |claim: ClaimHandle| {
    ///     Ok(match gateway.find(&claim.derive_key("charge")).await? {
    ///         Some(found) if found.cents == order.cents => Found::Happened(found.receipt),
    ///         Some(_) => return Err("the gateway has another charge under this key".into()),
    ///         None => Found::DidNotHappen,
    ///     })
    /// })?;
    /// let receipt: String = charge.run(Key::new(&order.id)?, &order, || gateway.charge(&order)).await?;
    /// # assert_eq!(receipt, "receipt 1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an [optimistic](crate::Idempotency::optimistic) operation, which has no claims, and with
    /// [`fail_open`](crate::settings::Settings::fail_open), under which a handler may run without the question.
    ///
    /// [`Failure::unknown`]: crate::Failure::unknown
    pub fn reconcile<T, Q>(self, question: Q) -> Result<Reconciled<Q, F>, Error>
    where
        Q: AsyncFnOnce(ClaimHandle) -> Result<Found<T>, Box<dyn StdError + Send + Sync>>,
    {
        let idempotency = self.idempotency().asking()?;
        Ok(Reconciled { operation: self.over(idempotency), question })
    }
}

impl<Q, F: Format> Reconciled<Q, F> {
    /// As [`Operation::run`], but asks before it runs again after an attempt that ended without an answer.
    ///
    /// # Errors
    ///
    /// Same as [`Operation::run`], and while it's unknown whether the earlier attempt had its effect:
    /// [`ErrorKind::InProgress`](crate::ErrorKind::InProgress) with the time until the next question, or [`ErrorKind::OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) under at-most-once
    /// without [`rerun_when_absent`](crate::settings::Settings::rerun_when_absent).
    ///
    /// # Panics
    ///
    /// Same as [`Operation::run`], and if the question panics.
    ///
    /// # Cancel safety
    ///
    /// Same as [`Operation::run`].
    pub async fn run<T, E, P, H, Fut>(
        self,
        key: impl Borrow<Key>,
        payload: &P,
        operation: H,
    ) -> Result<T, RunError<E>>
    where
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
        P: Serialize + ?Sized,
        Q: AsyncFnOnce(ClaimHandle) -> Result<Found<T>, Box<dyn StdError + Send + Sync>>,
        H: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Ok(self.run_with_replay(key, payload, operation).await?.0)
    }

    /// As [`Operation::run_with_replay`]. An outcome that the question found counts as new.
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// Same as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Same as [`run`](Self::run).
    pub async fn run_with_replay<T, E, P, H, Fut>(
        self,
        key: impl Borrow<Key>,
        payload: &P,
        operation: H,
    ) -> Result<(T, Option<Replay>), RunError<E>>
    where
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
        P: Serialize + ?Sized,
        Q: AsyncFnOnce(ClaimHandle) -> Result<Found<T>, Box<dyn StdError + Send + Sync>>,
        H: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let Self { operation: reconciled, question } = self;
        // An async block and not an async closure, so that the compiler finds that the run is `Send`.
        let ask = |claim: ClaimHandle| async move {
            let key = claim.key().clone();
            let found = question(claim).await;
            let happened = |value| (Verdict::result::<T, F>(&key, &value), Ok(value));
            asked(found, happened, |failure| Err(Failing::Final(failure, None)))
        };
        reconciled.run_asking(key.borrow(), payload, operation, Some(ask)).await
    }
}

/// Returns the question's answer as the verdict and the caller's answer.
pub(crate) fn asked<T, U>(
    found: Result<Found<T>, Box<dyn StdError + Send + Sync>>,
    happened: impl FnOnce(T) -> (Verdict, U),
    failed: impl FnOnce(RecordedFailure) -> U,
) -> Asked<U> {
    match found {
        Ok(Found::Happened(value)) => Ok(happened(value)),
        Ok(Found::Failed(failure)) => Ok((Verdict::failure(&failure), failed(failure))),
        Ok(Found::DidNotHappen) => Err(NoOutcome::DidNotHappen),
        Ok(Found::NotKnownYet { ask_again_after }) => {
            Err(NoOutcome::NotKnown { ask_again_after: Some(ask_again_after), cause: None })
        }
        Err(cause) => Err(NoOutcome::failed(cause)),
    }
}

/// Reconciles one record; see [`Idempotency::reconcile_record`].
pub(super) async fn record<T, Q>(
    asking: &Idempotency,
    key: &StoredKey,
    record: &Record,
    question: Q,
) -> Result<bool, Error>
where
    T: Serialize + DeserializeOwned,
    Q: AsyncFnOnce(ClaimHandle) -> Result<Found<T>, Box<dyn StdError + Send + Sync>>,
{
    let driver = asking.driver();
    let target = Target {
        span: OperationSpan::new(key, || None),
        key: key.clone(),
        fingerprint: record.fingerprint,
        invocation: asking.invocation(),
        cut_off: None,
        way: Way::Claimed,
        inside: None,
    };
    let question = async |claim: ClaimHandle| {
        let found = question(claim).await;
        asked(found, |value| (Verdict::result::<T, Json>(key, &value), true), |_| true)
    };
    let judge = |is_takeover: bool, _| match is_takeover {
        true => (Verdict::Unanswered { until: Some(driver.now()) }, false),
        false => (Verdict::Release { interrupted: false }, false),
    };
    // In place of the handler.
    let nothing = async || current().is_some_and(|claim| claim.is_takeover());
    let again = |_| None::<Ready<bool>>;
    match protect_asking(driver, target, nothing, judge, again, Some(question)).await? {
        Protected::Ran(is_settled) | Protected::RanUnrecorded(is_settled) => Ok(is_settled),
        Protected::Replayed(_) => Ok(true),
    }
}
