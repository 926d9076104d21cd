//! The store's side of the checker: delivers puts, and checks every change of the record.

use std::rc::Rc;

use lambda_idempotency::{
    protocol::{Action, Event, Input, Refusal},
    settings::Execution,
    store::{Mark as RecordMark, Outcome, Put, PutOutcome, Record, State as RecordState, Status},
    time::Timestamp,
};
use lambda_idempotency_testing::Call;

use super::{Checker, Happening, Stored};
use crate::{
    configuration::{self, Flow, millis, operation_of},
    coverage::Mark,
    invariants::Invariant,
    model::{Delivery, NOBODY, Operation, Verdict},
    under_test::{Effect, Protocol, Purpose, Sent, fits, is_same_run},
};

/// The delivery that probes whether a record becomes claimable. It has the settings of the first delivery.
const PROBE: u8 = NOBODY - 1;

impl<P: Protocol> Checker<'_, P> {
    /// Delivers a put to the store, even if no executor waits for its response any more. Every put that changes
    /// the record goes through here.
    pub(super) fn store(&mut self, it: &mut Happening, number: u32, sender: u8) -> Option<Stored> {
        let sent = Rc::clone(self.writes.get(number)?);
        if self.is_known(it, number) {
            it.reach(Mark::Repeated);
            return Some(Stored::Repeated);
        }
        let before = it.explored.record;
        let (stored, makes_writes) = self.effect(number, before);
        if stored != Stored::Refused && self.is_put_inside(it, number, sender) {
            return Some(Stored::Repeated);
        }
        if makes_writes {
            self.committed(it, number, sender, stored);
        }
        let current = self.records.get(before).cloned();
        let current = current.as_deref();
        if stored == Stored::Refused {
            it.reach(refused(&sent));
            it.flaws.unless(!fits(&sent.put, current), Invariant::OwnerNotRefused);
            return Some(stored);
        }
        it.explored.has_effect = makes_writes;
        let after = match stored {
            Stored::Put(after) => self.records.get(after).map(Rc::as_ref),
            _ => None,
        };
        match current {
            Some(current) => self.changed(it, &sent.put, current, after, sender),
            None => {
                let makes = matches!(sent.put, Put::Create(_));
                it.flaws.unless(makes || stored == Stored::Removed, Invariant::OwnerSettles);
            }
        }
        let purpose = Purpose::of(&sent.put);
        match purpose {
            Purpose::Claim => self.claimed(it, &sent.put, current, sender),
            Purpose::Extend => it.reach(Mark::T7),
            Purpose::Interrupt => it.reach(Mark::T9),
            Purpose::Settle => self.settled(it, &sent, sender),
            Purpose::Conclude => self.concluded(it, &sent, current, sender),
            Purpose::Resolve => self.operated(it, &sent.put, current),
        }
        if let (true, Some(after)) = (purpose != Purpose::Claim, after) {
            let is_kept = after.expires_at == sent.put.record().expires_at;
            it.flaws.unless(is_kept, Invariant::ExpiryPromised);
        }
        it.explored.record = match stored {
            Stored::Put(record) => record,
            _ => 0,
        };
        match stored {
            Stored::Put(record) => {
                it.flaws.unless(self.becomes_claimable(record), Invariant::BecomesClaimable);
            }
            Stored::Removed => self.removed(it, current.map_or(Status::Released, Record::status)),
            Stored::Refused | Stored::Repeated => {}
        }
        Some(stored)
    }

    /// Notes that a record with this status was removed, and forgets the operation. Under at-most-once, an
    /// unsettled claim must not be removed, since the outcome of its run is unknown.
    pub(super) fn removed(&self, it: &mut Happening, status: Status) {
        let is_unresolved = status == Status::Started
            && self.configuration.execution_of(it.explored.holder) == Execution::AtMostOnce;
        it.flaws.unless(!is_unresolved, Invariant::UnresolvedKept);
        if matches!(status, Status::Completed | Status::Failed) {
            it.explored.has_run = false;
        }
        it.explored.holder = NOBODY;
        it.explored.operation = Operation::default();
        self.forget_effects(it);
    }

    /// Returns the store's result for a write, and whether the store applies the handler's own writes. The
    /// result is memoized.
    pub(super) fn effect(&mut self, write: u32, current: u32) -> (Stored, bool) {
        if let Some(&effect) = self.effects.get(&(write, current)) {
            return effect;
        }
        let effect = self.make(write, current);
        self.effects.insert((write, current), effect);
        effect
    }

    /// Checks the change of an existing record.
    fn changed(&self, it: &mut Happening, put: &Put, current: &Record, after: Option<&Record>, sender: u8) {
        let purpose = Purpose::of(put);
        let is_current = fits(put, Some(current));
        let is_held = is_current && it.explored.holder == sender;
        match purpose {
            Purpose::Claim | Purpose::Conclude | Purpose::Resolve => {
                it.flaws.unless(is_current, Invariant::ClaimSeesVersion);
            }
            Purpose::Interrupt => {
                // Nothing runs under the claim any more, and only its lease, its expiry and its mark change. An extension whose answer was lost
                // may have moved the expiry too. `judge` compares the lease with the claim's.
                let delivery = it.explored.deliveries.get(usize::from(sender));
                let has_ended = delivery.is_some_and(|delivery| {
                    let asks = self.configuration.reconciler_of(sender).is_some();
                    let is_unused = delivery.verdict == Verdict::None && !delivery.has_started;
                    self.is_unanswered(sender, delivery.verdict) || is_unused && asks
                });
                let is_same = after.is_some_and(|after| {
                    let (state, expires_at) = (after.state.clone(), after.expires_at);
                    let asks = self.configuration.reconciler_of(sender).is_some();
                    let mark = if asks { RecordMark::Unanswered } else { current.mark };
                    *after == Record { state, expires_at, mark, ..current.clone() }
                });
                it.flaws.unless(is_held && has_ended && is_same, Invariant::OwnerInterrupts);
            }
            Purpose::Extend => {
                it.flaws.unless(is_held, Invariant::OwnerExtends);
                let lease = |record: &Record| record.lease_until();
                let grows = after.is_some_and(|after| {
                    lease(after) > lease(current) && !is_sooner(after.expires_at, current.expires_at)
                });
                it.flaws.unless(grows, Invariant::LeasesGrow);
            }
            Purpose::Settle => {
                // Storing the same settlement again isn't a change.
                let is_same =
                    it.explored.holder == sender && after.is_some_and(|after| after.state == current.state);
                let invariant = match put.record().status() {
                    Status::Released => Invariant::OwnerReleases,
                    _ => Invariant::OwnerSettles,
                };
                it.flaws.unless(is_same || is_held, invariant);
            }
        }
        if is_current && matches!(purpose, Purpose::Extend | Purpose::Settle) {
            it.flaws.unless(is_same_run(current, put.record()), Invariant::ClaimKept);
        }
        let now = self.true_time(it);
        let is_settled = matches!(current.status(), Status::Completed | Status::Failed);
        let is_same = after.is_some_and(|after| after.state == current.state);
        let is_operators = purpose == Purpose::Resolve;
        let may_go = is_same || is_operators || !counts(current.expires_at, now);
        it.flaws.unless(!is_settled || may_go, Invariant::OutcomeKept);
        if is_operators {
            let grows = after.is_none_or(|after| after.generation > current.generation);
            it.flaws.unless(grows, Invariant::GenerationsGrow);
        }
        if matches!(purpose, Purpose::Claim | Purpose::Conclude) {
            let new = put.record();
            it.flaws.unless(new.generation > current.generation, Invariant::GenerationsGrow);
            let is_live = match current.state {
                RecordState::Started { lease_until } => now <= lease_until || counts(current.expires_at, now),
                RecordState::Completed(_) | RecordState::Failed(_) => counts(current.expires_at, now),
                RecordState::Released => false,
            };
            // This check uses true time. `judge` also checks by the executor's own clock that no step replaces
            // another request's live record.
            if self.configuration.clocks_agree() {
                let matches = new.fingerprint == current.fingerprint;
                it.flaws.unless(matches || !is_live, Invariant::MismatchHarmless);
            }
        }
    }

    fn settled(&self, it: &mut Happening, sent: &Sent, sender: u8) {
        let Some(delivery) = it.explored.deliveries.get_mut(usize::from(sender)) else { return };
        delivery.is_stored = true;
        let verdict = delivery.verdict;
        let (mark, said) = match &sent.put.record().state {
            RecordState::Completed(outcome) => {
                let is_whole = goes_along(sent, *delivery);
                it.flaws.unless(is_whole, Invariant::EffectsExactlyOnce);
                let mark = if sent.submission.is_some() { Mark::T8 } else { Mark::T4 };
                (mark, completes(sent, *delivery) && is_response(outcome, sender, word(sent, *delivery)))
            }
            RecordState::Failed(outcome) => {
                let has_failed = matches!(verdict, Verdict::Fail | Verdict::FoundFailed);
                (Mark::T5, has_failed && is_response(outcome, sender, verdict))
            }
            // Without a verdict, the executor releases a claim that it never used.
            RecordState::Released => {
                let asks = self.configuration.reconciler_of(sender).is_some();
                let must_ask = asks && it.explored.operation.was_interrupted && verdict != Verdict::Release;
                it.flaws.unless(!must_ask, Invariant::UnansweredKept);
                let is_panic = verdict == Verdict::Panic && !asks;
                (Mark::T6, is_panic || matches!(verdict, Verdict::Release | Verdict::None))
            }
            RecordState::Started { .. } => (Mark::T7, false),
        };
        it.flaws.unless(said, Invariant::VerdictKept);
        let is_reconciled = sent.put.record().mark == RecordMark::Reconciled;
        it.flaws.unless(is_reconciled == verdict.is_found(), Invariant::ReconciledTrue);
        it.reach(mark);
        match (mark, verdict) {
            (Mark::T6, Verdict::Panic) => {
                it.reach(Mark::ReleasedByPanic);
                it.explored.operation.panicked();
            }
            (Mark::T6, Verdict::Release) => it.explored.has_run = false,
            (Mark::T6, _) => {}
            _ => {
                it.explored.holder = sender;
                it.explored.operation.end();
                self.forget_effects(it);
            }
        }
    }

    /// Checks a conclusion that the store has applied, and notes its outcome.
    fn concluded(&self, it: &mut Happening, sent: &Sent, current: Option<&Record>, sender: u8) {
        it.reach(match current.map(Record::status) {
            None => Mark::ConcludedAbsent,
            Some(Status::Started) => Mark::ConcludedLock,
            Some(Status::Completed | Status::Failed) => Mark::ConcludedOutcome,
            Some(Status::Released) => Mark::ConcludedReleased,
        });
        it.explored.holder = sender;
        it.explored.operation.end();
        if matches!(current.map(Record::status), Some(Status::Completed | Status::Failed)) {
            it.explored.has_run = false;
        }
        let Some(delivery) = it.explored.deliveries.get_mut(usize::from(sender)) else { return };
        delivery.is_stored = true;
        let delivery = *delivery;
        let said = match &sent.put.record().state {
            RecordState::Completed(outcome) => {
                it.flaws.unless(goes_along(sent, delivery), Invariant::EffectsExactlyOnce);
                if sent.submission.is_none() {
                    it.reach(Mark::ConcludedAlone);
                }
                completes(sent, delivery) && is_response(outcome, sender, word(sent, delivery))
            }
            RecordState::Failed(outcome) => {
                it.reach(Mark::ConcludedFailure);
                delivery.verdict == Verdict::Fail && is_response(outcome, sender, Verdict::Fail)
            }
            RecordState::Started { .. } | RecordState::Released => false,
        };
        it.flaws.unless(said, Invariant::VerdictKept);
    }

    fn claimed(&self, it: &mut Happening, put: &Put, current: Option<&Record>, sender: u8) {
        let status = current.map(Record::status);
        it.reach(match (Call::of(put), status) {
            (Call::TakeOver, _) => Mark::T3,
            (_, None) => Mark::T1,
            (_, Some(Status::Started)) => Mark::T2Lock,
            (_, Some(Status::Completed)) => Mark::T2Completed,
            (_, Some(Status::Failed)) => Mark::T2Failed,
            (_, Some(Status::Released)) => Mark::T2Released,
        });
        let holder = it.explored.deliveries.get(usize::from(it.explored.holder)).copied();
        let holder = holder.filter(|_| status == Some(Status::Started));
        if let Some(delivery) = it.explored.deliveries.get(usize::from(sender)) {
            it.flaws.unless(!delivery.is_refused || delivery.is_overtaken, Invariant::GhostTold);
            let (operation, request) = (it.explored.operation, delivery.request);
            let is_overtaken = delivery.is_overtaken;
            if operation.is_over || operation.request != request {
                self.forget_effects(it);
            }
            it.explored.operation = operation.claimed(request, holder);
            // An overtaken claim was sent before the sweep. If its sender releases the claim, the release may carry
            // an interruption that the removed record showed. `was_left` only permits handlers to learn of an
            // interruption, so setting it too often does no harm.
            it.explored.operation.was_left |= is_overtaken;
        }
        it.explored.holder = sender;
        if matches!(status, Some(Status::Completed | Status::Failed)) {
            it.explored.has_run = false;
        }
    }

    fn operated(&self, it: &mut Happening, put: &Put, before: Option<&Record>) {
        let owner = put.record().owner;
        it.flaws.unless(it.explored.unwritten & operation_of(owner) == 0, Invariant::OperatorTold);
        let slot = it.explored.slots.iter().find(|slot| slot.is_active() && slot.delivery == NOBODY);
        let current = slot.and_then(|slot| self.plans.get(slot.plan));
        it.explored.is_resolved |= current.is_some_and(|plan| plan.owner == owner);
        resolved(it, put, before);
        self.forget_effects(it);
    }

    /// Whether a record becomes claimable on time, for the same request and for another one. A lock must be claimable
    /// once the skew margin and 1 ms have passed since the end of its lease, and an outcome once they have passed since
    /// its expiry. A released key is claimable at once. The record has no time of the release, so this tests the skew
    /// margin and 1 ms after the claim. Another request can claim a lock only when the lock has also expired.
    fn becomes_claimable(&mut self, number: u32) -> bool {
        if let Some(&claimable) = self.probes.get(&number) {
            return claimable;
        }
        let claimable = self.records.get(number).is_none_or(|record| {
            let margin = millis(self.configuration.skew_margin + 1);
            let (from, from_for_another) = match record.state {
                // Under at-most-once, a lock never expires, so another request can never claim it.
                RecordState::Started { lease_until } => {
                    let from = lease_until.saturating_add(self.arrives_after(record, PROBE));
                    (from, record.expires_at.map(|expires_at| expires_at.max(from)))
                }
                RecordState::Released => (record.lock_acquired_at, Some(record.lock_acquired_at)),
                RecordState::Completed(_) | RecordState::Failed(_) => match record.expires_at {
                    Some(expires_at) => (expires_at, Some(expires_at)),
                    None => return false,
                },
            };
            (0..2).all(|request| {
                let is_same = record.fingerprint == configuration::fingerprint(request);
                let from = if is_same { Some(from) } else { from_for_another };
                from.is_none_or(|from| {
                    let now = from.saturating_add(margin);
                    self.gives_way(record, request, now) && self.is_open_to(record, request, now)
                })
            })
        });
        self.probes.insert(number, claimable);
        claimable
    }

    fn gives_way(&self, record: &Record, request: u8, now: Timestamp) -> bool {
        let plan = self.configuration.plan(configuration::owner(PROBE, request), request, now, true);
        let step = |state, event| self.protocol.step(state, Input { now, event });
        let (mut state, mut action) = step(self.protocol.begin(&plan), Event::Begin);
        let mut current = record.clone();
        // Three rounds are enough: the claim is refused, a compare-and-set is applied, and the last round returns.
        for _ in 0..3 {
            let event = match &action {
                Action::Claimed(_) | Action::Ask(_) => return true,
                Action::Refused(Refusal::OutcomeUnknown) => {
                    return self.is_unresolved(record);
                }
                Action::Put(put) => match self.protocol.put(put, Some(&current)) {
                    Effect::Put(record) => {
                        current = record;
                        Event::Answered(PutOutcome::Applied)
                    }
                    _ => Event::Answered(PutOutcome::Refused(Some(current.clone()))),
                },
                _ => return false,
            };
            (state, action) = step(state, event);
        }
        matches!(action, Action::Claimed(_) | Action::Ask(_))
    }

    /// Whether a stale record may be reported as unknown, either because of the delivery's execution or because of the
    /// claim's.
    fn is_unresolved(&self, record: &Record) -> bool {
        let is_at_most_once = self.configuration.execution == Execution::AtMostOnce;
        record.status() == Status::Started && (is_at_most_once || record.is_at_most_once_claim())
    }

    /// Whether this record no longer blocks a delivery without a claim at `now`: the delivery runs its handler or,
    /// under at-most-once, answers that the outcome is unknown.
    fn is_open_to(&self, record: &Record, request: u8, now: Timestamp) -> bool {
        if !self.configuration.flows.contains(&Flow::Look) && !self.configuration.is_inside() {
            return true;
        }
        let plan = self.configuration.plan(configuration::owner(PROBE, request), request, now, true);
        let step = |state, event| self.protocol.step(state, Input { now, event });
        let (state, _) = step(self.protocol.begin(&plan), Event::Look);
        match step(state, Event::Found(Some(record.clone()))).1 {
            Action::Open => true,
            Action::Refused(Refusal::OutcomeUnknown) => self.is_unresolved(record),
            _ => false,
        }
    }
}

