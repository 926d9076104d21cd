//! Records, writes and items for the tests. The tests build items by hand, so that the store's own codec
//! doesn't check itself.

use std::sync::Arc;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;
use lambda_idempotency::{
    Fingerprint, StoredKey,
    settings::Execution,
    store::{Generation, Lock, Mark, Outcome, Owner, Place, Put, Record, State, StoredResponse},
    time::Timestamp,
};
use testkit::puts::{self, Settlement};

use super::emulator::Item;

pub(crate) const ID: &str = "payments/http#3a4609cda346ba94474b7e0b6f99f20edcb2c87287c4596f213e78a81093acd4";

pub(crate) fn key() -> StoredKey {
    StoredKey::from_stored(ID)
}

pub(crate) fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

pub(crate) const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn lock() -> Lock {
    Lock {
        owner: owner(0x0a),
        generation: Generation::new(1_795_000_000_123),
        attempt: 1,
        fingerprint: Fingerprint::from_digest([0xf1; 32]),
        lock_acquired_at: ms(1_795_000_000_124),
        lease_until: ms(1_795_000_060_125),
        execution: Execution::AtLeastOnce,
        expires_at: Some(ms(2_095_086_461_000)),
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
        expires_at: Some(ms(2_095_086_531_000)),
        mark: Mark::Interrupted,
        request_id: Some(Arc::from("another-request")),
        trace: None,
    }
}

pub(crate) fn started() -> Record {
    lock().into()
}

/// The lock of an at-most-once claim that follows an interrupted one.
pub(crate) fn lasting_lock() -> Lock {
    Lock { mark: Mark::Interrupted, ..puts::lasting(lock()) }
}

