//! Statements that time out, and what happens to them at the server.

use std::time::Duration;

use lambda_idempotency::{
    Idempotency, Key,
    store::{
        Store as _, StoreBuilder, StoreErrorKind,
        postgres::{PostgresBuilder, PostgresStore},
    },
};
use lambda_idempotency_testing::Fault;
use testkit::puts;

use testkit::clock::SetClock;

use super::{
    fixtures::{Server, completion, fresh_table, key, lock, make, patient, server},
    wire::Wire,
};

type Set = fn(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>;

/// Two ways to set the timeouts: when the session starts, and in each transaction.
const TIMEOUTS: [(&str, Set); 2] =
    [("startup", |builder| builder), ("transaction", PostgresBuilder::timeouts_per_transaction)];

/// How long a statement may wait for another transaction.
const LOCK: Duration = Duration::from_millis(300);

/// Sets short timeouts. The statement timeout is still six seconds, because a busy machine may pause a process for
/// almost as long.
fn impatient(builder: StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore> {
    builder.statement_timeout(Duration::from_secs(6)).lock_timeout(LOCK)
}

/// Creates two stores on one table. The first has short timeouts, and an open connection through the wire. The second
/// has long timeouts and connects directly.
async fn behind_a_wire(server: &Server) -> (Wire, PostgresStore, PostgresStore) {
    let (wire, direct) = (Wire::to(server.port()).await, server.store(|builder| builder).await);
    let builder = patient(PostgresStore::builder(server.url_at(wire.port()))).table(direct.table());
    let store = impatient(builder).build().unwrap();
    make(&store, &key("warm"), &puts::claim(lock())).await;
    (wire, store, direct)
}

/// Migrations, `VACUUM FULL` and `LOCK TABLE` lock the table, so other statements wait before they begin. A statement
/// that the store has given up on must not be applied when the table is free again.
#[tokio::test]
async fn abandoned_claims_behind_locks_are_not_applied() {
    let server = server!();
    for (timeouts, set) in TIMEOUTS {
        let store = server.store(|builder| set(impatient(builder))).await;
        make(&store, &key("warm"), &puts::claim(lock())).await;
        let operator = server.client().await;
        operator.batch_execute(&format!("BEGIN; LOCK TABLE {}", store.table())).await.unwrap();
        let key = key("late");
        let error = store.put(&key, &puts::claim(lock())).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Conflict, false));
        tokio::time::sleep(Duration::from_secs(1)).await;
        operator.batch_execute("COMMIT").await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(store.read(&key).await.unwrap(), None, "{timeouts}");
    }
}

/// A statement can also be slow without waiting for a lock, because of a slow trigger or a full I/O queue.
#[tokio::test]
async fn abandoned_slow_claims_are_not_applied() {
    let server = server!();
    for (timeouts, set) in TIMEOUTS {
        let store = server.store(|builder| builder).await;
        let (table, operator) = (store.table(), server.client().await);
        let slow = format!(
            "CREATE FUNCTION {table}_slow() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END $$; \
             CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_slow()"
        );
        operator.batch_execute(&slow).await.unwrap();
        let builder = patient(PostgresStore::builder(server.url())).table(&table).lock_timeout(LOCK);
        let hasty = set(builder.statement_timeout(2 * LOCK)).build().unwrap();
        assert!(hasty.put(&key("slow"), &puts::claim(lock())).await.is_err());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(store.read(&key("slow")).await.unwrap(), None, "{timeouts}");
    }
}

/// On a connection that hasn't prepared the claim yet, the preparation takes more than a quarter of the statement
/// timeout. If the store then sent the claim, the server could apply it after the store has stopped waiting.
#[tokio::test]
async fn slow_preparations_send_no_claim() {
    let server = server!();
    let wire = Wire::to(server.port()).await;
    let builder = patient(PostgresStore::builder(server.url_at(wire.port()))).table(fresh_table());
    let builder = builder.connections(1).statement_timeout(Duration::from_secs(20)).lock_timeout(LOCK);
    let store = builder.prepared_statements(true).build().unwrap();
    store.create_table().await.unwrap();
    let key = key("prepared");
    // This prepares only the read.
    assert_eq!(store.read(&key).await.unwrap(), None);
    wire.requests();
    wire.delay_next(Duration::from_millis(5500));
    let error = store.put(&key, &puts::claim(lock())).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(wire.requests(), 1, "the store must send only the preparation");
    assert_eq!(store.read(&key).await.unwrap(), None);
    wire.requests();
    make(&store, &key, &puts::claim(lock())).await;
    assert_eq!((wire.requests(), wire.connections()), (1, 1), "the claim is already prepared");
}

/// The network delivers a claim after its sender has got an error. A timeout at the server can't prevent that.
#[tokio::test]
async fn late_claims_never_replace_an_outcome() {
    let (wire, store, direct) = behind_a_wire(server!()).await;
    let (key, second) = (key("kept"), lock());
    wire.fail_next(Fault::Late);
    let error = store.put(&key, &puts::claim(lock())).await.unwrap_err();
    assert!(error.is_maybe_applied() && wire.has_failed(), "{error:?}");
    make(&direct, &key, &puts::claim(second.clone())).await;
    make(&direct, &key, &completion(&second)).await;
    let before = direct.read(&key).await.unwrap();
    wire.deliver();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(direct.read(&key).await.unwrap(), before);
}

/// A late claim arrives before any other delivery claims the key. The late claim blocks the key until its lease
/// expires. After that, the next delivery runs.
#[tokio::test]
async fn late_claims_block_until_their_lease_expires() {
    let (wire, store, direct) = behind_a_wire(server!()).await;
    let clock = SetClock::system();
    let engine = Idempotency::builder(direct.clone()).function("late").clock(clock.clone()).build().unwrap();
    let operation = engine.operation("late").unwrap();
    let stored = operation.stored_key(&Key::new("a").unwrap());
    let mut late = lock();
    late.fingerprint = lambda_idempotency::Fingerprint::of("12").unwrap();
    wire.fail_next(Fault::Late);
    assert!(store.put(&stored, &puts::claim(late.clone())).await.is_err());
    wire.deliver();
    for _ in 0..600 {
        if direct.read(&stored).await.unwrap().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(direct.read(&stored).await.unwrap(), Some(late.into()));
    let run = async || {
        let work = async || Ok::<_, std::io::Error>("done".to_owned());
        operation.run(Key::new("a").unwrap(), "12", work).await
    };
    let busy = run().await.unwrap_err();
    assert!(busy.to_string().contains("another delivery"), "{busy}");
    clock.set_ahead(120);
    assert_eq!(run().await.unwrap(), "done");
}
