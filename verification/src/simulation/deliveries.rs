//! The executors: each receives events, and runs handlers whose effects are counted.

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use lambda_idempotency::{
    ErrorKind, Idempotency, Invocation, Key, RunError, Scope, Staging, StoredKey, current,
    settings::{Execution, Recording, Settings},
    staging,
    store::Owner,
    time::Clock as _,
};

use super::{
    audit::{Audit, Ended, Right},
    clock::FaultyClock,
    config::{Config, SKEW_MARGIN, Undone, Way},
    network::{self, SimulatedStore, SoldOut},
    table::{Effects, Table},
    trouble::{self, Circumstance, Fault, Outage, Refusal},
    undone::Undoing,
    world::World,
};

/// The lease of an invocation without a deadline, in ms: the library's default. It's the longest lease outside
/// campaigns, in which deadlines can be later.
const LEASE: u64 = 60_000;
/// The length of a lease that's extended while its handler runs.
const SHORT_LEASE: Duration = Duration::from_secs(9);
/// How long a delivery waits for another delivery's outcome, if it waits.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How many bytes of settled records a process caches, if it caches.
const CACHE: usize = 64 * 1024;

/// The store's key for the operation with the number `key`.
pub(super) fn stored_key(key: u64) -> StoredKey {
    let key = Key::new(format!("key {key}")).unwrap_or_else(|error| panic!("invalid key: {error}"));
    let scope = Scope::new("simulated", "run:step").unwrap_or_else(|error| panic!("invalid scope: {error}"));
    StoredKey::new(&scope, &key)
}

/// One executor, with its remaining deliveries. It has its own process, or shares one with another executor. Clones
/// share its state.
#[derive(Clone, Debug)]
pub struct Executor {
    id: u32,
    world: Arc<World>,
    audit: Arc<Audit>,
    idempotency: Idempotency,
    clock: FaultyClock,
    left: Arc<AtomicU32>,
    /// The time when the platform ends the process, in ms of true time; 0 for never.
    deadline: Arc<AtomicU64>,
    /// Whether the process may outlive its deadline for a while, after a freeze.
    outlives: Arc<AtomicBool>,
    /// Whether this is the last executor, which checks that every key settles.
    is_last: bool,
}

/// Creates the schedule's executors.
pub fn executors(world: &Arc<World>, audit: &Arc<Audit>) -> Vec<Executor> {
    let table = Arc::new(Table::default());
    audit.watch(&table);
    let mut all: Vec<Executor> = Vec::new();
    for id in 0..world.config.executors {
        let beside = all.last().filter(|_| world.config.shares && id % 2 == 1);
        all.push(match beside {
            // The same process, with a second concurrent delivery.
            Some(beside) => Executor { id, ..beside.clone() }.fresh(world.config.deliveries),
            None => executor(world, audit, &table, id, false),
        });
    }
    all
}

/// Creates one more executor, without faults. For each key that a handler ran for, it processes deliveries until the
/// key has settled.
pub fn last_executor(world: &Arc<World>, audit: &Arc<Audit>) -> Executor {
    let table = audit.table();
    network::all_arrive(&table, audit, world.now());
    executor(world, audit, &table, world.config.executors, true)
}

fn executor(world: &Arc<World>, audit: &Arc<Audit>, table: &Arc<Table>, id: u32, is_last: bool) -> Executor {
    let config = &world.config;
    let clock = if is_last { FaultyClock::right(world) } else { FaultyClock::new(world) };
    let store =
        SimulatedStore { world: Arc::clone(world), audit: Arc::clone(audit), table: Arc::clone(table) };
    let (draws, drawn) = (Arc::clone(world), Arc::clone(audit));
    let builder = Idempotency::builder(Undoing { store, undone: config.undone })
        .function("simulated")
        .settings(|s| *s = settings(config, id))
        .clock(clock.clone())
        .owner_source(move || {
            let (high, low) = draws.random(|random| (random.bits(), random.bits()));
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&high.to_be_bytes());
            bytes[8..].copy_from_slice(&low.to_be_bytes());
            let owner = Owner::from_bytes(bytes);
            drawn.drew(draws.polled(), owner);
            Ok(owner)
        });
    let builder =
        if config.extends { builder.settings(|s| s.lease_extension = Some(SHORT_LEASE)) } else { builder };
    let builder = match config.undone {
        Undone::Retries => builder.settings(|s| s.settle_within = Duration::from_millis(1)),
        Undone::AnswerReserve => builder.settings(|s| s.answer_reserve = Duration::from_millis(1)),
        _ => builder,
    };
    let built = builder.build();
    let idempotency = built.unwrap_or_else(|error| panic!("the simulation's settings are wrong: {error}"));
    Executor {
        id,
        world: Arc::clone(world),
        audit: Arc::clone(audit),
        idempotency,
        clock,
        left: Arc::new(AtomicU32::new(config.deliveries)),
        deadline: Arc::default(),
        outlives: Arc::default(),
        is_last,
    }
}

