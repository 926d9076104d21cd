//! How long a call of the library may take, and what the machine takes of that for itself.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lambda_idempotency_cli::rehearse::clock;
use tokio::task::JoinHandle;

use super::{case::Case, proxy::lock};

/// As in `src/protocol/acquire.rs`: how often one claim may lose.
pub(super) const MAX_LOSSES: u32 = 4;
/// How often a delivery that was fenced can claim again to record its outcome in these scenarios: a rival
/// comes once, and a lost answer looks like one at most once more.
const RECORDINGS: u32 = 2;
/// How long an outcome is tried to be recorded here: much longer than three faults last.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// As in `src/engine/drive.rs`: the first pause, and how often it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const DOUBLINGS: u32 = 6;
/// For what is no call: encoding, scheduling, handlers. Above it counts what a timer was seen to be late by.
const SLACK: Duration = Duration::from_millis(250);
/// A timer that is so late means that requests take a good part of their time-outs for want of a processor.
const BUSY: Duration = Duration::from_millis(4);

/// The time-outs of the SDK's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeOuts {
    pub(super) attempt: Duration,
    pub(super) operation: Duration,
}

impl TimeOuts {
    /// So short that a hang is cheap.
    pub(super) const SHORT: Self =
        Self { attempt: Duration::from_millis(100), operation: Duration::from_millis(300) };
    /// For half a megabyte in a debug build, and for what makes a connection after each fault.
    const LONG: Self = Self { attempt: Duration::from_millis(400), operation: Duration::from_millis(1200) };
    /// None to speak of: for the net to be tested with.
    pub(super) const NONE: Self =
        Self { attempt: Duration::from_secs(3600), operation: Duration::from_secs(3600) };

    pub(super) fn of(case: &Case) -> Self {
        if case.is_slow() { Self::LONG } else { Self::SHORT }
    }
}

/// The most calls of the store that one delivery may make, of which so many fail.
pub(super) fn max_calls(failures: u32) -> u32 {
    // Each write may be doubtful, and looked after; a claim that stays so is given back.
    let claiming = 2 * MAX_LOSSES + 2;
    // The last is an outcome without its response, where the store refuses the response.
    let settling = 2 + 1;
    let parts = 2;
    // Each failure is looked into, and what failed is sent again.
    claiming + settling + parts + RECORDINGS * (claiming + settling) + 2 * failures
}

/// How long one call of the store may take: the operation's time-out, and once more where a failed claim's
/// condition did not send the item along.
pub(super) fn of_store_call(time_outs: TimeOuts, requests_twice: bool) -> Duration {
    time_outs.operation * if requests_twice { 2 } else { 1 } + SLACK
}

/// How long a delivery may take that made these calls of the store, of which so many failed.
pub(super) fn of_delivery(calls: impl IntoIterator<Item = Duration>, failures: u32) -> Duration {
    calls.into_iter().sum::<Duration>() + pauses(failures) + SLACK
}

/// After conflicts in claiming, and after each failure in settling.
fn pauses(failures: u32) -> Duration {
    (0..MAX_LOSSES.max(failures)).map(|nth| FIRST_PAUSE * (1 << nth.min(DOUBLINGS))).sum()
}

/// How long any delivery may take at all.
pub(super) fn of_any_delivery(time_outs: TimeOuts) -> Duration {
    // Every T1 may have to look for the item that it met.
    let claims = max_calls(0) + MAX_LOSSES * (1 + RECORDINGS);
    time_outs.operation * claims + SETTLE_WITHIN + pauses(MAX_LOSSES) + SLACK
}

/// What the machine takes for itself: how late a timer comes.
#[derive(Debug)]
pub(crate) struct Lateness {
    seen: Arc<Mutex<Vec<(Instant, Duration)>>>,
    /// How late the timer was of late, in microseconds: each tick weighs an eighth.
    recent: Arc<AtomicU64>,
    watching: JoinHandle<()>,
}

impl Lateness {
    /// Watches a timer from now on.
    pub(crate) fn watch() -> Self {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let for_task = Arc::clone(&seen);
        let recent = Arc::new(AtomicU64::new(0));
        let recent_for_task = Arc::clone(&recent);
        let step = Duration::from_millis(5);
        let watching = tokio::spawn(async move {
            loop {
                let before = clock::start();
                clock::pause(step).await;
                let late = before.elapsed().saturating_sub(step);
                let micros = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                let recent = recent_for_task.load(Ordering::Relaxed);
                recent_for_task.store(recent / 8 * 7 + micros / 8, Ordering::Relaxed);
                // Timers count whole milliseconds, and come in the next one.
                if late > Duration::from_millis(2) {
                    lock(&for_task).push((clock::start(), late));
                }
            }
        });
        Self { seen, recent, watching }
    }

    /// Whether the machine has no time to spare just now.
    pub(crate) fn is_busy(&self) -> bool {
        self.recent.load(Ordering::Relaxed) > u64::try_from(BUSY.as_micros()).unwrap_or(u64::MAX)
    }

    /// By how much timers were late in all, from `ended - took` to `ended`.
    pub(crate) fn during(&self, ended: Instant, took: Duration) -> Duration {
        let Some(began) = ended.checked_sub(took) else { return Duration::ZERO };
        let seen = lock(&self.seen);
        let from = seen.partition_point(|(at, _)| *at < began);
        // One that ends after is late in part because of what happened before.
        let until = seen.partition_point(|(at, late)| at.checked_sub(*late).is_some_and(|from| from < ended));
        seen.get(from..until).unwrap_or_default().iter().map(|(_, late)| *late).sum()
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_has_the_limits_that_are_counted_with() {
        let acquire = include_str!("../../../../src/protocol/acquire.rs");
        assert!(acquire.contains(&format!("const MAX_LOSSES: u8 = {MAX_LOSSES};")));
        let drive = include_str!("../../../../src/engine/drive.rs");
        let first_pause = FIRST_PAUSE.as_millis();
        assert!(
            drive.contains(&format!("const FIRST_PAUSE: Duration = Duration::from_millis({first_pause});"))
        );
        assert!(drive.contains(&format!("FIRST_PAUSE.saturating_mul(1 << nth.min({DOUBLINGS}))")));
    }
}
