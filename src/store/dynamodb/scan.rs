//! Going through all records of the table, for an operator.

use aws_sdk_dynamodb::types::AttributeValue;

use super::{
    DynamoDbStore, RECORD_SORT_KEY, attempts::observed, attributes::Attribute, codec, codec::Item, table,
};
use crate::{
    key::StoredKey,
    record::Record,
    store::{StoreError, StoreErrorKind},
};

/// Some of the table's records; see [`DynamoDbStore::scan`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ScanPage {
    /// The records by their keys, in no order; one that cannot be read is an error.
    pub records: Vec<(StoredKey, Result<Record, StoreError>)>,
    /// Where to go on, if there is more.
    pub next: Option<ScanPosition>,
}

/// Where a scan goes on.
#[derive(Clone, Debug)]
pub struct ScanPosition(Item);

impl DynamoDbStore {
    /// Some of the table's records, from the beginning or from where an earlier page ended: for an operator, and
    /// not for a handler, since every item that it passes is paid for by its size. A page can be empty though more follow.
    ///
    /// Siblings of responses are left out. So is, where there is a sort key, everything that is no record. Each record
    /// is read consistently; the whole is no snapshot.
    ///
    /// Needs `dynamodb:Scan`.
    ///
    /// # Errors
    ///
    /// If DynamoDB could not be asked, or refuses to answer.
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
        // No name in a stored key's scope can have a `#`, so only a sibling's key has this in it.
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
                    "table `{table}` has another key than the configuration says; run `idempotency table check`"
                ),
            ));
        };
        let key = StoredKey::from_stored(id);
        let record = self.decode(&key, item);
        Ok((key, record))
    }
}
