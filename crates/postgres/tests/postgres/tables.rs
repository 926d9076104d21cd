//! The table: creating and checking it, and schemas of another version.

use std::time::Duration;

use lambda_idempotency::{
    store::{
        CallerTransactions as _, Lock, Store as _, StoreErrorKind, TableProblem, postgres::PostgresStore,
    },
    time::Timestamp,
};
use testkit::puts::{self, Settlement};

use super::fixtures::{fresh_table, key, later, lock, make, outcome, patient, server};

#[tokio::test]
async fn tables_are_created_once_and_kept() {
    let server = server!();
    let store = patient(PostgresStore::builder(server.url())).table(fresh_table()).build().unwrap();
    assert_eq!(store.check_table().await.unwrap(), [TableProblem::Missing]);
    let (one, other) = tokio::join!(store.create_table(), store.create_table());
    assert!(one.unwrap() || other.unwrap());
    make(&store, &key("made"), &puts::claim(lock())).await;
    assert!(!store.create_table().await.unwrap());
    assert!(store.read(&key("made")).await.unwrap().is_some());
    assert_eq!(store.check_table().await.unwrap(), []);
}

/// The server may still create the table after the store stopped waiting.
#[tokio::test]
async fn an_unanswered_creation_is_ambiguous() {
    let server = server!();
    let (table, mut other) = (fresh_table(), server.client().await);
    // A busy machine may pause a process for almost six seconds.
    let patience = Duration::from_secs(6);
    let store = patient(PostgresStore::builder(server.url())).table(&table).statement_timeout(patience);
    let store = store.lock_timeout(Duration::from_millis(300)).build().unwrap();
    let blocks = other.transaction().await.unwrap();
    blocks.batch_execute(&format!("CREATE TABLE {table} (id text)")).await.unwrap();
    let error = store.create_table().await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, true), "{error:?}");
    assert!(
        error.to_string().ends_with("the table may have been created, so repeat the creation"),
        "{error}"
    );
    blocks.rollback().await.unwrap();
    store.create_table().await.unwrap();
    assert_eq!(store.check_table().await.unwrap(), []);
}

#[tokio::test]
async fn table_names_allow_schemas_and_capitals() {
    let server = server!();
    let schema = fresh_table();
    server.client().await.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    let store =
        patient(PostgresStore::builder(server.url())).table(format!("{schema}.Records")).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("schema"), &puts::claim(lock())).await;
    assert_eq!(store.check_table().await.unwrap(), []);
}

/// The shipped `schema.sql` creates the table, without any change to the file.
#[tokio::test]
async fn the_schema_file_runs_unchanged() {
    let server = server!();
    let client = server.client().await;
    let database = fresh_table();
    client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let store = PostgresStore::builder(server.url().replace("/postgres", &format!("/{database}")));
    let store = patient(store).build().unwrap();
    assert_eq!(store.schema_sql(), include_str!("../../src/schema.sql"));
    assert!(store.create_table().await.unwrap());
    assert_eq!(store.check_table().await.unwrap(), []);
}

#[tokio::test]
async fn table_problems_are_reported() {
    let server = server!();
    let (store, client) = (server.store(|builder| builder).await, server.client().await);
    let table = store.table();
    client.batch_execute(&format!("DROP INDEX {table}_sweep_hour")).await.unwrap();
    assert_eq!(store.check_table().await.unwrap(), [TableProblem::NoIndex]);
    client.batch_execute(&format!("ALTER TABLE {table} SET UNLOGGED")).await.unwrap();
    assert_eq!(store.check_table().await.unwrap(), [TableProblem::Unlogged, TableProblem::NoIndex]);

    let role = fresh_table();
    let create = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'correct-horse'; GRANT SELECT ON {table}_schema TO {role}; \
                          GRANT SELECT, DELETE ON {table} TO {role}; ALTER ROLE {role} SET synchronous_commit = off"
    );
    client.batch_execute(&create).await.unwrap();
    let url = server.url().replace("://test:", &format!("://{role}:"));
    let store = patient(PostgresStore::builder(url)).table(&table).build().unwrap();
    let problems = store.check_table().await.unwrap();
    let missing = vec!["INSERT".to_owned(), "UPDATE".to_owned()];
    let expected = [
        TableProblem::Privileges { missing },
        TableProblem::Unlogged,
        TableProblem::NoIndex,
        TableProblem::AsynchronousCommit,
    ];
    assert_eq!(problems, expected);
    let notes: Vec<_> = problems.iter().map(TableProblem::is_note).collect();
    assert_eq!(notes, [false, false, true, true]);
    assert_eq!(problems[0].to_string(), "the user lacks INSERT, UPDATE; grant it");
}

