//! Extends the lease of a held claim while its handler runs (T7).

use crate::{
    protocol::{
        Action, Event, Fault, Held,
        Next::{self, Act},
        Phase, Plan, Running,
        settlement::is_still_held,
    },
    store::{StoreErrorKind, Write, WriteOutcome},
    time::Timestamp,
};

/// Requests a lease until `until`. Sends nothing if the lease wouldn't get longer.
///
/// It also sends nothing while a transaction of this claim is in doubt. The transaction's record has an expiry that
/// covers only the lease at the first attempt. If the lease were extended and the transaction then applied late, the
/// record could be swept, and another delivery could claim the key, while the handler still runs.
pub(super) fn send(plan: &Plan, running: Running, until: Timestamp) -> Next {
    let held = &running.held;
    if running.is_in_doubt || until <= held.lease_until {
        return Act(Phase::Held(running), Action::NotExtended);
    }
    let write = Write::Extend {
        owner: held.owner,
        generation: held.generation,
        lease_until: until,
        expires_at: plan.lock_expiry(until),
    };
    Act(Phase::Extending { running, until }, Action::Apply(write))
}

pub(super) fn extending(running: Running, until: Timestamp, event: Event) -> Next {
    let held = &running.held;
    match event {
        Event::Answered(WriteOutcome::Applied) => extended(running, until),
        Event::Answered(WriteOutcome::Refused(Some(record))) if is_still_held(held, &record) => {
            // An earlier extension, whose answer was lost, set a later end.
            extended(running, record.lease_until().unwrap_or(until))
        }
        // Another claim took over, or the record is gone. The handler must stop, since the successor may do
        // the same work. The handler's outcome is settled as usual, and the settlement finds the successor.
        Event::Answered(WriteOutcome::Refused(_)) => Act(Phase::Held(running), Action::Lost),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => Act(Phase::Held(running), Action::Lost),
        // Whether or not the extension was applied, the lease is at least as long as before.
        Event::Failed(_) => Act(Phase::Held(running), Action::NotExtended),
        _ => Act(Phase::Extending { running, until }, Action::Nothing),
    }
}

fn extended(running: Running, until: Timestamp) -> Next {
    let held = Held { lease_until: until.max(running.held.lease_until), ..running.held };
    Act(Phase::Held(Running { held: held.clone(), ..running }), Action::Extended(held))
}
