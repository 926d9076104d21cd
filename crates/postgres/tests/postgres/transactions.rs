//! The record in a user's own transaction.

use std::time::{Duration, Instant};

use lambda_idempotency::store::{CallerTransactions as _, PutOutcome, Store as _, StoreErrorKind};
use testkit::puts;

use super::fixtures::{completion, finished, key, lock, make, server};

/// The record and the handler's work commit together, or neither does.
#[tokio::test]
async fn record_and_work_commit_atomically() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let mut client = server.client().await;
    let orders = format!("{}_orders", store.table());
    client.batch_execute(&format!("CREATE TABLE {orders} (n int)")).await.unwrap();
    let (key, record) = (key("together"), finished());
    let conclude = puts::conclude(None, record.clone());
    for commits in [false, true] {
        let transaction = client.transaction().await.unwrap();
        assert_eq!(store.lock_and_read_in(&transaction, &key).await.unwrap().0, None);
        transaction.batch_execute(&format!("INSERT INTO {orders} VALUES (1)")).await.unwrap();
        assert_eq!(
            store.put_in(&transaction, &key, &conclude, None).await.unwrap(),
            Some(PutOutcome::Applied)
        );
        assert_eq!(store.read(&key).await.unwrap(), None, "the record was visible before the commit");
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        assert_eq!(store.read(&key).await.unwrap(), commits.then(|| record.clone()));
        let count = format!("SELECT count(*) FROM {orders}");
        assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), i64::from(commits));
    }
    let transaction = client.transaction().await.unwrap();
    assert_eq!(store.lock_and_read_in(&transaction, &key).await.unwrap().0, Some(record.clone()));
    // A conclusion replaces the record only if the record hasn't changed since it was read.
    let next = finished();
    let replace = puts::conclude(Some(&record), next.clone());
    assert_eq!(store.put_in(&transaction, &key, &replace, None).await.unwrap(), Some(PutOutcome::Applied));
    assert_eq!(
        store.put_in(&transaction, &key, &replace, None).await.unwrap(),
        Some(PutOutcome::Refused(Some(next)))
    );
}

/// A duplicate neither waits for the running transaction nor sees its changes. The key is free once the
/// running transaction ends, whether by a commit, a rollback or a kill.
#[tokio::test]
async fn keys_are_busy_until_transactions_end() {
    let server = server!();
    let store = server.store(|builder| builder.lock_timeout(Duration::from_millis(400))).await;
    let (mut one, mut other) = (server.client().await, server.client().await);
    let key = key("busy");
    for end in ["commit", "rollback", "killed"] {
        let transaction = one.transaction().await.unwrap();
        let before = store.lock_and_read_in(&transaction, &key).await.unwrap().0;
        let record = finished();
        let conclude = puts::conclude(before.as_ref(), record.clone());
        assert_eq!(
            store.put_in(&transaction, &key, &conclude, None).await.unwrap(),
            Some(PutOutcome::Applied)
        );

        let began = Instant::now();
        let duplicate = other.transaction().await.unwrap();
        let busy = store.lock_and_read_in(&duplicate, &key).await.unwrap_err();
        assert_eq!((busy.kind(), busy.is_maybe_applied()), (StoreErrorKind::Conflict, false), "{busy}");
        assert!(duplicate.query_one("SELECT 1", &[]).await.is_ok(), "the refusal aborted the transaction");
        duplicate.rollback().await.unwrap();
        // If the duplicate waited for the lock, it would wait for a minute.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        // A claim outside any transaction waits for an uncommitted new row, and then fails with a conflict. If the key
        // has a committed row, the claim is refused with that row's record.
        let claim = store.put(&key, &puts::claim(lock())).await;
        match before {
            None => assert_eq!(claim.unwrap_err().kind(), StoreErrorKind::Conflict),
            Some(before) => assert_eq!(claim.unwrap(), PutOutcome::Refused(Some(before))),
        }

        match end {
            "commit" => transaction.commit().await.unwrap(),
            "rollback" => transaction.rollback().await.unwrap(),
            _ => {
                let pid: i32 = transaction.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
                let kill = format!("SELECT pg_terminate_backend({pid}, 60000)");
                other.batch_execute(&kill).await.unwrap();
                assert!(transaction.commit().await.is_err());
            }
        }
        let transaction = other.transaction().await.unwrap();
        let looked = store.lock_and_read_in(&transaction, &key).await.unwrap().0;
        if end == "commit" {
            assert_eq!(looked, Some(record));
        }
        transaction.rollback().await.unwrap();
    }
}

