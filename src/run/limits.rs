//! Computes the limits of an operation, from the settings, the invocation and the front end.

use crate::{
    invocation::{Invocation, Stage},
    protocol::Limits,
    settings::Settings,
    time::Timestamp,
};

impl Limits {
    /// Returns the limits of an operation that begins at `now`.
    pub(crate) fn of(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Self {
        let limits = Self::unextended(settings, now, invocation);
        let Some(length) = settings.lease_extension.or(invocation.short_lease()) else { return limits };
        Self { lease_until: limits.lease_from(now, length), lease_extension: Some(length), ..limits }
    }

    /// Returns the limits under a lease that isn't extended, or of a run without a claim.
    pub(crate) fn unextended(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Self {
        let Settings { answer_reserve: reserve, lease_grace, settle_within, .. } = *settings;
        let deadline = invocation.deadline();
        let lease_until = match deadline {
            Some(deadline) => deadline.saturating_add(lease_grace),
            None => now.saturating_add(settings.lease_fallback),
        };
        let answer_by = answer_by(settings, now, invocation);
        let ask_by = answer_by.map(|answer_by| {
            let left = now.until(answer_by);
            if settings.fail_open {
                // If the store fails, the handler gets the other half of the time.
                now.saturating_add(left / 2)
            } else {
                // Leaves time to release a claim that the library gives up on.
                answer_by.saturating_sub(reserve.min(left / 4))
            }
        });
        Self {
            ask_by,
            answer_by,
            deadline,
            latest_cut_off: invocation.cut_off(),
            lease_grace,
            reserve,
            cuts_off: settings.cut_off,
            ..Self::unknown(lease_until, settle_within)
        }
    }
}

/// Returns the time at which the caller of an operation that begins at `now` needs its answer: before the deadline, or
/// before the front end stops waiting if that's earlier. If the front end has stopped waiting, or is about to, only the
/// deadline counts: the handler runs until then, and the client's retry needs the record.
fn answer_by(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Option<Timestamp> {
    let reserve = settings.answer_reserve;
    let deadline = invocation.deadline().map(|deadline| deadline.saturating_sub(reserve));
    deadline.into_iter().chain(invocation.caller_waits_at(now.saturating_add(reserve))).min()
}

/// Returns the time until which a duplicate waits for another delivery's outcome: for at most half of the time that's
/// left. If the last attempt finds the key free, the handler has the other half.
pub(super) fn wait_until(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Option<Timestamp> {
    let budget = settings.wait_in_progress;
    if budget.is_zero() {
        return None;
    }
    let ends = invocation.deadline().into_iter().chain(invocation.caller_waits_at(now));
    let half = ends.min().map(|end| now.until(end) / 2);
    let until = now.saturating_add(half.map_or(budget, |half| half.min(budget)));
    Some(invocation.end_of(Stage::Claims).map_or(until, |last| last.min(until)))
}
