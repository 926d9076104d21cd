//! Tests each conjunct of each write's condition. The tests change one field of the expected record at a time. If the
//! condition names that field, the store refuses the write and leaves the record unchanged. Otherwise the store applies
//! the write.

use std::time::Duration;

use lambda_idempotency::{
    Fingerprint,
    store::{Generation, Lock, Outcome, Record, Revision, State, Store, StoreErrorKind, Write, WriteOutcome},
    time::Timestamp,
};

use super::{
    emulator::{Item, Table},
    fixtures::{
        completed, every_form, in_parts, inline, item, key, lasting_lock, lock, ms, next_lock, owner,
        release, resolve, s, settle, settlements, started, with_state,
    },
};

/// Returns copies of `base`, each with one changed field, and that field's name.
fn one_field_apart(base: &Record) -> Vec<(&'static str, Record)> {
    let later = |time: Timestamp| ms(time.as_millis() + 1);
    let earlier = |time: Timestamp| ms(time.as_millis() - 1);
    let mut apart = vec![
        ("owner", Record { owner: owner(0x0b), ..base.clone() }),
        ("generation", Record { generation: Generation::new(base.generation.get() + 1), ..base.clone() }),
        ("generation", Record { generation: Generation::new(base.generation.get() - 1), ..base.clone() }),
        ("lock_acquired_at", Record { lock_acquired_at: later(base.lock_acquired_at), ..base.clone() }),
        ("lock_acquired_at", Record { lock_acquired_at: earlier(base.lock_acquired_at), ..base.clone() }),
        ("interrupted", Record { interrupted: !base.interrupted, ..base.clone() }),
        ("fingerprint", Record { fingerprint: Fingerprint::from_digest([0xf2; 32]), ..base.clone() }),
        ("attempt", Record { attempt: 7, ..base.clone() }),
        ("request_id", Record { request_id: None, ..base.clone() }),
    ];
    let second = Duration::from_secs(1);
    let mut expiries: Vec<_> = match base.expires_at {
        Some(there) => vec![Some(there.saturating_add(second)), Some(there.saturating_sub(second))],
        None => vec![lock().expires_at, Some(ms(0))],
    };
    // Only a STARTED record may lack an expiry.
    if base.expires_at.is_some() && base.lease_until().is_some() {
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

/// Checks that, besides the status, `conjuncts` are exactly the fields in which the stored record must equal `base`. If
/// the record differs from `base` in one of these fields, the store must refuse the write. If the record differs in
/// another field, or doesn't differ, the store must apply the write.
async fn has_exactly(table: &Table, name: &str, write: &Write, base: &Record, conjuncts: &[&str]) {
    let key = key();
    let mut tried: Vec<&str> = Vec::new();
    for (field, record) in std::iter::once(("nothing", base.clone())).chain(one_field_apart(base)) {
        let before = item(&key, &record);
        table.put(before.clone()).await;
        let written = table.store.apply(&key, write).await.unwrap();
        let after = table.record_item(&key).await.unwrap();
        if conjuncts.contains(&field) {
            tried.push(field);
            assert_eq!(
                written,
                WriteOutcome::Refused(Some(record)),
                "{name} on a record that differs in {field}"
            );
            assert_eq!(after, before, "{name} was refused, but changed a record that differs in {field}");
        } else {
            let expected = write.apply_to(Some(&record)).unwrap();
            assert_eq!(written, WriteOutcome::Applied, "{name} on a record that differs in {field}");
            assert_eq!(after, item(&key, &expected), "{name} on a record that differs in {field}");
            assert_eq!(table.store.read(&key).await.unwrap(), Some(expected));
        }
    }
    tried.dedup();
    assert_eq!(tried.len(), conjuncts.len(), "{name}: {tried:?}");
}

/// Checks that the write is refused for `record`, and that the refusal returns the record.
async fn refuses(table: &Table, name: &str, write: &Write, record: &Record) {
    let before = item(&key(), record);
    table.put(before.clone()).await;
    let written = table.store.apply(&key(), write).await.unwrap();
    assert_eq!(written, WriteOutcome::Refused(Some(record.clone())), "{name} on {:?}", record.status());
    assert_eq!(table.record_item(&key()).await, Some(before), "{name} on {:?}", record.status());
}

/// Checks that the store doesn't apply the write to the item `before`: the STARTED record that the write expects, but
/// with the status of a settled one. The item still has a lease, which a settled record can't have. So the store
/// reports the item as corrupt, and leaves it unchanged.
async fn status_alone_refuses(table: &Table, name: &str, write: &Write, before: Item) {
    table.put(before.clone()).await;
    let error = table.store.apply(&key(), write).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{name}");
    assert!(!error.is_maybe_applied(), "{name}");
    assert_eq!(table.record_item(&key()).await, Some(before), "{name}");
}

async fn refuses_the_absent(name: &str, write: &Write) {
    let table = Table::new().await;
    let written = table.store.apply(&key(), write).await.unwrap();
    assert_eq!(written, WriteOutcome::Refused(None), "{name}");
    assert_eq!(table.items().await, [], "{name}");
}

fn every_state() -> Vec<Record> {
    [started_records().to_vec(), settled_records()].concat()
}

/// A STARTED record that expires, and one that never does.
fn started_records() -> [Record; 2] {
    [started(), lasting_lock().into()]
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
async fn t1_claims_only_absent_records() {
    let table = Table::new().await;
    let claim = Write::Claim(lock());
    assert_eq!(table.store.apply(&key(), &claim).await.unwrap(), WriteOutcome::Applied);
    assert_eq!(table.items().await, [item(&key(), &started())]);
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
    for record in every_state() {
        refuses(&table, "T1", &Write::Claim(next_lock()), &record).await;
    }
}

#[tokio::test]
async fn t2_requires_the_settled_record_unchanged() {
    let table = Table::new().await;
    for base in [completed(), with_state(State::Failed(in_parts())), with_state(State::Released)] {
        let reclaim = Write::Reclaim { seen: Revision::of(&base), lock: next_lock() };
        has_exactly(&table, "T2 settled", &reclaim, &base, &["owner", "generation", "expires_at"]).await;
        for other in every_state().into_iter().filter(|other| other.status() != base.status()) {
            refuses(&table, "T2 settled, status", &reclaim, &other).await;
        }
        refuses_the_absent("T2 settled", &reclaim).await;
    }
}

#[tokio::test]
async fn t2_requires_the_started_record_unchanged() {
    let table = Table::new().await;
    for base in started_records() {
        let reclaim = Write::Reclaim { seen: Revision::of(&base), lock: next_lock() };
        let conjuncts = ["owner", "generation", "expires_at", "lease_until"];
        has_exactly(&table, "T2 STARTED", &reclaim, &base, &conjuncts).await;
        for other in settled_records() {
            refuses(&table, "T2 STARTED, status", &reclaim, &other).await;
        }
        for status in ["COMPLETED", "FAILED", "RELEASED"] {
            let mut before = item(&key(), &base);
            before.insert("status".into(), s(status));
            status_alone_refuses(&table, "T2 STARTED, status", &reclaim, before).await;
        }
        refuses_the_absent("T2 STARTED", &reclaim).await;
    }
}

#[tokio::test]
async fn t2_keeps_nothing_of_the_old_record() {
    let table = Table::new().await;
    let mut before = item(&key(), &completed());
    before.insert("added_by_hand".into(), s("x"));
    table.put(before).await;
    let lock = Lock { request_id: None, ..next_lock() };
    let reclaim = Write::Reclaim { seen: Revision::of(&completed()), lock: lock.clone() };
    assert_eq!(table.store.apply(&key(), &reclaim).await.unwrap(), WriteOutcome::Applied);
    assert_eq!(table.record_item(&key()).await, Some(item(&key(), &lock.into())));
}

#[tokio::test]
async fn t3_requires_the_stale_claim_unchanged() {
    let table = Table::new().await;
    for base in started_records() {
        for lock in every_form(&next_lock()) {
            let name = format!("T3 by {lock:?}");
            let take_over = Write::TakeOver { seen: Revision::of(&base), lock };
            let conjuncts = ["owner", "generation", "lock_acquired_at", "lease_until"];
            has_exactly(&table, &name, &take_over, &base, &conjuncts).await;
            for other in settled_records() {
                refuses(&table, &name, &take_over, &other).await;
            }
            for status in ["COMPLETED", "FAILED", "RELEASED"] {
                let mut before = item(&key(), &base);
                before.insert("status".into(), s(status));
                status_alone_refuses(&table, &name, &take_over, before).await;
            }
            refuses_the_absent(&name, &take_over).await;
        }
    }
}

#[tokio::test]
async fn t7_requires_the_owners_claim() {
    let table = Table::new().await;
    for base in started_records() {
        for expires_at in [next_lock().expires_at, None] {
            let write = Write::Extend {
                owner: base.owner,
                generation: base.generation,
                lease_until: next_lock().lease_until,
                expires_at,
            };
            let name = format!("T7 to {expires_at:?}");
            has_exactly(&table, &name, &write, &base, &["owner", "generation"]).await;
            for other in settled_records() {
                refuses(&table, &name, &write, &other).await;
            }
            refuses_the_absent(&name, &write).await;
        }
    }
}

#[tokio::test]
async fn conclusions_require_the_version_seen() {
    let table = Table::new().await;
    let version = ["owner", "generation", "lock_acquired_at", "expires_at", "lease_until"];
    for base in started_records() {
        let write = Write::Conclude { seen: Some(Revision::of(&base)), record: completed() };
        has_exactly(&table, "conclusion, STARTED", &write, &base, &version).await;
        for other in settled_records() {
            refuses(&table, "conclusion, STARTED", &write, &other).await;
        }
        refuses_the_absent("conclusion, STARTED", &write).await;
    }
    for base in settled_records() {
        // The protocol never concludes with a STARTED record, but a store must accept one, even one without an expiry.
        let write = Write::Conclude { seen: Some(Revision::of(&base)), record: lasting_lock().into() };
        has_exactly(&table, "conclusion, settled", &write, &base, &version[..4]).await;
        refuses_the_absent("conclusion, settled", &write).await;
    }
}

#[tokio::test]
async fn t4_to_t6_require_the_owners_claim() {
    let table = Table::new().await;
    for (name, settlement) in settlements() {
        let write = settle(settlement);
        for base in started_records() {
            has_exactly(&table, name, &write, &base, &["owner", "generation"]).await;
        }
        for other in settled_records() {
            refuses(&table, &format!("{name}, status"), &write, &other).await;
        }
        refuses_the_absent(name, &write).await;
    }
}

#[tokio::test]
async fn operator_writes_require_started_records_unchanged() {
    let table = Table::new().await;
    for base in started_records() {
        for (name, settlement) in settlements() {
            let (name, write) = (format!("operator, STARTED, as {name}"), resolve(&base, settlement));
            let conjuncts = ["owner", "generation", "lock_acquired_at", "expires_at", "lease_until"];
            has_exactly(&table, &name, &write, &base, &conjuncts).await;
            for other in settled_records() {
                refuses(&table, &name, &write, &other).await;
            }
            for status in ["COMPLETED", "FAILED", "RELEASED"] {
                let mut before = item(&key(), &base);
                before.insert("status".into(), s(status));
                status_alone_refuses(&table, &name, &write, before).await;
            }
            refuses_the_absent(&name, &write).await;
        }
    }
}

#[tokio::test]
async fn operator_writes_require_settled_records_unchanged() {
    let table = Table::new().await;
    for base in settled_records() {
        for (name, settlement) in settlements() {
            let (name, write) =
                (format!("operator, {:?}, as {name}", base.status()), resolve(&base, settlement));
            let conjuncts = ["owner", "generation", "lock_acquired_at", "expires_at"];
            has_exactly(&table, &name, &write, &base, &conjuncts).await;
        }
        let write = resolve(&base, release(false));
        for other in every_state().into_iter().filter(|other| other.status() != base.status()) {
            refuses(&table, "operator, status", &write, &other).await;
        }
        refuses_the_absent("operator", &write).await;
    }
}

#[tokio::test]
async fn settlements_ignore_the_clock() {
    // The lease expired long ago, and no other delivery took over the claim.
    let table = Table::new().await;
    let old = Lock { lease_until: ms(1000), expires_at: Some(ms(2000)), lock_acquired_at: ms(1), ..lock() };
    table.put(item(&key(), &old.into())).await;
    let written = table.store.apply(&key(), &settle(release(false))).await.unwrap();
    assert_eq!(written, WriteOutcome::Applied);
}

#[tokio::test]
async fn impossible_versions_are_refused() {
    let table = Table::new().await;
    table.put(item(&key(), &started())).await;
    let seen = Revision { lease_until: None, ..Revision::of(&started()) };
    for write in [Write::Reclaim { seen, lock: next_lock() }, Write::TakeOver { seen, lock: next_lock() }] {
        assert_eq!(table.store.apply(&key(), &write).await.unwrap(), WriteOutcome::Refused(Some(started())));
    }
    let resolve = |seen| Write::Resolve {
        seen,
        owner: owner(1),
        generation: Generation::new(1),
        settlement: release(false),
    };
    let written = table.store.apply(&key(), &resolve(seen)).await.unwrap();
    assert_eq!(written, WriteOutcome::Refused(Some(started())));
    let table = Table::new().await;
    table.put(item(&key(), &completed())).await;
    let seen = Revision { lease_until: Some(ms(1)), ..Revision::of(&completed()) };
    let written = table.store.apply(&key(), &resolve(seen)).await.unwrap();
    assert_eq!(written, WriteOutcome::Refused(Some(completed())));
    let endless = Revision { expires_at: None, ..Revision::of(&completed()) };
    for seen in [seen, endless] {
        let conclusion = Write::Conclude { seen: Some(seen), record: completed() };
        for write in [Write::Reclaim { seen, lock: next_lock() }, resolve(seen), conclusion] {
            let written = table.store.apply(&key(), &write).await.unwrap();
            assert_eq!(written, WriteOutcome::Refused(Some(completed())));
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
            (byte, store.apply(&key(), &Write::Claim(lock)).await.unwrap())
        });
    }
    let answers = claims.join_all().await;
    let winners: Vec<_> = answers.iter().filter(|(_, written)| *written == WriteOutcome::Applied).collect();
    assert_eq!(winners.len(), 1);
    let winner = Record { owner: owner(winners[0].0), ..started() };
    for (byte, written) in &answers {
        if *byte != winners[0].0 {
            assert_eq!(*written, WriteOutcome::Refused(Some(winner.clone())));
        }
    }
}
