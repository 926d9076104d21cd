//! Tests of the documented hash, of hashes that aren't valid records, of cases that the conformance suite lacks, and of
//! the scan.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{
        Lock, Outcome, PutOutcome, Record, State, Store, StoreErrorKind, StoredResponse, redis::RedisStore,
    },
};
use testkit::puts::{self, Settlement};

use super::fixtures::{
    EXPIRES_AT, chain, claim, claimed, complete, completed, fresh_key, lasting, lock, ms, next_lock, patient,
    settle, settlements, started, writes_on_started,
};
use testkit::redis::{RedisServer, shared};

/// Returns all fields of a hash. Three of them are bytes, which it returns in hexadecimal digits.
const FIELDS: &str = "local all = redis.call('HGETALL', KEYS[1]) \
    local is_bytes = {owner = true, fingerprint = true, sha256 = true} \
    for at = 1, #all, 2 do if is_bytes[all[at]] then \
        all[at + 1] = string.gsub(all[at + 1], '.', function (c) return string.format('%02x', string.byte(c)) end) \
    end end return all";

fn hash(server: &RedisServer, key: &StoredKey) -> Vec<(String, String)> {
    let answer = server.run(&["EVAL", FIELDS, "1", &format!("idempotency:{key}")]);
    let lines: Vec<&str> = answer.split('\n').collect();
    let mut fields: Vec<_> = lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect();
    fields.sort();
    fields
}

/// Never edit the expected fields: users have such records. A change needs a new version of the format.
#[tokio::test]
async fn hash_fields_are_pinned() {
    let Some(server) = shared() else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    claimed(&store, &key).await;
    let of_lock = [
        ("attempt", "1"),
        ("claimed_at", "1795000000124"),
        ("expires_at", "2524608000000"),
        ("fingerprint", &format!("01{}", "f1".repeat(32))),
        ("generation", "1795000000123"),
        ("lease_until", "1795000060125"),
        ("owner", &"0a".repeat(16)),
        ("request_id", "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10"),
        ("status", "STARTED"),
        ("version", "3"),
    ];
    let owned = |fields: &[(&str, &str)]| -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(hash(server, &key), owned(&of_lock));

    let response = StoredResponse::new(Bytes::from_static(b"done"));
    let settlement = Settlement::Complete(Outcome::Retained(response), ms(EXPIRES_AT + 1000));
    assert_eq!(store.put(&key, &settle(settlement)).await.unwrap(), PutOutcome::Applied);
    let mut of_completed: Vec<_> = of_lock.into_iter().filter(|(name, _)| *name != "lease_until").collect();
    of_completed.retain(|(name, _)| !matches!(*name, "status" | "expires_at"));
    of_completed.extend([
        ("expires_at", "2524608001000"),
        ("response", "done"),
        ("sha256", "a4c3ed04a95a3da14a9d235c83d868bed7c0f45cf7f3faa751ee8f50598d2211"),
        ("status", "COMPLETED"),
    ]);
    of_completed.sort_unstable();
    assert_eq!(hash(server, &key), owned(&of_completed));
}

#[tokio::test]
async fn redis_removes_records_a_day_after_expiry() {
    let Some(server) = shared() else { return };
    let day = 86_400_000;
    for (expires_at, removed_at) in [
        (EXPIRES_AT, (EXPIRES_AT + day).to_string()),
        // A timestamp can be this large, but a Redis expiry can't.
        (u64::MAX / 1000 * 1000, i64::MAX.to_string()),
        (i64::MAX as u64, i64::MAX.to_string()),
        (i64::MAX as u64 - day, i64::MAX.to_string()),
    ] {
        let (store, key) = (patient(&server.url()), fresh_key());
        let removal = || server.run(&["PEXPIRETIME", &format!("idempotency:{key}")]);
        let lock = Lock { expires_at: Some(ms(expires_at)), ..lock() };
        assert_eq!(store.put(&key, &puts::claim(lock.clone())).await.unwrap(), PutOutcome::Applied);
        assert_eq!(removal(), removed_at);
        assert_eq!(store.read(&key).await.unwrap(), Some(Record::from(lock)));
    }
    // Each write that changes the record's expiry also changes the time at which Redis removes the record. If the
    // record has no expiry, Redis never removes it.
    for write in writes_on_started() {
        for lock in [lock(), lasting()] {
            let (store, key) = (patient(&server.url()), fresh_key());
            assert_eq!(store.put(&key, &puts::claim(lock.clone())).await.unwrap(), PutOutcome::Applied);
            let record = Record::from(lock);
            let Some(after) = write.apply_to(Some(&record)) else { continue };
            assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
            let removed_at = after.expires_at.map(|at| (at.as_millis() + day).to_string());
            let removal = server.run(&["PEXPIRETIME", &format!("idempotency:{key}")]);
            assert_eq!(removal, removed_at.unwrap_or_else(|| NEVER.to_owned()), "{write:?}");
        }
    }
}

