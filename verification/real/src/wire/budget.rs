//! Time limits for the library's calls, and a measure of the delay that the machine itself causes.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lambda_idempotency_rehearsal::clock;
use tokio::task::JoinHandle;

use super::{case::Case, lock};

/// How often one claim may lose against another delivery, as in `protocol/acquire.rs`.
pub(super) const MAX_LOSSES: u32 = 4;
/// How often a fenced delivery can claim again to record its outcome in these scenarios: once because of the rival,
/// and once more because a lost answer can look like a second rival.
const RECORDINGS: u32 = 2;
/// How long the library tries to record an outcome in these runs: much longer than all faults of a run take together.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_secs(10);
/// The first backoff and how often it doubles, as in `src/run/driver.rs`.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const DOUBLINGS: u32 = 6;
/// Time for everything but calls: encoding, scheduling, handlers. The judge adds the measured lateness of timers to it.
const SLACK: Duration = Duration::from_millis(250);
/// The machine is too busy if timers fire later than this: requests then spend a good part of their timeouts waiting
/// for a processor.
const BUSY: Duration = Duration::from_millis(4);

/// The timeouts of the store under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeOuts {
    pub(super) attempt: Duration,
    pub(super) operation: Duration,
}

impl TimeOuts {
    /// Short, so that a hang costs little time.
    pub(super) const SHORT: Self =
        Self { attempt: Duration::from_millis(100), operation: Duration::from_millis(300) };
    /// Long enough for half a megabyte in a debug build, and for stores that reconnect after each fault.
    const LONG: Self = Self { attempt: Duration::from_millis(400), operation: Duration::from_millis(1200) };
    /// Effectively no timeouts, for the sabotage `NeverTimesOut`.
    pub(super) const NONE: Self =
        Self { attempt: Duration::from_secs(3600), operation: Duration::from_secs(3600) };

    pub(super) fn of(case: &Case) -> Self {
        if case.is_slow() { Self::LONG } else { Self::SHORT }
    }
}

/// Returns how many store calls one delivery may make if `failures` of them fail.
pub(super) fn max_calls(failures: u32) -> u32 {
    // Each write may be in doubt and need a read. A claim that stays in doubt is released.
    let claiming = 2 * MAX_LOSSES + 2;
    // A write, and a read if it's in doubt. If the store can't store the response, one more write records the outcome
    // without it.
    let settling = 2 + 1;
    let parts = 2;
    // Each failure costs a read and a retry.
    claiming + settling + parts + RECORDINGS * (claiming + settling) + 2 * failures
}

/// Returns how long one store call may take: the operation's timeout, or twice that if the call was a rejected claim,
/// after which the store had to read the existing item.
pub(super) fn of_store_call(time_outs: TimeOuts, requests_twice: bool) -> Duration {
    time_outs.operation * if requests_twice { 2 } else { 1 } + SLACK
}

/// Returns how long a delivery may take. `calls` are the limits of its store calls, and `failures` is the number of
/// calls that failed.
pub(super) fn of_delivery(calls: impl IntoIterator<Item = Duration>, failures: u32) -> Duration {
    calls.into_iter().sum::<Duration>() + pauses(failures) + SLACK
}

/// Returns the longest total backoff. The library pauses after conflicts while claiming, and after each failure while
/// settling.
fn pauses(failures: u32) -> Duration {
    (0..MAX_LOSSES.max(failures)).map(|nth| FIRST_PAUSE * (1 << nth.min(DOUBLINGS))).sum()
}

/// Returns the time limit for any delivery, whatever calls it makes.
pub(super) fn of_any_delivery(time_outs: TimeOuts) -> Duration {
    // Each T1 may need a second request, which reads the existing item after a rejection.
    let claims = max_calls(0) + MAX_LOSSES * (1 + RECORDINGS);
    time_outs.operation * claims + SETTLE_WITHIN + pauses(MAX_LOSSES) + SLACK
}

/// Measures how late timers fire: the delay that the machine itself causes.
#[derive(Debug)]
pub struct Lateness {
    seen: Arc<Mutex<Vec<(Instant, Duration)>>>,
    /// The timer's recent lateness in microseconds: a moving mean, in which the latest tick weighs an eighth.
    recent: Arc<AtomicU64>,
    watching: JoinHandle<()>,
}

impl Lateness {
    /// Starts to watch a timer.
    pub fn watch() -> Self {
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
                // Timers count whole milliseconds and fire in the next one, so smaller delays are normal.
                if late > Duration::from_millis(2) {
                    lock(&for_task).push((clock::start(), late));
                }
            }
        });
        Self { seen, recent, watching }
    }

    /// Whether the machine is too busy right now.
    pub(crate) fn is_busy(&self) -> bool {
        self.recent.load(Ordering::Relaxed) > u64::try_from(BUSY.as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the longest lateness of one timer so far.
    pub fn longest(&self) -> Duration {
        lock(&self.seen).iter().map(|(_, late)| *late).max().unwrap_or_default()
    }

    /// Returns the total lateness of timers in a period that lasted `took` and ended at `ended`.
    pub(crate) fn during(&self, ended: Instant, took: Duration) -> Duration {
        let Some(began) = ended.checked_sub(took) else { return Duration::ZERO };
        let seen = lock(&self.seen);
        let from = seen.partition_point(|(at, _)| *at < began);
        // Also count a timer that was due before `ended` and fired later.
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
    fn budget_matches_the_librarys_limits() {
        let acquire = include_str!("../../../../crates/core/src/protocol/acquire.rs");
        assert!(acquire.contains(&format!("const MAX_LOSSES: u8 = {MAX_LOSSES};")));
        let drive = include_str!("../../../../src/run/driver.rs");
        let first_pause = FIRST_PAUSE.as_millis();
        assert!(
            drive.contains(&format!("const FIRST_PAUSE: Duration = Duration::from_millis({first_pause});"))
        );
        assert!(drive.contains(&format!("FIRST_PAUSE.saturating_mul(1 << nth.min({DOUBLINGS}))")));
    }
}
