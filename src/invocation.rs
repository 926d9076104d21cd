//! The invocation that a handler runs in: its deadline, decided once, and what a nested operation
//! inherits of it.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{claim::ClaimHandle, error::Error, staging::Staging, time::Timestamp};

/// What the platform says of one invocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    deadline: Option<Timestamp>,
    request_id: Option<Arc<str>>,
    /// Until when a duplicate may wait, where that is before the deadline says so.
    last_wait: Option<Timestamp>,
    /// When the caller stops waiting for the answer, where that is before the deadline.
    caller_waits_until: Option<Timestamp>,
}

impl Invocation {
    /// An invocation whose deadline and id are not known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// An invocation that enters at `now`.
    ///
    /// Whether its deadline is known is decided here, once: zero, or already past, means that it is not
    /// (cargo-lambda's emulator sends a duration for it). A deadline that passes later is one that has
    /// passed.
    pub fn entered(now: Timestamp, deadline: Timestamp, request_id: &str) -> Self {
        Self {
            deadline: (deadline > now).then_some(deadline),
            request_id: (!request_id.is_empty()).then(|| request_id.into()),
            last_wait: None,
            caller_waits_until: None,
        }
    }

    /// The same, in which no duplicate waits after `last`.
    #[cfg(feature = "events")]
    pub(crate) fn waiting_until(self, last: Option<Timestamp>) -> Self {
        Self { last_wait: last, ..self }
    }

    /// The same, for a caller that waits until then and no longer.
    ///
    /// API Gateway gives up on an integration 29 seconds after a request came in, unless it's configured otherwise
    /// ("Amazon API Gateway quotas", API Gateway developer guide). The HTTP layer sets this by itself; see
    /// `HttpLayer::answer_within`.
    #[must_use]
    pub fn with_caller_waiting_until(self, until: Timestamp) -> Self {
        Self { caller_waits_until: Some(until), ..self }
    }

    pub(crate) fn caller_waits_until(&self) -> Option<Timestamp> {
        self.caller_waits_until
    }

    pub(crate) fn last_wait(&self) -> Option<Timestamp> {
        self.last_wait
    }

    /// Whether anything is known of it. Nothing is, of what runs before the first invocation.
    pub(crate) fn is_known(&self) -> bool {
        self.deadline.is_some() || self.request_id.is_some()
    }

    /// When the platform ends the invocation, where that is known.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// The invocation's request id: for people who search the logs.
    pub fn request_id(&self) -> Option<&Arc<str>> {
        self.request_id.as_ref()
    }
}

/// What surrounds a handler's future.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) invocation: Invocation,
    pub(crate) claim: Option<ClaimHandle>,
    pub(crate) staging: Option<Staging>,
    pub(crate) refusals: Refusals,
}

impl Surroundings {
    /// Those of a handler that nothing protects.
    pub(crate) fn unprotected(invocation: Invocation) -> Self {
        Self { invocation, claim: None, staging: None, refusals: Refusals::default() }
    }
}

/// The library's own errors that nested operations gave a handler, and that a repetition may cure. They are watched and
/// not held: one that is still there when the handler has returned is inside what it returned.
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

/// The error of an operation inside a handler, which the handler may pass on.
pub(crate) fn refused_within(error: Error) -> Error {
    match current() {
        Some(surroundings) => surroundings.refusals.watch(error),
        None => error,
    }
}

tokio::task_local! {
    static CURRENT: Surroundings;
}

/// What surrounds the calling code, if it is inside a wrapped handler.
pub(crate) fn current() -> Option<Surroundings> {
    CURRENT.try_with(Clone::clone).ok()
}

/// Runs `future` in these surroundings.
pub(crate) fn within<F: Future>(surroundings: Surroundings, future: F) -> impl Future<Output = F::Output> {
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
        assert_eq!(deadline(1_795_000_000_000), None);
        assert_eq!(deadline(1_795_000_000_001), Some(Timestamp::from_millis(1_795_000_000_001)));
    }
}
