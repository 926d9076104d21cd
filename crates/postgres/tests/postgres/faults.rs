//! Failing servers and connections: the errors that the store reports, and its recovery.

use std::time::{Duration, Instant};

use lambda_idempotency::store::{
    CallerTransactions as _, PutOutcome, Store as _, StoreBuilder, StoreError, StoreErrorKind, TableProblem,
    postgres::{PostgresStore, tokio_postgres::Client},
};
use lambda_idempotency_testing::Fault;
use testkit::puts;

use super::{
    fixtures::{Server, completion, fresh_table, key, lock, make, patient, server},
    wire::Wire,
};

/// The statement timeout. It's short, since some tests wait for it, but longer than a busy machine pauses a process.
const STATEMENT: Duration = Duration::from_secs(8);

fn impatient(builder: StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore> {
    patient(builder).statement_timeout(STATEMENT).lock_timeout(Duration::from_millis(300))
}

/// Waits until another transaction blocks a statement on `table`. Returns the process id of the blocked session.
async fn waiting(client: &Client, table: &str) -> i32 {
    let sql =
        format!("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{table}%'");
    for _ in 0..2000 {
        if let Some(row) = client.query_opt(&sql, &[]).await.unwrap() {
            return row.get(0);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no statement is waiting for a lock");
}

/// Creates a store that connects through a wire. The store has one connection, which has answered a claim and a read,
/// so it needs no check.
async fn behind_a_wire(server: &Server) -> (Wire, PostgresStore) {
    let wire = Wire::to(server.port()).await;
    let builder = PostgresStore::builder(server.url_at(wire.port())).table(fresh_table()).connections(1);
    let store = impatient(builder).build().unwrap();
    store.create_table().await.unwrap();
    make(&store, &key("warm"), &puts::claim(lock())).await;
    store.read(&key("warm")).await.unwrap();
    wire.requests();
    (wire, store)
}

fn assert_error(error: &StoreError, kind: StoreErrorKind, maybe_applied: bool, says: &str) {
    assert_eq!((error.kind(), error.is_maybe_applied()), (kind, maybe_applied), "{error:?}");
    assert!(error.to_string().contains(says), "{error}");
    // The error may contain the address, but not the password.
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("correct-horse"), "{shown}");
}

#[tokio::test]
async fn lost_statements_are_ambiguous_and_unapplied() {
    let (wire, store) = behind_a_wire(server!()).await;
    for (fault, says) in [(Fault::LoseRequest, "lost"), (Fault::Silence, "in time")] {
        let (key, claim) = (key(&format!("{fault:?}")), puts::claim(lock()));
        wire.fail_next(fault);
        let error = store.put(&key, &claim).await.unwrap_err();
        assert!(wire.has_failed());
        assert_error(&error, StoreErrorKind::Unavailable, true, says);
        // The store recovers over a new connection.
        assert_eq!(store.read(&key).await.unwrap(), None);
        make(&store, &key, &claim).await;
    }
}

#[tokio::test]
async fn applied_writes_without_answers_are_ambiguous() {
    let (wire, store) = behind_a_wire(server!()).await;
    for (fault, says) in [(Fault::LoseAnswer, "lost"), (Fault::SilenceAfter, "in time")] {
        let (key, lock) = (key(&format!("{fault:?}")), lock());
        wire.fail_next(fault);
        let error = store.put(&key, &puts::claim(lock.clone())).await.unwrap_err();
        assert!(wire.has_failed());
        assert_error(&error, StoreErrorKind::Unavailable, true, says);
        assert_eq!(store.read(&key).await.unwrap(), Some(lock.clone().into()));
        // If the claim is sent again, the store refuses it and returns the claim's own record.
        let again = store.put(&key, &puts::claim(lock.clone())).await.unwrap();
        assert_eq!(again, PutOutcome::Refused(Some(lock.into())));
    }
}

#[tokio::test]
async fn lost_reads_are_retried_or_fail_unambiguously() {
    let (wire, store) = behind_a_wire(server!()).await;
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        wire.fail_next(fault);
        assert!(store.read(&key("warm")).await.unwrap().is_some());
        assert!(wire.has_failed());
    }
    let began = Instant::now();
    wire.fail_next(Fault::Silence);
    let error = store.read(&key("warm")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "in time");
    assert!(began.elapsed() < 2 * STATEMENT, "{:?}", began.elapsed());
}

/// After a freeze, a pooled connection may be dead. The store checks the connection before it sends a write, so each
/// fault hits the check.
#[tokio::test]
async fn connections_that_died_idle_are_replaced() {
    let server = server!();
    let wire = Wire::to(server.port()).await;
    let builder = PostgresStore::builder(server.url_at(wire.port())).table(fresh_table()).connections(2);
    let store = impatient(builder).check_after(Duration::ZERO).build().unwrap();
    store.create_table().await.unwrap();
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Silence, Fault::SilenceAfter] {
        let before = wire.connections();
        wire.fail_next(fault);
        let written = store.put(&key(&format!("{fault:?}")), &puts::claim(lock())).await.unwrap();
        assert_eq!(written, PutOutcome::Applied);
        assert!(wire.has_failed());
        assert_eq!(wire.connections(), before + 1, "{fault:?}");
    }
    // The store replaces a closed connection too.
    wire.cut_all();
    make(&store, &key("closed"), &puts::claim(lock())).await;
}

