//! The invocation that a handler runs in: its deadline, decided once, and what nested operations inherit from it.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use crate::{claim::ClaimHandle, error::Error, key::StoredKey, staging::Staging, time::Timestamp};

/// 2020-01-01: an earlier deadline is invalid.
const EARLIEST: Timestamp = Timestamp::from_secs(1_577_836_800);
/// A deadline farther away is invalid.
const FARTHEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The platform's information about one invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    deadline: Option<Timestamp>,
    request_id: Option<Arc<str>>,
    /// The latest time until which a duplicate may wait, if it's earlier than the deadline implies.
    last_wait: Option<Timestamp>,
    /// When the caller stops waiting for the answer, if that's before the deadline.
    caller_waits_until: Option<Timestamp>,
    /// The length of leases that are extended while their handler runs, if the settings give none.
    short_lease: Option<Duration>,
}

impl Invocation {
    /// Creates an invocation with unknown deadline and ID.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Returns the invocation that the calling code runs in. A task that a handler spawns isn't inside it:
    /// call this before you spawn, and pass the result to the task's operations with
    /// [`Idempotency::for_invocation`](crate::Idempotency::for_invocation), so that their leases and answers
    /// keep the deadline.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Invocation, Key, store::memory::MemoryStore};
    /// # async fn handler(idempotency: Idempotency) {
    /// let idempotency = idempotency.for_invocation(Invocation::current().unwrap_or_default());
    /// tokio::spawn(async move {
    ///     let (mail, key) = (idempotency.operation("mail")?, Key::new("order-17")?);
    ///     mail.run(key, &12, || async { Ok::<_, std::io::Error>("sent".to_owned()) }).await
    /// });
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|surroundings| surroundings.invocation.clone()).ok()
    }

    /// Creates an invocation that starts at `now`.
    ///
    /// This decides once whether the deadline is known. It's unknown before 2020, since cargo-lambda's
    /// emulator sends a duration, and more than a day after `now`, since AWS's own emulator multiplies it
    /// wrongly in Managed Instances mode; Lambda's longest timeout is 15 minutes. A deadline that's merely
    /// past leaves no time.
    pub fn entered(now: Timestamp, deadline: Timestamp, request_id: &str) -> Self {
        Self {
            deadline: (EARLIEST..=now.saturating_add(FARTHEST)).contains(&deadline).then_some(deadline),
            request_id: (!request_id.is_empty()).then(|| request_id.into()),
            last_wait: None,
            caller_waits_until: None,
            short_lease: None,
        }
    }

    /// Sets the latest time until which duplicates wait.
    #[cfg(feature = "events")]
    pub(crate) fn waiting_until(self, last: Option<Timestamp>) -> Self {
        Self { last_wait: last, ..self }
    }

    /// Sets how long the caller waits for the answer.
    ///
    /// API Gateway gives up on an integration 29 seconds after a request came in, unless it's configured
    /// otherwise ("Amazon API Gateway quotas", API Gateway developer guide). The HTTP layer sets this
    /// automatically; see `HttpLayer::answer_within`.
    #[must_use]
    pub fn with_caller_waiting_until(self, until: Timestamp) -> Self {
        Self { caller_waits_until: Some(until), ..self }
    }

    /// Uses leases of this length, which are extended while the handler runs.
    #[cfg(feature = "events")]
    pub(crate) fn with_short_leases(self, length: Duration) -> Self {
        Self { short_lease: Some(length), ..self }
    }

    /// Uses leases that last until the deadline: for claims that the library doesn't extend.
    pub(crate) fn without_short_leases(self) -> Self {
        Self { short_lease: None, ..self }
    }

    pub(crate) fn short_lease(&self) -> Option<Duration> {
        self.short_lease
    }

    pub(crate) fn caller_waits_until(&self) -> Option<Timestamp> {
        self.caller_waits_until
    }

    pub(crate) fn last_wait(&self) -> Option<Timestamp> {
        self.last_wait
    }

    /// Whether anything is known about it. Before the first invocation, nothing is.
    pub(crate) fn is_known(&self) -> bool {
        self.deadline.is_some() || self.request_id.is_some()
    }

    /// When the platform ends the invocation, if that's known.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// The invocation's request ID, for people who search the logs.
    pub fn request_id(&self) -> Option<&Arc<str>> {
        self.request_id.as_ref()
    }
}

