//! Tests of `ended_in`, which takes a change from the table's stream. If the change ended an operation, `ended_in`
//! returns an event.

use aws_sdk_dynamodb::types::AttributeValue;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{
        Mark, Outcome, Put, Record, State, StoreBuilder, StoreErrorKind, StoredResponse,
        dynamodb::{DynamoDbStore, OperationEnded},
    },
};
use serde_json::{Value, json};
use testkit::puts::Settlement;

use super::{
    emulator::{Item, builder},
    fixtures::{
        SETTLED_UNTIL, completed, in_parts, inline, item, key, lasting_lock, lock, ms, next_lock, resolve, s,
        settle, settlements, started, with_state,
    },
};

/// Builds a store at an address where nothing listens, since `ended_in` sends no request.
async fn store(
    configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>,
) -> DynamoDbStore {
    configure(builder("127.0.0.1:9".parse().unwrap())).build().await.unwrap()
}

/// Returns the item in the JSON that a DynamoDB stream uses.
fn image(item: &Item) -> Value {
    let values = item.iter().map(|(name, value)| {
        let value = match value {
            AttributeValue::S(text) => json!({ "S": text }),
            AttributeValue::N(digits) => json!({ "N": digits }),
            AttributeValue::B(bytes) => json!({ "B": STANDARD.encode(bytes) }),
            other => panic!("{other:?}"),
        };
        (name.clone(), value)
    });
    Value::Object(values.collect())
}

/// Returns the stream's record of a change from `old` to `new`. `keys` are the names of the table's key attributes.
fn change(keys: &[&str], old: Option<&Item>, new: Option<&Item>) -> Value {
    let event_name = match (old, new) {
        (None, Some(_)) => "INSERT",
        (Some(_), Some(_)) => "MODIFY",
        _ => "REMOVE",
    };
    let of = |item: &Item| Item::from_iter(keys.iter().map(|name| ((*name).to_owned(), item[*name].clone())));
    let mut change = json!({
        "ApproximateCreationDateTime": 1_795_000_065.0,
        "Keys": image(&of(new.or(old).unwrap())),
        "SequenceNumber": "4421584500000000017452439091",
        "SizeBytes": 700,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    });
    for (name, item) in [("OldImage", old), ("NewImage", new)] {
        if let Some(item) = item {
            change[name] = image(item);
        }
    }
    json!({
        "eventID": "f209cf0b88c32e8858f1f59284057b6f",
        "eventName": event_name,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "eu-central-1",
        "dynamodb": change,
        "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/idempotency/stream/2026-11-01T08:00:00.000",
    })
}

/// Returns the stream's record of a change from one idempotency record to another.
fn changed(old: Option<&Record>, new: Option<&Record>) -> Value {
    let of = |record: Option<&Record>| record.map(|record| item(&key(), record));
    change(&["id"], of(old).as_ref(), of(new).as_ref())
}

/// Returns the event if the change from `old` to `new` ended an operation.
async fn ended(old: Option<&Record>, new: Option<&Record>) -> Option<OperationEnded> {
    store(|builder| builder).await.ended_in(changed(old, new).to_string()).unwrap()
}

fn after(write: &Put, record: Option<&Record>) -> Record {
    write.apply_to(record).expect("the write applies")
}