/// A server that restarts closes all connections. Once a call finds one closed, it opens a new connection instead of
/// trying the other old ones.
#[tokio::test]
async fn closed_connections_are_dropped_together() {
    let server = server!();
    let wire = Wire::to(server.port()).await;
    let builder = PostgresStore::builder(server.url_at(wire.port())).table(fresh_table()).connections(3);
    let store = patient(builder).build().unwrap();
    store.create_table().await.unwrap();
    let warm = key("warm");
    store.read(&warm).await.unwrap();
    // Each claim opens a new connection and waits there for the operator's lock. So the read's connection returns to
    // the pool before the other two, and the pool lends it first.
    let operator = server.client().await;
    operator.batch_execute(&format!("BEGIN; LOCK TABLE {} IN SHARE MODE", store.table())).await.unwrap();
    let read = async {
        assert_eq!(store.read(&warm).await.unwrap(), None);
        operator.batch_execute("ROLLBACK").await.unwrap();
    };
    let (one, other) = (key("one"), key("other"));
    let (claim, another) = (puts::claim(lock()), puts::claim(lock()));
    tokio::join!(read, make(&store, &one, &claim), make(&store, &other, &another));
    let before = wire.connections();
    wire.cut_first();
    make(&store, &warm, &puts::claim(lock())).await;
    assert_eq!(wire.connections(), before + 1, "the call used another old connection");
}

#[tokio::test]
async fn recently_used_connections_are_not_checked() {
    let (wire, store) = behind_a_wire(server!()).await;
    for _ in 0..5 {
        store.read(&key("warm")).await.unwrap();
    }
    assert_eq!((wire.requests(), wire.connections()), (5, 1));
}

/// The server ends the session before the statement, or while the statement waits for a row.
#[tokio::test]
async fn terminated_sessions_are_replaced_or_reported() {
    let server = server!();
    let store = server.store(|builder| builder.connections(1)).await;
    let (key, operator, other) = (key("terminated"), server.client().await, server.client().await);
    let lock = lock();
    make(&store, &key, &puts::claim(lock.clone())).await;
    let table = store.table();
    let terminate = format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity \
         WHERE query LIKE '%{table}%' AND pid <> pg_backend_pid()"
    );
    // `pg_terminate_backend` waits until the session has ended. The sleep gives the store's connection time to notice.
    operator.batch_execute(&terminate).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(store.read(&key).await.unwrap().is_some(), "the record must survive the session");

    let locked = format!("BEGIN; SELECT 1 FROM {table} FOR UPDATE");
    operator.batch_execute(&locked).await.unwrap();
    let settle = tokio::spawn({
        let (store, key, lock) = (store.clone(), key.clone(), lock.clone());
        async move { store.put(&key, &completion(&lock)).await }
    });
    let pid = waiting(&other, &table).await;
    other.batch_execute(&format!("SELECT pg_terminate_backend({pid})")).await.unwrap();
    let error = settle.await.unwrap().unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, true, "failed to serve");
    operator.batch_execute("ROLLBACK").await.unwrap();
    make(&store, &key, &completion(&lock)).await;
}

