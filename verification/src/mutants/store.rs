//! Mutants of the store's conditions, and of what the store keeps.

use lambda_idempotency::{
    settings::Execution,
    store::{Generation, Put, Record, State as RecordState, Status},
    time::Timestamp,
};

use crate::{
    configuration::{Configuration, Flow, TICK, ticks},
    invariants::Invariant,
    model::Verdict,
    mutants::{Mutant, NONE, small, unclaimed::unclaimed},
    under_test::{Effect, Purpose, fits},
};

/// Which conditions of a replacement a broken store tests.
type Tests = fn(&Record, &Record) -> bool;

/// A store that tests only `$tests` before a replacement with one of these purposes.
macro_rules! replacing {
    ($name:literal, $caught_by:ident, $space:expr, $only:expr, $tests:expr) => {
        Mutant {
            name: $name,
            caught_by: Invariant::$caught_by,
            space: $space,
            applies: |put, current| match (put, current) {
                (Put::Replace { seen, new }, Some(current)) if $only.contains(&Purpose::of(put)) => {
                    let tests: Tests = $tests;
                    if tests(seen, current) { Effect::Put(new.clone()) } else { Effect::Refused }
                }
                _ => shipping(put, current),
            },
            ..NONE
        }
    };
}

/// A store that tests only `$tests` before a settlement with one of these statuses.
macro_rules! settling {
    ($name:literal, $caught_by:ident, $space:expr, $only:expr, $tests:expr) => {
        Mutant {
            name: $name,
            caught_by: Invariant::$caught_by,
            space: $space,
            applies: |put, current| match (put, current) {
                (Put::Mine { held, new }, Some(current)) if $only.contains(&new.status()) => {
                    let tests: Tests = $tests;
                    let is_tested = tests(&held.clone().into(), current);
                    if is_tested { Effect::Put(new.clone()) } else { Effect::Refused }
                }
                _ => shipping(put, current),
            },
            ..NONE
        }
    };
}

/// A store that changes what a put stores. The closure gets the put, the record before it, and the record after it.
macro_rules! keeping {
    ($name:literal, $caught_by:ident, $space:expr, $change:expr) => {
        Mutant {
            name: $name,
            caught_by: Invariant::$caught_by,
            space: $space,
            applies: |put, current| {
                let change: fn(&Put, &Record, &mut Record) = $change;
                match (shipping(put, current), current) {
                    (Effect::Put(mut record), Some(before)) => {
                        change(put, before, &mut record);
                        Effect::Put(record)
                    }
                    (effect, _) => effect,
                }
            },
            ..NONE
        }
    };
}

/// The purposes whose replacements begin a new claim.
const CLAIM: &[Purpose] = &[Purpose::Claim];
const EXTEND: &[Purpose] = &[Purpose::Extend];
const CONCLUDE: &[Purpose] = &[Purpose::Conclude];
const RESOLVE: &[Purpose] = &[Purpose::Resolve];
/// The purposes of all replacements.
const ANY: &[Purpose] = &[Purpose::Claim, Purpose::Extend, Purpose::Conclude, Purpose::Resolve];
/// The statuses of all settlements.
const ENDS: &[Status] = &[Status::Completed, Status::Failed, Status::Released];

