//! Mutants of how a lease is extended (T7).

use lambda_idempotency::{
    protocol::{Action, Event, Held},
    store::{Record, State as RecordState, Status, Write, WriteOutcome},
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{
        Moment, Mutant, NONE,
        store::{behind, extended, shipping},
    },
    under_test::Effect,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an extension tests only the status",
        caught_by: Invariant::OwnerExtends,
        space: extended,
        applies: |write, current| match (write, current) {
            (Write::Extend { .. }, Some(record)) if record.status() == Status::Started => {
                longer(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an extension doesn't test the owner",
        caught_by: Invariant::OwnerExtends,
        space: || Configuration { extensions: 1, ..behind() },
        applies: |write, current| match (write, current) {
            (Write::Extend { generation, .. }, Some(record)) if record.generation == *generation => {
                longer(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an extension doesn't test the generation",
        caught_by: Invariant::OwnerExtends,
        // The extension arrives late, after its sender has claimed the key again, under the same owner, to record
        // its outcome. A clock more than M ahead lets the extension's lease end later than the new claim's lease.
        space: || Configuration {
            name: "a clock beyond M, ahead",
            clocks: vec![0, 4 * TICK],
            times: ticks(2),
            lease: 2 * TICK,
            ..extended()
        },
        applies: |write, current| match (write, current) {
            (Write::Extend { owner, .. }, Some(record)) if record.owner == *owner => longer(write, record),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an extension makes a lease shorter",
        caught_by: Invariant::LeasesGrow,
        space: extended,
        applies: |write, current| match (write, current) {
            (Write::Extend { owner, generation, .. }, Some(record))
                if record.status() == Status::Started
                    && record.owner == *owner
                    && record.generation == *generation =>
            {
                put(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an extension keeps the expiry",
        caught_by: Invariant::ExpiryPromised,
        space: extended,
        applies: |write, current| match (write, current, shipping(write, current)) {
            (Write::Extend { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { expires_at: before.expires_at, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "an extension reopens a settled record",
        caught_by: Invariant::OutcomeKept,
        space: extended,
        applies: |write, current| match (write, current) {
            (Write::Extend { owner, generation, .. }, Some(record))
                if record.owner == *owner && record.generation == *generation =>
            {
                longer(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an extension that finds the claim lost doesn't stop the handler",
        caught_by: Invariant::OwnerExtends,
        space: extended,
        does: |_, (state, action)| match action {
            Action::Lost => (state, Action::NotExtended),
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a failed extension is treated as a success",
        caught_by: Invariant::GrantBeforeStart,
        space: extended,
        hears: |moment, event| match event {
            Event::Failed(_) if is_extending(moment) => Event::Answered(WriteOutcome::Applied),
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an extended lease is longer than requested",
        caught_by: Invariant::GrantBeforeStart,
        space: extended,
        does: |_, (state, action)| match action {
            Action::Extended(held) => {
                let lease_until = held.lease_until.saturating_add(millis(TICK));
                (state, Action::Extended(Held { lease_until, ..held }))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a lease is extended for a day",
        caught_by: Invariant::LeaseBounded,
        space: extended,
        does: |_, (state, mut action)| {
            if let Action::Apply(Write::Extend { lease_until, expires_at, .. }) = &mut action {
                *lease_until = lease_until.saturating_add(millis(2 * TICK));
                *expires_at = expires_at.map(|expires_at| expires_at.saturating_add(millis(2 * TICK)));
            }
            (state, action)
        },
        ..NONE
    },
    Mutant {
        name: "a lease is extended while a transaction is in doubt",
        caught_by: Invariant::OneInsideLease,
        space: || Configuration { declines: 1, times: ticks(4), verdicts: &[Verdict::Commit], ..extended() },
        does: |moment, (state, action)| match (moment.event, &action, state.held(), moment.sent()) {
            (Event::Extend(until), Action::NotExtended, Some(held), _) if held.lease_until < *until => {
                let (owner, generation, lease_until) = (held.owner, held.generation, *until);
                let expires_at = Some(until.saturating_add(millis(2 * TICK)));
                (state, Action::Apply(Write::Extend { owner, generation, lease_until, expires_at }))
            }
            // The machine doesn't know about the extension that this mutant has sent. So the mutant, instead of the
            // machine, handles the answer.
            (_, Action::Nothing, Some(held), Some(Action::Apply(Write::Extend { lease_until, .. }))) => {
                let held = Held { lease_until: *lease_until, ..held.clone() };
                match moment.event {
                    Event::Answered(WriteOutcome::Applied) => (state, Action::Extended(held)),
                    // An earlier extension has already extended the claim.
                    Event::Answered(WriteOutcome::Refused(Some(record)))
                        if record.owner == held.owner && record.status() == Status::Started =>
                    {
                        let lease_until = record.lease_until().unwrap_or(held.lease_until);
                        (state, Action::Extended(Held { lease_until, ..held }))
                    }
                    Event::Answered(WriteOutcome::Refused(_)) => (state, Action::Lost),
                    _ => (state, Action::NotExtended),
                }
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "an executor mistakes its own earlier extension for another's",
        caught_by: Invariant::OwnRecognised,
        space: || Configuration { faults: 2, ..extended() },
        does: |moment, (state, action)| match (moment.event, action) {
            (Event::Answered(WriteOutcome::Refused(Some(_))), Action::Extended(_)) => (state, Action::Lost),
            (_, action) => (state, action),
        },
        ..NONE
    },
];

/// Whether the last request was an extension, and the handler runs.
fn is_extending(moment: &Moment<'_>) -> bool {
    !moment.is_settling() && matches!(moment.sent(), Some(Action::Apply(Write::Extend { .. })))
}

/// Gives the record the lease of `write` if that lease ends later than the record's. Otherwise refuses the write.
fn longer(write: &Write, record: &Record) -> Effect {
    match write {
        Write::Extend { lease_until, .. } if record.lease_until() < Some(*lease_until) => put(write, record),
        _ => Effect::Refused,
    }
}

/// Gives the record the lease of `write`, even if that lease ends sooner than the record's.
fn put(write: &Write, record: &Record) -> Effect {
    let Write::Extend { lease_until, expires_at, .. } = write else { return Effect::Refused };
    let state = RecordState::Started { lease_until: *lease_until };
    Effect::Put(Record { state, expires_at: *expires_at, ..record.clone() })
}
