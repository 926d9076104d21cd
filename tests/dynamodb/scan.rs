//! A scan returns every record of the table, page by page, and nothing else.

use std::collections::BTreeMap;

use lambda_idempotency::{
    StoredKey,
    store::{
        PutOutcome, Record, ResponseChunks, Store, StoreBuilder, StoreErrorKind, dynamodb::DynamoDbStore,
    },
};
use testkit::puts;

use super::{
    emulator::{Item, Table, builder, emulator},
    fixtures::{SETTLED_UNTIL, b, item, lock, n, owner, s, started},
    wire::{Reply, Wire},
};

/// Scans the whole table. Returns a map from each id to the record or its error, and the number of pages.
async fn all(store: &DynamoDbStore) -> (BTreeMap<String, Result<Record, String>>, usize) {
    let (mut found, mut position, mut pages) = (BTreeMap::new(), None, 0);
    loop {
        let page = store.scan(position).await.unwrap();
        pages += 1;
        for (key, record) in page.records {
            let record = record.map_err(|error| {
                assert_eq!(error.kind(), StoreErrorKind::Corrupt);
                error.to_string()
            });
            assert!(found.insert(key.to_string(), record).is_none(), "{key} appeared twice");
        }
        position = page.next;
        if position.is_none() {
            return (found, pages);
        }
    }
}

/// Creates a table with `count` records, and a response chunk of 300 KB for each.
async fn with_records(
    configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>,
    count: usize,
) -> Table {
    let table = Table::with(configure).await;
    for nth in 0..count {
        let key = StoredKey::from_stored(format!("f/run#{nth}"));
        assert_eq!(table.store.put(&key, &puts::claim(lock())).await.unwrap(), PutOutcome::Applied);
        let bytes = bytes::Bytes::from(vec![7; 300_000]);
        assert_eq!(table.store.write_chunks(&key, owner(1), &bytes, SETTLED_UNTIL).await.unwrap(), 1);
    }
    table
}

#[tokio::test]
async fn scans_find_records_and_skip_chunks() {
    let table = with_records(|builder| builder, 8).await;
    let (found, pages) = all(&table.store).await;
    assert_eq!(found.len(), 8);
    assert!(found.values().all(|record| record.as_ref() == Ok(&started())), "{found:?}");
    assert!(pages > 1, "2.4 MB of chunks take more than one page");
}

#[tokio::test]
async fn scans_skip_other_items_by_sort_key() {
    let table = with_records(|builder| builder.sort_key("sk"), 2).await;
    let foreign = [("id", s("f/run#0")), ("sk", s("invoice")), ("status", s("PAID"))];
    table.put(foreign.map(|(name, value)| (name.to_owned(), value)).into()).await;
    let (found, _) = all(&table.store).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["f/run#0", "f/run#1"]);
}

/// A single-table design: other items share the table, and one of them even has a record's sort key.
#[tokio::test]
async fn scans_read_only_their_own_partition() {
    let table = with_records(|builder| builder.sort_key("sk").partition("idempotency"), 8).await;
    for (pk, sk) in [("order#17", "f/run#0"), ("idempotency-2", "f/run#9")] {
        let foreign = [("id", s(pk)), ("sk", s(sk)), ("status", s("PAID"))];
        table.put(foreign.map(|(name, value)| (name.to_owned(), value)).into()).await;
    }
    let (found, pages) = all(&table.store).await;
    assert_eq!(found.len(), 8);
    assert!(found.values().all(|record| record.as_ref() == Ok(&started())), "{found:?}");
    assert!(pages > 1, "2.4 MB of chunks take more than one page");
    let key = StoredKey::from_stored("f/run#0");
    let mut stored = item(&key, &started());
    assert!(table.store.record_in(stored.clone()).is_err(), "an item of another partition");
    stored.insert("id".into(), s("idempotency"));
    stored.insert("sk".into(), s(key.as_str()));
    assert_eq!(table.store.record_in(stored).unwrap(), started());
}

#[tokio::test]
async fn scans_report_unreadable_records_and_continue() {
    let table = with_records(|builder| builder, 1).await;
    let mut newer = item(&StoredKey::from_stored("f/run#newer"), &started());
    newer.insert("version".into(), n(4));
    table.put(newer).await;
    table.put(Item::from([("id".into(), s("f/run#empty")), ("response".into(), b(b"secret"))])).await;
    let (found, _) = all(&table.store).await;
    assert_eq!(found["f/run#0"], Ok(started()));
    let newer = found["f/run#newer"].as_ref().unwrap_err();
    assert!(newer.contains("`version` is 4, but this library reads only version 3"), "{newer}");
    let empty = found["f/run#empty"].as_ref().unwrap_err();
    assert!(empty.ends_with("`version` is missing"), "{empty}");
}

#[tokio::test]
async fn unscannable_tables_are_an_error() {
    let missing = builder(emulator().await).build().await.unwrap();
    let error = missing.scan(None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("idempotency table create"), "{error}");
    // This table's partition key is `pk`, so its items don't have the attribute `id`.
    let page = r#"{"Items":[{"pk":{"S":"x"}}],"Count":1,"ScannedCount":1}"#;
    // Without permission to describe the table, the scan still finds the wrong key in an item.
    let denied = r#"{"__type":"com.amazon.coral.service#AccessDeniedException","message":"no"}"#;
    let wire =
        Wire::scripted(None, &[Reply::Answer(400, denied.into()), Reply::Answer(200, page.into())]).await;
    let store = builder(wire.address).build().await.unwrap();
    let error = store.scan(None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Rejected);
    assert!(error.to_string().contains("`idempotency table check`"), "{error}");
    assert!(wire.bodies()[1].contains(r#""ConsistentRead":true"#));
}
