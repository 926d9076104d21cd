//! Mutants of what's remembered about earlier attempts: interruptions, claims that may still be in the store,
//! and, under at-most-once, claims that were never settled.

use lambda_idempotency::{
    protocol::{Action, Event, Held, Intent, Refusal},
    store::{Lock, Record, Revision, Settlement, State as RecordState, Status, Write, WriteOutcome},
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{
        Moment, Mutant, NONE, Outcome,
        claiming::{at_most_once, with_lock},
        settling::{shown, with_settlement},
        small,
        store::shipping,
    },
    under_test::Effect,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a release forgets the interruption",
        caught_by: Invariant::TakeoverTold,
        space: again,
        does: |_, outcome| interrupted(outcome, |_| false),
        ..NONE
    },
    Mutant {
        name: "a release doesn't record that this executor's handler panicked",
        caught_by: Invariant::TakeoverTold,
        space: panics,
        does: |moment, outcome| match (moment.event, &moment.before.held()) {
            (Event::Settle(Intent::Release { .. }), Some(held)) => {
                let is_takeover = held.is_takeover;
                interrupted(outcome, |_| is_takeover)
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a claim whose process died is released as if nothing had happened",
        caught_by: Invariant::OwnRecognised,
        space: deaths,
        does: |moment, outcome| match (moment.event, moment.before.held()) {
            (Event::Found(Some(_)), None) if is_interrupting(&outcome.1) => {
                let released = with_release(&outcome.1);
                (outcome.0, released)
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "an interruption replaces a lease that was extended in between",
        caught_by: Invariant::OwnerInterrupts,
        space: || Configuration { extensions: 1, faults: 1, ..deaths() },
        applies: |write, current| match (write, current) {
            (Write::TakeOver { lock, .. }, Some(before))
                if write.is_interruption()
                    && before.owner == lock.owner
                    && before.status() == Status::Started =>
            {
                let state = RecordState::Started { lease_until: lock.lease_until };
                Effect::Put(Record { state, ..before.clone() })
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an interruption makes the lease longer",
        caught_by: Invariant::OwnerInterrupts,
        space: deaths,
        does: |_, (state, action)| match action {
            Action::Apply(Write::TakeOver { seen, mut lock }) if is_own(&seen, &lock) => {
                lock.lease_until = lock.lease_until.saturating_add(millis(4 * TICK));
                (state, Action::Apply(Write::TakeOver { seen, lock }))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "only the previous claim counts as an interruption",
        caught_by: Invariant::TakeoverTold,
        space: again,
        does: |moment, outcome| {
            let was_standing = shown(moment).is_some_and(|record| record.status() == Status::Started);
            let outcome = with_lock(outcome, |lock| lock.interrupted = was_standing);
            match (outcome, moment.sent()) {
                ((state, Action::Claimed(held)), Some(Action::Apply(claim))) => {
                    let is_takeover = claim.lock().is_some_and(|lock| lock.interrupted);
                    (state, Action::Claimed(Held { is_takeover, ..held }))
                }
                (outcome, _) => outcome,
            }
        },
        ..NONE
    },
    Mutant {
        name: "a takeover is stored without the interruption",
        caught_by: Invariant::TakeoverTold,
        applies: |write, current| match (write, current, shipping(write, current)) {
            (Write::TakeOver { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { interrupted: before.interrupted, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "a release is stored without the interruption",
        caught_by: Invariant::TakeoverTold,
        space: panics,
        applies: |write, current| match (write, current, shipping(write, current)) {
            (Write::Settle { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { interrupted: before.interrupted, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "every retry counts as a takeover",
        caught_by: Invariant::TakeoverTrue,
        does: |_, (state, action)| match action {
            Action::Claimed(held) => {
                let is_takeover = held.attempt > 1;
                (state, Action::Claimed(Held { is_takeover, ..held }))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a claim for another request counts as a takeover",
        caught_by: Invariant::TakeoverTrue,
        space: || Configuration { requests: 2, ..panics() },
        does: |moment, outcome| {
            let was_interrupted = shown(moment).is_some_and(|record| record.interrupted);
            with_lock(outcome, |lock| lock.interrupted |= was_interrupted)
        },
        ..NONE
    },
    Mutant {
        name: "a possible claim isn't released",
        caught_by: Invariant::GhostTold,
        space: || Configuration { faults: 2, ..small() },
        does: |moment, outcome| match (moment.event, &outcome.1) {
            (Event::Failed(_), Action::Apply(Write::Settle { .. })) if is_claiming(moment) => {
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
        does: |_, outcome| {
            with_lock(outcome, |lock| {
                lock.expires_at = Some(lock.lease_until.saturating_add(millis(2 * TICK)))
            })
        },
        ..NONE
    },
    Mutant {
        name: "at most once, an extended claim has an expiry",
        caught_by: Invariant::ExpiryPromised,
        space: || Configuration { extensions: 1, ..at_most_once() },
        does: |_, (state, mut action)| {
            if let Action::Apply(Write::Extend { lease_until, expires_at, .. }) = &mut action {
                *expires_at = Some(lease_until.saturating_add(millis(2 * TICK)));
            }
            (state, action)
        },
        ..NONE
    },
    Mutant {
        name: "at most once, the store gives a claim an expiry",
        caught_by: Invariant::UnresolvedKept,
        space: at_most_once,
        applies: |write, current| match shipping(write, current) {
            Effect::Put(Record { expires_at: None, state: RecordState::Started { lease_until }, .. }) => {
                let record = write.apply_to(current);
                let expires_at = Some(lease_until.saturating_add(millis(2 * TICK)));
                record.map(|record| Record { expires_at, ..record }).into()
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
    matches!(moment.sent(), Some(Action::Apply(write)) if write.lock().is_some())
        && matches!(moment.event, Event::Failed(_) | Event::Answered(WriteOutcome::Refused(_)))
}

/// Changes the `interrupted` flag of a release.
fn interrupted(outcome: Outcome, says: impl Fn(bool) -> bool) -> Outcome {
    with_settlement(outcome, |settlement| match settlement {
        Settlement::Release { expires_at, interrupted } => {
            Settlement::Release { expires_at, interrupted: says(interrupted) }
        }
        settlement => settlement,
    })
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

fn is_interrupting(action: &Action) -> bool {
    matches!(action, Action::Apply(write) if write.is_interruption())
}

fn is_own(seen: &Revision, lock: &Lock) -> bool {
    (seen.owner, seen.generation) == (lock.owner, lock.generation)
}

/// The release of the claim that `action` interrupts.
fn with_release(action: &Action) -> Action {
    let Action::Apply(Write::TakeOver { lock, .. }) = action else { return action.clone() };
    let expires_at = lock.expires_at.unwrap_or(lock.lease_until);
    let settlement = Settlement::Release { expires_at, interrupted: false };
    Action::Apply(Write::Settle { owner: lock.owner, generation: lock.generation, settlement })
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
