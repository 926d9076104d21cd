//! Mutants of how an attempt that ended without an answer is reconciled.

use std::time::Duration;

use lambda_idempotency::{
    protocol::{self, Action, Event, Input, Intent, Plan, Reconcile, Rules},
    settings::Execution,
    store::{Mark as RecordMark, Put, Record, State as RecordState, Status},
};

use crate::{
    configuration::{Configuration, Reconciler, TICK, millis},
    invariants::Invariant,
    model::Verdict,
    mutants::{Moment, Mutant, NONE, Outcome, claiming::with_rules, settling::with_settlement, with_new},
    spaces::reconcile::asking,
    under_test::{Effect, Purpose},
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the handler runs without a question",
        caught_by: Invariant::AskedFirst,
        space: asking,
        does: |moment, (mut state, action)| match action {
            Action::Ask(_) => {
                let absent = Input { now: moment.now, event: Event::DidNotHappen };
                let action = protocol::step(&mut state, absent);
                (state, action)
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a question doesn't wait for the effect",
        caught_by: Invariant::AskedInTime,
        space: crashes,
        plan: |plan| with_reconcile(plan, |it| Reconcile { arrives_within: Duration::ZERO, ..it }),
        ..NONE
    },
    Mutant {
        name: "a question is asked one moment too early",
        caught_by: Invariant::AskedInTime,
        space: crashes,
        plan: |plan| {
            with_reconcile(plan, |it| {
                let arrives_within = it.arrives_within.saturating_sub(Duration::from_millis(1));
                Reconcile { arrives_within, ..it }
            })
        },
        ..NONE
    },
    Mutant {
        name: "a version without a reconciler marks a claim",
        caught_by: Invariant::OwnerInterrupts,
        space: || {
            let reconciler = Some(Reconciler { is_mixed: true, ..Reconciler::HONEST });
            Configuration { reconciler, ..asking() }
        },
        does: |moment, outcome| match moment.plan.rules.reconcile {
            Some(_) => outcome,
            None => with_new(outcome, Purpose::Interrupt, |new| new.mark = RecordMark::Unanswered),
        },
        ..NONE
    },
    Mutant {
        name: "a marked claim waits for its effect twice",
        caught_by: Invariant::BecomesClaimable,
        space: asking,
        takes: |_, record| match record.mark {
            RecordMark::Unanswered => Record { mark: RecordMark::Interrupted, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "an unknown result doesn't wait for its effect",
        caught_by: Invariant::OwnerInterrupts,
        space: asking,
        does: |moment, outcome| {
            let until = moment.now.saturating_add(Duration::from_secs(10));
            match is_asking(moment) {
                true => outcome,
                false => with_new(outcome, Purpose::Interrupt, |new| {
                    new.state = RecordState::Started { lease_until: until };
                }),
            }
        },
        ..NONE
    },
    Mutant {
        name: "a first run is asked for",
        caught_by: Invariant::AskedWithCause,
        space: asking,
        does: |_, (state, action)| match action {
            Action::Claimed(held) if !held.lock.mark.is_interrupted() => (state, Action::Ask(held)),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a key that was released after an interruption isn't asked for",
        caught_by: Invariant::AskedFirst,
        space: again,
        takes: |_, record| match record.status() {
            Status::Released => Record { mark: RecordMark::None, ..record },
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "a failed question releases the key",
        caught_by: Invariant::UnansweredKept,
        space: asking,
        does: |moment, outcome| if is_asking(moment) { released(outcome) } else { outcome },
        ..NONE
    },
    Mutant {
        name: "a panic releases the key that must be asked for",
        caught_by: Invariant::UnansweredKept,
        space: again,
        hears: |moment, event| match event {
            Event::Settle(Intent::Unanswered { .. }) if !is_asking(moment) => {
                Event::Settle(Intent::Release { interrupted: true })
            }
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an unused claim that must ask is released",
        caught_by: Invariant::UnansweredKept,
        space: asking,
        does: |moment, outcome| if moment.is_settling() { outcome } else { released(outcome) },
        ..NONE
    },
    Mutant {
        name: "a failed question isn't marked",
        caught_by: Invariant::UnansweredKept,
        space: asking,
        does: |moment, outcome| match is_asking(moment) {
            true => with_new(outcome, Purpose::Interrupt, |new| new.mark = RecordMark::Interrupted),
            false => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a question that has no answer yet is asked again at once",
        caught_by: Invariant::UnansweredKept,
        space: asking,
        does: |moment, outcome| match is_asking(moment) {
            true => with_new(outcome, Purpose::Interrupt, |new| {
                new.state = RecordState::Started { lease_until: moment.now };
            }),
            false => outcome,
        },
        ..NONE
    },
    Mutant {
        name: "a failed question counts as an answer that nothing happened",
        caught_by: Invariant::AskedFirst,
        space: asking,
        hears: |moment, event| match event {
            Event::Settle(Intent::Unanswered { .. }) if is_asking(moment) => Event::DidNotHappen,
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "the handler runs although its effect was found",
        caught_by: Invariant::OneEffect,
        space: asking,
        hears: |moment, event| match event {
            Event::Settle(Intent::Complete(_)) if is_asking(moment) => Event::DidNotHappen,
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "a claim without an answer gives way to another request",
        caught_by: Invariant::MismatchHarmless,
        space: || Configuration { requests: 2, ..asking() },
        takes: |moment, record| match record.mark {
            RecordMark::Unanswered if record.fingerprint != moment.plan.fingerprint => {
                Record { state: RecordState::Released, mark: RecordMark::None, ..record }
            }
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "time isn't judged again after the question",
        caught_by: Invariant::StartInTime,
        space: asking,
        does: |moment, (state, action)| match (moment.event, moment.before.held(), &action) {
            (Event::DidNotHappen, Some(held), Action::Put(_)) => (state, Action::Claimed(held.clone())),
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "at most once, the handler runs again without the setting",
        caught_by: Invariant::AtMostOnce,
        space: || Configuration { execution: Execution::AtMostOnce, ..asking() },
        plan: |plan| with_reconcile(plan, |it| Reconcile { reruns_when_absent: true, ..it }),
        ..NONE
    },
    Mutant {
        name: "an at-least-once version asks for an at-most-once claim",
        caught_by: Invariant::AtMostOnce,
        space: || {
            let reconciler = Some(Reconciler { reruns_when_absent: true, ..Reconciler::HONEST });
            Configuration { execution: Execution::AtMostOnce, is_mixed: true, reconciler, ..asking() }
        },
        takes: |moment, record| match moment.plan.rules.execution {
            Execution::AtLeastOnce if record.is_at_most_once_claim() => {
                let day_later =
                    |lease: lambda_idempotency::time::Timestamp| lease.saturating_add(millis(4 * TICK));
                let expires_at = record.lease_until().map(day_later);
                Record { execution: Execution::AtLeastOnce, expires_at, ..record }
            }
            _ => record,
        },
        ..NONE
    },
    Mutant {
        name: "an outcome that was found isn't marked",
        caught_by: Invariant::ReconciledTrue,
        space: asking,
        does: |_, outcome| with_settlement(outcome, |new| new.mark = new.mark.is_interrupted().into()),
        ..NONE
    },
    Mutant {
        name: "every outcome after an interruption is marked as found",
        caught_by: Invariant::ReconciledTrue,
        space: asking,
        does: |_, outcome| {
            with_settlement(outcome, |new| match new.status() {
                Status::Completed if new.mark.is_interrupted() => new.mark = RecordMark::Reconciled,
                _ => {}
            })
        },
        ..NONE
    },
    Mutant {
        name: "the store forgets that an outcome was found",
        caught_by: Invariant::ReconciledTrue,
        space: again,
        applies: |put, current| match put.apply_to(current) {
            Some(record) if record.mark == RecordMark::Reconciled => {
                Effect::Put(Record { mark: RecordMark::Interrupted, ..record })
            }
            record => record.into(),
        },
        ..NONE
    },
    Mutant {
        name: "the store forgets that a claim has no answer",
        caught_by: Invariant::OwnerInterrupts,
        space: asking,
        applies: |put, current| match (put, current, put.apply_to(current)) {
            (Put::Mine { .. }, Some(before), Some(record)) if record.mark == RecordMark::Unanswered => {
                Effect::Put(Record { mark: before.mark, ..record })
            }
            (_, _, record) => record.into(),
        },
        ..NONE
    },
];

/// Whether the question runs before the step.
fn is_asking(moment: &Moment<'_>) -> bool {
    moment.before.machine.is_asking()
}

/// Changes how the machine reconciles.
fn with_reconcile(plan: Plan, change: impl Fn(Reconcile) -> Reconcile) -> Plan {
    with_rules(plan, |rules| Rules { reconcile: rules.reconcile.map(&change), ..rules })
}

/// Releases a claim instead of marking it.
fn released(outcome: Outcome) -> Outcome {
    with_new(outcome, Purpose::Interrupt, |new| {
        (new.state, new.mark) = (RecordState::Released, RecordMark::Interrupted);
    })
}

/// Handlers that die with their executor only.
fn crashes() -> Configuration {
    Configuration { name: "reconcile, crashes", verdicts: &[Verdict::Complete], ..asking() }
}

/// Executors with a second delivery, and handlers that release the key or panic.
fn again() -> Configuration {
    Configuration {
        name: "reconcile, 2 attempts",
        attempts: 2,
        verdicts: &[Verdict::Complete, Verdict::Release, Verdict::Panic],
        ..asking()
    }
}
