//! Calls that are dropped midway, as the library drops a call that takes too long. Also checks how long a call takes at
//! most.

use std::time::{Duration, Instant};

use lambda_idempotency::{
    StoredKey,
    store::{
        Outcome, PutOutcome, Record, Store as _, StoreBuilder, StoreErrorKind, StoredResponse,
        postgres::{PostgresStore, tokio_postgres::Client},
    },
};
use lambda_idempotency_testing::Fault;
use testkit::puts::{self, Settlement};

use testkit::{
    cut::{TURNS, cut_after},
    unpaused::unpaused,
};

use super::{
    fixtures::{completion, fresh_table, key, later, lock, make, server},
    wire::Wire,
};

/// How long a test waits for a call that has to succeed.
const LONG: Duration = Duration::from_secs(20);

/// Configures a store with long timeouts and this many connections.
fn patient(url: &str, connections: usize) -> StoreBuilder<PostgresStore> {
    let builder = PostgresStore::builder(url).connections(connections);
    builder.connect_timeout(LONG).statement_timeout(LONG).lock_timeout(LONG / 2)
}

/// Stores a completed record whose response is so large that the answer arrives in many pieces.
async fn put_large(store: &PostgresStore, name: &str, byte: u8) -> (StoredKey, Record) {
    let (key, lock) = (key(name), lock());
    let noise: Vec<u8> =
        (0..400_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 ^ byte).collect();
    let outcome = Outcome::Retained(StoredResponse::new(noise.into()));
    let settlement = Settlement::Complete(outcome, later(100));
    make(store, &key, &puts::claim(lock.clone())).await;
    make(store, &key, &puts::settle(&lock, settlement)).await;
    let record = store.read(&key).await.unwrap().unwrap();
    (key, record)
}

/// After a call is dropped, every later call gets its own answer, and the pool has lost no connection slot.
#[tokio::test]
async fn dropped_calls_leave_the_pool_usable() {
    let server = server!();
    let store = patient(&server.url(), 2).table(fresh_table()).build().unwrap();
    store.create_table().await.unwrap();
    let large = [put_large(&store, "a", 1).await, put_large(&store, "b", 2).await];
    let mut dropped = 0;
    // On a busy machine, more answers are there at the first poll. Then it takes more rounds to drop enough calls.
    for round in 0..800 {
        if round >= 80 && dropped > 30 {
            break;
        }
        let (key, lock) = (key(&format!("round {round}")), lock());
        let claim = puts::claim(lock.clone());
        let turns = TURNS[round % TURNS.len()];
        let answered = match round / TURNS.len() % 4 {
            0 => cut_after(turns, store.read(&large[0].0)).await.is_some(),
            1 => cut_after(turns, store.put(&large[1].0, &claim)).await.is_some(),
            _ => cut_after(turns, store.put(&key, &claim)).await.is_some(),
        };
        dropped += u32::from(!answered);
        let (known, expected) = &large[round % 2];
        assert_eq!(store.read(known).await.unwrap().as_ref(), Some(expected), "round {round}");
        // A dropped claim may have been applied or not, so the key has the claim's record or none.
        let there = store.read(&key).await.unwrap();
        assert!(there.is_none() || there == Some(lock.into()), "round {round}: {there:?}");
    }
    assert!(dropped > 30, "only {dropped} calls were dropped");
    // The pool still has both slots: each of two concurrent calls gets a connection, and waits for the operator's lock.
    let operator = server.client().await;
    operator.batch_execute(&format!("BEGIN; LOCK TABLE {}", store.table())).await.unwrap();
    let calls = async { tokio::join!(store.read(&large[0].0), store.read(&large[1].0)) };
    let free = async {
        wait_for_locked(&server.client().await, &store.table(), 2).await;
        operator.batch_execute("ROLLBACK").await.unwrap();
    };
    let ((one, other), ()) = tokio::join!(calls, free);
    assert_eq!([one.unwrap(), other.unwrap()], large.map(|(_, record)| Some(record)));
}

/// Waits until `count` statements on `table` wait for a lock.
async fn wait_for_locked(client: &Client, table: &str, count: i64) {
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{table}%'"
    );
    for _ in 0..6000 {
        if client.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the pool lost a connection slot");
}

