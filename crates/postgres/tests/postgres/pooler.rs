//! The store behind PgBouncer in transaction mode, which runs each transaction in any free session.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::Duration,
};

use lambda_idempotency::{
    store::{
        PutOutcome, Store as _, StoreErrorKind,
        postgres::{
            PostgresStore,
            tokio_postgres::{self, SimpleQueryMessage},
        },
    },
    time::{Clock as _, Timestamp, system_clock},
};
use testkit::puts;

use super::fixtures::{Server, fresh_table, key, lock, make, patient, server};
use testkit::pgbouncer::PgBouncer;

/// The environment variable with the store's URL for a process that the test starts. The URL names the process's table.
const URL: &str = "POOLED_STORE";
/// The variable with the time at which both processes begin their claims.
const BEGINS: &str = "POOLED_BEGINS";
const CLAIMS: usize = 300;
/// The statement timeout. It's this long because a busy machine may pause a process for almost as long.
const STATEMENT: Duration = Duration::from_secs(8);

/// Makes the claims of one process. `pooled_processes_write_only_their_own_tables` starts two such processes.
#[tokio::test]
#[ignore = "another test runs this one in two processes at once"]
async fn claims_in_its_own_process() {
    let (Ok(url), Ok(begins)) = (env::var(URL), env::var(BEGINS)) else { return };
    let store = patient(PostgresStore::builder(url)).build().unwrap();
    let begins = Timestamp::from_millis(begins.parse().unwrap());
    tokio::time::sleep(system_clock().now().until(begins)).await;
    for n in 0..CLAIMS {
        make(&store, &key(&format!("{} {n}", store.table())), &puts::claim(lock())).await;
    }
}

fn process(url: &str, begins: Timestamp) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "pooler::claims_in_its_own_process", "--ignored", "--nocapture"])
        .env(URL, url)
        .env(BEGINS, begins.as_millis().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Counts the rows of `table`.
async fn rows(server: &Server, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM {table}");
    server.client().await.query_one(&count, &[]).await.unwrap().get(0)
}

/// Two processes share the pooler's sessions, and each has its own table. If they prepared statements, both would name
/// them s0, s1, …, so each could run the other's statements.
#[tokio::test]
async fn pooled_processes_write_only_their_own_tables() {
    let server = server!();
    let Some(pooler) = PgBouncer::before(server, 2, "") else { return };
    let tables = [fresh_table(), fresh_table()];
    let (mut processes, begins) = (Vec::new(), system_clock().now().saturating_add(Duration::from_secs(1)));
    for table in &tables {
        let store = patient(PostgresStore::builder(server.url())).table(table).build().unwrap();
        store.create_table().await.unwrap();
        processes.push(process(
            &format!("{}?timeouts=transaction&table={table}", server.url_at(pooler.port())),
            begins,
        ));
    }
    let ended: Vec<bool> = processes.iter_mut().map(|process| process.wait().unwrap().success()).collect();
    let found = [rows(server, &tables[0]).await, rows(server, &tables[1]).await];
    assert_eq!((found, ended), ([CLAIMS as i64; 2], vec![true; 2]), "rows in each table, and successes");
}

/// Creates a store that connects through `pooler`. The store's URL has this user and these parameters.
fn behind(server: &Server, pooler: &PgBouncer, user: &str, table: &str, parameters: &str) -> PostgresStore {
    let url = server.url_at(pooler.port()).replace("://test:", &format!("://{user}:"));
    let builder = patient(PostgresStore::builder(format!("{url}?table={table}&{parameters}")));
    builder.statement_timeout(STATEMENT).lock_timeout(Duration::from_millis(250)).build().unwrap()
}

/// A pooler may run each transaction in another session, which hasn't prepared the statement. So the store refuses
/// `prepared=true` before it prepares a statement.
#[tokio::test]
async fn prepared_statements_behind_a_pooler_are_refused() {
    let server = server!();
    let Some(pooler) = PgBouncer::before(server, 1, "") else { return };
    let table = server.store(|builder| builder).await.table();
    for timeouts in ["transaction", "role"] {
        let parameters = format!("timeouts={timeouts}&prepared=true");
        server.client().await.batch_execute(LIMITED).await.unwrap();
        let store = behind(server, &pooler, "limited", &table, &parameters);
        for _ in 0..3 {
            let error = store.put(&key("refused"), &puts::claim(lock())).await.unwrap_err();
            assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false));
            assert!(error.to_string().contains("leave out `prepared=true`"), "{error:?}");
        }
    }
    assert_eq!(rows(server, &table).await, 0);
    let direct = PostgresStore::builder(format!("{}?table={table}&prepared=true", server.url()));
    let direct = patient(direct).build().unwrap();
    make(&direct, &key("direct"), &puts::claim(lock())).await;
}

