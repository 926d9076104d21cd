//! Plays one schedule in a fresh [`World`]: with an empty store, new processes and virtual time.

use std::{sync::Arc, time::Duration};

use super::plan::{Plan, Step};
use crate::{
    testing::{
        bench::{BEYOND_LEASES, Bench},
        event::{Event, with_records},
        fault::Fault,
        function::{Answer, Function},
        stage::{How, Stage},
        world::{Delivered, Happened, Orders, Told, World, inside},
    },
    time::VirtualTime,
};

/// The maximum number of deliveries that an operation gets after the planned ones.
const MORE: u32 = 5;
/// How long spawned tasks may run after the last answer.
const DRAIN: Duration = Duration::from_secs(120);

/// The function under test, and its event.
pub(in crate::testing) struct Subject<'a> {
    pub(super) make: &'a (dyn Fn(&Bench) -> Function + Sync),
    pub(super) event: &'a Event,
    pub(super) timeout: Duration,
    /// How long after the other deliveries the last duplicate comes.
    pub(super) late: Duration,
}

impl<'a> Subject<'a> {
    pub(in crate::testing) fn new(
        make: &'a (dyn Fn(&Bench) -> Function + Sync),
        event: &'a Event,
        timeout: Duration,
    ) -> Self {
        Self { make, event, timeout, late: Duration::ZERO }
    }
}

/// The result of one schedule.
#[derive(Debug, Default)]
pub(in crate::testing) struct Played {
    /// The answers in order, each with the number of its delivery.
    pub(in crate::testing) answers: Vec<(usize, Answer)>,
    /// Whether the event's source considers the operation done.
    pub(super) is_done: bool,
    /// The first answer after which the source considers the operation done, with its delivery.
    pub(super) first_done: Option<(usize, Answer)>,
    /// The answer to the last duplicate of the finished operation. If a duplicate is refused, another duplicate comes
    /// after every lease has expired.
    pub(super) to_duplicate: Option<Answer>,
    pub(super) effects: Vec<Happened>,
    pub(in crate::testing) deliveries: Vec<Delivered>,
    pub(super) trace: Vec<Told>,
}

/// The processes and deliveries of one schedule.
struct Scene<'a> {
    subject: &'a Subject<'a>,
    stage: Stage,
    functions: Vec<Function>,
    played: Played,
    /// The ids of the batch's records that its source still delivers; `None` for all records.
    open: Option<Vec<String>>,
    nth: usize,
    pausing: Vec<usize>,
}

/// Runs `script` in its own [`World`], and returns the deliveries, answers and effects.
fn in_a_world<'a>(
    subject: &'a Subject<'a>,
    seed: u64,
    script: impl AsyncFnOnce(&mut Scene<'a>),
) -> std::io::Result<Played> {
    let time = VirtualTime::start()?;
    let played = inside(|| {
        let world = Arc::new(World::new(time.beginning(), seed));
        time.block_on(async {
            let stage = Stage::new(Arc::clone(&world), subject.timeout);
            let (functions, played) = (Vec::new(), Played::default());
            let mut scene =
                Scene { subject, stage, functions, played, open: None, nth: 0, pausing: Vec::new() };
            script(&mut scene).await;
            let mut state = world.state();
            let mut played = std::mem::take(&mut scene.played);
            played.effects = std::mem::take(&mut state.effects);
            played.deliveries = std::mem::take(&mut state.deliveries);
            played.trace = std::mem::take(&mut state.trace);
            state.is_over = true;
            played
        })
    });
    Ok(played.unwrap_or_default())
}

/// Delivers this event once, and then gives spawned tasks the time to end.
pub(super) fn once(subject: &Subject<'_>, event: &Arc<str>, seed: u64) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        scene.deliver(Arc::clone(event), Vec::new(), false, "the event").await;
        scene.stage.wait(DRAIN).await;
    })
}

/// Delivers one event after the other, all in the same process or each in its own process.
pub(in crate::testing) fn in_turn(
    subject: &Subject<'_>,
    events: &[(&Arc<str>, &str)],
    is_in_same_process: bool,
    seed: u64,
) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        for (event, what) in events {
            scene.deliver(Arc::clone(event), Vec::new(), is_in_same_process, what).await;
            scene.stage.wait(DRAIN).await;
        }
    })
}

