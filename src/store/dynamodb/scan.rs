//! Iterates over all records of the table, for operators.

use aws_sdk_dynamodb::types::AttributeValue;

use super::{
    DynamoDbStore, RECORD_SORT_KEY, attempts::observed, attributes::Attribute, codec, codec::Item, table,
};
use crate::{
    key::StoredKey,
    record::Record,
    store::{Page, Position, StoreError, StoreErrorKind},
};

impl DynamoDbStore {
    /// Returns one page of records, from the beginning or from the end of an earlier page. It's for an
    /// operator, not for a handler, since DynamoDB bills every item that it reads by its size. A page can be
    /// empty even if more follow. The records are in no particular order.
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
    pub async fn scan(&self, from: Option<Position>) -> Result<Page, StoreError> {
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
            .set_exclusive_start_key(from.map(|position| self.start_of(&position)).transpose()?);
        let answer = match observed(request.customize().config_override(table::patient()).send()).await {
            (Ok(answer), _) => answer,
            (Err(error), findings) => return Err(self.error(&error, findings).await.maybe_applied(false)),
        };
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        let next = next.map(|key| self.position_of(&key)).transpose()?;
        let records = answer.items.unwrap_or_default().into_iter().map(|item| self.scanned(item));
        Ok(Page { records: records.collect::<Result<_, _>>()?, next })
    }

    /// The names of the table's key attributes.
    fn key_names(&self) -> impl Iterator<Item = &str> {
        [self.inner.attributes.of(Attribute::Id)].into_iter().chain(self.inner.sort_key.as_deref())
    }

    fn position_of(&self, key: &Item) -> Result<Position, StoreError> {
        let values = self.key_names().map(|name| match key.get(name) {
            Some(AttributeValue::S(value)) => Ok(value.clone()),
            _ => Err(self.other_key()),
        });
        Ok(Position::new(values.collect::<Result<Vec<_>, _>>()?))
    }

    fn start_of(&self, position: &Position) -> Result<Item, StoreError> {
        let (names, values) = (self.key_names().collect::<Vec<_>>(), position.parts());
        if names.len() != values.len() {
            return Err(Position::foreign());
        }
        Ok(names.into_iter().map(str::to_owned).zip(values.into_iter().map(codec::text)).collect())
    }

    fn scanned(&self, item: Item) -> Result<(StoredKey, Result<Record, StoreError>), StoreError> {
        let Some(AttributeValue::S(id)) = item.get(self.inner.attributes.of(Attribute::Id)) else {
            return Err(self.other_key());
        };
        let key = StoredKey::from_stored(id);
        let record = self.decode(&key, item);
        Ok((key, record))
    }

    fn other_key(&self) -> StoreError {
        let table = &self.inner.table;
        StoreError::new(
            StoreErrorKind::Rejected,
            format!(
                "table `{table}` has a key that differs from the configuration; run `idempotency table check`"
            ),
        )
    }
}
