//! Sessions whose search path leads to another schema. The store looks a table's name up once, by the default path, and
//! names its schema from then on.

use lambda_idempotency::store::{
    CallerTransactions as _, PutOutcome, Store as _, StoreErrorKind, TableProblem,
    postgres::{PostgresStore, tokio_postgres},
};
use testkit::pgbouncer::PgBouncer;
use testkit::puts;

use super::fixtures::{Server, completion, finished, fresh_table, key, later, lock, make, patient, server};

/// Creates a schema. With `table`, it has a table of this name.
async fn schema(server: &Server, table: Option<&str>) -> String {
    let schema = fresh_table();
    server.client().await.batch_execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    if let Some(table) = table {
        let other = patient(PostgresStore::builder(server.url())).table(format!("{schema}.{table}"));
        other.build().unwrap().create_table().await.unwrap();
    }
    schema
}

/// A store behind `pooler`, and another client of the pooler's only session.
async fn behind(server: &Server, pooler: &PgBouncer, table: &str) -> (PostgresStore, tokio_postgres::Client) {
    let url = server.url_at(pooler.port());
    let store = PostgresStore::builder(format!("{url}?timeouts=transaction&table={table}"));
    let (other, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    (patient(store).build().unwrap(), other)
}

/// Counts the rows of `table`.
async fn rows(server: &Server, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    server.client().await.query_one(&count, &[]).await.unwrap().get(0)
}

/// Another client of the pooler leaves its own path in the session. The path leads to a table of the same name, to none,
/// or to a temporary table.
#[tokio::test]
async fn leftover_paths_lead_to_no_other_table() {
    let server = server!();
    let table = server.store(|builder| builder).await.table();
    let (with, without) = (schema(server, Some(&table)).await, schema(server, None).await);
    for (leaves, first) in [
        (format!("SET search_path = {with}"), false),
        (format!("SET search_path = {with}"), true),
        (format!("SET search_path = {without}"), false),
        (format!("SET search_path = {without}"), true),
        (format!("CREATE TEMP TABLE {table} (LIKE public.{table}); SET search_path = public"), true),
        (format!("CREATE TEMP TABLE {table} (LIKE public.{table}); SET search_path = pg_temp, public"), true),
    ] {
        let Some(pooler) = PgBouncer::before(server, 1, "") else { return };
        let (store, other) = behind(server, &pooler, &table).await;
        let (key, lock, before) = (key(&format!("{leaves} {first}")), lock(), rows(server, &table).await);
        if first {
            other.batch_execute(&leaves).await.unwrap();
        }
        make(&store, &key, &puts::claim(lock.clone())).await;
        other.batch_execute(&leaves.replace("TEMP TABLE", "TEMP TABLE IF NOT EXISTS")).await.unwrap();
        let again = store.put(&key, &puts::claim(super::fixtures::lock())).await.unwrap();
        assert_eq!(again, PutOutcome::Refused(Some(lock.clone().into())), "{leaves}");
        make(&store, &key, &completion(&lock)).await;
        assert!(store.read(&key).await.unwrap().is_some());
        assert!(store.look(&key).await.unwrap().is_some());
        assert!(!store.scan(None).await.unwrap().records.is_empty(), "{leaves}");
        store.sweep(later(0), 10).await.unwrap();
        assert_eq!(store.check_table().await.unwrap(), [], "{leaves}");
        assert!(!store.create_table().await.unwrap(), "{leaves}");
        assert_eq!(rows(server, &table).await, before + 1, "{leaves}");
        assert_eq!(rows(server, &format!("{with}.{table}")).await, 0, "{leaves}");
        // The other client's path is as it was.
        let shown = other.simple_query("SHOW search_path").await.unwrap();
        let is_default = format!("{shown:?}").contains("$user");
        assert!(!is_default, "{leaves}: {shown:?}");
    }
}

/// The record goes into the store's table, and the transaction keeps its path.
#[tokio::test]
async fn users_transactions_keep_their_path() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let table = store.table();
    let with = schema(server, Some(&table)).await;
    let mut client = server.client().await;
    client.batch_execute(&format!("SET search_path = {with}")).await.unwrap();
    let (key, record) = (key("transaction"), finished());
    let transaction = client.transaction().await.unwrap();
    assert_eq!(store.lock_and_read_in(&transaction, &key).await.unwrap().0, None);
    transaction.batch_execute("SET LOCAL search_path = pg_catalog").await.unwrap();
    let conclude = puts::conclude(None, record.clone());
    assert_eq!(store.put_in(&transaction, &key, &conclude, None).await.unwrap(), Some(PutOutcome::Applied));
    let path: String = transaction.query_one("SHOW search_path", &[]).await.unwrap().get(0);
    assert_eq!(path, "pg_catalog");
    transaction.commit().await.unwrap();
    assert_eq!(client.query_one("SHOW search_path", &[]).await.unwrap().get::<_, String>(0), with);
    assert_eq!(store.read(&key).await.unwrap(), Some(record));
    assert_eq!(rows(server, &format!("{with}.{table}")).await, 0);
}

