//! The rows: each write matches the contract, and rows that aren't valid records are reported.

use std::time::Duration;

use lambda_idempotency::settings::Execution;
use lambda_idempotency::store::{
    Generation, Lock, Outcome, Place, Put, PutOutcome, Record, State, Store as _, StoreErrorKind,
    StoredResponse, memory::MemoryStore,
};
use testkit::{
    puts::{self, Settlement},
    random::{Random, fresh_seed},
};

use super::fixtures::{completion, finished, key, later, lock, make, outcome, server};

/// Applies random writes of every kind. The version that a write expects is the current record's, or differs from it in
/// one field. The answers must match the memory store's.
#[tokio::test]
async fn random_writes_match_the_memory_store() {
    let server = server!();
    let seed = match std::env::var("IDEMPOTENCY_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => fresh_seed(),
    };
    eprintln!("IDEMPOTENCY_TEST_SEED={seed}");
    let (mut random, memory) = (Random::new(seed), MemoryStore::new());
    let store = server.store(|builder| builder).await;
    let keys = ["a", "b"].map(|name| key(&format!("{name}{seed}")));
    let mut made = [0; 2];
    for step in 0..1500 {
        let key = &keys[random.index(keys.len())];
        let write = any_write(&mut random, memory.get(key));
        let expected = memory.put(key, &write).await.unwrap();
        let found = store.put(key, &write).await.unwrap();
        assert_eq!(found, expected, "seed {seed}, step {step}: {write:?}");
        assert_eq!(store.read(key).await.unwrap(), memory.get(key), "seed {seed}, step {step}: {write:?}");
        made[usize::from(found == PutOutcome::Applied)] += 1;
    }
    assert!(made.iter().all(|count| *count > 300), "seed {seed}: refused and applied: {made:?}");
}

fn any_write(random: &mut Random, current: Option<Record>) -> Put {
    let mut lock = lock();
    lock.generation = Generation::new(random.below(3));
    lock.lease_until = later(random.below(4));
    if random.below(3) == 0 {
        lock = puts::lasting(lock);
    }
    lock.mark = (random.below(2) == 0).into();
    let expires_at = later(random.below(9));
    let settlement = match random.below(4) {
        0 => Settlement::Complete(outcome(b"{}"), expires_at),
        1 => Settlement::Fail(outcome(b""), expires_at),
        interrupted => Settlement::Release { expires_at, interrupted: interrupted == 2 },
    };
    let Some(current) = current else {
        return match random.below(2) {
            0 => puts::claim(lock),
            _ => puts::conclude(None, lock.into()),
        };
    };
    let seen = almost(random, &current, &lock);
    let held = seen.lock_until(lock.lease_until);
    match random.below(8) {
        0 => puts::claim(lock),
        1 => puts::reclaim(&seen, lock),
        2 => puts::take_over(&seen, lock),
        3 => puts::settle(&held, settlement),
        4 => {
            // Only an at-most-once claim may have no expiry.
            let never = if held.execution == Execution::AtMostOnce { None } else { Some(expires_at) };
            let lease_until = lock.lease_until.saturating_add(Duration::from_secs(1));
            puts::extend(&held, lease_until, lock.expires_at.or(never))
        }
        5 => puts::conclude(None, finished_or(random, lock)),
        6 => puts::conclude(Some(&seen), finished_or(random, lock)),
        _ => puts::resolve(&seen, lock.owner, lock.generation, settlement),
    }
}

fn finished_or(random: &mut Random, lock: Lock) -> Record {
    if random.below(2) == 0 { finished() } else { lock.into() }
}

/// Returns the version of `current`. In about half of the cases, one of its fields differs.
fn almost(random: &mut Random, current: &Record, other: &Lock) -> Record {
    let mut seen = current.clone();
    match random.below(12) {
        0 => seen.owner = other.owner,
        1 => seen.generation = other.generation,
        2 => seen.expires_at = other.expires_at,
        3 => seen.state = State::Started { lease_until: other.lease_until },
        4 => seen.state = State::Released,
        _ => {}
    }
    seen
}