/// The settings of this executor.
fn settings(config: &Config, executor: u32) -> Settings {
    let choices = &config.choices;
    let mut settings = Settings::default();
    settings.retention = Duration::from_secs(choices.retention);
    if config.is_at_most_once(executor) {
        settings.execution = Execution::AtMostOnce;
    }
    if choices.records {
        settings.on_handler_error = Recording::Record;
    }
    if choices.waits {
        settings.wait_in_progress = PATIENCE;
    }
    if config.may_run_unprotected() {
        settings.fail_open = true;
    }
    if choices.caches {
        settings.local_cache = CACHE;
    }
    settings
}

impl Executor {
    /// Drops what the process had in memory: its cache. A shared process lives on, and keeps it.
    pub fn forget_process(&self) {
        if !self.world.config.shares {
            self.idempotency.clear_local_cache();
        }
    }

    /// Returns another executor in the same process, with `deliveries` left.
    fn fresh(self, deliveries: u32) -> Self {
        let left = Arc::new(AtomicU32::new(deliveries));
        Self { left, deadline: Arc::default(), outlives: Arc::default(), ..self }
    }

    pub(super) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(super) fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    pub(super) fn engine(&self) -> &Idempotency {
        &self.idempotency
    }

    /// The executor's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Starts the process, or starts it again after it died.
    pub fn start(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.deadline.store(0, Ordering::Relaxed);
        self.clock.correct();
        let executor = self.clone();
        if self.is_last {
            return Box::pin(async move { executor.settle_all().await });
        }
        Box::pin(async move {
            while executor.left.load(Ordering::Relaxed) > 0 {
                executor.left.fetch_sub(1, Ordering::Relaxed);
                let longest = if executor.world.random(|random| random.chance(150)) { 400_000 } else { 3000 };
                let ms = executor.world.random(|random| random.below(longest));
                executor.world.sleep(ms).await;
                executor.operate().await;
                executor.delivery().await;
            }
        })
    }