/// The answer of `PEXPIRETIME` for a key that never expires.
const NEVER: &str = "-1";

/// Redis keeps an at-most-once claim until it's settled. Settling it adds an expiry.
#[tokio::test]
async fn redis_keeps_unsettled_at_most_once_claims() {
    let Some(server) = shared() else { return };
    let (store, key) = (patient(&server.url()), fresh_key());
    let removal = || server.run(&["PEXPIRETIME", &format!("idempotency:{key}")]);
    let has = |field: &str| server.run(&["HEXISTS", &format!("idempotency:{key}"), field]) == "1";
    assert_eq!(store.put(&key, &puts::claim(lasting())).await.unwrap(), PutOutcome::Applied);
    assert_eq!((removal().as_str(), has("expires_at")), (NEVER, false));
    // One extension adds an expiry, and one removes it.
    let mut held = lasting();
    for (lease, expires_at) in [(1_795_000_090_000, Some(ms(EXPIRES_AT))), (1_795_000_091_000, None)] {
        let write = puts::extend(&held, ms(lease), expires_at);
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
        held = write.record().lock_until(ms(lease));
        assert_eq!(removal() == NEVER, expires_at.is_none());
        assert_eq!(has("expires_at"), expires_at.is_some());
        assert_eq!(store.read(&key).await.unwrap().unwrap().expires_at, expires_at);
    }
    let write = puts::settle(&held, Settlement::Complete(Outcome::Omitted, ms(EXPIRES_AT + 1000)));
    assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
    assert_eq!(removal(), (EXPIRES_AT + 1000 + 86_400_000).to_string());
    assert_eq!(store.read(&key).await.unwrap().as_ref(), Some(write.record()));
}

/// The script compares all digits of a lease, as text. A comparison of numbers would round them.
#[tokio::test]
async fn leases_compare_digit_by_digit() {
    let Some(server) = shared() else { return };
    let store = patient(&server.url());
    let edges = [0, 1, 9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX];
    for stored in edges {
        let key = fresh_key();
        for seen in edges {
            server.run(&["DEL", &format!("idempotency:{key}")]);
            let lock = |lease_until| Lock { lease_until: ms(lease_until), ..lock() };
            let record = Record::from(lock(stored));
            assert_eq!(store.put(&key, &puts::claim(lock(stored))).await.unwrap(), PutOutcome::Applied);
            let extended = puts::extend(&lock(seen), ms(5), Some(ms(EXPIRES_AT)));
            let expected = match extended.apply_to(Some(&record)) {
                Some(_) => PutOutcome::Applied,
                None => PutOutcome::Refused(Some(record)),
            };
            assert_eq!(store.put(&key, &extended).await.unwrap(), expected, "{stored} {seen}");
        }
    }
}