/// Creates the role `limited`, with the timeouts that `?timeouts=role` needs. Several tests run these statements, and
/// PostgreSQL rejects concurrent changes of a role. So the statements form one transaction, which first takes a lock.
const LIMITED: &str = "SELECT pg_advisory_xact_lock(1); \
    DO $$ BEGIN CREATE ROLE limited SUPERUSER LOGIN PASSWORD 'correct-horse'; \
    EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$; \
    ALTER ROLE limited SET statement_timeout = '6s'; ALTER ROLE limited SET lock_timeout = '250ms'";

/// The sessions lack the limits, because the pooler refuses or drops startup options, or because the role has no
/// limits. The error names the parameter to add.
#[tokio::test]
async fn missing_limits_are_refused_with_a_fix() {
    let server = server!();
    let table = server.store(|builder| builder).await.table();
    server.client().await.batch_execute(LIMITED).await.unwrap();
    for (configuration, user, parameters, is_fit) in [
        // The first pooler refuses startup options. The second drops them.
        ("", "test", "timeouts=startup", false),
        ("ignore_startup_parameters = options", "test", "timeouts=startup", false),
        ("", "test", "timeouts=role", false),
        ("", "limited", "timeouts=role", true),
        ("", "test", "timeouts=transaction", true),
    ] {
        let Some(pooler) = PgBouncer::before(server, 2, configuration) else { return };
        let store = behind(server, &pooler, user, &table, parameters);
        let key = key(&format!("{configuration} {user} {parameters}"));
        let written = store.put(&key, &puts::claim(lock())).await;
        if is_fit {
            assert_eq!(written.unwrap(), PutOutcome::Applied);
            continue;
        }
        let error = written.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Rejected, false), "{error:?}");
        assert!(error.to_string().contains("timeouts=transaction"), "{error}");
        assert_eq!(PostgresStore::read(&store, &key).await.unwrap_err().kind(), StoreErrorKind::Rejected);
    }
}

/// After the store's transaction, another client's transaction may run in the same session. It must get the session's
/// own timeouts.
#[tokio::test]
async fn limits_do_not_leak_into_pooled_sessions() {
    let server = server!();
    let Some(pooler) = PgBouncer::before(server, 1, "") else { return };
    let table = server.store(|builder| builder).await.table();
    let store = behind(server, &pooler, "test", &table, "timeouts=transaction");
    make(&store, &key("leak"), &puts::claim(lock())).await;
    let other = tokio_postgres::connect(&server.url_at(pooler.port()), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(other.1);
    let shown = other
        .0
        .simple_query("SELECT current_setting('statement_timeout') || current_setting('lock_timeout')");
    let shown = shown.await.unwrap();
    // Both timeouts are 0, which means no limit.
    let is_none = |message: &SimpleQueryMessage| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("00"));
    assert!(shown.iter().any(is_none), "{shown:?}");
}

/// A claim waits for a table lock behind a pooler. When the store gives up, the statement ends at the server too.
#[tokio::test]
async fn abandoned_pooled_claims_are_not_applied() {
    let server = server!();
    let Some(pooler) = PgBouncer::before(server, 2, "") else { return };
    let table = server.store(|builder| builder).await.table();
    server.client().await.batch_execute(LIMITED).await.unwrap();
    for (user, timeouts) in [("test", "transaction"), ("limited", "role")] {
        let store = behind(server, &pooler, user, &table, &format!("timeouts={timeouts}"));
        make(&store, &key(user), &puts::claim(lock())).await;
        let operator = server.client().await;
        operator.batch_execute(&format!("BEGIN; LOCK TABLE {table}")).await.unwrap();
        let late = key(&format!("late {user}"));
        assert!(store.put(&late, &puts::claim(lock())).await.is_err());
        tokio::time::sleep(Duration::from_secs(2)).await;
        operator.batch_execute("COMMIT").await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(store.read(&late).await.unwrap(), None, "{timeouts}");
    }
}

/// All of the pooler's sessions are busy, so the pooler queues the claim. When the store gives up and disconnects, the
/// pooler drops the claim.
#[tokio::test]
async fn abandoned_queued_claims_are_not_applied() {
    let server = server!();
    let Some(pooler) = PgBouncer::before(server, 1, "") else { return };
    let table = server.store(|builder| builder).await.table();
    server.client().await.batch_execute(LIMITED).await.unwrap();
    let abandoned = async |user: &str, timeouts: &str| {
        let store = behind(server, &pooler, user, &table, &format!("timeouts={timeouts}"));
        make(&store, &key(user), &puts::claim(lock())).await;
        let url = server.url_at(pooler.port()).replace("://test:", &format!("://{user}:"));
        let (holder, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        holder.batch_execute("BEGIN").await.unwrap();
        let late = key(&format!("queued {user}"));
        assert!(store.put(&late, &puts::claim(lock())).await.is_err());
        holder.batch_execute("COMMIT").await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(store.read(&late).await.unwrap(), None, "{timeouts}");
    };
    // Each user has its own session in the pooler, so neither case waits for the other.
    tokio::join!(abandoned("test", "transaction"), abandoned("limited", "role"));
}
