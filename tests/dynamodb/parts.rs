//! Responses stored in chunks, each in its own item.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lambda_idempotency::{
    Idempotency, Key, StoredKey,
    store::{BoxFuture, Cipher, ResponseChunks, Store, StoreError, StoreErrorKind},
};

use super::{
    emulator::{Table, builder},
    fixtures::{ID, SETTLED_UNTIL, key, n, owner, s},
    wire::{Reply, Wire},
};

/// Incompressible bytes: the upper bits of a linear congruential generator.
fn noise(length: usize) -> Bytes {
    let mut state = 1_795_000_000_u64;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect::<Vec<_>>()
        .into()
}

async fn table(sort_key: Option<&str>) -> Table {
    Table::with(|builder| match sort_key {
        Some(name) => builder.sort_key(name),
        None => builder,
    })
    .await
}

#[tokio::test]
async fn six_megabytes_round_trip_byte_for_byte() {
    let table = table(None).await;
    round_trip(&table, 6 * 1024 * 1024, 17).await;
}

#[tokio::test]
async fn chunks_round_trip_with_a_sort_key() {
    let table = table(Some("sk")).await;
    round_trip(&table, 1024 * 1024, 3).await;
}

/// A cipher that XORs each byte with a constant. That's enough to show that the chunks are encrypted. Like an AEAD
/// cipher, it makes the ciphertext longer than the plaintext.
#[derive(Debug)]
struct Veil;

/// The length of an AES-GCM tag.
const TAG_BYTES: usize = 16;

impl Cipher for Veil {
    fn encrypt<'a>(
        &'a self,
        _: &'a StoredKey,
        plaintext: &'a Bytes,
    ) -> BoxFuture<'a, Result<(Arc<str>, Bytes), StoreError>> {
        Box::pin(async move {
            let veiled = plaintext.iter().map(|byte| byte ^ 0x5a);
            Ok(("veil".into(), veiled.chain([0; TAG_BYTES]).collect()))
        })
    }

    fn decrypt<'a>(
        &'a self,
        _: &'a StoredKey,
        _: &'a str,
        ciphertext: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let veiled = &ciphertext[..ciphertext.len() - TAG_BYTES];
        Box::pin(async move { Ok(veiled.iter().map(|byte| byte ^ 0x5a).collect()) })
    }
}

#[tokio::test]
async fn encrypted_chunks_are_replayed() {
    let table = Table::with(|builder| builder.inline_limit(100)).await;
    let builder = Idempotency::builder(table.store.clone()).function("f").cipher(Veil);
    let operation = builder.build().unwrap().operation("cards").unwrap();
    let secret = "4111 1111 1111 1111, ".repeat(8);
    for answer in [secret.as_str(), "another run's"] {
        let work = || async { Ok::<_, std::io::Error>(answer.to_owned()) };
        assert_eq!(operation.run(Key::new("k").unwrap(), &1, work).await.unwrap(), secret);
    }
    let items = table.items().await;
    assert_eq!(items.len(), 2, "a record and a chunk");
    let encodings: Vec<_> = items.iter().filter_map(|item| item.get("encoding")).collect();
    assert_eq!(encodings, [&s("identity/1;key=veil")]);
    for bytes in items.iter().filter_map(|item| item.get("response")?.as_b().ok()) {
        assert!(!bytes.as_ref().windows(4).any(|window| window == b"4111"));
    }
}

async fn round_trip(table: &Table, length: usize, parts: u32) {
    let (response, length) = (noise(length), length as u64);
    let count = table.store.write_chunks(&key(), owner(1), &response, SETTLED_UNTIL).await.unwrap();
    assert_eq!(count, parts);
    let back = table.store.read_chunks(&key(), owner(1), count, length).await.unwrap();
    assert!(back == response, "read {} bytes that differ from the response", back.len());
    let error = table.store.read_chunks(&key(), owner(1), count, length - 1).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert_eq!(table.store.read(&key()).await.unwrap(), None, "no chunk is read as the record");
}

