//! The handler's own writes to the memory store's items.

use std::{
    any::Any,
    collections::{BTreeMap, HashSet},
    ops::AddAssign,
};

use super::MemoryStore;
use crate::{
    future::BoxFuture,
    key::StoredKey,
    store::{CommitOutcome, OwnWrites, Put, PutOutcome, StoreError, StoreErrorKind, Transactions},
};

/// Values by table and id.
type Items = BTreeMap<(String, String), String>;

/// The items that handlers' transactions wrote.
#[derive(Debug, Default)]
pub(super) struct Own {
    items: Items,
    /// The tokens of the transactions that were applied.
    tokens: HashSet<String>,
}

/// Collects a handler's own writes to the memory store's items, to commit them with the handler's outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "it has no effect until it is staged or passed to the claim"]
pub struct Transaction {
    writes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Put(String, String, String),
    Delete(String, String),
    /// A condition: the item has this value, or with `None`, is absent.
    Is(String, String, Option<String>),
}

/// Lists the items of a [`Transaction`] whose conditions failed, by table and id. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined {
    items: Vec<(String, String)>,
}

impl Declined {
    /// Returns the table and the id of each item whose condition failed, at least one.
    pub fn items(&self) -> &[(String, String)] {
        &self.items
    }
}

impl Transaction {
    /// Creates a transaction without writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put of an item.
    pub fn put(self, table: &str, id: &str, value: impl Into<String>) -> Self {
        self.with(Change::Put(table.to_owned(), id.to_owned(), value.into()))
    }

    /// Adds a deletion of an item.
    pub fn delete(self, table: &str, id: &str) -> Self {
        self.with(Change::Delete(table.to_owned(), id.to_owned()))
    }

    /// Adds a condition: before the transaction, the item has this value.
    pub fn is(self, table: &str, id: &str, value: impl Into<String>) -> Self {
        self.with(Change::Is(table.to_owned(), id.to_owned(), Some(value.into())))
    }

    /// Adds a condition: before the transaction, there's no such item.
    pub fn absent(self, table: &str, id: &str) -> Self {
        self.with(Change::Is(table.to_owned(), id.to_owned(), None))
    }

    fn with(mut self, change: Change) -> Self {
        self.writes.push(change);
        self
    }

    /// Returns the items whose conditions fail.
    fn failed_conditions(&self, items: &Items) -> Vec<(String, String)> {
        let fails = |change: &Change| match change {
            Change::Is(table, id, value) => {
                let item = (table.clone(), id.clone());
                (items.get(&item) != value.as_ref()).then_some(item)
            }
            Change::Put(..) | Change::Delete(..) => None,
        };
        self.writes.iter().filter_map(fails).collect()
    }

    fn apply_to(&self, items: &mut Items) {
        for change in &self.writes {
            match change {
                Change::Put(table, id, value) => {
                    items.insert((table.clone(), id.clone()), value.clone());
                }
                Change::Delete(table, id) => {
                    items.remove(&(table.clone(), id.clone()));
                }
                Change::Is(..) => {}
            }
        }
    }

    /// Describes each put and each deletion: its kind and table, its item, and its details.
    pub(crate) fn described(&self) -> Vec<(String, String, String)> {
        let described = |change: &Change| match change {
            Change::Put(table, id, value) => {
                Some((format!("put {table}"), id.clone(), format!("{id}: {value}")))
            }
            Change::Delete(table, id) => Some((format!("delete {table}"), id.clone(), id.clone())),
            Change::Is(..) => None,
        };
        self.writes.iter().filter_map(described).collect()
    }
}

impl AddAssign for Transaction {
    /// Appends the writes in `more`.
    fn add_assign(&mut self, more: Self) {
        self.writes.extend(more.writes);
    }
}

impl MemoryStore {
    /// Returns the value of an item that a handler's [`Transaction`] put.
    pub fn item(&self, table: &str, id: &str) -> Option<String> {
        self.inner().own.items.get(&(table.to_owned(), id.to_owned())).cloned()
    }

    /// Applies the handler's writes in `own`, and the write to the record if `record` is given: all of them or none. If
    /// a transaction with this `token` was applied before, nothing changes.
    pub(crate) fn commit_now(
        &self,
        record: Option<(&StoredKey, &Put)>,
        own: &Transaction,
        token: &str,
    ) -> CommitOutcome {
        let mut inner = self.inner();
        if inner.own.tokens.contains(token) {
            return CommitOutcome::Answered(PutOutcome::Applied);
        }
        if let Some((key, put)) = record {
            let current = inner.records.get(key);
            if put.apply_to(current).is_none() {
                return CommitOutcome::Answered(PutOutcome::Refused(current.cloned()));
            }
        }
        let items = own.failed_conditions(&inner.own.items);
        if !items.is_empty() {
            return CommitOutcome::Declined(Box::new(Declined { items }));
        }
        own.apply_to(&mut inner.own.items);
        inner.own.tokens.insert(token.to_owned());
        CommitOutcome::Answered(record.map_or(PutOutcome::Applied, |(key, put)| inner.put(key, put)))
    }

    /// Returns all items that handlers' transactions put: table, id and value.
    pub(crate) fn items(&self) -> BTreeMap<(String, String), String> {
        self.inner().own.items.clone()
    }

    /// Whether the transaction with this token was applied.
    pub(crate) fn has_committed(&self, token: &str) -> bool {
        self.inner().own.tokens.contains(token)
    }
}

impl Transactions for MemoryStore {
    fn check(&self, _: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        own(writes).map(drop)
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move { Ok(self.commit_now(Some((key, put)), own(writes)?, token)) })
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move { Ok(self.commit_now(None, own(writes)?, token)) })
    }
}

fn own(writes: &OwnWrites) -> Result<&Transaction, StoreError> {
    let writes: &dyn Any = writes;
    writes.downcast_ref().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Rejected,
            "the staged writes have another store's type; stage a `lambda_idempotency_testing::Transaction`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_condition_names_its_item() {
        let mut items = Items::new();
        Transaction::new().put("stock", "bowl", "1").apply_to(&mut items);
        let wrong =
            Transaction::new().is("stock", "bowl", "2").absent("stock", "cup").delete("stock", "bowl");
        assert_eq!(wrong.failed_conditions(&items), [("stock".to_owned(), "bowl".to_owned())]);
        Transaction::new().delete("stock", "bowl").apply_to(&mut items);
        assert!(items.is_empty());
    }

    #[test]
    fn added_transactions_apply_together() {
        let mut items = Items::new();
        let mut both = Transaction::new().put("stock", "bowl", "1");
        both += Transaction::new().put("stock", "cup", "2");
        both.apply_to(&mut items);
        assert_eq!(items.len(), 2);
    }

    #[test]
    fn writes_for_another_store_are_refused() {
        let (store, key) = (MemoryStore::new(), StoredKey::from_stored("f/o#1"));
        assert!(store.check(&key, &Transaction::new()).is_ok());
        let foreign = String::from("INSERT");
        assert_eq!(store.check(&key, &foreign).unwrap_err().kind(), StoreErrorKind::Rejected);
    }
}
