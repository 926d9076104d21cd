//! Plays one schedule in a fresh [`World`]: with an empty store, new processes and virtual time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    sync::Arc,
    time::Duration,
};

use lambda_idempotency_core::internal::testing::MemoryStoreExt as _;

use super::plan::{Plan, Step};
use crate::{
    bench::{BEYOND_LEASES, Bench},
    effect::Happened,
    event::{Event, ids_of, is_of_queue, with_records},
    fault::Fault,
    function::{Answer, Function},
    point::Point,
    stage::{How, Stage},
    time::VirtualTime,
    told::Told,
    world::{Delivered, Orders, World, inside},
};

/// The maximum number of deliveries that an operation gets after the planned ones.
const MORE: u32 = 5;
/// How many times a batch's source delivers a record that fails in every delivery, before it gives up on the record.
const RECEIVES: usize = 2;
/// How long after the lease a refused duplicate comes, and then another one, since the first question may get no answer: longer than any usual `effects_arrive_within`.
const ARRIVED: Duration = Duration::from_secs(15 * 60);
/// How long spawned tasks may run after the last answer.
const DRAIN: Duration = Duration::from_secs(120);

/// The function under test, and its event.
pub(crate) struct Subject<'a> {
    pub(super) make: &'a (dyn Fn(&Bench) -> Function + Sync),
    pub(super) event: &'a Event,
    pub(super) timeout: Duration,
    /// How long after the other deliveries the last duplicate comes.
    pub(super) late: Duration,
    /// The failures with which undisturbed deliveries of the event end, if it fails permanently.
    pub(super) failures: Vec<Answer>,
    /// The places of the batch's records that fail permanently.
    pub(super) poison: BTreeSet<usize>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(
        make: &'a (dyn Fn(&Bench) -> Function + Sync),
        event: &'a Event,
        timeout: Duration,
    ) -> Self {
        let poison = event.poisoned().clone();
        Self { make, event, timeout, late: Duration::ZERO, failures: Vec::new(), poison }
    }

    /// Notes which permanent failures the undisturbed deliveries of the event had.
    pub(super) fn fails_like(&mut self, first: &Played) {
        let ids = ids_of(self.event.text());
        let given_up = ids.iter().enumerate().filter(|(_, id)| first.given_up.contains(*id));
        self.poison.extend(given_up.map(|(place, _)| place));
        self.failures.clone_from(&first.failures);
    }

    /// Whether this is the failure with which the event ends when no fault happens.
    fn is_failure(&self, answer: &Answer) -> bool {
        let is_same = |failure: &Answer| answer.is_replay_of(failure);
        let differ = self.failures.windows(2).any(|pair| pair[0] != pair[1]);
        self.failures.iter().any(|failure| is_same(failure) || differ && answer.is_failure_like(failure))
    }
}

/// The result of one schedule.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// The answers in order, each with the number of its delivery.
    pub(crate) answers: Vec<(usize, Answer)>,
    /// Whether the event's source considers the operation done, or has given up on it because it fails permanently.
    pub(super) is_done: bool,
    /// The first answer after which the source considers the operation done, with its delivery.
    pub(super) first_done: Option<(usize, Answer)>,
    /// The permanent failures with which the event ended: one, or those of two undisturbed deliveries.
    pub(super) failures: Vec<Answer>,
    /// The identifiers of the batch's records on which its source has given up.
    pub(super) given_up: BTreeSet<String>,
    /// The refusal of the last duplicate of the finished operation, if it was refused. If a duplicate is refused,
    /// another duplicate comes after every lease has expired.
    pub(super) refused_duplicate: Option<Answer>,
    /// For each event that was delivered in turn: its first delivery, and whether its source considers it done.
    pub(crate) turns: Vec<(usize, bool)>,
    /// The items that handlers' transactions put.
    pub(super) items: BTreeMap<(String, String), String>,
    pub(super) effects: Vec<Happened>,
    pub(crate) deliveries: Vec<Delivered>,
    pub(super) trace: Vec<Told>,
}

