//! Settling a claim that is held: completing, failing, releasing, and what to do when it was lost.

use std::time::Duration;

use crate::{
    outcome::Outcome,
    protocol::{
        Action, End, Event, Fault, Goal, Held, Intent, MAX_RETRIES, Next, Phase, Plan, Refusal, commit, lost,
        refusal_for,
    },
    record::{Owner, Record, State, Status},
    store::{Settlement, StoreErrorKind, Write, Written},
    time::Timestamp,
};

/// Begins to settle: alone, or in a transaction with the handler's own writes.
pub(super) fn begin(plan: &Plan, now: Timestamp, held: Held, intent: Intent, submissions: u32) -> Next {
    match intent {
        Intent::Commit(outcome) => commit::send(plan, now, held, outcome, submissions),
        intent => send(plan, now, held, intent, 0),
    }
}

/// Sends the settlement. There is no test of the time: a lease that has run out but was not taken over
/// may still be settled.
pub(super) fn send(plan: &Plan, now: Timestamp, held: Held, intent: Intent, retries: u8) -> Next {
    let write = Write::Settle {
        owner: held.owner,
        generation: held.generation,
        settlement: settlement(plan.rules.retention, now, &intent),
    };
    (Phase::Settling { held, intent, retries }, Action::Apply(write))
}

/// What `intent` makes of a record at `now`; an outcome counts for `retention`.
pub(super) fn settlement(retention: Duration, now: Timestamp, intent: &Intent) -> Settlement {
    let expires_at = now.saturating_add(retention).rounded_up_to_second();
    match intent.clone() {
        Intent::Complete(outcome) | Intent::Commit(outcome) => Settlement::Complete(outcome, expires_at),
        Intent::Fail(outcome) => Settlement::Fail(outcome, expires_at),
        Intent::Release => Settlement::Release,
    }
}

pub(super) fn settling(
    plan: &Plan,
    now: Timestamp,
    held: Held,
    intent: Intent,
    retries: u8,
    event: Event,
) -> Next {
    match event {
        Event::Answered(Written::Applied) => over(End::Recorded),
        Event::Answered(Written::Refused(record)) => examine(plan, now, held, intent, retries, record),
        Event::Failed(Fault { maybe_applied: true, kind }) if kind != StoreErrorKind::Corrupt => {
            (Phase::LookingForSettlement { held, intent, retries }, Action::Read)
        }
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, .. }) if retries < MAX_RETRIES => {
            (Phase::Settling { held, intent, retries: retries + 1 }, Action::Pause(retries))
        }
        // The store will not take this outcome; that it is done matters more than its response.
        Event::Failed(Fault { kind: StoreErrorKind::Rejected, .. }) if retains(&intent) => {
            send(plan, now, held, omitted(intent), retries)
        }
        Event::Failed(Fault { kind, .. }) => over(End::Unrecorded(refusal_for(kind))),
        Event::Resumed => send(plan, now, held, intent, retries),
        _ => (Phase::Settling { held, intent, retries }, Action::Nothing),
    }
}

pub(super) fn looking(
    plan: &Plan,
    now: Timestamp,
    held: Held,
    intent: Intent,
    retries: u8,
    event: Event,
) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, held, intent, retries, record),
        Event::Failed(Fault { kind, .. }) => over(End::Unrecorded(refusal_for(kind))),
        _ => (Phase::LookingForSettlement { held, intent, retries }, Action::Nothing),
    }
}

/// The settlement was refused, or its answer was doubtful: what does the record say?
fn examine(
    plan: &Plan,
    now: Timestamp,
    held: Held,
    intent: Intent,
    retries: u8,
    record: Option<Record>,
) -> Next {
    let stands = |record: &Record| {
        record.owner == held.owner
            && record.generation == held.generation
            && record.status() == Status::Started
    };
    match record {
        Some(record) if is_outcome_of(held.owner, &intent, &record) => over(End::Recorded),
        Some(record) if stands(&record) => {
            if retries >= MAX_RETRIES {
                return over(End::Unrecorded(Refusal::Unavailable));
            }
            send(plan, now, held, intent, retries + 1)
        }
        // A transaction of this claim's own, which was declined while an earlier attempt of it was still on its way,
        // and made all the same: that outcome stands.
        Some(record) if intent == Intent::Release && is_own_outcome(held.owner, &record) => {
            over(End::Superseded(record))
        }
        // Taken over: there is nothing left to give back.
        record if intent == Intent::Release => {
            over(End::Fenced(record.and_then(|record| record.lease_until())))
        }
        record => fenced(plan, now, intent, record),
    }
}

/// The claim was taken over. If there is an outcome it stands; if the key is free again, it is claimed
/// once more, only to record the outcome in hand.
pub(super) fn fenced(plan: &Plan, now: Timestamp, intent: Intent, record: Option<Record>) -> Next {
    let lock = plan.lock(now, crate::record::Generation::first(now), 1, &Goal::Run);
    lost(plan, now, Goal::Record(intent), Write::Claim(lock), 0, record, Refusal::InProgress(None))
}

pub(super) fn over(end: End) -> Next {
    (Phase::Over, Action::Settled(end))
}

/// Whether this record is what its owner asked for with `intent`. The outcome counts, too: an earlier transaction of the
/// same owner's may have left another.
pub(super) fn is_outcome_of(owner: Owner, intent: &Intent, record: &Record) -> bool {
    record.owner == owner
        && match (intent, &record.state) {
            (Intent::Complete(outcome) | Intent::Commit(outcome), State::Completed(there))
            | (Intent::Fail(outcome), State::Failed(there)) => outcome == there,
            (Intent::Release, State::Released) => true,
            _ => false,
        }
}

/// Whether this record has an outcome that its owner has put there.
pub(super) fn is_own_outcome(owner: Owner, record: &Record) -> bool {
    record.owner == owner && matches!(record.state, State::Completed(_) | State::Failed(_))
}

fn retains(intent: &Intent) -> bool {
    matches!(intent, Intent::Complete(Outcome::Retained(_)) | Intent::Fail(Outcome::Retained(_)))
}

fn omitted(intent: Intent) -> Intent {
    match intent {
        Intent::Complete(_) => Intent::Complete(Outcome::Omitted),
        Intent::Commit(_) => Intent::Commit(Outcome::Omitted),
        Intent::Fail(_) => Intent::Fail(Outcome::Omitted),
        Intent::Release => Intent::Release,
    }
}
