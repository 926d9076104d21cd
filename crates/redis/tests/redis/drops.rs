//! Calls that are dropped midway, as the library drops a call that takes too long. Also checks how long a call takes at
//! most.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use lambda_idempotency::store::{
    Outcome, PutOutcome, Store, StoreErrorKind, StoredResponse, redis::RedisStore,
};
use testkit::puts::{self, Settlement};

use super::{
    fixtures::{
        EXPIRES_AT, claim, claimed, complete, completed, fresh_key, ms, patient, settle, started, until,
        until_clients,
    },
    wire::{Reply, Wire},
};
use testkit::{
    cut::{TURNS, cut_after},
    redis::{RedisServer, shared},
    unpaused::unpaused,
};

/// After a drop, every call still gets its own answer, over the same connection.
#[tokio::test]
async fn dropped_calls_leave_the_connection_usable() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let store = patient(&server.url());
    // The records are so large that their answers arrive in many pieces.
    let mut large = Vec::new();
    for byte in [1_u8, 2] {
        let key = fresh_key();
        claimed(&store, &key).await;
        let noise: Vec<u8> =
            (0..400_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 ^ byte).collect();
        let write = settle(Settlement::Complete(
            Outcome::Retained(StoredResponse::new(noise.into())),
            ms(EXPIRES_AT),
        ));
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
        large.push((key, write.apply_to(Some(&started())).unwrap()));
    }
    let mut dropped = 0;
    // On a busy machine, more answers are there at the first poll. Then it takes more rounds to drop enough calls.
    for round in 0..4000 {
        if round >= 400 && dropped > 100 {
            break;
        }
        let turns = TURNS[round % TURNS.len()];
        let key = fresh_key();
        let answered = match round / TURNS.len() % 4 {
            0 => cut_after(turns, store.read(&large[0].0)).await.is_some(),
            1 => cut_after(turns, claim(&store, &large[1].0)).await.is_some(),
            _ => cut_after(turns, claim(&store, &key)).await.is_some(),
        };
        dropped += u32::from(!answered);
        let (known, expected) = &large[round % 2];
        assert_eq!(store.read(known).await.unwrap().as_ref(), Some(expected), "round {round}");
        // The dropped claim was either applied or not, so the key has that claim's record or none.
        let there = store.read(&key).await.unwrap();
        assert!(there.is_none() || there == Some(started()), "round {round}: {there:?}");
    }
    assert!(dropped > 100, "only {dropped} calls were dropped");
    // One connection is the store's. The other is the test's own, through `RedisServer::run`.
    until_clients(&server, 2).await;
}

/// Starts a wire whose open connection goes silent when the flag is set. New connections work.
async fn falling_silent(server: &RedisServer) -> (Wire, std::sync::Arc<AtomicBool>) {
    let silent = std::sync::Arc::new(AtomicBool::new(false));
    let decide = {
        let silent = std::sync::Arc::clone(&silent);
        // The next command is lost and clears the flag. Its connection stays silent.
        move |_, _: &str| if silent.swap(false, Ordering::Relaxed) { Reply::Hang } else { Reply::Forward }
    };
    (Wire::new(Some(server.address()), decide).await, silent)
}

/// A connection goes silent, and the test cuts each call off after 200 ms. The first call is cut off while it waits for
/// its answer. The second call checks the connection first, which takes up to 250 ms, so it's cut off during the check.
/// The next call succeeds on a new connection.
#[tokio::test]
async fn interrupted_calls_still_replace_silent_connections() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let (wire, silent) = falling_silent(server).await;
    let (store, key) = (patient(&wire.url()), fresh_key());
    claimed(&store, &key).await;
    assert_eq!(wire.connections(), 1);
    silent.store(true, Ordering::Relaxed);
    let settle = complete();
    // More than three calls, in case the machine is busy.
    for _ in 0..100 {
        let call = tokio::time::timeout(Duration::from_millis(200), store.put(&key, &settle));
        if call.await.is_ok() {
            assert_eq!(store.read(&key).await.unwrap(), Some(completed()));
            assert!(wire.connections() > 1);
            return;
        }
    }
    panic!("every call used the silent connection");
}

