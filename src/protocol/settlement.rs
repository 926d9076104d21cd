//! The settlement that follows from an intent, and how to recognise it in a record.

use std::time::Duration;

use crate::{
    protocol::{End, Held, Intent, Next, Plan, Refusal, over},
    record::{Owner, Record, State, Status},
    store::Settlement,
    time::Timestamp,
};

/// Returns the settlement of `held` that carries out `intent` at `now`. An outcome expires after `retention`.
pub(super) fn of(
    plan: &Plan,
    retention: Duration,
    now: Timestamp,
    held: &Held,
    intent: &Intent,
) -> Settlement {
    outcome(retention, now, intent)
        .unwrap_or_else(|| release(plan, held, matches!(intent, Intent::Release { interrupted: true })))
}

/// Returns the settlement that stores the outcome in `intent` at `now`. The outcome expires after `retention`. Returns
/// `None` for a release or an interruption, which have no outcome.
pub(super) fn outcome(retention: Duration, now: Timestamp, intent: &Intent) -> Option<Settlement> {
    let expires_at = now.saturating_add(retention).rounded_up_to_second();
    match intent.clone() {
        Intent::Complete(outcome) | Intent::Commit(outcome) => {
            Some(Settlement::Complete(outcome, expires_at))
        }
        Intent::Fail(outcome) => Some(Settlement::Fail(outcome, expires_at)),
        Intent::Release { .. } | Intent::Interrupt => None,
    }
}

/// Returns the settlement that releases `held`. `interrupted` says whether this attempt ended without an answer.
pub(super) fn release(plan: &Plan, held: &Held, interrupted: bool) -> Settlement {
    Settlement::Release {
        expires_at: plan.release_expiry(held.lease_until),
        interrupted: interrupted || held.is_takeover,
    }
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

/// Whether `record` shows that `held` still holds the key. The lease may have been extended, or have expired.
pub(super) fn is_still_held(held: &Held, record: &Record) -> bool {
    record.owner == held.owner && record.generation == held.generation && record.status() == Status::Started
}

/// Ends a settlement that isn't known to be stored. If a transaction is in doubt, it may still be applied, because
/// no stored settlement is known to fence it.
pub(super) fn unrecorded(plan: &Plan, held: &Held, is_in_doubt: bool, why: Refusal) -> Next {
    over(match is_in_doubt {
        true => End::Unresolved(Some(plan.rules.claimable_at(held.lease_until))),
        false => End::Unrecorded(why),
    })
}
