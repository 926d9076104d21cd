//! Fuzzes a record as a table may hold it: written by another version, by hand or by a faulty restore, or invalid.
//!
//! Reading an item must give a record or [`Corrupt`](StoreErrorKind::Corrupt). No handler may run despite a live claim
//! or outcome. A replayed response must match the record's digest. If the record has an outcome, the table's stream
//! must give the same record as a read.

use std::collections::HashMap;

use arbitrary::{Arbitrary as _, Result, Unstructured};
use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Region},
    primitives::Blob,
    types::AttributeValue::{self, B, Bool, L, N, S},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use lambda_idempotency::{
    ErrorKind, Fingerprint, Idempotency, Key, RunError, Scope, StoredKey,
    store::{Outcome, Place, Record, State, StoreErrorKind, dynamodb::DynamoDbStore, memory::MemoryStore},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::block_on;

type Item = HashMap<String, AttributeValue>;

const RESPONSE: &[u8] = b"\"paid\"";
const PAYLOAD: u64 = 1;
/// Every attribute of a record.
const NAMES: [&str; 18] = [
    "id",
    "status",
    "owner",
    "generation",
    "claimed_at",
    "lease_until",
    "expires_at",
    "fingerprint",
    "attempt",
    "response",
    "encoding",
    "length",
    "sha256",
    "request_id",
    "version",
    "mark",
    "execution",
    "trace",
];
/// Contents for attributes: numbers at or beyond a limit, text that isn't quite a number, and words of the format.
const EDGES: [&str; 28] = [
    "",
    "0",
    "-0",
    "-1",
    "1",
    "2",
    "01",
    "+1",
    " 1",
    "1.0",
    "1.5",
    "1E3",
    "NaN",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999",
    "STARTED",
    "COMPLETED",
    "FAILED",
    "RELEASED",
    "omitted",
    "deflate",
    "deflate/4294967295",
    "interrupted",
    "reconciled",
    "at-most-once",
    "3",
];

/// Makes an item from `data`, reads it, and delivers an event whose key has the item's record.
///
/// # Panics
///
/// If the library breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    let mut input = Unstructured::new(data);
    // If the input is too short for a template, the item is a STARTED record.
    let mut item = template(&mut input).unwrap_or_else(|_| started());
    let is_whole = change(&mut item, &mut input).is_ok_and(|changes| changes == 0);
    let read = read(&item);
    stream(&item, read.as_ref());
    match read {
        Some(record) => {
            let marks = ["interrupted", "unanswered", "reconciled"];
            for (name, known) in [("mark", &marks[..]), ("execution", &["at-most-once"][..])] {
                let is_known =
                    item.get(name).is_none_or(|value| known.iter().any(|known| *value == text(*known)));
                assert!(is_known, "read a newer release's record: {item:?}");
            }
            act(&item, record);
        }
        None => assert!(!is_whole, "couldn't read an unchanged record: {item:?}"),
    }
}

fn stored_key() -> StoredKey {
    let scope = Scope::new("fuzz", "run:step").expect("a valid scope");
    StoredKey::new(&scope, &Key::new("key").expect("a valid key"))
}

thread_local! {
    static STORE: DynamoDbStore = store();
}

/// Reads the item with the store. `None` if the store reports that it can't read the item.
fn read(item: &Item) -> Option<Record> {
    match STORE.with(|store| store.record_in(item.clone())) {
        Ok(record) => Some(record),
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error:?}");
            None
        }
    }
}

/// Checks that the table's stream reports this item as ended if, and only if, a read of the item gives an outcome.
fn stream(item: &Item, read: Option<&Record>) {
    let key = stored_key();
    if item.get("id") != Some(&S(key.to_string())) {
        return;
    }
    let image: serde_json::Map<_, _> =
        item.iter().map(|(name, value)| (name.clone(), json_of(value))).collect();
    let change = json!({
        "eventName": "INSERT",
        "dynamodb": {
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            "Keys": { "id": { "S": key.as_str() } },
            "NewImage": image,
        },
    });
    match (read, STORE.with(|store| store.ended_in(change.to_string()))) {
        (Some(record), Ok(ended)) => {
            let is_end = matches!(record.state, State::Completed(_) | State::Failed(_));
            assert_eq!(ended.map(|ended| ended.record), is_end.then(|| record.clone()), "{item:?}");
        }
        (None, Err(error)) => assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error:?}"),
        (read, ended) => panic!("a read gives {read:?}, but the stream gives {ended:?}: {item:?}"),
    }
}

/// Returns a value as DynamoDB Streams writes it. Any value of a type that no record uses becomes an empty list.
fn json_of(value: &AttributeValue) -> Value {
    match value {
        S(text) => json!({ "S": text }),
        N(digits) => json!({ "N": digits }),
        B(bytes) => json!({ "B": STANDARD.encode(bytes) }),
        Bool(flag) => json!({ "BOOL": flag }),
        _ => json!({ "L": [] }),
    }
}

/// Creates a store that decodes items and never sends a request.
fn store() -> DynamoDbStore {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .build();
    DynamoDbStore::new(Client::from_conf(config), "fuzz").expect("valid settings")
}