/// The server ends all sessions at once, so the repetition of a read may get one that's just ending. A third session that ends
/// fails the read, which changed nothing.
#[tokio::test]
async fn reads_survive_two_ended_sessions() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (key, operator, other) = (key("ended"), server.client().await, server.client().await);
    make(&store, &key, &puts::claim(lock())).await;
    let table = store.table();
    for (ends, survives) in [(2, true), (3, false)] {
        operator.batch_execute(&format!("BEGIN; LOCK TABLE {table}")).await.unwrap();
        let read = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { store.read(&key).await }
        });
        for _ in 0..ends {
            let pid = waiting(&other, &table).await;
            other.batch_execute(&format!("SELECT pg_terminate_backend({pid}, 60000)")).await.unwrap();
        }
        operator.batch_execute("ROLLBACK").await.unwrap();
        match read.await.unwrap() {
            Ok(record) => assert!(survives && record.is_some()),
            Err(error) => {
                assert!(!survives, "{error:?}");
                assert_error(&error, StoreErrorKind::Unavailable, false, "failed to serve");
            }
        }
    }
}

#[tokio::test]
async fn settlements_of_locked_records_are_definite_conflicts() {
    let server = server!();
    let store = server.store(impatient).await;
    let (key, operator, lock) = (key("locked"), server.client().await, lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    operator.batch_execute(&format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", store.table())).await.unwrap();
    let began = Instant::now();
    let error = store.put(&key, &completion(&lock)).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Conflict, false, "another transaction");
    assert!(began.elapsed() < STATEMENT, "{:?}", began.elapsed());
    // A duplicate reads the row without waiting for its lock.
    let refused = store.put(&key, &puts::claim(super::fixtures::lock())).await.unwrap();
    assert_eq!(refused, PutOutcome::Refused(Some(lock.clone().into())));
    operator.batch_execute("ROLLBACK").await.unwrap();
    make(&store, &key, &completion(&lock)).await;
}

/// The session's default isolation level is serialisable, so the server rejects a write that waited for a concurrent
/// update. At PostgreSQL's usual level, the server would evaluate the write's condition again.
#[tokio::test]
async fn serialisation_failures_are_conflicts() {
    let server = server!();
    let url = format!("{}?options=-c%20default_transaction_isolation%3Dserializable", server.url());
    let table = fresh_table();
    let store = patient(PostgresStore::builder(url)).table(&table).build().unwrap();
    store.create_table().await.unwrap();
    let (key, operator, lock) = (key("serial"), server.client().await, lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    operator.batch_execute(&format!("BEGIN; UPDATE {table} SET attempt = 2")).await.unwrap();
    let settle = tokio::spawn({
        let (store, lock) = (store.clone(), lock.clone());
        async move { store.put(&key, &completion(&lock)).await }
    });
    waiting(&server.client().await, &table).await;
    operator.batch_execute("COMMIT").await.unwrap();
    let error = settle.await.unwrap().unwrap_err();
    assert_error(&error, StoreErrorKind::Conflict, false, "another transaction");
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        "SQLSTATE 40001: rejected by the server"
    );
}

#[tokio::test]
async fn read_only_servers_are_unavailable() {
    let server = server!();
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", server.url());
    let table = fresh_table();
    let store = impatient(PostgresStore::builder(url)).table(&table).build().unwrap();
    let maker = patient(PostgresStore::builder(server.url())).table(&table).build().unwrap();
    maker.create_table().await.unwrap();
    let error = store.put(&key("read-only"), &puts::claim(lock())).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "is read-only");
}

/// After a failover, the old primary may return as a standby with old data.
#[tokio::test]
async fn standbys_are_neither_written_nor_trusted() {
    let Some(mut server) = Server::start("") else { return };
    let store = server.store(impatient).await;
    make(&store, &key("standby"), &puts::claim(lock())).await;
    assert_eq!(store.check_table().await.unwrap(), []);
    server.become_standby();
    let error = store.put(&key("other"), &puts::claim(lock())).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "is read-only");
    let error = store.read(&key("standby")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "is read-only");
    // A standby doesn't have the primary's locks. If a lock is free on the standby, a transaction on the primary may
    // still hold it.
    let error = store.look(&key("standby")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "is read-only");
    let mut client = server.client().await;
    let transaction = client.transaction().await.unwrap();
    let error = store.lock_and_read_in(&transaction, &key("standby")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "is read-only");
    assert_eq!(store.check_table().await.unwrap(), [TableProblem::Standby]);
}