/// A hand-edited row that isn't a valid record is corrupt. The store never treats it as absent and never
/// overwrites it.
#[tokio::test]
async fn corrupt_rows_name_the_invalid_column() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (operator, table) = (server.client().await, store.table());
    // Constraints prevent most of these rows, so the test drops the constraints first.
    let constraints = format!(
        "SELECT format('ALTER TABLE {table} DROP CONSTRAINT %I', conname) FROM pg_constraint \
         WHERE conrelid = '{table}'::regclass AND contype = 'c'"
    );
    for row in operator.query(&constraints, &[]).await.unwrap() {
        operator.batch_execute(row.get(0)).await.unwrap();
    }
    for (at, (is_done, change, column)) in [
        (false, "version = 2", "version"),
        (false, "version = 4", "version"),
        (false, "mark = 'secret'", "mark"),
        (false, "execution = 'secret'", "execution"),
        (false, "expires_at = NULL", "expires_at"),
        (false, "expires_at = -1", "expires_at"),
        (false, "status = 'EXPIRED'", "status"),
        (false, "lease_until = NULL", "lease_until"),
        (false, "owner = '\\x00'", "owner"),
        (false, "generation = -1", "generation"),
        (false, "generation = 18446744073709551616", "generation"),
        (false, "attempt = 4294967296", "attempt"),
        (false, "fingerprint = 'secret'", "fingerprint"),
        (false, "request_id = '\\xff'", "request_id"),
        (false, "trace = '\\xff'", "trace"),
        (false, "response = 'secret'", "response"),
        (false, "encoding = 'omitted'", "encoding"),
        (true, "expires_at = NULL", "expires_at"),
        (true, "status = 'FAILED', expires_at = NULL", "expires_at"),
        (true, "lease_until = 1", "lease_until"),
        (true, "encoding = 'secret'", "encoding"),
        (true, "encoding = 'identity'", "encoding"),
        (true, "encoding = 'omitted'", "sha256"),
        (true, "encoding = 'identity/1'", "length"),
        (true, "encoding = 'identity/1', length = 12", "response"),
        (true, "length = 12", "length"),
        (true, "sha256 = NULL", "sha256"),
        (true, "sha256 = '\\x00'", "sha256"),
        (true, "response = NULL", "response"),
        (true, "status = 'RELEASED'", "sha256"),
    ]
    .into_iter()
    .enumerate()
    {
        let (key, lock) = (key(&format!("corrupt {at}")), lock());
        make(&store, &key, &puts::claim(lock.clone())).await;
        if is_done {
            make(&store, &key, &completion(&lock)).await;
        }
        let update = format!("UPDATE {table} SET {change} WHERE id = '{key}'");
        operator.batch_execute(&update).await.unwrap();
        let read = store.read(&key).await.unwrap_err();
        let refused = store.put(&key, &puts::claim(super::fixtures::lock())).await.unwrap_err();
        for error in [read, refused] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}: {error}");
            assert!(!error.is_maybe_applied());
            assert!(error.to_string().contains(&format!("`{column}`")), "{change}: {error}");
            assert!(error.to_string().contains(key.as_str()));
            assert!(!format!("{error:?}").contains("secret"));
        }
    }
}

#[tokio::test]
async fn errors_describe_the_unreadable_format() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (operator, table) = (server.client().await, store.table());
    for (change, says) in [
        ("version = 2", "`version` is 2, but this library reads only version 3; use the release"),
        ("version = 4", "`version` is 4, but this library reads only version 3; update"),
        ("mark = 'later'", "`mark` has a value that this release of lambda-idempotency doesn't know; update"),
    ] {
        let (key, lock) = (key(change), lock());
        make(&store, &key, &puts::claim(lock.clone())).await;
        make(&store, &key, &completion(&lock)).await;
        let update = format!("UPDATE {table} SET {change} WHERE id = '{key}'");
        operator.batch_execute(&update).await.unwrap();
        let error = store.read(&key).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_response_of_one_gibibyte_is_unstorable() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let (key, lock) = (key("huge"), lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    // These zeros use no memory, since the system provides a page of memory only once it's written to.
    let kept = vec![0; 1 << 30];
    let response = StoredResponse {
        deflated: false,
        length: kept.len() as u64,
        sha256: [0; 32],
        labels: None,
        place: Place::Inline(kept.into()),
    };
    let settlement = Settlement::Complete(Outcome::Retained(response), later(100));
    let settle = puts::settle(&lock, settlement);
    let error = store.put(&key, &settle).await.unwrap_err();
    assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Unstorable, false), "{error:?}");
    make(&store, &key, &completion(&lock)).await;
}

