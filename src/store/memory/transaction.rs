//! The handler's own writes to the memory store's items.

use std::collections::BTreeMap;

use crate::store::Writes;

type Items = BTreeMap<(String, String), String>;

/// Collects a handler's own writes to the memory store's items, to commit them with its outcome.
///
/// ```
/// use lambda_idempotency::{Idempotency, Key, staging, store::memory::{MemoryStore, Transaction}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let idempotency = Idempotency::builder(store.clone()).function("orders").build()?;
/// let pay = async || {
///     let staging = staging().ok_or("not protected")?;
///     staging.add(Transaction::new().put("payments", "order-17", "12.50 EUR").absent("payments", "order-17"))?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("paid".to_owned())
/// };
/// let answer: String = idempotency.operation("pay")?.run(Key::new("order-17")?, &12, pay).await.map_err(|_| "failed")?;
/// assert_eq!(store.item("payments", "order-17").as_deref(), Some("12.50 EUR"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "it has no effect until it is staged or passed to the claim"]
pub struct Transaction {
    writes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Put(String, String, String),
    Delete(String, String),
    /// A condition: the item has this value, or is absent.
    Is(String, String, Option<String>),
}

/// Lists the conditions of a [`Transaction`] that failed, as the table and the id of each item. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declined {
    items: Vec<(String, String)>,
}

impl Declined {
    pub(super) fn new(items: Vec<(String, String)>) -> Self {
        Self { items }
    }

    /// The table and the id of each item whose condition failed. There's at least one.
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

    /// The items whose conditions fail.
    pub(super) fn failed_conditions(&self, items: &Items) -> Vec<(String, String)> {
        let fails = |change: &Change| match change {
            Change::Is(table, id, value) => {
                let item = (table.clone(), id.clone());
                (items.get(&item) != value.as_ref()).then_some(item)
            }
            Change::Put(..) | Change::Delete(..) => None,
        };
        self.writes.iter().filter_map(fails).collect()
    }

    pub(super) fn apply_to(&self, items: &mut Items) {
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

    /// Each write's kind and table, and its details.
    #[cfg(feature = "testing")]
    pub(crate) fn described(&self) -> Vec<(String, String)> {
        let described = |change: &Change| match change {
            Change::Put(table, id, value) => Some((format!("put {table}"), format!("{id}: {value}"))),
            Change::Delete(table, id) => Some((format!("delete {table}"), id.clone())),
            Change::Is(..) => None,
        };
        self.writes.iter().filter_map(described).collect()
    }
}

impl Writes for Transaction {
    fn append(&mut self, more: Self) {
        self.writes.extend(more.writes);
    }
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
}
