//! A clock that a test sets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lambda_idempotency::{
    store::BoxFuture,
    time::{Clock, Timestamp, system_clock},
};

/// The time at which clocks begin that don't show the system's time.
const BEGAN: Timestamp = Timestamp::from_millis(1_795_000_000_000);

/// A clock that a test moves forward. Clones show the same time.
#[derive(Clone, Debug)]
pub struct SetClock {
    runs_by: By,
    ahead_ms: Arc<AtomicU64>,
}

/// The clock's mover besides the test.
#[derive(Clone, Copy, Debug)]
enum By {
    System,
    Tokio(tokio::time::Instant),
    /// Nothing. The instant is where the monotonic clock began.
    Nobody(Instant),
}

impl SetClock {
    fn new(runs_by: By) -> Self {
        Self { runs_by, ahead_ms: Arc::default() }
    }

    /// Shows the system's time until the test moves it.
    pub fn system() -> Self {
        Self::new(By::System)
    }

    /// Shows the time of tokio's clock, which a test can pause, from a fixed time on.
    pub fn tokio() -> Self {
        Self::new(By::Tokio(tokio::time::Instant::now()))
    }

    /// Stands at a fixed time, and only the test moves it. Nobody who sleeps by it wakes up.
    pub fn standing() -> Self {
        Self::new(By::Nobody(system_clock().monotonic()))
    }

    /// Moves the clock forward.
    pub fn forward(&self, time: Duration) {
        self.ahead_ms.fetch_add(millis(time), Ordering::SeqCst);
    }

    /// Sets how many seconds the clock is ahead of the time that it would show without the test.
    pub fn set_ahead(&self, seconds: u64) {
        self.ahead_ms.store(seconds * 1000, Ordering::SeqCst);
    }

    /// Returns this clock, moved forward.
    #[must_use]
    pub fn ahead(self, time: Duration) -> Self {
        self.forward(time);
        self
    }

    /// Returns the time `millis` from now, in milliseconds since the epoch.
    pub fn after(&self, millis: u64) -> u64 {
        self.now().as_millis() + millis
    }

    fn moved(&self) -> Duration {
        Duration::from_millis(self.ahead_ms.load(Ordering::SeqCst))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        let unmoved = match self.runs_by {
            By::System => system_clock().now(),
            By::Tokio(began) => BEGAN.saturating_add(began.elapsed()),
            By::Nobody(_) => BEGAN,
        };
        unmoved.saturating_add(self.moved())
    }

    fn monotonic(&self) -> Instant {
        match self.runs_by {
            // The operating system's clock would add the time that the test takes.
            By::Nobody(began) => began + self.moved(),
            By::System | By::Tokio(_) => system_clock().monotonic(),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        match self.runs_by {
            By::Nobody(_) => Box::pin(std::future::pending()),
            By::System | By::Tokio(_) => system_clock().sleep(duration),
        }
    }
}
