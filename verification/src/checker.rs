//! Performs one [`Choice`] in an explored state, and reports the invariants that break. The executors and the store
//! follow the protocol under test.

mod fault;
mod inside;
mod machine;
mod record;
mod remote;
mod transaction;

use std::{collections::HashMap, rc::Rc, time::Duration};

use lambda_idempotency::{
    protocol::{Held, Intent, Plan},
    store::{Put, Record, State as RecordState, StoreErrorKind},
    time::Timestamp,
};

use crate::{
    configuration::{self, Configuration, Flow, Host},
    coverage::{Coverage, Mark},
    faults::Choice,
    fingerprints::BuildQuick,
    intern::Interner,
    invariants::Flaws,
    model::{Answer, Delivery, ExploredState, Late, NOBODY, Slot, Stage, Verdict},
    under_test::{Protocol, Purpose, Sent, version},
};

/// Checks one protocol in one space, and memoizes every result computed so far.
#[derive(Debug)]
pub struct Checker<'a, P: Protocol> {
    protocol: &'a P,
    configuration: &'a Configuration,
    plans: Interner<Plan>,
    machines: Interner<P::State>,
    writes: Interner<Sent>,
    records: Interner<Record>,
    claims: Interner<Held>,
    steps: HashMap<StepKey, Stepped, BuildQuick>,
    effects: HashMap<(u32, u32), (Stored, bool), BuildQuick>,
    probes: HashMap<u32, bool, BuildQuick>,
}

/// The result of one choice.
#[derive(Clone, Copy, Debug)]
pub struct Happened {
    /// The state afterwards.
    pub explored: ExploredState,
    /// The broken invariants.
    pub flaws: Flaws,
    /// The broken invariants that can't hold in this space; see [`Configuration::exempt`].
    pub exempted: Flaws,
    /// The marks that were reached.
    pub coverage: Coverage,
}

/// The input to an executor's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heard {
    Begin,
    Applied,
    Refused(u32),
    Found(u32),
    Failed(StoreErrorKind, bool),
    Resumed,
    Settle,
    DidNotHappen,
    Look,
    Lock,
    Extend,
    Declined,
    /// An operator, who has seen this record, decides.
    Resolve(u32, Verdict),
}

/// Everything that determines a step and the checks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepKey {
    machine: u32,
    plan: u32,
    write: u32,
    held: u32,
    verdict: Verdict,
    is_open: bool,
    is_in_doubt: bool,
    is_unstorable: bool,
    retries: u8,
    ended_at: u8,
    heard: Heard,
    stage: Stage,
    time: u8,
    clock: u8,
}

/// The memoized result of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepped {
    machine: u32,
    /// The claim that the machine holds after the step.
    held: Option<u32>,
    next: Next,
    flaws: Flaws,
    coverage: Coverage,
}

/// The executor's next action after a step, or the result of its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Apply(u32),
    Extend(u32),
    Read,
    Pause,
    Run(u32),
    /// The remote system is asked for the effect of an earlier attempt, under this claim.
    Ask(u32),
    /// The handler runs without a claim.
    Open,
    /// The handler continues under this claim.
    Extended(u32),
    /// The handler continues under its claim, which wasn't extended.
    Unextended,
    /// The transaction with the handler's own writes was declined. The handler may try again.
    Declined,
    Replay(u32),
    /// The delivery has claimed nothing.
    Refused,
    /// The claim may be in the store until this time.
    Abandoned(Timestamp),
    Recorded,
    Superseded(u32),
    /// The handler's own writes weren't applied, and never will be.
    Denied,
    /// An operator's write was applied (`true`), or nothing was written.
    Resolved(bool),
    Over,
}

/// The store's result for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Put(u32),
    Removed,
    Refused,
    /// The transaction was applied before, or the put is in a transaction that isn't committed. Nothing changes, and the
    /// store answers that the request was applied.
    Repeated,
}

impl Stored {
    /// Whether the write changes nothing.
    fn changes_nothing(self) -> bool {
        matches!(self, Self::Refused | Self::Repeated)
    }
}

impl<'a, P: Protocol> Checker<'a, P> {
    /// A checker for `protocol`.
    pub fn new(protocol: &'a P, configuration: &'a Configuration) -> Self {
        Self {
            protocol,
            configuration,
            plans: Interner::default(),
            machines: Interner::default(),
            writes: Interner::default(),
            records: Interner::default(),
            claims: Interner::default(),
            steps: HashMap::default(),
            effects: HashMap::default(),
            probes: HashMap::default(),
        }
    }

