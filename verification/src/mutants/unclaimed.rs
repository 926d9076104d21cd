//! Mutants of handlers that run without a claim.

use lambda_idempotency::{
    protocol::{Action, End, Event, Refusal},
    store::{Record, Revision, Status, Write, WriteOutcome},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, Flow, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Mutant, NONE, settling::shown, small, store::shipping},
    under_test::Effect,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a conclusion without a condition",
        caught_by: Invariant::ClaimSeesVersion,
        space: unclaimed,
        applies: |write, current| match write {
            Write::Conclude { record, .. } => Effect::Put(record.clone()),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "a conclusion tests neither lease nor expiry",
        caught_by: Invariant::ClaimSeesVersion,
        // Only an extension changes the lease and expiry of a claim and nothing else. So this space has an extension:
        // the frozen owner of a stale claim thaws and extends the claim.
        space: || Configuration { extensions: 1, flows: &[Flow::Claim, Flow::Look], ..unclaimed() },
        applies: |write, current| match (write, current) {
            (Write::Conclude { seen: Some(seen), record }, Some(before))
                if (Revision {
                    lease_until: seen.lease_until,
                    expires_at: seen.expires_at,
                    ..Revision::of(before)
                }) == *seen =>
            {
                Effect::Put(record.clone())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
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
        name: "a conclusion replaces a live claim",
        caught_by: Invariant::ClaimSeesVersion,
        space: || Configuration { flows: &[Flow::Claim, Flow::Look], ..unclaimed() },
        applies: |write, current| match (write, current) {
            (Write::Conclude { record, .. }, Some(before)) if before.status() == Status::Started => {
                Effect::Put(record.clone())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "a conclusion keeps the generation",
        caught_by: Invariant::GenerationsGrow,
        space: unclaimed,
        does: |_, (state, mut action)| {
            if let Action::Commit { write: Write::Conclude { seen: Some(seen), record }, .. } = &mut action {
                record.generation = seen.generation;
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
        does: |moment, (state, action)| match (shown(moment), action) {
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
            Event::Answered(WriteOutcome::Refused(_)) if moment.is_settling() => {
                Event::Answered(WriteOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
];

/// Two executors that run without a claim.
fn unclaimed() -> Configuration {
    Configuration {
        name: "without claims",
        flows: &[Flow::Look],
        declines: 1,
        times: ticks(5),
        verdicts: &[Verdict::Commit, Verdict::Release],
        ..small()
    }
}
