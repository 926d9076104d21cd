//! How many bytes each request's body has, and each record's item.

use std::time::Duration;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use lambda_idempotency::{
    Idempotency, Invocation, Key,
    store::{PutOutcome, Store as _},
    time::{Clock as _, system_clock},
};
use serde_json::{Value, json};
use testkit::puts::{self, Settlement};

use super::{
    emulator::{Item, Table, on},
    fixtures::{SETTLED_UNTIL, inline, key, lock, ms, next_lock, release, settle, started},
    wire::{Reply, Wire},
};

/// The limits are the lengths with version 3 of the record, the shortest so far.
#[tokio::test]
async fn requests_are_no_longer_than_before() {
    let extension = puts::extend(&lock(), ms(1_795_000_090_000), Some(ms(2_095_086_491_000)));
    let mut lengths = Vec::new();
    for (name, put, limit) in [
        ("claim of a first run or a duplicate", puts::claim(lock()), 633),
        ("claim, at most once", puts::claim(puts::lasting(lock())), 635),
        ("completion", settle(Settlement::Complete(inline(), SETTLED_UNTIL)), 725),
        ("takeover", puts::take_over(&started(), next_lock()), 881),
        ("extension", extension, 621),
        ("release", settle(release(false)), 638),
        ("release, interrupted", settle(release(true)), 666),
    ] {
        let wire = Wire::scripted(None, &[Reply::Answer(200, "{}".into())]).await;
        assert_eq!(on(&wire).await.put(&key(), &put).await.unwrap(), PutOutcome::Applied);
        let [body] = wire.bodies().try_into().unwrap();
        lengths.push((name, body.len(), limit));
    }
    assert!(lengths.iter().all(|(_, length, limit)| length <= limit), "{lengths:#?}");
}

/// An item's size as DynamoDB counts it ("Item sizes and formats", DynamoDB developer guide), with the most for a number:
/// DynamoDB leaves out trailing zeros.
fn size(item: &Item) -> usize {
    let value = |value: &AttributeValue| match value {
        AttributeValue::S(text) => text.len(),
        AttributeValue::N(digits) => digits.len().div_ceil(2) + 1,
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        other => panic!("{other:?}"),
    };
    item.iter().map(|(name, of)| name.len() + value(of)).sum()
}

/// Runs an operation that returns `response`, and returns the item that the store has sent.
async fn recorded(operation: &str, response: Value) -> Item {
    let table = Table::new().await;
    let now = system_clock().now();
    let deadline = now.saturating_add(Duration::from_secs(30));
    let idempotency = Idempotency::builder(table.store.clone())
        .function("payments")
        .build()
        .unwrap()
        .for_invocation(Invocation::entered(now, deadline, "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10"));
    let work = || async { Ok::<_, std::io::Error>(response) };
    idempotency.operation(operation).unwrap().run(Key::new("order-17").unwrap(), &1, work).await.unwrap();
    let [item] = table.items().await.try_into().unwrap();
    item
}

/// A text that doesn't compress. In JSON, it has `length` bytes.
fn noise(length: usize) -> String {
    let mut state = 7_u64;
    let digit = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[(state >> 58) as usize],
        )
    };
    (2..length).map(digit).collect()
}

/// A list of orders. In JSON, it has `length` bytes.
fn orders(length: usize) -> Value {
    let ids = noise(length);
    let order = |nth: usize| json!({ "id": ids[8 * nth..8 * nth + 8], "cents": 37 * nth, "state": "PAID" });
    let list = |count| json!({ "orders": (0..count).map(order).collect::<Vec<_>>(), "next": "" });
    let bytes = |value: &Value| value.to_string().len();
    let mut orders = list((0..).take_while(|count| bytes(&list(*count)) <= length).last().unwrap());
    let rest = length - bytes(&orders);
    orders["next"] = Value::from("x".repeat(rest));
    assert_eq!(bytes(&orders), length);
    orders
}

/// A record's own bytes leave this much room for the response in the first write unit.
#[tokio::test]
async fn responses_of_696_bytes_cost_one_write_unit() {
    let mut item = recorded("charge", noise(696).into()).await;
    assert_eq!(size(&item), 1024, "{item:?}");
    assert!(!item.contains_key("encoding") && !item.contains_key("length"), "{item:?}");
    // Other scopes make the key longer or shorter.
    for (scope, bytes) in [
        ("payments/http", 1018),
        ("payments/http:orders", 1025),
        ("payments-api-ChargeFunction-AbCdEfGhIjKl/http", 1050),
    ] {
        item.insert("id".to_owned(), AttributeValue::S(format!("{scope}#{}", "0".repeat(64))));
        assert_eq!(size(&item), bytes, "{scope}");
    }
}

/// A response that would need a second write unit is compressed, if it then fits into the first.
#[tokio::test]
async fn compression_begins_at_the_second_write_unit() {
    for (length, is_compressed) in [(696, false), (697, true), (1000, true)] {
        let item = recorded("charge", orders(length)).await;
        assert_eq!(item.contains_key("encoding"), is_compressed, "{length}: {item:?}");
        assert!(size(&item) <= 1024, "{length}: {item:?}");
    }
    // Compressed, this one has more than 700 bytes.
    let item = recorded("charge", noise(1000).into()).await;
    assert!(!item.contains_key("encoding"), "{item:?}");
}

/// The item of Powertools for Python 3.37.0 after a completion, with a JSON text of this many bytes.
fn powertools(length: usize) -> Item {
    let s = |text: &str| AttributeValue::S(text.to_owned());
    let id = format!("payments.app.handler#{}", "0".repeat(32));
    let of = [
        ("id", s(&id)),
        ("expiration", AttributeValue::N("1795212105".to_owned())),
        ("status", s("COMPLETED")),
        ("in_progress_expiration", AttributeValue::N("1795208510319".to_owned())),
        ("data", s(&"x".repeat(length))),
    ];
    of.map(|(name, value)| (name.to_owned(), value)).into()
}

#[tokio::test]
async fn documented_write_units_are_the_items() {
    let documented = include_str!("../../docs/performance.md");
    let units = |item: &Item| size(item).div_ceil(1024);
    let (mut rows, mut kept) = (Vec::new(), recorded("charge", orders(100)).await);
    for length in [250, 500, 650, 750, 1000, 1500, 2000, 4000, 10_000, 30_000] {
        let list = recorded("charge", orders(length)).await;
        kept.insert("response".to_owned(), AttributeValue::B(Blob::new(vec![0; length])));
        let theirs = powertools(length);
        rows.push(format!("| {length} | {} | {} | {} |", units(&list), units(&kept), units(&theirs)));
    }
    assert!(documented.contains(&rows.join("\n")), "{}", rows.join("\n"));
}
