//! Settles a held claim: completes, fails or releases it, or marks it as unanswered (T9). Handles the claim's loss.

use crate::{
    outcome::Outcome,
    protocol::{
        Action, End, Event, Fault, Held, Intent,
        Next::{self, Act},
        Phase, Plan, Refusal, over,
        plan::Task,
        refusal_for,
        settlement::{self, is_own_outcome, is_still_held, is_stored, unrecorded},
    },
    record::Record,
    settings::Execution,
    store::{PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// Sends the settlement, even after the lease has expired: it's still applied if no other claim has taken
/// over.
pub(super) fn send(plan: &Plan, now: Timestamp, held: Held, task: Task) -> Next {
    // The claim stays as it is, since the operation may not run again, and has no reconciler.
    let is_final = plan.rules.execution == Execution::AtMostOnce && plan.rules.reconcile.is_none();
    if is_final && matches!(task.intent, Intent::Unanswered { .. }) {
        return over(End::Recorded);
    }
    let put = settlement::of(plan, plan.rules.retention, now, &held, &task);
    Act(Phase::Settling { held, task }, Action::Put(put))
}

pub(super) fn settling(plan: &Plan, now: Timestamp, held: Held, task: Task, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => over(End::Recorded),
        Event::Answered(PutOutcome::Refused(record)) => examine(plan, now, held, task, record),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => {
            unrecorded(plan, &held, task.is_in_doubt, Refusal::Corrupt)
        }
        Event::Failed(Fault { maybe_applied: true, .. }) => {
            Act(Phase::LookingForSettlement { held, task }, Action::Read)
        }
        // The store will never accept this outcome. Recording that the operation is done matters more than its
        // response, so send the outcome without the response.
        Event::Failed(Fault { kind: StoreErrorKind::Unstorable, .. }) => match omitted(&task.intent) {
            Some(intent) => send(plan, now, held, Task { intent, ..task }),
            None => unrecorded(plan, &held, task.is_in_doubt, Refusal::Rejected),
        },
        Event::Failed(Fault { kind, .. }) => match task.again(plan, now) {
            Ok((task, nth)) => Act(Phase::Settling { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, refusal_for(kind)),
        },
        Event::Resumed => send(plan, now, held, task),
        _ => Act(Phase::Settling { held, task }, Action::Nothing),
    }
}

pub(super) fn looking(plan: &Plan, now: Timestamp, held: Held, task: Task, event: Event) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, held, task, record),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => {
            unrecorded(plan, &held, task.is_in_doubt, Refusal::Corrupt)
        }
        Event::Failed(Fault { kind, .. }) => match task.again(plan, now) {
            Ok((task, nth)) => Act(Phase::LookingForSettlement { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, refusal_for(kind)),
        },
        Event::Resumed => Act(Phase::LookingForSettlement { held, task }, Action::Read),
        _ => Act(Phase::LookingForSettlement { held, task }, Action::Nothing),
    }
}

/// Decides from the current record how to continue, after the settlement was rejected or its answer was ambiguous.
fn examine(plan: &Plan, now: Timestamp, held: Held, task: Task, record: Option<Record>) -> Next {
    match record {
        Some(record) if is_stored(plan, &held, &task.intent, &record) => over(End::Recorded),
        Some(record) if is_still_held(&held, &record) => match task.again(plan, now) {
            // The read already took time, so the first retry needs no pause.
            Ok((task, 0)) => send(plan, now, held, task),
            Ok((task, nth)) => Act(Phase::Settling { held, task }, Action::Pause(nth)),
            Err(task) => unrecorded(plan, &held, task.is_in_doubt, Refusal::Unavailable),
        },
        // This claim's transaction was declined while an earlier attempt of it was still on its way. That
        // attempt was applied after all, so its outcome counts.
        Some(record) if is_own_outcome(held.lock.owner, &record) => over(End::Superseded(record)),
        // The claim is lost, so there's nothing left to release.
        record if matches!(task.intent, Intent::Release { .. } | Intent::Unanswered { .. }) => {
            let lease_until = record.and_then(|record| record.lease_until());
            over(End::Fenced(lease_until.map(|lease_until| plan.rules.claimable_at(lease_until))))
        }
        record => Next::RecordAnew { lost: held, task, record },
    }
}

/// Returns the same intent without its response, or `None` if it has no response.
pub(super) fn omitted(intent: &Intent) -> Option<Intent> {
    match intent {
        Intent::Complete(Outcome::Retained(_)) => Some(Intent::Complete(Outcome::Omitted)),
        Intent::Commit(Outcome::Retained(_)) => Some(Intent::Commit(Outcome::Omitted)),
        Intent::Fail(Outcome::Retained(_)) => Some(Intent::Fail(Outcome::Omitted)),
        Intent::Complete(Outcome::Omitted)
        | Intent::Commit(Outcome::Omitted)
        | Intent::Fail(Outcome::Omitted)
        | Intent::Release { .. }
        | Intent::Unanswered { .. } => None,
    }
}
