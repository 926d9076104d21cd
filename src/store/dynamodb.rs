//! The DynamoDB store.
//!
//! It keeps one item per record and sends one conditional request per transition. When a condition fails,
//! DynamoDB returns the item that made it fail (`ReturnValuesOnConditionCheckFailure = ALL_OLD`). A first run
//! costs two requests. A duplicate costs one. A takeover costs two, and its completion costs one more.
//!
//! # The item
//!
//! | attribute | type | in | content |
//! |---|---|---|---|
//! | `id` | S | all | the partition key: the stored key, `<function>/<operation>#<64 hex digits>`; or the shared [partition](DynamoDbBuilder::partition) |
//! | the sort key, if the table has one | S | all | `record`; in a shared partition, the stored key |
//! | `version` | N | all | `3`, the version of this format |
//! | `status` | S | all | `STARTED`, `COMPLETED`, `FAILED` or `RELEASED` |
//! | `owner` | B | all | the claim's owner: 16 random bytes |
//! | `generation` | N | all | the claim's generation |
//! | `attempt` | N | all | how many claims the operation has had |
//! | `fingerprint` | B | all | the version of the fingerprint's rules, `1`, and the SHA-256: 33 bytes |
//! | `claimed_at` | N | all | when the claim was made; ms since the Unix epoch |
//! | `lease_until` | N | STARTED | when the lease ends; ms since the Unix epoch |
//! | `expires_at` | N | all, except unsettled at-most-once claims | expiry in **whole seconds**, rounded up (TTL) |
//! | `mark` | S | if an attempt ended without an answer | `interrupted`: an earlier one, which may have had effects; `unanswered`: this claim itself, and nothing runs under it; `reconciled`: the outcome was found by asking |
//! | `execution` | S | at-most-once claims, settled or not | `at-most-once`: the claim's handler never starts again |
//! | `request_id` | S | all, if known | the invocation that made the claim |
//! | `trace` | S | if traced | the trace of the run under the claim |
//! | `encoding` | S | COMPLETED, FAILED, if encoded or not in the record | `deflate` (RFC 1951) or `identity`, or `omitted`; see below |
//! | `length` | N | COMPLETED, FAILED, if it isn't that of `response` | the response's length in bytes, before encoding |
//! | `sha256` | B | COMPLETED, FAILED, unless omitted | SHA-256 before encoding: 32 bytes |
//! | `response` | B | COMPLETED, FAILED, if in the record | the response, encoded |
//!
//! All times count from the Unix epoch. If the response is in chunks, `encoding` is `identity` or `deflate`, `/` and
//! their number. `;format=` may follow, with the name of a [`Format`](crate::store::Format) other than JSON. Then
//! `;key=` may follow, with the id of the key that a [`Cipher`](crate::store::Cipher) used. For an encrypted response,
//! `length` is the length of the plaintext, and `sha256` is the digest of the ciphertext. `omitted` means that the
//! response wasn't stored. Without an `encoding`, `response` is the response itself.
//!
//! DynamoDB's console and the AWS command line show bytes as Base64. `idempotency inspect` shows the owner, the
//! fingerprint and the digest in hexadecimal digits, as the logs do. `base64 --decode | xxd -p` converts one to the other.
//!
//! An item counts as corrupt, never as absent, if it lacks an attribute of its state, has an attribute of another
//! state, has another version, or has a `mark`, an `execution` or an `encoding` that this release doesn't know. Attributes
//! that aren't in this table stay in the item until the record is reclaimed.
//!
//! A write unit is 1 KB. The record's own attributes leave room for a response of 696 bytes, if the key has 84 bytes. A
//! response that needs a second unit is compressed if it then fits into the first, and from 1,024 bytes on, if that makes
//! it at least an eighth shorter.
//!
//! DynamoDB spreads the records over the table's partitions by their partition key. A sort key doesn't change the
//! spread, since each record still has its own partition key. But a shared partition holds all records in one place,
//! which DynamoDB limits to 1,000 write units per second.
//!
//! If a sort key is configured, a process reads once before its first write, to check that the table has this sort key.
//! If that read fails, the store sends no write, and the next write checks again.
//!
//! # A chunk
//!
//! A response over the inline limit is stored in chunks of at most 389,120 bytes each, which live a day
//! longer than the record:
//!
//! | attribute | type | content |
//! |---|---|---|
//! | `id` | S | without a sort key `<the record's id>#part#<owner>#<index>`, index from 0; with one, the record's `id` |
//! | the sort key, if the table has one | S | `part#<owner>#<index>`; in a shared partition, `<stored key>#part#<owner>#<index>` |
//! | `expires_at` | N | the record's `expires_at`, plus 86,400 s |
//! | `response` | B | the bytes |
//!
//! With a sort key, all chunks of a response are in one partition, which accepts 1,000 write units a second.
//! The store writes two chunks at once to such a partition, and four at once to a table without a sort key.
//! With a sort key, writing a response of 1 MB takes about a second, and one of 6 MB about 7 s, unless the table has
//! burst capacity left. **Leave the sort key out if responses are large.**
//!
//! # The stream
//!
//! [`ended_in`](DynamoDbStore::ended_in) detects in the table's stream that an operation has ended. The stream needs
//! the view type `NEW_AND_OLD_IMAGES`. [`guide::operations`](crate::guide::operations) shows an outbox.
//!
//! # Permissions
//!
//! `dynamodb:PutItem`, `dynamodb:UpdateItem` and `dynamodb:GetItem` on the table. With
//! `dynamodb:DescribeTable`, the error for a table whose keys don't match the configuration is more precise.
//! [`create_table`](DynamoDbStore::create_table), [`check_table`](DynamoDbStore::check_table) and
//! [`scan`](DynamoDbStore::scan) need more permissions, which they list.
//!
//! # Example
//!
//! ```
//! # async fn example() -> Result<(), lambda_idempotency::Error> {
//! use lambda_idempotency::store::dynamodb::DynamoDbStore;
//!
//! let store = DynamoDbStore::builder("idempotency").region("eu-west-1").build().await?;
//! # Ok(())
//! # }
//! ```

