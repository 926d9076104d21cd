//! Mutants of the store's conditions.

use lambda_idempotency::{
    store::{Generation, Record, Revision, Settlement, State as RecordState, Status, Write},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, TICK, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Mutant, NONE, small},
    under_test::Effect,
};

/// Leaves one field out of a compare-and-set: the mutant treats the field's current value as the value that was
/// seen.
macro_rules! without {
    ($name:literal, $space:expr, $write:ident, $field:ident, $actual:expr) => {
        Mutant {
            name: $name,
            space: $space,
            applies: |write, current| match (write, current) {
                (Write::$write { seen, lock }, Some(record)) => {
                    let actual: fn(&Record) -> _ = $actual;
                    let seen = Revision { $field: actual(record), ..*seen };
                    shipping(&Write::$write { seen, lock: lock.clone() }, current)
                }
                _ => shipping(write, current),
            },
            caught_by: Invariant::ClaimSeesVersion,
            ..NONE
        }
    };
}

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "an operator's write without a condition",
        caught_by: Invariant::ClaimSeesVersion,
        space: operated,
        applies: |write, current| match (write, current) {
            (Write::Resolve { owner, generation, settlement, .. }, Some(record)) => {
                let (seen, settlement) = (Revision::of(record), settlement.clone());
                shipping(
                    &Write::Resolve { seen, owner: *owner, generation: *generation, settlement },
                    current,
                )
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an operator's write tests only owner and generation",
        caught_by: Invariant::ClaimSeesVersion,
        space: operated,
        applies: |write, current| match (write, current) {
            (Write::Resolve { seen, owner, generation, settlement }, Some(record))
                if seen.owner == record.owner && seen.generation == record.generation =>
            {
                let (seen, settlement) = (Revision::of(record), settlement.clone());
                shipping(
                    &Write::Resolve { seen, owner: *owner, generation: *generation, settlement },
                    current,
                )
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "an operator's write keeps the generation",
        caught_by: Invariant::GenerationsGrow,
        space: operated,
        applies: |write, current| match (shipping(write, current), write, current) {
            (Effect::Put(record), Write::Resolve { .. }, Some(before)) => {
                Effect::Put(Record { generation: before.generation, ..record })
            }
            (effect, ..) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "complete without a condition",
        caught_by: Invariant::OwnerSettles,
        applies: |write, current| match (write, current) {
            (Write::Settle { settlement: Settlement::Complete(..), .. }, Some(record)) => {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "fail without a condition",
        caught_by: Invariant::OwnerSettles,
        applies: |write, current| match (write, current) {
            (Write::Settle { settlement: Settlement::Fail(..), .. }, Some(record)) => settled(write, record),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "release without a condition",
        caught_by: Invariant::OwnerReleases,
        applies: |write, current| match (write, current) {
            (Write::Settle { settlement: Settlement::Release { .. }, .. }, Some(record)) => {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "delete instead of release",
        caught_by: Invariant::StartsInOrder,
        applies: |write, current| match (write, shipping(write, current)) {
            (Write::Settle { settlement: Settlement::Release { .. }, .. }, Effect::Put(_)) => Effect::Removed,
            (_, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "release resets the generation",
        caught_by: Invariant::StartsInOrder,
        applies: |write, current| match (write, shipping(write, current)) {
            (Write::Settle { settlement: Settlement::Release { .. }, .. }, Effect::Put(record)) => {
                Effect::Put(Record { generation: Generation::new(0), ..record })
            }
            (_, effect) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "settle tests only the owner",
        caught_by: Invariant::OwnerSettles,
        space: || Configuration { faults: 2, times: ticks(5), verdicts: &[Verdict::Complete], ..small() },
        applies: |write, current| match (write, current) {
            (Write::Settle { owner, .. }, Some(record))
                if record.status() == Status::Started && record.owner == *owner =>
            {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "settle tests only the generation",
        caught_by: Invariant::OwnerReleases,
        space: || Configuration { attempts: 1, faults: 0, ..behind() },
        applies: |write, current| match (write, current) {
            (Write::Settle { generation, .. }, Some(record))
                if record.status() == Status::Started && record.generation == *generation =>
            {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "settle doesn't test the status",
        caught_by: Invariant::OwnerSettles,
        space: || Configuration { permanent_faults: true, faults: 2, times: ticks(2), ..small() },
        applies: |write, current| match (write, current) {
            (Write::Settle { owner, generation, .. }, Some(record))
                if record.owner == *owner && record.generation == *generation =>
            {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "settle tests only the status",
        caught_by: Invariant::OwnerReleases,
        applies: |write, current| match (write, current) {
            (Write::Settle { .. }, Some(record)) if record.status() == Status::Started => {
                settled(write, record)
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "first claim without attribute_not_exists",
        caught_by: Invariant::ClaimSeesVersion,
        applies: |write, current| match write {
            Write::Claim(lock) => Effect::Put(lock.clone().into()),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "takeover without compare-and-set",
        caught_by: Invariant::ClaimSeesVersion,
        applies: |write, current| match (write, current) {
            (Write::TakeOver { lock, .. }, Some(_)) => Effect::Put(lock.clone().into()),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "takeover tests only the status",
        caught_by: Invariant::ClaimSeesVersion,
        space: three,
        applies: |write, current| match (write, current) {
            (Write::TakeOver { lock, .. }, Some(record)) if record.status() == Status::Started => {
                Effect::Put(lock.clone().into())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "takeover tests only the owner",
        caught_by: Invariant::ClaimSeesVersion,
        applies: |write, current| match (write, current) {
            (Write::TakeOver { seen, lock }, Some(record)) if record.owner == seen.owner => {
                Effect::Put(lock.clone().into())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "reclaim without compare-and-set",
        caught_by: Invariant::ClaimSeesVersion,
        space: three,
        applies: |write, current| match (write, current) {
            (Write::Reclaim { lock, .. }, Some(_)) => Effect::Put(lock.clone().into()),
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "reclaim tests only the status",
        caught_by: Invariant::ClaimSeesVersion,
        space: three,
        applies: |write, current| match (write, current) {
            (Write::Reclaim { seen, lock }, Some(record)) if record.status() == seen.status => {
                Effect::Put(lock.clone().into())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    Mutant {
        name: "reclaim tests only owner and generation",
        caught_by: Invariant::ClaimSeesVersion,
        applies: |write, current| match (write, current) {
            (Write::Reclaim { seen, lock }, Some(record))
                if record.owner == seen.owner && record.generation == seen.generation =>
            {
                Effect::Put(lock.clone().into())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    without!("takeover doesn't test the lease", extended, TakeOver, lease_until, Record::lease_until),
    without!("takeover doesn't test the owner", behind, TakeOver, owner, |record| record.owner),
    without!("takeover doesn't test the generation", ahead, TakeOver, generation, |record| record.generation),
    without!("reclaim doesn't test the owner", far_behind, Reclaim, owner, |record| record.owner),
    without!("reclaim doesn't test the generation", far_ahead, Reclaim, generation, |record| record
        .generation),
    Mutant {
        name: "a lease is stored in seconds",
        caught_by: Invariant::OneInsideLease,
        space: || Configuration { faults: 0, ..small() },
        applies: |write, current| match (shipping(write, current), write) {
            (Effect::Put(record), Write::Claim(lock)) => {
                let lease_until = Timestamp::from_millis(lock.lease_until.as_millis() / 1000);
                Effect::Put(Record { state: RecordState::Started { lease_until }, ..record })
            }
            (effect, _) => effect,
        },
        ..NONE
    },
    Mutant {
        name: "completion doesn't set the expiry",
        caught_by: Invariant::ExpiryPromised,
        applies: |write, current| match (write, current, shipping(write, current)) {
            (Write::Settle { .. }, Some(before), Effect::Put(record)) => {
                Effect::Put(Record { expires_at: before.expires_at, ..record })
            }
            (_, _, effect) => effect,
        },
        ..NONE
    },
];

/// Conditions that the other conditions imply, so that omitting any one of them is harmless. Only two kinds of
/// writes keep a record's owner and generation: an extension, which moves both the lease and the expiry, and a
/// settlement, which changes the status and removes the lease. The shipping code keeps the implied conditions, since
/// they cost nothing.
pub(super) const IMPLIED: &[Mutant] = &[
    Mutant {
        name: "takeover doesn't test the status",
        applies: |write, current| match (write, current) {
            (Write::TakeOver { seen, lock }, Some(record))
                if Revision { status: seen.status, expires_at: seen.expires_at, ..Revision::of(record) }
                    == *seen =>
            {
                Effect::Put(lock.clone().into())
            }
            _ => shipping(write, current),
        },
        ..NONE
    },
    without!("takeover doesn't test the time of the lock", small, TakeOver, lock_acquired_at, |record| {
        record.lock_acquired_at
    }),
    without!("reclaim doesn't test the status", small, Reclaim, status, Record::status),
    without!("reclaim doesn't test the expiry", small, Reclaim, expires_at, |record| record.expires_at),
    without!("reclaim doesn't test the lease", small, Reclaim, lease_until, Record::lease_until),
];

pub(super) fn shipping(write: &Write, current: Option<&Record>) -> Effect {
    write.apply_to(current).into()
}

/// The record as `write` settles it, whoever owns it.
fn settled(write: &Write, record: &Record) -> Effect {
    let Write::Settle { settlement, .. } = write else { return Effect::Refused };
    let record = record.clone();
    Effect::Put(match settlement.clone() {
        Settlement::Complete(outcome, expires_at) => {
            Record { state: RecordState::Completed(outcome), expires_at: Some(expires_at), ..record }
        }
        Settlement::Fail(outcome, expires_at) => {
            Record { state: RecordState::Failed(outcome), expires_at: Some(expires_at), ..record }
        }
        Settlement::Release { expires_at, interrupted } => {
            Record { state: RecordState::Released, expires_at: Some(expires_at), interrupted, ..record }
        }
    })
}

/// Spaces in which only the owner, or only the generation, distinguishes two claims.
pub(super) const DISTANT: [fn() -> Configuration; 4] = [behind, far_behind, ahead, far_ahead];

/// A clock so far behind that two claims get the same generation: only the owner distinguishes them.
pub(super) fn behind() -> Configuration {
    Configuration {
        name: "a clock beyond M, behind",
        clocks: vec![0, -3 * TICK],
        attempts: 2,
        times: ticks(4),
        faults: 0,
        verdicts: &[Verdict::Release],
        ..Configuration::default()
    }
}

/// Like [`behind`], but the clock is so far behind that its locks are already stale and expired by the other
/// clock.
fn far_behind() -> Configuration {
    Configuration {
        name: "a clock far beyond M, behind",
        clocks: vec![0, -5 * TICK],
        times: ticks(6),
        ..behind()
    }
}

/// Two clocks so far ahead that, by these clocks, a lock of the executor with the correct clock is stale as soon as
/// it's written. That executor may lose the lock and claim the key again in the same millisecond, under the same
/// owner. Only the generation distinguishes its two claims.
fn ahead() -> Configuration {
    Configuration {
        name: "two clocks beyond M, ahead",
        clocks: vec![0, 3 * TICK, 3 * TICK],
        executors: 3,
        times: ticks(1),
        faults: 0,
        ..Configuration::default()
    }
}

/// Like [`ahead`], but the clocks are so far ahead that the lock is stale and expired as soon as it's
/// written.
fn far_ahead() -> Configuration {
    Configuration { name: "two clocks far beyond M, ahead", clocks: vec![0, 6 * TICK, 6 * TICK], ..ahead() }
}

/// A space with lease extensions.
pub(super) fn extended() -> Configuration {
    Configuration { name: "leases extended", extensions: 2, times: ticks(5), ..small() }
}

/// An operator and two executors.
fn operated() -> Configuration {
    Configuration { name: "an operator", operations: 1, ..small() }
}

/// Three executors: two compete for the claim that the third left behind.
fn three() -> Configuration {
    Configuration {
        name: "3 executors",
        clocks: vec![0, TICK, 0],
        executors: 3,
        times: ticks(4),
        ..Configuration::default()
    }
}
