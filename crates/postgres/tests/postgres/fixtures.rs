//! The shared server, and keys, locks, records and writes for the tests.

use std::time::Duration;

use lambda_idempotency::{
    Fingerprint, Key, Scope, StoredKey,
    settings::Execution,
    store::{
        Generation, Lock, Mark, Outcome, Owner, Put, PutOutcome, Record, State, Store as _, StoredResponse,
        postgres::PostgresStore,
    },
    time::{Clock as _, Timestamp, system_clock},
};
use testkit::puts::{self, Settlement};

pub(super) use testkit::postgres::{Server, fresh_table, patient};

/// Evaluates to the shared server. If PostgreSQL isn't installed, skips the test by returning from it.
macro_rules! server {
    () => {
        match $crate::fixtures::Server::shared() {
            Some(server) => server,
            None => return,
        }
    };
}
pub(crate) use server;

pub(super) fn key(name: &str) -> StoredKey {
    StoredKey::new(&Scope::new("tests", "postgres").unwrap(), &Key::new(name).unwrap())
}

pub(super) fn now() -> Timestamp {
    system_clock().now().rounded_up_to_second()
}

pub(super) fn later(seconds: u64) -> Timestamp {
    now().saturating_add(Duration::from_secs(seconds))
}

/// A lock with a new owner.
pub(super) fn lock() -> Lock {
    Lock {
        owner: Owner::random().unwrap(),
        generation: Generation::new(7),
        attempt: 1,
        fingerprint: Fingerprint::of_bytes(b"request"),
        lock_acquired_at: now(),
        lease_until: later(60),
        execution: Execution::AtLeastOnce,
        expires_at: Some(later(90_000)),
        mark: Mark::None,
        request_id: Some("invocation".into()),
        trace: None,
    }
}

pub(super) fn outcome(response: &'static [u8]) -> Outcome {
    Outcome::Retained(StoredResponse::new(response.into()))
}

/// Applies `write`, which must succeed.
pub(super) async fn make(store: &PostgresStore, key: &StoredKey, write: &Put) {
    assert_eq!(store.put(key, write).await.unwrap(), PutOutcome::Applied);
}

/// Returns the write that completes `lock`'s claim.
pub(super) fn completion(lock: &Lock) -> Put {
    let settlement = Settlement::Complete(outcome(b"the response"), later(86_400));
    puts::settle(lock, settlement)
}

/// A completed record with a new owner.
pub(super) fn finished() -> Record {
    Record { state: State::Completed(outcome(b"the response")), ..lock().into() }
}
