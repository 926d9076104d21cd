//! Settles a held claim: completes, fails or releases it, and handles its loss.

use std::time::Duration;

use crate::{
    outcome::Outcome,
    protocol::{
        Action, End, Event, Fault, Held, Intent, Next, Phase, Plan, Refusal, acquire, commit, plan::Task,
        refusal_for,
    },
    record::{Owner, Record, State, Status},
    store::{Settlement, StoreErrorKind, Write, WriteOutcome},
    time::Timestamp,
};

/// Begins to settle: alone, or in a transaction with the handler's own writes.
pub(super) fn begin(plan: &Plan, now: Timestamp, held: Held, task: Task, submissions: u32) -> Next {
    match task.intent {
        Intent::Commit(_) => commit::send(plan, now, held, task, submissions),
        _ => send(plan, now, held, task),
    }
}

/// Sends the settlement, even after the lease has expired: it's still applied if no other claim has taken
/// over.
fn send(plan: &Plan, now: Timestamp, held: Held, task: Task) -> Next {
    let settlement = outcome(plan.rules.retention, now, &task.intent).unwrap_or_else(|| {
        let interrupted = matches!(task.intent, Intent::Release { interrupted: true });
        release(plan, &held, interrupted)
    });
    let write = Write::Settle { owner: held.owner, generation: held.generation, settlement };
    (Phase::Settling { held, task }, Action::Apply(write))
}

/// Returns the settlement that stores `intent` at `now` and expires after `retention`. `None` for a release.
pub(super) fn outcome(retention: Duration, now: Timestamp, intent: &Intent) -> Option<Settlement> {
    let expires_at = now.saturating_add(retention).rounded_up_to_second();
    match intent.clone() {
        Intent::Complete(outcome) | Intent::Commit(outcome) => {
            Some(Settlement::Complete(outcome, expires_at))
        }
        Intent::Fail(outcome) => Some(Settlement::Fail(outcome, expires_at)),
        Intent::Release { .. } => None,
    }
}

/// Returns the settlement that releases `held`. `interrupted` says whether this attempt ended without an answer.
pub(super) fn release(plan: &Plan, held: &Held, interrupted: bool) -> Settlement {
    Settlement::Release {
        expires_at: plan.release_expiry(held.lease_until),
        interrupted: interrupted || held.is_takeover,
    }
}

pub(super) fn settling(plan: &Plan, now: Timestamp, held: Held, task: Task, event: Event) -> Next {
    match event {
        Event::Answered(WriteOutcome::Applied) => over(End::Recorded),
        Event::Answered(WriteOutcome::Refused(record)) => examine(plan, now, held, task, record),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => {
            unrecorded(plan, &held, task.is_in_doubt, Refusal::Corrupt)
        }
        Event::Failed(Fault { maybe_applied: true, .. }) => {
            (Phase::LookingForSettlement { held, task }, Action::Read)
        }
        // The store will never accept this outcome. Recording the operation as done matters more than its response.
        Event::Failed(Fault { kind: StoreErrorKind::Unstorable, .. }) => match omitted(&task.intent) {
            Some(intent) => send(plan, now, held, Task { intent, ..task }),
            None => unrecorded(plan, &held, task.is_in_doubt, Refusal::Rejected),
        },
        Event::Failed(Fault { kind, .. }) => match task.again(plan, now) {
            Ok((task, nth)) => (Phase::Settling { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, refusal_for(kind)),
        },
        Event::Resumed => send(plan, now, held, task),
        _ => (Phase::Settling { held, task }, Action::Nothing),
    }
}

pub(super) fn looking(plan: &Plan, now: Timestamp, held: Held, task: Task, event: Event) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, held, task, record),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => {
            unrecorded(plan, &held, task.is_in_doubt, Refusal::Corrupt)
        }
        Event::Failed(Fault { kind, .. }) => match task.again(plan, now) {
            Ok((task, nth)) => (Phase::LookingForSettlement { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, refusal_for(kind)),
        },
        Event::Resumed => (Phase::LookingForSettlement { held, task }, Action::Read),
        _ => (Phase::LookingForSettlement { held, task }, Action::Nothing),
    }
}

/// Decides on the current record, after the settlement was rejected or its answer was ambiguous.
fn examine(plan: &Plan, now: Timestamp, held: Held, task: Task, record: Option<Record>) -> Next {
    let is_still_held = |record: &Record| {
        record.owner == held.owner
            && record.generation == held.generation
            && record.status() == Status::Started
    };
    match record {
        Some(record) if is_outcome_of(held.owner, &task.intent, &record) => over(End::Recorded),
        Some(record) if is_still_held(&record) => match task.again(plan, now) {
            // The read already took time, so the first retry needs no pause.
            Ok((task, 0)) => send(plan, now, held, task),
            Ok((task, nth)) => (Phase::Settling { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, Refusal::Unavailable),
        },
        // This claim's transaction was declined while an earlier attempt of it was still on its way. That
        // attempt was applied after all, so its outcome counts.
        Some(record) if is_own_outcome(held.owner, &record) => over(End::Superseded(record)),
        // Another claim took over: there's nothing left to release.
        record if matches!(task.intent, Intent::Release { .. }) => {
            let lease_until = record.and_then(|record| record.lease_until());
            over(End::Fenced(lease_until.map(|lease_until| plan.rules.claimable_at(lease_until))))
        }
        record => {
            let is_in_doubt = task.is_in_doubt;
            match acquire::to_record(plan, now, task, record) {
                (_, Action::Settled(End::Unrecorded(why))) => unrecorded(plan, &held, is_in_doubt, why),
                next => next,
            }
        }
    }
}

/// Ends a settlement that isn't known to be stored. If a transaction is in doubt, it may still be applied, because
/// no stored settlement is known to fence it.
fn unrecorded(plan: &Plan, held: &Held, is_in_doubt: bool, why: Refusal) -> Next {
    over(match is_in_doubt {
        true => End::Unresolved(Some(plan.rules.claimable_at(held.lease_until))),
        false => End::Unrecorded(why),
    })
}

pub(super) fn over(end: End) -> Next {
    (Phase::Over, Action::Settled(end))
}

/// Whether this record is the result of `intent` by `owner`. It compares the outcome too, since an earlier
/// transaction of the same owner may have stored another outcome.
pub(super) fn is_outcome_of(owner: Owner, intent: &Intent, record: &Record) -> bool {
    record.owner == owner
        && match (intent, &record.state) {
            (Intent::Complete(outcome) | Intent::Commit(outcome), State::Completed(there))
            | (Intent::Fail(outcome), State::Failed(there)) => outcome == there,
            (Intent::Release { .. }, State::Released) => true,
            _ => false,
        }
}

/// Whether this record has an outcome that `owner` wrote.
pub(super) fn is_own_outcome(owner: Owner, record: &Record) -> bool {
    record.owner == owner && matches!(record.state, State::Completed(_) | State::Failed(_))
}

/// Returns the same intent without its response, or `None` if it has no response.
fn omitted(intent: &Intent) -> Option<Intent> {
    match intent {
        Intent::Complete(Outcome::Retained(_)) => Some(Intent::Complete(Outcome::Omitted)),
        Intent::Commit(Outcome::Retained(_)) => Some(Intent::Commit(Outcome::Omitted)),
        Intent::Fail(Outcome::Retained(_)) => Some(Intent::Fail(Outcome::Omitted)),
        Intent::Complete(Outcome::Omitted)
        | Intent::Commit(Outcome::Omitted)
        | Intent::Fail(Outcome::Omitted)
        | Intent::Release { .. } => None,
    }
}
