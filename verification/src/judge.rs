//! Checks one step of the machine without the rest of the explored state, and finds the marks that the step reaches.

mod reached;
mod rivals;
mod transaction;

use lambda_idempotency::{
    protocol::{Action, Decline, End, Event, Fault, Held, Plan, Refusal},
    settings::Execution,
    store::{
        Outcome, Record, Revision, Settlement, State as RecordState, StoreErrorKind, Write, WriteOutcome,
    },
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, DAY, millis},
    invariants::{Flaws, Invariant},
    model::Verdict,
    under_test::Sent,
};

/// The minimum retention of a lock beyond its lease, in milliseconds. This value and the next one aren't taken from
/// the library's constants, so that a wrong constant in the library is found.
const LOCK_RETENTION: i64 = DAY;
/// The minimum lease of a claim that only records an outcome, in milliseconds.
const RECORDING_LEASE: i64 = 10_000;

/// How long an interrupted claim keeps its key, in milliseconds.
const INTERRUPTED_LEASE: i64 = 10_000;

/// One step, as an outside observer sees it.
#[derive(Debug)]
pub struct Step<'a> {
    /// The space being explored.
    pub configuration: &'a Configuration,
    /// The delivery's intended claim.
    pub plan: &'a Plan,
    /// How the handler ended, if it has run.
    pub verdict: Verdict,
    /// The claim under which the handler runs, or ran.
    pub held: Option<&'a Held>,
    /// Whether the handler runs, or ran, without a claim.
    pub is_open: bool,
    /// Whether an earlier attempt at the last request had an ambiguous result.
    pub is_in_doubt: bool,
    /// Whether the store has reported that it can never store the response.
    pub is_unstorable: bool,
    /// How often the executor has retried a request to the store since the handler ended.
    pub retries: u8,
    /// When the handler ended, by the executor's clock.
    pub ended_at: Timestamp,
    /// Whether the event is the response to a read, or the read's failure.
    pub is_asking: bool,
    /// The last request that was sent.
    pub sent: Option<&'a Sent>,
    /// The event.
    pub event: &'a Event,
    /// The time of the step, by the executor's clock.
    pub now: Timestamp,
    /// The machine's action.
    pub action: &'a Action,
}