/// All mutants of this group.
pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a creation without attribute_not_exists",
        caught_by: Invariant::ClaimSeesVersion,
        applies: |put, current| match put {
            Put::Create(new) => Effect::Put(new.clone()),
            _ => shipping(put, current),
        },
        ..NONE
    },
    replacing!("a replacement without a condition", ClaimSeesVersion, small, ANY, |_, _| true),
    replacing!("a replacement tests only the status", ClaimSeesVersion, three, ANY, is_same_status),
    replacing!("a replacement tests only the owner", ClaimSeesVersion, small, ANY, |seen, current| {
        seen.owner == current.owner
    }),
    replacing!("a replacement tests only owner and generation", ClaimSeesVersion, small, ANY, is_same_claim),
    replacing!("a replacement doesn't test the owner", ClaimSeesVersion, far_behind, ANY, |seen, current| {
        is_same(&Record { owner: current.owner, ..seen.clone() }, current)
    }),
    replacing!(
        "a replacement doesn't test the generation",
        ClaimSeesVersion,
        far_ahead,
        ANY,
        |seen, current| { is_same(&Record { generation: current.generation, ..seen.clone() }, current) }
    ),
    // Under at-most-once, a claim has no expiry, so only its lease shows that it was extended.
    replacing!("a replacement doesn't test the lease", LeasesGrow, extended_once, ANY, is_same_but_lease),
    replacing!("an operator's put doesn't test the lease", ClaimSeesVersion, operated_once, RESOLVE, {
        is_same_but_lease
    }),
    replacing!("a takeover tests neither lease nor expiry", ClaimSeesVersion, extended, CLAIM, is_unsettled),
    replacing!("an operator's put without a condition", ClaimSeesVersion, operated, RESOLVE, |_, _| true),
    replacing!("an operator's put tests only the claim", ClaimSeesVersion, operated, RESOLVE, is_same_claim),
    replacing!("a conclusion without a condition", ClaimSeesVersion, unclaimed, CONCLUDE, |_, _| true),
    // Only an extension changes the lease and expiry of a claim and nothing else: the frozen owner of a stale claim
    // thaws and extends the claim.
    replacing!("a conclusion tests neither lease nor expiry", ClaimSeesVersion, extended_beside, CONCLUDE, {
        is_unsettled
    }),
    replacing!("a conclusion replaces a live claim", ClaimSeesVersion, beside, CONCLUDE, |seen, current| {
        is_same(seen, current) || current.status() == Status::Started
    }),
    replacing!("an extension tests only the status", OwnerExtends, extended, EXTEND, is_same_status),
    replacing!("an extension tests only status and generation", OwnerExtends, extended_behind, EXTEND, {
        |seen, current| is_same_status(seen, current) && seen.generation == current.generation
    }),
    replacing!("an extension tests only status and owner", OwnerExtends, extended_ahead, EXTEND, {
        |seen, current| is_same_status(seen, current) && seen.owner == current.owner
    }),
    replacing!("an extension tests only the claim", LeasesGrow, extended, EXTEND, is_same_claim),
    replacing!("an extension reopens a settled record", OutcomeKept, extended, EXTEND, |seen, current| {
        is_same(seen, current) || is_same_claim(seen, current) && current.lease_until().is_none()
    }),
    settling!("a completion without a condition", OwnerSettles, small, &[Status::Completed], |_, _| true),
    settling!("a failure without a condition", OwnerSettles, small, &[Status::Failed], |_, _| true),
    settling!("a release without a condition", OwnerReleases, small, &[Status::Released], |_, _| true),
    settling!("a settlement tests only the status", OwnerReleases, small, ENDS, is_same_status),
    settling!("a settlement tests only status and owner", OwnerReleases, recorded, ENDS, |held, current| {
        is_same_status(held, current) && held.owner == current.owner
    }),
    settling!("a settlement tests only status and generation", OwnerReleases, behind_once, ENDS, {
        |held, current| is_same_status(held, current) && held.generation == current.generation
    }),
    settling!("a settlement doesn't test the status", OwnerSettles, refusing, ENDS, is_same_claim),
    settling!("a settlement tests the lease", OwnerNotRefused, extended, ENDS, is_same),
    Mutant {
        name: "a release deletes the record",
        caught_by: Invariant::StartsInOrder,
        applies: |put, current| match (put, shipping(put, current)) {
            (Put::Mine { new, .. }, Effect::Put(_)) if new.status() == Status::Released => Effect::Removed,
            (_, effect) => effect,
        },
        ..NONE
    },
    keeping!("a release resets the generation", StartsInOrder, small, |put, _, record| {
        if matches!(put, Put::Mine { .. }) && record.status() == Status::Released {
            record.generation = Generation::new(0);
        }
    }),
    keeping!("an operator's put keeps the generation", GenerationsGrow, operated, |put, before, record| {
        if Purpose::of(put) == Purpose::Resolve {
            record.generation = before.generation;
        }
    }),
    keeping!("a settlement keeps the expiry", ExpiryPromised, small, |put, before, record| {
        if matches!(put, Put::Mine { .. }) {
            record.expires_at = before.expires_at;
        }
    }),
    keeping!("an extension keeps the expiry", ExpiryPromised, extended, |put, before, record| {
        if Purpose::of(put) == Purpose::Extend {
            record.expires_at = before.expires_at;
        }
    }),
    keeping!("a replacement keeps the fingerprint", ClaimKept, two_requests, |put, before, record| {
        if Purpose::of(put) == Purpose::Claim {
            record.fingerprint = before.fingerprint;
        }
    }),
    Mutant {
        name: "a lease is stored in seconds",
        caught_by: Invariant::OneInsideLease,
        space: || Configuration { faults: 0, ..small() },
        applies: |put, current| match (shipping(put, current), put) {
            (Effect::Put(record), Put::Create(new)) => {
                let millis = new.lease_until().map_or(0, Timestamp::as_millis);
                let lease_until = Timestamp::from_millis(millis / 1000);
                Effect::Put(Record { state: RecordState::Started { lease_until }, ..record })
            }
            (effect, _) => effect,
        },
        ..NONE
    },
];

