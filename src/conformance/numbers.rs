//! A store must compare numbers as numbers, over their whole range. If it compares them as text, 64-bit floats or
//! signed integers, it gets some comparisons wrong.

use std::time::Duration;

use super::{
    Verdict,
    bench::{applied, fresh_key, owner, prepare, refused},
    fields::{LAST_SECOND, edge_locks, put_away},
    samples::{first_lock, second_lock, settle, tomorrow},
};
use crate::{
    outcome::Outcome,
    record::{Generation, Lock, Record, State},
    store::{Revision, Settlement, Store, Write},
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

/// An extension can move a lease from the lesser number to the greater, but not to the same number or back.
pub(super) async fn leases(store: &dyn Store) -> Verdict {
    for (less, greater) in RISING.map(|(less, greater)| (millis(less), millis(greater))) {
        let (key, lock) = (fresh_key()?, Lock { lease_until: less, ..first_lock()? });
        let before = Record::from(lock.clone());
        prepare(store, &key, &[Write::Claim(lock)]).await?;
        refused(store, &key, &extend(&before, less), Some(&before)).await?;
        let after = extended(&before, greater);
        applied(store, &key, &extend(&before, greater), &after).await?;
        for lease_until in [less, greater] {
            refused(store, &key, &extend(&before, lease_until), Some(&after)).await?;
        }
    }
    Ok(())
}

/// For each pair of numbers: if the record has one number, the store refuses every write that expects a version with
/// the other number.
pub(super) async fn versions(store: &dyn Store) -> Verdict {
    for (less, greater) in RISING {
        for (there, named) in [(less, greater), (greater, less)] {
            let generation = |number| move |lock| Lock { generation: Generation::new(number), ..lock };
            let acquired = |number| move |lock| Lock { lock_acquired_at: millis(number), ..lock };
            let lease = |number| move |lock| Lock { lease_until: millis(number), ..lock };
            // A reclaim doesn't check the time of the lock. A settlement and an extension check only the owner and the
            // generation.
            told_apart(store, generation(there), generation(named), |_| true).await?;
            told_apart(store, acquired(there), acquired(named), |write| {
                !matches!(write, Write::Reclaim { .. } | Write::Settle { .. } | Write::Extend { .. })
            })
            .await?;
            told_apart(store, lease(there), lease(named), |write| {
                !matches!(write, Write::Settle { .. } | Write::Extend { .. })
            })
            .await?;
        }
    }
    let expiry = |expires_at| move |lock| Lock { expires_at, ..lock };
    let names_expiry = |write: &Write| {
        matches!(write, Write::Reclaim { .. } | Write::Conclude { .. } | Write::Resolve { .. })
    };
    let one_before = LAST_SECOND.saturating_sub(Duration::from_secs(1));
    for (one, other) in [
        (Some(LAST_SECOND), Some(one_before)),
        // An absent expiry isn't equal to any time: neither to the last possible one nor to tomorrow.
        (None, Some(LAST_SECOND)),
        (None, Some(tomorrow())),
    ] {
        told_apart(store, expiry(one), expiry(other), names_expiry).await?;
        told_apart(store, expiry(other), expiry(one), names_expiry).await?;
    }
    // The reverse can't be tested: a record with this expiry would expire in 1970, so a sweeper would remove it before
    // the case reads it.
    told_apart(store, expiry(None), expiry(Some(millis(0))), names_expiry).await
}

/// An extension changes only the lease and the expiry. It keeps every other field, even at the limits of its values.
pub(super) async fn extension_keeps_the_rest(store: &dyn Store) -> Verdict {
    let millisecond = Duration::from_millis(1);
    for lock in edge_locks()? {
        // Makes room for the extension, because no lease can be later than the greatest number.
        let lock = Lock { lease_until: lock.lease_until.saturating_sub(millisecond), ..lock };
        let lease_until = lock.lease_until.saturating_add(millisecond);
        let (key, before) = (fresh_key()?, Record::from(lock.clone()));
        prepare(store, &key, &[Write::Claim(lock)]).await?;
        let after = extended(&before, lease_until);
        applied(store, &key, &extend(&before, lease_until), &after).await?;
        // From now on, only the extended version matches.
        refused(store, &key, &reclaim(&before)?, Some(&after)).await?;
        put_away(store, &key, &after).await?;
    }
    Ok(())
}

fn reclaim(record: &Record) -> Verdict<Write> {
    Ok(Write::Reclaim { seen: Revision::of(record), lock: second_lock()? })
}

/// Checks that the store refuses writes that expect another version than the stored one. `there` and `named` each
/// change a copy of the first lock. The stored record has the lock from `there`, and the writes expect the version of
/// the lock from `named`. `names` selects the kinds of writes to send.
async fn told_apart(
    store: &dyn Store,
    there: impl FnOnce(Lock) -> Lock,
    named: impl FnOnce(Lock) -> Lock,
    names: impl Fn(&Write) -> bool,
) -> Verdict {
    let (key, first) = (fresh_key()?, first_lock()?);
    let (lock, other) = (there(first.clone()), Record::from(named(first)));
    let current = Record::from(lock.clone());
    prepare(store, &key, &[Write::Claim(lock)]).await?;
    for write in writes_on(&other, &current)?.into_iter().filter(|write| names(write)) {
        refused(store, &key, &write, Some(&current)).await?;
    }
    put_away(store, &key, &current).await
}

/// Returns every kind of write that expects a version. The writes expect the version of `seen`. Nothing else in them
/// keeps the store from applying them to `current`.
fn writes_on(seen: &Record, current: &Record) -> Verdict<Vec<Write>> {
    let (lock, version) = (second_lock()?, Revision::of(seen));
    let later = current.lease_until().unwrap_or_default().saturating_add(Duration::from_millis(1));
    let release = Settlement::Release { expires_at: tomorrow(), interrupted: false };
    Ok(vec![
        Write::Reclaim { seen: version, lock: lock.clone() },
        Write::TakeOver { seen: version, lock: lock.clone() },
        settle(seen, release.clone()),
        extend(seen, later),
        Write::Conclude {
            seen: Some(version),
            record: Record { state: State::Completed(Outcome::Omitted), ..lock.clone().into() },
        },
        Write::Resolve { seen: version, owner: owner()?, generation: lock.generation, settlement: release },
    ])
}

/// The extension of `record`'s claim. It also changes the record's expiry, if there's one.
pub(super) fn extend(record: &Record, lease_until: Timestamp) -> Write {
    let (owner, generation) = (record.owner, record.generation);
    Write::Extend { owner, generation, lease_until, expires_at: other_expiry(record) }
}

/// The record after [`extend`].
pub(super) fn extended(record: &Record, lease_until: Timestamp) -> Record {
    Record { state: State::Started { lease_until }, expires_at: other_expiry(record), ..record.clone() }
}

/// Returns an expiry earlier than the record's. A later one may not exist, since the record may have the last possible
/// time. A record that never expires keeps `None`.
fn other_expiry(record: &Record) -> Option<Timestamp> {
    record.expires_at.map(|expires_at| expires_at.saturating_sub(Duration::from_secs(11)))
}

const fn millis(number: u64) -> Timestamp {
    Timestamp::from_millis(number)
}
