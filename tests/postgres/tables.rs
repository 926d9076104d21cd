//! The table: creating and checking it, and schemas of another version.

use lambda_idempotency::{
    Store as _,
    store::{
        StoreErrorKind, Write,
        postgres::{PostgresStore, TableCreation, TableProblem},
    },
};

use super::fixtures::{fresh_table, key, lock, make, server};

#[tokio::test]
async fn tables_are_created_once_and_kept() {
    let server = server!();
    let store = PostgresStore::builder(server.url()).table(fresh_table()).build().unwrap();
    assert_eq!(store.check_table().await.unwrap(), [TableProblem::Missing]);
    let (one, other) = tokio::join!(store.create_table(), store.create_table());
    assert!([one.unwrap(), other.unwrap()].contains(&TableCreation::Created));
    make(&store, &key("made"), &Write::Claim(lock())).await;
    assert_eq!(store.create_table().await.unwrap(), TableCreation::AlreadyThere);
    assert!(store.read(&key("made")).await.unwrap().is_some());
    assert_eq!(store.check_table().await.unwrap(), []);
}

#[tokio::test]
async fn table_names_allow_schemas_and_capitals() {
    let server = server!();
    let schema = fresh_table();
    server.client().await.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    let store = PostgresStore::builder(server.url()).table(format!("{schema}.Records")).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("schema"), &Write::Claim(lock())).await;
    assert_eq!(store.check_table().await.unwrap(), []);
}

/// The shipped file alone creates the table.
#[tokio::test]
async fn the_schema_file_runs_unchanged() {
    let server = server!();
    let client = server.client().await;
    let database = fresh_table();
    client.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let store = PostgresStore::builder(server.url().replace("/postgres", &format!("/{database}")));
    let store = store.build().unwrap();
    assert_eq!(store.schema_sql(), include_str!("../../src/store/postgres/schema.sql"));
    assert_eq!(store.create_table().await.unwrap(), TableCreation::Created);
    assert_eq!(store.check_table().await.unwrap(), []);
}

#[tokio::test]
async fn table_problems_are_reported() {
    let server = server!();
    let (store, client) = (server.store(|builder| builder).await, server.client().await);
    let table = store.table();
    client.batch_execute(&format!("DROP INDEX {table}_expires_at")).await.unwrap();
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
    let store = PostgresStore::builder(url).table(&table).build().unwrap();
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
    for (version, says) in [(1, "recreate both with `idempotency table create`"), (3, "update the library")] {
        client.batch_execute(&format!("UPDATE {table}_schema SET version = {version}")).await.unwrap();
        let store = PostgresStore::builder(server.url()).table(&table).build().unwrap();
        let mut errors = vec![
            store.apply(&key("version"), &Write::Claim(lock())).await.unwrap_err(),
            store.read(&key("version")).await.unwrap_err(),
            store.create_table().await.unwrap_err(),
        ];
        let mut other = server.client().await;
        let transaction = other.transaction().await.unwrap();
        errors.push(store.in_transaction(&transaction).lock_and_read(&key("version")).await.unwrap_err());
        for error in errors {
            assert_eq!(error.kind(), StoreErrorKind::Rejected);
            assert!(!error.is_maybe_applied());
            assert!(error.to_string().contains(says), "{error}");
        }
        let expected = [TableProblem::Schema { found: version, needed: 2 }];
        assert_eq!(store.check_table().await.unwrap(), expected);
    }
    client.batch_execute(&format!("UPDATE {table}_schema SET version = 2")).await.unwrap();
    assert_eq!(made.read(&key("version")).await.unwrap(), None);
}

/// Running `schema.sql` on a version 1 table must not mark it as version 2.
#[tokio::test]
async fn an_older_table_keeps_its_version_mark() {
    let server = server!();
    let (made, client) = (server.store(|builder| builder).await, server.client().await);
    let table = made.table();
    let older = format!(
        "ALTER TABLE {table} DROP interrupted, DROP trace_id, DROP response_codec, DROP response_key_id, \
         ALTER expires_at SET NOT NULL; UPDATE {table}_schema SET version = 1"
    );
    client.batch_execute(&older).await.unwrap();
    client.batch_execute(&made.schema_sql()).await.unwrap();
    let store = PostgresStore::builder(server.url()).table(&table).build().unwrap();
    let error = store.create_table().await.unwrap_err();
    assert!(error.to_string().contains("its schema has version 1"), "{error}");
    client.batch_execute(&format!("DROP TABLE {table}, {table}_schema")).await.unwrap();
    assert_eq!(store.create_table().await.unwrap(), TableCreation::Created);
    make(&store, &key("recreated"), &Write::Claim(lock())).await;
}

/// The version mark doesn't show whether a column is missing.
#[tokio::test]
async fn tables_missing_a_column_are_refused() {
    let server = server!();
    let (store, client) = (server.store(|builder| builder).await, server.client().await);
    let table = store.table();
    make(&store, &key("column"), &Write::Claim(lock())).await;
    client.batch_execute(&format!("ALTER TABLE {table} DROP COLUMN response")).await.unwrap();
    let fresh = PostgresStore::builder(server.url()).table(&table).build().unwrap();
    for store in [&store, &fresh] {
        let error = store.apply(&key("column"), &Write::Claim(lock())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false), "{error:?}");
        assert!(error.to_string().contains("idempotency table check"), "{error}");
    }
}
