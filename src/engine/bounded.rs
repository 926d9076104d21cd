//! Bounds calls to the store: one that isn't answered in time counts as unanswered.

use std::{future::poll_fn, task::Poll};

use crate::{
    future::BoxFuture,
    store::{StoreError, StoreErrorKind},
    time::{Clock, Timestamp},
};

/// Awaits `call`, which begins at `now`, until the time `until`. After that, it drops the call, and the error
/// is ambiguous, since the store may still apply it.
///
/// # Errors
///
/// The call's own; or [`StoreErrorKind::Unavailable`], which is definite if no time was left to begin with.
pub(super) async fn bounded<T>(
    clock: &dyn Clock,
    now: Timestamp,
    until: Option<Timestamp>,
    mut call: BoxFuture<'_, Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let Some(until) = until else { return call.await };
    // Counted from the decision to make the call, so that a process that's frozen in between still sends it once.
    let left = now.until(until);
    if left.is_zero() {
        return Err(StoreError::new(StoreErrorKind::Unavailable, "no time was left to ask the store"));
    }
    // Most calls are answered long before the limit, so the timer is set only after the first poll.
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        let timer = timer.get_or_insert_with(|| clock.sleep(left));
        timer.as_mut().poll(cx).map(|()| {
            let error = StoreError::new(StoreErrorKind::Unavailable, "the store did not answer in time");
            Err(error.maybe_applied(true))
        })
    })
    .await
}
