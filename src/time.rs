//! [`Timestamp`], and the [`Clock`] that is the crate's only source of time.
//!
//! Nothing else in the crate reads a clock or sleeps, so tests can check every rule about time with their own
//! clock.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::future::BoxFuture;

/// A moment, in whole milliseconds since the Unix epoch.
///
/// Arithmetic saturates: a moment that's too far away becomes the farthest one, and doesn't wrap around.
///
/// ```
/// use std::time::Duration;
/// use lambda_idempotency::time::Timestamp;
///
/// let noon = Timestamp::from_millis(1_795_000_000_500);
/// assert_eq!(noon.saturating_add(Duration::from_secs(2)).as_millis(), 1_795_000_002_500);
/// assert_eq!(noon.as_secs_rounded_up(), 1_795_000_001);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The moment `secs` seconds after the Unix epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Seconds since the Unix epoch, rounded up: the unit of DynamoDB's TTL attribute. Rounding up means that
    /// the sweeper never removes a record before the moment itself.
    pub const fn as_secs_rounded_up(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Rounds up to a whole second. The library rounds a record's expiry before storing it, so that every
    /// store returns exactly what it was given.
    #[must_use]
    pub const fn rounded_up_to_second(self) -> Self {
        Self::from_secs(self.as_secs_rounded_up())
    }

    /// The moment `duration` later.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// The moment `duration` earlier, or the epoch.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(millis(duration)))
    }

    /// How long until `later`; zero if it has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

impl From<SystemTime> for Timestamp {
    /// A moment before the epoch becomes the epoch.
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).map(millis).unwrap_or(0))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The library's source of time, and its way to wait.
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
}

/// The operating system's clock, and tokio's timer.
pub const fn system_clock() -> impl Clock + Copy {
    SystemClock
}

#[derive(Clone, Copy, Debug)]
struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    fn now(&self) -> Timestamp {
        SystemTime::now().into()
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Waits for `future`, but not longer than `limit`; `None` if it hasn't finished by then.
///
/// # Cancel safety
///
/// The same as `future`'s. At the limit, `future` is dropped.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Measures how long something takes, for metrics and for the rest of a store call's time limit. No rule of
/// the protocol uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn read(self) -> Duration {
        self.0.elapsed()
    }
}

/// When a connection last answered, and so how long it has been idle.
///
/// Lambda freezes the sandbox between two invocations, and the network may forget its connections. Neither
/// clock alone measures that pause. A paused virtual machine may stop its monotonic clock, so that only the
/// wall clock shows the pause. A resumed machine may correct its wall clock late, or step it back, so that
/// only the monotonic clock shows it. The larger of the two is the idle time: too large costs one request to
/// the server, too small costs a timeout.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAnswer {
    by_wall_clock: Timestamp,
    by_monotonic_clock: Stopwatch,
}

#[cfg(any(feature = "postgres", feature = "redis"))]
impl LastAnswer {
    pub(crate) fn now() -> Self {
        Self { by_wall_clock: SystemClock.now(), by_monotonic_clock: Stopwatch::start() }
    }

    pub(crate) fn idle_for(self) -> Duration {
        self.by_wall_clock.until(SystemClock.now()).max(self.by_monotonic_clock.read())
    }
}

/// A runtime whose time is virtual: when nothing else is left to do, the time jumps to the next timer.
#[cfg(feature = "testing")]
#[derive(Debug)]
pub(crate) struct VirtualTime {
    /// `Some` until the runtime is dropped.
    runtime: Option<tokio::runtime::Runtime>,
    start: tokio::time::Instant,
}

#[cfg(feature = "testing")]
impl VirtualTime {
    /// Starts a runtime whose time begins at zero.
    ///
    /// # Errors
    ///
    /// The operating system has no resources for a runtime.
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let start = {
            let _inside = runtime.enter();
            tokio::time::Instant::now()
        };
        Ok(Self { runtime: Some(runtime), start })
    }

    /// Runs `future` to its end. Call this only outside any other runtime.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        self.runtime.as_ref().map(|runtime| runtime.block_on(future))
    }

    /// The moment at which this runtime's time begins.
    pub(crate) fn beginning(&self) -> VirtualBeginning {
        VirtualBeginning(self.start)
    }
}

#[cfg(feature = "testing")]
impl Drop for VirtualTime {
    fn drop(&mut self) {
        // Inside an asynchronous test, dropping a runtime the ordinary way panics.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The moment at which a [`VirtualTime`] begins.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtualBeginning(tokio::time::Instant);

#[cfg(feature = "testing")]
impl VirtualBeginning {
    /// The virtual time that has passed since this moment. Call this only inside that [`VirtualTime`].
    pub(crate) fn passed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits in the time of the runtime that the caller runs in.
#[cfg(feature = "testing")]
#[expect(clippy::disallowed_methods, reason = "virtual time sleeps too")]
pub(crate) async fn virtual_sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(feature = "postgres", feature = "redis"))]
    #[test]
    fn idle_time_follows_the_larger_clock() {
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

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Timestamp::from_millis(1000).as_secs_rounded_up(), 1);
        assert_eq!(Timestamp::from_millis(1001).as_secs_rounded_up(), 2);
        assert_eq!(Timestamp::from_millis(1999).rounded_up_to_second(), Timestamp::from_secs(2));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let end = Timestamp::from_millis(u64::MAX);
        assert_eq!(end.saturating_add(Duration::from_secs(1)), end);
        assert_eq!(end.saturating_add(Duration::MAX), end);
        assert_eq!(
            Timestamp::from_millis(5).saturating_sub(Duration::from_secs(1)),
            Timestamp::from_millis(0)
        );
        assert_eq!(Timestamp::from_secs(u64::MAX), end);
        assert_eq!(Timestamp::from_millis(7).until(Timestamp::from_millis(3)), Duration::ZERO);
    }
}
