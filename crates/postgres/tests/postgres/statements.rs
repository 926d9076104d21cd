//! The number of statements and round trips of each call, and what a call leaves in the table and in the session.

use lambda_idempotency::store::{
    CallerTransactions as _, PutOutcome, Store as _, StoreBuilder, postgres::PostgresStore,
};
use testkit::puts;

use super::{
    fixtures::{Server, completion, fresh_table, key, lock, make, patient, server},
    wire::Wire,
};

/// Counts the statements and round trips of a first run, a duplicate and a read.
async fn counted(server: &Server, configure: fn(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>) {
    let wire = Wire::to(server.port()).await;
    let builder = patient(PostgresStore::builder(server.url_at(wire.port()))).table(fresh_table());
    let store = configure(builder.connections(1)).build().unwrap();
    store.create_table().await.unwrap();
    let operator = server.client().await;
    operator.batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await.ok();
    let run = async |name: &str| {
        let (key, lock) = (key(name), lock());
        make(&store, &key, &puts::claim(lock.clone())).await;
        make(&store, &key, &completion(&lock)).await;
    };
    let duplicate = async |name: &str| {
        let written = store.put(&key(name), &puts::claim(lock())).await.unwrap();
        assert!(matches!(written, PutOutcome::Refused(Some(_))));
    };
    // The server counts all statements that it executes. The wire counts the round trips since the last check.
    let statements = async || {
        let table = store.table();
        let count = format!(
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements \
             WHERE query LIKE '%{table}%' AND query NOT LIKE '%pg_stat%'"
        );
        operator.query_one(&count, &[]).await.unwrap().get::<_, i64>(0)
    };
    run("warm").await;
    store.read(&key("warm")).await.unwrap();
    let before = statements().await;
    wire.requests();
    run("first").await;
    assert_eq!((statements().await - before, wire.requests()), (2, 2), "a first run");
    duplicate("first").await;
    assert_eq!((statements().await - before, wire.requests()), (3, 1), "a duplicate");
    store.read(&key("first")).await.unwrap();
    assert_eq!((statements().await - before, wire.requests()), (4, 1), "a read");
    assert_eq!(wire.connections(), 1);
}

#[tokio::test]
async fn first_runs_take_two_statements_duplicates_one() {
    let server = server!();
    counted(server, |builder| builder).await;
    counted(server, |builder| builder.prepared_statements(false)).await;
}

/// The store reads the existing record for a duplicate, and writes nothing.
#[tokio::test]
async fn a_duplicate_writes_nothing() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (key, lock, operator) = (key("quiet"), lock(), server.client().await);
    make(&store, &key, &puts::claim(lock.clone())).await;
    make(&store, &key, &completion(&lock)).await;
    let version = format!("SELECT xmin::text || ctid::text || xmax::text FROM {}", store.table());
    let before: String = operator.query_one(&version, &[]).await.unwrap().get(0);
    for _ in 0..10 {
        let written = store.put(&key, &puts::claim(super::fixtures::lock())).await.unwrap();
        assert!(matches!(written, PutOutcome::Refused(Some(_))));
    }
    assert_eq!(operator.query_one(&version, &[]).await.unwrap().get::<_, String>(0), before);
    let dead = format!("SELECT count(*) FROM heap_page_items(get_raw_page('{}', 0))", store.table());
    operator.batch_execute("CREATE EXTENSION IF NOT EXISTS pageinspect").await.ok();
    // One row version from the claim, one from the completion.
    assert_eq!(operator.query_one(&dead, &[]).await.unwrap().get::<_, i64>(0), 2);
}

/// In a user's transaction, the store sets `lock_timeout` for its own statement, and then restores the user's value.
#[tokio::test]
async fn the_session_keeps_its_own_lock_timeout() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let mut client = server.client().await;
    client.batch_execute("SET lock_timeout = '7s'").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let lock = lock();
    let written = store.put_in(&transaction, &key("timeout"), &puts::claim(lock.clone()), None).await;
    assert_eq!(written.unwrap(), Some(PutOutcome::Applied));
    let shown = async |client: &lambda_idempotency::store::postgres::tokio_postgres::Transaction<'_>| {
        client.query_one("SHOW lock_timeout", &[]).await.unwrap().get::<_, String>(0)
    };
    assert_eq!(shown(&transaction).await, "7s");
    let written = store.put_in(&transaction, &key("timeout"), &puts::claim(lock), None).await;
    assert!(matches!(written.unwrap(), Some(PutOutcome::Refused(Some(_)))));
    assert_eq!(shown(&transaction).await, "7s");
}
