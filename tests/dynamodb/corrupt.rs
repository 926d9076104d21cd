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

fn of_every_record() -> Vec<Mutation> {
    let mut mutations = Vec::new();
    for attribute in
        ["version", "status", "owner", "generation", "attempt", "fingerprint", "lock_acquired_at"]
    {
        mutations.push(missing(attribute));
    }
    for attribute in [
        "version",
        "status",
        "owner",
        "generation",
        "attempt",
        "fingerprint",
        "lock_acquired_at",
        "expires_at",
    ] {
        mutations.push(becomes(attribute, AttributeValue::Bool(true), "isn't of type"));
        mutations.push(becomes(attribute, b(b"secret"), "isn't of type"));
    }
    for attribute in ["status", "owner", "fingerprint", "request_id"] {
        mutations.push(becomes(attribute, n(424_242), "isn't of type S"));
    }
    for attribute in ["status", "owner", "fingerprint"] {
        mutations.push(becomes(attribute, s("secret"), "isn't in the form"));
        mutations.push(becomes(attribute, s(""), "isn't in the form"));
    }
    for attribute in ["version", "generation", "attempt", "lock_acquired_at", "expires_at"] {
        mutations.push(becomes(attribute, s("424242"), "isn't of type N"));
        mutations.push(becomes(attribute, n("-424242"), "isn't a whole number in its range"));
        mutations.push(becomes(attribute, n("4242.42"), "isn't a whole number in its range"));
        mutations.push(becomes(attribute, n("42424242424242424242424"), "isn't a whole number in its range"));
    }
    mutations.push(becomes("attempt", n("4294967296"), "isn't a whole number in its range"));
    mutations.push(becomes("expires_at", n("18446744073709553"), "isn't a whole number in its range"));
    for (version, why) in [
        ("0", "is 0, but this library reads only version 2"),
        ("1", "is 1, but this library reads only version 2"),
        ("3", "is 3, but this library reads only version 2"),
        ("4294967295", "is 4294967295, but this library reads only version 2"),
    ] {
        mutations.push(becomes("version", n(version), why));
    }
    // This release can't decode a response that has one of these attributes, so it never replays the bytes.
    for attribute in ["response_codec", "response_key_id"] {
        let newer = "needs a newer release of lambda-idempotency";
        mutations.push(becomes(attribute, s("secret"), newer));
        mutations.push(becomes(attribute, n(1), newer));
    }
    mutations.push(becomes("interrupted", s("true"), "isn't of type BOOL"));
    mutations.push(becomes("interrupted", n(1), "isn't of type BOOL"));
    for status in ["EXPIRED", "started", "INPROGRESS"] {
        mutations.push(becomes("status", s(status), "isn't in the form"));
    }
    mutations.push(becomes("fingerprint", s(format!("2:{}", "f1".repeat(32))), "isn't in the form"));
    mutations.push(becomes("owner", s("0a".repeat(15)), "isn't in the form"));
    mutations.push(becomes("owner", s("zz".repeat(16)), "isn't in the form"));
    mutations
}

fn of_a_started_one() -> Vec<Mutation> {
    let other = "doesn't belong to the record's status";
    vec![
        missing("lease_until"),
        becomes("lease_until", s("424242"), "isn't of type N"),
        becomes("lease_until", n("-1"), "isn't a whole number in its range"),
        becomes("response", b(b"secret"), other),
        becomes("response_encoding", s("omitted"), other),
        becomes("response_length", n(1), other),
        becomes("response_sha256", s("00".repeat(32)), other),
    ]
}

/// Only a STARTED record may lack an expiry.
fn of_a_settled_one() -> Vec<Mutation> {
    vec![missing("expires_at"), becomes("lease_until", n(1), "doesn't belong to the record's status")]
}

fn of_one_with_a_response() -> Vec<Mutation> {
    vec![
        missing("response_encoding"),
        becomes("response_encoding", s("secret"), "isn't in the form"),
        becomes("response_encoding", s("identity/"), "isn't in the form"),
        becomes("response_encoding", s("identity/-1"), "isn't in the form"),
        becomes("response_encoding", s("identity/99999999999"), "isn't in the form"),
        becomes("response_encoding", n(1), "isn't of type S"),
        missing("response_length"),
        becomes("response_length", n("-5"), "isn't a whole number in its range"),
        becomes("response_length", s("5"), "isn't of type N"),
        missing("response_sha256"),
        becomes("response_sha256", s("secret"), "isn't in the form"),
        becomes("response_sha256", b(&[0; 32]), "isn't of type S"),
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
    let other = "doesn't belong to the record's status";
    cases.extend([
        (with_response.clone(), missing("response")),
        (with_response.clone(), becomes("response", s("secret"), "isn't of type B")),
        // The encoding says that the response is in two chunks, but the item has the response inline.
        (with_response.clone(), becomes("response_encoding", s("identity/2"), other)),
        (with_response.clone(), becomes("response_encoding", s("omitted"), other)),
        (failed.clone(), becomes("response", b(b"secret"), other)),
        (failed, becomes("response_encoding", s("deflate"), "is missing")),
        (omitted.clone(), becomes("response", b(b"secret"), other)),
        (omitted, becomes("response_length", n(1), other)),
        (released, becomes("response_encoding", s("omitted"), other)),
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

#[tokio::test]
async fn version_1_errors_name_both_versions() {
    let table = Table::new().await;
    let mut old = item(&key(), &completed());
    old.insert("version".into(), n(1));
    table.put(old).await;
    let error = table.store.read(&key()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        format!(
            "the record `{ID}` in table `idempotency` can't be read: `version` is 1, but this library reads only \
             version 2; use the release of lambda-idempotency that wrote the record"
        )
    );
}

#[tokio::test]
async fn trace_id_and_interrupted_false_are_accepted() {
    let table = Table::new().await;
    let mut more = item(&key(), &started());
    more.insert("trace_id".into(), s("1-5759e988-bd862e3fe1be46a994272793"));
    more.insert("interrupted".into(), AttributeValue::Bool(false));
    table.put(more).await;
    assert_eq!(table.store.read(&key()).await.unwrap(), Some(started()));
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
        ("lock_acquired_at", "0".to_owned()),
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
