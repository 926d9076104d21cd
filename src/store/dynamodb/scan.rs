//! Iterates over all records of the table, for operators.

use super::{
    DynamoDbStore, RECORD_SORT_KEY, attempts::observed, attributes::Attribute, codec, codec::Item, table,
};
use crate::{
    key::StoredKey,
    record::Record,
    store::{StoreError, StoreErrorKind},
};

/// One page of records; see [`DynamoDbStore::scan`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ScanPage {
    /// The records by their keys, in no particular order. A record that can't be decoded is an error.
    pub records: Vec<(StoredKey, Result<Record, StoreError>)>,
    /// Where the next page begins, if there is more.
    pub next: Option<ScanPosition>,
}

/// A part of a chunk's stored key. No name in a stored key's scope can contain a `#`, so no record's has it.
const CHUNK: &str = "#part#";

/// Items, and the key of the last one if more follow.
type Page = (Vec<Item>, Option<Item>);

/// A record, or why it can't be decoded, with its key.
type Scanned = (StoredKey, Result<Record, StoreError>);

/// Where a scan continues.
#[derive(Clone, Debug)]
pub struct ScanPosition(Item);

impl DynamoDbStore {
    /// Returns one page of records, from the beginning or from the end of an earlier page. It's for an
    /// operator, not for a handler, since DynamoDB bills every item that it reads by its size. A page can be
    /// empty even if more follow.
    ///
    /// It omits chunks of responses. If the table has a sort key, it omits everything that isn't a record.
    /// Each record is read consistently, but the scan isn't a snapshot.
    ///
    /// Needs `dynamodb:Scan`; with a [`partition`](super::DynamoDbStoreBuilder::partition), `dynamodb:Query`.
    ///
    /// # Errors
    ///
    /// If DynamoDB can't be reached, or rejects the request.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    ///
    /// ```no_run
    /// # async fn example(store: lambda_idempotency::store::dynamodb::DynamoDbStore)
    /// # -> Result<(), lambda_idempotency::store::StoreError> {
    /// let mut position = None;
    /// loop {
    ///     let page = store.scan(position).await?;
    ///     for (key, record) in page.records {
    ///         println!("{key} {:?}", record.map(|record| record.status()));
    ///     }
    ///     position = page.next;
    ///     if position.is_none() {
    ///         return Ok(());
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn scan(&self, from: Option<ScanPosition>) -> Result<ScanPage, StoreError> {
        let start = from.map(|position| position.0);
        let (items, next) = match (&self.inner.partition, &self.inner.sort_key) {
            (Some(partition), Some(_)) => self.query_partition(partition, start).await?,
            (_, sort_key) => self.scan_table(sort_key.as_deref(), start).await?,
        };
        let next = next.filter(|key| !key.is_empty()).map(ScanPosition);
        let records = items.into_iter().filter_map(|item| self.scanned(item).transpose());
        Ok(ScanPage { records: records.collect::<Result<_, _>>()?, next })
    }

    async fn scan_table(&self, sort_key: Option<&str>, start: Option<Item>) -> Result<Page, StoreError> {
        let (filter, name, value) = match sort_key {
            Some(sort_key) => ("#key = :value", sort_key, RECORD_SORT_KEY),
            None => ("NOT contains(#key, :value)", self.inner.attributes.of(Attribute::Id), CHUNK),
        };
        let request = self
            .inner
            .client
            .scan()
            .table_name(&self.inner.table)
            .consistent_read(true)
            .filter_expression(filter)
            .expression_attribute_names("#key", name)
            .expression_attribute_values(":value", codec::text(value))
            .set_exclusive_start_key(start);
        match observed(request.customize().config_override(table::patient()).send()).await {
            (Ok(answer), _) => Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key)),
            (Err(error), findings) => Err(self.error(&error, findings).await.maybe_applied(false)),
        }
    }

    /// The items of one partition, with the chunks: DynamoDB can't filter a query by its sort key.
    async fn query_partition(&self, partition: &str, start: Option<Item>) -> Result<Page, StoreError> {
        let request = self
            .inner
            .client
            .query()
            .table_name(&self.inner.table)
            .consistent_read(true)
            .key_condition_expression("#key = :value")
            .expression_attribute_names("#key", self.inner.attributes.of(Attribute::Id))
            .expression_attribute_values(":value", codec::text(partition))
            .set_exclusive_start_key(start);
        match observed(request.customize().config_override(table::patient()).send()).await {
            (Ok(answer), _) => Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key)),
            (Err(error), findings) => Err(self.error(&error, findings).await.maybe_applied(false)),
        }
    }

    /// The record in `item`, or `None` if it's a chunk.
    fn scanned(&self, item: Item) -> Result<Option<Scanned>, StoreError> {
        let Some(key) = self.stored_key_of(&item) else {
            let table = &self.inner.table;
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "table `{table}` has a key that differs from the configuration; run `idempotency table check`"
                ),
            ));
        };
        if key.as_str().contains(CHUNK) {
            return Ok(None);
        }
        let record = self.decode(&key, item);
        Ok(Some((key, record)))
    }
}