/// Applies every write to every record. The version that a write expects is a record's version, or differs from it in
/// one field.
#[tokio::test]
async fn every_write_on_every_record_conforms() {
    let Some(server) = shared() else { return };
    let store = patient(&server.url());
    let failed = Record { state: State::Failed(Outcome::Omitted), ..completed() };
    let released = Record { state: State::Released, ..Record::from(next_lock()) };
    let records = [
        None,
        Some(started()),
        Some(lasting().into()),
        Some(completed()),
        Some(failed),
        Some(released),
        Some(next_lock().into()),
    ];
    let mut writes = writes_on_started();
    writes.push(puts::claim(next_lock()));
    for settlement in settlements() {
        writes.push(puts::settle(&lasting(), settlement));
    }
    for expires_at in [None, Some(ms(EXPIRES_AT))] {
        writes.push(puts::extend(&lasting(), ms(1_795_000_090_000), expires_at));
    }
    writes.push(puts::conclude(None, Record { request_id: None, ..completed() }));
    for record in records.iter().flatten() {
        for seen in changed(record) {
            let lock = Lock { owner: super::fixtures::owner(0xee), ..next_lock() };
            writes.push(puts::reclaim(&seen, Lock { request_id: None, ..lock.clone() }));
            writes.push(puts::take_over(&seen, lock.clone()));
            writes.push(puts::conclude(Some(&seen), completed()));
            let Lock { owner, generation, .. } = lock;
            let settlement = Settlement::Release { expires_at: ms(EXPIRES_AT + 3000), interrupted: true };
            writes.push(puts::resolve(&seen, owner, generation, settlement));
        }
    }
    let key = fresh_key();
    for record in &records {
        for write in &writes {
            server.run(&["DEL", &format!("idempotency:{key}")]);
            if let Some(record) = record {
                let put = puts::conclude(None, record.clone());
                assert_eq!(store.put(&key, &put).await.unwrap(), PutOutcome::Applied);
            }
            let written = store.put(&key, write).await.unwrap();
            let after = store.read(&key).await.unwrap();
            match write.apply_to(record.as_ref()) {
                Some(expected) => {
                    assert_eq!((written, after), (PutOutcome::Applied, Some(expected)), "{write:?}")
                }
                None => {
                    assert_eq!((written, &after), (PutOutcome::Refused(record.clone()), record), "{write:?}")
                }
            }
        }
    }
}

/// Returns `seen`, and copies of it that each differ in one field.
fn changed(seen: &Record) -> Vec<Record> {
    let seen = || seen.clone();
    let started = |lease_until| State::Started { lease_until: ms(lease_until) };
    vec![
        seen(),
        Record { state: State::Failed(Outcome::Omitted), ..seen() },
        Record { state: State::Released, ..seen() },
        Record { state: started(3), ..seen() },
        Record { owner: super::fixtures::owner(0x77), ..seen() },
        Record { generation: lambda_idempotency::store::Generation::new(5), ..seen() },
        Record { lock_acquired_at: ms(2), ..seen() },
        Record { expires_at: Some(ms(1)), ..seen() },
        Record { expires_at: None, ..seen() },
    ]
}

#[tokio::test]
async fn corrupt_hashes_name_the_invalid_field() {
    let Some(server) = shared() else { return };
    let store = patient(&server.url());
    let cases: Vec<(&str, Option<&str>, &str)> = vec![
        ("version", None, "is missing"),
        ("version", Some("2"), "is 2, but this library reads only version 3; use the release"),
        ("version", Some("4"), "is 4, but this library reads only version 3; update"),
        ("version", Some("secret"), "whole number"),
        ("status", None, "is missing"),
        ("status", Some("secret"), "isn't in the form"),
        ("owner", Some("secret"), "isn't in the form"),
        ("owner", Some("0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"), "isn't in the form"),
        ("generation", Some("18446744073709551616"), "whole number"),
        ("generation", Some("01795000000123"), "whole number"),
        ("generation", Some("1.795e12"), "whole number"),
        ("attempt", Some("4294967296"), "whole number"),
        ("fingerprint", Some("secret"), "isn't in the form"),
        ("claimed_at", Some("-1"), "whole number"),
        ("expires_at", Some(""), "whole number"),
        ("expires_at", None, "is missing"),
        ("mark", Some("secret"), "doesn't know; update the library"),
        ("mark", Some("later"), "doesn't know; update the library"),
        ("execution", Some("secret"), "doesn't know; update the library"),
        ("response", None, "is missing"),
        ("encoding", Some("secret"), "isn't in the form"),
        ("encoding", Some("identity"), "doesn't belong"),
        ("length", Some("5"), "doesn't belong"),
        ("sha256", None, "is missing"),
        ("sha256", Some("secret"), "isn't in the form"),
        ("lease_until", Some("1795000060125"), "doesn't belong"),
    ];
    for (field, becomes, why) in cases {
        let key = fresh_key();
        claimed(&store, &key).await;
        assert_eq!(store.put(&key, &complete()).await.unwrap(), PutOutcome::Applied);
        let redis_key = format!("idempotency:{key}");
        match becomes {
            Some(value) => server.run(&["HSET", &redis_key, field, value]),
            None => server.run(&["HDEL", &redis_key, field]),
        };
        let before = hash(server, &key);
        for error in [claim(&store, &key).await.unwrap_err(), store.read(&key).await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{field} {becomes:?}: {error}");
            assert!(!error.is_maybe_applied());
            let text = error.to_string();
            assert!(text.contains(&format!("`{field}`")) && text.contains(why), "{field} {why}: {text}");
            assert!(!chain(&error).contains("secret"), "{}", chain(&error));
        }
        assert_eq!(hash(server, &key), before);
    }
    // The store ignores an unknown field.
    let key = fresh_key();
    claimed(&store, &key).await;
    server.run(&["HSET", &format!("idempotency:{key}"), "colour", "red"]);
    assert_eq!(store.read(&key).await.unwrap(), Some(started()));
}