impl Played {
    /// Returns the deliveries of the event with this number, of those that were delivered in turn.
    pub(crate) fn turn(&self, nth: usize) -> std::ops::Range<usize> {
        let begin = |nth: usize| self.turns.get(nth).map_or(self.deliveries.len(), |(first, _)| *first);
        begin(nth)..begin(nth + 1)
    }

    /// Returns the last answer to the event with this number.
    pub(super) fn last_answer(&self, nth: usize) -> Option<&Answer> {
        let turn = self.turn(nth);
        self.answers.iter().rev().find(|(delivery, _)| turn.contains(delivery)).map(|(_, answer)| answer)
    }

    /// Whether the source of the event with this number considers it done.
    pub(super) fn is_turn_done(&self, nth: usize) -> bool {
        self.turns.get(nth).is_some_and(|(_, is_done)| *is_done)
    }

    /// Whether a handler ran for the event with this number.
    pub(super) fn has_run(&self, nth: usize) -> bool {
        self.deliveries[self.turn(nth)].iter().any(Delivered::shows_run)
    }

    /// Returns the effects of the event with this number.
    pub(super) fn effects_of(&self, nth: usize) -> impl Iterator<Item = &Happened> {
        let turn = self.turn(nth);
        self.effects.iter().filter(move |effect| turn.contains(&effect.delivery))
    }
}

/// The processes and deliveries of one schedule.
struct Scene<'a> {
    subject: &'a Subject<'a>,
    stage: Stage,
    functions: Vec<Function>,
    played: Played,
    /// The ids of the batch's records that its source still delivers; `None` for all records.
    open: Option<Vec<String>>,
    /// The ids of the records that fail in every delivery, and how often each record has failed.
    poison: BTreeSet<String>,
    failed: BTreeMap<String, usize>,
    /// The ids of the event's records on which its source has given up.
    given_up: BTreeSet<String>,
    nth: usize,
    pausing: Vec<usize>,
    /// The next delivery pauses after this many polls.
    pause_after: Option<usize>,
    /// The text of the last delivery.
    delivered: Arc<str>,
    /// Whether the source gives up on a record although nothing was recorded that says so.
    guessed: bool,
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
            let mut scene = Scene {
                subject,
                stage,
                functions,
                played,
                open: None,
                poison: subject.event.ids_at(&subject.poison),
                failed: BTreeMap::new(),
                given_up: BTreeSet::new(),
                nth: 0,
                pausing: Vec::new(),
                pause_after: None,
                delivered: subject.event.shared(),
                guessed: false,
            };
            script(&mut scene).await;
            let mut state = world.state();
            let mut played = std::mem::take(&mut scene.played);
            played.effects = std::mem::take(&mut state.effects);
            played.deliveries = std::mem::take(&mut state.deliveries);
            played.trace = std::mem::take(&mut state.trace);
            played.items = world.records.items();
            state.is_over = true;
            played
        })
    });
    Ok(played.unwrap_or_default())
}

/// Delivers this event without a fault, as its source would, and then gives spawned tasks the time to end.
pub(super) fn undisturbed(subject: &Subject<'_>, event: &Arc<str>, seed: u64) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        scene.settle(event, false, "the event").await;
        scene.stage.wait(DRAIN).await;
    })
}

/// Delivers one event after the other, each as its source would, all in the same process or each in its own process.
pub(crate) fn in_turn(
    subject: &Subject<'_>,
    events: &[(&Arc<str>, &str)],
    is_in_same_process: bool,
    seed: u64,
) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        for (event, what) in events {
            scene.settle(event, is_in_same_process, what).await;
            scene.stage.wait(DRAIN).await;
        }
    })
}