/// Plays a schedule: the planned deliveries, further ones until the operation is done, and then a duplicate. If
/// `is_long`, another duplicate comes much later.
pub(super) fn play(subject: &Subject<'_>, plan: &Plan, seed: u64, is_long: bool) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        for (at, step) in plan.steps.iter().enumerate() {
            scene.step(step, at).await;
        }
        if !scene.pausing.is_empty() {
            scene.step(&Step::default(), 1).await;
        }
        scene.finish().await;
        if scene.played.is_done {
            scene.duplicate(false).await;
            if is_long {
                scene.stage.wait(scene.subject.late).await;
                scene.duplicate(true).await;
            }
        }
        scene.stage.wait(DRAIN).await;
    })
}

impl Scene<'_> {
    async fn step(&mut self, step: &Step, at: usize) {
        if at > 0 && step.is_after_lease {
            let left = self.stage.until_stale(BEYOND_LEASES);
            self.stage.wait(left).await;
        }
        match self.next(step.orders.clone(), step.is_in_same_process).await {
            (delivery, How::Held(fault)) => {
                self.pausing.push(delivery);
                if fault == Fault::Freeze {
                    let left = self.stage.until_stale(BEYOND_LEASES);
                    self.stage.wait(left).await;
                }
            }
            _ => {
                while let Some(paused) = self.pausing.pop() {
                    self.stage.release(paused);
                    let how = self.stage.run(paused).await;
                    self.ended(paused, how);
                }
            }
        }
    }

    /// Delivers the event although the operation is done. If this duplicate is refused, delivers it once more after the
    /// lease has expired: a claim whose outcome couldn't be recorded stays until then.
    async fn duplicate(&mut self, is_in_same_process: bool) {
        for is_last in [false, true] {
            let (_, how) = self.next(Vec::new(), is_in_same_process).await;
            let How::Answered(answer) = how else { return };
            let is_whole = answer.is_whole();
            self.played.to_duplicate = Some(answer);
            if is_whole || is_last {
                return;
            }
            let left = self.stage.until_stale(BEYOND_LEASES);
            self.stage.wait(left).await;
        }
    }

    /// Delivers the event until the operation is done, as its source would.
    async fn finish(&mut self) {
        for attempt in 0..MORE {
            let is_unknown =
                self.played.answers.last().is_some_and(|(_, answer)| answer.is_unknown_outcome());
            if self.played.is_done || is_unknown {
                return;
            }
            let left = self.stage.until_stale(BEYOND_LEASES * 4_u32.pow(attempt));
            self.stage.wait(left).await;
            self.next(Vec::new(), false).await;
        }
    }

    /// Makes the event's next delivery. Until a batch is done, its source delivers only the records that are open.
    async fn next(&mut self, orders: Vec<Orders>, is_in_same_process: bool) -> (usize, How) {
        let event = self.subject.event.retried(self.nth);
        let event = match &self.open {
            Some(open) if !self.played.is_done => with_records(&event.shared(), open),
            _ => event.shared(),
        };
        let what = if self.nth == 0 { "the event" } else { "the event again" };
        self.nth += 1;
        self.deliver(event, orders, is_in_same_process, what).await
    }

    async fn deliver(
        &mut self,
        event: Arc<str>,
        orders: Vec<Orders>,
        is_in_same_process: bool,
        what: &str,
    ) -> (usize, How) {
        let world = Arc::clone(&self.stage.world);
        let last =
            self.functions.len().checked_sub(1).filter(|last| is_in_same_process && !world.is_dead(*last));
        let process = match last {
            Some(last) => last,
            None => {
                let bench = Bench::in_world(&world);
                self.functions.push((self.subject.make)(&bench));
                bench.index()
            }
        };
        let what = format!("{what}, to process {}", process + 1);
        let Some(function) = self.functions.get_mut(process) else { return (0, How::Died) };
        let delivery = self.stage.begin(function, process, (self.subject.event, event), orders, what);
        let how = self.stage.run(delivery).await;
        self.ended(delivery, how.clone());
        (delivery, how)
    }

    fn ended(&mut self, delivery: usize, how: How) {
        let How::Answered(answer) = how else { return };
        if answer.is_done() {
            let returned = answer.returned();
            if returned.is_empty() {
                self.played.is_done = true;
                self.played.first_done.get_or_insert_with(|| (delivery, answer.clone()));
            } else {
                self.open = Some(returned);
            }
        }
        self.played.answers.push((delivery, answer));
    }
}
