//! Tests each conjunct of each put's condition. The tests change one field of the expected record at a time. If the
//! condition names that field, the store refuses the put and leaves the item unchanged. Otherwise, the store applies the
//! put.

use std::time::Duration;

use lambda_idempotency::{
    Fingerprint,
    settings::Execution,
    store::{Generation, Lock, Outcome, Put, PutOutcome, Record, State, Store, StoreErrorKind},
    time::Timestamp,
};
use testkit::puts;

use super::{
    emulator::{Item, Table},
    fixtures::{
        completed, concluded, every_form, in_parts, inline, item, key, lasting_lock, lock, ms, next_lock,
        owner, release, resolve, s, settlements, started, with_state,
    },
};

/// The attributes that a `Replace` compares besides the status. A settled record has no lease.
const VERSION: [&str; 4] = ["owner", "generation", "expires_at", "lease_until"];
/// The attributes that a `Mine` compares besides the status.
const CLAIM: &[&str] = &["owner", "generation"];

/// Returns copies of `base`, each with one changed field, and that field's name.
fn one_field_apart(base: &Record) -> Vec<(&'static str, Record)> {
    let later = |time: Timestamp| ms(time.as_millis() + 1);
    let earlier = |time: Timestamp| ms(time.as_millis() - 1);
    let mut apart = vec![
        ("owner", Record { owner: owner(0x0b), ..base.clone() }),
        ("generation", Record { generation: Generation::new(base.generation.get() + 1), ..base.clone() }),
        ("generation", Record { generation: Generation::new(base.generation.get() - 1), ..base.clone() }),
        ("lock_acquired_at", Record { lock_acquired_at: later(base.lock_acquired_at), ..base.clone() }),
        ("interrupted", Record { mark: (!base.mark.is_interrupted()).into(), ..base.clone() }),
        ("fingerprint", Record { fingerprint: Fingerprint::from_digest([0xf2; 32]), ..base.clone() }),
        ("attempt", Record { attempt: 7, ..base.clone() }),
        ("request_id", Record { request_id: None, ..base.clone() }),
    ];
    let second = Duration::from_secs(1);
    let mut expiries: Vec<_> = match base.expires_at {
        Some(there) => vec![Some(there.saturating_add(second)), Some(there.saturating_sub(second))],
        None => vec![lock().expires_at, Some(ms(0))],
    };
    // Only an at-most-once claim may lack an expiry.
    if base.expires_at.is_some() && base.is_at_most_once_claim() {
        expiries.push(None);
    }
    apart
        .extend(expiries.into_iter().map(|expires_at| ("expires_at", Record { expires_at, ..base.clone() })));
    if let Some(lease_until) = base.lease_until() {
        for lease_until in [later(lease_until), earlier(lease_until)] {
            let state = State::Started { lease_until };
            apart.push(("lease_until", Record { state, ..base.clone() }));
        }
    }
    apart
}

/// The item of `record`, with an attribute that another program added.
fn with_addition(record: &Record) -> Item {
    let mut item = item(&key(), record);
    item.insert("added_by_hand".into(), s("x"));
    item
}

/// Whether the put writes `field`, or all of the record, although its condition doesn't compare it. The other fields
/// never differ from the expected record under one owner and generation.
fn writes(put: &Put, field: &str) -> bool {
    let is_settled = ["expires_at", "lease_until", "interrupted"].contains(&field);
    field == "nothing" || put.begins_anew() || (matches!(put, Put::Mine { .. }) && is_settled)
}

/// Checks that, besides the status, `conjuncts` are exactly the fields in which the stored record must equal `base`.
/// After the put, the item is the new record, and has the addition only if the put doesn't begin anew.
async fn has_exactly(table: &Table, put: &Put, base: &Record, conjuncts: &[&str]) {
    let mut tried: Vec<&str> = Vec::new();
    for (field, record) in std::iter::once(("nothing", base.clone())).chain(one_field_apart(base)) {
        let before = with_addition(&record);
        table.put(before.clone()).await;
        let written = table.store.put(&key(), put).await.unwrap();
        let after = table.record_item(&key()).await.unwrap();
        let what = format!("on a record that differs in {field}: {put:?}");
        if conjuncts.contains(&field) {
            tried.push(field);
            assert_eq!((written, after), (PutOutcome::Refused(Some(record)), before), "{what}");
            continue;
        }
        assert_eq!(written, PutOutcome::Applied, "{what}");
        if writes(put, field) {
            let new = put.record();
            let expected = if put.begins_anew() { item(&key(), new) } else { with_addition(new) };
            assert_eq!(
                (after, table.store.read(&key()).await.unwrap().as_ref()),
                (expected, Some(new)),
                "{what}"
            );
        }
    }
    tried.dedup();
    assert_eq!(tried.len(), conjuncts.len(), "{put:?}: {tried:?}");
}

/// Checks that the put is refused for `record`, and that the refusal returns the record.
async fn refuses(table: &Table, put: &Put, record: &Record) {
    let before = item(&key(), record);
    table.put(before.clone()).await;
    let written = table.store.put(&key(), put).await.unwrap();
    assert_eq!(written, PutOutcome::Refused(Some(record.clone())), "{put:?}");
    assert_eq!(table.record_item(&key()).await, Some(before), "{put:?}");
}

