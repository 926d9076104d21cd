//! Plays a schedule: polls futures in an order that the seed decides, in virtual time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::{
    Figures,
    audit::Audit,
    config::Config,
    deliveries::{self, Executor},
    trouble::{Fault, Trouble},
};
use crate::random::Random;

/// The time at which a simulation begins, in ms since 1970.
const BEGINNING: u64 = 1_795_000_000_000;
/// The most polls that a schedule may take. A schedule that needs more is reported as a livelock.
const MAX_POLLS: u64 = 2_000_000;

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
    wakers: std::collections::HashMap<u64, Waker>,
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
    fn new(config: Config) -> Self {
        Self {
            config,
            state: Mutex::new(State {
                now: BEGINNING,
                random: Random::new(config.seed),
                timers: BinaryHeap::new(),
                wakers: std::collections::HashMap::new(),
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

/// A future being played, and whether it can continue.
struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    executor: Executor,
    signal: Arc<Signal>,
    frozen_until: u64,
}

#[derive(Debug, Default)]
struct Signal {
    is_ready: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.is_ready.store(true, Ordering::Relaxed);
    }
}

/// Plays the schedule to its end, and then, without faults, until every key has settled.
pub fn play(config: Config, audit: &Arc<Audit>) -> Figures {
    let world = Arc::new(World::new(config));
    let executors = deliveries::executors(&world, audit);
    let mut tasks: Vec<Task> = executors.into_iter().map(Task::new).collect();
    run(&world, audit, &mut tasks);
    world.state().are_faults_on = false;
    if !audit.has_violation() {
        let mut last = vec![Task::new(deliveries::last_executor(&world, audit))];
        run(&world, audit, &mut last);
    }
    world.state().figures
}

impl Task {
    fn new(executor: Executor) -> Self {
        let signal = Arc::new(Signal::default());
        signal.is_ready.store(true, Ordering::Relaxed);
        Self { future: Some(executor.start()), executor, signal, frozen_until: 0 }
    }

    /// Ends the process. Another process continues with the remaining deliveries. If the process has a second executor,
    /// only this executor's delivery ends, as if its future were dropped.
    fn crash(&mut self, world: &World, audit: &Audit, is_deadline: bool) {
        audit.crashed(self.executor.id(), world.now(), is_deadline);
        world.count(|figures| figures.crashes += 1);
        self.executor.forget_process();
        self.future = Some(self.executor.start());
        self.signal.is_ready.store(true, Ordering::Relaxed);
    }
}

fn run(world: &Arc<World>, audit: &Arc<Audit>, tasks: &mut [Task]) {
    loop {
        let now = world.now();
        let can_go_on: Vec<usize> = (0..tasks.len())
            .filter(|&at| {
                let task = &tasks[at];
                task.future.is_some()
                    && task.signal.is_ready.load(Ordering::Relaxed)
                    && task.frozen_until <= now
            })
            .collect();
        if can_go_on.is_empty() {
            let thaw = tasks.iter().filter(|task| task.future.is_some()).map(|task| task.frozen_until);
            if !advance(world, thaw.filter(|until| *until > now).min()) {
                return;
            }
            continue;
        }
        let at = can_go_on[world.random(|random| random.below(can_go_on.len() as u64)) as usize];
        poll(world, audit, &mut tasks[at]);
        if audit.has_violation() {
            return;
        }
        if world.state().figures.polls > MAX_POLLS {
            audit.violate("livelock", format!("the schedule didn't end after {MAX_POLLS} polls"));
            return;
        }
    }
}

fn poll(world: &Arc<World>, audit: &Arc<Audit>, task: &mut Task) {
    if world.strikes(Fault::Die, 8) {
        return task.crash(world, audit, false);
    }
    if task.executor.is_killed_now(world) {
        return task.crash(world, audit, true);
    }
    if world.strikes(Fault::Freeze, 4) {
        let ms = world.random(|random| random.between(1, 150_000));
        task.frozen_until = world.now() + ms;
        audit.froze(world.now(), task.executor.id(), ms);
        task.executor.froze(task.frozen_until);
        return;
    }
    task.signal.is_ready.store(false, Ordering::Relaxed);
    world.count(|figures| figures.polls += 1);
    world.state().polled = task.executor.id();
    let waker = Waker::from(Arc::clone(&task.signal));
    let Some(future) = &mut task.future else { return };
    if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        task.future = None;
    }
}

/// Moves the clock to the next event; returns false if there is none.
fn advance(world: &World, thaw: Option<u64>) -> bool {
    let mut state = world.state();
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