#[tokio::test]
async fn scans_return_all_records_in_key_order() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let operator = server.client().await;
    make(&store, &key("first"), &puts::claim(lock())).await;
    let table = store.table();
    let many = format!(
        "INSERT INTO {table} SELECT 'f/o#' || to_char(n, 'FM0000'), version, status, owner, generation, attempt, \
         CASE WHEN n = 700 THEN 'nonsense' ELSE fingerprint END, claimed_at, lease_until, expires_at \
         FROM {table}, generate_series(1, 1200) n"
    );
    operator.batch_execute(&many).await.unwrap();
    let (mut position, mut keys, mut unreadable, mut pages) = (None, Vec::new(), Vec::new(), 0);
    loop {
        let page = store.scan(position).await.unwrap();
        pages += 1;
        for (key, record) in page.records {
            if record.is_err() {
                unreadable.push(key.to_string());
            }
            keys.push(key.to_string());
        }
        position = page.next;
        if position.is_none() {
            break;
        }
    }
    assert_eq!((keys.len(), pages), (1201, 3));
    assert!(keys.is_sorted());
    assert_eq!(unreadable, ["f/o#0700"]);
}

/// A scan doesn't load the responses, but reports a record whose response is missing.
#[tokio::test]
async fn a_scan_leaves_responses_unread() {
    let server = server!();
    let (store, operator) = (server.store(|builder| builder).await, server.client().await);
    let (whole, broken) = (key("a"), key("b"));
    for key in [&whole, &broken] {
        let lock = lock();
        make(&store, key, &puts::claim(lock.clone())).await;
        make(&store, key, &completion(&lock)).await;
    }
    let sql = format!("UPDATE {} SET response = NULL WHERE id = '{broken}'", store.table());
    operator.batch_execute(&sql).await.unwrap();
    let page = store.scan(None).await.unwrap();
    for (key, record) in page.records {
        if key == broken {
            assert!(record.unwrap_err().to_string().contains("`response` is missing"));
            continue;
        }
        let State::Completed(Outcome::Retained(found)) = record.unwrap().state else { panic!("{key}") };
        let read = store.read(&key).await.unwrap().unwrap();
        let State::Completed(Outcome::Retained(kept)) = read.state else { panic!("{key}") };
        assert_eq!(found.place, Place::Inline(bytes::Bytes::new()));
        assert_eq!((found.length, found.sha256), (kept.length, kept.sha256));
    }
}

/// A response of 6 MB, which is Lambda's limit, fits into the record's row.
#[tokio::test]
async fn large_responses_round_trip() {
    let server = server!();
    let store = server.store(|builder| builder).await;
    let mut random = Random::new(7);
    let response: Vec<u8> = (0..6 * 1024 * 1024).map(|_| random.below(256) as u8).collect();
    let outcome = Outcome::Retained(StoredResponse::new(response.into()));
    let (key, lock) = (key("large"), lock());
    make(&store, &key, &puts::claim(lock.clone())).await;
    let settlement = Settlement::Complete(outcome.clone(), later(100));
    let settle = puts::settle(&lock, settlement);
    make(&store, &key, &settle).await;
    let record = store.read(&key).await.unwrap().unwrap();
    assert_eq!(record.state, lambda_idempotency::store::State::Completed(outcome));
}