/// With another schema version the store neither reads nor writes, and its error says what to do.
#[tokio::test]
async fn other_schema_versions_are_refused() {
    let server = server!();
    let (made, client) = (server.store(|builder| builder).await, server.client().await);
    let table = made.table();
    for (version, says) in [(2, "recreate both with `idempotency table create`"), (4, "update the library")] {
        client.batch_execute(&format!("UPDATE {table}_schema SET version = {version}")).await.unwrap();
        let store = patient(PostgresStore::builder(server.url())).table(&table).build().unwrap();
        let mut errors = vec![
            store.put(&key("version"), &puts::claim(lock())).await.unwrap_err(),
            store.read(&key("version")).await.unwrap_err(),
            store.create_table().await.unwrap_err(),
        ];
        let mut other = server.client().await;
        let transaction = other.transaction().await.unwrap();
        errors.push(store.lock_and_read_in(&transaction, &key("version")).await.unwrap_err());
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Rejected);
            assert!(!error.is_maybe_applied());
            assert!(error.to_string().contains(says), "{error}");
        }
        let expected = [TableProblem::Schema { found: version, needed: 3 }];
        assert_eq!(store.check_table().await.unwrap(), expected);
    }
    client.batch_execute(&format!("UPDATE {table}_schema SET version = 3")).await.unwrap();
    assert_eq!(made.read(&key("version")).await.unwrap(), None);
}

/// Most settlements change no indexed column. So PostgreSQL updates the row within its page, and leaves the indexes
/// alone (a HOT update).
#[tokio::test]
async fn settlements_update_no_index() {
    let server = server!();
    let (store, client) = (server.store(|builder| builder).await, server.client().await);
    // The index contains only the hour of the expiry. All expiries in this test are in the same hour, so no update
    // changes the index.
    let middle = later(86_400).as_millis() / 3_600_000 * 3_600_000 + 1_800_000;
    let expiry = |seconds: u64| Timestamp::from_millis(middle + seconds * 1000);
    // All versions of five rows fit into one page, so no update has to write to another page.
    for round in 0..5 {
        let (key, lock) = (key(&format!("hot {round}")), Lock { expires_at: Some(expiry(60)), ..lock() });
        let extension = puts::extend(&lock, later(120), Some(expiry(120)));
        let settlement = Settlement::Complete(outcome(b"the response"), expiry(1));
        make(&store, &key, &puts::claim(lock.clone())).await;
        make(&store, &key, &extension).await;
        make(&store, &key, &puts::settle(&lock, settlement)).await;
    }
    let count = format!(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{}'::regclass",
        store.table()
    );
    // The server updates a session's counters when the session ends, or up to ten seconds late.
    drop(store);
    for _ in 0..600 {
        let row = client.query_one(&count, &[]).await.unwrap();
        if row.get::<_, i64>("n_tup_upd") == 10 {
            assert_eq!(row.get::<_, i64>("n_tup_hot_upd"), 10);
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the server never counted the updates");
}

/// Running `schema.sql` on a version 2 table must not mark it as version 3.
#[tokio::test]
async fn an_older_table_keeps_its_version_mark() {
    let server = server!();
    let (made, client) = (server.store(|builder| builder).await, server.client().await);
    let table = made.table();
    let older = format!(
        "ALTER TABLE {table} DROP execution, DROP mark, DROP trace; UPDATE {table}_schema SET version = 2"
    );
    client.batch_execute(&older).await.unwrap();
    client.batch_execute(&made.schema_sql()).await.unwrap();
    let store = patient(PostgresStore::builder(server.url())).table(&table).build().unwrap();
    let error = store.create_table().await.unwrap_err();
    assert!(error.to_string().contains("its schema has version 2"), "{error}");
    client.batch_execute(&format!("DROP TABLE {table}, {table}_schema")).await.unwrap();
    assert!(store.create_table().await.unwrap());
    make(&store, &key("recreated"), &puts::claim(lock())).await;
}

/// The version mark doesn't show whether a column is missing.
#[tokio::test]
async fn tables_missing_a_column_are_refused() {
    let server = server!();
    let (store, client) = (server.store(|builder| builder).await, server.client().await);
    let table = store.table();
    make(&store, &key("column"), &puts::claim(lock())).await;
    client.batch_execute(&format!("ALTER TABLE {table} DROP COLUMN response")).await.unwrap();
    let fresh = patient(PostgresStore::builder(server.url())).table(&table).build().unwrap();
    for store in [&store, &fresh] {
        let error = store.put(&key("column"), &puts::claim(lock())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false), "{error:?}");
        assert!(error.to_string().contains("idempotency table check"), "{error}");
    }
}
