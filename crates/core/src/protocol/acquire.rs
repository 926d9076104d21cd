//! Acquires a claim (T1 to T3), and releases one that can't be used.

use std::time::Duration;

use crate::{
    protocol::{
        Action, End, Event, Fault, Held, Intent,
        Next::{self, Act},
        Phase, Plan, Refusal, Running,
        judge::{self, Judgement, judge},
        plan::Task,
        refusal_for, settlement,
    },
    record::{Generation, Lock, Mark, Record},
    store::{Put, PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// The machine gives up when a claim has lost this often: the first write, and three compare-and-sets after it.
pub(super) const MAX_LOSSES: u8 = 4;
/// The lease of a claim that's acquired only to record an existing outcome. The settlement follows at once, and a store
/// answers its requests, retries included, within a few seconds.
pub(super) const RECORDING_LEASE: Duration = Duration::from_secs(10);

/// The purpose of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Goal {
    /// To run the handler.
    Run,
    /// To record the existing outcome, after the claim that ran the handler was lost.
    Record(Task),
}

/// A claim on its way to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claiming {
    pub(super) goal: Goal,
    /// The claim's record.
    lock: Lock,
    /// The record that the claim replaces.
    seen: Option<Record>,
    /// How often the claim lost: the record had changed, a transaction held it, or the answer was ambiguous.
    losses: u8,
    /// Whether an earlier answer to the claim was ambiguous, so that the claim may still be applied.
    is_in_doubt: bool,
}

impl Claiming {
    fn new(goal: Goal, lock: Lock, losses: u8) -> Self {
        Self { goal, lock, seen: None, losses, is_in_doubt: false }
    }

    pub(super) fn put(&self) -> Put {
        let new = self.lock.clone().into();
        match self.seen.clone() {
            None => Put::Create(new),
            Some(seen) => Put::Replace { seen, new },
        }
    }

    /// Whether an earlier attempt may still be on its way, and would be applied if `record` is the current record.
    fn may_be_applied(&self, record: Option<&Record>) -> bool {
        self.is_in_doubt && self.put().apply_to(record).is_some()
    }
}

/// T1: claims a key that has no record.
pub(super) fn claim_absent(plan: &Plan, now: Timestamp, goal: Goal, losses: u8) -> Next {
    let lock = lock(plan, now, Generation::first(now), 1, Mark::None, &goal);
    send(plan, now, Claiming::new(goal, lock, losses))
}

/// Handles the loss of `held`, the claim under which the handler ran. If the record has an outcome, that outcome
/// counts. If the key is free again, claims it only to record the handler's outcome.
pub(super) fn to_record(
    plan: &Plan,
    now: Timestamp,
    held: &Held,
    task: Task,
    record: Option<Record>,
) -> Next {
    let is_in_doubt = task.is_in_doubt;
    let goal = Goal::Record(task);
    let lock = lock(plan, now, Generation::first(now), 1, Mark::None, &goal);
    match lost(plan, now, Claiming::new(goal, lock, 0), record, Refusal::InProgress(None)) {
        Act(_, Action::Settled(End::Unrecorded(why))) => settlement::unrecorded(plan, held, is_in_doubt, why),
        next => next,
    }
}

/// Sends a claim, unless it's too late to run anything under it.
fn send(plan: &Plan, now: Timestamp, claiming: Claiming) -> Next {
    if claiming.goal == Goal::Run && now >= plan.start_by() {
        return give_up(plan, now, claiming, Refusal::NoTimeLeft);
    }
    let put = claiming.put();
    Act(Phase::Claiming(claiming), Action::Put(put))
}

pub(super) fn claiming(plan: &Plan, now: Timestamp, it: Claiming, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => {
            hold(plan, now, it.goal, Held { lock: it.lock, is_recovered: false })
        }
        Event::Answered(PutOutcome::Refused(record)) => {
            let it = Claiming { losses: it.losses + 1, ..it };
            lost(plan, now, it, record, Refusal::InProgress(None))
        }
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => refuse(it.goal, Refusal::Corrupt),
        Event::Failed(Fault { maybe_applied: true, .. }) => {
            Act(Phase::LookingForClaim(Claiming { is_in_doubt: true, ..it }), Action::Read)
        }
        // A claim that records an outcome is retried for as long as a settlement is.
        Event::Failed(Fault { kind, .. }) if matches!(it.goal, Goal::Record(_)) => {
            retry_recording(plan, now, it, kind, Phase::Claiming)
        }
        // The write conflicted with a transaction on the record, so it wasn't applied.
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, .. }) if it.losses + 1 < MAX_LOSSES => {
            let nth = it.losses;
            Act(Phase::Claiming(Claiming { losses: nth + 1, ..it }), Action::Pause(nth))
        }
        Event::Failed(Fault { kind, .. }) => give_up(plan, now, it, refusal_for(kind)),
        Event::Resumed => send(plan, now, it),
        _ => Act(Phase::Claiming(it), Action::Nothing),
    }
}

