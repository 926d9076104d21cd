//! Pins the items byte for byte. Users' tables have items in this form, so edit a golden file only together with a new
//! `RECORD_VERSION`.

use lambda_idempotency::{
    StoredKey,
    store::{
        Lock, Mark, Outcome, Put, PutOutcome, ResponseChunks, Store, StoreBuilder, dynamodb::DynamoDbStore,
    },
};
use testkit::puts::{self, Settlement};

use super::{
    emulator::Table,
    fixtures::{
        SETTLED_UNTIL, in_parts, inline, key, lasting_lock, lock, ms, next_lock, release, resolve, settle,
        shown, started,
    },
};

/// Applies these writes to one key, and returns the table's content as text.
async fn after(
    configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>,
    writes: &[Put],
) -> String {
    let table = Table::with(configure).await;
    let mut record = None;
    for write in writes {
        assert_eq!(table.store.put(&key(), write).await.unwrap(), PutOutcome::Applied);
        record = write.apply_to(record.as_ref());
        assert_eq!(table.store.read(&key()).await.unwrap(), record, "the record was read back differently");
    }
    let [item] = table.items().await.try_into().unwrap();
    shown(&item)
}

fn claimed_and(settlement: Settlement) -> [Put; 2] {
    [puts::claim(lock()), settle(settlement)]
}

const NAMES: &str = "id:pk,status:s,owner:o,generation:g,claimed_at:ca,lease_until:lu,expires_at:ttl,\
    fingerprint:f,attempt:a,response:r,encoding:e,length:l,sha256:sha,request_id:rid,mark:m,execution:x,trace:t,\
    version:v";

#[tokio::test]
async fn started_item_is_pinned() {
    assert_eq!(after(|b| b, &[puts::claim(lock())]).await, include_str!("golden/started.txt"));
}

/// Without a TTL attribute, DynamoDB's sweeper never deletes the record.
#[tokio::test]
async fn started_item_without_expiry_is_pinned() {
    let golden = include_str!("golden/started_without_expiry.txt");
    assert_eq!(after(|b| b, &[puts::claim(lasting_lock())]).await, golden);
    let before = Lock { lease_until: ms(1), expires_at: Some(ms(1000)), ..lasting_lock() };
    let extend = puts::extend(&before, lasting_lock().lease_until, None);
    assert_eq!(after(|b| b, &[puts::claim(before), extend]).await, golden);
    let take_over = puts::take_over(&next_lock().into(), lasting_lock());
    assert_eq!(after(|b| b, &[puts::claim(next_lock()), take_over]).await, golden);
}

#[tokio::test]
async fn taken_over_item_is_pinned() {
    let writes = [puts::claim(lock()), puts::take_over(&started(), next_lock())];
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/taken_over.txt"));
}

#[tokio::test]
async fn inline_completed_item_is_pinned() {
    let writes = claimed_and(Settlement::Complete(inline(), SETTLED_UNTIL));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/completed_inline.txt"));
}

#[tokio::test]
async fn chunked_completed_item_is_pinned() {
    let writes = claimed_and(Settlement::Complete(in_parts(), SETTLED_UNTIL));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/completed_in_chunks.txt"));
}

#[tokio::test]
async fn completed_item_without_response_is_pinned() {
    let writes = claimed_and(Settlement::Complete(Outcome::Omitted, SETTLED_UNTIL));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/completed_omitted.txt"));
}

#[tokio::test]
async fn failed_item_is_pinned() {
    let writes = claimed_and(Settlement::Fail(inline(), SETTLED_UNTIL));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/failed.txt"));
}

#[tokio::test]
async fn released_item_is_pinned() {
    let writes = claimed_and(release(false));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/released.txt"));
    let writes = claimed_and(release(true));
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/released_interrupted.txt"));
    // The claim is marked as interrupted. This release clears the mark.
    let writes = [puts::claim(Lock { mark: Mark::Interrupted, ..lock() }), settle(release(false))];
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/released.txt"));
}

#[tokio::test]
async fn reclaimed_item_keeps_nothing_old() {
    let mut writes = claimed_and(release(false)).to_vec();
    let released = writes[1].apply_to(Some(&started())).unwrap();
    writes.push(puts::reclaim(&released, next_lock()));
    // The item looks the same as after a takeover: nothing of the earlier record remains.
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/taken_over.txt"));
}

#[tokio::test]
async fn item_resolved_by_operator_is_pinned() {
    let complete = || Settlement::Complete(inline(), SETTLED_UNTIL);
    let writes = [puts::claim(lock()), resolve(&started(), complete())];
    assert_eq!(after(|b| b, &writes).await, include_str!("golden/resolved_completed.txt"));

    // Nothing of the earlier outcome remains, whether it was inline or in chunks.
    for before in [complete(), Settlement::Fail(in_parts(), ms(2_095_086_461_000))] {
        let expires_at = ms(2_095_086_462_000);
        let mut writes = claimed_and(before).to_vec();
        let settled = writes[1].apply_to(Some(&started())).unwrap();
        writes.push(resolve(&settled, Settlement::Complete(Outcome::Omitted, expires_at)));
        let omitted = writes[2].apply_to(Some(&settled)).unwrap();
        writes.push(resolve(&omitted, release(true)));
        assert_eq!(after(|b| b, &writes).await, include_str!("golden/resolved_released.txt"));
    }
}

#[tokio::test]
async fn item_with_custom_attribute_names_is_pinned() {
    let writes = [
        puts::claim(lock()),
        puts::take_over(&started(), next_lock()),
        puts::settle(&next_lock(), Settlement::Complete(inline(), SETTLED_UNTIL)),
    ];
    let item = after(|b| b.sort_key("sk").attributes(NAMES).unwrap(), &writes).await;
    assert_eq!(item, include_str!("golden/other_names.txt"));
}

#[tokio::test]
async fn response_chunk_items_are_pinned() {
    for (sort_key, golden) in
        [(None, include_str!("golden/part.txt")), (Some("sk"), include_str!("golden/part_sort_key.txt"))]
    {
        let table = Table::with(|builder| match sort_key {
            Some(name) => builder.sort_key(name),
            None => builder,
        })
        .await;
        let count = table
            .store
            .write_chunks(&key(), lock().owner, &bytes::Bytes::from_static(b"\x00part\xff"), SETTLED_UNTIL)
            .await
            .unwrap();
        assert_eq!(count, 1);
        let [item] = table.items().await.try_into().unwrap();
        assert_eq!(shown(&item), golden);
    }
}

#[tokio::test]
async fn two_keys_are_two_records() {
    for sort_key in [None, Some("sk")] {
        let table = Table::with(|builder| match sort_key {
            Some(name) => builder.sort_key(name),
            None => builder,
        })
        .await;
        for id in ["a/b#1", "a/b#2"] {
            let written = table.store.put(&StoredKey::from_stored(id), &puts::claim(lock())).await.unwrap();
            assert_eq!(written, PutOutcome::Applied);
        }
        assert_eq!(table.items().await.len(), 2);
    }
}