/// If a call is dropped while its statement waits for another transaction, the next call doesn't wait for the
/// dropped call's statement.
#[tokio::test]
async fn dropped_waiting_calls_free_their_connection() {
    let server = server!();
    let store = patient(&server.url(), 1).table(fresh_table()).build().unwrap();
    store.create_table().await.unwrap();
    let (lock, operator) = (lock(), server.client().await);
    make(&store, &key("locked"), &puts::claim(lock.clone())).await;
    operator.batch_execute(&format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", store.table())).await.unwrap();
    let (locked, settle) = (key("locked"), completion(&lock));
    let began = Instant::now();
    for _ in 0..3 {
        let call = store.put(&locked, &settle);
        assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err());
        make(&store, &key(&format!("other {:?}", began.elapsed())), &puts::claim(super::fixtures::lock()))
            .await;
    }
    // A call that waited for the dropped statement would wait until that statement's lock timeout.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    operator.batch_execute("ROLLBACK").await.unwrap();
    // The dropped statements may have been applied by now.
    assert!(matches!(
        store.put(&locked, &settle).await.unwrap(),
        PutOutcome::Applied | PutOutcome::Refused(Some(_))
    ));
    let record = store.read(&locked).await.unwrap();
    assert_eq!(record.map(|record| record.status()), Some(lambda_idempotency::store::Status::Completed));
}

async fn swallowed(wire: &Wire) {
    while !wire.has_failed() {
        tokio::task::yield_now().await;
    }
}

/// Dropping a call that awaits an answer closes its connection. The next call opens a new one, and doesn't
/// spend time on checking the old one.
#[tokio::test]
async fn dropped_calls_close_their_silent_connection() {
    let server = server!();
    let wire = Wire::to(server.port()).await;
    let table = server.store(|builder| builder).await.table();
    for (stage, check_after) in [("check", Duration::ZERO), ("statement", LONG)] {
        let builder = patient(&server.url_at(wire.port()), 1);
        // With its schema, the table needs no look-up.
        let store = builder.table(format!("public.{table}")).check_after(check_after).build().unwrap();
        let (key, lock) = (key(stage), lock());
        // Resets the count of requests.
        wire.requests();
        make(&store, &key, &puts::claim(lock.clone())).await;
        let of_a_new_connection = wire.requests();
        wire.fail_next(Fault::Silence);
        let settle = completion(&lock);
        // Drops the call as soon as the wire has swallowed its request.
        tokio::select! {
            biased;
            () = swallowed(&wire) => {}
            answer = store.put(&key, &settle) => panic!("{stage}: {answer:?}"),
        }
        wire.requests();
        let connections = wire.connections();
        make(&store, &key, &settle).await;
        assert_eq!(wire.connections(), connections + 1, "{stage}");
        // If the silent connection were still in the pool, the store would send a request there first.
        assert_eq!(wire.requests(), of_a_new_connection, "{stage}");
    }
}

/// Dropping a call that is opening a connection frees the connection's slot in the pool.
#[tokio::test]
async fn dropped_connection_attempts_free_their_slot() {
    let server = server!();
    let wire = Wire::to(server.port()).await;
    let store = patient(&server.url_at(wire.port()), 1).table(fresh_table()).build().unwrap();
    store.create_table().await.unwrap();
    for name in ["a", "b"] {
        wire.cut_all();
        wire.be_silent(true);
        let (key, claim) = (key(name), puts::claim(lock()));
        let call = tokio::time::timeout(Duration::from_millis(150), store.put(&key, &claim));
        assert!(call.await.is_err());
        wire.be_silent(false);
        make(&store, &key, &claim).await;
    }
}

/// With the store's default timeouts, a call ends after 1.5 s if it gets no connection, and after 1 s if its statement
/// gets no answer. So the rest of the invocation's time is left to the protocol.
#[tokio::test]
async fn calls_end_within_their_timeouts() {
    let server = server!();
    for (name, check_after, at_most, maybe_applied) in [
        ("a server that has stopped", Duration::ZERO, Duration::from_millis(1500), false),
        ("a lost statement", Duration::from_secs(60), Duration::from_secs(1), true),
    ] {
        let table = server.store(|builder| builder).await.table();
        let at_most = at_most + Duration::from_millis(900);
        let measure = async || {
            let wire = Wire::to(server.port()).await;
            let builder = PostgresStore::builder(server.url_at(wire.port())).table(&table);
            let store = builder.check_after(check_after).build().unwrap();
            // Opens the connection.
            let _answer = store.read(&key("warm")).await;
            wire.be_silent(true);
            let began = Instant::now();
            let error = store.put(&key(name), &puts::claim(lock())).await.unwrap_err();
            (began.elapsed(), error)
        };
        let (took, error) = unpaused(measure, |(took, _)| *took < at_most).await;
        assert!(took < at_most, "{name}: {took:?}");
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, maybe_applied));
    }
}
