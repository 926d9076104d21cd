//! Iterates over all records of the table, for operators.

use aws_sdk_dynamodb::types::AttributeValue;

use super::{DynamoDbStore, RECORD_SORT_KEY, attempts::observed, codec, codec::Item, ended::CHUNK, table};
use crate::{
    key::StoredKey,
    record::Record,
    store::{
        Page, StoreError,
        toolkit::{self as admin, Field},
    },
};

/// Items, and the key of the last item if more items follow.
type Items = (Vec<Item>, Option<Item>);

/// A stored key, with its record or the reason why the record can't be decoded.
type Scanned = (StoredKey, Result<Record, StoreError>);

impl DynamoDbStore {
    /// Returns one page of records, from the beginning or from the end of an earlier page. It's for an operator, not
    /// for a handler, because DynamoDB bills the size of every item that it reads. A page can be empty even if more
    /// pages follow. The records are in no particular order.
    ///
    /// The page omits chunks of responses. In a table with a sort key but no
    /// [`partition`](super::DynamoDbBuilder::partition), it also omits items that aren't the library's. In other
    /// tables, such items count as corrupt records. Each record is read consistently, but the scan isn't a snapshot.
    ///
    /// Needs `dynamodb:Scan`; with a [`partition`](super::DynamoDbBuilder::partition), `dynamodb:Query`. Before the
    /// first page, it compares the table's key with the configured one, if the caller may call
    /// `dynamodb:DescribeTable`: otherwise, a table with another key could look like one without records.
    ///
    /// # Errors
    ///
    /// If DynamoDB can't be reached or rejects the request, if the table has another key, or if `from` is another
    /// store's position.
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
    pub async fn scan(&self, from: Option<String>) -> Result<Page, StoreError> {
        let start = match from {
            Some(position) => Some(self.start_of(&position)?),
            None => {
                self.check_keys().await?;
                None
            }
        };
        let (items, next) = match (&self.inner.partition, &self.inner.sort_key) {
            (Some(partition), Some(_)) => self.query_partition(partition, start).await?,
            (_, sort_key) => self.scan_table(sort_key.as_deref(), start).await?,
        };
        let next = next.filter(|key| !key.is_empty()).map(|key| self.position_of(&key)).transpose()?;
        let records = items.into_iter().filter_map(|item| self.scanned(item).transpose());
        Ok(Page::new(records.collect::<Result<_, _>>()?, next))
    }

    async fn scan_table(&self, sort_key: Option<&str>, start: Option<Item>) -> Result<Items, StoreError> {
        let (filter, name, value) = match sort_key {
            Some(sort_key) => ("#key = :value", sort_key, RECORD_SORT_KEY),
            None => ("NOT contains(#key, :value)", self.inner.attributes.of(Field::Id), CHUNK),
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

    /// Returns the items of one partition, including chunks: DynamoDB can't filter a query by the sort key.
    async fn query_partition(&self, partition: &str, start: Option<Item>) -> Result<Items, StoreError> {
        let request = self
            .inner
            .client
            .query()
            .table_name(&self.inner.table)
            .consistent_read(true)
            .key_condition_expression("#key = :value")
            .expression_attribute_names("#key", self.inner.attributes.of(Field::Id))
            .expression_attribute_values(":value", codec::text(partition))
            .set_exclusive_start_key(start);
        match observed(request.customize().config_override(table::patient()).send()).await {
            (Ok(answer), _) => Ok((answer.items.unwrap_or_default(), answer.last_evaluated_key)),
            (Err(error), findings) => Err(self.error(&error, findings).await.maybe_applied(false)),
        }
    }

    fn position_of(&self, key: &Item) -> Result<String, StoreError> {
        let values = self.key_names().map(|name| match key.get(name) {
            Some(AttributeValue::S(value)) => Ok(value.clone()),
            _ => Err(self.other_key()),
        });
        Ok(admin::position(values.collect::<Result<Vec<_>, _>>()?))
    }

    fn start_of(&self, position: &str) -> Result<Item, StoreError> {
        let (names, values) = (self.key_names().collect::<Vec<_>>(), admin::parts(position)?);
        if names.len() != values.len() {
            return Err(admin::foreign());
        }
        Ok(names.into_iter().map(str::to_owned).zip(values.iter().map(codec::text)).collect())
    }

    /// Returns the record in `item`, or `None` if the item is a chunk.
    fn scanned(&self, item: Item) -> Result<Option<Scanned>, StoreError> {
        let Some(key) = self.stored_key_of(&item) else {
            return Err(self.other_key());
        };
        if key.as_str().contains(CHUNK) {
            return Ok(None);
        }
        let record = self.decode(&key, item);
        Ok(Some((key, record)))
    }
}
