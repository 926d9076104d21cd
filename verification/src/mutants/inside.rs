//! Mutants of handlers that run in their callers' transactions.

use lambda_idempotency::{
    protocol::{Action, End, Event, Refusal},
    store::StoreErrorKind,
};

use crate::{
    configuration::{Configuration, Flow, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Moment, Mutant, NONE, small},
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "after a lost commit, a look at a locked key counts as not committed",
        caught_by: Invariant::SettledPatiently,
        space: inside,
        hears: |moment, event| match event {
            Event::Failed(fault) if fault.kind == StoreErrorKind::Conflict && is_looking(moment) => {
                Event::Found(None)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "after a lost commit, one look that ended without the lock counts as not committed",
        caught_by: Invariant::DeniedStays,
        space: inside,
        does: |moment, (state, action)| match (moment.event, action) {
            (Event::Found(_), Action::Read) if is_looking(moment) => {
                (state, Action::Settled(End::NotCommitted(Refusal::Unavailable)))
            }
            (_, action) => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a lost commit is sent again",
        caught_by: Invariant::DoubtLookedInto,
        space: inside,
        does: |moment, outcome| match (&outcome.1, &moment.before.sent) {
            (Action::Read, Some(sent)) if moment.is_doubtful() && moment.is_settling() => sent.clone(),
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a lost commit is answered as a success",
        caught_by: Invariant::RecordedIsStored,
        space: inside,
        does: |moment, (state, action)| match action {
            Action::Settled(End::Unresolved(_) | End::NotCommitted(_)) if is_looking(moment) => {
                (state, Action::Settled(End::Recorded))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a put that isn't committed is answered as a success",
        caught_by: Invariant::RecordedIsStored,
        space: inside,
        does: |_, (state, action)| match action {
            Action::Commit { .. } => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
];

/// Two executors that run in their callers' transactions.
fn inside() -> Configuration {
    Configuration {
        name: "in callers' transactions",
        flows: &[Flow::Inside],
        times: ticks(4),
        verdicts: &[Verdict::Commit, Verdict::Release],
        ..small()
    }
}

/// Whether the executor looks for the result of a commit.
fn is_looking(moment: &Moment<'_>) -> bool {
    moment.is_settling() && moment.before.is_asking
}
