//! Mutants of how a claim is settled together with the handler's own writes (T8).

use std::time::Duration;

use lambda_idempotency::{
    protocol::{Action, End, Event, Refusal},
    store::{PutOutcome, Status},
};

use crate::{
    configuration::{Configuration, TICK, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{
        Moment, Mutant, NONE, Outcome,
        claiming::{definite, one},
        settling::with_settlement,
        small,
    },
    under_test::Effect,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a new token on a retry",
        caught_by: Invariant::TokenKept,
        space: transactions,
        does: |moment, outcome| {
            let is_again = is_again(moment, &outcome.1);
            with_submission(outcome, |submission| submission + u32::from(is_again))
        },
        ..NONE
    },
    Mutant {
        name: "a declined transaction's token is reused for another transaction",
        caught_by: Invariant::TokenKept,
        space: transactions,
        does: |_, outcome| with_submission(outcome, |_| 0),
        ..NONE
    },
    Mutant {
        name: "a retry with the same token has another expiry",
        caught_by: Invariant::TokenKept,
        space: transactions,
        does: |moment, outcome| {
            let is_again = is_again(moment, &outcome.1);
            let later = Duration::from_millis(if is_again { 1000 } else { 0 });
            with_settlement(outcome, |new| {
                new.expires_at = new.expires_at.map(|expires_at| expires_at.saturating_add(later));
            })
        },
        ..NONE
    },
    Mutant {
        name: "a transaction's record expires before its lease has ended",
        caught_by: Invariant::ExpiryPromised,
        space: || Configuration { lease: 4 * TICK, ..transactions() },
        does: |moment, outcome| match outcome.1 {
            Action::Commit { .. } => with_settlement(outcome, |new| {
                new.expires_at = Some(moment.now.saturating_add(moment.plan.rules.retention));
            }),
            _ => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "an effect is applied although the record's condition fails",
        caught_by: Invariant::EffectsExactlyOnce,
        space: transactions,
        commits: |_, _, effect| (effect, true),
        ..NONE
    },
    Mutant {
        name: "a record is written without the effect",
        caught_by: Invariant::EffectsExactlyOnce,
        space: transactions,
        commits: |_, _, effect| (effect, false),
        ..NONE
    },
    Mutant {
        name: "an effect is applied under a claim that was settled",
        caught_by: Invariant::EffectsExactlyOnce,
        space: transactions,
        commits: |_, current, effect| {
            let is_settled = current.is_some_and(|record| record.status() == Status::Completed);
            let is_made = effect != Effect::Refused || is_settled;
            (effect, is_made)
        },
        ..NONE
    },
    Mutant {
        name: "the completion is sent without the handler's writes",
        caught_by: Invariant::EffectsExactlyOnce,
        space: || Configuration { faults: 0, ..transactions() },
        does: |_, (state, action)| match action {
            Action::Commit { put, .. } => (state, Action::Put(put)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a declined transaction is treated as a success",
        caught_by: Invariant::RecordedIsStored,
        space: transactions,
        hears: |_, event| match event {
            Event::Declined => Event::Answered(PutOutcome::Applied),
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous transaction is treated as a success",
        caught_by: Invariant::RecordedIsStored,
        space: transactions,
        hears: |moment, event| match event {
            Event::Failed(_) if moment.is_doubtful() && is_committing(moment) => {
                Event::Answered(PutOutcome::Applied)
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous transaction is treated as a definite failure",
        caught_by: Invariant::DoubtLookedInto,
        space: transactions,
        hears: |moment, event| if is_committing(moment) { definite(event) } else { event },
        ..NONE
    },
    Mutant {
        name: "an unresolved transaction is answered as a success",
        caught_by: Invariant::RecordedIsStored,
        space: || Configuration { faults: 4, ..in_doubt() },
        does: |_, (state, action)| match action {
            Action::Settled(End::Unresolved(_)) => (state, Action::Settled(End::Recorded)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an unresolved transaction is reported as not applied",
        caught_by: Invariant::DeniedStays,
        space: || Configuration { faults: 4, ..in_doubt() },
        does: |_, (state, action)| match action {
            Action::Settled(End::Unresolved(_)) => {
                (state, Action::Settled(End::NotCommitted(Refusal::Unavailable)))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a fenced transaction is answered as a success",
        caught_by: Invariant::RecordedIsStored,
        space: transactions,
        does: |moment, (state, action)| match action {
            Action::Settled(End::Superseded(record)) if record.owner == moment.plan.owner => {
                (state, Action::Settled(End::Superseded(record)))
            }
            Action::Settled(End::Superseded(_) | End::Fenced(_) | End::NotCommitted(_)) => {
                (state, Action::Settled(End::Recorded))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a releasing executor finds its own transaction applied, and mistakes it for another executor's",
        caught_by: Invariant::OwnRecognised,
        space: || Configuration { faults: 2, ..in_doubt() },
        does: |moment, (state, action)| match action {
            Action::Settled(End::Superseded(record)) if record.owner == moment.plan.owner => {
                (state, Action::Settled(End::Fenced(None)))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an ambiguous transaction is retried endlessly",
        caught_by: Invariant::Terminates,
        space: || Configuration { faults: 6, ..in_doubt() },
        does: |moment, outcome| match (&outcome.1, &moment.before.sent) {
            (Action::Settled(End::Unresolved(_)), Some(sent)) => sent.clone(),
            _ => outcome,
        },
        ..NONE
    },
];

/// Transactions of two executors.
fn transactions() -> Configuration {
    Configuration {
        name: "transactions",
        declines: 1,
        times: ticks(5),
        verdicts: &[Verdict::Commit, Verdict::Release],
        token_window: TICK,
        ..small()
    }
}

/// One executor whose transactions meet faults.
pub(super) fn in_doubt() -> Configuration {
    Configuration { declines: 1, verdicts: &[Verdict::Commit, Verdict::Release], ..one() }
}

/// Whether the handler has ended and the last write was sent in a transaction.
pub(super) fn is_committing(moment: &Moment<'_>) -> bool {
    moment.is_settling() && matches!(moment.sent(), Some(Action::Commit { .. }))
}

/// Whether `action` resends the last transaction.
pub(super) fn is_again(moment: &Moment<'_>, action: &Action) -> bool {
    is_committing(moment)
        && matches!((action, moment.sent()),
            (Action::Commit { put, .. }, Some(Action::Commit { put: before, .. })) if put == before)
        && !matches!(moment.event, Event::Settle(_) | Event::Resumed)
}

fn with_submission(outcome: Outcome, change: impl Fn(u32) -> u32) -> Outcome {
    match outcome {
        (state, Action::Commit { put, submission }) => {
            (state, Action::Commit { put, submission: change(submission) })
        }
        outcome => outcome,
    }
}