    /// Whether the platform ends the process now.
    pub fn is_killed_now(&self, world: &World) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        let goes_on = world.config.choices.lets_run || self.outlives.load(Ordering::Relaxed);
        deadline != 0 && world.now() >= deadline && !goes_on
    }

    /// Notes that the process is frozen until `thaws`. A process that thaws after its deadline may still
    /// continue for a while.
    pub fn froze(&self, thaws: u64) {
        let goes_on = self.world.random(|random| random.chance(500));
        self.outlives.store(goes_on && thaws >= self.deadline.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    async fn delivery(&self) {
        let world = &self.world;
        let key = world.random(|random| random.below(u64::from(world.config.keys)));
        let payload = u64::from(world.strikes(Circumstance::OtherPayload, 150));
        let now = self.clock.now();
        let invocation = if world.random(|random| random.chance(500)) {
            let is_long = world.config.outage.is_some() && world.random(|random| random.percent(30));
            let longest = if is_long { 300_000 } else { 30_000 };
            let ms = world.random(|random| random.between(3000, longest));
            self.deadline.store(world.now() + ms, Ordering::Relaxed);
            Invocation::entered(now, now.saturating_add(Duration::from_millis(ms)), "request")
        } else {
            self.deadline.store(0, Ordering::Relaxed);
            Invocation::unknown()
        };
        self.outlives.store(false, Ordering::Relaxed);
        let deadline = self.deadline.load(Ordering::Relaxed);
        self.audit.delivery_began(self.id, (deadline != 0).then_some(deadline));
        self.outage_at_the_claim(deadline);
        let patience =
            world.strikes(Circumstance::Drop, 60).then(|| world.random(|random| random.below(5000)));
        match self.deliver(key, payload, invocation, patience).await {
            Some(result) => self.audit.answered(world.now(), self.id, key, payload, &result),
            None => self.audit.ended(self.id, world.now(), Ended::Dropped),
        }
        self.clock.correct();
        self.deadline.store(0, Ordering::Relaxed);
    }

    /// Delivers one event; `None` if the caller gave up.
    async fn deliver(
        &self,
        key: u64,
        payload: u64,
        invocation: Invocation,
        patience: Option<u64>,
    ) -> Option<Result<String, RunError<Refusal>>> {
        let name = Key::new(format!("key {key}")).unwrap_or_else(|error| panic!("invalid key: {error}"));
        let idempotency = self.idempotency.for_invocation(invocation);
        let way = match self.world.config.way {
            // Under at-most-once, nothing runs without a claim.
            Way::Mixed if !self.world.config.is_at_most_once(self.id) => {
                self.world.random(|random| random.below(3))
            }
            Way::Claims | Way::Transactions | Way::Mixed => 0,
        };
        let idempotency = match way {
            0 => Ok(idempotency),
            1 => idempotency.optimistic(),
            _ => idempotency.optimistic_reading_first(),
        };
        let idempotency =
            idempotency.unwrap_or_else(|error| panic!("the simulation's settings are wrong: {error}"));
        let is_open = way != 0;
        let operation = idempotency.operation("step").unwrap_or_else(|error| panic!("invalid name: {error}"));
        let begins = self.world.config.may_begin() && self.world.random(|random| random.chance(500));
        let run = async {
            if begins {
                return self.begin(&operation, name, key, payload).await;
            }
            operation.run(name, &payload, || self.handler(key, payload, is_open)).await
        };
        let mut run = pin!(run);
        let mut has_begun = false;
        let mut gives_up = pin!(self.world.sleep(patience.unwrap_or(u64::MAX / 4)));
        // Wakes the process at its deadline, so that the scheduler can end it.
        let deadline = self.deadline.load(Ordering::Relaxed);
        let now = self.world.now();
        let mut dies =
            pin!(self.world.sleep(if deadline == 0 { u64::MAX / 4 } else { deadline.saturating_sub(now) }));
        poll_fn(|cx| {
            if std::mem::replace(&mut has_begun, true) {
                self.clock.may_be_set_back();
            }
            match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx))) {
                Ok(Poll::Ready(result)) => return Poll::Ready(Some(result)),
                Ok(Poll::Pending) => {}
                // The handler panicked: Lambda's runtime would report a failed invocation.
                Err(_) => return Poll::Ready(Some(Err(RunError::Handler(Refusal)))),
            }
            let _ = dies.as_mut().poll(cx);
            if patience.is_some() && gives_up.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await
    }

    async fn handler(&self, key: u64, payload: u64, is_open: bool) -> Result<String, Refusal> {
        let world = &self.world;
        let right = match current() {
            _ if is_open => Right::None(stored_key(key)),
            None if world.config.may_run_unprotected() => Right::Unprotected(stored_key(key)),
            claim => Right::Claim(claim),
        };
        let run = self.audit.run_began(world.now(), self.id, key, payload, right);
        self.work(run).await;
        if world.strikes(Circumstance::Hang, 30) {
            // With extensions but without a deadline, nothing cuts the handler off, so this hang is shorter.
            world.sleep(if world.config.extends { 200_000 } else { 10_000_000 }).await;
        }
        if world.strikes(Circumstance::HandlerError, 50) {
            self.audit.handler_failed(run);
            return Err(Refusal);
        }
        match staging().filter(|_| world.config.way != Way::Claims) {
            Some(staging) => self.stage(&staging, run, key, payload),
            None => {
                self.audit.effect(world.now(), run);
                world.count(|figures| figures.effects += 1);
            }
        }
        self.work(run).await;
        if world.strikes(Circumstance::Panic, 40) {
            self.audit.handler_panicked(run);
            // `resume_unwind` skips the panic hook, which would print.
            resume_unwind(Box::new(Refusal));
        }
        if world.strikes(Circumstance::HandlerError, 50) {
            self.audit.handler_failed(run);
            return Err(Refusal);
        }
        let padding = if world.strikes(Circumstance::Parts, 300) || world.strikes(Fault::Unstorable, 300) {
            200
        } else {
            0
        };
        self.audit.handler_ended(world.now(), run);
        self.outage_at_the_end(run);
        Ok(format!("run {run} of key {key} with payload {payload}{:padding$}", ""))
    }

    /// Stages the run's effect, for one transaction with the run's outcome. In three quarters of the runs, the
    /// handler also registers an `on_declined` callback. If a condition on the effect fails, the callback stages the
    /// effect again, returns an error, or returns another answer.
    fn stage(&self, staging: &Staging, run: usize, key: u64, payload: u64) {
        if let Err(error) = staging.add(Effects(vec![run])) {
            self.audit.violate("effects can be staged", error.to_string());
        }
        self.audit.staged(self.world.now(), run);
        let (executor, again) = (self.clone(), staging.clone());
        let what = self.world.random(|random| random.below(4));
        if what == 3 {
            return;
        }
        staging.on_declined(move |_: &SoldOut| -> Result<String, Refusal> {
            if what == 0 {
                executor.stage(&again, run, key, payload);
                return Ok(format!("run {run} of key {key} with payload {payload}"));
            }
            if what == 1 {
                return Err(Refusal);
            }
            Ok(format!("run {run} declined of key {key} with payload {payload}"))
        });
    }

    /// In a campaign, may start an outage when the delivery begins. A delivery without a deadline gets no silent
    /// outage, since its claim has no time limit, and would wait forever for an answer.
    fn outage_at_the_claim(&self, deadline: u64) {
        let (world, now) = (&self.world, self.world.now());
        let Some(outage) = world.config.outage else { return };
        let longest = if deadline == 0 { 6000 } else { deadline - now };
        let is_endless = deadline == 0 && outage == Outage::Silence;
        if !is_endless && world.random(|random| random.percent(25)) {
            let ms = world.random(|random| random.below(longest));
            world.cut_off(self.id, now, now + ms);
        }
    }

    /// In a campaign, may start an outage when the handler returns.
    fn outage_at_the_end(&self, run: usize) {
        let (world, now) = (&self.world, self.world.now());
        let Some(outage) = world.config.outage else { return };
        let left = self.audit.time_left(run, now);
        match world.random(|random| trouble::draw(outage, left, random)) {
            Some((delay, length)) => {
                world.cut_off(self.id, now + delay, now + delay + length);
                world.count(|figures| figures.outages[(length * 10 / left).min(9) as usize] += 1);
            }
            // Ends an outage that began with the delivery.
            None => world.cut_off(self.id, now, now),
        }
    }

    /// Works for no longer than the delivery's time allows: in a campaign, no handler is cut off.
    async fn work_in_a_campaign(&self, run: usize) {
        let left = self.audit.time_left(run, self.world.now());
        let Some(spare) = left.checked_sub(1000) else { return };
        let ms = self.world.random(|random| {
            if random.percent(15) { random.below(spare + 1) } else { random.below(300.min(spare) + 1) }
        });
        self.world.sleep(ms).await;
    }

    /// Works only for a moment, since the library doesn't cut off work between `begin` and the settlement.
    pub(super) async fn work_briefly(&self) {
        let ms = self.world.random(|random| random.below(300));
        self.world.sleep(ms).await;
    }

    async fn work(&self, run: usize) {
        if self.world.config.outage.is_some() && self.world.are_faults_on() {
            return self.work_in_a_campaign(run).await;
        }
        let can_be_slow = self.world.config.has(Circumstance::Hang) && self.world.are_faults_on();
        let slow = if can_be_slow { 30 } else { 0 };
        let ms = self
            .world
            .random(|random| if random.chance(slow) { random.below(70_000) } else { random.below(300) });
        self.world.sleep(ms).await;
    }

    /// Checks that every key settles within two leases once there are no faults.
    async fn settle_all(&self) {
        for key in self.audit.keys_used() {
            let began = self.world.now();
            let mut payload = 0;
            loop {
                self.audit.delivery_began(self.id, None);
                let result = self.deliver(key, payload, Invocation::unknown(), None).await;
                let Some(result) = result else { break };
                self.audit.answered(self.world.now(), self.id, key, payload, &result);
                let wait = match &result {
                    Err(RunError::Idempotency(error)) => match error.kind() {
                        ErrorKind::Mismatch => {
                            payload = 1 - payload;
                            1
                        }
                        ErrorKind::InProgress => 1000,
                        ErrorKind::OutcomeUnknown | ErrorKind::NotRetained => break,
                        kind => {
                            self.audit
                                .violate("liveness", format!("key {key} answers {kind:?} without any fault"));
                            return;
                        }
                    },
                    _ => break,
                };
                self.world.sleep(wait).await;
                let bound = if self.world.config.has(Circumstance::SkewBeyond) { 60_000 } else { 0 };
                if self.world.now() - began > 2 * LEASE + SKEW_MARGIN as u64 + bound {
                    let ms = self.world.now() - began;
                    self.audit
                        .violate("liveness", format!("key {key} isn't settled after {ms} ms without faults"));
                    return;
                }
            }
        }
    }
}