/// Returns the lock in every combination of its optional fields: an expiry, an interruption, a request id, a trace.
pub(crate) fn every_form(lock: &Lock) -> Vec<Lock> {
    let mut forms = Vec::new();
    for lock in [lock.clone(), puts::lasting(lock.clone())] {
        for interrupted in [false, true] {
            for request_id in [lock.request_id.clone(), None] {
                for trace in [Some("1-5759e988-bd862e3fe1be46a994272793".to_owned().into()), None] {
                    forms.push(Lock {
                        mark: interrupted.into(),
                        request_id: request_id.clone(),
                        trace,
                        ..lock.clone()
                    });
                }
            }
        }
    }
    forms
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

pub(crate) fn in_parts() -> Outcome {
    Outcome::Retained(StoredResponse {
        deflated: true,
        length: 6_000_000,
        sha256: [0x5b; 32],
        labels: None,
        place: Place::Chunks(16),
    })
}

/// An expiry in 2036, like most in these tests, because DynamoDB Local removes expired items.
pub(crate) const SETTLED_UNTIL: Timestamp = ms(2_095_086_500_000);

pub(crate) fn release(interrupted: bool) -> Settlement {
    Settlement::Release { expires_at: ms(2_095_086_470_000), interrupted }
}

pub(crate) fn with_state(state: State) -> Record {
    Record { state, ..started() }
}

pub(crate) fn completed() -> Record {
    with_state(State::Completed(inline()))
}

/// The record of a run without a claim.
pub(crate) fn concluded() -> Record {
    Record { state: State::Completed(inline()), ..next_lock().into() }
}

/// Returns named settlements, one for each form of the request to DynamoDB.
pub(crate) fn settlements() -> Vec<(&'static str, Settlement)> {
    vec![
        ("T4 inline", Settlement::Complete(inline(), SETTLED_UNTIL)),
        ("T4 parts", Settlement::Complete(in_parts(), SETTLED_UNTIL)),
        ("T4 omitted", Settlement::Complete(Outcome::Omitted, SETTLED_UNTIL)),
        ("T5 inline", Settlement::Fail(inline(), SETTLED_UNTIL)),
        ("T5 parts", Settlement::Fail(in_parts(), SETTLED_UNTIL)),
        ("T5 omitted", Settlement::Fail(Outcome::Omitted, SETTLED_UNTIL)),
        ("T6", release(false)),
        ("T6 interrupted", release(true)),
    ]
}

pub(crate) fn settle(settlement: Settlement) -> Put {
    puts::settle(&lock(), settlement)
}

/// An operator's write that requires `record` to be unchanged.
pub(crate) fn resolve(record: &Record, settlement: Settlement) -> Put {
    let (owner, generation) = (owner(0xcc), Generation::new(1_795_000_080_004));
    puts::resolve(record, owner, generation, settlement)
}

pub(crate) fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub(crate) fn b(bytes: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes.to_vec()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Builds `record` as an item with the default attribute names.
pub(crate) fn item(key: &StoredKey, record: &Record) -> Item {
    let mut item = Item::from([
        ("id".to_owned(), s(key.as_str())),
        ("version".to_owned(), n(3)),
        ("status".to_owned(), s(record.status().as_str())),
        ("owner".to_owned(), b(record.owner.as_bytes())),
        ("generation".to_owned(), n(record.generation.get())),
        ("attempt".to_owned(), n(record.attempt)),
        ("fingerprint".to_owned(), b(&fingerprint(&record.fingerprint))),
        ("claimed_at".to_owned(), n(record.lock_acquired_at.as_millis())),
    ]);
    if let Some(expires_at) = record.expires_at {
        item.insert("expires_at".into(), n(expires_at.as_millis() / 1000));
    }
    if record.mark.is_interrupted() {
        item.insert("mark".into(), s("interrupted"));
    }
    if record.execution == Execution::AtMostOnce {
        item.insert("execution".into(), s("at-most-once"));
    }
    if let Some(trace) = &record.trace {
        item.insert("trace".into(), s(&**trace));
    }
    if let Some(request_id) = &record.request_id {
        item.insert("request_id".into(), s(&**request_id));
    }
    match &record.state {
        State::Started { lease_until } => {
            item.insert("lease_until".into(), n(lease_until.as_millis()));
        }
        State::Released => {}
        State::Completed(outcome) | State::Failed(outcome) => put_outcome(&mut item, outcome),
    }
    item
}

fn put_outcome(item: &mut Item, outcome: &Outcome) {
    let Outcome::Retained(response) = outcome else {
        item.insert("encoding".into(), s("omitted"));
        return;
    };
    item.insert("sha256".into(), b(&response.sha256));
    match &response.place {
        Place::Inline(kept) => {
            item.insert("response".into(), b(kept));
            if response.deflated {
                item.insert("encoding".into(), s("deflate"));
                item.insert("length".into(), n(response.length));
            }
        }
        Place::Chunks(count) => {
            let how = if response.deflated { "deflate" } else { "identity" };
            item.insert("encoding".into(), s(format!("{how}/{count}")));
            item.insert("length".into(), n(response.length));
        }
    }
}

/// The stored form: the version of the rules, and the digest, which the text shows as digits.
pub(crate) fn fingerprint(fingerprint: &Fingerprint) -> Vec<u8> {
    let text = fingerprint.to_string();
    let digits = text.strip_prefix("1:").unwrap();
    let bytes = (0..32).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap());
    [1].into_iter().chain(bytes).collect()
}

/// Formats an item as text, one attribute per line, as in the golden files.
pub(crate) fn shown(item: &Item) -> String {
    let mut lines: Vec<_> = item
        .iter()
        .map(|(name, value)| match value {
            AttributeValue::S(text) => format!("{name} S {text}\n"),
            AttributeValue::N(number) => format!("{name} N {number}\n"),
            AttributeValue::B(bytes) => format!("{name} B {}\n", hex(bytes.as_ref())),
            AttributeValue::Bool(flag) => format!("{name} BOOL {flag}\n"),
            other => format!("{name} {other:?}\n"),
        })
        .collect();
    lines.sort();
    lines.concat()
}
