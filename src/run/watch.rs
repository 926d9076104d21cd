//! Guards a handler's future: catches its panic, and cuts it off in time.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
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
    /// It was dropped before it was done, because its time was over or its claim was lost.
    CutOff,
    /// Its time was over before the first poll: nothing ran.
    NotBegun,
}

/// The time until which a handler may be polled. An extension of its lease moves it.
pub(super) struct CutOff {
    at: AtomicU64,
    /// Whether it ends a handler that has begun.
    ends_running: bool,
}

impl CutOff {
    /// `None` means never.
    pub(super) fn at(time: Option<Timestamp>) -> Self {
        let at = AtomicU64::new(time.map_or(u64::MAX, Timestamp::as_millis));
        Self { at, ends_running: true }
    }

    /// A handler that has begun by then may run to its end.
    pub(super) fn before_start(time: Timestamp) -> Self {
        Self { ends_running: false, ..Self::at(Some(time)) }
    }

    pub(super) fn move_to(&self, time: Timestamp) {
        self.at.store(time.as_millis(), Ordering::Relaxed);
    }

    fn get(&self) -> Option<Timestamp> {
        let millis = self.at.load(Ordering::Relaxed);
        (millis != u64::MAX).then(|| Timestamp::from_millis(millis))
    }
}

/// Polls `future` to its end, but not after `cut_off`. Polls `companion` beside it, whose end also ends the future,
/// unless the cut-off doesn't end a running one.
///
/// Each poll first checks the clock and the timer, and either is enough: a timer may not count the time that
/// a sandbox is frozen, and a clock can be set back.
pub(super) async fn watch<F: Future>(
    future: F,
    clock: &dyn Clock,
    cut_off: &CutOff,
    companion: Option<BoxFuture<'_, ()>>,
) -> Ended<F::Output> {
    let mut future = pin!(Some(future));
    let mut companion = companion;
    let mut has_begun = false;
    let mut limit = Limit { cut_off, timer: None };
    let ended = poll_fn(|cx| {
        let may_end = cut_off.ends_running || !has_begun;
        if may_end && limit.has_passed(clock, cx) {
            return Poll::Ready(if has_begun { Ended::CutOff } else { Ended::NotBegun });
        }
        has_begun = true;
        // Nothing sees the state that a panic leaves in the future: it isn't polled again.
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(Ended::CutOff) };
        match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(value)) => return Poll::Ready(Ended::Returned(value)),
            Err(payload) => return Poll::Ready(Ended::Panicked(payload)),
        }
        match companion.as_mut().map(|companion| companion.as_mut().poll(cx)) {
            Some(Poll::Ready(())) if cut_off.ends_running => Poll::Ready(Ended::CutOff),
            Some(Poll::Ready(())) => {
                companion = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await;
    if matches!(ended, Ended::CutOff | Ended::NotBegun) {
        // It may panic while it's dropped; it's cut off anyway.
        let _ = catch_unwind(AssertUnwindSafe(|| future.set(None)));
    }
    ended
}

struct Limit<'a> {
    cut_off: &'a CutOff,
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

impl Limit<'_> {
    fn has_passed(&mut self, clock: &dyn Clock, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.cut_off.get() else { return false };
        let now = clock.now();
        if now >= at {
            return true;
        }
        // There's no timer yet, or the cut-off was moved.
        if self.timer.as_ref().is_none_or(|(set_for, _)| *set_for != at) {
            self.timer = Some((at, clock.sleep(now.until(at))));
        }
        self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready())
    }
}