/// Delivers an event. After its record has expired, delivers another event, whose first attempt dies before its effect.
pub(super) fn reused(subject: &Subject<'_>, event: &Arc<str>, other: &Arc<str>) -> std::io::Result<Played> {
    in_a_world(subject, 0, async |scene| {
        scene.settle(event, false, "the event").await;
        let world = Arc::clone(&scene.stage.world);
        let last = world.records.all().iter().filter_map(|(_, record)| record.expires_at).max();
        let left = world.now().until(last.unwrap_or_default());
        scene.stage.wait(left.saturating_add(BEYOND_LEASES)).await;
        let what = "after the retention, the same key with different content";
        let dies = vec![Orders::At(Point::BeforeEffect, Fault::Die)];
        scene.deliver(Arc::clone(other), dies, false, what).await;
        let left = scene.stage.until_stale(DRAIN);
        scene.stage.wait(left).await;
        scene.settle(other, false, "that event again").await;
        scene.stage.wait(DRAIN).await;
    })
}

/// Delivers one event after the other, each in its own process, with a pause before each.
pub(super) fn serially(
    subject: &Subject<'_>,
    events: &[&Arc<str>],
    pause: Duration,
    seed: u64,
) -> std::io::Result<Played> {
    in_a_world(subject, seed, async |scene| {
        for event in events {
            scene.stage.wait(pause).await;
            scene.settle(event, false, "an operation").await;
            scene.stage.wait(DRAIN).await;
        }
    })
}

/// Where the first of two concurrent deliveries pauses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// At the point with this number.
    At(usize),
    /// After this many polls.
    AfterPolls(usize),
}

