//! Mutants of how a claim is settled.

use lambda_idempotency::{
    protocol::{Action, End, Event, Intent, Refusal},
    store::{Generation, Outcome as Answer, Settlement, Write, WriteOutcome},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    mutants::{
        Moment, Mutant, NONE, Outcome,
        claiming::{definite, one},
    },
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the completion tests the time",
        caught_by: Invariant::OwnerNotRefused,
        does: |moment, (state, action)| {
            let is_late = moment.plan.lease_until < moment.now;
            match (moment.event, &action) {
                (Event::Settle(_), Action::Apply(_)) if is_late => {
                    (state, Action::Settled(End::Fenced(None)))
                }
                _ => (state, action),
            }
        },
        ..NONE
    },
    Mutant {
        name: "a fenced executor completes with the successor's owner and generation",
        caught_by: Invariant::OwnerSettles,
        does: |moment, (state, action)| match (shown(moment), &action, &moment.before.intent) {
            (Some(record), Action::Settled(End::Fenced(Some(_))), Some(Intent::Complete(outcome))) => {
                let (owner, generation) = (record.owner, record.generation);
                let expires_at = moment.now.saturating_add(moment.plan.rules.retention);
                let settlement = Settlement::Complete(outcome.clone(), expires_at);
                match &moment.before.sent {
                    Some((sent, _)) => {
                        (sent.clone(), Action::Apply(Write::Settle { owner, generation, settlement }))
                    }
                    None => (state, action),
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
                Event::Answered(WriteOutcome::Applied)
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
                Event::Answered(WriteOutcome::Applied)
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
            Event::Found(Some(_)) if moment.is_settling() => {
                with_settlement(outcome, |_| Settlement::Release {
                    expires_at: moment.plan.lease_until.saturating_add(millis(2 * TICK)),
                    interrupted: false,
                })
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a permanent failure is recorded as an outcome",
        caught_by: Invariant::VerdictKept,
        does: |_, outcome| {
            with_settlement(outcome, |settlement| match settlement {
                Settlement::Fail(outcome, expires_at) => Settlement::Complete(outcome, expires_at),
                settlement => settlement,
            })
        },
        ..NONE
    },
    Mutant {
        name: "a release is recorded as a failure",
        caught_by: Invariant::ExpiryPromised,
        does: |_, outcome| {
            with_settlement(outcome, |settlement| match settlement {
                Settlement::Release { .. } => Settlement::Fail(Answer::Omitted, Timestamp::default()),
                settlement => settlement,
            })
        },
        ..NONE
    },
    Mutant {
        name: "an outcome's expiry is in seconds",
        caught_by: Invariant::ExpiryPromised,
        does: |_, outcome| {
            with_settlement(outcome, |settlement| match settlement {
                Settlement::Complete(outcome, expires_at) => {
                    Settlement::Complete(outcome, Timestamp::from_millis(expires_at.as_millis() / 1000))
                }
                settlement => settlement,
            })
        },
        ..NONE
    },
    Mutant {
        name: "an executor mistakes its own settlement for another's",
        caught_by: Invariant::OwnRecognised,
        hears: |moment, event| match event {
            Event::Answered(WriteOutcome::Refused(Some(record))) if moment.is_settling() => {
                let generation = Generation::new(record.generation.get() + 1);
                Event::Answered(WriteOutcome::Refused(Some(lambda_idempotency::store::Record {
                    generation,
                    ..record
                })))
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
        does: |moment, (state, mut action)| {
            if let Action::Apply(Write::Claim(lock) | Write::Reclaim { lock, .. }) = &mut action
                && moment.is_settling()
            {
                lock.lease_until = lock.lease_until.saturating_add(millis(2 * TICK));
                lock.expires_at =
                    lock.expires_at.map(|expires_at| expires_at.saturating_add(millis(2 * TICK)));
            }
            (state, action)
        },
        ..NONE
    },
];

fn one_settling() -> Configuration {
    Configuration { faults: 8, times: ticks(2), ..one() }
}

pub(super) fn with_settlement(outcome: Outcome, change: impl Fn(Settlement) -> Settlement) -> Outcome {
    match outcome {
        (state, Action::Apply(Write::Settle { owner, generation, settlement })) => {
            let settlement = change(settlement);
            (state, Action::Apply(Write::Settle { owner, generation, settlement }))
        }
        outcome => outcome,
    }
}

/// The record that the event shows.
pub(super) fn shown<'a>(moment: &Moment<'a>) -> Option<&'a lambda_idempotency::store::Record> {
    match moment.event {
        Event::Answered(WriteOutcome::Refused(record)) | Event::Found(record) => record.as_ref(),
        _ => None,
    }
}