/// Notes that an operator has settled the record, so that no delivery holds its claim any more.
fn resolved(it: &mut Happening, put: &Put, before: Option<&Record>) {
    it.reach(match before.map(Record::status) {
        Some(Status::Started) => Mark::ResolvedLock,
        _ => Mark::ResolvedSettled,
    });
    it.explored.holder = NOBODY;
    match put.record().status() {
        // The operator states that nothing happened.
        Status::Released => {
            it.explored.has_run = false;
            it.explored.operation =
                Operation { request: it.explored.operation.request, ..Operation::default() };
        }
        _ => it.explored.operation.end(),
    }
}

/// The mark for a put that the store refuses.
fn refused(sent: &Sent) -> Mark {
    match (Purpose::of(&sent.put), Call::of(&sent.put)) {
        (Purpose::Claim, Call::Claim) => Mark::RefusedT1,
        (Purpose::Claim, Call::TakeOver) => Mark::RefusedT3,
        (Purpose::Claim, _) => Mark::RefusedT2,
        (Purpose::Settle, _) if sent.submission.is_some() => Mark::RefusedT8,
        (Purpose::Settle, _) => Mark::RefusedSettle,
        (Purpose::Interrupt, _) => Mark::RefusedT9,
        (Purpose::Resolve, _) => Mark::OperatorLost,
        (Purpose::Extend, _) => Mark::RefusedT7,
        (Purpose::Conclude, _) => Mark::RefusedConclusion,
    }
}

