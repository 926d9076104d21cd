//! The rehearsal's clocks and pauses. Deadlines and leases use the wall clock.
#![expect(
    clippy::disallowed_methods,
    reason = "the one place in the rehearsal that reads a clock and sleeps"
)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch, the unit of Lambda's deadlines and of a record's lease.
pub fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Converts a duration to milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a point in time to measure from.
pub fn start() -> Instant {
    Instant::now()
}

/// Waits for `time`.
pub async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until the wall clock shows this many milliseconds since the epoch.
pub async fn pause_until(at_ms: u64) {
    pause(Duration::from_millis(at_ms.saturating_sub(now_ms()))).await;
}