pub(super) fn looking_for_claim(plan: &Plan, now: Timestamp, it: Claiming, event: Event) -> Next {
    match event {
        Event::Found(record) => {
            let it = Claiming { losses: it.losses + 1, ..it };
            lost(plan, now, it, record, Refusal::Unavailable)
        }
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => refuse(it.goal, Refusal::Corrupt),
        Event::Failed(Fault { kind, .. }) if matches!(it.goal, Goal::Record(_)) => {
            retry_recording(plan, now, it, kind, Phase::LookingForClaim)
        }
        Event::Failed(_) => give_up(plan, now, it, Refusal::Unavailable),
        Event::Resumed => Act(Phase::LookingForClaim(it), Action::Read),
        _ => Act(Phase::LookingForClaim(it), Action::Nothing),
    }
}

/// Handles a failed write or read of a claim that records an outcome: pauses before a retry, or gives up after the
/// last one.
fn retry_recording(
    plan: &Plan,
    now: Timestamp,
    it: Claiming,
    kind: StoreErrorKind,
    phase: impl FnOnce(Claiming) -> Phase,
) -> Next {
    let Claiming { goal: Goal::Record(task), lock, seen, losses, is_in_doubt } = it else {
        return refuse(it.goal, refusal_for(kind));
    };
    match task.again(plan, now) {
        Ok((task, nth)) => {
            let goal = Goal::Record(task);
            Act(phase(Claiming { goal, lock, seen, losses, is_in_doubt }), Action::Pause(nth))
        }
        Err(task) => refuse(Goal::Record(task), refusal_for(kind)),
    }
}

/// Decides from the current record how to continue, after a claim was refused or its answer was ambiguous.
fn lost(plan: &Plan, now: Timestamp, it: Claiming, record: Option<Record>, when_exhausted: Refusal) -> Next {
    let is_exhausted = it.losses >= MAX_LOSSES;
    let it = Claiming { is_in_doubt: it.may_be_applied(record.as_ref()), ..it };
    let Some(record) = record else {
        if is_exhausted {
            return give_up(plan, now, it, when_exhausted);
        }
        // An earlier attempt may still be applied. So send the same request again: whichever attempt is applied, the
        // claim has the same generation.
        if it.is_in_doubt && it.goal == Goal::Run {
            return send(plan, now, it);
        }
        // The record disappeared in between: claim again. Never run unclaimed.
        return claim_absent(plan, now, it.goal, it.losses);
    };
    if let (true, Some(lease_until)) = (record.owner == plan.owner, record.lease_until()) {
        // The claim's answer was lost: it's this executor's claim, with the lease and generation in the record.
        let lock = record.lock_until(lease_until);
        return hold(plan, now, it.goal, Held { lock, is_recovered: true });
    }
    match judge(&plan.rules, plan.fingerprint, &record, now) {
        Judgement::Replay => replay(plan, it.goal, record),
        Judgement::Refused(why) => give_up(plan, now, it, why),
        Judgement::Reclaim | Judgement::TakeOver if is_exhausted => give_up(plan, now, it, when_exhausted),
        // Don't take over a claim only to record an outcome: the successor may still finish.
        Judgement::TakeOver if it.goal != Goal::Run => {
            let until = record.lease_until().map(|lease_until| plan.rules.claimable_at(lease_until));
            refuse(it.goal, Refusal::InProgress(until))
        }
        _ if it.is_in_doubt && it.goal == Goal::Run => send(plan, now, it),
        _ => {
            // A claim of this executor may still be on its way. Another of its claims must not have the same generation.
            let next = record.generation.max(it.lock.generation).next(now);
            let (attempt, mark) = judge::history(plan.fingerprint, &record);
            let lock = lock(plan, now, next, attempt, mark, &it.goal);
            send(plan, now, Claiming { lock, seen: Some(record), ..it })
        }
    }
}

/// Continues with a held claim: runs the handler, or records the outcome. If there's no time left to run the handler,
/// releases the claim.
fn hold(plan: &Plan, now: Timestamp, goal: Goal, held: Held) -> Next {
    match goal {
        Goal::Record(task) => Next::Settle { held, task, submissions: 0 },
        Goal::Run if now < plan.limits.start_by(held.lock.lease_until) => {
            let is_asking = plan.rules.asks(held.lock.mark);
            let running = Running { held: held.clone(), submissions: 0, is_in_doubt: false, is_asking };
            Act(Phase::Held(running), if is_asking { Action::Ask(held) } else { Action::Claimed(held) })
        }
        Goal::Run => release_unused(plan, now, held, Refusal::NoTimeLeft),
    }
}

