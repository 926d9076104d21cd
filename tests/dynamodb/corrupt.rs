//! Items that aren't valid records: the store reports them as corrupt, names the attribute, and never treats
//! them as absent.

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_idempotency::store::{Outcome, Record, State, Store, StoreErrorKind};
use testkit::puts;

use super::{
    emulator::{Item, Table},
    fixtures::{ID, b, completed, in_parts, item, key, lock, n, next_lock, s, started, with_state},
};

/// One change that makes an item unreadable.
struct Mutation {
    attribute: &'static str,
    becomes: Option<AttributeValue>,
    why: &'static str,
}

fn missing(attribute: &'static str) -> Mutation {
    Mutation { attribute, becomes: None, why: "is missing" }
}

fn becomes(attribute: &'static str, value: AttributeValue, why: &'static str) -> Mutation {
    Mutation { attribute, becomes: Some(value), why }
}

const NUMBERS: [&str; 5] = ["version", "generation", "attempt", "claimed_at", "expires_at"];

fn of_every_record() -> Vec<Mutation> {
    let mut mutations = Vec::new();
    for attribute in ["version", "status", "owner", "generation", "attempt", "fingerprint", "claimed_at"] {
        mutations.push(missing(attribute));
    }
    for attribute in NUMBERS {
        mutations.push(becomes(attribute, AttributeValue::Bool(true), "isn't of type N"));
        mutations.push(becomes(attribute, b(b"secret"), "isn't of type N"));
        mutations.push(becomes(attribute, s("424242"), "isn't of type N"));
        for digits in ["-424242", "4242.42", "42424242424242424242424"] {
            mutations.push(becomes(attribute, n(digits), "isn't a whole number in its range"));
        }
    }
    mutations.push(becomes("attempt", n("4294967296"), "isn't a whole number in its range"));
    mutations.push(becomes("expires_at", n("18446744073709553"), "isn't a whole number in its range"));
    for attribute in ["status", "mark", "execution", "request_id", "trace"] {
        mutations.push(becomes(attribute, AttributeValue::Bool(true), "isn't of type S"));
        mutations.push(becomes(attribute, b(b"secret"), "isn't of type S"));
        mutations.push(becomes(attribute, n(424_242), "isn't of type S"));
    }
    for status in ["EXPIRED", "started", "INPROGRESS", "secret", ""] {
        mutations.push(becomes("status", s(status), "isn't in the form"));
    }
    for attribute in ["owner", "fingerprint"] {
        mutations.push(becomes(attribute, AttributeValue::Bool(true), "isn't of type B"));
        mutations.push(becomes(attribute, s("secret"), "isn't of type B"));
        mutations.push(becomes(attribute, b(b"secret"), "isn't in the form"));
        mutations.push(becomes(attribute, b(b""), "isn't in the form"));
    }
    mutations.push(becomes("owner", b(&[0x0a; 15]), "isn't in the form"));
    mutations.push(becomes("fingerprint", b(&[&[2][..], &[0xf1; 32]].concat()), "isn't in the form"));
    // A later release may give these attributes more values. This one can't tell what they allow.
    for (attribute, values) in [
        ("mark", ["asked", "later", "secret", ""]),
        ("execution", ["at-least-once", "exactly-once", "secret", ""]),
    ] {
        for value in values {
            let why = "has a value that this release of lambda-idempotency doesn't know; update the library";
            mutations.push(becomes(attribute, s(value), why));
        }
    }
    for (version, why) in [
        ("0", "is 0, but this library reads only version 3"),
        ("1", "is 1, but this library reads only version 3"),
        ("2", "is 2, but this library reads only version 3"),
        ("4", "is 4, but this library reads only version 3; update lambda-idempotency"),
        ("4294967295", "is 4294967295, but this library reads only version 3"),
    ] {
        mutations.push(becomes("version", n(version), why));
    }
    mutations
}

const OTHER: &str = "doesn't belong to the record's status or encoding";

fn of_a_started_one() -> Vec<Mutation> {
    vec![
        missing("lease_until"),
        becomes("lease_until", s("424242"), "isn't of type N"),
        becomes("lease_until", n("-1"), "isn't a whole number in its range"),
        becomes("response", b(b"secret"), OTHER),
        becomes("encoding", s("omitted"), OTHER),
        becomes("length", n(1), OTHER),
        becomes("sha256", b(&[0; 32]), OTHER),
        // Only an at-most-once claim may lack an expiry.
        missing("expires_at"),
    ]
}

/// Only a STARTED record may lack an expiry.
fn of_a_settled_one() -> Vec<Mutation> {
    vec![missing("expires_at"), becomes("lease_until", n(1), OTHER)]
}

fn of_one_with_a_response() -> Vec<Mutation> {
    vec![
        becomes("encoding", s("secret"), "isn't in the form"),
        becomes("encoding", s("identity/"), "isn't in the form"),
        becomes("encoding", s("identity/-1"), "isn't in the form"),
        becomes("encoding", s("identity/99999999999"), "isn't in the form"),
        becomes("encoding", n(1), "isn't of type S"),
        becomes("length", n("-5"), "isn't a whole number in its range"),
        becomes("length", s("5"), "isn't of type N"),
        missing("sha256"),
        becomes("sha256", b(b"secret"), "isn't in the form"),
        becomes("sha256", s("00".repeat(32)), "isn't of type B"),
    ]
}

