//! The records that a sweep deletes, and those that it leaves.

use std::time::Duration;

use lambda_idempotency::{
    store::{Lock, Record, Store as _, postgres::PostgresStore},
    time::Timestamp,
};
use testkit::puts;

use super::fixtures::{completion, finished, key, lock, make, now, server};

const HOUR: Duration = Duration::from_secs(3600);

async fn put(store: &PostgresStore, name: &str, expires_at: Timestamp) {
    let record = Record { expires_at: Some(expires_at), ..finished() };
    make(store, &key(name), &puts::conclude(None, record)).await;
}

#[tokio::test]
async fn sweeps_delete_oldest_records_in_batches() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let now = now();
    for (name, age) in [("oldest", 9), ("older", 8), ("old", 7)] {
        put(&store, name, now.saturating_sub(age * HOUR)).await;
    }
    put(&store, "an hour", now.saturating_sub(HOUR)).await;
    put(&store, "live", now.saturating_add(HOUR)).await;
    let mut claim = lock();
    claim.expires_at = Some(now.saturating_add(24 * HOUR));
    make(&store, &key("claim"), &puts::claim(claim)).await;

    assert_eq!(store.sweep(now, 2).await.unwrap(), 2);
    assert_eq!(store.read(&key("oldest")).await.unwrap(), None);
    assert_eq!(store.read(&key("older")).await.unwrap(), None);
    assert!(store.read(&key("old")).await.unwrap().is_some());
    assert_eq!(store.sweep(now, 2).await.unwrap(), 1);
    assert_eq!(store.sweep(now, 2).await.unwrap(), 0);
    for left in ["an hour", "live", "claim"] {
        assert!(store.read(&key(left)).await.unwrap().is_some(), "{left}");
    }
    assert_eq!(store.sweep(now, 0).await.unwrap(), 0);
}

/// An at-most-once claim stays until it's settled, however old it is.
#[tokio::test]
async fn sweeps_keep_records_without_expiry() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (now, end) = (now(), Timestamp::from_millis(u64::MAX));
    let lock = puts::lasting(Lock { lease_until: Timestamp::from_millis(1), ..lock() });
    make(&store, &key("unsettled"), &puts::claim(lock.clone())).await;
    put(&store, "old", now.saturating_sub(5 * HOUR)).await;
    assert_eq!(store.sweep(end, 1).await.unwrap(), 1);
    assert_eq!(store.sweep(end, 1).await.unwrap(), 0);
    assert_eq!(store.read(&key("unsettled")).await.unwrap(), Some(lock.clone().into()));
    // Once settled, it expires like any other record.
    make(&store, &key("unsettled"), &completion(&lock)).await;
    assert_eq!(store.sweep(end, 1).await.unwrap(), 1);
    assert_eq!(store.read(&key("unsettled")).await.unwrap(), None);
}

/// A sweep skips a record that another transaction has locked, and doesn't wait for it.
#[tokio::test]
async fn concurrent_sweeps_share_work_without_waiting() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (now, mut operator) = (now(), server.client().await);
    for count in 0..20 {
        put(&store, &format!("old {count}"), now.saturating_sub(5 * HOUR)).await;
    }
    let transaction = operator.transaction().await.unwrap();
    let one = format!("SELECT 1 FROM {} WHERE id = '{}' FOR UPDATE", store.table(), key("old 3"));
    transaction.batch_execute(&one).await.unwrap();
    let (one, other) = tokio::join!(store.sweep(now, 100), store.sweep(now, 100));
    assert_eq!(one.unwrap() + other.unwrap(), 19);
    transaction.rollback().await.unwrap();
    assert_eq!(store.sweep(now, 100).await.unwrap(), 1);
}

/// A sweep and a reclaim of the same record run concurrently. Either the sweep deletes the record and the reclaim is
/// refused, or the reclaim is applied and the sweep keeps the record.
#[tokio::test]
async fn sweeps_keep_concurrently_reclaimed_records() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let now = now();
    for round in 0..50 {
        let key = key(&format!("moved {round}"));
        let record = Record { expires_at: Some(now.saturating_sub(5 * HOUR)), ..finished() };
        let seen = record.clone();
        make(&store, &key, &puts::conclude(None, record)).await;
        let lock = lock();
        let reclaim = puts::reclaim(&seen, lock.clone());
        let (swept, written) = tokio::join!(store.sweep(now, 10), store.put(&key, &reclaim));
        let there = store.read(&key).await.unwrap();
        match (swept.unwrap(), written.unwrap()) {
            (0, lambda_idempotency::store::PutOutcome::Applied) => assert_eq!(there, Some(lock.into())),
            (1, lambda_idempotency::store::PutOutcome::Refused(None)) => assert_eq!(there, None),
            other => panic!("{other:?}, but the record is {there:?}"),
        }
    }
}
