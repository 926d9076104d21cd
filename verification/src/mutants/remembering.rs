//! Mutants of what's remembered about earlier attempts: interruptions, claims that may still be in the store,
//! and, under at-most-once, claims that were never settled.

use lambda_idempotency::{
    protocol::{Action, Event, Intent, Refusal},
    settings::Execution,
    store::{Mark as RecordMark, Put, PutOutcome, Record, State as RecordState, Status},
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{
        Moment, Mutant, NONE, Outcome,
        claiming::{at_most_once, with_claim},
        sent_by,
        settling::with_settlement,
        small,
        store::shipping,
        with_new,
    },
    spaces,
    under_test::{Effect, Purpose},
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a release forgets the interruption",
        caught_by: Invariant::TakeoverTold,
        space: again,
        does: |_, outcome| interrupted(outcome, false),
        ..NONE
    },
    Mutant {
        name: "a release doesn't record that this executor's handler panicked",
        caught_by: Invariant::TakeoverTold,
        space: panics,
        does: |moment, outcome| match (moment.event, &moment.before.held()) {
            (Event::Settle(Intent::Release { .. }), Some(held)) => {
                let was_interrupted = held.lock.mark.is_interrupted();
                interrupted(outcome, was_interrupted)
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a claim whose process died is released as if nothing had happened",
        caught_by: Invariant::OwnerNotRefused,
        space: deaths,
        does: |_, outcome| with_new(outcome, Purpose::Interrupt, |new| new.state = RecordState::Released),
        ..NONE
    },
    Mutant {
        name: "an interruption under at-most-once shortens the lease too",
        caught_by: Invariant::OwnerInterrupts,
        space: || Configuration { execution: Execution::AtMostOnce, ..deaths() },
        does: |moment, outcome| match (moment.event, moment.before.held()) {
            (Event::Settle(Intent::Unanswered { .. }), Some(held)) => {
                let new = Record { mark: RecordMark::Interrupted, ..held.lock.clone().into() };
                (outcome.0, Action::Put(Put::Mine { held: held.lock.clone(), new }))
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "an interruption makes the lease longer",
        caught_by: Invariant::OwnerInterrupts,
        space: deaths,
        does: |_, outcome| {
            with_new(outcome, Purpose::Interrupt, |new| {
                if let RecordState::Started { lease_until } = &mut new.state {
                    *lease_until = lease_until.saturating_add(millis(4 * TICK));
                }
            })
        },
        ..NONE
    },
    Mutant {
        name: "only the previous claim counts as an interruption",
        caught_by: Invariant::TakeoverTold,
        space: again,
        does: |moment, outcome| {
            let was_standing = moment.shown().is_some_and(|record| record.status() == Status::Started);
            let outcome = with_claim(outcome, |new| new.mark = was_standing.into());
            match (outcome, moment.sent().and_then(sent_by)) {
                ((state, Action::Claimed(mut held)), Some(claim)) => {
                    held.lock.mark = claim.record().mark;
                    (state, Action::Claimed(held))
                }
                (outcome, _) => outcome,
            }
        },
        ..NONE
    },
    Mutant {
        name: "a takeover is stored without the interruption",
        caught_by: Invariant::TakeoverTold,
        applies: |put, current| match (put, current, shipping(put, current)) {
            (Put::Replace { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { mark: before.mark, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "a release is stored without the interruption",
        caught_by: Invariant::TakeoverTold,
        space: panics,
        applies: |put, current| match (put, current, shipping(put, current)) {
            (Put::Mine { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { mark: before.mark, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "every retry counts as a takeover",
        caught_by: Invariant::TakeoverTrue,
        does: |_, (state, action)| match action {
            Action::Claimed(mut held) => {
                held.lock.mark = (held.lock.attempt > 1).into();
                (state, Action::Claimed(held))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a claim for another request counts as a takeover",
        caught_by: Invariant::TakeoverTrue,
        space: || Configuration { requests: 2, ..panics() },
        takes: |moment, record| match record.state {
            RecordState::Released => Record { fingerprint: moment.plan.fingerprint, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a possible claim isn't released",
        caught_by: Invariant::GhostTold,
        space: || Configuration { faults: 2, ..small() },
        does: |moment, outcome| match (moment.event, &outcome.1) {
            (Event::Failed(_), Action::Put(Put::Mine { .. })) if is_claiming(moment) => {
                (outcome.0, Action::Refused(Refusal::Unavailable))
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a possible claim isn't reported",
        caught_by: Invariant::GhostTold,
        does: |_, (state, action)| match action {
            Action::Refused(Refusal::Abandoned(_)) => (state, Action::Refused(Refusal::Unavailable)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a key whose claim may be applied is reported as free too soon",
        caught_by: Invariant::GhostTold,
        does: |moment, (state, action)| match action {
            Action::Refused(Refusal::Abandoned(_)) => {
                (state, Action::Refused(Refusal::Abandoned(moment.now.saturating_sub(millis(TICK)))))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a key whose claim may be applied is reported as held for a day too long",
        caught_by: Invariant::GhostTold,
        does: |_, (state, action)| match action {
            Action::Refused(Refusal::Abandoned(until)) => {
                (state, Action::Refused(Refusal::Abandoned(until.saturating_add(millis(2 * TICK)))))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "at most once, a claim has an expiry",
        caught_by: Invariant::ExpiryPromised,
        space: at_most_once,
        does: |_, outcome| with_claim(outcome, expire),
        ..NONE
    },
    Mutant {
        name: "the store forgets that a claim runs at most once",
        caught_by: Invariant::AtMostOnce,
        space: || spaces::mixed("at most once, then at least once", Execution::AtMostOnce),
        applies: |put, current| match shipping(put, current) {
            Effect::Put(record) => Effect::Put(Record { execution: Execution::AtLeastOnce, ..record }),
            effect => effect,
        },
        ..NONE
    },
    Mutant {
        name: "at most once, an extended claim has an expiry",
        caught_by: Invariant::ExpiryPromised,
        space: || Configuration { extensions: 1, ..at_most_once() },
        does: |_, outcome| with_new(outcome, Purpose::Extend, expire),
        ..NONE
    },
    Mutant {
        name: "at most once, the store gives a claim an expiry",
        caught_by: Invariant::UnresolvedKept,
        space: at_most_once,
        applies: |put, current| match shipping(put, current) {
            Effect::Put(mut record) if record.is_at_most_once_claim() => {
                expire(&mut record);
                Effect::Put(record)
            }
            effect => effect,
        },
        ..NONE
    },
    Mutant {
        name: "the sweeper removes a record without expiry a day after its lease",
        caught_by: Invariant::UnresolvedKept,
        space: at_most_once,
        sweeps: |record, now| {
            let lease = record.lease_until().map(|lease| lease.saturating_add(millis(2 * TICK)));
            record.expires_at.or(lease).is_some_and(|expires_at| expires_at <= now)
        },
        ..NONE
    },
];

/// Whether the last write was a claim, and the event is a failure or a refusal.
fn is_claiming(moment: &Moment<'_>) -> bool {
    moment.was(Purpose::Claim)
        && matches!(moment.event, Event::Failed(_) | Event::Answered(PutOutcome::Refused(_)))
}

/// Changes the mark of an interruption in a release.
fn interrupted(outcome: Outcome, interrupted: bool) -> Outcome {
    with_settlement(outcome, |new| {
        if new.state == RecordState::Released {
            new.mark = interrupted.into();
        }
    })
}

/// Gives a claim an expiry a day after its lease.
fn expire(claim: &mut Record) {
    claim.expires_at = claim.lease_until().map(|lease| lease.saturating_add(millis(2 * TICK)));
}

/// A space with three claims of one key: the first is never settled, the second takes over and releases the key,
/// and the third claims the key again.
fn again() -> Configuration {
    Configuration {
        name: "2 attempts",
        attempts: 2,
        faults: 0,
        times: ticks(4),
        verdicts: &[Verdict::Release],
        ..small()
    }
}

/// A space whose handlers may die with their process.
fn deaths() -> Configuration {
    Configuration {
        name: "deaths",
        lease: 2 * TICK,
        times: ticks(4),
        verdicts: &[Verdict::Complete, Verdict::Interrupt],
        ..small()
    }
}

/// A space whose handlers may panic.
fn panics() -> Configuration {
    Configuration {
        name: "panics",
        times: ticks(3),
        verdicts: &[Verdict::Complete, Verdict::Release, Verdict::Panic],
        ..small()
    }
}
