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
    /// The handler returned.
    Returned(T),
    /// The handler panicked, with this payload.
    Panicked(Box<dyn Any + Send>),
    /// The future was dropped before it was done, because the handler's time ran out or its claim was lost.
    CutOff,
    /// The handler's time ran out before the first poll: nothing ran.
    NotBegun,
}

impl<T, E> Ended<Result<T, E>> {
    /// Returns the answer of a handler that returned one.
    ///
    /// # Errors
    ///
    /// How else it ended.
    pub(super) fn answered(self) -> Result<T, Ended<E>> {
        Err(match self {
            Self::Returned(Ok(answer)) => return Ok(answer),
            Self::Returned(Err(error)) => Ended::Returned(error),
            Self::Panicked(payload) => Ended::Panicked(payload),
            Self::CutOff => Ended::CutOff,
            Self::NotBegun => Ended::NotBegun,
        })
    }
}

/// The time until which a handler may be polled. An extension of its lease moves that time.
pub(super) struct CutOff {
    at: AtomicU64,
    /// Whether a handler that has begun is cut off. If not, the time only prevents a start.
    ends_running: bool,
}

impl CutOff {
    /// Cuts the handler off at `time`. `None` means never.
    pub(super) fn at(time: Option<Timestamp>) -> Self {
        let at = AtomicU64::new(time.map_or(u64::MAX, Timestamp::as_millis));
        Self { at, ends_running: true }
    }

    /// Prevents a handler from starting after `time`. A handler that has started by then may run to its end.
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

/// Polls `future` to its end, but not after `cut_off`.
///
/// After each poll of `future`, polls `companion`. If `companion` ends first, `future` is cut off.
///
/// Each poll first checks the clock and the timer, and either is enough to cut off: some timers don't count the time
/// that a sandbox is frozen, and a clock can be set back. If `companion` moves the cut-off, the timer moves at once:
/// `future` may not be polled again before the new cut-off.
///
/// If `cut_off` is from [`CutOff::before_start`], a handler that has begun runs to its end: neither the time nor
/// `companion` cuts it off.
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
        let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Ready(Ended::CutOff) };
        // The future isn't polled again after a panic, so no code sees the state that the panic leaves.
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
            Some(Poll::Pending)
                if cut_off.ends_running && limit.has_moved() && limit.has_passed(clock, cx) =>
            {
                Poll::Ready(Ended::CutOff)
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    })
    .await;
    if matches!(ended, Ended::CutOff | Ended::NotBegun) {
        // The future may panic while it's dropped. Ignore the panic: the future is cut off anyway.
        let _ = catch_unwind(AssertUnwindSafe(|| future.set(None)));
    }
    ended
}

/// Polls `future` to its end.
///
/// # Errors
///
/// The future's panic.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    // As above, the future isn't polled again after a panic.
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}

/// Polls `running` until it's done, but not after the time `at`. Returns `None` if it isn't done by then.
pub(crate) async fn until<T>(
    clock: &dyn Clock,
    at: Option<Timestamp>,
    running: impl Future<Output = T>,
) -> Option<T> {
    match watch(running, clock, &CutOff::at(at), None).await {
        Ended::Returned(value) => Some(value),
        Ended::Panicked(payload) => std::panic::resume_unwind(payload),
        Ended::CutOff | Ended::NotBegun => None,
    }
}

struct Limit<'a> {
    cut_off: &'a CutOff,
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

impl Limit<'_> {
    /// Whether the cut-off was moved after the timer was set.
    fn has_moved(&self) -> bool {
        self.timer.as_ref().map(|(set_for, _)| *set_for) != self.cut_off.get()
    }

    fn has_passed(&mut self, clock: &dyn Clock, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.cut_off.get() else { return false };
        let now = clock.now();
        if now >= at {
            return true;
        }
        if self.has_moved() {
            self.timer = Some((at, clock.sleep(now.until(at))));
        }
        self.timer.as_mut().is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready())
    }
}