/// With a sort key, all chunks of a response are in one partition. A partition accepts 1,000 write units a second, and
/// a 380 KB chunk costs 380 of them. So the store sends only two chunks at once.
#[tokio::test]
async fn partitions_get_two_chunks_at_once() {
    for (sort_key, at_once) in [(None, 4), (Some("sk"), 2)] {
        let table = table(sort_key).await;
        let puts_hang = |_, operation: &str| match operation {
            "PutItem" => Reply::Hang,
            _ => Reply::Forward,
        };
        let wire = Wire::new(Some(table.address), puts_hang).await;
        let builder = match sort_key {
            Some(name) => builder(wire.address).sort_key(name),
            None => builder(wire.address),
        };
        let store = builder.build().await.unwrap();
        let (key, response) = (key(), noise(2 * 1024 * 1024));
        let puts = || wire.requests().iter().filter(|operation| *operation == "PutItem").count();
        let all_are_under_way = async {
            while puts() < at_once {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            // Long enough to see whether the store sends more puts than it should.
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            _ = store.write_chunks(&key, owner(1), &response, SETTLED_UNTIL) => panic!("returned without a response"),
            () = all_are_under_way => {}
        }
        assert_eq!(puts(), at_once, "sort key: {sort_key:?}");
    }
}

#[tokio::test]
async fn responses_at_chunk_boundaries_round_trip() {
    let table = table(None).await;
    let part = 389_120;
    for (length, parts) in [(0, 1), (1, 1), (part - 1, 1), (part, 1), (part + 1, 2), (2 * part, 2)] {
        let response = noise(length);
        let count = table.store.write_chunks(&key(), owner(1), &response, SETTLED_UNTIL).await.unwrap();
        assert_eq!(count, parts, "{length} bytes");
        let back = table.store.read_chunks(&key(), owner(1), count, length as u64).await.unwrap();
        assert!(back == response, "{length} bytes");
    }
}

#[tokio::test]
async fn attempts_keep_their_chunks_apart() {
    let table = table(None).await;
    let (first, second) = (noise(1000), Bytes::from_static(b"second"));
    for _ in 0..2 {
        table.store.write_chunks(&key(), owner(1), &first, SETTLED_UNTIL).await.unwrap();
    }
    table.store.write_chunks(&key(), owner(2), &second, SETTLED_UNTIL).await.unwrap();
    table
        .store
        .write_chunks(&StoredKey::from_stored("other"), owner(1), &second, SETTLED_UNTIL)
        .await
        .unwrap();
    assert_eq!(table.store.read_chunks(&key(), owner(1), 1, 1000).await.unwrap(), first);
    assert_eq!(table.store.read_chunks(&key(), owner(2), 1, 1000).await.unwrap(), second);
    assert_eq!(table.items().await.len(), 3);
}

#[tokio::test]
async fn missing_or_invalid_chunks_are_corrupt() {
    let table = table(None).await;
    table.store.write_chunks(&key(), owner(1), &noise(400_000), SETTLED_UNTIL).await.unwrap();
    let error = table.store.read_chunks(&key(), owner(1), 3, 1_000_000).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert_eq!(
        error.to_string(),
        format!("the record `{ID}` in table `idempotency` can't be read: chunk 2 of its response is missing")
    );
    let id = format!("{ID}#part#{}#1", "01".repeat(16));
    for part in [
        [("id".to_owned(), s(&id)), ("response".to_owned(), s("secret"))].into(),
        [("id".to_owned(), s(&id)), ("expires_at".to_owned(), n(1))].into(),
    ] {
        table.put(part).await;
        let error = table.store.read_chunks(&key(), owner(1), 2, 1_000_000).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(
            error.to_string().ends_with("chunk 1 of its response has no `response` of type B"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_inline_limit_is_configurable() {
    let table = Table::new().await;
    assert_eq!(table.store.chunks().unwrap().inline_limit(), 32 * 1024);
    let table = Table::with(|builder| builder.inline_limit(350 * 1024)).await;
    assert_eq!(table.store.chunks().unwrap().inline_limit(), 350 * 1024);
}
