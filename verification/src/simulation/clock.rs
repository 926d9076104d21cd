//! An executor's clock: true time plus the clock's errors.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use lambda_idempotency::{
    store::BoxFuture,
    time::{Clock, Timestamp},
};

use super::{
    config::{SKEW_MARGIN, Undone},
    trouble::Circumstance,
    world::World,
};

/// The longest pause before a retry, in ms.
const LONGEST_PAUSE: u64 = 1600;
/// How far a clock may be off to either side, in ms, in schedules with `SkewBeyond`. In such a schedule, only fencing
/// is promised.
const BEYOND: i64 = 60_000;

/// A clock that may be off, jump and stop. Clones share its state.
#[derive(Clone, Debug)]
pub struct FaultyClock {
    world: Arc<World>,
    hands: Arc<Mutex<Hands>>,
    /// How far the clock may be off to either side, in ms. Two clocks may be twice as far apart.
    furthest: i64,
    /// Where the monotonic clock begins.
    origin: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hands {
    /// How far the clock is ahead of true time, in ms. Negative if it's behind.
    offset: i64,
    /// While the clock is stopped: the true time when it continues, and the time that it shows.
    stands: Option<(u64, u64)>,
    /// How far the clock was set back in this delivery, in ms.
    set_back: u64,
}

impl FaultyClock {
    /// A clock with this schedule's faults.
    pub fn new(world: &Arc<World>) -> Self {
        let config = &world.config;
        let furthest = if config.has(Circumstance::SkewBeyond) { BEYOND } else { SKEW_MARGIN / 2 };
        let clock = Self::of(world, furthest);
        if config.has(Circumstance::SkewBeyond) || config.has(Circumstance::Skew) {
            clock.hands().offset = clock.any_offset();
        }
        clock
    }

    /// A correct clock.
    pub fn right(world: &Arc<World>) -> Self {
        Self::of(world, 0)
    }

    #[expect(clippy::disallowed_methods, reason = "an `Instant` has no value to begin at but now")]
    fn of(world: &Arc<World>, furthest: i64) -> Self {
        Self { world: Arc::clone(world), hands: Arc::default(), furthest, origin: Instant::now() }
    }

    /// Sometimes sets the clock back, in the middle of a delivery.
    pub fn may_be_set_back(&self) {
        if !self.world.config.shares && self.world.strikes(Circumstance::SetBack, 30) {
            let steps = [30_000, 3_600_000];
            self.hands().set_back = steps[self.world.random(|random| random.below(2)) as usize];
        }
    }

    /// Corrects the clock, at the end of a delivery.
    pub fn correct(&self) {
        self.hands().set_back = 0;
    }

    /// A random offset within the limits on both sides.
    fn any_offset(&self) -> i64 {
        self.world.random(|random| random.below(2 * self.furthest as u64 + 1)) as i64 - self.furthest
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sometimes lets the clock jump or stop, just before a reading.
    fn tamper(&self, hands: &mut Hands, now: u64) {
        if self.furthest == 0 {
            return;
        }
        if self.world.strikes(Circumstance::Jump, 20) {
            *hands = Hands { offset: self.any_offset(), stands: None, ..*hands };
        }
        if hands.stands.is_none() && self.world.strikes(Circumstance::Stand, 20) {
            // The clock falls behind while it's stopped, but by no more than its limit.
            let longest = (hands.offset + self.furthest) as u64;
            let ms = self.world.random(|random| random.below(longest + 1));
            hands.stands = Some((now + ms, now.saturating_add_signed(hands.offset)));
        }
    }
}

impl Clock for FaultyClock {
    fn now(&self) -> Timestamp {
        let now = self.world.now();
        let mut hands = self.hands();
        if hands.stands.is_some_and(|(until, _)| until < now) {
            hands.stands = None;
        }
        self.tamper(&mut hands, now);
        let shown = hands.stands.map_or(now.saturating_add_signed(hands.offset), |(_, shown)| shown);
        Timestamp::from_millis(shown.saturating_sub(hands.set_back))
    }

    /// Counts true time.
    fn monotonic(&self) -> Instant {
        match self.world.config.undone {
            Undone::SecondClocks => self.origin,
            _ => self.origin + Duration::from_millis(self.world.now()),
        }
    }

    /// Waits in true time: the clock's errors don't affect a wait.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if self.world.config.undone == Undone::CutOffs {
            return Box::pin(std::future::pending());
        }
        let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        if self.world.config.undone == Undone::ShortPauses {
            ms = ms.max(LONGEST_PAUSE);
        }
        Box::pin(self.world.sleep(ms))
    }
}