mod attempts;
mod attributes;
mod builder;
mod chunks;
mod codec;
mod connections;
mod ended;
mod environment;
mod expressions;
mod fault;
mod random;
#[cfg(feature = "admin")]
mod scan;
mod table;
pub(crate) mod transaction;
mod url;

pub use builder::DynamoDbBuilder;

pub use ended::OperationEnded;
pub(crate) use random::start_random;
pub use transaction::{Declined, Transaction};

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    operation::{put_item::PutItemError, update_item::UpdateItemError},
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure::AllOld},
};

use self::{
    attempts::{Findings, observed},
    attributes::AttributeNames,
    codec::Item,
    connections::Connections,
    expressions::Expressions,
    fault::{Class, Fault},
    transaction::item_bytes,
};
use crate::{
    error::Error,
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{
        Put, PutOutcome, ResponseChunks, Store, StoreError, StoreErrorKind, Transactions, toolkit::Field,
    },
};

/// The sort key's value in every record, if the table has a sort key and records don't share a partition.
const RECORD_SORT_KEY: &str = "record";
/// The size of a write unit, in bytes.
const UNIT: usize = 1024;
/// The length of the shortest response that's compressed, in bytes. Shorter ones hardly get smaller.
const SHORTEST_COMPRESSED: usize = 256;

/// Stores records in a DynamoDB table; see the [module's documentation](self) for the item.
///
/// Cloning is cheap, and clones share the client and its connections.
#[derive(Clone)]
pub struct DynamoDbStore {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    /// The client's connections, unless the user's client has its own.
    connections: Option<Connections>,
    table: String,
    attributes: AttributeNames,
    sort_key: Option<String>,
    /// The partition key's value in every item, if all records share it. The stored key is then the sort key.
    partition: Option<String>,
    inline_limit: usize,
    /// The size of a completed record, besides its key and its response.
    usual_bytes: usize,
    /// Whether a read has shown that the table has the configured sort key.
    has_sort_key: AtomicBool,
}

/// Leaves out the client's configuration, which contains credentials.
impl fmt::Debug for DynamoDbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbStore")
            .field("table", &self.inner.table)
            .field("region", &self.region())
            .field("sort_key", &self.inner.sort_key)
            .field("partition", &self.inner.partition)
            .field("inline_limit", &self.inner.inline_limit)
            .finish_non_exhaustive()
    }
}

impl DynamoDbStore {
    /// Creates a store on `table`, with `client`'s configuration, and defaults for the store's own settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the table's name isn't valid.
    pub fn new(client: Client, table: impl Into<String>) -> Result<Self, Error> {
        Self::builder(table).build_with(&client)
    }

    /// Configures a store on `table`.
    pub fn builder(table: impl Into<String>) -> DynamoDbBuilder {
        DynamoDbBuilder::new(table.into())
    }

    /// The table's name or ARN.
    pub fn table(&self) -> &str {
        &self.inner.table
    }