/// The context of a handler's future.
#[derive(Clone, Debug)]
pub(crate) struct OperationContext {
    pub(crate) invocation: Invocation,
    pub(crate) claim: Option<ClaimHandle>,
    pub(crate) staging: Option<Staging>,
    pub(crate) refusals: Refusals,
    pub(crate) running: Option<Arc<Running>>,
}

/// The operations that the calling code runs inside of, innermost first.
#[derive(Debug)]
pub(crate) struct Running {
    key: StoredKey,
    outer: Option<Arc<Self>>,
}

impl Running {
    /// Nests `key` inside the caller's current operations.
    pub(crate) fn inside(key: StoredKey) -> Arc<Self> {
        Arc::new(Self { key, outer: outer() })
    }
}

/// The operation that the calling code runs inside of.
fn outer() -> Option<Arc<Running>> {
    CURRENT.try_with(|surroundings| surroundings.running.clone()).ok().flatten()
}

/// Refuses an operation inside itself, which would wait for itself and blame another delivery.
///
/// # Errors
///
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
pub(crate) fn refuse_within_itself(key: &StoredKey) -> Result<(), Error> {
    let mut running = outer();
    while let Some(operation) = running {
        if operation.key == *key {
            return Err(Error::misuse(format!(
                "{key}: this call is inside the same operation, which this invocation already runs: either two layers \
                     wrap one handler, or a step has the key and the name of the operation around it. Leave one layer \
                     out, or name the step with `operation(…)`"
            )));
        }
        running = operation.outer.clone();
    }
    Ok(())
}

impl OperationContext {
    /// The context of an unprotected handler.
    pub(crate) fn unprotected(invocation: Invocation) -> Self {
        Self { invocation, claim: None, staging: None, refusals: Refusals::default(), running: outer() }
    }
}

/// The library's own retryable errors that nested operations returned to a handler. The library watches them
/// without holding them: an error that still exists when the handler has returned is inside the handler's
/// result.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Arc<Mutex<Vec<Weak<()>>>>);

impl Refusals {
    fn watch(&self, error: Error) -> Error {
        if !error.is_retryable() {
            return error;
        }
        let (error, watched) = error.watched();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        error
    }

    /// Whether the handler kept one.
    pub(crate) fn is_any_kept(&self) -> bool {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().any(|error| error.strong_count() > 0)
    }
}

/// Registers the error of an operation inside a handler, which the handler may pass on.
pub(crate) fn refused_within(error: Error) -> Error {
    match current() {
        Some(surroundings) => surroundings.refusals.watch(error),
        None => error,
    }
}

tokio::task_local! {
    static CURRENT: OperationContext;
}

/// Returns the calling code's context, if it's inside a wrapped handler.
pub(crate) fn current() -> Option<OperationContext> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs `future` in this context.
pub(crate) fn within<F: Future>(
    surroundings: OperationContext,
    future: F,
) -> impl Future<Output = F::Output> {
    CURRENT.scope(surroundings, future)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_makes_no_sense_is_unknown() {
        let now = Timestamp::from_millis(1_795_000_000_000);
        let deadline = |millis| Invocation::entered(now, Timestamp::from_millis(millis), "id").deadline();
        assert_eq!(deadline(0), None);
        assert_eq!(deadline(600_000), None, "a duration, as cargo-lambda sends it");
        assert_eq!(deadline(1_577_836_799_999), None);
        assert_eq!(
            deadline(1_795_000_000_000 + 86_400_001),
            None,
            "AWS's emulator: the time-out times a million"
        );
        for known in [1_577_836_800_000, 1_795_000_000_000, 1_795_000_000_001, 1_795_000_000_000 + 86_400_000]
        {
            assert_eq!(deadline(known), Some(Timestamp::from_millis(known)));
        }
    }
}
