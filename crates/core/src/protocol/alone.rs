//! Commits the handler's own writes without a record, while idempotency isn't enforced.
//!
//! No record shows whether an attempt was applied, and nothing fences one that's still on its way. So each attempt is the
//! same transaction, under one token. After an ambiguous answer, only an applied attempt ends the doubt.

use crate::{
    outcome::Outcome,
    protocol::{
        Action, Decline, End, Event, Fault, Intent, Limits,
        Next::{self, Act},
        Phase, Plan,
        limits::{SHORTEST_ANSWER, SHORTEST_CALL},
        over,
        plan::Task,
    },
    store::{PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// Sends the writes for the first time.
pub(super) fn begin(plan: &Plan, now: Timestamp) -> Next {
    send(Task::new(plan, now, Intent::Commit(Outcome::Omitted), false))
}

fn send(task: Task) -> Next {
    Act(Phase::Alone(task), Action::CommitAlone)
}

pub(super) fn committing(plan: &Plan, now: Timestamp, task: Task, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => over(End::Recorded),
        Event::Declined | Event::Answered(PutOutcome::Refused(_)) => not_applied(&task, Decline::Condition),
        Event::Failed(Fault { kind, maybe_applied }) => {
            let task = Task { is_in_doubt: task.is_in_doubt || maybe_applied, ..task };
            let why = Decline::Store(kind);
            if !matches!(kind, StoreErrorKind::Unavailable | StoreErrorKind::Conflict) {
                return not_applied(&task, why);
            }
            match task.again(plan, now) {
                Ok((task, nth)) => Act(Phase::Alone(task), Action::Pause(nth)),
                Err(task) => not_applied(&task, why),
            }
        }
        Event::Resumed => send(task),
        _ => Act(Phase::Alone(task), Action::Nothing),
    }
}

/// The last attempt wasn't applied. If an earlier answer was ambiguous, the reason isn't told: the writes may be there.
fn not_applied(task: &Task, why: Decline) -> Next {
    match task.is_in_doubt {
        true => over(End::Unresolved(None)),
        false => Act(Phase::Over, Action::Declined(why)),
    }
}

/// Returns the time limit of the next attempt. No attempt gets all the time that's left, so that an unanswered one leaves
/// time for another.
pub(super) fn call_until(limits: Limits, now: Timestamp, task: &Task) -> Timestamp {
    let longest = now.saturating_add((now.until(task.by) / 2).max(SHORTEST_CALL));
    let last = if task.retries == 0 { first_call_until(limits, now) } else { Some(task.by) };
    last.map_or(longest, |last| last.min(longest))
}

/// Returns the time at which the first attempt to commit must end. The attempt is made even if the answer is overdue:
/// without it, the writes would be lost.
pub fn first_call_until(limits: Limits, now: Timestamp) -> Option<Timestamp> {
    let is_in_time = |last: &Timestamp| now.saturating_add(SHORTEST_ANSWER) < *last;
    let overdue = now.saturating_add(SHORTEST_CALL);
    limits.last_call().map(|last| Some(last).filter(is_in_time).unwrap_or(overdue))
}
