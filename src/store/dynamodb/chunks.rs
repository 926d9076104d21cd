//! If a response is too large for its record, stores it in chunks, each in its own item.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    DynamoDbStore,
    attempts::observed,
    codec::{self, Item},
};
use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Owner,
    store::{
        ResponseChunks, StoreError,
        toolkit::{Field, SWEEP_MARGIN},
    },
    time::Timestamp,
};

/// The maximum number of response bytes in one chunk. Together with its partition key (at most 2,048 bytes) and the names
/// of its attributes (at most 255 bytes each), an item stays under DynamoDB's limit of 400 KB (409,600 bytes).
pub(super) const CHUNK_BYTES: usize = 380 * 1024;
/// How many chunks are in flight at once: enough to hide the round trips, few enough for a function with
/// little memory.
const CONCURRENCY: usize = 4;
/// How many chunks are written at once to one partition. A partition accepts 1,000 write units a second, and a chunk
/// takes 380 of them ("Best practices for designing and using partition keys effectively", DynamoDB developer guide).
const WRITES_PER_PARTITION: usize = 1_000 * 1024 / CHUNK_BYTES;

impl DynamoDbStore {
    fn chunk_key(&self, key: &StoredKey, owner: Owner, index: u32) -> Item {
        self.item_key(key, Some(&format!("part#{owner}#{index}")))
    }

    async fn put_chunk(&self, mut item: Item, kept: Bytes, expires_at: Timestamp) -> Result<(), StoreError> {
        let names = &self.inner.attributes;
        item.insert(names.of(Field::ExpiresAt).to_owned(), codec::seconds(expires_at));
        item.insert(names.of(Field::Response).to_owned(), codec::binary(kept));
        // The put needs no condition: the key contains the owner, so only one claim writes this item. That claim
        // writes different bytes only if its earlier transaction was definitely not applied, so that no record refers
        // to the earlier bytes.
        let request = self.inner.client.put_item().table_name(&self.inner.table).set_item(Some(item));
        match observed(request.send()).await {
            (Ok(_), _) => Ok(()),
            (Err(error), findings) => Err(self.error(&error, findings).await),
        }
    }

    async fn get_part(&self, key: &StoredKey, owner: Owner, index: u32) -> Result<Bytes, StoreError> {
        let item = self.get_item(self.chunk_key(key, owner, index)).await?;
        let Some(item) = item else {
            return Err(self.corrupt(key, &format!("chunk {index} of its response is missing")));
        };
        codec::decode_chunk(item, &self.inner.attributes).ok_or_else(|| {
            let attribute = self.inner.attributes.of(Field::Response);
            self.corrupt(key, &format!("chunk {index} of its response has no `{attribute}` of type B"))
        })
    }

    async fn write_chunks_now(
        &self,
        key: &StoredKey,
        owner: Owner,
        bytes: &Bytes,
        expires_at: Timestamp,
    ) -> Result<u32, StoreError> {
        self.check_sort_key(key).await?;
        // DynamoDB's TTL doesn't remove the chunks before the record.
        let expires_at = expires_at.saturating_add(SWEEP_MARGIN);
        // An empty response becomes one empty chunk, because a record whose response is in chunks needs at least one.
        let count = u32::try_from(bytes.len().div_ceil(CHUNK_BYTES).max(1)).unwrap_or(u32::MAX);
        let chunk = |index: u32| {
            let start = index as usize * CHUNK_BYTES;
            bytes.slice(start..bytes.len().min(start + CHUNK_BYTES))
        };
        // With a sort key, all chunks have the record's partition key, so one partition gets all these writes.
        let concurrency = if self.inner.sort_key.is_some() { WRITES_PER_PARTITION } else { CONCURRENCY };
        stream::iter(0..count)
            .map(|index| self.put_chunk(self.chunk_key(key, owner, index), chunk(index), expires_at))
            .buffer_unordered(concurrency)
            .try_collect::<()>()
            .await?;
        Ok(count)
    }

    async fn read_chunks_now(
        &self,
        key: &StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> Result<Bytes, StoreError> {
        let mut chunks =
            stream::iter(0..count).map(|index| self.get_part(key, owner, index)).buffered(CONCURRENCY);
        let mut kept = BytesMut::new();
        while let Some(chunk) = chunks.try_next().await? {
            if (kept.len() + chunk.len()) as u64 > limit {
                return Err(
                    self.corrupt(key, &format!("the chunks of its response have more than {limit} bytes"))
                );
            }
            kept.extend_from_slice(&chunk);
        }
        Ok(kept.freeze())
    }
}

impl ResponseChunks for DynamoDbStore {
    fn inline_limit(&self) -> usize {
        self.inner.inline_limit
    }

    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(self.write_chunks_now(key, owner, bytes, expires_at))
    }

    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.read_chunks_now(key, owner, count, limit))
    }
}