    /// Decodes the record in an item that you got elsewhere: from a stream's image, a scan's page or an export.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if the item isn't a record, or is one that this version can't read. The
    /// message names the attribute.
    ///
    /// ```
    /// # use lambda_idempotency::store::{StoreErrorKind, dynamodb::DynamoDbStore};
    /// # use aws_sdk_dynamodb::types::AttributeValue;
    /// # fn example(store: &DynamoDbStore) {
    /// let item = [("id".to_owned(), AttributeValue::S("payments/run#…".to_owned()))];
    /// let error = store.record_in(item.into()).unwrap_err();
    /// assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    /// # }
    /// ```
    pub fn record_in(&self, item: HashMap<String, AttributeValue>) -> Result<Record, StoreError> {
        let key = self.stored_key_of(&item).ok_or_else(|| {
            let table = &self.inner.table;
            StoreError::new(StoreErrorKind::Corrupt, format!("an item of table `{table}` has no stored key"))
        })?;
        self.decode(&key, item)
    }

    /// Returns the stored key of the record or the chunk in `item`.
    fn stored_key_of(&self, item: &Item) -> Option<StoredKey> {
        let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok());
        let id = text(self.inner.attributes.of(Field::Id))?;
        let key = match (&self.inner.partition, &self.inner.sort_key) {
            (Some(partition), Some(sort_key)) if id == partition => text(sort_key)?,
            (Some(_), _) => return None,
            (None, _) => id,
        };
        Some(StoredKey::from_stored(key.as_str()))
    }

    fn region(&self) -> Option<&str> {
        self.inner.client.config().region().map(AsRef::as_ref)
    }

    /// Returns the item key of the record, or of the record's chunk named `chunk`.
    fn item_key(&self, key: &StoredKey, chunk: Option<&str>) -> Item {
        let Inner { partition, sort_key, attributes, .. } = &*self.inner;
        let joined = || match chunk {
            Some(chunk) => format!("{key}#{chunk}"),
            None => key.as_str().to_owned(),
        };
        let (id, sort) = match (partition, sort_key) {
            (Some(partition), Some(_)) => (partition.clone(), joined()),
            (_, Some(_)) => (key.as_str().to_owned(), chunk.unwrap_or(RECORD_SORT_KEY).to_owned()),
            (_, None) => (joined(), String::new()),
        };
        // Reserve space for the whole item: a claim adds its attributes to the key.
        let mut item = HashMap::with_capacity(16);
        item.insert(attributes.of(Field::Id).to_owned(), codec::text(id));
        if let Some(sort_key) = sort_key {
            item.insert(sort_key.clone(), codec::text(sort));
        }
        item
    }

    fn record_key(&self, key: &StoredKey) -> Item {
        self.item_key(key, None)
    }

    fn decode(&self, key: &StoredKey, item: Item) -> Result<Record, StoreError> {
        codec::decode(item, &self.inner.attributes).map_err(|unreadable| {
            self.corrupt(key, &format!("`{}` {}", self.inner.attributes.of(unreadable.field), unreadable.why))
        })
    }

    fn corrupt(&self, key: &StoredKey, why: &str) -> StoreError {
        let table = &self.inner.table;
        StoreError::new(
            StoreErrorKind::Corrupt,
            format!("the record `{key}` in table `{table}` can't be read: {why}"),
        )
    }

    async fn error<E>(&self, error: &SdkError<E>, findings: Findings) -> StoreError
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        self.told(Fault::new(error, findings), Class::Invalid).await
    }

    /// Converts `fault` to the store's error. If DynamoDB calls the request invalid although the table's keys
    /// match the configuration, the error is of class `invalid`.
    async fn told(&self, fault: Fault, invalid: Class) -> StoreError {
        if fault.class == Class::Invalid {
            // Boxed: otherwise, every request's future would reserve space for this rare call.
            return Box::pin(self.explained(fault, invalid)).await;
        }
        fault.into_error(&self.inner.table, self.region())
    }

    /// Checks once, by a read of the record, that the table has the configured sort key. A table without that key would
    /// accept a claim (the sort key would be just another attribute), and reject the completion after the handler has
    /// run.
    ///
    /// # Errors
    ///
    /// The read's error. After an error, the caller must not send the write. The next call reads again.
    pub(super) async fn check_sort_key(&self, key: &StoredKey) -> Result<(), StoreError> {
        if self.inner.sort_key.is_none() || self.inner.has_sort_key.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.get(key).await.map(drop)
    }

    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        self.check_sort_key(key).await?;
        let expressions = Expressions::of(put, &self.inner.attributes);
        match expressions.update {
            None => self.put_item(key, put.record(), expressions).await,
            Some(_) => self.update_item(key, expressions).await,
        }
    }

    fn record_item(&self, key: &StoredKey, record: &Record) -> Item {
        let mut item = self.record_key(key);
        codec::put_record(&mut item, record, &self.inner.attributes);
        item
    }

    /// Reads the record if DynamoDB refused a write and didn't return the record. Either there's none, or the endpoint is
    /// an emulator that doesn't return it (dynalite, for example). Only a read tells the two apart: a record must never
    /// count as absent. An earlier attempt of the same call may have written this record, so an error of the read is
    /// ambiguous.
    async fn shown(&self, key: &StoredKey, written: PutOutcome) -> Result<PutOutcome, StoreError> {
        match written {
            PutOutcome::Refused(None) => {
                // Boxed, because DynamoDB nearly always returns the record.
                let found = Box::pin(self.get(key)).await.map_err(|error| error.maybe_applied(true));
                Ok(PutOutcome::Refused(found?))
            }
            written => Ok(written),
        }
    }

    /// Puts the whole item.
    async fn put_item(
        &self,
        key: &StoredKey,
        record: &Record,
        expressions: Expressions<'_>,
    ) -> Result<PutOutcome, StoreError> {
        // DynamoDB rejects an empty map.
        let values = (!expressions.values.is_empty()).then_some(expressions.values);
        let request = self
            .inner
            .client
            .put_item()
            .table_name(&self.inner.table)
            .set_item(Some(self.record_item(key, record)))
            .condition_expression(expressions.condition)
            .set_expression_attribute_names(Some(expressions.names))
            .set_expression_attribute_values(values)
            .return_values_on_condition_check_failure(AllOld);
        let (answer, findings) = observed(request.send()).await;
        match answer {
            Ok(_) => Ok(PutOutcome::Applied),
            Err(SdkError::ServiceError(error)) if error.err().is_conditional_check_failed_exception() => {
                let item = match error.into_err() {
                    PutItemError::ConditionalCheckFailedException(refusal) => refusal.item,
                    _ => None,
                };
                self.shown(key, self.refused(key, item)?).await
            }
            Err(error) => Err(self.error(&error, findings).await),
        }
    }

    /// Updates the item, so that attributes that other programs added to it stay.
    async fn update_item(
        &self,
        key: &StoredKey,
        expressions: Expressions<'_>,
    ) -> Result<PutOutcome, StoreError> {
        let request = self
            .inner
            .client
            .update_item()
            .table_name(&self.inner.table)
            .set_key(Some(self.record_key(key)))
            .set_update_expression(expressions.update)
            .condition_expression(expressions.condition)
            .set_expression_attribute_names(Some(expressions.names))
            .set_expression_attribute_values(Some(expressions.values))
            .return_values_on_condition_check_failure(AllOld);
        let (answer, findings) = observed(request.send()).await;
        match answer {
            Ok(_) => Ok(PutOutcome::Applied),
            Err(SdkError::ServiceError(error)) if error.err().is_conditional_check_failed_exception() => {
                let item = match error.into_err() {
                    UpdateItemError::ConditionalCheckFailedException(refusal) => refusal.item,
                    _ => None,
                };
                self.shown(key, self.refused(key, item)?).await
            }
            Err(error) => Err(self.error(&error, findings).await),
        }
    }

    /// Decodes the record that made the condition fail. The failure is definite, whatever happened to earlier
    /// attempts: the returned item shows whether one of them was applied.
    fn refused(&self, key: &StoredKey, item: Option<Item>) -> Result<PutOutcome, StoreError> {
        let record = item.filter(|item| !item.is_empty()).map(|item| self.decode(key, item)).transpose()?;
        Ok(PutOutcome::Refused(record))
    }

    async fn get(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let item = self.get_item(self.record_key(key)).await?;
        // A table without the sort key would have rejected the read.
        self.inner.has_sort_key.store(true, Ordering::Relaxed);
        item.map(|item| self.decode(key, item)).transpose()
    }

    async fn get_item(&self, key: Item) -> Result<Option<Item>, StoreError> {
        let request = self
            .inner
            .client
            .get_item()
            .table_name(&self.inner.table)
            .set_key(Some(key))
            .consistent_read(true);
        match observed(request.send()).await {
            (Ok(answer), _) => Ok(answer.item),
            // A read writes nothing, so it's never ambiguous.
            (Err(error), findings) => Err(self.error(&error, findings).await.maybe_applied(false)),
        }
    }
}

impl Store for DynamoDbStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.put_now(key, put))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get(key))
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        Some(self)
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    /// A write unit is 1 KB ("Read/write capacity", DynamoDB developer guide).
    fn compress_from(&self, key: &StoredKey) -> usize {
        let record = item_bytes(&self.record_key(key)) + self.inner.usual_bytes;
        (UNIT + 1).saturating_sub(record).clamp(SHORTEST_COMPRESSED, UNIT)
    }

    fn close_connections(&self) {
        self.inner.connections.iter().for_each(Connections::close);
    }
}
