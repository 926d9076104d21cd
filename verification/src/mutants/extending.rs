//! Mutants of how a lease is extended (T7).

use lambda_idempotency::{
    protocol::{Action, Event, Held},
    store::{Lock, Put, PutOutcome, Record, State as RecordState, Status},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, TICK, millis, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Moment, Mutant, NONE, settling::prolong, store::extended, with_new},
    under_test::Purpose,
};

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
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
            Event::Failed(_) if is_extending(moment) => Event::Answered(PutOutcome::Applied),
            event => event,
        },
        ..NONE
    },
    Mutant {
        name: "an extended lease is longer than requested",
        caught_by: Invariant::GrantBeforeStart,
        space: extended,
        does: |_, (state, action)| match action {
            Action::Extended(mut held) => {
                held.lock.lease_until = held.lock.lease_until.saturating_add(millis(TICK));
                (state, Action::Extended(held))
            }
            action => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a lease is extended for a day",
        caught_by: Invariant::LeaseBounded,
        space: extended,
        does: |_, outcome| with_new(outcome, Purpose::Extend, prolong),
        ..NONE
    },
    Mutant {
        name: "an extension makes a lease shorter",
        caught_by: Invariant::LeasesGrow,
        space: extended,
        does: |_, outcome| {
            with_new(outcome, Purpose::Extend, |new| {
                new.state = RecordState::Started { lease_until: new.lock_acquired_at };
            })
        },
        ..NONE
    },
    Mutant {
        name: "an extension counts as another attempt",
        caught_by: Invariant::ClaimKept,
        space: extended,
        does: |_, outcome| with_new(outcome, Purpose::Extend, |new| new.attempt += 1),
        ..NONE
    },
    Mutant {
        name: "an extension replaces the claim as it was before an earlier extension",
        caught_by: Invariant::OwnerExtends,
        space: extended,
        does: |moment, (state, mut action)| {
            if let (Action::Put(Put::Replace { seen, .. }), Event::Extend(_)) = (&mut action, moment.event) {
                seen.state = RecordState::Started { lease_until: moment.plan.limits.lease_until };
            }
            (state, action)
        },
        ..NONE
    },
    Mutant {
        name: "a lease found extended, but not long enough, isn't extended again",
        caught_by: Invariant::OwnRecognised,
        space: || Configuration { faults: 2, ..extended() },
        does: |moment, (state, action)| match (moment.event, &action, moment.shown(), state.held()) {
            (Event::Answered(_), Action::Put(put), Some(_), Some(held))
                if Purpose::of(put) == Purpose::Extend =>
            {
                (state.clone(), Action::Extended(held.clone()))
            }
            _ => (state, action),
        },
        ..NONE
    },
    Mutant {
        name: "a lease is extended while a transaction is in doubt",
        caught_by: Invariant::OneInsideLease,
        space: || Configuration { declines: 1, times: ticks(4), verdicts: &[Verdict::Commit], ..extended() },
        does: |moment, (state, action)| match (moment.event, &action, state.held(), moment.sent()) {
            (Event::Extend(until), Action::NotExtended, Some(held), _)
                if held.lock.lease_until < *until && !moment.was(Purpose::Extend) =>
            {
                let action = Action::Put(extension(&held.lock, *until));
                (state, action)
            }
            // The machine doesn't know about the extension that this mutant has sent. So the mutant, instead of the
            // machine, handles the answer.
            (_, Action::Nothing, Some(held), Some(Action::Put(put @ Put::Replace { new, .. })))
                if Purpose::of(put) == Purpose::Extend =>
            {
                let extended = |record: &Record| {
                    let lock = record.lock_until(record.lease_until().unwrap_or_default());
                    Action::Extended(Held { lock, ..held.clone() })
                };
                let action = match moment.event {
                    Event::Answered(PutOutcome::Applied) => extended(new),
                    // An earlier extension has already extended the claim.
                    Event::Answered(PutOutcome::Refused(Some(record)))
                        if record.owner == held.lock.owner && record.status() == Status::Started =>
                    {
                        match (record.lease_until(), new.lease_until()) {
                            (Some(there), Some(until)) if there < until => {
                                Action::Put(extension(&record.lock_until(there), until))
                            }
                            _ => extended(record),
                        }
                    }
                    Event::Answered(PutOutcome::Refused(_)) => Action::Lost,
                    _ => Action::NotExtended,
                };
                (state, action)
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
            (Event::Answered(PutOutcome::Refused(Some(_))), Action::Extended(_) | Action::Put(_))
                if is_extending(moment) =>
            {
                (state, Action::Lost)
            }
            (_, action) => (state, action),
        },
        ..NONE
    },
];

/// Whether the last request was an extension, and the handler runs.
fn is_extending(moment: &Moment<'_>) -> bool {
    !moment.is_settling() && moment.was(Purpose::Extend)
}

/// The extension of `lock` until this time.
fn extension(lock: &Lock, until: Timestamp) -> Put {
    let expires_at = Some(until.saturating_add(millis(2 * TICK)));
    let new = Lock { lease_until: until, expires_at, ..lock.clone() };
    Put::Replace { seen: lock.clone().into(), new: new.into() }
}