/// Conditions that the other conditions imply, so that omitting any one of them is harmless. Only two kinds of puts
/// keep a record's owner and generation: an extension, which moves both the lease and the expiry (unless both leases
/// end in the same second, or the claim has no expiry), and a settlement, which changes the status and removes the
/// lease. The shipping code keeps the implied conditions, since they cost nothing.
pub(super) const IMPLIED: &[Mutant] = &[
    replacing!("a replacement doesn't test the status", ClaimSeesVersion, small, ANY, |seen, current| {
        is_same_claim(seen, current)
            && seen.lease_until() == current.lease_until()
            && seen.expires_at == current.expires_at
    }),
    replacing!("a replacement doesn't test the expiry", ClaimSeesVersion, small, ANY, |seen, current| {
        is_same(&Record { expires_at: current.expires_at, ..seen.clone() }, current)
    }),
];

pub(super) fn shipping(put: &Put, current: Option<&Record>) -> Effect {
    put.apply_to(current).into()
}

/// Whether both records have the same version.
fn is_same(seen: &Record, current: &Record) -> bool {
    fits(&Put::Replace { seen: seen.clone(), new: seen.clone() }, Some(current))
}

fn is_same_status(seen: &Record, current: &Record) -> bool {
    seen.status() == current.status()
}

fn is_same_claim(seen: &Record, current: &Record) -> bool {
    seen.owner == current.owner && seen.generation == current.generation
}

fn is_unsettled(seen: &Record, current: &Record) -> bool {
    is_same_status(seen, current) && is_same_claim(seen, current)
}

fn is_same_but_lease(seen: &Record, current: &Record) -> bool {
    is_unsettled(seen, current) && seen.expires_at == current.expires_at
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

/// Like [`extended`], under at-most-once, with two extensions in flight.
fn extended_once() -> Configuration {
    Configuration { execution: Execution::AtMostOnce, ..extended() }
}

/// An operator beside extensions, under at-most-once.
fn operated_once() -> Configuration {
    Configuration { name: "an operator, leases extended", operations: 1, ..extended_once() }
}

/// Like [`behind`], with an extension.
fn extended_behind() -> Configuration {
    Configuration { extensions: 1, ..behind() }
}

/// An extension that arrives late, after its sender has claimed the key again, under the same owner, to record its
/// outcome.
fn extended_ahead() -> Configuration {
    Configuration {
        name: "a clock beyond M, ahead",
        clocks: vec![0, 4 * TICK],
        times: ticks(2),
        lease: 2 * TICK,
        ..extended()
    }
}

/// One delivery per executor, with a clock as in [`behind`].
fn behind_once() -> Configuration {
    Configuration { attempts: 1, ..behind() }
}

/// A space in which an executor claims its key again, to record its outcome.
fn recorded() -> Configuration {
    Configuration { faults: 2, times: ticks(5), verdicts: &[Verdict::Complete], ..small() }
}

/// A store that also rejects requests for good.
fn refusing() -> Configuration {
    Configuration { permanent_faults: true, faults: 2, times: ticks(2), ..small() }
}

/// Handlers with and without a claim.
fn beside() -> Configuration {
    Configuration { flows: &[Flow::Claim, Flow::Look], ..unclaimed() }
}

/// Like [`beside`], with an extension.
fn extended_beside() -> Configuration {
    Configuration { extensions: 1, ..beside() }
}

/// Another request under the key.
fn two_requests() -> Configuration {
    Configuration { name: "another request under the key", requests: 2, ..Configuration::default() }
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
