//! Proves that the one put does what the protocol needs from seven: [`Act`] restates each transition with the smallest
//! condition that it needs and the fields that it changes, and the test compares both over every pair of records.

use bytes::Bytes;

use super::Put;
use crate::{
    fingerprint::Fingerprint,
    outcome::{Outcome, StoredResponse},
    record::{Generation, Lock, Mark, Owner, Record, State, Status},
    settings::Execution,
    time::Timestamp,
};

/// A transition, as an executor makes it that knows the record `known`.
#[derive(Clone, Debug)]
enum Act {
    Claim(Lock),
    /// An expired or released record is claimed.
    Reclaim(Lock),
    TakeOver(Lock),
    Settle(State, Timestamp, bool),
    Extend(Timestamp, Option<Timestamp>),
    Conclude(Record),
    Resolve(Owner, Generation, State, Timestamp),
}

impl Act {
    /// Returns the record that the transition makes of `current`, or `None` if it mustn't be applied.
    fn apply_to(&self, known: Option<&Record>, current: Option<&Record>) -> Option<Record> {
        let unchanged = known.zip(current).is_some_and(|(known, current)| {
            known.status() == current.status()
                && (known.owner, known.generation) == (current.owner, current.generation)
                && known.lease_until() == current.lease_until()
        });
        let same_expiry =
            known.zip(current).is_some_and(|(known, current)| known.expires_at == current.expires_at);
        let is_mine = known.zip(current).is_some_and(|(known, current)| {
            current.status() == Status::Started
                && (known.owner, known.generation) == (current.owner, current.generation)
        });
        match self {
            Self::Claim(lock) => current.is_none().then(|| lock.clone().into()),
            Self::Reclaim(lock) => (unchanged && same_expiry).then(|| lock.clone().into()),
            // Only the lease decides whether a claim is stale.
            Self::TakeOver(lock) => unchanged.then(|| lock.clone().into()),
            Self::Settle(state, expires_at, interrupted) => {
                current.filter(|_| is_mine).map(|current| Record {
                    state: state.clone(),
                    expires_at: Some(*expires_at),
                    mark: (*interrupted).into(),
                    ..current.clone()
                })
            }
            // An extension never shortens a lease.
            Self::Extend(lease_until, expires_at) => {
                let current =
                    current.filter(|current| is_mine && current.lease_until() < Some(*lease_until))?;
                let state = State::Started { lease_until: *lease_until };
                Some(Record { state, expires_at: *expires_at, ..current.clone() })
            }
            Self::Conclude(record) => {
                let holds = match known {
                    None => current.is_none(),
                    Some(_) => unchanged && same_expiry,
                };
                holds.then(|| record.clone())
            }
            Self::Resolve(owner, generation, state, expires_at) => {
                let current = current.filter(|_| unchanged && same_expiry)?;
                let (owner, generation, state) = (*owner, *generation, state.clone());
                Some(Record { owner, generation, state, expires_at: Some(*expires_at), ..current.clone() })
            }
        }
    }