/// Refuses the claim. If the claim may have been applied, first tries to release it, but only once: the caller waits.
fn give_up(plan: &Plan, now: Timestamp, it: Claiming, why: Refusal) -> Next {
    match it.goal {
        Goal::Run if it.is_in_doubt => {
            release_unused(plan, now, Held { lock: it.lock, is_recovered: false }, why)
        }
        goal => refuse(goal, why),
    }
}

/// Continues after a question whose answer is that the earlier attempt had no effect: runs the handler, if it may run and
/// there's time left.
pub(super) fn absent(plan: &Plan, now: Timestamp, running: Running) -> Next {
    let held = running.held.clone();
    if !plan.rules.reruns_when_absent() {
        return release_unused(plan, now, held, Refusal::OutcomeUnknown);
    }
    if now >= plan.limits.start_by(held.lock.lease_until) {
        return release_unused(plan, now, held, Refusal::NoTimeLeft);
    }
    Act(Phase::Held(Running { is_asking: false, ..running }), Action::Claimed(held))
}

/// Releases a claim under which nothing has run. If the next attempt must ask, the key isn't free for another request, and
/// not for an executor that doesn't ask: the claim's lease ends instead.
fn release_unused(plan: &Plan, now: Timestamp, held: Held, why: Refusal) -> Next {
    let put = match plan.rules.asks(held.lock.mark) {
        // The lease must change, so that an extension that's still on its way isn't applied.
        true => {
            let last = held.lock.lease_until.saturating_sub(Duration::from_millis(1));
            settlement::unanswered(plan, &held, now.min(last))
        }
        false => settlement::release(plan, &held, false),
    };
    Act(Phase::Releasing { held, why }, Action::Put(put))
}

pub(super) fn releasing(plan: &Plan, held: &Held, why: Refusal, event: &Event) -> Next {
    let refusal = match event {
        Event::Answered(PutOutcome::Applied) => why,
        // Another claim has replaced this one, or prevents it from being applied.
        Event::Answered(PutOutcome::Refused(Some(record)))
            if record.owner != held.lock.owner && record.generation >= held.lock.generation =>
        {
            why
        }
        // This claim holds the key, or may still get it. Other deliveries may have to wait until its lease has ended.
        _ => Refusal::Abandoned(plan.rules.claimable_at(held.lock.lease_until)),
    };
    refuse(Goal::Run, refusal)
}

/// Returns the lock of a claim for `goal`.
pub(super) fn lock(
    plan: &Plan,
    now: Timestamp,
    generation: Generation,
    attempt: u32,
    mark: Mark,
    goal: &Goal,
) -> Lock {
    let lease_until = match goal {
        Goal::Run => plan.limits.lease_until,
        Goal::Record(_) => plan.limits.lease_until.max(now.saturating_add(RECORDING_LEASE)),
    };
    Lock {
        owner: plan.owner,
        generation,
        attempt,
        fingerprint: plan.fingerprint,
        lock_acquired_at: now,
        lease_until,
        execution: plan.rules.execution,
        expires_at: plan.lock_expiry(lease_until),
        mark,
        request_id: plan.request_id.clone(),
        trace: plan.trace.clone(),
    }
}

fn replay(plan: &Plan, goal: Goal, record: Record) -> Next {
    let action = match goal {
        Goal::Run => Action::Replay(record),
        // The record has this executor's own outcome, since no other claim has this owner. The settlement had been
        // applied and its answer was lost. Then the store rejected a second attempt without returning the record.
        Goal::Record(task) if settlement::is_outcome_of(plan.owner, &task.intent, &record) => {
            Action::Settled(End::Recorded)
        }
        Goal::Record(_) => Action::Settled(End::Superseded(record)),
    };
    Act(Phase::Over, action)
}

fn refuse(goal: Goal, refusal: Refusal) -> Next {
    let action = match (goal, refusal) {
        (Goal::Run, refusal) => Action::Refused(refusal),
        (Goal::Record(_), Refusal::InProgress(until)) => Action::Settled(End::Fenced(until)),
        (Goal::Record(_), Refusal::OutcomeUnknown) => Action::Settled(End::Fenced(None)),
        // The handler's writes and the outcome are in one transaction, which wasn't applied.
        (Goal::Record(Task { intent: Intent::Commit(_), .. }), refusal) => {
            Action::Settled(End::NotCommitted(refusal))
        }
        (Goal::Record(_), refusal) => Action::Settled(End::Unrecorded(refusal)),
    };
    Act(Phase::Over, action)
}
