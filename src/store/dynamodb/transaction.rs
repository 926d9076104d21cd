//! Commits a handler's own writes in one `TransactWriteItems` with the write to the record.

mod answer;
mod limits;

pub use limits::DescribedWrite;
pub(super) use limits::item_bytes;

use std::{any::Any, collections::HashMap, fmt, ops::AddAssign};

use aws_sdk_dynamodb::{
    error::BuildError,
    types::{
        self, AttributeValue, ConditionCheck, Delete, ReturnValuesOnConditionCheckFailure::AllOld,
        TransactWriteItem, Update,
    },
};

use super::{DynamoDbStore, attempts::observed, codec::Item, expressions::Expressions};
use crate::{
    future::BoxFuture,
    key::StoredKey,
    outcome::{Outcome, Place, StoredResponse},
    record::State,
    store::{CommitOutcome, OwnWrites, Put, PutOutcome, StoreError, StoreErrorKind, Transactions},
};

/// Collects a handler's own writes, to commit them with the handler's outcome. It can hold at most 99 writes, on tables
/// of one account and Region ("Amazon DynamoDB Transactions: How it works", DynamoDB developer guide). Each write costs
/// twice as many write units as it would outside a transaction.
///
/// Each write may have a condition. With `return_values_on_condition_check_failure`, it requests the item that
/// made the condition fail. See [`staging`](crate::staging()) for how to add the writes to the transaction.
///
/// ```
/// use aws_sdk_dynamodb::types::{AttributeValue, Put};
/// use lambda_idempotency::store::dynamodb::Transaction;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let order = Put::builder()
///     .table_name("orders")
///     .item("id", AttributeValue::S("order-17".to_owned()))
///     .condition_expression("attribute_not_exists(id)")
///     .build()?;
/// let transaction = Transaction::new().put(order);
/// assert_eq!(transaction.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "it has no effect until it is staged or passed to the claim"]
pub struct Transaction {
    items: Vec<TransactWriteItem>,
}

impl Transaction {
    /// Creates a transaction without writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put of an item.
    pub fn put(self, put: types::Put) -> Self {
        self.with(TransactWriteItem::builder().put(put).build())
    }

    /// Adds an update of an item.
    pub fn update(self, update: Update) -> Self {
        self.with(TransactWriteItem::builder().update(update).build())
    }

    /// Adds a deletion of an item.
    pub fn delete(self, delete: Delete) -> Self {
        self.with(TransactWriteItem::builder().delete(delete).build())
    }

    /// Adds a condition on an item that the transaction doesn't change.
    pub fn check(self, check: ConditionCheck) -> Self {
        self.with(TransactWriteItem::builder().condition_check(check).build())
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn with(mut self, item: TransactWriteItem) -> Self {
        self.items.push(item);
        self
    }
}

/// Describes each write for tests.
pub fn described(transaction: &Transaction) -> Vec<DescribedWrite> {
    transaction.items.iter().map(limits::described_whole).collect()
}

impl AddAssign for Transaction {
    /// Appends the writes in `more`.
    fn add_assign(&mut self, more: Self) {
        self.items.extend(more.items);
    }
}

impl fmt::Debug for Transaction {
    /// Shows each write's kind and table, never an item.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.items.iter().map(limits::described)).finish()
    }
}

/// Lists the handler's conditions that failed. Nothing was written.
pub struct Declined {
    conditions: Vec<(usize, Option<Item>)>,
}

impl Declined {
    /// Returns the failed conditions in the order of the writes, at least one. Each has the index of its write in the
    /// [`Transaction`], from 0. It also has the item that made the condition fail, if that item existed and the write
    /// requested it (`return_values_on_condition_check_failure`).
    pub fn conditions(
        &self,
    ) -> impl ExactSizeIterator<Item = (usize, Option<&HashMap<String, AttributeValue>>)> {
        self.conditions.iter().map(|(place, item)| (*place, item.as_ref()))
    }
}

impl fmt::Debug for Declined {
    /// Shows the indexes, never an item.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self.conditions.iter().map(|(place, _)| place).collect();
        f.debug_tuple("Declined").field(&places).finish()
    }
}

