//! Mutants of how long, and on which errors, a settlement is retried.

use lambda_idempotency::{
    protocol::{Action, Decline, End, Event, Fault, Limits, Plan, Refusal},
    store::{Outcome as Answer, State as RecordState, StoreErrorKind},
};

use crate::{
    configuration::{Configuration, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{
        Mutant, NONE, Outcome,
        claiming::one,
        small,
        transacting::{in_doubt, is_committing},
        with_new,
    },
    under_test::Purpose,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a settlement isn't retried after a definite error",
        caught_by: Invariant::SettledPatiently,
        does: |moment, outcome| match moment.event {
            Event::Failed(Fault { maybe_applied: false, .. }) if !moment.before.is_asking => {
                given_up(outcome)
            }
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a transaction isn't retried after a definite error",
        caught_by: Invariant::SettledPatiently,
        space: in_doubt,
        does: |moment, (state, action)| match (moment.event, &action) {
            (Event::Failed(Fault { maybe_applied: false, kind }), Action::Pause(_))
                if is_committing(moment) && !moment.before.is_asking =>
            {
                (state, Action::Declined(Decline::Store(*kind)))
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "the read that resolves an ambiguous settlement isn't retried",
        caught_by: Invariant::SettledPatiently,
        space: || Configuration { faults: 2, ..small() },
        does: |moment, outcome| if moment.before.is_asking { given_up(outcome) } else { outcome },
        ..NONE
    },
    Mutant {
        name: "the read that resolves an ambiguous transaction isn't retried",
        caught_by: Invariant::SettledPatiently,
        space: || Configuration { faults: 3, ..in_doubt() },
        does: |moment, (state, action)| match action {
            Action::Pause(_) if moment.before.is_asking && is_committing(moment) => {
                (state, Action::Settled(End::Unresolved(None)))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a settlement is retried only once",
        caught_by: Invariant::SettledPatiently,
        space: || Configuration { max_retries: 3, ..one() },
        does: |_, outcome| match outcome.1 {
            Action::Pause(1..) => given_up(outcome),
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a settlement isn't retried after its lease has expired",
        caught_by: Invariant::SettledPatiently,
        does: |moment, outcome| {
            if moment.now > moment.plan.limits.lease_until { given_up(outcome) } else { outcome }
        },
        ..NONE
    },
    Mutant {
        name: "a settlement is retried a hundred times",
        caught_by: Invariant::Terminates,
        space: || Configuration {
            faults: 14,
            times: ticks(1),
            in_flight: 0,
            verdicts: &[Verdict::Complete],
            ..one()
        },
        plan: |plan| Plan { limits: Limits { max_retries: Some(100), ..plan.limits }, ..plan },
        ..NONE
    },
    Mutant {
        name: "a settlement rejected as invalid is sent again without its response",
        caught_by: Invariant::ResponseKept,
        space: || Configuration { permanent_faults: true, ..small() },
        hears: |moment, event| match event {
            Event::Failed(Fault { kind: StoreErrorKind::Rejected, maybe_applied })
                if moment.is_settling() =>
            {
                Event::Failed(Fault { kind: StoreErrorKind::Unstorable, maybe_applied })
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a retried settlement omits the response",
        caught_by: Invariant::ResponseKept,
        does: |moment, outcome| match moment.event {
            Event::Resumed => with_new(outcome, Purpose::Settle, |new| {
                if let RecordState::Completed(answer) = &mut new.state {
                    *answer = Answer::Omitted;
                }
            }),
            _ => outcome,
        },
        ..NONE
    },
];

/// Gives up on a settlement instead of retrying it after a pause.
fn given_up((state, action): Outcome) -> Outcome {
    match action {
        Action::Pause(_) if state.held().is_none() => {
            (state, Action::Settled(End::Unrecorded(Refusal::Unavailable)))
        }
        action => (state, action),
    }
}
