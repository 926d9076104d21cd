//! Plays a schedule: polls futures in an order that the seed decides, in virtual time.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use super::{
    Figures,
    audit::Audit,
    config::Config,
    deliveries::{self, Executor},
    trouble::Fault,
    world::World,
};

/// The most polls that a schedule may take. A schedule that needs more is reported as a livelock.
const MAX_POLLS: u64 = 2_000_000;

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
    world.end_faults();
    if !audit.has_violation() {
        let mut last = vec![Task::new(deliveries::last_executor(&world, audit))];
        run(&world, audit, &mut last);
    }
    world.figures()
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
            if !world.advance(thaw.filter(|until| *until > now).min()) {
                return;
            }
            continue;
        }
        let at = can_go_on[world.random(|random| random.below(can_go_on.len() as u64)) as usize];
        poll(world, audit, &mut tasks[at]);
        if audit.has_violation() {
            return;
        }
        if world.figures().polls > MAX_POLLS {
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
    world.polls(task.executor.id());
    let waker = Waker::from(Arc::clone(&task.signal));
    let Some(future) = &mut task.future else { return };
    if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
        task.future = None;
    }
}