/// Stores a response of 6 MB, Lambda's limit for a buffered response, and a streamed one of 20 MB. Lambda streams up to
/// 200 MB.
#[tokio::test]
async fn large_responses_stay_in_the_record() {
    let Some(server) = shared() else { return };
    let store = patient(&server.url());
    assert!(store.chunks().is_none() && store.transactions().is_none());
    for length in [6 * 1024 * 1024, 20 * 1024 * 1024] {
        let mut noise = vec![0u8; length];
        let mut state = 1u64;
        for byte in &mut noise {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 33) as u8;
        }
        let outcome = Outcome::Retained(StoredResponse::new(noise.into()));
        let key = fresh_key();
        claimed(&store, &key).await;
        let write = settle(Settlement::Complete(outcome, ms(EXPIRES_AT)));
        assert_eq!(store.put(&key, &write).await.unwrap(), PutOutcome::Applied);
        let found = claim(&store, &key).await.unwrap();
        assert!(
            found == PutOutcome::Refused(write.apply_to(Some(&started()))),
            "{length} bytes were read back differently"
        );
    }
}

#[tokio::test]
async fn scans_find_only_records_with_their_prefix() {
    let Some(server) = RedisServer::start(&[]) else { return };
    let url = format!("{}?prefix=a*%5B:", server.url());
    let store = patient(&url);
    let mut expected = BTreeSet::new();
    for _ in 0..1000 {
        let key = fresh_key();
        claimed(&store, &key).await;
        expected.insert(key);
    }
    for other in ["a[:x", "aX[:x", "b", "a*"] {
        server.run(&["SET", other, "x"]);
    }
    claimed(&patient(&server.url()), &fresh_key()).await;
    server.run(&["SET", "a*[:string", "secret"]);
    let (mut found, mut unreadable) = (BTreeSet::new(), BTreeSet::new());
    let mut position = None;
    loop {
        let page = store.scan(position).await.unwrap();
        for (key, record) in page.records {
            match record {
                Ok(record) => {
                    assert_eq!(record, started());
                    found.insert(key);
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
                    unreadable.insert(key.to_string());
                }
            }
        }
        position = page.next;
        if position.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
    assert_eq!(unreadable, BTreeSet::from(["string".to_owned()]));
}

#[test]
fn invalid_configurations_are_refused() {
    let builder = || RedisStore::builder("redis://:secret@localhost");
    for (error, says) in [
        (RedisStore::new("mysql://u:secret@h").unwrap_err(), "scheme"),
        (builder().attempt_timeout(Duration::ZERO).build().unwrap_err(), "attempt timeout is zero"),
        (builder().operation_timeout(Duration::ZERO).build().unwrap_err(), "operation timeout is zero"),
        (builder().key_prefix("").build().unwrap_err(), "prefix is empty"),
        (builder().node("h:1").build().unwrap_err(), "isn't for a cluster"),
        (RedisStore::builder("redis-cluster://h").node("h").build().unwrap_err(), "isn't HOST:PORT"),
        (
            RedisStore::builder("rediss://h").root_certificates("").build().unwrap_err(),
            "no trusted certificate",
        ),
        (
            RedisStore::builder("rediss://h")
                .root_certificates("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
                .build()
                .unwrap_err(),
            "aren't valid PEM",
        ),
    ] {
        assert_eq!(error.kind(), lambda_idempotency::ErrorKind::Invalid);
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let builder = builder().credentials("user", "hidden");
    assert!(
        !format!("{builder:?}").contains("hidden") && !format!("{builder:?}").contains("secret"),
        "{builder:?}"
    );
    let store = Arc::new(builder.build().unwrap());
    assert!(
        !format!("{store:?}").contains("hidden") && !format!("{store:?}").contains("secret"),
        "{store:?}"
    );
    assert_eq!(store.location(), "redis://localhost:6379/0");
}
