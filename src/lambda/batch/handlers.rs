//! The handlers of one delivery: how many are running, and which have succeeded.

use std::{
    collections::HashSet,
    future::{Future, poll_fn},
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use crate::run::context::staging;

/// The handlers of one delivery of a batch.
#[derive(Default)]
pub(super) struct Handlers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    /// The places of the records whose handlers have succeeded and have no staged writes.
    succeeded: HashSet<usize>,
}

/// Counts a handler as running, until the handler returns, panics or is cut off. In each case, this value is dropped.
struct Running<'h>(&'h Handlers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state().running -= 1;
    }
}

impl Handlers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the handler of the record at this place.
    pub(super) async fn run<T, E>(
        &self,
        place: usize,
        handler: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.state().running += 1;
        let _running = Running(self);
        let result = handler.await;
        // The handler's staged writes aren't applied yet, so a handler that staged writes hasn't succeeded yet.
        let has_staged = || staging().is_some_and(|staging| staging.has_writes());
        if result.is_ok() && !has_staged() {
            self.state().succeeded.insert(place);
        }
        result
    }

    /// Whether the handler of the record at this place has succeeded, and nothing but its outcome is left to write.
    pub(super) fn has_succeeded(&self, place: usize) -> bool {
        self.state().succeeded.contains(&place)
    }

    /// Waits until no handler is running. Nothing wakes this future when a handler ends. So poll it in the handlers'
    /// task, and each time after the handlers.
    pub(super) fn idle(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|_| if self.state().running == 0 { Poll::Ready(()) } else { Poll::Pending })
    }
}
