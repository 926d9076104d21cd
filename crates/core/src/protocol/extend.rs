//! Extends the lease of a held claim while its handler runs (T7).

use crate::{
    protocol::{
        Action, Event, Fault, Held,
        Next::{self, Act},
        Phase, Plan, Running,
        settlement::is_still_held,
    },
    record::Lock,
    store::{Put, PutOutcome, StoreErrorKind},
    time::Timestamp,
};

/// Requests a lease until `until`. Sends nothing if the lease wouldn't get longer.
///
/// It also sends nothing while a transaction of this claim is in doubt. The transaction's record has an expiry that
/// covers only the lease at the first attempt. If the lease were extended and the transaction then applied late, the
/// record could be swept, and another delivery could claim the key, while the handler still runs.
pub(super) fn send(plan: &Plan, running: Running, until: Timestamp) -> Next {
    let held = &running.held;
    if running.is_in_doubt || until <= held.lock.lease_until {
        return Act(Phase::Held(running), Action::NotExtended);
    }
    let new = Lock { lease_until: until, expires_at: plan.lock_expiry(until), ..held.lock.clone() };
    let put = Put::Replace { seen: held.lock.clone().into(), new: new.into() };
    Act(Phase::Extending { running, until }, Action::Put(put))
}

pub(super) fn extending(plan: &Plan, running: Running, until: Timestamp, event: Event) -> Next {
    match event {
        Event::Answered(PutOutcome::Applied) => extended(plan, running, until),
        // An earlier extension, whose answer was lost, has moved the lease. Its record is the new base.
        Event::Answered(PutOutcome::Refused(Some(record))) if is_still_held(&running.held, &record) => {
            let lock = record.lock_until(record.lease_until().unwrap_or(running.held.lock.lease_until));
            let running = Running { held: Held { lock, ..running.held }, ..running };
            if running.held.lock.lease_until < until {
                return send(plan, running, until);
            }
            let held = running.held.clone();
            Act(Phase::Held(running), Action::Extended(held))
        }
        // Another claim took over, or the record is gone. The handler must stop, since the successor may do
        // the same work. The handler's outcome is settled as usual, and the settlement finds the successor.
        Event::Answered(PutOutcome::Refused(_)) => Act(Phase::Held(running), Action::Lost),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => Act(Phase::Held(running), Action::Lost),
        // Whether or not the extension was applied, the lease is at least as long as before.
        Event::Failed(_) => Act(Phase::Held(running), Action::NotExtended),
        _ => Act(Phase::Extending { running, until }, Action::Nothing),
    }
}

fn extended(plan: &Plan, running: Running, until: Timestamp) -> Next {
    let lock = Lock { lease_until: until, expires_at: plan.lock_expiry(until), ..running.held.lock };
    let held = Held { lock, ..running.held };
    Act(Phase::Held(Running { held: held.clone(), ..running }), Action::Extended(held))
}