/// Makes a delivery whose key has this record, and checks that it does only what the record allows.
fn act(item: &Item, record: Record) {
    let memory = MemoryStore::new();
    let key = stored_key();
    memory.set(&key, Some(record.clone()));
    let idempotency = Idempotency::builder(memory).function("fuzz").build().expect("valid settings");
    let mut has_run = false;
    let operation = idempotency.operation("step").expect("a valid name");
    let result = block_on(operation.run(Key::new("key").expect("a valid key"), &PAYLOAD, || {
        has_run = true;
        async { Ok::<_, std::io::Error>("new".to_owned()) }
    }));
    let is_same = record.fingerprint == Fingerprint::of(&PAYLOAD).expect("a number has a fingerprint");
    let is_far = |time: lambda_idempotency::time::Timestamp| time.as_millis() > 9_000_000_000_000;
    let is_live = record.expires_at.is_none_or(is_far);
    match (&record.state, result) {
        (State::Started { lease_until }, _) if is_far(*lease_until) => {
            assert!(!has_run, "ran despite another executor's live claim: {item:?}");
        }
        (State::Started { .. }, _) if record.is_at_most_once_claim() => {
            assert!(!has_run, "ran despite an at-most-once claim: {item:?}");
        }
        (State::Completed(_) | State::Failed(_), result) if is_live => {
            assert!(!has_run, "ran despite a live outcome: {item:?}");
            match result {
                Ok(answer) => {
                    assert!(is_same, "replayed despite a mismatch: {item:?}");
                    assert_is_recorded(&record, &answer);
                }
                Err(RunError::Idempotency(error)) => {
                    let is_mismatch = error.kind() == ErrorKind::Mismatch;
                    assert_eq!(is_mismatch, !is_same, "{error:?}: {item:?}");
                }
                Err(_) => assert!(matches!(record.state, State::Failed(_)), "{item:?}"),
            }
        }
        _ => {}
    }
}

fn assert_is_recorded(record: &Record, answer: &str) {
    let (State::Completed(Outcome::Retained(response)) | State::Failed(Outcome::Retained(response))) =
        &record.state
    else {
        panic!("answered with a response, but none is recorded")
    };
    let Place::Inline(bytes) = &response.place else { panic!("replayed a response without its chunks") };
    if !response.deflated {
        assert_eq!(response.length, bytes.len() as u64, "replayed a response of the wrong length");
        assert_eq!(
            response.sha256,
            <[u8; 32]>::from(Sha256::digest(bytes)),
            "replayed a response with the wrong digest"
        );
        assert_eq!(serde_json::from_slice::<String>(bytes).ok().as_deref(), Some(answer));
    }
}

fn text(text: impl Into<String>) -> AttributeValue {
    S(text.into())
}

fn number(number: u64) -> AttributeValue {
    N(number.to_string())
}

fn started() -> Item {
    let fingerprint = Fingerprint::of(&PAYLOAD).expect("a number has a fingerprint");
    let far = 9_999_999_999_u64;
    let mut item = Item::new();
    item.insert("id".into(), text(stored_key().as_str()));
    item.insert("status".into(), text("STARTED"));
    item.insert("owner".into(), B(Blob::new([0x0a; 16])));
    item.insert("generation".into(), number(1_795_000_000_123));
    item.insert("claimed_at".into(), number(1_795_000_000_124));
    item.insert("lease_until".into(), number(far * 1000));
    item.insert("expires_at".into(), number(far));
    let digits = fingerprint.to_string();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    let digest = (2..digits.len()).step_by(2).map(byte);
    item.insert("fingerprint".into(), B(Blob::new([1].into_iter().chain(digest).collect::<Vec<_>>())));
    item.insert("attempt".into(), number(1));
    item.insert("request_id".into(), text("8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10"));
    item.insert("version".into(), number(3));
    item
}

fn template(input: &mut Unstructured<'_>) -> Result<Item> {
    let mut item = started();
    if input.ratio(1, 4)? {
        item.insert("mark".into(), text("interrupted"));
    }
    let status = *input.choose(&["STARTED", "COMPLETED", "FAILED", "RELEASED"])?;
    item.insert("status".into(), text(status));
    if status == "STARTED" {
        // An at-most-once claim has no expiry.
        if input.ratio(1, 4)? {
            item.insert("execution".into(), text("at-most-once"));
            item.remove("expires_at");
        }
        return Ok(item);
    }
    item.remove("lease_until");
    if status == "RELEASED" {
        return Ok(item);
    }
    let encoding = *input.choose(&["identity", "omitted", "identity/2"])?;
    if encoding != "identity" {
        item.insert("encoding".into(), text(encoding));
    }
    if encoding == "omitted" {
        return Ok(item);
    }
    item.insert("sha256".into(), B(Blob::new(Sha256::digest(RESPONSE).to_vec())));
    if encoding == "identity" {
        item.insert("response".into(), B(Blob::new(RESPONSE)));
    } else {
        item.insert("length".into(), number(RESPONSE.len() as u64));
    }
    Ok(item)
}

/// Removes, adds or changes some attributes, and returns the number of changes.
fn change(item: &mut Item, input: &mut Unstructured<'_>) -> Result<usize> {
    let changes = input.int_in_range(0..=4)?;
    for _ in 0..changes {
        let name = *input.choose(&NAMES)?;
        match input.int_in_range(0..=3)? {
            0 => drop(item.remove(name)),
            1 => drop(item.insert(name.to_owned(), value(input)?)),
            2 => drop(item.insert(String::arbitrary(input)?, value(input)?)),
            _ => {
                let other = item.get(*input.choose(&NAMES)?).cloned();
                if let Some(other) = other {
                    item.insert(name.to_owned(), other);
                }
            }
        }
    }
    Ok(changes)
}

fn value(input: &mut Unstructured<'_>) -> Result<AttributeValue> {
    let content =
        if input.ratio(1, 2)? { (*input.choose(&EDGES)?).to_owned() } else { String::arbitrary(input)? };
    Ok(match input.int_in_range(0..=6)? {
        0 | 1 => S(content),
        2 | 3 => N(content),
        4 => B(Blob::new(<Vec<u8>>::arbitrary(input)?)),
        5 => Bool(bool::arbitrary(input)?),
        _ => L(vec![S(content)]),
    })
}
