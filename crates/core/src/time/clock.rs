//! The library's clocks. Nothing else reads a clock or sleeps.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::timestamp::{Timestamp, millis};
use crate::future::BoxFuture;

impl From<SystemTime> for Timestamp {
    /// A time before the epoch becomes the epoch.
    fn from(time: SystemTime) -> Self {
        Self::from_millis(time.duration_since(UNIX_EPOCH).map(millis).unwrap_or(0))
    }
}

/// The library's clock and timer.
///
/// The default is [`system_clock`]; tests bring their own.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time now. It should agree with other executors' clocks, up to the skew margin.
    fn now(&self) -> Timestamp;

    /// Completes after `duration`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait and has no other effect.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// The monotonic clock, which nobody sets. If [`now`](Self::now) is set back, this clock still ends every time
    /// limit. By default it's the operating system's, or tokio's in a runtime with paused time.
    ///
    /// Implement it if [`sleep`](Self::sleep) waits in another time, for example in a simulation's.
    fn monotonic(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// One moment, on the wall clock and on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    by_wall_clock: Timestamp,
    by_monotonic_clock: Instant,
}

impl Moment {
    /// Reads both clocks.
    pub fn now(clock: &dyn Clock) -> Self {
        Self { by_wall_clock: clock.now(), by_monotonic_clock: clock.monotonic() }
    }
}

/// The clock by which an operation keeps its time limits. It shows what the wall clock shows, or the wall clock's time
/// when the invocation or the operation began plus the time that the monotonic clock has counted since then, whichever
/// is later. So a limit is over as soon as either clock has reached it, even if the wall clock was set back.
#[derive(Clone, Debug)]
pub struct LaterClock {
    clock: Arc<dyn Clock>,
    /// `None` before an operation has begun: then only the wall clock counts.
    since: Option<Moment>,
}

impl LaterClock {
    /// Returns the clock before an operation has begun.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, since: None }
    }

    /// Returns the clock of an operation that begins now, or of an invocation that began at `since`. A clock that has
    /// begun stays as it is.
    pub fn begun(&self, since: Option<Moment>) -> Self {
        let since = self.since.or(since).unwrap_or_else(|| Moment::now(&*self.clock));
        Self { clock: Arc::clone(&self.clock), since: Some(since) }
    }

    /// Returns what the wall clock shows, and the later time.
    pub fn read(&self) -> (Timestamp, Timestamp) {
        let wall = self.clock.now();
        let Some(since) = self.since else { return (wall, wall) };
        let passed = self.clock.monotonic().saturating_duration_since(since.by_monotonic_clock);
        (wall, wall.max(since.by_wall_clock.saturating_add(passed)))
    }
}

impl Clock for LaterClock {
    fn now(&self) -> Timestamp {
        self.read().1
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }

    fn monotonic(&self) -> Instant {
        self.clock.monotonic()
    }
}

/// The operating system's clock, and tokio's timer.
pub const fn system_clock() -> impl Clock + Copy {
    SystemClock
}

#[derive(Clone, Copy, Debug)]
struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "only this file reads the clock")]
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }

    #[expect(clippy::disallowed_methods, reason = "only this file sleeps")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Waits for `future`, but not longer than `limit`; `None` if it hasn't finished by then.
///
/// # Cancel safety
///
/// The same as `future`'s. At the limit, `future` is dropped.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Measures how long something takes, for metrics, and to know how much of a store call's time limit is left. No rule
/// of the protocol uses it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "only this file reads the clock")]
    /// Begins to measure.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn read(self) -> Duration {
        self.0.elapsed()
    }
}

/// A connection that was idle for longer than this is checked before its next request: between two requests of a busy
/// function, less time passes.
pub const IDLE: Duration = Duration::from_secs(10);
/// A connection that was idle for longer than this, by either clock, is closed without being used. Network devices and
/// servers forget such connections, and each check or request would cost its timeout. A new connection costs
/// milliseconds.
pub const TOO_IDLE: Duration = Duration::from_secs(20);

/// When the server last answered on a connection, which shows how long the connection has been idle.
///
/// Lambda freezes the sandbox between two invocations, and the network may forget its connections. The wall clock and
/// the monotonic clock can each miss that pause. A paused virtual machine may stop its monotonic clock, so that only
/// the wall clock shows the pause. A resumed machine may correct its wall clock late, or step it back, so that only the
/// monotonic clock shows the pause. The library uses the longer of the two times: a time that's too long costs one
/// request to the server, and a time that's too short costs a timeout.
#[derive(Clone, Copy, Debug)]
pub struct LastAnswer {
    by_wall_clock: Timestamp,
    by_monotonic_clock: Stopwatch,
}

impl LastAnswer {
    /// The server answers now.
    pub fn now() -> Self {
        Self { by_wall_clock: SystemClock.now(), by_monotonic_clock: Stopwatch::start() }
    }

    /// How long the connection has been idle, by the clock that counted more.
    pub fn idle_for(self) -> Duration {
        self.by_wall_clock.until(SystemClock.now()).max(self.by_monotonic_clock.read())
    }

    /// By how much more time one clock has passed since then than the other.
    pub fn clocks_differ_by(self) -> Duration {
        self.by_wall_clock.until(SystemClock.now()).abs_diff(self.by_monotonic_clock.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_the_longer_measurement() {
        let (hour, now) = (Duration::from_secs(3600), LastAnswer::now());
        assert!(now.idle_for() < hour);
        let monotonic_stopped = LastAnswer { by_wall_clock: now.by_wall_clock.saturating_sub(hour), ..now };
        assert!(monotonic_stopped.idle_for() >= hour);
        let Some(earlier) = now.by_monotonic_clock.0.checked_sub(Duration::from_secs(60)) else { return };
        let stepped_back = LastAnswer {
            by_wall_clock: now.by_wall_clock.saturating_add(hour),
            by_monotonic_clock: Stopwatch(earlier),
        };
        assert!(stepped_back.idle_for() >= Duration::from_secs(60));
    }
}
