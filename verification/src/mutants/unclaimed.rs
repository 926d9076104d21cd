//! Mutants of handlers that run without a claim.

use lambda_idempotency::{
    protocol::{Action, End, Event, Refusal},
    store::{Put, PutOutcome, Record, Status},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, Flow, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Mutant, NONE, small},
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a conclusion replaces a live outcome",
        caught_by: Invariant::ReplayTrue,
        space: unclaimed,
        takes: |_, record| match record.status() {
            Status::Completed | Status::Failed => Record { expires_at: Some(Timestamp::default()), ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a conclusion keeps the generation",
        caught_by: Invariant::GenerationsGrow,
        space: unclaimed,
        does: |_, (state, mut action)| {
            if let Action::Commit { put: Put::Replace { seen, new }, .. } = &mut action {
                new.generation = seen.generation;
            }
            (state, action)
        },
        ..NONE
    },
    Mutant {
        name: "a superseded run without a claim answers with its own outcome",
        caught_by: Invariant::RecordedIsStored,
        space: unclaimed,
        does: |_, (state, action)| match action {
            Action::Settled(End::Superseded(_)) => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a run without a claim answers with another request's outcome",
        caught_by: Invariant::MismatchHarmless,
        space: || Configuration { requests: 2, ..unclaimed() },
        does: |moment, (state, action)| match (moment.shown(), action) {
            (Some(record), Action::Settled(End::NotCommitted(Refusal::Mismatch)))
                if record.lease_until().is_none() =>
            {
                (state, Action::Settled(End::Superseded(record.clone())))
            }
            (_, action) => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a run without a claim continues without time left",
        caught_by: Invariant::StartInTime,
        space: unclaimed,
        does: |_, (state, action)| match action {
            Action::Refused(Refusal::NoTimeLeft) => (state, Action::Open),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "without a claim, an ambiguous write is reported as not applied",
        caught_by: Invariant::DeniedStays,
        space: unclaimed,
        does: |_, (state, action)| match action {
            Action::Settled(End::Unresolved(None)) => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a refused conclusion is treated as a success",
        caught_by: Invariant::RecordedIsStored,
        space: unclaimed,
        hears: |moment, event| match event {
            Event::Answered(PutOutcome::Refused(_)) if moment.is_settling() => {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
];

/// Two executors that run without a claim.
pub(super) fn unclaimed() -> Configuration {
    Configuration {
        name: "without claims",
        flows: &[Flow::Look],
        declines: 1,
        times: ticks(5),
        verdicts: &[Verdict::Commit, Verdict::Release],
        ..small()
    }
}
