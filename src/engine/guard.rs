//! Watches over a handler's future: catches its panic, and cuts it off in time.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll},
};

use crate::{
    future::BoxFuture,
    time::{Clock, Timestamp},
};

/// How a handler's future ended.
pub(super) enum Ended<T> {
    /// It returned.
    Returned(T),
    /// It panicked, with this payload.
    Panicked(Box<dyn Any + Send>),
    /// It was dropped before it was done, because its time was over.
    CutOff,
    /// Its time was over before it was polled at all: nothing ran.
    NotBegun,
}

/// Polls `future` to its end, but not after `cut_off`.
///
/// The clock is asked before each poll, and not only the timer: a timer need not count the time that a
/// sandbox spends frozen.
pub(super) async fn watch<F: Future>(
    future: F,
    clock: &dyn Clock,
    cut_off: Option<Timestamp>,
) -> Ended<F::Output> {
    let mut future = pin!(Some(future));
    let mut has_begun = false;
    let mut limit = cut_off.map(|at| Limit { at, timer: clock.sleep(clock.now().until(at)) });
    let ended = poll_fn(|cx| {
        if limit.as_mut().is_some_and(|limit| limit.has_passed(clock, cx)) {
            return Poll::Ready(if has_begun { Ended::CutOff } else { Ended::NotBegun });
        }
        has_begun = true;
        // What a panic leaves behind in the future is never seen: it is not polled again.
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(Ended::CutOff) };
        match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ended::Returned(value)),
            Err(payload) => Poll::Ready(Ended::Panicked(payload)),
        }
    })
    .await;
    if matches!(ended, Ended::CutOff | Ended::NotBegun) {
        // It may panic as it is dropped, and is cut off all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| future.set(None)));
    }
    ended
}

struct Limit {
    at: Timestamp,
    timer: BoxFuture<'static, ()>,
}

impl Limit {
    fn has_passed(&mut self, clock: &dyn Clock, cx: &mut Context<'_>) -> bool {
        loop {
            let now = clock.now();
            if now >= self.at {
                return true;
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            // The timer ran ahead of the clock: set it again for what is left.
            self.timer = clock.sleep(now.until(self.at));
        }
    }
}