#[tokio::test]
async fn unreadable_records_are_corrupt() {
    let with_response = completed();
    let failed = with_state(State::Failed(in_parts()));
    let omitted = with_state(State::Completed(Outcome::Omitted));
    let released = with_state(State::Released);
    let mut cases: Vec<(Record, Mutation)> = Vec::new();
    for record in [&with_response, &failed, &omitted, &released] {
        cases.extend(of_every_record().into_iter().map(|mutation| (record.clone(), mutation)));
        cases.extend(of_a_settled_one().into_iter().map(|mutation| (record.clone(), mutation)));
    }
    cases.extend(of_every_record().into_iter().map(|mutation| (started(), mutation)));
    cases.extend(of_a_started_one().into_iter().map(|mutation| (started(), mutation)));
    cases.extend(of_one_with_a_response().into_iter().map(|mutation| (with_response.clone(), mutation)));
    cases.extend(of_one_with_a_response().into_iter().map(|mutation| (failed.clone(), mutation)));
    cases.extend([
        (with_response.clone(), missing("response")),
        (with_response.clone(), becomes("response", s("secret"), "isn't of type B")),
        // A response that isn't encoded has no encoding, and no length besides its own.
        (with_response.clone(), becomes("encoding", s("identity"), OTHER)),
        (with_response.clone(), becomes("length", n(5), OTHER)),
        // The encoding says that the response is in two chunks, but the item has the response inline.
        (with_response.clone(), becomes("encoding", s("identity/2"), "is missing")),
        (with_response.clone(), becomes("encoding", s("omitted"), OTHER)),
        (failed.clone(), missing("encoding")),
        (failed.clone(), missing("length")),
        (failed.clone(), becomes("response", b(b"secret"), OTHER)),
        (failed, becomes("encoding", s("deflate"), "is missing")),
        (omitted.clone(), missing("encoding")),
        (omitted.clone(), becomes("response", b(b"secret"), OTHER)),
        (omitted, becomes("length", n(1), OTHER)),
        (released, becomes("encoding", s("omitted"), OTHER)),
    ]);

    let table = Table::new().await;
    for (record, mutation) in cases {
        let mut mutated = item(&key(), &record);
        match mutation.becomes {
            Some(value) => mutated.insert(mutation.attribute.to_owned(), value),
            None => mutated.remove(mutation.attribute),
        };
        is_corrupt(&table, &mutated, mutation.attribute, mutation.why).await;
    }
}

async fn is_corrupt(table: &Table, mutated: &Item, attribute: &str, why: &str) {
    table.put(mutated.clone()).await;
    let of_a_read = table.store.read(&key()).await.unwrap_err();
    let of_a_claim = table.store.put(&key(), &puts::claim(next_lock())).await.unwrap_err();
    for error in [of_a_read, of_a_claim] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{attribute} {why}: {error}");
        assert!(!error.is_maybe_applied());
        let text = error.to_string();
        assert!(text.contains(&format!("`{ID}` in table `idempotency`")), "{text}");
        assert!(text.contains(why), "{attribute} {why}: {text}");
        let all = format!("{text} {error:?}");
        assert!(!all.contains("secret") && !all.contains("4242"), "{all}");
    }
    assert_eq!(table.record_item(&key()).await.as_ref(), Some(mutated), "the item must stay unchanged");
}

#[tokio::test]
async fn errors_use_the_tables_attribute_names() {
    let table = Table::with(|builder| builder.attributes("owner:who").unwrap()).await;
    table.put(item(&key(), &started())).await;
    let error = table.store.read(&key()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the record `{ID}` in table `idempotency` can't be read: `who` is missing")
    );
}

/// An item of version 2, as the release before version 3 wrote it.
#[tokio::test]
async fn version_2_errors_say_what_to_do() {
    let table = Table::new().await;
    let old = include_str!("golden/version_2.txt").lines().map(|line| {
        let (name, value) = line.split_once(' ').unwrap();
        let value = match value.split_once(' ').unwrap() {
            ("S", text) => s(text),
            ("N", digits) => n(digits),
            (_, digits) => {
                let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                b(&(0..digits.len()).step_by(2).map(byte).collect::<Vec<_>>())
            }
        };
        (name.to_owned(), value)
    });
    let old: Item = old.collect();
    table.put(old.clone()).await;
    let read = table.store.read(&key()).await.unwrap_err();
    let claim = table.store.put(&key(), &puts::claim(next_lock())).await.unwrap_err();
    for error in [read, claim] {
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert_eq!(
            error.to_string(),
            format!(
                "the record `{ID}` in table `idempotency` can't be read: `version` is 2, but this library reads only \
                 version 3; use the release of lambda-idempotency that wrote the record until the record has expired, \
                 or delete the record if its operation may run again"
            )
        );
    }
    assert_eq!(table.record_item(&key()).await, Some(old), "the item must stay unchanged");
}

#[tokio::test]
async fn unknown_attributes_are_ignored() {
    let table = Table::new().await;
    let mut more = item(&key(), &started());
    more.insert("note".into(), s("by hand"));
    table.put(more).await;
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(lock().into()));
}

#[tokio::test]
async fn smallest_and_largest_numbers_are_read() {
    let table = Table::new().await;
    let mut edge = item(&key(), &started());
    for (attribute, value) in [
        ("generation", u64::MAX.to_string()),
        ("attempt", u32::MAX.to_string()),
        ("claimed_at", "0".to_owned()),
        ("lease_until", u64::MAX.to_string()),
        ("expires_at", "0".to_owned()),
    ] {
        edge.insert(attribute.into(), n(value));
    }
    table.put(edge).await;
    let record = table.store.read(&key()).await.unwrap().unwrap();
    assert_eq!(record.generation.get(), u64::MAX);
    assert_eq!(record.attempt, u32::MAX);
    assert_eq!(record.lease_until().unwrap().as_millis(), u64::MAX);
    assert_eq!(record.expires_at, Some(lambda_idempotency::time::Timestamp::default()));
}
