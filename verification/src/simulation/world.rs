//! The state that all parts of a schedule share: virtual time, random numbers, outages and counts.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use super::{Figures, config::Config, trouble::Trouble};
use crate::random::Random;

/// The time at which a simulation begins, in ms since 1970.
const BEGINNING: u64 = 1_795_000_000_000;
/// The state that all parts of the simulation share.
#[derive(Debug)]
pub struct World {
    /// The schedule.
    pub config: Config,
    state: Mutex<State>,
}

struct State {
    now: u64,
    random: Random,
    /// The timers, ordered by the time when each wakes its future.
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    wakers: HashMap<u64, Waker>,
    next_timer: u64,
    are_faults_on: bool,
    /// The executor that's being polled.
    polled: u32,
    /// The beginning and the end of each executor's outage.
    outages: BTreeMap<u32, (u64, u64)>,
    figures: Figures,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

impl World {
    /// Begins a schedule.
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            state: Mutex::new(State {
                now: BEGINNING,
                random: Random::new(config.seed),
                timers: BinaryHeap::new(),
                wakers: HashMap::new(),
                next_timer: 0,
                are_faults_on: true,
                polled: 0,
                outages: BTreeMap::new(),
                figures: Figures { schedules: 1, ..Figures::default() },
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True time, in ms.
    pub fn now(&self) -> u64 {
        self.state().now
    }

    /// Draws from the seed's random numbers.
    pub fn random<T>(&self, ask: impl FnOnce(&mut Random) -> T) -> T {
        ask(&mut self.state().random)
    }

    /// Whether this fault or circumstance happens now, with a probability of `per_mille` in 1,000.
    pub fn strikes(&self, trouble: impl Into<Trouble>, per_mille: u64) -> bool {
        let Some(index) = trouble.into().index() else { return false };
        let mut state = self.state();
        let has = self.config.faults & (1 << index) != 0;
        let strikes = has && state.are_faults_on && state.random.chance(per_mille);
        state.figures.struck[index] += u64::from(strikes);
        strikes
    }

    /// Whether faults still happen.
    pub fn are_faults_on(&self) -> bool {
        self.state().are_faults_on
    }

    /// The executor that's being polled.
    pub fn polled(&self) -> u32 {
        self.state().polled
    }

    /// Starts an outage of the executor's store, from `from` until `until`. This replaces an earlier outage.
    pub fn cut_off(&self, executor: u32, from: u64, until: u64) {
        self.state().outages.insert(executor, (from, until));
    }

    /// Whether the executor that's being polled can't reach its store now.
    pub fn is_cut_off(&self) -> bool {
        let state = self.state();
        let outage = state.outages.get(&state.polled);
        state.are_faults_on && outage.is_some_and(|(from, until)| (*from..*until).contains(&state.now))
    }

    /// Updates the counts.
    pub fn count(&self, count: impl FnOnce(&mut Figures)) {
        count(&mut self.state().figures);
    }

    /// Switches all faults off.
    pub(super) fn end_faults(&self) {
        self.state().are_faults_on = false;
    }

    /// Notes which executor is being polled.
    pub(super) fn polls(&self, executor: u32) {
        self.state().polled = executor;
    }

    /// The counts.
    pub(super) fn figures(&self) -> Figures {
        self.state().figures
    }

    /// Moves the clock to the next event; returns false if there is none.
    pub(super) fn advance(&self, thaw: Option<u64>) -> bool {
        let mut state = self.state();
        // Skip timers whose wait was dropped.
        while state.timers.peek().is_some_and(|Reverse((_, timer))| !state.wakers.contains_key(timer)) {
            state.timers.pop();
        }
        let timer = state.timers.peek().map(|Reverse((at, _))| *at);
        let Some(next) = timer.into_iter().chain(thaw).min() else { return false };
        state.now = state.now.max(next);
        let mut due = Vec::new();
        while let Some(Reverse((at, timer))) = state.timers.peek().copied() {
            if at > state.now {
                break;
            }
            state.timers.pop();
            due.extend(state.wakers.remove(&timer));
        }
        drop(state);
        due.into_iter().for_each(Waker::wake);
        true
    }

    /// Returns a future that completes after `ms` milliseconds of the world's virtual time, whatever an executor's clock
    /// shows.
    pub fn sleep(self: &Arc<Self>, ms: u64) -> Sleep {
        Sleep { until: self.now().saturating_add(ms), world: Arc::clone(self), timer: None }
    }
}

/// A wait in virtual time.
#[derive(Debug)]
pub struct Sleep {
    world: Arc<World>,
    until: u64,
    timer: Option<u64>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.world.state().wakers.remove(&timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = Arc::clone(&self.world);
        let mut state = world.state();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        if self.timer.is_none() {
            let timer = state.next_timer;
            state.next_timer += 1;
            state.timers.push(Reverse((self.until, timer)));
            state.wakers.insert(timer, cx.waker().clone());
            drop(state);
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}