#[tokio::test]
async fn every_settlement_but_release_ends_the_operation() {
    for (old, by_operator) in [(started(), false), (lasting_lock().into(), false), (started(), true)] {
        for (name, settlement) in settlements() {
            let write =
                if by_operator { resolve(&old, settlement.clone()) } else { settle(settlement.clone()) };
            let new = after(&write, Some(&old));
            let found = ended(Some(&old), Some(&new)).await;
            if matches!(settlement, Settlement::Release { .. }) {
                assert!(found.is_none(), "{name}");
                continue;
            }
            let found = found.expect(name);
            assert_eq!((&found.key, &found.record), (&key(), &new), "{name}");
            assert_eq!(
                (found.written_at, found.by_operator),
                (Some(ms(1_795_000_065_000)), by_operator),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn claims_and_deletions_end_no_operation() {
    let (first, done) = (started(), completed());
    let taken_over: Record = next_lock().into();
    let extended = with_state(State::Started { lease_until: ms(1_795_000_990_000) });
    for (old, new) in [
        (None, Some(&first)),
        (Some(&first), Some(&extended)),
        (Some(&first), Some(&taken_over)),
        (Some(&done), Some(&taken_over)),
        (Some(&first), None),
        (Some(&done), None),
    ] {
        assert!(ended(old, new).await.is_none(), "{old:?} {new:?}");
    }
}

#[tokio::test]
async fn operations_without_a_claim_end_too() {
    let done = completed();
    let ended_at_once = ended(None, Some(&done)).await.unwrap();
    assert!(!ended_at_once.by_operator);
    // Another run without a claim replaces an expired outcome.
    let next = Record { state: State::Completed(inline()), ..next_lock().into() };
    let concluded = ended(Some(&done), Some(&next)).await.unwrap();
    assert!(!concluded.by_operator);
    assert_ne!(concluded.id(), ended_at_once.id());
}

#[tokio::test]
async fn rewritten_outcomes_are_published_once() {
    let done = completed();
    let kept_longer = Record { expires_at: Some(ms(2_095_999_999_000)), ..done.clone() };
    let omitted = with_state(State::Completed(Outcome::Omitted));
    for new in [&kept_longer, &omitted] {
        assert!(ended(Some(&done), Some(new)).await.is_none());
    }
    // If the old image can't be decoded, the store assumes that the change ended the operation.
    let mut old = item(&key(), &done);
    old.insert("version".into(), AttributeValue::N("1".into()));
    let record = change(&["id"], Some(&old), Some(&item(&key(), &done))).to_string();
    let found = store(|builder| builder).await.ended_in(record).unwrap().unwrap();
    assert_eq!(found.id(), ended(Some(&started()), Some(&done)).await.unwrap().id());
}

#[tokio::test]
async fn operators_corrections_are_new_events() {
    let done = completed();
    let corrected = after(&resolve(&done, Settlement::Fail(Outcome::Omitted, SETTLED_UNTIL)), Some(&done));
    let (first, second) = (
        ended(Some(&started()), Some(&done)).await.unwrap(),
        ended(Some(&done), Some(&corrected)).await.unwrap(),
    );
    assert!(second.by_operator && !first.by_operator);
    assert!(second.record.generation > first.record.generation);
    assert_ne!(first.id(), second.id());
}

#[tokio::test]
async fn event_ids_identify_one_outcome() {
    let of = |record: Record| async move { ended(Some(&started()), Some(&record)).await.unwrap().id() };
    let done = completed();
    let mut ids = vec![of(done.clone()).await];
    assert_eq!(ids[0], of(done.clone()).await, "an event must keep its id if it's delivered again");
    ids.push(of(Record { owner: next_lock().owner, ..done.clone() }).await);
    ids.push(of(Record { generation: next_lock().generation, ..done.clone() }).await);
    ids.push(of(Record { state: State::Failed(inline()), ..done }).await);
    let unique = std::collections::BTreeSet::from_iter(&ids);
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
}

/// Consumers depend on these field names, and on the value of `id`.
#[tokio::test]
async fn event_details_omit_the_response() {
    let found = ended(Some(&started()), Some(&completed())).await.unwrap();
    let detail = json!({
        "id": "650eed66-37f4-8a80-8515-7994c9a19dbd",
        "key": key().as_str(),
        "function": "payments",
        "operation": "http",
        "outcome": "completed",
        "generation": 1_795_000_000_123_u64,
        "attempt": 1,
        "interrupted": false,
        "by_operator": false,
        "request_id": "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10",
        "claimed_at": 1_795_000_000_124_u64,
        "written_at": 1_795_000_065_000_u64,
        "expires_at": 2_095_086_461_000_u64,
    });
    assert_eq!(serde_json::to_value(&found).unwrap(), detail);
    let bare = Record { request_id: None, mark: Mark::Interrupted, ..with_state(State::Failed(inline())) };
    let bare = serde_json::to_value(ended(None, Some(&bare)).await.unwrap()).unwrap();
    assert_eq!((&bare["outcome"], &bare["interrupted"]), (&json!("failed"), &json!(true)));
    assert!(bare.get("request_id").is_none());
}

#[tokio::test]
async fn only_inline_unencrypted_responses_are_returned() {
    let paid = StoredResponse::new(Bytes::from_static(b"{\"paid\":1}"));
    let of = |outcome: Outcome| async move {
        ended(Some(&started()), Some(&with_state(State::Completed(outcome)))).await.unwrap().response()
    };
    assert_eq!(of(Outcome::Retained(paid)).await.unwrap().unwrap(), "{\"paid\":1}");
    assert!(of(Outcome::Omitted).await.unwrap().is_none());
    assert!(of(in_parts()).await.unwrap().is_none());
    let mut encrypted = changed(Some(&started()), Some(&completed()));
    encrypted["dynamodb"]["NewImage"]["encoding"] = json!({ "S": "identity;key=k1" });
    let encrypted = store(|builder| builder).await.ended_in(encrypted.to_string()).unwrap().unwrap();
    assert!(encrypted.response().unwrap().is_none());
    assert!(of(inline()).await.is_err(), "bytes that don't match the recorded digest must be an error");
}

#[tokio::test]
async fn streams_need_both_images() {
    let store = store(|builder| builder).await;
    for view in ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "a secret"] {
        let mut record = changed(Some(&started()), Some(&completed()));
        record["dynamodb"]["StreamViewType"] = json!(view);
        let error = store.ended_in(record.to_string()).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        let text = error.to_string();
        assert!(text.contains("NEW_AND_OLD_IMAGES") && !text.contains("secret"), "{text}");
        assert_eq!(text.contains(view), view != "a secret", "{text}");
    }
}

#[tokio::test]
async fn errors_for_unreadable_changes_show_no_content() {
    let store = store(|builder| builder).await;
    let good = changed(Some(&started()), Some(&completed()));
    let edited = |edit: fn(&mut Value)| {
        let mut record = good.clone();
        edit(&mut record);
        record.to_string()
    };
    for (record, says) in [
        (edited(|r| r["dynamodb"]["NewImage"]["version"] = json!({ "N": "4" })), "only version 3"),
        (edited(|r| r["dynamodb"]["NewImage"]["status"] = json!({ "S": "secret" })), "`status`"),
        (edited(|r| r["dynamodb"]["NewImage"]["status"] = json!({ "M": { "secret": {} } })), "`status`"),
        (edited(|r| r["dynamodb"]["NewImage"]["generation"] = json!({ "N": "secret" })), "`generation`"),
        (edited(|r| r["dynamodb"]["NewImage"]["response"] = json!({ "B": "secret!" })), "`response`"),
        (edited(|r| r["dynamodb"]["NewImage"]["owner"] = json!("secret")), "`owner`"),
        (
            edited(|r| r["dynamodb"]["NewImage"] = json!({ "id": { "S": key().as_str() } })),
            "`version` is missing",
        ),
        (edited(|r| r["dynamodb"]["NewImage"] = json!(null)), "images"),
        (edited(|r| r["dynamodb"]["OldImage"] = json!(null)), "images"),
        (edited(|r| r["eventName"] = json!("secret")), "isn't a change"),
        (edited(|r| r["dynamodb"] = json!({ "Keys": "secret" })), "isn't a change"),
        (r#"{"messageId": "m1", "body": "secret"}"#.into(), "isn't a change"),
        ("secret".into(), "isn't a change"),
    ] {
        let error = store.ended_in(&record).expect_err(says);
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{says}");
        let text = error.to_string();
        assert!(text.contains(says) && !text.contains("secret"), "{says}: {text}");
    }
    let undated = edited(|r| r["dynamodb"]["ApproximateCreationDateTime"] = json!(-1));
    assert_eq!(store.ended_in(undated).unwrap().unwrap().written_at, None);
    // The user's own attributes may have any type.
    let own = edited(|r| r["dynamodb"]["NewImage"]["tags"] = json!({ "SS": ["a"] }));
    assert!(store.ended_in(own).unwrap().is_some());
}

#[tokio::test]
async fn tables_with_another_key_are_rejected() {
    let record = changed(Some(&started()), Some(&completed())).to_string();
    for store in [
        store(|builder| builder.attributes("id:pk").unwrap()).await,
        store(|builder| builder.sort_key("sk")).await,
        store(|builder| builder.sort_key("sk").partition("idempotency")).await,
    ] {
        let error = store.ended_in(&record).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected);
        assert!(error.to_string().contains("`idempotency table check`"), "{error}");
    }
}

/// Decodes changes of records, shadow records, response chunks and other items, with three stores: one without a sort
/// key, one with a sort key, and one that keeps all records in one partition.
#[tokio::test]
async fn only_records_end_operations_in_every_layout() {
    let with = |pairs: &[(&str, &str)]| {
        let mut item = item(&key(), &completed());
        item.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), s(*value))));
        item
    };
    let id = key().to_string();
    let chunk = format!("{id}#part#{}#0", lock().owner);
    let shadow = StoredKey::from_stored(&id).in_shadow().to_string();
    let plain = store(|builder| builder).await;
    let sorted = store(|builder| builder.sort_key("sk")).await;
    let shared = store(|builder| builder.sort_key("sk").partition("idempotency")).await;
    let part = format!("part#{}#0", lock().owner);
    for (store, pairs, is_end) in [
        (&plain, &[("id", id.as_str())][..], true),
        (&plain, &[("id", &chunk)], false),
        (&plain, &[("id", &shadow)], false),
        (&sorted, &[("id", &id), ("sk", "record")], true),
        (&sorted, &[("id", &id), ("sk", &part)], false),
        (&sorted, &[("id", &id), ("sk", "invoice")], false),
        (&shared, &[("id", "idempotency"), ("sk", &id)], true),
        (&shared, &[("id", "idempotency"), ("sk", &chunk)], false),
        (&shared, &[("id", "customer#7"), ("sk", &id)], false),
    ] {
        let names: Vec<_> = pairs.iter().map(|(name, _)| *name).collect();
        let record = change(&names, None, Some(&with(pairs))).to_string();
        let found = store.ended_in(record).unwrap();
        assert_eq!(found.map(|found| found.key), is_end.then(key), "{pairs:?}");
    }
}

#[tokio::test]
async fn records_with_custom_attribute_names_are_decoded() {
    let store = store(|builder| builder.attributes("id:pk,status:state,generation:g").unwrap()).await;
    let renamed = |record: &Record| {
        let names = [("id", "pk"), ("status", "state"), ("generation", "g")];
        let renamed =
            |name: String| names.iter().find(|(of, _)| *of == name).map_or(name, |(_, to)| (*to).into());
        Item::from_iter(item(&key(), record).into_iter().map(|(name, value)| (renamed(name), value)))
    };
    let record = change(&["pk"], Some(&renamed(&started())), Some(&renamed(&completed()))).to_string();
    assert_eq!(store.ended_in(record).unwrap().unwrap().record, completed());
}
