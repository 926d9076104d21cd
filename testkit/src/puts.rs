//! The puts that the library sends, for the tests of all stores. [`guide::protocol`](lambda_idempotency::guide::protocol)
//! describes T1 to T7.

use lambda_idempotency::{
    settings::Execution,
    store::{Generation, Lock, Outcome, Owner, Put, Record, State},
    time::Timestamp,
};

/// How a claim is settled.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// T4, with the expiry.
    Complete(Outcome, Timestamp),
    /// T5, with the expiry.
    Fail(Outcome, Timestamp),
    /// T6.
    Release {
        /// When the record expires.
        expires_at: Timestamp,
        /// The new value of [`Record::mark`].
        interrupted: bool,
    },
}

/// `lock` as an at-most-once claim, which never expires.
pub fn lasting(lock: Lock) -> Lock {
    Lock { execution: Execution::AtMostOnce, expires_at: None, ..lock }
}

/// T1.
pub fn claim(lock: Lock) -> Put {
    Put::Create(lock.into())
}

/// T2.
pub fn reclaim(seen: &Record, lock: Lock) -> Put {
    Put::Replace { seen: seen.clone(), new: lock.into() }
}

/// T3. The fingerprint stays, since only the same operation is taken over.
pub fn take_over(seen: &Record, lock: Lock) -> Put {
    reclaim(seen, Lock { fingerprint: seen.fingerprint, ..lock })
}

/// T4 to T6: the owner settles its claim.
pub fn settle(held: &Lock, settlement: Settlement) -> Put {
    Put::Mine { held: held.clone(), new: settled(&held.clone().into(), settlement) }
}

/// The record after `settlement`.
pub fn settled(record: &Record, settlement: Settlement) -> Record {
    let (state, expires_at, interrupted) = match settlement {
        Settlement::Complete(outcome, expires_at) => {
            (State::Completed(outcome), expires_at, record.mark.is_interrupted())
        }
        Settlement::Fail(outcome, expires_at) => {
            (State::Failed(outcome), expires_at, record.mark.is_interrupted())
        }
        Settlement::Release { expires_at, interrupted } => (State::Released, expires_at, interrupted),
    };
    Record { state, expires_at: Some(expires_at), mark: interrupted.into(), ..record.clone() }
}

/// T7: the owner extends its lease and changes the expiry.
pub fn extend(held: &Lock, lease_until: Timestamp, expires_at: Option<Timestamp>) -> Put {
    let seen = Record::from(held.clone());
    let new = Lock { lease_until, expires_at, ..held.clone() };
    Put::Replace { seen, new: new.into() }
}

/// A run without a claim stores its record.
pub fn conclude(seen: Option<&Record>, record: Record) -> Put {
    match seen.cloned() {
        Some(seen) => Put::Replace { seen, new: record },
        None => Put::Create(record),
    }
}

/// An operator settles the record.
pub fn resolve(seen: &Record, owner: Owner, generation: Generation, settlement: Settlement) -> Put {
    let new = Record { owner, generation, ..settled(seen, settlement) };
    Put::Replace { seen: seen.clone(), new }
}
