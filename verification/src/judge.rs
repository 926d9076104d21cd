//! Checks one step of the machine without the rest of the explored state, and finds the marks that the step reaches.

mod operator;
mod reached;
mod reconcile;
mod rivals;
mod transaction;

use lambda_idempotency::{
    protocol::{Action, Decline, End, Event, Fault, Held, Plan, Refusal},
    settings::Execution,
    store::{Lock, Outcome, Put, PutOutcome, Record, State as RecordState, Status, StoreErrorKind},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, DAY, millis},
    invariants::{Flaws, Invariant},
    model::Verdict,
    under_test::{Purpose, Sent, outcome},
};

/// The minimum retention of a lock beyond its lease, in milliseconds. This value and the next one aren't taken from
/// the library's constants, so that a wrong constant in the library is found.
const LOCK_RETENTION: i64 = DAY;
/// The minimum lease of a claim that only records an outcome, in milliseconds.
const RECORDING_LEASE: i64 = 10_000;

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

    /// The last put that was sent.
    fn put(&self) -> Option<&Put> {
        self.sent.map(|sent| &sent.put)
    }

    /// Whether the last put had this purpose.
    fn was(&self, purpose: Purpose) -> bool {
        self.put().map(Purpose::of) == Some(purpose)
    }

    /// Whether the handler runs, or ran, in its caller's transaction.
    fn is_inside(&self) -> bool {
        self.is_open && self.configuration.is_inside()
    }

    /// Whether the last request put the outcome into the caller's transaction. Without a commit, it's never applied.
    fn was_put_inside(&self) -> bool {
        self.is_inside() && !self.is_asking && self.sent.is_some_and(|sent| sent.submission.is_none())
    }

    /// Whether the last request extended the lease of a running handler.
    fn was_extension(&self) -> bool {
        !self.has_run() && self.was(Purpose::Extend)
    }

    /// The record that the event shows.
    fn shown(&self) -> Option<&Record> {
        match self.event {
            Event::Answered(PutOutcome::Refused(record)) | Event::Found(record) => record.as_ref(),
            _ => None,
        }
    }

    fn has_passed(&self, time: Timestamp) -> bool {
        time.saturating_add(millis(self.configuration.skew_margin)) < self.now
    }

    /// Whether the last request released an abandoned claim. The claim isn't used any more, so the answer
    /// doesn't matter.
    fn gives_back(&self) -> bool {
        self.was_left() || !self.has_run() && self.was(Purpose::Settle)
    }

    /// Whether the last request was a claim rather than a settlement.
    fn was_claim(&self) -> bool {
        self.was(Purpose::Claim)
    }

    /// The put that the action sends.
    fn sends(&self) -> Option<&Put> {
        match self.action {
            Action::Put(put) | Action::Commit { put, .. } => Some(put),
            _ => None,
        }
    }

    /// The invariants that the step breaks.
    pub fn flaws(&self) -> Flaws {
        let mut flaws = Flaws::NONE;
        flaws.unless(*self.action != Action::Nothing, Invariant::MachineAnswers);
        if self.is_operators() {
            self.operator(&mut flaws);
            return flaws;
        }
        self.doubt(&mut flaws);
        self.own(&mut flaws);
        self.token(&mut flaws);
        self.patience(&mut flaws);
        if let (true, Event::Answered(PutOutcome::Refused(record))) = (self.was_extension(), self.event) {
            let is_mine = record.as_ref().is_some_and(|record| self.is_under_claim(record));
            flaws.unless(is_mine || *self.action == Action::Lost, Invariant::OwnerExtends);
        }
        if self.is_open && self.has_run() {
            self.rivals(&mut flaws);
        } else if !self.has_run() && !self.gives_back() && !self.was_extension() {
            self.strangers(&mut flaws);
        }
        match self.action {
            // After a question, the claim was granted earlier.
            Action::Claimed(held) | Action::Ask(held) if *self.event != Event::DidNotHappen => {
                flaws.unless(self.is_granted(held), Invariant::GrantBeforeStart);
            }
            Action::Open => flaws.unless(self.now < self.plan.start_by(), Invariant::StartInTime),
            Action::Extended(held) => {
                flaws.unless(self.is_granted(held), Invariant::GrantBeforeStart);
                let grows = self.held.is_none_or(|before| before.lock.lease_until <= held.lock.lease_until);
                flaws.unless(grows, Invariant::LeasesGrow);
            }
            Action::Put(put) | Action::Commit { put, .. } if Some(put) != self.put() => {
                self.contents(put, &mut flaws);
            }
            _ => {}
        }
        self.begins(&mut flaws);
        if let Event::Settle(_) = self.event {
            let is_sent = match (self.sends().map(Purpose::of), self.action) {
                (Some(Purpose::Settle), _) => !self.is_open && !self.is_unanswered(),
                (Some(Purpose::Interrupt), _) => !self.is_open && self.is_unanswered(),
                (Some(Purpose::Conclude), _) => self.is_open,
                // Without a claim there's nothing to release.
                (None, Action::Settled(End::Recorded | End::Unresolved(_))) if self.is_open => {
                    matches!(self.verdict, Verdict::Release | Verdict::Interrupt)
                }
                // Under at-most-once, the claim stays as it is.
                (None, Action::Settled(End::Recorded)) => {
                    let is_final = self.plan.rules.execution == Execution::AtMostOnce
                        && self.plan.rules.reconcile.is_none();
                    self.is_unanswered() && is_final
                }
                _ => false,
            };
            flaws.unless(is_sent, Invariant::OwnerNotRefused);
        }
        flaws
    }

    /// Whether `record` is the claim that the handler runs under.
    fn is_under_claim(&self, record: &Record) -> bool {
        self.held.is_some_and(|held| {
            record.owner == held.lock.owner
                && record.generation == held.lock.generation
                && record.lease_until().is_some()
        })
    }

    fn doubt(&self, flaws: &mut Flaws) {
        let is_doubtful = matches!(self.event, Event::Failed(Fault { maybe_applied: true, kind })
            if *kind != StoreErrorKind::Corrupt);
        // It doesn't matter whether an ambiguous extension was applied: the lease lasts at least as long as before.
        if !is_doubtful || self.gives_back() || self.was_extension() || self.was_put_inside() {
            return;
        }
        // The executor must read the record, with two exceptions. It may send a transaction or a conclusion again,
        // unchanged, before it reads. After a conflict, it may pause first.
        let is_looked_into = match self.action {
            Action::Read => true,
            Action::Pause(_) => {
                matches!(self.event, Event::Failed(fault) if fault.kind == StoreErrorKind::Conflict)
            }
            // A commit of the caller's transaction can't be sent again.
            action => !self.is_inside() && self.is_commit() && self.repeats(action),
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
        // A failed statement ends the caller's transaction.
        let ends_transaction = self.is_inside() && !self.is_asking;
        if !self.has_run() || !may_be_asked_again || !is_given_up || ends_transaction {
            return;
        }
        let by = self.ended_at.saturating_add(self.configuration.settle_within);
        let is_over = self.retries >= self.configuration.max_retries || by <= self.now;
        flaws.unless(is_over, Invariant::SettledPatiently);
    }

    /// Checks that the machine recognises its own record.
    fn own(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner == self.plan.owner) else { return };
        let settles = |only: &[Status]| {
            let put = self.sends().filter(|put| Purpose::of(put) == Purpose::Settle).map(Put::record);
            put.is_some_and(|new| {
                new.owner == record.owner
                    && new.generation == record.generation
                    && only.contains(&new.status())
            })
        };
        let is_current = self.held.is_some_and(|held| held.lock.generation == record.generation);
        let is_recognised = match (&record.state, self.verdict) {
            // If the record has the held claim's generation, an earlier extension has moved the lease. If it's long
            // enough now, the handler continues. Otherwise, the executor extends the record that it was shown. A
            // different generation would belong to a later claim of this executor. No such claim exists while the
            // handler runs.
            (RecordState::Started { lease_until }, Verdict::None) if self.was_extension() => {
                let is_enough = self.put().map(Put::record).and_then(Record::lease_until) <= Some(*lease_until);
                match self.action {
                    Action::Extended(held) => is_enough && held.lock.lease_until == *lease_until,
                    Action::Put(Put::Replace { seen, .. }) => !is_enough && seen == record,
                    _ => !is_current,
                }
            }
            (RecordState::Started { .. }, Verdict::None) => {
                matches!(self.action, Action::Claimed(_) | Action::Ask(_))
                    || settles(&[Status::Released])
                    || self.sends().map(Purpose::of) == Some(Purpose::Interrupt)
                    || self.gives_back()
            }
            // The record is another claim of this executor, not the claim that it releases.
            (RecordState::Started { .. }, verdict)
                if !is_current && (self.is_unanswered() || verdict == Verdict::Release || verdict == Verdict::Panic) =>
            {
                true
            }
            (RecordState::Started { .. }, _) if self.is_unanswered() => {
                let is_there = self.shows_left(record);
                match self.action {
                    Action::Settled(End::Recorded) => is_there,
                    Action::Settled(End::Unrecorded(_) | End::Unresolved(_)) | Action::Pause(_) => !is_there,
                    Action::Put(put) => !is_there && Purpose::of(put) == Purpose::Interrupt,
                    _ => false,
                }
            }
            (RecordState::Started { .. }, _) => {
                let is_given_up = |end: &End| matches!(end, End::Unrecorded(_) | End::Unresolved(_));
                settles(&[Status::Completed, Status::Failed, Status::Released])
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
        self.waits(record, flaws);
        let (is_live, is_settled) = match record.state {
            RecordState::Started { .. } => (self.is_held_lock(record) || !is_expired, false),
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

    /// Whether the store has granted `held`, and this executor knows it from the response or from the record. How an
    /// earlier attempt ended isn't compared, since other invariants check that.
    fn is_granted(&self, held: &Held) -> bool {
        let granted = match self.event {
            Event::Answered(PutOutcome::Applied) => self.put().map(Put::record),
            _ => self.shown(),
        };
        granted.is_some_and(|granted| {
            let mark = granted.mark;
            *granted == Lock { mark, ..held.lock.clone() }.into() && held.lock.owner == self.plan.owner
        })
    }

    /// Checks the record that a put is about to store.
    fn contents(&self, put: &Put, flaws: &mut Flaws) {
        let new = put.record();
        flaws.unless(self.is_unstorable || outcome(new) != Some(&Outcome::Omitted), Invariant::ResponseKept);
        match Purpose::of(put) {
            Purpose::Claim => self.claim(new, flaws),
            Purpose::Extend => self.extension(put, flaws),
            Purpose::Settle => self.settlement(new, flaws),
            Purpose::Interrupt => self.unanswered(new, flaws),
            Purpose::Conclude | Purpose::Resolve => {
                let least = self.now.saturating_add(millis(self.configuration.retention));
                flaws.unless(is_promised(new, least), Invariant::ExpiryPromised);
                let is_own = new.owner == self.plan.owner && new.fingerprint == self.plan.fingerprint;
                flaws.unless(is_own && new.lease_until().is_none(), Invariant::VerdictKept);
            }
        }
    }

    fn claim(&self, new: &Record, flaws: &mut Flaws) {
        flaws.unless(self.has_run() || self.now < self.plan.start_by(), Invariant::StartInTime);
        let recording = new.lock_acquired_at.saturating_add(millis(RECORDING_LEASE));
        let bound = if self.has_run() {
            self.plan.limits.lease_until.max(recording)
        } else {
            self.plan.limits.lease_until
        };
        flaws.unless(new.lease_until() <= Some(bound), Invariant::LeaseBounded);
        flaws.unless(self.is_kept_open(new), Invariant::ExpiryPromised);
    }

    fn settlement(&self, new: &Record, flaws: &mut Flaws) {
        self.found(new, flaws);
        let (lease, retention) = (self.lease(), self.configuration.retention);
        let least = self.now.saturating_add(millis(retention));
        let least = match new.status() {
            // A declined transaction may be applied late, while its handler still runs. The handler may run
            // until its lease ends, so the record must last until then.
            Status::Completed if matches!(self.action, Action::Commit { .. }) => {
                least.max(lease.saturating_add(millis(self.configuration.skew_margin)))
            }
            Status::Released => {
                flaws.unless(!self.is_freed_unasked(new), Invariant::UnansweredKept);
                lease.saturating_add(millis(retention.max(LOCK_RETENTION)))
            }
            _ => least,
        };
        flaws.unless(is_promised(new, least), Invariant::ExpiryPromised);
    }

    fn extension(&self, put: &Put, flaws: &mut Flaws) {
        let Put::Replace { seen, new } = put else { return };
        // The base is the record that the executor was shown, or the claim that it holds.
        let shown = self.shown().filter(|record| self.was_extension() && self.is_under_claim(record));
        let held = || self.held.map(|held| held.lock.clone().into());
        let base = shown.cloned().or_else(held);
        flaws.unless(base.as_ref() == Some(seen), Invariant::OwnerExtends);
        flaws.unless(seen.lease_until() < new.lease_until(), Invariant::LeasesGrow);
        let bound = self.now.saturating_add(millis(self.configuration.lease));
        flaws.unless(new.lease_until() <= Some(bound), Invariant::LeaseBounded);
        flaws.unless(self.is_kept_open(new), Invariant::ExpiryPromised);
    }

    /// Whether a claim is kept as long as promised. Under at-most-once, the claim must never expire.
    fn is_kept_open(&self, claim: &Record) -> bool {
        let retention = millis(self.configuration.retention.max(LOCK_RETENTION));
        match self.plan.rules.execution {
            Execution::AtLeastOnce => claim
                .lease_until()
                .is_some_and(|lease_until| is_promised(claim, lease_until.saturating_add(retention))),
            Execution::AtMostOnce => claim.expires_at.is_none(),
        }
    }

    /// The end of the lease of the claim being settled.
    fn lease(&self) -> Timestamp {
        let own = self.shown().filter(|record| record.owner == self.plan.owner).and_then(Record::lease_until);
        let granted = self.put().filter(|_| self.was_claim()).and_then(|put| put.record().lease_until());
        let held = self.held.map(|held| held.lock.lease_until);
        own.or(granted).or(held).unwrap_or(self.plan.limits.lease_until)
    }
}

/// Whether a record's expiry is as promised: at `least`, or at most a second later, since expiries are rounded up.
fn is_promised(record: &Record, least: Timestamp) -> bool {
    let latest = least.saturating_add(millis(1000));
    record.expires_at.is_some_and(|expires_at| (least..=latest).contains(&expires_at))
}
