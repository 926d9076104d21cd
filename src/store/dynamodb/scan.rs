//! Iterates over all records of the table, for operators.

use aws_sdk_dynamodb::types::AttributeValue;

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
    /// Needs `dynamodb:Scan`.
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
        // No name in a stored key's scope can contain a `#`, so only a chunk's key contains this.
        let (filter, name, value) = match &self.inner.sort_key {
            Some(sort_key) => ("#key = :value", sort_key.as_str(), RECORD_SORT_KEY),
            None => ("NOT contains(#key, :value)", self.inner.attributes.of(Attribute::Id), "#part#"),
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
            .set_exclusive_start_key(from.map(|position| position.0));
        let answer = match observed(request.customize().config_override(table::patient()).send()).await {
            (Ok(answer), _) => answer,
            (Err(error), findings) => return Err(self.error(&error, findings).await.maybe_applied(false)),
        };
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty()).map(ScanPosition);
        let records = answer.items.unwrap_or_default().into_iter().map(|item| self.scanned(item));
        Ok(ScanPage { records: records.collect::<Result<_, _>>()?, next })
    }

    fn scanned(&self, item: Item) -> Result<(StoredKey, Result<Record, StoreError>), StoreError> {
        let Some(AttributeValue::S(id)) = item.get(self.inner.attributes.of(Attribute::Id)) else {
            let table = &self.inner.table;
            return Err(StoreError::new(
                StoreErrorKind::Rejected,
                format!(
                    "table `{table}` has a key that differs from the configuration; run `idempotency table check`"
                ),
            ));
        };
        let key = StoredKey::from_stored(id);
        let record = self.decode(&key, item);
        Ok((key, record))
    }
}
