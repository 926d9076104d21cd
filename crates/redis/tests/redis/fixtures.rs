//! Records and writes for the tests, and calls to a store.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use lambda_idempotency::{
    Fingerprint, Key, Scope, StoredKey,
    settings::Execution,
    store::{
        Generation, Lock, Mark, Outcome, Owner, Place, Put, PutOutcome, Record, State, Store, StoreError,
        StoredResponse, redis::RedisStore,
    },
    time::Timestamp,
};
use testkit::puts::{self, Settlement};
use testkit::redis::RedisServer;

/// A key that no other test uses.
pub(crate) fn fresh_key() -> StoredKey {
    let key = Key::new(Owner::random().unwrap().to_string()).unwrap();
    StoredKey::new(&Scope::new("payments", "http").unwrap(), &key)
}

pub(crate) fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

pub(crate) const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A time in 2050. It's far in the future, since Redis may remove an expired record.
pub(crate) const EXPIRES_AT: u64 = 2_524_608_000_000;

pub(crate) fn lock() -> Lock {
    Lock {
        owner: owner(0x0a),
        generation: Generation::new(1_795_000_000_123),
        attempt: 1,
        fingerprint: Fingerprint::from_digest([0xf1; 32]),
        lock_acquired_at: ms(1_795_000_000_124),
        lease_until: ms(1_795_000_060_125),
        execution: Execution::AtLeastOnce,
        expires_at: Some(ms(EXPIRES_AT)),
        mark: Mark::None,
        request_id: Some(Arc::from("8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10")),
        trace: None,
    }
}

/// The lock of another claim. Every field but the fingerprint differs from [`lock`].
pub(crate) fn next_lock() -> Lock {
    Lock {
        owner: owner(0xbb),
        generation: Generation::new(1_795_000_070_001),
        attempt: 2,
        fingerprint: Fingerprint::from_digest([0xf1; 32]),
        lock_acquired_at: ms(1_795_000_070_002),
        lease_until: ms(1_795_000_130_003),
        execution: Execution::AtLeastOnce,
        expires_at: Some(ms(EXPIRES_AT + 70_000)),
        mark: Mark::Interrupted,
        request_id: Some(Arc::from("another-request")),
        trace: None,
    }
}

pub(crate) fn started() -> Record {
    lock().into()
}

/// The lock of an at-most-once claim, without an expiry.
pub(crate) fn lasting() -> Lock {
    Lock { owner: owner(0x1a), ..puts::lasting(lock()) }
}

pub(crate) fn inline() -> Outcome {
    Outcome::Retained(StoredResponse {
        deflated: false,
        length: 5,
        sha256: [0x5a; 32],
        labels: None,
        place: Place::Inline(Bytes::from_static(b"\x00hi\xff!")),
    })
}

pub(crate) fn completed() -> Record {
    Record { state: State::Completed(inline()), expires_at: Some(ms(EXPIRES_AT + 1000)), ..started() }
}

pub(crate) fn settlements() -> [Settlement; 5] {
    let expires_at = ms(EXPIRES_AT + 1000);
    [
        Settlement::Complete(inline(), expires_at),
        Settlement::Complete(Outcome::Omitted, expires_at),
        Settlement::Fail(inline(), expires_at),
        Settlement::Release { expires_at, interrupted: false },
        Settlement::Release { expires_at, interrupted: true },
    ]
}

pub(crate) fn settle(settlement: Settlement) -> Put {
    puts::settle(&lock(), settlement)
}

pub(crate) fn complete() -> Put {
    settle(Settlement::Complete(inline(), ms(EXPIRES_AT + 1000)))
}

pub(crate) fn extend(lease_until: u64) -> Put {
    puts::extend(&lock(), ms(lease_until), Some(ms(EXPIRES_AT + 2000)))
}

/// Writes of every kind that applies to [`started`]. Some kinds have several writes.
pub(crate) fn writes_on_started() -> Vec<Put> {
    let seen = started();
    let mut writes = vec![
        puts::reclaim(&seen, next_lock()),
        puts::take_over(&seen, next_lock()),
        puts::take_over(&seen, Lock { request_id: None, mark: Mark::None, ..next_lock() }),
        puts::take_over(&seen, puts::lasting(next_lock())),
        extend(1_795_000_090_000),
        puts::conclude(Some(&seen), completed()),
    ];
    for settlement in settlements() {
        writes.push(settle(settlement.clone()));
        let (owner, generation) = (owner(0xcc), Generation::new(1_795_000_080_004));
        writes.push(puts::resolve(&seen, owner, generation, settlement));
    }
    writes
}

/// A store for a server that never answers. The short attempt timeout makes the call fail soon.
pub(crate) fn hasty(url: &str) -> RedisStore {
    with_attempts_of(Duration::from_millis(600), url)
}

/// How long an attempt of [`resending`] takes if it gets no answer.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(6);

/// A store for a server that doesn't answer the first attempt. The attempt timeout is long enough for the second
/// attempt on a busy machine.
pub(crate) fn resending(url: &str) -> RedisStore {
    with_attempts_of(ATTEMPT, url)
}

/// A store with timeouts for a busy machine, which may pause the server or the test for seconds.
pub(crate) fn patient(url: &str) -> RedisStore {
    with_attempts_of(Duration::from_secs(20), url)
}

fn with_attempts_of(attempt: Duration, url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).attempt_timeout(attempt);
    builder.operation_timeout(Duration::from_secs(60)).build().unwrap()
}

pub(crate) async fn claim(store: &RedisStore, key: &StoredKey) -> Result<PutOutcome, StoreError> {
    store.put(key, &puts::claim(lock())).await
}

/// Makes a claim, which must succeed.
pub(crate) async fn claimed(store: &RedisStore, key: &StoredKey) {
    assert_eq!(claim(store, key).await.unwrap(), PutOutcome::Applied);
}

/// Waits until `holds` returns true.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    // A paused Sentinel first waits half a minute, and again after each pause.
    for _ in 0..9000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not reached in time: {what}");
}

/// Waits until the server has this many clients. The server may notice late that a client has disconnected.
pub(crate) async fn until_clients(server: &RedisServer, count: usize) {
    until(&format!("{count} clients"), || {
        server.run(&["CLIENT", "LIST", "TYPE", "normal"]).lines().count() == count
    })
    .await;
}

/// Returns an error's text, `Debug` form and sources.
pub(crate) fn chain(error: &StoreError) -> String {
    let mut text = format!("{error} / {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(" / {error} / {error:?}"));
        source = error.source();
    }
    text
}