/// Whether a record with this expiry is still unexpired at `now`. A record without an expiry never expires.
pub(super) fn counts(expires_at: Option<Timestamp>, now: Timestamp) -> bool {
    expires_at.is_none_or(|expires_at| now <= expires_at)
}

/// Whether the first expiry is before the second.
fn is_sooner(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one < other,
        (one, None) => one.is_some(),
        (None, Some(_)) => false,
    }
}

/// Whether a completion rightly carries, or rightly lacks, the handler's own writes. A late transaction may carry
/// the writes of an earlier try.
fn goes_along(sent: &Sent, delivery: Delivery) -> bool {
    if sent.submission.is_some() { delivery.has_writes } else { delivery.verdict != Verdict::Commit }
}

/// Whether the handler returned the completion that `sent` stores. A late transaction may carry the result of an
/// earlier try, so for a transaction it's enough that the handler ever had writes.
fn completes(sent: &Sent, delivery: Delivery) -> bool {
    match sent.submission {
        Some(_) => delivery.has_writes,
        None => matches!(delivery.verdict, Verdict::Complete | Verdict::Found),
    }
}

fn is_response(outcome: &Outcome, delivery: u8, verdict: Verdict) -> bool {
    *outcome == Outcome::Omitted || *outcome == configuration::response(delivery, verdict)
}

/// The handler's verdict, or the question's, when `sent` was sent.
fn word(sent: &Sent, delivery: Delivery) -> Verdict {
    match delivery.verdict {
        _ if sent.submission.is_some() => Verdict::Commit,
        Verdict::Found => Verdict::Found,
        _ => Verdict::Complete,
    }
}