/// Checks that the store doesn't apply the put to the STARTED record that it expects, but with the status of a settled
/// one. The item still has a lease, which a settled record can't have. So the store reports the item as corrupt, and
/// leaves it unchanged.
async fn status_alone_refuses(table: &Table, put: &Put, base: &Record) {
    for status in ["COMPLETED", "FAILED", "RELEASED"] {
        let mut before = item(&key(), base);
        before.insert("status".into(), s(status));
        table.put(before.clone()).await;
        let error = table.store.put(&key(), put).await.unwrap_err();
        assert_eq!((error.kind(), error.is_maybe_applied()), (StoreErrorKind::Corrupt, false), "{put:?}");
        assert_eq!(table.record_item(&key()).await, Some(before), "{put:?}");
    }
}

async fn refuses_the_absent(put: &Put) {
    let table = Table::new().await;
    assert_eq!(table.store.put(&key(), put).await.unwrap(), PutOutcome::Refused(None), "{put:?}");
    assert_eq!(table.items().await, [], "{put:?}");
}

fn every_state() -> Vec<Record> {
    [started_records().to_vec(), settled_records()].concat()
}

/// A claim that may run again, and at-most-once claims with and without an expiry.
fn started_records() -> [Record; 3] {
    let once = Record { execution: Execution::AtMostOnce, ..started() };
    [started(), once, lasting_lock().into()]
}

fn settled_records() -> Vec<Record> {
    vec![
        completed(),
        with_state(State::Completed(in_parts())),
        with_state(State::Completed(Outcome::Omitted)),
        with_state(State::Failed(inline())),
        with_state(State::Released),
    ]
}

#[tokio::test]
async fn creates_require_that_no_record_exists() {
    let table = Table::new().await;
    for put in [puts::claim(lock()), puts::conclude(None, completed())] {
        let table = Table::new().await;
        assert_eq!(table.store.put(&key(), &put).await.unwrap(), PutOutcome::Applied);
        assert_eq!(table.items().await, [item(&key(), put.record())]);
        assert_eq!(table.store.read(&key()).await.unwrap().as_ref(), Some(put.record()));
    }
    for record in every_state() {
        refuses(&table, &puts::claim(next_lock()), &record).await;
        refuses(&table, &puts::conclude(None, concluded()), &record).await;
    }
}

/// Puts of every kind that replace `seen`.
fn replacements(seen: &Record) -> Vec<Put> {
    let other_request = Lock { fingerprint: Fingerprint::from_digest([0xf3; 32]), ..next_lock() };
    let mut replacements = vec![
        puts::reclaim(seen, Lock { request_id: None, ..other_request }),
        puts::conclude(Some(seen), concluded()),
        // The protocol never concludes with a STARTED record, but a store must accept one.
        puts::conclude(Some(seen), puts::lasting(next_lock()).into()),
    ];
    replacements.extend(settlements().into_iter().map(|(_, settlement)| resolve(seen, settlement)));
    if let Some(lease_until) = seen.lease_until() {
        replacements.extend(every_form(&next_lock()).into_iter().map(|lock| puts::take_over(seen, lock)));
        let never = if seen.is_at_most_once_claim() { None } else { seen.expires_at };
        for expires_at in [next_lock().expires_at, never] {
            replacements.push(puts::extend(
                &seen.lock_until(lease_until),
                next_lock().lease_until,
                expires_at,
            ));
        }
    }
    replacements
}

#[tokio::test]
async fn replacements_require_the_version_seen() {
    let table = Table::new().await;
    for base in every_state() {
        for put in replacements(&base) {
            let is_started = base.lease_until().is_some();
            has_exactly(&table, &put, &base, &VERSION[..if is_started { 4 } else { 3 }]).await;
            for other in every_state().into_iter().filter(|other| other.status() != base.status()) {
                refuses(&table, &put, &other).await;
            }
            if is_started {
                status_alone_refuses(&table, &put, &base).await;
            }
        }
        refuses_the_absent(&puts::reclaim(&base, next_lock())).await;
        refuses_the_absent(&resolve(&base, release(false))).await;
    }
}

#[tokio::test]
async fn settlements_require_the_owners_claim() {
    let table = Table::new().await;
    // The lease of the third claim expired long ago, and no other delivery took it over.
    let stale = Lock { lease_until: ms(1000), expires_at: Some(ms(2000)), lock_acquired_at: ms(1), ..lock() };
    for held in [lock(), lasting_lock(), stale] {
        for (_, settlement) in settlements() {
            let put = puts::settle(&held, settlement);
            has_exactly(&table, &put, &held.clone().into(), CLAIM).await;
            for other in settled_records() {
                refuses(&table, &put, &other).await;
            }
            refuses_the_absent(&put).await;
        }
    }
}

#[tokio::test]
async fn concurrent_claims_have_one_winner() {
    let table = Table::new().await;
    let mut claims = tokio::task::JoinSet::new();
    for byte in 0..20 {
        let store = table.store.clone();
        claims.spawn(async move {
            let lock = Lock { owner: owner(byte), ..lock() };
            (byte, store.put(&key(), &puts::claim(lock)).await.unwrap())
        });
    }
    let answers = claims.join_all().await;
    let winners: Vec<_> = answers.iter().filter(|(_, written)| *written == PutOutcome::Applied).collect();
    assert_eq!(winners.len(), 1);
    let winner = Record { owner: owner(winners[0].0), ..started() };
    for (byte, written) in &answers {
        if *byte != winners[0].0 {
            assert_eq!(*written, PutOutcome::Refused(Some(winner.clone())));
        }
    }
}