impl Step<'_> {
    fn has_run(&self) -> bool {
        self.verdict != Verdict::None
    }

    /// The last write that was sent.
    fn write(&self) -> Option<&Write> {
        self.sent.map(|sent| &sent.write)
    }

    /// Whether the last request extended the lease of a running handler.
    fn was_extension(&self) -> bool {
        !self.has_run() && matches!(self.write(), Some(Write::Extend { .. }))
    }

    /// The record that the event shows.
    fn shown(&self) -> Option<&Record> {
        match self.event {
            Event::Answered(WriteOutcome::Refused(record)) | Event::Found(record) => record.as_ref(),
            _ => None,
        }
    }

    fn has_passed(&self, time: Timestamp) -> bool {
        time.saturating_add(millis(self.configuration.skew_margin)) < self.now
    }

    /// Whether the last request released an abandoned claim. The claim isn't used any more, so the answer
    /// doesn't matter.
    fn gives_back(&self) -> bool {
        !self.has_run() && matches!(self.write(), Some(Write::Settle { .. }))
    }

    /// Whether the last request was a claim rather than a settlement.
    fn was_claim(&self) -> bool {
        self.write().is_some_and(|write| write.lock().is_some())
    }

    /// The invariants that the step breaks.
    pub fn flaws(&self) -> Flaws {
        let mut flaws = Flaws::NONE;
        flaws.unless(*self.action != Action::Nothing, Invariant::MachineAnswers);
        self.doubt(&mut flaws);
        self.own(&mut flaws);
        self.token(&mut flaws);
        self.patience(&mut flaws);
        if let (true, Event::Answered(WriteOutcome::Refused(record))) = (self.was_extension(), self.event) {
            let is_mine = record.as_ref().is_some_and(|record| self.is_under_claim(record));
            flaws.unless(is_mine || *self.action == Action::Lost, Invariant::OwnerExtends);
        }
        if self.is_open && self.has_run() {
            self.rivals(&mut flaws);
        } else if !self.has_run() && !self.gives_back() && !self.was_extension() {
            self.strangers(&mut flaws);
        }
        match self.action {
            Action::Claimed(held) => {
                flaws.unless(self.is_granted(held), Invariant::GrantBeforeStart);
                flaws.unless(self.now < self.plan.usable_until, Invariant::StartInTime);
            }
            Action::Open => flaws.unless(self.now < self.plan.usable_until, Invariant::StartInTime),
            Action::Extended(held) => {
                flaws.unless(self.is_granted(held), Invariant::GrantBeforeStart);
                let grows = self.held.is_none_or(|before| before.lease_until <= held.lease_until);
                flaws.unless(grows, Invariant::LeasesGrow);
            }
            Action::Apply(write) | Action::Commit { write, .. } if Some(write) != self.write() => {
                self.sends(write, &mut flaws);
            }
            _ => {}
        }
        if let Event::Settle(_) = self.event {
            let is_sent = match self.action {
                Action::Apply(Write::Settle { .. }) | Action::Commit { write: Write::Settle { .. }, .. } => {
                    !self.is_open
                }
                Action::Apply(Write::Conclude { .. })
                | Action::Commit { write: Write::Conclude { .. }, .. } => self.is_open,
                // Without a claim there's nothing to release.
                Action::Settled(End::Recorded | End::Unresolved(_)) if self.is_open => {
                    matches!(self.verdict, Verdict::Release | Verdict::Interrupt)
                }
                // Under at-most-once, the claim stays as it is.
                Action::Settled(End::Recorded) => {
                    self.verdict == Verdict::Interrupt && self.plan.rules.execution == Execution::AtMostOnce
                }
                Action::Read => self.verdict == Verdict::Interrupt,
                _ => false,
            };
            flaws.unless(is_sent, Invariant::OwnerNotRefused);
        }
        flaws
    }

    /// Whether `record` is the claim that the handler runs under.
    fn is_under_claim(&self, record: &Record) -> bool {
        self.held.is_some_and(|held| {
            record.owner == held.owner
                && record.generation == held.generation
                && record.lease_until().is_some()
        })
    }

    fn doubt(&self, flaws: &mut Flaws) {
        let is_doubtful = matches!(self.event, Event::Failed(Fault { maybe_applied: true, kind })
            if *kind != StoreErrorKind::Corrupt);
        // It doesn't matter whether an ambiguous extension was applied: the lease lasts at least as long as before.
        if !is_doubtful || self.gives_back() || self.was_extension() {
            return;
        }
        // The executor must read the record, with two exceptions. It may send a transaction or a conclusion again,
        // unchanged, before it reads. After a conflict, it may pause first.
        let is_looked_into = match self.action {
            Action::Read => true,
            Action::Pause(_) => {
                matches!(self.event, Event::Failed(fault) if fault.kind == StoreErrorKind::Conflict)
            }
            action => self.is_commit() && self.repeats(action),
        };
        flaws.unless(is_looked_into, Invariant::DoubtLookedInto);
    }

    /// Checks that the executor gives up on a failing store only when its retries or its time are used up.
    fn patience(&self, flaws: &mut Flaws) {
        let may_be_asked_again = match self.event {
            Event::Failed(fault) => matches!(
                fault.kind,
                StoreErrorKind::Unavailable | StoreErrorKind::Conflict | StoreErrorKind::Rejected
            ),
            _ => self.shown().is_some_and(|record| self.is_under_claim(record)),
        };
        let is_given_up = match self.action {
            Action::Settled(End::Unrecorded(_) | End::Unresolved(_) | End::NotCommitted(_)) => true,
            Action::Declined(why) => *why != Decline::Condition,
            _ => false,
        };
        if !self.has_run() || !may_be_asked_again || !is_given_up {
            return;
        }
        let by = self.ended_at.saturating_add(self.configuration.settle_within);
        let is_over = self.retries >= self.configuration.max_retries || by <= self.now;
        flaws.unless(is_over, Invariant::SettledPatiently);
    }

    /// Checks that the machine recognises its own record.
    fn own(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner == self.plan.owner) else { return };
        let settles = |release_only: bool| {
            matches!(self.action,
                Action::Apply(Write::Settle { owner, generation, settlement })
                | Action::Commit { write: Write::Settle { owner, generation, settlement }, .. }
                if *owner == record.owner
                    && *generation == record.generation
                    && (!release_only || matches!(settlement, Settlement::Release { .. })))
        };
        let is_current = self.held.is_some_and(|held| held.generation == record.generation);
        let is_recognised = match (&record.state, self.verdict) {
            // If the record has the held claim's generation, an earlier extension already made the lease at least as
            // long as requested. A different generation would belong to a later claim of this executor. No such
            // claim exists while the handler runs.
            (RecordState::Started { .. }, Verdict::None) if self.was_extension() => {
                !is_current || matches!(self.action, Action::Extended(_))
            }
            (RecordState::Started { .. }, Verdict::None) => {
                matches!(self.action, Action::Claimed(_)) || settles(true) || self.gives_back()
            }
            // The record is another claim of this executor, not the claim that it releases.
            (RecordState::Started { .. }, Verdict::Release | Verdict::Panic | Verdict::Interrupt)
                if !is_current =>
            {
                true
            }
            (RecordState::Started { lease_until }, Verdict::Interrupt) => {
                let is_short = *lease_until <= self.now.saturating_add(millis(INTERRUPTED_LEASE));
                match self.action {
                    Action::Settled(End::Recorded) => is_short,
                    Action::Settled(End::Unrecorded(_) | End::Unresolved(_)) | Action::Pause(_) => !is_short,
                    Action::Apply(write) => !is_short && write.is_interruption(),
                    _ => false,
                }
            }
            (RecordState::Started { .. }, _) => {
                let is_given_up = |end: &End| matches!(end, End::Unrecorded(_) | End::Unresolved(_));
                settles(false)
                    || matches!(self.action, Action::Pause(_))
                    || matches!(self.action, Action::Settled(end) if is_given_up(end))
            }
            // If the outcome isn't that of the last request, an earlier transaction of this executor stored it. That
            // transaction was reported as declined, but was applied after all.
            (RecordState::Completed(_) | RecordState::Failed(_), _)
                if (is_current || self.is_open) && self.has_run() && !self.was_claim() =>
            {
                *self.action
                    == if self.sent.is_some_and(|sent| sent.is_in(record)) {
                        Action::Settled(End::Recorded)
                    } else {
                        Action::Settled(End::Superseded(Record::clone(record)))
                    }
            }
            (RecordState::Released, Verdict::Release | Verdict::Panic)
                // An executor may claim again to record its outcome, and then find its own late release. It
                // treats that record like any other, since the record may have expired.
                if is_current && !self.was_claim() =>
            {
                *self.action == Action::Settled(End::Recorded)
            }
            _ => true,
        };
        flaws.unless(is_recognised, Invariant::OwnRecognised);
    }

    /// Checks that the machine takes the step that another owner's record requires.
    fn strangers(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner != self.plan.owner) else { return };
        let matches = record.fingerprint == self.plan.fingerprint;
        let is_expired = record.expires_at.is_some_and(|expires_at| self.has_passed(expires_at));
        let (is_live, is_settled) = match record.state {
            RecordState::Started { lease_until } => (!(self.has_passed(lease_until) && is_expired), false),
            RecordState::Completed(_) | RecordState::Failed(_) => (!is_expired, true),
            RecordState::Released => (false, false),
        };
        if is_live && !matches {
            flaws.unless(*self.action == Action::Refused(Refusal::Mismatch), Invariant::MismatchHarmless);
        }
        if is_live && is_settled && matches {
            let is_replayed = matches!(self.action, Action::Replay(replayed) if replayed == record);
            flaws.unless(is_replayed, Invariant::ReplayTrue);
        }
        if !is_live && is_settled {
            flaws.unless(!matches!(self.action, Action::Replay(_)), Invariant::ExpiredNotReplayed);
        }
    }

    /// Whether the store has granted `held`, and this executor knows it from the response or from the record.
    fn is_granted(&self, held: &Held) -> bool {
        let granted = match (self.event, self.write()) {
            (
                Event::Answered(WriteOutcome::Applied),
                Some(Write::Extend { owner, generation, lease_until, .. }),
            ) => Some((*owner, *generation, *lease_until)),
            (Event::Answered(WriteOutcome::Applied), Some(write)) => {
                write.lock().map(|lock| (lock.owner, lock.generation, lock.lease_until))
            }
            _ => self.shown().and_then(|record| {
                record.lease_until().map(|lease_until| (record.owner, record.generation, lease_until))
            }),
        };
        granted == Some((held.owner, held.generation, held.lease_until)) && held.owner == self.plan.owner
    }

    fn sends(&self, write: &Write, flaws: &mut Flaws) {
        let retention = self.configuration.retention;
        if let Some(lock) = write.lock() {
            flaws.unless(self.has_run() || self.now < self.plan.usable_until, Invariant::StartInTime);
            let recording = lock.lock_acquired_at.saturating_add(millis(RECORDING_LEASE));
            let bound =
                if self.has_run() { self.plan.lease_until.max(recording) } else { self.plan.lease_until };
            flaws.unless(lock.lease_until <= bound, Invariant::LeaseBounded);
            flaws.unless(self.is_kept_open(lock.lease_until, lock.expires_at), Invariant::ExpiryPromised);
        }
        flaws.unless(self.is_unstorable || !is_omitted(write), Invariant::ResponseKept);
        let least = self.now.saturating_add(millis(retention));
        match write {
            Write::Settle { settlement, .. } => {
                let lease = self.lease();
                let (expires_at, least) = match settlement {
                    // A declined transaction may be applied late, while its handler still runs. The handler may run
                    // until its lease ends, so the record must last until then.
                    Settlement::Complete(_, expires_at) if matches!(self.action, Action::Commit { .. }) => {
                        let margin = millis(self.configuration.skew_margin);
                        (expires_at, least.max(lease.saturating_add(margin)))
                    }
                    Settlement::Complete(_, expires_at) | Settlement::Fail(_, expires_at) => {
                        (expires_at, least)
                    }
                    Settlement::Release { expires_at, .. } => {
                        (expires_at, lease.saturating_add(millis(retention.max(LOCK_RETENTION))))
                    }
                };
                flaws.unless(promised(*expires_at, least), Invariant::ExpiryPromised);
            }
            Write::Conclude { record, .. } => {
                let is_promised = record.expires_at.is_some_and(|expires_at| promised(expires_at, least));
                flaws.unless(is_promised, Invariant::ExpiryPromised);
                let is_own = record.owner == self.plan.owner && record.fingerprint == self.plan.fingerprint;
                flaws.unless(is_own && record.lease_until().is_none(), Invariant::VerdictKept);
            }
            Write::Extend { owner, generation, lease_until, expires_at } => {
                let held = self.held.map(|held| (held.owner, held.generation));
                flaws.unless(held == Some((*owner, *generation)), Invariant::OwnerExtends);
                let grows = self.held.is_some_and(|held| held.lease_until < *lease_until);
                flaws.unless(grows, Invariant::LeasesGrow);
                let bound = self.now.saturating_add(millis(self.configuration.lease));
                flaws.unless(*lease_until <= bound, Invariant::LeaseBounded);
                flaws.unless(self.is_kept_open(*lease_until, *expires_at), Invariant::ExpiryPromised);
            }
            Write::TakeOver { seen, lock } if write.is_interruption() => {
                let is_own = self
                    .held
                    .is_some_and(|held| (held.owner, held.generation) == (lock.owner, lock.generation))
                    && self.verdict == Verdict::Interrupt
                    && self.plan.rules.execution == Execution::AtLeastOnce;
                let is_seen = self.shown().is_some_and(|record| *seen == Revision::of(record));
                let is_short = lock.lease_until == self.now.saturating_add(millis(INTERRUPTED_LEASE));
                flaws.unless(is_own && is_seen && is_short, Invariant::OwnerInterrupts);
            }
            _ => {}
        }
    }

    /// Whether a claim with this lease and this expiry is kept as long as promised. Under at-most-once, the claim must
    /// never expire.
    fn is_kept_open(&self, lease_until: Timestamp, expires_at: Option<Timestamp>) -> bool {
        let retention = millis(self.configuration.retention.max(LOCK_RETENTION));
        match self.plan.rules.execution {
            Execution::AtLeastOnce => expires_at
                .is_some_and(|expires_at| promised(expires_at, lease_until.saturating_add(retention))),
            Execution::AtMostOnce => expires_at.is_none(),
        }
    }

    /// The end of the lease of the claim being settled.
    fn lease(&self) -> Timestamp {
        let own = self.shown().filter(|record| record.owner == self.plan.owner).and_then(Record::lease_until);
        let granted = self.write().and_then(Write::lock).map(|lock| lock.lease_until);
        let held = self.held.map(|held| held.lease_until);
        own.or(granted).or(held).unwrap_or(self.plan.lease_until)
    }
}

/// Whether a write leaves out the outcome's response. In this model, every handler returns a response, so `Omitted`
/// means that the response was left out.
fn is_omitted(write: &Write) -> bool {
    let outcome = match write {
        Write::Settle {
            settlement: Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _), ..
        } => outcome,
        Write::Conclude { record, .. } => match &record.state {
            RecordState::Completed(outcome) | RecordState::Failed(outcome) => outcome,
            RecordState::Started { .. } | RecordState::Released => return false,
        },
        _ => return false,
    };
    *outcome == Outcome::Omitted
}

/// Whether an expiry is as promised: at `least`, or at most a second later, since expiries are rounded up.
fn promised(expires_at: Timestamp, least: Timestamp) -> bool {
    least <= expires_at && expires_at <= least.saturating_add(millis(1000))
}
