//! Computes the limits of an operation, from the settings, the invocation and the front end.

use crate::{
    invocation::{Invocation, Stage},
    protocol::Limits,
    settings::Settings,
    time::Timestamp,
};

/// Returns the limits of an operation that begins at `now`.
pub(crate) fn of(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Limits {
    let limits = unextended(settings, now, invocation);
    let Some(length) = settings.lease_extension.or(invocation.short_lease()) else { return limits };
    Limits { lease_until: limits.lease_from(now, length), lease_extension: Some(length), ..limits }
}

/// Returns the limits under a lease that isn't extended, or of a run without a claim.
pub(crate) fn unextended(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Limits {
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
    Limits {
        ask_by,
        answer_by,
        deadline,
        latest_cut_off: invocation.cut_off(),
        lease_grace,
        reserve,
        cuts_off: settings.cut_off,
        ..Limits::unknown(lease_until, settle_within)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_795_000_000);

    fn after(millis: u64) -> Timestamp {
        NOW.saturating_add(Duration::from_millis(millis))
    }

    /// The limits in the order of the table in the docs of [`Limits`], for a settlement that begins now.
    fn table(settings: &Settings, invocation: &Invocation) -> [Option<u128>; 8] {
        let limits = of(settings, NOW, invocation);
        let lease_until = limits.lease_until;
        [
            Some(lease_until),
            Some(limits.cut_off(lease_until)),
            Some(limits.start_by(lease_until)),
            limits.ask_by,
            limits.answer_by,
            limits.last_call(),
            Some(limits.settle_by(NOW)),
            Some(limits.prepare_by(NOW)),
        ]
        .map(|time| Some(NOW.until(time?).as_millis()))
    }

    #[test]
    fn limits_follow_settings_invocation_and_front_end() {
        let settings = Settings::default();
        let mut short = Settings::default();
        short.lease_extension = Some(Duration::from_secs(6));
        let mut waits = Settings::default();
        waits.cut_off = false;
        let known = Invocation::entered(NOW, after(10_000), "id");
        let row = |row: [u128; 8]| row.map(Some);
        let usual = row([12_000, 10_000, 9750, 9500, 9750, 9950, 9750, 4875]);
        assert_eq!(table(&settings, &known), usual);
        let [.., settle_by, prepare_by] = row([0, 0, 0, 0, 0, 0, 30_000, 15_000]);
        let unknown = [Some(60_000), Some(58_000), Some(58_000), None, None, None, settle_by, prepare_by];
        assert_eq!(table(&settings, &Invocation::unknown()), unknown);
        let extended = row([6000, 4000, 4000, 9500, 9750, 9950, 9750, 4875]);
        assert_eq!(table(&short, &known), extended);
        let in_batch = row([12_000, 9000, 9000, 9500, 9750, 9950, 9750, 4875]);
        assert_eq!(table(&settings, &known.clone().cut_off_at(Some(after(9000)))), in_batch);
        let in_front = row([12_000, 10_000, 9750, 4750, 5000, 9950, 5000, 2500]);
        let until = |millis| known.clone().with_caller_waiting_until(after(millis));
        assert_eq!(table(&settings, &until(5000)), in_front);
        assert_eq!(table(&settings, &until(250)), usual, "the front end is about to stop waiting");
        let [lease, cut_off, start, ask, answer, _, settle, prepare] = usual;
        assert_eq!(table(&waits, &known), [lease, cut_off, start, ask, answer, None, settle, prepare]);
    }
}
