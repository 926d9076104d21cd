//! Checks when a question is asked, what follows from its answer, and how a claim without an answer is left.

use std::time::Duration;

use lambda_idempotency::{
    protocol::{Action, Event, Held, Reconcile, Refusal},
    settings::Execution,
    store::{Mark as RecordMark, Put, PutOutcome, Record, State as RecordState},
    time::Timestamp,
};

use super::{LOCK_RETENTION, Step};
use crate::{
    configuration::{TICK, millis},
    coverage::{Coverage, Mark},
    invariants::{Flaws, Invariant},
    model::Verdict,
    under_test::Purpose,
};

/// How long a claim without an answer keeps its key, in milliseconds, if nothing says otherwise.
const UNANSWERED_LEASE: i64 = 10_000;

impl Step<'_> {
    fn reconciler(&self) -> Option<Reconcile> {
        self.plan.rules.reconcile
    }

    fn is_at_most_once(&self) -> bool {
        self.plan.rules.execution == Execution::AtMostOnce
    }

    /// Whether the claim ended without an answer, by the handler's or the question's end.
    pub(super) fn is_unanswered(&self) -> bool {
        match self.verdict {
            Verdict::Interrupt | Verdict::NotKnown | Verdict::NotYet => true,
            Verdict::Panic => self.reconciler().is_some(),
            _ => false,
        }
    }

    /// When this executor stops waiting for another executor's claim, without the skew margin. With a reconciler, it also
    /// waits for the effect of the claim's handler. The executor that marked the claim as unanswered has included that time.
    pub(super) fn waits_until(&self, record: &Record, lease_until: Timestamp) -> Timestamp {
        let waits = self.reconciler().filter(|_| record.mark != RecordMark::Unanswered);
        lease_until.saturating_add(waits.map_or(Duration::ZERO, |reconciler| reconciler.arrives_within))
    }

    /// Whether this record is a lock that isn't stale yet.
    pub(super) fn is_held_lock(&self, record: &Record) -> bool {
        record.lease_until().is_some_and(|lease| !self.has_passed(self.waits_until(record, lease)))
    }

    /// Checks that a lock isn't taken over too early, and that a refusal says when it becomes claimable.
    pub(super) fn waits(&self, record: &Record, flaws: &mut Flaws) {
        let Some(lease_until) = record.lease_until() else { return };
        if self.reconciler().is_none() {
            return;
        }
        let is_replaced = self.sends().is_some_and(|put| Purpose::of(put) == Purpose::Claim);
        if self.is_held_lock(record) {
            flaws.unless(!is_replaced, Invariant::AskedInTime);
        }
        if let Action::Refused(Refusal::InProgress(Some(until))) = self.action {
            let margin = millis(self.configuration.skew_margin + 1);
            let due = self.waits_until(record, lease_until).saturating_add(margin);
            flaws.unless(*until >= due, Invariant::AskedInTime);
            flaws.unless(*until <= due, Invariant::BecomesClaimable);
        }
    }

    /// Checks the step that starts a handler or a question.
    pub(super) fn begins(&self, flaws: &mut Flaws) {
        match (self.action, self.event) {
            (action, Event::DidNotHappen) => self.absent(action, flaws),
            (Action::Claimed(held), _) => {
                flaws.unless(!self.must_ask(held), Invariant::AskedFirst);
                flaws.unless(self.now < self.plan.start_by(), Invariant::StartInTime);
            }
            (Action::Ask(held), _) => {
                flaws.unless(self.must_ask(held), Invariant::AskedWithCause);
                flaws.unless(self.now < self.plan.start_by(), Invariant::StartInTime);
            }
            _ => {}
        }
    }

    fn must_ask(&self, held: &Held) -> bool {
        self.reconciler().is_some() && held.lock.mark.is_interrupted()
    }

    /// Checks the step after the answer that the effect didn't happen: the handler runs if it may and there's time.
    fn absent(&self, action: &Action, flaws: &mut Flaws) {
        let Some(held) = self.held else { return };
        let reruns = self.reconciler().is_some_and(|reconciler| reconciler.reruns_when_absent);
        let may_run = !self.is_at_most_once() || reruns;
        let has_time = self.now.saturating_add(millis(self.configuration.reserve)) < held.lock.lease_until;
        let runs = matches!(action, Action::Claimed(now_held) if now_held == held);
        flaws.unless(may_run || !runs, Invariant::AtMostOnce);
        flaws.unless(has_time || !runs, Invariant::StartInTime);
        let is_left = self.sends().is_some_and(|put| Purpose::of(put) == Purpose::Interrupt);
        let is_right = if may_run && has_time { runs } else { is_left };
        flaws.unless(is_right, Invariant::UnansweredKept);
    }

    /// Whether nothing ran under this claim, so that it must stay marked until a question is answered.
    fn is_unused(&self) -> bool {
        !self.has_run() && self.reconciler().is_some()
    }

    /// Whether this release frees a key that must be asked for, although no handler said that nothing happened.
    pub(super) fn is_freed_unasked(&self, new: &Record) -> bool {
        self.reconciler().is_some() && new.mark.is_interrupted() && self.verdict != Verdict::Release
    }

    /// Whether the last request left an unused claim marked as unanswered.
    pub(super) fn was_left(&self) -> bool {
        !self.has_run() && self.was(Purpose::Interrupt)
    }

    /// The claim that's left without an answer.
    fn left(&self) -> Option<Record> {
        let held = self.held.map(|held| held.lock.clone().into());
        let own = || self.shown().filter(|record| record.owner == self.plan.owner).cloned();
        let claim = || self.put().filter(|_| self.was_claim()).map(|put| put.record().clone());
        held.or_else(own).or_else(claim)
    }

    /// Checks how a claim is left that ended without an answer (T9).
    pub(super) fn unanswered(&self, new: &Record, flaws: &mut Flaws) {
        let after = |wait: Duration| self.now.saturating_add(wait);
        let shortest = millis(UNANSWERED_LEASE);
        let Some(claim) = self.left() else {
            flaws.unless(false, Invariant::OwnerInterrupts);
            return;
        };
        let lease = claim.lease_until().unwrap_or_default();
        let until = match (self.verdict, self.reconciler()) {
            (Verdict::NotKnown, _) => after(shortest),
            (Verdict::NotYet, _) => after(millis(TICK)),
            (Verdict::None, _) => self.now.min(lease.saturating_sub(millis(1))),
            (_, Some(reconciler)) => after(shortest.max(reconciler.arrives_within)),
            (_, None) => after(shortest).min(lease),
        };
        // An extension in flight must not meet the lease that it saw, since it would replace the mark.
        let is_same = self.reconciler().is_some() && until == lease;
        let until = until.saturating_add(millis(is_same.into()));
        let retention = millis(self.configuration.retention.max(LOCK_RETENTION));
        let least = until.saturating_add(retention).rounded_up_to_second();
        let expires_at = claim.expires_at.map(|expires_at| expires_at.max(least));
        let state = RecordState::Started { lease_until: until };
        // Without a reconciler, the executor doesn't know how long an effect takes, so it doesn't promise that none is on
        // its way.
        let mark = if self.reconciler().is_some() { RecordMark::Unanswered } else { claim.mark };
        let is_kept = *new == Record { state, expires_at, mark, ..claim };
        let is_due = self.is_unanswered() || self.is_unused();
        let stays = self.is_at_most_once() && self.reconciler().is_none();
        let invariant = match self.verdict {
            Verdict::NotKnown | Verdict::NotYet => Invariant::UnansweredKept,
            _ => Invariant::OwnerInterrupts,
        };
        flaws.unless(is_kept && is_due && !stays, invariant);
    }

    /// Whether `record` shows that the last request left the claim without an answer.
    pub(super) fn shows_left(&self, record: &Record) -> bool {
        let sent =
            self.put().filter(|_| self.was(Purpose::Interrupt)).and_then(|put| put.record().lease_until());
        let is_marked = record.mark == RecordMark::Unanswered || self.reconciler().is_none();
        is_marked && sent.is_some() && record.lease_until() == sent
    }

    /// Checks the mark of an outcome.
    pub(super) fn found(&self, new: &Record, flaws: &mut Flaws) {
        let is_reconciled = new.mark == RecordMark::Reconciled;
        flaws.unless(is_reconciled == self.verdict.is_found(), Invariant::ReconciledTrue);
    }

    /// The marks of questions that the step reaches.
    pub(super) fn questions(&self, coverage: &mut Coverage) {
        let mark = match (self.action, self.event) {
            (Action::Ask(_), Event::Answered(PutOutcome::Applied)) => match self.put() {
                Some(Put::Replace { seen, .. }) if seen.lease_until().is_some() => Some(Mark::AskedLock),
                Some(Put::Replace { .. }) => Some(Mark::AskedReleased),
                _ => None,
            },
            (Action::Ask(_), _) => Some(Mark::AskedOwn),
            (Action::Claimed(_), Event::DidNotHappen) => Some(Mark::RunsAfterAbsent),
            (Action::Put(_), Event::DidNotHappen) if self.reruns() => Some(Mark::AbsentTooLate),
            (Action::Put(_), Event::DidNotHappen) => Some(Mark::AbsentOnce),
            (Action::Put(put), _) if Purpose::of(put) == Purpose::Interrupt && !self.has_run() => {
                Some(Mark::MarkedUnused)
            }
            (Action::Refused(Refusal::InProgress(Some(_))), _) => {
                let shown = self.shown().and_then(Record::lease_until);
                shown.filter(|lease_until| self.has_passed(*lease_until)).map(|_| Mark::WaitsForEffect)
            }
            _ => None,
        };
        if let Some(mark) = mark {
            coverage.reach(mark);
        }
    }

    fn reruns(&self) -> bool {
        !self.is_at_most_once() || self.reconciler().is_some_and(|reconciler| reconciler.reruns_when_absent)
    }
}
