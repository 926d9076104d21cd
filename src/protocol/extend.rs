//! Extends the lease of a held claim while its handler runs (T7).

use crate::{
    protocol::{Action, Event, Fault, Held, Next, Phase, Plan},
    record::Status,
    store::{StoreErrorKind, Write, WriteOutcome},
    time::Timestamp,
};

/// Requests a lease until `until`. A lease is never shortened, so a request for that isn't sent.
///
/// The lease isn't extended either while a transaction of this claim is in doubt. If that transaction is
/// applied late, the record has the expiry that was fixed when it was first sent, which covers the lease as
/// it was then. Under a longer lease, the handler would still run while the record is swept and another
/// delivery claims the key.
pub(super) fn send(plan: &Plan, held: Held, submissions: u32, until: Timestamp, is_in_doubt: bool) -> Next {
    if is_in_doubt || until <= held.lease_until {
        return (Phase::Held { held, submissions }, Action::NotExtended);
    }
    let write = Write::Extend {
        owner: held.owner,
        generation: held.generation,
        lease_until: until,
        expires_at: plan.lock_expiry(until),
    };
    (Phase::Extending { held, submissions, until }, Action::Apply(write))
}

pub(super) fn extending(held: Held, submissions: u32, until: Timestamp, event: Event) -> Next {
    let stays = |held, action| (Phase::Held { held, submissions }, action);
    match event {
        Event::Answered(WriteOutcome::Applied) => extended(held, submissions, until),
        Event::Answered(WriteOutcome::Refused(Some(record)))
            if record.status() == Status::Started
                && record.owner == held.owner
                && record.generation == held.generation =>
        {
            // An earlier extension, whose answer was lost, set a later end.
            extended(held, submissions, record.lease_until().unwrap_or(until))
        }
        // Another claim took over, or the record is gone. The handler must stop, since the successor may do
        // the same work. Its outcome so far is settled as usual, which finds the successor.
        Event::Answered(WriteOutcome::Refused(_)) => stays(held, Action::Lost),
        // Applied or not, the lease is at least as long as before.
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => stays(held, Action::Lost),
        Event::Failed(_) => stays(held, Action::NotExtended),
        _ => (Phase::Extending { held, submissions, until }, Action::Nothing),
    }
}

fn extended(held: Held, submissions: u32, until: Timestamp) -> Next {
    let held = Held { lease_until: until.max(held.lease_until), ..held };
    (Phase::Held { held: held.clone(), submissions }, Action::Extended(held))
}