/// Two transactions conclude one key, and neither takes the advisory lock. The second waits for the row and is refused.
#[tokio::test]
async fn concurrent_conclusions_without_lock_have_one_winner() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (mut one, mut other) = (server.client().await, server.client().await);
    let (key, record) = (key("unlocked"), finished());
    let conclude = puts::conclude(None, record.clone());
    let first = one.transaction().await.unwrap();
    assert_eq!(store.put_in(&first, &key, &conclude, None).await.unwrap(), Some(PutOutcome::Applied));
    let second = other.transaction().await.unwrap();
    let late = puts::conclude(None, finished());
    let commit = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        first.commit().await.unwrap();
    };
    let (written, ()) = tokio::join!(store.put_in(&second, &key, &late, None), commit);
    assert_eq!(written.unwrap(), Some(PutOutcome::Refused(Some(record))));
}

#[tokio::test]
async fn conflict_on_old_snapshot_aborts_the_transaction() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let mut client = server.client().await;
    let (key, lock) = (key("snapshot"), lock());
    let level = lambda_idempotency::store::postgres::tokio_postgres::IsolationLevel::RepeatableRead;
    let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
    assert_eq!(store.lock_and_read_in(&transaction, &key).await.unwrap().0, None);
    // Another delivery claims and completes the key. It doesn't take the advisory lock.
    make(&store, &key, &puts::claim(lock.clone())).await;
    make(&store, &key, &completion(&lock)).await;
    let conclude = puts::conclude(None, finished());
    let error = store.put_in(&transaction, &key, &conclude, None).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Conflict, false), "{error:?}");
    let error = store.put_in(&transaction, &key, &conclude, None).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false));
    assert!(error.to_string().contains("roll the transaction back"), "{error}");
}

/// Many transactions run concurrently on the same keys, and some of them roll back. In the end, each key has one
/// effect and one record.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_transactions_have_one_effect() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let effects = format!("{}_effects", store.table());
    server.client().await.batch_execute(&format!("CREATE TABLE {effects} (key text)")).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..8_u32 {
        let (store, effects, mut client) = (store.clone(), effects.clone(), server.client().await);
        tasks.spawn(async move {
            for round in 0..40_u32 {
                let key = key(&format!("round {}", round / 2));
                let transaction = client.transaction().await.unwrap();
                let Ok((None, _)) = store.lock_and_read_in(&transaction, &key).await else {
                    transaction.rollback().await.unwrap();
                    continue;
                };
                let effect = format!("INSERT INTO {effects} VALUES ('{key}')");
                transaction.batch_execute(&effect).await.unwrap();
                let conclude = puts::conclude(None, finished());
                let written = store.put_in(&transaction, &key, &conclude, None).await.unwrap();
                // Of each worker's first tries of a key, a third roll back. No second try does, so each key gets an effect.
                let commits = round % 2 == 1 || (worker + round) % 3 != 0;
                if written == Some(PutOutcome::Applied) && commits {
                    transaction.commit().await.unwrap();
                } else {
                    transaction.rollback().await.unwrap();
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let client = server.client().await;
    let count = format!(
        "SELECT (SELECT count(*) FROM {effects}), (SELECT count(DISTINCT key) FROM {effects}), \
         (SELECT count(*) FROM {table} r JOIN {effects} e ON e.key = r.id), (SELECT count(*) FROM {table})",
        table = store.table()
    );
    let row = client.query_one(&count, &[]).await.unwrap();
    let counts: [i64; 4] = std::array::from_fn(|at| row.get(at));
    assert_eq!(counts, [20; 4], "effects, keys with an effect, records with an effect, records");
}
