//! The executors' half: a step of the protocol under test, and what follows from it at once.

use std::rc::Rc;

use lambda_idempotency::{
    Execution, Outcome, Place, Record, State as RecordState,
    protocol::{Action, End, Event, Fault, Input},
    store::Written,
};

use super::{Happening, Heard, Net, Next, Position, StepKey, Stepped, intent};
use crate::{
    configuration::{self, drawn_by},
    coverage::{Coverage, Mark},
    invariants::{Flaws, Invariant},
    judge::Step,
    model::{Answer, Delivery, NOBODY, Stage, Verdict},
    under_test::Protocol,
};

impl<P: Protocol> Net<'_, P> {
    /// One step of the executor's machine, and what follows from it at once.
    pub(super) fn step(&mut self, it: &mut Happening, at: u8, heard: Heard) {
        let slot = *it.slot(at);
        let number = usize::from(slot.delivery);
        let key = StepKey {
            machine: slot.machine,
            plan: slot.plan,
            write: slot.write,
            held: slot.held,
            verdict: it.world.deliveries[number].verdict,
            heard,
            stage: slot.stage,
            time: it.world.time,
            clock: slot.clock,
        };
        let stepped = match self.steps.get(&key) {
            Some(&stepped) => stepped,
            None => {
                let stepped = self.really_step(key, slot.delivery);
                self.steps.insert(key, stepped);
                stepped
            }
        };
        it.flaws.add(stepped.flaws);
        it.coverage.add(stepped.coverage);
        let delivery = it.world.deliveries[number];
        let after = it.slot(at);
        (after.machine, after.is_retried) = (stepped.machine, false);
        (after.answer, after.record, after.is_urgent) = (Answer::None, 0, true);
        match stepped.next {
            Next::Apply(write) => (after.stage, after.write) = (Stage::Applying, write),
            Next::Read => after.stage = Stage::Reading,
            Next::Pause => after.stage = Stage::Pausing,
            Next::Run(held) => {
                (after.stage, after.write, after.held) = (Stage::Running, 0, held);
                self.start(it, slot.delivery, held);
            }
            Next::Replay(record) | Next::Superseded(record) => {
                after.end();
                self.replay(it, record, delivery);
            }
            Next::Recorded => {
                after.end();
                it.flaws.unless(delivery.is_stored, Invariant::RecordedIsStored);
            }
            Next::Over => after.end(),
        }
    }

    /// The handler starts.
    fn start(&self, it: &mut Happening, delivery: u8, held: u32) {
        let Some(held) = self.claims.get(held) else { return };
        let generation = held.generation.get();
        it.world.deliveries[usize::from(delivery)].has_started = true;
        if self.configuration.clocks_agree() {
            it.flaws.unless(generation > it.world.highest_start, Invariant::StartsInOrder);
            it.world.highest_start = generation.max(it.world.highest_start);
        }
        if self.configuration.execution == Execution::AtMostOnce {
            it.flaws.unless(!it.world.has_run, Invariant::AtMostOnce);
            it.world.has_run = true;
        }
        if it.world.holder == delivery && it.world.took_over {
            it.flaws.unless(held.is_takeover, Invariant::TakeoverTold);
        }
    }

    /// An executor answers with what `record` holds.
    fn replay(&self, it: &mut Happening, record: u32, delivery: Delivery) {
        let Some(record) = self.records.get(record) else { return };
        let of_request = record.fingerprint == configuration::fingerprint(delivery.request);
        it.flaws.unless(of_request, Invariant::MismatchHarmless);
        let (outcome, verdict) = match &record.state {
            RecordState::Completed(outcome) => (outcome, Verdict::Complete),
            RecordState::Failed(outcome) => (outcome, Verdict::Fail),
            RecordState::Started { .. } | RecordState::Released => {
                it.flaws.unless(false, Invariant::ReplayTrue);
                return;
            }
        };
        let by = author(outcome, record);
        if by == NOBODY {
            it.reach(Mark::OperatorReplayed);
        }
        let author = it.world.deliveries.get(usize::from(by));
        let is_true =
            author.is_none_or(|author| author.verdict == verdict && author.request == delivery.request);
        it.flaws.unless(is_true, Invariant::ReplayTrue);
    }

    /// Performs the step on the protocol under test; done once for each key.
    fn really_step(&mut self, key: StepKey, delivery: u8) -> Stepped {
        let now = self.configuration.clock(key.time, key.clock);
        let event = self.event(key, delivery);
        let (Some(state), Some(plan)) = (self.machines.get(key.machine), self.plans.get(key.plan)) else {
            return Stepped { machine: 0, next: Next::Over, flaws: Flaws::NONE, coverage: Coverage::NONE };
        };
        let (after, action) = self.protocol.step(P::State::clone(state), Input { now, event: event.clone() });
        let step = Step {
            configuration: self.configuration,
            plan,
            verdict: key.verdict,
            held: self.claims.get(key.held).map(Rc::as_ref),
            write: self.writes.get(key.write).map(Rc::as_ref),
            event: &event,
            now,
            action: &action,
        };
        let (flaws, coverage) = (step.flaws(), step.coverage());
        let next = match action {
            Action::Apply(write) => Next::Apply(self.writes.number(write)),
            Action::Read => Next::Read,
            Action::Pause(_) => Next::Pause,
            Action::Claimed(held) => Next::Run(self.claims.number(held)),
            Action::Replay(record) => Next::Replay(self.records.number(record)),
            Action::Settled(End::Recorded) => Next::Recorded,
            Action::Settled(End::Superseded(record)) => Next::Superseded(self.records.number(record)),
            Action::Settled(_) | Action::Refused(_) | Action::Nothing => Next::Over,
            // Nothing here is in a transaction, without a claim or extended yet.
            Action::Commit { .. }
            | Action::Open
            | Action::Extended(_)
            | Action::NotExtended
            | Action::Lost
            | Action::Declined(_) => Next::Over,
        };
        Stepped { machine: self.machines.number(after), next, flaws, coverage }
    }

    fn event(&self, key: StepKey, delivery: u8) -> Event {
        let record = |number| self.records.get(number).map(|record| Record::clone(record));
        match key.heard {
            Heard::Begin => Event::Begin,
            Heard::Applied => Event::Answered(Written::Applied),
            Heard::Refused(number) => Event::Answered(Written::Refused(record(number))),
            Heard::Found(number) => Event::Found(record(number)),
            Heard::Failed(kind, maybe_applied) => Event::Failed(Fault { kind, maybe_applied }),
            Heard::Resumed => Event::Resumed,
            Heard::Settle => Event::Settle(intent(key.verdict, delivery)),
        }
    }

    /// Every step that was seen, as an edge between the machine's positions, and whether it calls the
    /// store.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (Position, Position, bool)> {
        self.steps.iter().filter_map(|(key, stepped)| {
            let (stage, calls) = match stepped.next {
                Next::Apply(_) => (Stage::Applying, true),
                Next::Read => (Stage::Reading, true),
                Next::Pause => (Stage::Pausing, false),
                Next::Run(_) => (Stage::Running, false),
                Next::Replay(_) | Next::Recorded | Next::Superseded(_) | Next::Over => return None,
            };
            let settled = self.writes.get(key.write).is_some_and(|write| write.lock().is_none());
            let claims = matches!(stepped.next, Next::Apply(write)
                if self.writes.get(write).is_some_and(|write| write.lock().is_some()));
            if key.verdict != Verdict::None && settled && claims {
                return None;
            }
            // An answer is to what was sent: a read's to a read, a write's to a write.
            let from = match (key.stage, key.heard) {
                (Stage::Answered, Heard::Found(_)) => Stage::Reading,
                (Stage::Answered, _) => Stage::Applying,
                (stage, _) => stage,
            };
            Some(((key.machine, from), (stepped.machine, stage), calls))
        })
    }
}

/// The delivery whose handler answered so.
fn author(outcome: &Outcome, record: &Record) -> u8 {
    match outcome {
        Outcome::Retained(response) => match &response.place {
            Place::Inline(bytes) => bytes.first().copied().unwrap_or(NOBODY),
            Place::Parts(_) => NOBODY,
        },
        Outcome::Omitted => drawn_by(record.owner).0,
    }
}