/// After a thaw, ten concurrent calls find a dead connection. One of them checks and replaces the connection, while the
/// others wait. A request on the dead connection would take 20 s, the attempt timeout.
#[tokio::test]
async fn concurrent_calls_share_one_idle_check() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let (wire, silent) = falling_silent(server).await;
    let store = std::sync::Arc::new(patient(&wire.url()));
    claimed(&store, &fresh_key()).await;
    // The store checks a connection that was idle for ten seconds.
    tokio::time::sleep(Duration::from_millis(10_200)).await;
    silent.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let store = std::sync::Arc::clone(&store);
        calls.spawn(async move { claimed(&store, &fresh_key()).await });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let commands = wire.commands();
    assert_eq!(commands.iter().filter(|name| *name == "PING").count(), 1, "{commands:?}");
    assert_eq!(wire.connections(), 2);
}

/// After a dropped request, the store checks a live connection once and keeps it.
#[tokio::test]
async fn dropped_calls_keep_live_connections() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let measure = async || {
        let wire = Wire::scripted(Some(server.address()), &[Reply::Forward]).await;
        let (store, key) = (patient(&wire.url()), fresh_key());
        claimed(&store, &key).await;
        // The first poll sends the request. The call is dropped before the answer.
        assert!(cut_after(1, store.read(&key)).await.is_none());
        assert_eq!(store.read(&key).await.unwrap(), Some(started()));
        assert_eq!(store.read(&key).await.unwrap(), Some(started()));
        (wire.commands(), wire.connections())
    };
    // If a pause of the machine delays the check by over 250 ms, the store replaces the connection, and the test
    // measures again.
    let (commands, connections) = unpaused(measure, |(_, connections)| *connections == 1).await;
    assert_eq!(commands, ["EVALSHA", "HGETALL", "PING", "HGETALL", "HGETALL"]);
    assert_eq!(connections, 1);
}

/// A call is dropped while it opens a connection. The next call opens its own.
#[tokio::test]
async fn dropped_connection_attempts_block_no_call() {
    let Some(server) = RedisServer::start(&["--requirepass", "correct"]) else { return };
    let (wire, silent) = falling_silent(&server).await;
    let store = patient(&format!("redis://:correct@{}", wire.address));
    silent.store(true, Ordering::Relaxed);
    let key = fresh_key();
    tokio::select! {
        answer = claim(&store, &key) => panic!("a silent connection answered: {answer:?}"),
        () = until("the wire has the command", || !silent.load(Ordering::Relaxed)) => {}
    }
    claimed(&store, &key).await;
}

/// With the store's default timeouts, a call takes at most 2 s. That leaves the protocol time to retry.
#[tokio::test]
async fn calls_end_within_their_timeout() {
    let Some(server) = shared() else { return };
    claimed(&patient(&server.url()), &fresh_key()).await;
    let is_silent = std::sync::Arc::new(AtomicBool::new(false));
    let decide = {
        let is_silent = std::sync::Arc::clone(&is_silent);
        move |_, _: &str| if is_silent.load(Ordering::Relaxed) { Reply::Hang } else { Reply::Forward }
    };
    let wire = Wire::new(Some(server.address()), decide).await;
    let (store, key) = (RedisStore::new(wire.url()).unwrap(), fresh_key());
    for write in [complete(), puts::claim(super::fixtures::lock())] {
        let measure = async || {
            is_silent.store(false, Ordering::Relaxed);
            // Opens the connection.
            let _answer = store.read(&key).await;
            is_silent.store(true, Ordering::Relaxed);
            let began = Instant::now();
            let error = store.put(&key, &write).await.unwrap_err();
            (began.elapsed(), error)
        };
        let (took, error) = unpaused(measure, |(took, _)| *took < Duration::from_millis(2900)).await;
        assert!(took < Duration::from_millis(2900), "{took:?}");
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    }
}
