//! The executors' side of the checker: takes a step of the protocol under test, and applies the step's result.

use std::rc::Rc;

use lambda_idempotency::{
    protocol::{Action, End, Event, Fault, Input, Intent, Refusal},
    settings::Execution,
    store::{Mark as RecordMark, Outcome, Place, Put, PutOutcome, Record, State as RecordState},
    time::Timestamp,
};

use super::{Checker, Happening, Heard, Next, Position, StepKey, Stepped};
use crate::{
    configuration::{self, drawn_by, millis, operation_of},
    coverage::{Coverage, Mark},
    invariants::{Flaws, Invariant},
    judge::Step,
    model::{Answer, Delivery, NOBODY, Slot, Stage, Verdict},
    under_test::{Protocol, Purpose, Sent},
};

impl<P: Protocol> Checker<'_, P> {
    /// Takes one step of the executor's machine, and applies the step's result.
    pub(super) fn step(&mut self, it: &mut Happening, at: u8, heard: Heard) {
        let slot = *it.slot(at);
        let number = usize::from(slot.delivery);
        // An operator isn't a delivery.
        let delivery = it.explored.deliveries.get(number).copied().unwrap_or_default();
        let key = StepKey {
            machine: slot.machine,
            plan: slot.plan,
            write: slot.write,
            held: slot.held,
            verdict: delivery.verdict,
            is_open: slot.is_open,
            is_in_doubt: slot.is_in_doubt,
            is_unstorable: slot.is_unstorable,
            retries: slot.retries,
            ended_at: slot.ended_at,
            heard,
            stage: slot.stage,
            time: it.explored.time,
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
        let is_in_doubt = slot.is_in_doubt || matches!(heard, Heard::Failed(_, true));
        let is_over_live = slot.delivery == NOBODY
            && self.configuration.executors > 1
            && matches!(stepped.next, Next::Apply(write) if self.is_over_live(it, write));
        let after = it.slot(at);
        (after.machine, after.is_retried) = (stepped.machine, false);
        (after.answer, after.record, after.is_urgent) = (Answer::None, 0, true);
        after.is_open |= slot.delivery == NOBODY && slot.is_retried;
        match stepped.next {
            // An operator's decision about a stale claim may follow an extension by the claim's owner, who was frozen. The
            // protocol promises nothing to other executors if an operator changes a running claim.
            Next::Apply(_) if is_over_live => after.end(),
            Next::Apply(write) => {
                // A settlement that's sent after a read is a retry too. There's no pause before it, since the read
                // has taken time.
                let is_settlement = !self.is_claim(write);
                after.retries += u8::from(is_settlement && matches!(heard, Heard::Found(_)));
                // A request that's sent again is as ambiguous as it was before. A different request isn't ambiguous.
                after.is_in_doubt = is_in_doubt && write == slot.write;
                (after.stage, after.write) = (Stage::Applying, write);
            }
            Next::Read => (after.stage, after.is_in_doubt) = (Stage::Reading, is_in_doubt),
            Next::Pause => {
                (after.stage, after.is_in_doubt) = (Stage::Pausing, is_in_doubt);
                after.retries += u8::from(delivery.verdict != Verdict::None);
            }
            Next::Extend(write) => {
                (after.stage, after.write) = (Stage::Extending, write);
                // A refusal may have shown that an earlier extension was applied.
                after.held = stepped.held.unwrap_or(after.held);
            }
            Next::Run(held) => {
                (after.stage, after.write, after.held) = (Stage::Running, 0, held);
                self.start(it, slot.delivery, held);
            }
            Next::Ask(held) => {
                (after.stage, after.write, after.held) = (Stage::Running, 0, held);
                after.is_question = true;
                self.ask(it, slot.delivery);
            }
            Next::Open => after.stage = Stage::Running,
            Next::Extended(held) => {
                (after.stage, after.held) = (Stage::Running, held);
                if slot.is_question {
                    it.reach(Mark::ExtendedAsking);
                }
            }
            Next::Unextended => after.stage = Stage::Running,
            Next::Declined => {
                (after.stage, after.is_in_doubt) = (Stage::Running, false);
                // `stepped.held` may be a later claim, which the executor made only to record the outcome.
                if let Some(held) = stepped.held {
                    after.held = held;
                }
                it.explored.deliveries[number].verdict = Verdict::None;
            }
            Next::Replay(record) | Next::Superseded(record) => {
                after.end();
                self.replay(it, record, delivery);
                let owner = self.protocol.owner(slot.delivery, delivery.request);
                let is_own = self.records.get(record).is_some_and(|record| record.owner == owner);
                if !is_own {
                    self.deny(it, slot.delivery);
                }
            }
            Next::Recorded => {
                after.end();
                self.recorded(it, slot);
            }
            Next::Refused => {
                after.end();
                self.refuse(it, slot.delivery);
            }
            Next::Abandoned(until) => {
                after.end();
                let margin = millis(self.configuration.skew_margin + 1);
                let is_true = self.standing(it, slot.delivery).is_none_or(|(record, ends)| {
                    let latest = ends.saturating_add(self.arrives_after(record, slot.delivery) + margin);
                    // A claim that's marked as unanswered becomes claimable sooner than reported, since nothing ran.
                    ends <= until && (until <= latest || record.mark == RecordMark::Unanswered)
                });
                it.flaws.unless(is_true, Invariant::GhostTold);
            }
            Next::Denied => {
                after.end();
                self.deny(it, slot.delivery);
            }
            Next::Resolved(is_written) => {
                after.end();
                self.resolved(it, slot, is_written);
            }
            Next::Over => after.end(),
        }
    }

    /// Whether a write replaces a claim that isn't stale by true time.
    fn is_over_live(&self, it: &Happening, write: u32) -> bool {
        let Some(Put::Replace { seen, .. }) = self.put(write) else { return false };
        let margin = self.configuration.rules().skew_margin;
        let now = self.configuration.moment(it.explored.time);
        seen.lease_until().is_some_and(|lease| now <= lease.saturating_add(margin))
    }

    /// Checks an operator's answer. The answer that nothing was written isn't checked in two cases. After the SDK's retry,
    /// the first attempt may have been applied, and its record replaced. And a claim that was sent before a sweep may
    /// look as if the operator's record had never been there.
    fn resolved(&self, it: &mut Happening, slot: Slot, is_written: bool) {
        let holder = it.explored.deliveries.get(usize::from(it.explored.holder));
        let is_overtaken = holder.is_some_and(|delivery| delivery.is_overtaken);
        if !is_written && (slot.is_retried || slot.is_open || is_overtaken) {
            return;
        }
        it.flaws.unless(it.explored.is_resolved == is_written, Invariant::OperatorTold);
        if let (false, Some(plan)) = (is_written, self.plans.get(slot.plan)) {
            it.explored.unwritten |= operation_of(plan.owner);
        }
    }

    /// Checks an answer that reports the handler's result as stored.
    fn recorded(&self, it: &mut Happening, slot: Slot) {
        let delivery = it.explored.deliveries[usize::from(slot.delivery)];
        let is_unanswered = self.is_unanswered(slot.delivery, delivery.verdict);
        let asks = self.configuration.reconciler_of(slot.delivery).is_some();
        if let (true, true, Some((record, _))) = (is_unanswered, asks, self.standing(it, slot.delivery)) {
            it.flaws.unless(record.mark == RecordMark::Unanswered, Invariant::UnansweredKept);
        }
        // Without a claim there's nothing to release.
        let has_nothing = slot.is_open && delivery.verdict == Verdict::Release || is_unanswered;
        it.flaws.unless(delivery.is_stored || has_nothing, Invariant::RecordedIsStored);
        if delivery.verdict == Verdict::Commit {
            it.flaws.unless(delivery.has_effect, Invariant::EffectsExactlyOnce);
        } else {
            // In an earlier try, the handler may have had its own writes. Its result without them is recorded now. So
            // the earlier transaction must not have been applied, and must never be.
            self.deny(it, slot.delivery);
        }
    }

    /// Notes that the handler starts, and checks that it's allowed to start.
    fn start(&self, it: &mut Happening, delivery: u8, held: u32) {
        let Some(held) = self.claims.get(held) else { return };
        let generation = held.lock.generation.get();
        it.explored.deliveries[usize::from(delivery)].has_started = true;
        if self.configuration.clocks_agree() {
            it.flaws.unless(generation > it.explored.highest_start, Invariant::StartsInOrder);
            it.explored.highest_start = generation.max(it.explored.highest_start);
        }
        // No handler may start after one that runs at most once, whatever its own function's execution is.
        it.flaws.unless(!it.explored.has_run, Invariant::AtMostOnce);
        self.effect_begins(it, delivery);
        it.explored.has_run |= self.configuration.execution_of(delivery) == Execution::AtMostOnce;
        if it.explored.holder == delivery {
            let operation = it.explored.operation;
            it.flaws.unless(
                held.lock.mark.is_interrupted() || !operation.was_interrupted,
                Invariant::TakeoverTold,
            );
            it.flaws.unless(operation.was_left || !held.lock.mark.is_interrupted(), Invariant::TakeoverTrue);
        }
    }

    /// Checks an answer that says that the delivery has claimed nothing.
    fn refuse(&self, it: &mut Happening, delivery: u8) {
        // A claim that must ask is left in the store on purpose, marked as unanswered.
        let is_left = |record: &Record| {
            let asks = self.configuration.reconciler_of(delivery).is_some();
            asks && it.explored.operation.was_left && record.mark == RecordMark::Unanswered
        };
        let stands = self.standing(it, delivery).is_some_and(|(record, _)| !is_left(record));
        let delivery = &mut it.explored.deliveries[usize::from(delivery)];
        delivery.is_refused = true;
        it.flaws.unless(!stands || delivery.is_overtaken, Invariant::GhostTold);
    }

    /// The record that still holds this delivery's claim, if any, and the end of the claim's lease.
    fn standing(&self, it: &Happening, delivery: u8) -> Option<(&Record, Timestamp)> {
        let record = self.records.get(it.explored.record).filter(|_| it.explored.holder == delivery)?;
        Some((record, record.lease_until()?))
    }

    /// Checks the answer of an executor that replays `record`.
    fn replay(&self, it: &mut Happening, record: u32, delivery: Delivery) {
        let Some(record) = self.records.get(record) else { return };
        let of_request = record.fingerprint == configuration::fingerprint(delivery.request);
        it.flaws.unless(of_request, Invariant::MismatchHarmless);
        let (outcome, verdicts) = match &record.state {
            RecordState::Completed(outcome) => {
                (outcome, [Verdict::Complete, Verdict::Commit, Verdict::Found].as_slice())
            }
            RecordState::Failed(outcome) => (outcome, [Verdict::Fail, Verdict::FoundFailed].as_slice()),
            RecordState::Started { .. } | RecordState::Released => {
                it.flaws.unless(false, Invariant::ReplayTrue);
                return;
            }
        };
        let by = author(outcome, record);
        if by == NOBODY {
            it.reach(Mark::OperatorReplayed);
        }
        let author = it.explored.deliveries.get(usize::from(by));
        // A transaction may be applied after its handler has tried again and returned another verdict.
        let said =
            |author: &Delivery| verdicts.contains(&author.verdict) || author.has_writes && author.has_effect;
        let is_true = author.is_none_or(|author| said(author) && author.request == delivery.request);
        it.flaws.unless(is_true, Invariant::ReplayTrue);
        let is_found = author.is_some_and(|author| author.verdict.is_found());
        let is_reconciled = record.mark == RecordMark::Reconciled;
        it.flaws.unless(is_found == is_reconciled, Invariant::ReconciledTrue);
        if is_reconciled {
            it.reach(Mark::ReplayReconciled);
        }
    }

    /// Takes a step of the protocol under test. `step` memoizes the result, so this runs once for each key.
    fn really_step(&mut self, key: StepKey, delivery: u8) -> Stepped {
        let now = self.configuration.clock(key.time, key.clock);
        let event = self.event(key, delivery, now);
        let (Some(state), Some(plan)) = (self.machines.get(key.machine), self.plans.get(key.plan)) else {
            return Stepped {
                machine: 0,
                held: None,
                next: Next::Over,
                flaws: Flaws::NONE,
                coverage: Coverage::NONE,
            };
        };
        let (after, action) = self.protocol.step(P::State::clone(state), Input { now, event: event.clone() });
        let step = Step {
            configuration: self.configuration,
            plan,
            verdict: key.verdict,
            held: self.claims.get(key.held).map(Rc::as_ref),
            is_open: key.is_open,
            is_in_doubt: key.is_in_doubt,
            is_unstorable: key.is_unstorable,
            retries: key.retries,
            ended_at: self.configuration.clock(key.ended_at, key.clock),
            is_asking: is_answer_to_read(key.stage, key.heard),
            sent: self.writes.get(key.write).map(Rc::as_ref),
            event: &event,
            now,
            action: &action,
        };
        let (flaws, coverage) = (step.flaws(), step.coverage());
        let next = match action {
            Action::Put(put) if Purpose::of(&put) == Purpose::Extend => Next::Extend(self.number(put, None)),
            Action::Put(put) => Next::Apply(self.number(put, None)),
            Action::Commit { put, submission } => Next::Apply(self.number(put, Some(submission))),
            Action::Read => Next::Read,
            Action::Pause(_) => Next::Pause,
            Action::Claimed(held) => Next::Run(self.claims.number(held)),
            Action::Ask(held) => Next::Ask(self.claims.number(held)),
            Action::Replay(record) => Next::Replay(self.records.number(record)),
            Action::Settled(End::Recorded) => Next::Recorded,
            Action::Settled(End::Superseded(record)) => Next::Superseded(self.records.number(record)),
            Action::Settled(End::NotCommitted(_) | End::Fenced(_)) => Next::Denied,
            Action::Open => Next::Open,
            Action::Extended(held) => Next::Extended(self.claims.number(held)),
            Action::NotExtended => Next::Unextended,
            Action::Declined(_) => Next::Declined,
            Action::Refused(Refusal::Abandoned(until)) => Next::Abandoned(until),
            // The executor can't read the record. In that case, nothing is checked about a claim left behind.
            Action::Refused(Refusal::Corrupt) => Next::Over,
            Action::Refused(_) => Next::Refused,
            // After `Lost`, the library cuts the handler off. Another explored path covers a handler that ends just
            // before the cut-off.
            Action::Resolved(record) => Next::Resolved(record.is_some()),
            Action::Settled(End::Unrecorded(_)) if delivery == NOBODY => Next::Resolved(false),
            // No executor of this model commits writes without a record.
            Action::Settled(_) | Action::Lost | Action::CommitAlone | Action::Nothing => Next::Over,
        };
        let held = self.protocol.held(&after).map(|held| self.claims.number(held));
        Stepped { machine: self.machines.number(after), held, next, flaws, coverage }
    }

    fn number(&mut self, put: Put, submission: Option<u32>) -> u32 {
        self.writes.number(Sent { put, submission })
    }

    fn event(&self, key: StepKey, delivery: u8, now: Timestamp) -> Event {
        let intent = |verdict, delivery| match self.machines.get(key.machine) {
            Some(state) => self.intent(state, verdict, delivery, now),
            None => Intent::Release { interrupted: false },
        };
        let record = |number| self.records.get(number).map(|record| Record::clone(record));
        match key.heard {
            Heard::Begin => Event::Begin,
            Heard::Applied => Event::Answered(PutOutcome::Applied),
            Heard::Refused(number) => Event::Answered(PutOutcome::Refused(record(number))),
            Heard::Found(number) => Event::Found(record(number)),
            Heard::Failed(kind, maybe_applied) => Event::Failed(Fault { kind, maybe_applied }),
            Heard::Resumed => Event::Resumed,
            Heard::Settle => Event::Settle(intent(key.verdict, delivery)),
            Heard::DidNotHappen => Event::DidNotHappen,
            Heard::Look => Event::Look,
            Heard::Lock => Event::Lock,
            Heard::Extend => Event::Extend(now.saturating_add(millis(self.configuration.lease))),
            Heard::Declined => Event::Declined,
            Heard::Resolve(seen, verdict) => match record(seen) {
                Some(seen) => Event::Resolve { seen: Box::new(seen), intent: intent(verdict, NOBODY) },
                None => Event::Begin,
            },
        }
    }

    /// Returns every step seen so far as an edge: the positions before and after the step, and whether the step calls
    /// the store.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (Position, Position, bool)> {
        self.steps.iter().filter_map(|(key, stepped)| {
            let (stage, calls) = match stepped.next {
                Next::Apply(_) => (Stage::Applying, true),
                Next::Read => (Stage::Reading, true),
                Next::Pause => (Stage::Pausing, false),
                Next::Run(_) | Next::Ask(_) | Next::Open => (Stage::Running, false),
                // The handler decides whether and how often it asks for an extension, or tries again after a
                // declined transaction. So the machine alone doesn't bound these steps.
                Next::Extend(_) | Next::Extended(_) | Next::Unextended | Next::Declined => return None,
                Next::Replay(_)
                | Next::Refused
                | Next::Abandoned(_)
                | Next::Recorded
                | Next::Superseded(_)
                | Next::Denied
                | Next::Resolved(_)
                | Next::Over => return None,
            };
            let settled = self.sent(key.write).is_some() && !self.is_claim(key.write);
            let claims = matches!(stepped.next, Next::Apply(write) if self.is_claim(write));
            // An executor without a claim sends a new conclusion if another delivery's record blocked its last
            // conclusion. `longest_run` explains why neither this step nor a new claim after a settlement is an edge.
            let concludes = matches!(stepped.next, Next::Apply(write)
                if key.is_open && write != key.write && matches!(key.heard, Heard::Refused(_) | Heard::Found(_)));
            if key.verdict != Verdict::None && settled && (claims || concludes) {
                return None;
            }
            // If a response has arrived, the edge begins at the stage of its request: a read or a write.
            let from = match (key.stage, key.heard) {
                (Stage::Answered, heard) if is_answer_to_read(Stage::Answered, heard) => Stage::Reading,
                (Stage::Answered, _) => Stage::Applying,
                (stage, _) => stage,
            };
            Some(((key.machine, from), (stepped.machine, stage), calls))
        })
    }
}

/// Whether an executor at this stage hears the answer to a read, or the read's failure. A lock that another transaction
/// holds shows only once the record has been read.
fn is_answer_to_read(stage: Stage, heard: Heard) -> bool {
    match heard {
        Heard::Found(_) => true,
        Heard::Failed(..) => matches!(stage, Stage::Reading | Stage::Answered),
        _ => stage == Stage::Reading,
    }
}

/// The delivery whose handler returned this outcome.
fn author(outcome: &Outcome, record: &Record) -> u8 {
    match outcome {
        Outcome::Retained(response) => match &response.place {
            Place::Inline(bytes) => bytes.first().copied().unwrap_or(NOBODY),
            Place::Chunks(_) => NOBODY,
        },
        Outcome::Omitted => drawn_by(record.owner).0,
    }
}