/// Delivers the `earlier` event, if there is one, and then two events concurrently: the first one pauses while the
/// second one is delivered. The turns are those of the earlier event, the first event and the second event.
pub(super) fn overlapping(
    subject: &Subject<'_>,
    earlier: Option<&Arc<str>>,
    [first, second]: [&Arc<str>; 2],
    pause: Pause,
) -> std::io::Result<Played> {
    in_a_world(subject, 0, async |scene| {
        if let Some(earlier) = earlier {
            scene.settle(earlier, false, "an earlier operation").await;
            scene.stage.wait(DRAIN).await;
        }
        let begin = scene.begins();
        let orders = match pause {
            Pause::At(nth) => vec![Orders::Nth(nth, Fault::Overlap)],
            Pause::AfterPolls(polls) => {
                scene.pause_after = Some(polls);
                Vec::new()
            }
        };
        let (paused, how) = scene.deliver(Arc::clone(first), orders, false, "an operation").await;
        let is_held = matches!(how, How::Held(_));
        scene.played.turns.push((begin, false));
        if !is_held {
            return;
        }
        scene.settle(second, false, "another operation").await;
        scene.stage.release(paused);
        let how = scene.stage.run(paused).await;
        let is_whole = matches!(&how, How::Answered(answer) if answer.is_whole());
        scene.ended(paused, how);
        if let Some(turn) = scene.played.turns.iter_mut().find(|(first, _)| *first == begin) {
            turn.1 = is_whole;
        }
        scene.stage.wait(DRAIN).await;
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

    /// Delivers the event although the operation is done. If this duplicate is refused, delivers it again after the
    /// lease has expired: a claim whose outcome couldn't be recorded stays until then. With a reconciler, it stays until
    /// its effect has had the time to arrive.
    async fn duplicate(&mut self, is_in_same_process: bool) {
        for after in [Some(BEYOND_LEASES), Some(ARRIVED), Some(ARRIVED), None] {
            let (_, how) = self.next(Vec::new(), is_in_same_process).await;
            let How::Answered(answer) = how else { return };
            let is_settled = answer.is_whole() || self.subject.is_failure(&answer);
            self.played.refused_duplicate = Some(answer).filter(|_| !is_settled);
            let Some(after) = after.filter(|_| !is_settled) else { return };
            let left = self.stage.until_stale(after);
            self.stage.wait(left).await;
        }
    }

    /// Delivers the event until the operation is done, as its source would.
    async fn finish(&mut self) {
        // Each record on which the source gives up may take some more deliveries.
        let more = RECEIVES * self.subject.poison.len();
        for attempt in 0..MORE.saturating_add(u32::try_from(more).unwrap_or_default()) {
            let is_unknown =
                self.played.answers.last().is_some_and(|(_, answer)| answer.is_unknown_outcome());
            if self.played.is_done || is_unknown {
                return;
            }
            let left = self.stage.until_stale(BEYOND_LEASES * 4_u32.pow(attempt.min(MORE)));
            self.stage.wait(left).await;
            self.next(Vec::new(), false).await;
        }
    }

    /// Makes the event's next delivery. Until a batch is done, its source delivers only the records that are open.
    async fn next(&mut self, orders: Vec<Orders>, is_in_same_process: bool) -> (usize, How) {
        let event = self.subject.event.retried(self.nth);
        let event = match &self.open {
            Some(open) if !self.played.is_done => with_records(&event.shared(), open, &self.given_up),
            // The source has given up on these records, so it doesn't deliver them again.
            _ if self.played.is_done && !self.poison.is_empty() => {
                with_records(&event.shared(), &ids_of(event.text()), &self.poison)
            }
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
        let Some(function) = self.functions.get_mut(process) else { return (0, How::Died) };
        let delivery = self.stage.begin(
            function,
            process,
            (self.subject.event, Arc::clone(&event)),
            orders,
            what.to_owned(),
        );
        world.state().deliveries[delivery].pauses_after = self.pause_after.take();
        let how = self.stage.run(delivery).await;
        self.delivered = event;
        self.ended(delivery, how.clone());
        (delivery, how)
    }

    fn ended(&mut self, delivery: usize, how: How) {
        let How::Answered(answer) = how else { return };
        let is_failure = self.subject.is_failure(&answer);
        if answer.is_done() {
            let mut given_up = Vec::new();
            // Only a failure of the record itself counts, and not a fault or a refusal in this delivery.
            let has_fault = |told: &Told| matches!(told, Told::Fault { delivery: of, .. } if *of == delivery);
            if !answer.is_refused_for_now() && !self.stage.world.state().trace.iter().any(has_fault) {
                for id in self.failed_first(&answer) {
                    let failed = self.failed.entry(id.clone()).or_default();
                    *failed += 1;
                    if *failed >= RECEIVES && self.poison.contains(&id) {
                        given_up.push(id);
                    }
                }
            }
            self.returned(answer.returned(), given_up);
        }
        if is_failure || answer.is_done() && self.open.as_ref().is_some_and(Vec::is_empty) {
            self.played.is_done = true;
            self.played.first_done.get_or_insert_with(|| (delivery, answer.clone()));
        }
        self.played.answers.push((delivery, answer));
    }

    /// Returns the records that failed. Where the order counts, that's the first one: the others may wait for it.
    fn failed_first(&self, answer: &Answer) -> Vec<String> {
        let mut returned = answer.returned();
        if !is_of_queue(&self.delivered) || self.delivered.contains("MessageGroupId") {
            returned.truncate(1);
        }
        returned
    }

    /// Notes the records that the function returned, and those of them on which the source gives up.
    fn returned(&mut self, mut returned: Vec<String>, given_up: Vec<String>) {
        let last = given_up.last().cloned();
        self.played.given_up.extend(given_up.iter().cloned());
        self.given_up.extend(given_up);
        returned.retain(|id| !self.given_up.contains(id));
        // A stream's function returns only the first failure. The source then moves on to the record behind it.
        if let Some(last) = last.filter(|_| returned.is_empty() && !is_of_queue(&self.delivered)) {
            let ids = ids_of(&self.delivered).into_iter().skip_while(|id| *id != last).skip(1);
            returned.extend(ids.take(1));
        }
        self.open = Some(returned);
    }

    /// The number of the next delivery.
    fn begins(&self) -> usize {
        self.stage.world.state().deliveries.len()
    }

    /// Delivers an event without a fault, as its source would: delivers the records that failed again, until all are
    /// done, or no delivery gets any further. Finds out which failures are permanent.
    async fn settle(&mut self, event: &Arc<str>, is_in_same_process: bool, what: &str) {
        let begin = self.begins();
        self.open = None;
        self.failed.clear();
        self.given_up.clear();
        self.guessed = false;
        let mut before: Option<Answer> = None;
        let most = begin + 3 * (ids_of(event).len() + 1);
        let is_settled = loop {
            if self.begins() > most {
                break false;
            }
            let json = match &self.open {
                Some(open) => with_records(event, open, &self.given_up),
                None => Arc::clone(event),
            };
            let again = if before.is_none() { String::new() } else { " again".to_owned() };
            let (delivery, how) =
                self.deliver(json, Vec::new(), is_in_same_process, &format!("{what}{again}")).await;
            let How::Answered(answer) = how else { break false };
            match self.settled(event, delivery, &answer, before.as_ref()) {
                ControlFlow::Break(is_settled) => break is_settled,
                ControlFlow::Continue(()) => before = Some(answer),
            }
        };
        self.played.turns.push((begin, is_settled));
        self.played.is_done = is_settled;
        let mut answers = self.played.answers.iter();
        let done = match before.as_ref().filter(|before| before.returned().is_empty()) {
            Some(failure) => answers.find(|(delivery, answer)| *delivery >= begin && answer == failure),
            None => answers.next_back(),
        };
        if let Some((delivery, answer)) = done.filter(|_| is_settled) {
            self.played.first_done.get_or_insert_with(|| (*delivery, answer.clone()));
        }
    }

    /// Returns whether the event is settled. Continues if its source delivers it, or some of its records, once more.
    /// `before` is the answer to the delivery before this one.
    fn settled(
        &mut self,
        event: &Arc<str>,
        delivery: usize,
        answer: &Answer,
        before: Option<&Answer>,
    ) -> ControlFlow<bool> {
        if answer.is_whole() {
            return ControlFlow::Break(true);
        }
        // A permanent failure was recorded if the next delivery gets the same failure, and no handler runs.
        let is_same = before.is_some_and(|before| answer.is_replay_of(before));
        let is_replay = self.stage.world.state().deliveries[delivery].is_replay();
        let is_replayed = is_same && is_replay && !answer.is_refused_for_now();
        let (records, returned) = (ids_of(event), answer.returned());
        if returned.is_empty() {
            let is_poison = records.is_empty() && self.subject.poison.contains(&0);
            let is_final = is_replayed && !answer.is_refused() || is_poison;
            self.played.failures.extend(Some(answer.clone()).filter(|_| is_final));
            let is_over = is_final || before.is_some() || answer.is_refused();
            return if is_over { ControlFlow::Break(is_final) } else { ControlFlow::Continue(()) };
        }
        let failed = self.failed_first(answer);
        let mut given_up: Vec<String> =
            failed.iter().filter(|id| self.poison.contains(*id)).cloned().collect();
        // A record that fails twice in the same way, and isn't refused because of another delivery, always fails.
        if given_up.is_empty() && is_same && !answer.is_refused_for_now() {
            self.guessed |= !is_replayed;
            given_up.extend(failed.into_iter().take(1));
        }
        let has_got_further =
            before.is_none_or(|before| !given_up.is_empty() || returned != before.returned());
        self.returned(returned, given_up);
        if self.open.as_ref().is_some_and(Vec::is_empty) {
            let is_done = |id: &String| !self.given_up.contains(id);
            return ControlFlow::Break(!self.guessed || records.iter().any(is_done));
        }
        if has_got_further { ControlFlow::Continue(()) } else { ControlFlow::Break(false) }
    }
}
