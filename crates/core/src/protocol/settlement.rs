//! The settlement that follows from an intent, and how to recognise it in a record.

use std::time::Duration;

use crate::{
    protocol::{
        self, End, Held, Intent, Next, Phase, Plan, Refusal, over,
        plan::{INTERRUPTED_LEASE, Task},
    },
    record::{Mark, Owner, Record, State, Status},
    settings::LONGEST_WAIT,
    store::Put,
    time::Timestamp,
};

impl protocol::State {
    /// Whether the claim that's held must first ask for the effect of an earlier attempt.
    pub fn is_asking(&self) -> bool {
        matches!(&self.phase, Phase::Held(running) | Phase::Extending { running, .. } if running.is_asking)
    }

    /// Returns the intent for a claim that ended at `now` without an answer.
    ///
    /// After a question, its lease ends when the question is to be asked again, or after 10 seconds if nothing says when.
    /// After a handler, it ends when the handler's effect has arrived, if ever: after 10 seconds, or later if the reconciler
    /// says so. Without a reconciler, a lease that ends sooner stays.
    pub fn unanswered(&self, now: Timestamp, ask_again_after: Option<Duration>) -> Intent {
        let until = |wait: Duration| now.saturating_add(wait.min(LONGEST_WAIT));
        let until = match (self.plan.rules.reconcile, self.held()) {
            (Some(_), _) if self.is_asking() => until(ask_again_after.unwrap_or(INTERRUPTED_LEASE)),
            (Some(reconcile), _) => until(INTERRUPTED_LEASE.max(reconcile.arrives_within)),
            (None, held) => {
                let lease_until = held.map_or(self.plan.limits.lease_until, |held| held.lock.lease_until);
                until(INTERRUPTED_LEASE).min(lease_until)
            }
        };
        // If the lease stayed the same, an extension that's still on its way would be applied, and replace the mark.
        let is_marked = self.plan.rules.reconcile.is_some();
        let is_same = is_marked && self.held().is_some_and(|held| held.lock.lease_until == until);
        Intent::Unanswered { until: until.saturating_add(Duration::from_millis(is_same.into())) }
    }
}

/// Returns the put that carries out `task` for `held` at `now`. An outcome expires after `retention`.
pub(super) fn of(plan: &Plan, retention: Duration, now: Timestamp, held: &Held, task: &Task) -> Put {
    let mark = if task.is_reconciled { Mark::Reconciled } else { held.lock.mark.is_interrupted().into() };
    match (&task.intent, outcome(retention, now, &task.intent)) {
        (_, Some((state, expires_at))) => put(held, state, Some(expires_at), mark),
        (Intent::Unanswered { until }, None) => unanswered(plan, held, *until),
        (intent, None) => release(plan, held, matches!(intent, Intent::Release { interrupted: true })),
    }
}

/// Returns the state that stores the outcome in `intent` at `now`, and its expiry after `retention`. Returns `None` for
/// a release or an interruption, which have no outcome.
pub(super) fn outcome(retention: Duration, now: Timestamp, intent: &Intent) -> Option<(State, Timestamp)> {
    let state = match intent.clone() {
        Intent::Complete(outcome) | Intent::Commit(outcome) => State::Completed(outcome),
        Intent::Fail(outcome) => State::Failed(outcome),
        Intent::Release { .. } | Intent::Unanswered { .. } => return None,
    };
    Some((state, now.saturating_add(retention).rounded_up_to_second()))
}

/// Returns the put that releases `held`. `interrupted` says whether this attempt ended without an answer.
pub(super) fn release(plan: &Plan, held: &Held, interrupted: bool) -> Put {
    let expires_at = plan.release_expiry(held.lock.lease_until);
    let mark = Mark::from(interrupted || held.lock.mark.is_interrupted());
    put(held, State::Released, Some(expires_at), mark)
}

/// T9: returns the put that marks `held` as ended without an answer, and ends its lease at `until`.
///
/// Without a reconciler, the claim keeps its mark, as after a crash. An executor that reads the mark doesn't wait for the
/// handler's effect any more, and this executor doesn't know how long that takes.
///
/// The owner and the generation stay, so the claim can still be settled until it's taken over. The expiry is never
/// earlier than before, since it's only a lower bound. An extension that's still on its way is refused, because the lease
/// isn't as seen.
pub(super) fn unanswered(plan: &Plan, held: &Held, until: Timestamp) -> Put {
    let expires_at = held.lock.expires_at.map(|expires_at| expires_at.max(plan.release_expiry(until)));
    put(held, State::Started { lease_until: until }, expires_at, mark_of_unanswered(plan, held))
}

fn mark_of_unanswered(plan: &Plan, held: &Held) -> Mark {
    if plan.rules.reconcile.is_some() { Mark::Unanswered } else { held.lock.mark }
}

fn put(held: &Held, state: State, expires_at: Option<Timestamp>, mark: Mark) -> Put {
    let claim = Record::from(held.lock.clone());
    let new = Record { state, expires_at, mark, ..claim };
    Put::Mine { held: held.lock.clone(), new }
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

/// Whether `record` shows that `intent` was carried out for `held`.
pub(super) fn is_stored(plan: &Plan, held: &Held, intent: &Intent, record: &Record) -> bool {
    let is_unanswered = |until| {
        let is_marked = record.mark == mark_of_unanswered(plan, held);
        is_still_held(held, record) && is_marked && record.lease_until() == Some(until)
    };
    match intent {
        Intent::Unanswered { until } => is_unanswered(*until),
        _ => is_outcome_of(held.lock.owner, intent, record),
    }
}

/// Whether this record has an outcome that `owner` wrote.
pub(super) fn is_own_outcome(owner: Owner, record: &Record) -> bool {
    record.owner == owner && matches!(record.state, State::Completed(_) | State::Failed(_))
}

/// Whether `record` shows that `held` still holds the key. The lease may have been extended, or have expired.
pub(super) fn is_still_held(held: &Held, record: &Record) -> bool {
    record.owner == held.lock.owner
        && record.generation == held.lock.generation
        && record.status() == Status::Started
}

/// Ends a settlement that isn't known to be stored. If a transaction is in doubt, it may still be applied, because
/// no stored settlement is known to fence it.
pub(super) fn unrecorded(plan: &Plan, held: &Held, is_in_doubt: bool, why: Refusal) -> Next {
    over(match is_in_doubt {
        true => End::Unresolved(Some(plan.rules.claimable_at(held.lock.lease_until))),
        false => End::Unrecorded(why),
    })
}