impl DynamoDbStore {
    /// Returns the put of the record as an item of a transaction.
    fn record_item_of(&self, key: &StoredKey, put: &Put) -> Result<TransactWriteItem, BuildError> {
        let expressions = Expressions::of(put, &self.inner.attributes);
        let values = (!expressions.values.is_empty()).then_some(expressions.values);
        let item = TransactWriteItem::builder();
        Ok(match expressions.update {
            None => item.put(
                types::Put::builder()
                    .table_name(&self.inner.table)
                    .set_item(Some(self.record_item(key, put.record())))
                    .condition_expression(expressions.condition)
                    .set_expression_attribute_names(Some(expressions.names))
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(AllOld)
                    .build()?,
            ),
            Some(update) => item.update(
                Update::builder()
                    .table_name(&self.inner.table)
                    .set_key(Some(self.record_key(key)))
                    .update_expression(update)
                    .condition_expression(expressions.condition)
                    .set_expression_attribute_names(Some(expressions.names))
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(AllOld)
                    .build()?,
            ),
        }
        .build())
    }

    async fn commit_now(
        &self,
        key: &StoredKey,
        put: &Put,
        writes: &OwnWrites,
        token: &str,
    ) -> Result<CommitOutcome, StoreError> {
        let own = self.checked(key, Some(put), writes)?;
        self.check_sort_key(key).await?;
        let first = self.record_item_of(key, put).map_err(|error| {
            StoreError::new(StoreErrorKind::Rejected, format!("the record `{key}` can't be sent"))
                .with_source(error)
        })?;
        let mut items = Vec::with_capacity(own.len() + 1);
        items.push(first);
        items.extend(own.items.iter().cloned());
        let request = self
            .inner
            .client
            .transact_write_items()
            .set_transact_items(Some(items))
            .client_request_token(token);
        let (answer, findings) = observed(request.send()).await;
        match answer {
            Ok(_) => Ok(CommitOutcome::Answered(PutOutcome::Applied)),
            Err(error) => {
                // If the record's condition failed, DynamoDB may not return the record. Then `shown` reads it.
                match self.cancelled(Some(key), own, error, findings).await? {
                    CommitOutcome::Answered(written) => {
                        self.shown(key, written).await.map(CommitOutcome::Answered)
                    }
                    declined @ CommitOutcome::Declined(_) => Ok(declined),
                }
            }
        }
    }

    /// Checks that the handler's writes have this store's type and are within DynamoDB's limits. `put` is the
    /// put of the record. Without it, the size of the response isn't known yet, and counts as 0.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unstorable`] if the handler's writes exceed the limits and a `put` is given. Any other error
    /// is [`StoreErrorKind::Rejected`].
    fn checked<'a>(
        &self,
        key: &StoredKey,
        put: Option<&Put>,
        writes: &'a OwnWrites,
    ) -> Result<&'a Transaction, StoreError> {
        let transaction = transaction_of(writes)?;
        let own_key = self.record_key(key);
        let bytes = limits::item_bytes(&own_key) + put.map_or(0, response_bytes);
        let own = limits::Own { table: &self.inner.table, key: &own_key, bytes };
        // In a commit, `Rejected` would make the library retry, and each retry would fail in the same way.
        let kind = if put.is_some() { StoreErrorKind::Unstorable } else { StoreErrorKind::Rejected };
        limits::check(transaction, &own).map_err(|why| StoreError::new(kind, why))?;
        Ok(transaction)
    }
}

/// Returns the handler's writes in this store's type.
///
/// # Errors
///
/// [`StoreErrorKind::Rejected`] if the writes have another store's type.
fn transaction_of(writes: &OwnWrites) -> Result<&Transaction, StoreError> {
    let writes: &dyn Any = writes;
    writes.downcast_ref().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Rejected,
            "the DynamoDB store accepts a handler's writes only as a `store::dynamodb::Transaction`",
        )
    })
}

/// The number of response bytes that `put` stores in the record.
fn response_bytes(put: &Put) -> usize {
    match &put.record().state {
        State::Completed(Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. }))
        | State::Failed(Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. })) => kept.len(),
        _ => 0,
    }
}

impl Transactions for DynamoDbStore {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        self.checked(key, None, writes).map(drop)
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(self.commit_now(key, put, writes, token))
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let own = transaction_of(writes)?;
            // DynamoDB rejects a transaction without items. `commit` accepts an empty list of the handler's writes,
            // because its transaction has the record's item. So accept an empty list here too.
            if own.is_empty() {
                return Ok(CommitOutcome::Answered(PutOutcome::Applied));
            }
            let request = self.inner.client.transact_write_items();
            let request = request.set_transact_items(Some(own.items.clone())).client_request_token(token);
            let (answer, findings) = observed(request.send()).await;
            match answer {
                Ok(_) => Ok(CommitOutcome::Answered(PutOutcome::Applied)),
                Err(error) => self.cancelled(None, own, error, findings).await,
            }
        })
    }
}
