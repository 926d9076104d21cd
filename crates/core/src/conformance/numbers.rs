//! A store must compare numbers as numbers, over their whole range. If it compares them as 64-bit floats or signed
//! integers, it gets some comparisons wrong.

use std::time::Duration;

use super::{
    Verdict,
    bench::{applied, fresh_key, prepare, refused},
    fields::{LAST_SECOND, edge_locks, put_away},
    samples::{
        claim, extend, extended, first_lock, reclaim, release, second_lock, settle, settlements, tomorrow,
        until,
    },
};
use crate::{
    record::{Generation, Lock, Record},
    store::{Put, Store},
    time::Timestamp,
};

/// Pairs of a lesser and a greater number. If a store compares them as text, floats, 32-bit or signed integers,
/// it gets some pairs wrong.
const RISING: [(u64, u64); 12] = [
    (0, 1),
    (0, u64::MAX),
    (5, (1 << 63) + 1),
    (9, 10),
    (99, 100),
    (999_999_999_999, 1_000_000_000_000),
    ((1 << 31) - 1, 1 << 31),
    ((1 << 32) - 1, 1 << 32),
    (1 << 53, (1 << 53) + 1),
    ((1 << 63) - 1, 1 << 63),
    (1 << 63, (1 << 63) + 1),
    (u64::MAX - 1, u64::MAX),
];

/// For each pair of numbers: if the record has one number, the store refuses every put that expects a version with
/// the other number.
pub(super) async fn versions(store: &dyn Store) -> Verdict {
    for (less, greater) in RISING {
        for (there, named) in [(less, greater), (greater, less)] {
            let generation = |number| move |lock| Lock { generation: Generation::new(number), ..lock };
            let lease = |number| move |lock| Lock { lease_until: millis(number), ..lock };
            told_apart(store, generation(there), generation(named), true).await?;
            told_apart(store, lease(there), lease(named), false).await?;
        }
    }
    let expiry = |expires_at| move |lock| until(expires_at, lock);
    let one_before = LAST_SECOND.saturating_sub(Duration::from_secs(1));
    for (one, other) in [
        (Some(LAST_SECOND), Some(one_before)),
        // An absent expiry isn't equal to any time: neither to the last possible one nor to tomorrow.
        (None, Some(LAST_SECOND)),
        (None, Some(tomorrow())),
    ] {
        told_apart(store, expiry(one), expiry(other), false).await?;
        told_apart(store, expiry(other), expiry(one), false).await?;
    }
    // The reverse can't be tested: a record with this expiry would expire in 1970, so a sweeper would remove it before
    // the case reads it.
    told_apart(store, expiry(None), expiry(Some(millis(0))), false).await
}

/// An extension changes only the lease and the expiry. It keeps every other field, even at the limits of its values.
pub(super) async fn extension_keeps_the_rest(store: &dyn Store) -> Verdict {
    let millisecond = Duration::from_millis(1);
    for lock in edge_locks()? {
        // Makes room for the extension, because no lease can be later than the greatest number.
        let lock = Lock { lease_until: lock.lease_until.saturating_sub(millisecond), ..lock };
        let lease_until = lock.lease_until.saturating_add(millisecond);
        let (key, before) = (fresh_key()?, Record::from(lock.clone()));
        prepare(store, &key, &[claim(lock)]).await?;
        let after = extended(&before, lease_until);
        applied(store, &key, &extend(&before, lease_until), &after).await?;
        // From now on, only the extended version matches.
        refused(store, &key, &reclaim(&before, second_lock()?), Some(&after)).await?;
        put_away(store, &key, &after).await?;
    }
    Ok(())
}

/// Checks that the store refuses puts that expect another version than the stored one. `there` and `named` each
/// change a copy of the first lock. The stored record has the lock from `there`, and the puts expect the version of
/// the lock from `named`. If the two are of different claims, a settlement is refused too.
async fn told_apart(
    store: &dyn Store,
    there: impl FnOnce(Lock) -> Lock,
    named: impl FnOnce(Lock) -> Lock,
    are_different_claims: bool,
) -> Verdict {
    let (key, first) = (fresh_key()?, first_lock()?);
    let (lock, other) = (there(first.clone()), Record::from(named(first)));
    let current = Record::from(lock.clone());
    prepare(store, &key, &[claim(lock)]).await?;
    let (_, released) = release(&other);
    let mut puts = vec![
        reclaim(&other, second_lock()?),
        extend(&other, tomorrow()),
        Put::Replace { seen: other.clone(), new: released },
    ];
    if are_different_claims {
        puts.extend(settlements().map(|settlement| settle(&other, settlement)));
    }
    for put in puts {
        refused(store, &key, &put, Some(&current)).await?;
    }
    put_away(store, &key, &current).await
}

const fn millis(number: u64) -> Timestamp {
    Timestamp::from_millis(number)
}