    /// The same transition as a put.
    fn put(&self, known: Option<&Record>) -> Put {
        let replace = |new: Record| match known.cloned() {
            Some(seen) => Put::Replace { seen, new },
            None => Put::Create(new),
        };
        match self {
            Self::Claim(lock) => Put::Create(lock.clone().into()),
            Self::Reclaim(lock) | Self::TakeOver(lock) => replace(lock.clone().into()),
            Self::Settle(state, expires_at, interrupted) => {
                let known = known.unwrap();
                let new = Record {
                    state: state.clone(),
                    expires_at: Some(*expires_at),
                    mark: (*interrupted).into(),
                    ..known.clone()
                };
                Put::Mine { held: known.lock_until(known.lease_until().unwrap()), new }
            }
            Self::Extend(lease_until, expires_at) => {
                let state = State::Started { lease_until: *lease_until };
                replace(Record { state, expires_at: *expires_at, ..known.unwrap().clone() })
            }
            Self::Conclude(record) => replace(record.clone()),
            Self::Resolve(owner, generation, state, expires_at) => replace(Record {
                owner: *owner,
                generation: *generation,
                state: state.clone(),
                expires_at: Some(*expires_at),
                ..known.unwrap().clone()
            }),
        }
    }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn outcome(byte: u8) -> Outcome {
    Outcome::Retained(StoredResponse::new(Bytes::from(vec![byte])))
}

/// Records as the protocol makes them: owner and generation name one claim, and so its attempt, fingerprint, time and
/// request id. Leases and expiries that an extension moved are there too, also an expiry without its lease's change.
fn records() -> Vec<Record> {
    let mut all = Vec::new();
    for (byte, generation, attempt, request, interrupted, lasting) in [
        (1, 10, 1, 1, false, false),
        (2, 11, 2, 1, true, false),
        (3, 12, 1, 2, false, true),
        (4, 13, 2, 2, true, true),
    ] {
        let base = |state, expires_at| Record {
            owner: Owner::from_bytes([byte; 16]),
            generation: Generation::new(generation),
            attempt,
            fingerprint: Fingerprint::of_bytes(&[request]),
            lock_acquired_at: at(generation),
            execution: Execution::AtLeastOnce,
            expires_at,
            mark: bool::into(interrupted),
            request_id: Some(format!("invocation {byte}").into()),
            trace: None,
            state,
        };
        for (lease, expiry) in [(20, 120), (30, 130), (20, 121)] {
            let expires_at = (!lasting).then(|| at(expiry));
            all.push(base(State::Started { lease_until: at(lease) }, expires_at));
        }
        for outcome in [outcome(1), outcome(2), Outcome::Omitted] {
            all.push(base(State::Completed(outcome.clone()), Some(at(200))));
            all.push(base(State::Failed(outcome), Some(at(200))));
        }
        // A release's expiry can equal the claim's.
        for expiry in [120, 300] {
            all.push(base(State::Released, Some(at(expiry))));
        }
    }
    all
}

/// Every transition that an executor that knows `known` can make.
fn acts(known: &Record) -> Vec<Act> {
    let (me, mine) = (Owner::from_bytes([9; 16]), Generation::new(99));
    let lock = Lock {
        owner: me,
        generation: mine,
        attempt: 3,
        fingerprint: known.fingerprint,
        lock_acquired_at: at(50),
        lease_until: at(60),
        execution: Execution::AtLeastOnce,
        expires_at: Some(at(160)),
        mark: Mark::Interrupted,
        request_id: None,
        trace: None,
    };
    let settled = [
        State::Completed(outcome(7)),
        State::Completed(Outcome::Omitted),
        State::Failed(outcome(8)),
        State::Released,
    ];
    let mut acts = vec![Act::Claim(lock.clone()), Act::Reclaim(lock.clone())];
    for state in &settled {
        acts.push(Act::Conclude(Record { state: state.clone(), ..lock.clone().into() }));
        acts.push(Act::Resolve(me, mine, state.clone(), at(400)));
    }
    if known.status() == Status::Started {
        acts.push(Act::TakeOver(lock));
        acts.push(Act::Extend(at(40), known.expires_at.map(|_| at(140))));
        for state in settled {
            let interrupted = known.mark.is_interrupted() || matches!(state, State::Released);
            acts.push(Act::Settle(state, at(400), interrupted));
        }
    }
    acts
}

#[test]
fn one_put_does_what_seven_did() {
    let records = records();
    let (mut same, mut moved, mut later_expiry) = (0, 0, 0);
    for known in &records {
        for act in acts(known) {
            let known = (!matches!(act, Act::Claim(_))).then_some(known);
            for current in std::iter::once(None).chain(records.iter().map(Some)) {
                let (needed, stored) = (act.apply_to(known, current), act.put(known).apply_to(current));
                match (&act, &needed, &stored) {
                    _ if needed == stored => same += 1,
                    // An extension after one whose answer was lost is refused with the owner's own record. The machine
                    // sends it again on that record.
                    (Act::Extend(..), Some(_), None) => {
                        let (known, current) = (known.unwrap(), current.unwrap());
                        assert!(current.is_claim_of(known) && !current.has_version_of(known));
                        let again = act.put(Some(current)).apply_to(Some(current));
                        assert_eq!(again, needed, "the second attempt does it");
                        moved += 1;
                    }
                    // The put also compares the expiry, which moves only together with the lease.
                    (Act::TakeOver(_), Some(_), None) => {
                        assert_ne!(known.unwrap().expires_at, current.unwrap().expires_at);
                        later_expiry += 1;
                    }
                    _ => {
                        panic!("{act:?} on {current:?}, knowing {known:?}: {stored:?} instead of {needed:?}")
                    }
                }
            }
        }
    }
    assert!(same > 10_000 && moved > 0 && later_expiry > 0, "{same} {moved} {later_expiry}");
}