/// Failures such as a full disk, no memory or a broken disk are hard to provoke, so a trigger raises them with the
/// server's codes. The store's error shows the code, but not the server's detail.
#[tokio::test]
async fn server_errors_map_to_their_kinds() {
    let server = server!();
    let store = server.store(impatient).await;
    let (table, operator) = (store.table(), server.client().await);
    for (code, kind, says) in [
        ("53100", StoreErrorKind::Unavailable, "failed to serve"),
        ("53200", StoreErrorKind::Unavailable, "failed to serve"),
        ("58030", StoreErrorKind::Unavailable, "failed to serve"),
        ("XX001", StoreErrorKind::Unavailable, "failed to serve"),
        ("40P01", StoreErrorKind::Conflict, "another transaction"),
        ("23514", StoreErrorKind::Rejected, "rejected"),
        ("54000", StoreErrorKind::Unstorable, "too large"),
        ("22P05", StoreErrorKind::Unstorable, "characters"),
    ] {
        let trigger = format!(
            "CREATE OR REPLACE FUNCTION {table}_fails() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'it failed' USING ERRCODE = '{code}', DETAIL = 'the row is secret'; END $$; \
             CREATE OR REPLACE TRIGGER fails BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_fails()"
        );
        operator.batch_execute(&trigger).await.unwrap();
        let error = store.put(&key("disk"), &puts::claim(lock())).await.unwrap_err();
        assert_error(&error, kind, false, says);
        let shown = format!("{error:?}");
        assert!(shown.contains(code) && !shown.contains("secret"), "{shown}");
        assert_eq!(store.read(&key("disk")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn failed_or_excess_connections_send_nothing() {
    let server = server!();
    // No other test can use this socket's port, and the socket never listens.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = server.url_at(nobody.local_addr().unwrap().port());
    let store = patient(PostgresStore::builder(url)).build().unwrap();
    let error = store.put(&key("refused"), &puts::claim(lock())).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "couldn't be reached");

    // A server that accepts the connection and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let store = PostgresStore::builder(server.url_at(port)).connect_timeout(Duration::from_millis(200));
    let error = store.build().unwrap().put(&key("silent"), &puts::claim(lock())).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "couldn't be reached");

    let role = fresh_table();
    let operator = server.client().await;
    let create = format!("CREATE ROLE {role} LOGIN PASSWORD 'correct-horse' CONNECTION LIMIT 0");
    operator.batch_execute(&create).await.unwrap();
    let url = server.url().replace("://test:", &format!("://{role}:"));
    let error = patient(PostgresStore::builder(url)).build().unwrap().read(&key("full")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "failed to serve");
}

/// The pool's only connection is in use for longer than the store waits for one.
#[tokio::test]
async fn exhausted_pools_send_nothing() {
    let server = server!();
    let store = server.store(|builder| builder.connections(1).connect_timeout(Duration::from_secs(6))).await;
    let (key, operator, lock) = (key("busy"), server.client().await, lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    operator.batch_execute(&format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", store.table())).await.unwrap();
    let settle = tokio::spawn({
        let (store, key) = (store.clone(), key.clone());
        async move { store.put(&key, &completion(&lock)).await }
    });
    waiting(&server.client().await, &store.table()).await;
    let error = store.put(&key, &puts::claim(super::fixtures::lock())).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, false, "was free in time");
    operator.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(settle.await.unwrap().unwrap(), PutOutcome::Applied);
}

#[tokio::test]
async fn server_refusals_say_what_to_do() {
    let server = server!();
    let (role, table) = (fresh_table(), fresh_table());
    let maker = server.store(|builder| builder.table(&table)).await;
    let operator = server.client().await;
    let create = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'correct-horse'; GRANT SELECT ON {table}_schema TO {role}"
    );
    operator.batch_execute(&create).await.unwrap();
    let as_role = server.url().replace("://test:", &format!("://{role}:"));
    for (url, table, says) in [
        (server.url().replace("correct-horse", "wrong"), table.clone(), "the user or the password"),
        (server.url().replace("/postgres", "/nowhere"), table.clone(), "the database for table"),
        (server.url(), fresh_table(), "idempotency table create"),
        (server.url(), format!("nowhere.{table}"), "idempotency table create"),
        (as_role, table.clone(), "grant"),
    ] {
        let store = patient(PostgresStore::builder(url)).table(table).build().unwrap();
        let error = store.put(&key("rejected"), &puts::claim(lock())).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Rejected, false, says);
        let error = store.read(&key("rejected")).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Rejected, false, says);
    }
    assert_eq!(maker.read(&key("rejected")).await.unwrap(), None);
}