/// A store whose default path is `path`.
fn along(server: &Server, path: &str, table: &str, parameters: &str) -> PostgresStore {
    let encoded: String = format!("-csearch_path={}", path.replace(' ', ""))
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    let url = format!("{}?table={table}&options={encoded}{parameters}", server.url());
    patient(PostgresStore::builder(url)).build().unwrap()
}

#[tokio::test]
async fn moved_tables_are_found_again() {
    let server = server!();
    let (one, other, table) = (schema(server, None).await, schema(server, None).await, fresh_table());
    for parameters in ["", "&prepared=true"] {
        let store = along(server, &format!("{one},{other}"), &table, parameters);
        let error = store.read(&key("moved")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains("SCHEMA.TABLE"), "{error}");
        assert_eq!(store.check_table().await.unwrap(), [TableProblem::Missing]);
        assert!(store.create_table().await.unwrap());
        assert_eq!(rows(server, &format!("{one}.{table}")).await, 0);
        let moved = lock();
        make(&store, &key("moved"), &puts::claim(moved.clone())).await;
        let both = |to: &str, from: &str| {
            format!(
                "ALTER TABLE {from}.{table} SET SCHEMA {to}; ALTER TABLE {from}.{table}_schema SET SCHEMA {to}"
            )
        };
        server.client().await.batch_execute(&both(&other, &one)).await.unwrap();
        let again = store.put(&key("moved"), &puts::claim(lock())).await.unwrap();
        assert_eq!(again, PutOutcome::Refused(Some(moved.clone().into())));
        // The statement that checks a new connection finds no table.
        let fresh = store.clone();
        server.client().await.batch_execute(&both(&one, &other)).await.unwrap();
        assert_eq!(fresh.read(&key("moved")).await.unwrap(), Some(moved.into()));
        let dropped = format!("DROP TABLE {one}.{table}, {one}.{table}_schema");
        server.client().await.batch_execute(&dropped).await.unwrap();
        assert_eq!(store.read(&key("moved")).await.unwrap_err().kind(), StoreErrorKind::Rejected);
    }
}

#[tokio::test]
async fn schemas_of_any_name_work() {
    let server = server!();
    let odd = format!("We\"i'rd.$$ {}", fresh_table());
    let quoted = format!("\"{}\"", odd.replace('"', "\"\""));
    server.client().await.batch_execute(&format!("CREATE SCHEMA {quoted}")).await.unwrap();
    let role = fresh_table();
    let sql = format!(
        "CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'correct-horse'; ALTER ROLE {role} SET search_path = {quoted}"
    );
    server.client().await.batch_execute(&sql).await.unwrap();
    let url = server.url().replace("://test:", &format!("://{role}:"));
    let store = patient(PostgresStore::builder(url)).table("idempotency").build().unwrap();
    assert!(store.create_table().await.unwrap());
    assert!(!store.create_table().await.unwrap());
    assert_eq!(store.check_table().await.unwrap(), []);
    make(&store, &key("odd"), &puts::claim(lock())).await;
    assert!(store.look(&key("odd")).await.unwrap().is_some());
    assert_eq!(store.sweep(later(0), 10).await.unwrap(), 0);
    assert_eq!(rows(server, &format!("{quoted}.idempotency")).await, 1);
}
