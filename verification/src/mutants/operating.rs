//! Mutants of an operator's write whose answer was lost.

use lambda_idempotency::{
    protocol::{Action, End, Event},
    store::PutOutcome,
};

use crate::{
    configuration::{Configuration, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Mutant, NONE, sent_by, small},
    under_test::Purpose,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an operator's lost answer counts as refused",
        caught_by: Invariant::DoubtLookedInto,
        space: operated,
        does: |moment, (state, action)| match action {
            Action::Read if moment.was(Purpose::Resolve) => (state, Action::Resolved(None)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an operator's lost answer counts as applied",
        caught_by: Invariant::OperatorTold,
        space: operated,
        does: |moment, (state, action)| match (action, moment.sent().and_then(sent_by)) {
            (Action::Read, Some(put)) if moment.was(Purpose::Resolve) => {
                (state, Action::Resolved(Some(put.record().clone())))
            }
            (action, _) => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "another record ends an operator's doubt",
        caught_by: Invariant::OperatorTold,
        space: operated,
        does: |moment, (state, action)| match (action, moment.event) {
            (Action::Settled(End::Unresolved(None)), Event::Found(Some(_)))
                if moment.was(Purpose::Resolve) =>
            {
                (state, Action::Resolved(None))
            }
            (action, _) => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an operator doesn't recognise the write",
        caught_by: Invariant::OwnRecognised,
        space: operated,
        does: |moment, (state, action)| match (action, moment.event) {
            (Action::Resolved(Some(_)), Event::Answered(PutOutcome::Refused(_)) | Event::Found(_)) => {
                (state, Action::Resolved(None))
            }
            (action, _) => (state, action),
        },
        ..NONE
    },
];

/// An operator beside two executors.
fn operated() -> Configuration {
    Configuration {
        name: "an operator, 1 fault",
        operations: 1,
        times: ticks(4),
        verdicts: &[Verdict::Complete, Verdict::Release],
        ..small()
    }
}