    /// The space being explored.
    pub fn configuration(&self) -> &'a Configuration {
        self.configuration
    }

    /// The record with this number.
    pub fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number).map(Rc::as_ref)
    }

    /// The put with this number.
    pub fn put(&self, number: u32) -> Option<&Put> {
        self.sent(number).map(|sent| &sent.put)
    }

    /// The purpose of the put with this number.
    fn purpose(&self, number: u32) -> Option<Purpose> {
        self.put(number).map(Purpose::of)
    }

    /// Whether the put with this number is a claim.
    fn is_claim(&self, number: u32) -> bool {
        self.purpose(number) == Some(Purpose::Claim)
    }

    /// The request that was sent under this number.
    pub fn sent(&self, number: u32) -> Option<&Sent> {
        self.writes.get(number).map(Rc::as_ref)
    }

    /// The claim with this number.
    pub fn claim(&self, number: u32) -> Option<&Held> {
        self.claims.get(number).map(Rc::as_ref)
    }

    /// The number of machine states seen so far.
    pub fn machines(&self) -> usize {
        self.machines.len()
    }

    /// Performs `choice`. Returns `None` if it's impossible or changes nothing.
    pub fn perform(&mut self, before: &ExploredState, choice: Choice) -> Option<Happened> {
        let mut happening = Happening { explored: *before, flaws: Flaws::NONE, coverage: Coverage::NONE };
        self.happen(&mut happening, choice)?;
        let Happening { mut explored, mut flaws, coverage } = happening;
        if choice.fault().is_some() && explored.faults_left != u8::MAX {
            explored.faults_left -= 1;
        }
        self.look_at_all(&explored, &mut flaws);
        explored.tidy(self.configuration.executors);
        if !self.configuration.clocks_agree() {
            flaws = flaws.timeless();
        }
        flaws = flaws.without(self.protocol.exempt());
        let exempted = flaws.only(self.configuration.exempt());
        flaws = flaws.without(self.configuration.exempt());
        Some(Happened { explored, flaws, exempted, coverage })
    }

    fn happen(&mut self, it: &mut Happening, choice: Choice) -> Option<()> {
        match choice {
            Choice::Wait(at) => it.slot(at).is_urgent = false,
            Choice::Tick => self.tick(it),
            Choice::Sweep => return self.sweep(it),
            Choice::Land(number) => self.land(it, number)?,
            Choice::Operate(verdict) => self.operate(it, verdict)?,
            Choice::Jump(at, clock) => {
                it.slot(at).clock = clock;
                it.explored.jumps_left -= 1;
                it.reach(Mark::ClockJump);
            }
            Choice::Deliver(at, request, flow) => self.deliver(it, at, request, flow, true),
            Choice::DeliverLate(at, request, flow) => self.deliver(it, at, request, flow, false),
            Choice::Answer(at) => self.answer(it, at),
            Choice::Decline(at) => self.decline(it, at)?,
            Choice::Fault(at, fault) => self.strike(it, at, fault)?,
            Choice::Read(at) => {
                let record = it.explored.record;
                let slot = it.slot(at);
                (slot.stage, slot.answer, slot.record) = (Stage::Answered, Answer::Found, record);
                slot.is_urgent = true;
            }
            Choice::Look(at) => self.look(it, at)?,
            Choice::Resume(at) => self.step(it, at, Heard::Resumed),
            Choice::Finish(at, verdict) => self.finish(it, at, verdict)?,
            Choice::Extend(at) => {
                // The holder of a claim may ask for an extension at any time, even after its lease has
                // expired.
                it.explored.extensions_left -= 1;
                self.leave_extension(it, at);
                self.step(it, at, Heard::Extend);
            }
            Choice::CutOff(at) => {
                let slot = *it.slot(at);
                if self.now(it, at) < self.cut_off(&slot)? {
                    return None;
                }
                it.reach(if slot.is_question { Mark::CutOffAsking } else { Mark::CutOff });
                self.effect_is_left(it, at);
                self.leave_extension(it, at);
                it.slot(at).end();
            }
        }
        Some(())
    }

    fn tick(&mut self, it: &mut Happening) {
        it.explored.time += 1;
        for at in 0..self.configuration.slots() as u8 {
            it.slot(at).awake();
            if !it.slot(at).is_active() || it.slot(at).delivery == NOBODY {
                continue;
            }
            let now = self.now(it, at);
            let is_past = self.plan_of(it, at).is_some_and(|plan| now > plan.limits.lease_until);
            if is_past && self.configuration.host == Host::Kills {
                if it.slot(at).is_question {
                    it.reach(Mark::KilledAsking);
                }
                self.effect_is_left(it, at);
                it.slot(at).end();
                it.reach(Mark::Killed);
            }
        }
    }

    fn sweep(&mut self, it: &mut Happening) -> Option<()> {
        let (record, now) = (self.records.get(it.explored.record)?, self.true_time(it));
        if !self.protocol.may_sweep(record, now) {
            return None;
        }
        let expires_at = record.expires_at.unwrap_or(now);
        // In reality, no conclusion recreates a version of the record that the sweeper has removed. An executor sends
        // an ambiguous conclusion again only until the conclusion's record expires, and the last attempt arrives
        // before the sweeper removes the record. A new conclusion comes a round trip later. By then the clock has
        // advanced, so the new conclusion creates a later version. In this model the clock may not have advanced, and
        // both conclusions may create the same version. So the sweeper waits while an executor is sending a conclusion
        // that creates the record's current version.
        let makes = |slot: &Slot| slot.stage == Stage::Applying && self.makes(slot.write, it.explored.record);
        if it.explored.slots.iter().any(makes) {
            return None;
        }
        // The sweeper is slower than the network: when it removes a record, every write that was sent before
        // the expiry has arrived or is lost. (A frozen executor may still send a write that it decided on
        // before the expiry.)
        for late in it.explored.late.iter_mut().filter(|late| late.write != 0) {
            // A late conclusion counts as lost, since the store may refuse it because of the very record that the
            // sweeper is removing. In reality, no request lives long enough to arrive after that record is gone.
            let claim = self.writes.get(late.write).filter(|sent| Purpose::of(&sent.put) == Purpose::Claim);
            let acquired_at = claim.map(|sent| sent.put.record().lock_acquired_at);
            if acquired_at.is_none_or(|acquired_at| acquired_at < expires_at) {
                *late = Late::default();
            } else if let Some(delivery) = it.explored.deliveries.get_mut(usize::from(late.sender)) {
                delivery.is_overtaken = true;
            }
        }
        // An executor that's sending a claim at this moment can't know about the sweep either, so its claim is
        // overtaken too.
        for slot in it.explored.slots {
            if slot.stage == Stage::Applying && self.is_claim(slot.write) {
                it.explored.deliveries[usize::from(slot.delivery)].is_overtaken = true;
            }
        }
        it.reach(match record.state {
            RecordState::Started { .. } => Mark::SweptLock,
            RecordState::Released => Mark::SweptReleased,
            RecordState::Completed(_) | RecordState::Failed(_) => Mark::SweptOutcome,
        });
        self.removed(it, record.status());
        it.explored.record = 0;
        it.explored.has_effect = false;
        Some(())
    }

    /// Whether the write with the number `write` is a conclusion that creates the same version as the record with the
    /// number `record` has.
    fn makes(&self, write: u32, record: u32) -> bool {
        let made = self.put(write).filter(|put| Purpose::of(put) == Purpose::Conclude).map(Put::record);
        made.is_some() && made.map(version) == self.record(record).map(version)
    }

    /// An operator decides on the current record, and sends a write. If an earlier operator's write is still on its way,
    /// it may arrive at any later moment, or never.
    ///
    /// The protocol promises nothing if an operator changes a claim that isn't stale. So in this model an operator
    /// never changes such a claim.
    fn operate(&mut self, it: &mut Happening, verdict: Verdict) -> Option<()> {
        let (record, now) = (self.records.get(it.explored.record)?, self.true_time(it));
        // An operator may decide on a stale claim whose handler still runs, for example in a frozen process. But a settled
        // record stays while its holder's handler runs: the executor gave up on a transaction, the transaction was
        // applied late, and the handler tries again.
        let is_run = |slot: &Slot| {
            slot.delivery == it.explored.holder && matches!(slot.stage, Stage::Running | Stage::Extending)
        };
        if record.lease_until().is_none() && it.explored.slots.iter().any(is_run) {
            return None;
        }
        let margin = self.configuration.rules().skew_margin;
        if record.lease_until().is_some_and(|lease| now <= lease.saturating_add(margin)) {
            return None;
        }
        let at = self.configuration.executors as u8;
        match it.slot(at).stage {
            Stage::Idle => {}
            Stage::Applying => it.put_in_flight(at)?,
            _ => return None,
        }
        let owner = configuration::operator(it.explored.operations_left);
        // An operator's machine has no lease and no deadline, so it doesn't depend on the time.
        let plan = self.configuration.plan(owner, 0, self.configuration.moment(0), true);
        let machine = self.machines.number(self.protocol.begin(&plan));
        let plan = self.plans.number(plan);
        *it.slot(at) = Slot { delivery: NOBODY, plan, machine, ..Slot::default() };
        it.explored.operations_left -= 1;
        it.explored.is_resolved = false;
        it.reach(Mark::Operates);
        self.step(it, at, Heard::Resolve(it.explored.record, verdict));
        Some(())
    }

    /// Delivers a write whose sender gave up on it. If the write's condition fails, the state stays the same, as
    /// if the write hadn't arrived, and only a mark shows the refusal.
    fn land(&mut self, it: &mut Happening, number: u8) -> Option<()> {
        let before = it.explored;
        let Late { write, sender } = std::mem::take(&mut it.explored.late[usize::from(number)]);
        let mark = match self.purpose(write)? {
            Purpose::Claim => Mark::LateClaimLands,
            Purpose::Extend => Mark::LateExtensionLands,
            Purpose::Conclude => Mark::LateConclusionLands,
            Purpose::Interrupt => Mark::LateInterruptionLands,
            _ if self.is_transaction(write) => Mark::LateTransactionLands,
            Purpose::Settle | Purpose::Resolve => Mark::LateSettlementLands,
        };
        let mark = match self.store(it, write, sender)? {
            Stored::Refused if sender == NOBODY => {
                it.explored = before;
                Mark::OperatorLost
            }
            Stored::Refused => {
                it.explored = before;
                Mark::LateRefused
            }
            Stored::Repeated => {
                it.explored = before;
                Mark::LateRepeated
            }
            // `resolved` has already reached the mark for the state that the operator settled.
            _ if sender == NOBODY => Mark::Operates,
            _ => mark,
        };
        it.reach(mark);
        Some(())
    }

    fn deliver(&mut self, it: &mut Happening, at: u8, request: u8, flow: Flow, has_time: bool) {
        let number = it.explored.delivered;
        it.explored.delivered += 1;
        it.explored.deliveries[usize::from(number)] = Delivery { request, ..Delivery::default() };
        let active: Vec<_> = it.explored.slots.iter().filter(|slot| slot.is_active()).copied().collect();
        if !active.is_empty() {
            it.reach(Mark::Duplicate);
            let ahead = |clock: u8| self.configuration.clocks.get(usize::from(clock));
            let own = ahead(it.slot(at).clock);
            if active.iter().any(|slot| ahead(slot.clock) != own) {
                it.reach(Mark::ClocksApart);
            }
        }
        if request != 0 {
            it.reach(Mark::OtherRequest);
        }
        if !has_time {
            it.reach(Mark::NoTime);
        }
        let now = self.now(it, at);
        let owner = self.protocol.owner(number, request);
        let plan = self.configuration.plan(owner, request, now, has_time);
        let machine = self.machines.number(self.protocol.begin(&plan));
        let plan = self.plans.number(plan);
        let slot = it.slot(at);
        slot.attempts_left -= 1;
        (slot.delivery, slot.plan, slot.machine) = (number, plan, machine);
        slot.is_open = flow != Flow::Claim;
        match flow {
            Flow::Claim => self.step(it, at, Heard::Begin),
            Flow::Look => self.step(it, at, Heard::Look),
            Flow::Inside => self.step(it, at, Heard::Lock),
            // The machine takes no step before the handler has ended.
            Flow::Blind => {
                (slot.stage, slot.is_urgent) = (Stage::Running, true);
                it.reach(Mark::Blind);
            }
        }
    }

    /// Delivers the executor's write to the store, and the response to the executor.
    fn answer(&mut self, it: &mut Happening, at: u8) {
        let (write, sender) = it.sent_by(at);
        let is_claim = self.is_claim(write);
        let is_extension = it.slot(at).stage == Stage::Extending;
        match self.store(it, write, sender) {
            // The step after an extension's response doesn't depend on the time, so it's taken at once.
            Some(Stored::Refused) if is_extension => self.step(it, at, Heard::Refused(it.explored.record)),
            Some(Stored::Refused) | None => {
                let record = it.explored.record;
                let is_own = it.slot(at).is_retried && it.explored.holder == sender;
                if is_own {
                    it.reach(Mark::OwnRetryRefused);
                }
                let slot = it.slot(at);
                (slot.stage, slot.answer, slot.record) = (Stage::Answered, Answer::Refused, record);
                slot.is_urgent = true;
            }
            Some(_) if is_claim => {
                let slot = it.slot(at);
                (slot.stage, slot.answer) = (Stage::Answered, Answer::Applied);
                slot.is_urgent = true;
            }
            // The step after a settlement's response doesn't depend on the time, so it's taken at once.
            Some(_) => self.step(it, at, Heard::Applied),
        }
    }

    fn look(&mut self, it: &mut Happening, at: u8) -> Option<()> {
        let (slot, now) = (*it.slot(at), self.now(it, at));
        if self.plan_of(it, at).is_some_and(|plan| now > plan.limits.lease_until) {
            it.reach(Mark::ThawedAnswer);
        }
        let heard = match slot.answer {
            Answer::Applied => Heard::Applied,
            Answer::Refused => Heard::Refused(slot.record),
            Answer::Found if self.is_locked(it, at) => Heard::Failed(StoreErrorKind::Conflict, false),
            Answer::Found => Heard::Found(slot.record),
            Answer::None => return None,
        };
        self.step(it, at, heard);
        Some(())
    }

    /// Ends the handler. Under at-most-once, only a handler's explicit statement that nothing happened releases the
    /// key. [`Verdict::Release`] models this statement.
    fn finish(&mut self, it: &mut Happening, at: u8, verdict: Verdict) -> Option<()> {
        let (slot, now) = (*it.slot(at), self.now(it, at));
        match slot.is_question {
            true => self.answers(it, at, verdict)?,
            false => self.effect_ends(it, at, verdict)?,
        }
        if self.claims.get(slot.held).is_some_and(|held| now > held.lock.lease_until) {
            it.reach(Mark::Frozen);
        }
        self.leave_extension(it, at);
        it.slot(at).is_question = false;
        if verdict == Verdict::Absent {
            self.step(it, at, Heard::DidNotHappen);
            return Some(());
        }
        let delivery = &mut it.explored.deliveries[usize::from(slot.delivery)];
        delivery.has_writes |= verdict == Verdict::Commit;
        delivery.verdict = verdict;
        let has_end = self.configuration.settle_within != Duration::MAX;
        let ended_at = if has_end { it.explored.time } else { 0 };
        let slot = it.slot(at);
        (slot.retries, slot.ended_at, slot.is_unstorable) = (0, ended_at, false);
        self.step(it, at, Heard::Settle);
        Some(())
    }

    /// The intent of `verdict`, with the response of `delivery`.
    fn intent(&self, state: &P::State, verdict: Verdict, delivery: u8, now: Timestamp) -> Intent {
        let response = || configuration::response(delivery, verdict);
        let again = (verdict == Verdict::NotYet).then(|| configuration::millis(configuration::TICK));
        match verdict {
            _ if self.is_unanswered(delivery, verdict) => self.protocol.unanswered(state, now, again),
            Verdict::Complete | Verdict::Found => Intent::Complete(response()),
            Verdict::Commit => Intent::Commit(response()),
            Verdict::Fail | Verdict::FoundFailed => Intent::Fail(response()),
            verdict => Intent::Release { interrupted: verdict == Verdict::Panic },
        }
    }

    fn true_time(&self, it: &Happening) -> Timestamp {
        self.configuration.moment(it.explored.time)
    }

    fn now(&self, it: &mut Happening, at: u8) -> Timestamp {
        self.configuration.clock(it.explored.time, it.slot(at).clock)
    }

    fn plan_of(&self, it: &mut Happening, at: u8) -> Option<Rc<Plan>> {
        self.plans.get(it.slot(at).plan).cloned()
    }
}

/// A machine's position: the number of its state, and its executor's stage. The stage shows the event that the machine
/// waits for.
pub(crate) type Position = (u32, Stage);

/// The state while the checker performs a choice, with the invariants broken and the marks reached so far.
#[derive(Debug)]
struct Happening {
    explored: ExploredState,
    flaws: Flaws,
    coverage: Coverage,
}

impl Happening {
    fn slot(&mut self, at: u8) -> &mut Slot {
        &mut self.explored.slots[usize::from(at)]
    }

    fn reach(&mut self, mark: Mark) {
        self.coverage.reach(mark);
    }

    fn sent_by(&mut self, at: u8) -> (u32, u8) {
        let slot = self.slot(at);
        (slot.write, slot.delivery)
    }
}
