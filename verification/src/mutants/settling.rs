//! Mutants of how a claim is settled.

use lambda_idempotency::{
    protocol::{Action, End, Event, Intent, Refusal},
    store::{Generation, Outcome as Answer, Put, PutOutcome, Record, State as RecordState},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    mutants::{
        Mutant, NONE, Outcome,
        claiming::{definite, one, with_claim},
        with_new,
    },
    under_test::Purpose,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the completion tests the time",
        caught_by: Invariant::OwnerNotRefused,
        does: |moment, (state, action)| {
            let is_late = moment.plan.limits.lease_until < moment.now;
            match (moment.event, &action) {
                (Event::Settle(_), Action::Put(_)) if is_late => (state, Action::Settled(End::Fenced(None))),
                _ => (state, action),
            }
        },
        ..NONE
    },
    Mutant {
        name: "a fenced executor completes with the successor's owner and generation",
        caught_by: Invariant::OwnerSettles,
        does: |moment, (state, action)| match (moment.shown(), &action, &moment.before.intent) {
            (Some(record), Action::Settled(End::Fenced(Some(_))), Some(Intent::Complete(outcome))) => {
                let expires_at = Some(moment.now.saturating_add(moment.plan.rules.retention));
                let completed = RecordState::Completed(outcome.clone());
                let new = Record { state: completed, expires_at, ..record.clone() };
                match (&moment.before.sent, record.lease_until()) {
                    (Some((sent, _)), Some(lease)) => {
                        let held = record.lock_until(lease);
                        (sent.clone(), Action::Put(Put::Mine { held, new }))
                    }
                    _ => (state, action),
                }
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a superseded executor answers with its own outcome",
        caught_by: Invariant::RecordedIsStored,
        does: |_, (state, action)| match action {
            Action::Settled(End::Superseded(_)) => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a fenced executor reports its outcome as recorded",
        caught_by: Invariant::RecordedIsStored,
        does: |_, (state, action)| match action {
            Action::Settled(End::Fenced(_)) => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous settlement is treated as a success",
        caught_by: Invariant::RecordedIsStored,
        hears: |moment, event| match event {
            Event::Failed(_) if moment.is_doubtful() && moment.is_settling() => {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a throttled settlement is treated as a success",
        caught_by: Invariant::RecordedIsStored,
        hears: |moment, event| match event {
            Event::Failed(_) if !moment.is_doubtful() && moment.is_settling() => {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous settlement is treated as a definite failure",
        caught_by: Invariant::DoubtLookedInto,
        hears: |moment, event| if moment.is_settling() { definite(event) } else { event },
        ..NONE
    },
    Mutant {
        name: "an ambiguous completion is followed by a release",
        caught_by: Invariant::VerdictKept,
        does: |moment, outcome| match moment.event {
            Event::Found(Some(_)) if moment.is_settling() => with_settlement(outcome, |new| {
                new.state = RecordState::Released;
                new.expires_at = Some(moment.plan.limits.lease_until.saturating_add(millis(2 * TICK)));
            }),
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a permanent failure is recorded as an outcome",
        caught_by: Invariant::VerdictKept,
        does: |_, outcome| {
            with_settlement(outcome, |new| {
                if let RecordState::Failed(outcome) = &new.state {
                    new.state = RecordState::Completed(outcome.clone());
                }
            })
        },
        ..NONE
    },
    Mutant {
        name: "a release is recorded as a failure",
        caught_by: Invariant::ExpiryPromised,
        does: |_, outcome| {
            with_settlement(outcome, |new| {
                if new.state == RecordState::Released {
                    new.state = RecordState::Failed(Answer::Omitted);
                    new.expires_at = Some(Timestamp::default());
                }
            })
        },
        ..NONE
    },
    Mutant {
        name: "an outcome's expiry is in seconds",
        caught_by: Invariant::ExpiryPromised,
        does: |_, outcome| {
            with_settlement(outcome, |new| {
                let seconds = |expires_at: Timestamp| Timestamp::from_millis(expires_at.as_millis() / 1000);
                new.expires_at = new.expires_at.map(seconds);
            })
        },
        ..NONE
    },
    Mutant {
        name: "a settlement resets the attempt",
        caught_by: Invariant::ClaimKept,
        does: |_, outcome| with_settlement(outcome, |new| new.attempt = 0),
        ..NONE
    },
    Mutant {
        name: "an executor mistakes its own settlement for another's",
        caught_by: Invariant::OwnRecognised,
        hears: |moment, event| match event {
            Event::Answered(PutOutcome::Refused(Some(record))) if moment.is_settling() => {
                let generation = Generation::new(record.generation.get() + 1);
                Event::Answered(PutOutcome::Refused(Some(Record { generation, ..record })))
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a settlement is retried endlessly",
        caught_by: Invariant::Terminates,
        space: one_settling,
        does: |moment, outcome| match (&outcome.1, &moment.before.sent) {
            (Action::Settled(End::Unrecorded(Refusal::Unavailable)), Some(sent))
                if matches!(moment.event, Event::Found(_)) =>
            {
                sent.clone()
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "the claim to record an outcome lasts a day",
        caught_by: Invariant::LeaseBounded,
        does: |moment, outcome| {
            if moment.is_settling() { with_claim(outcome, prolong) } else { outcome }
        },
        ..NONE
    },
];

fn one_settling() -> Configuration {
    Configuration { faults: 8, times: ticks(2), ..one() }
}

/// Changes the settlement that an action sends.
pub(super) fn with_settlement(outcome: Outcome, change: impl FnOnce(&mut Record)) -> Outcome {
    with_new(outcome, Purpose::Settle, change)
}

/// Makes a claim's lease and expiry a day later.
pub(super) fn prolong(claim: &mut Record) {
    let later = |time: Timestamp| time.saturating_add(millis(2 * TICK));
    if let RecordState::Started { lease_until } = &mut claim.state {
        *lease_until = later(*lease_until);
    }
    claim.expires_at = claim.expires_at.map(later);
}
