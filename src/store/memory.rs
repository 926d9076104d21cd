//! An in-memory store for tests, and the shortest implementation of the contract.

mod transaction;

pub use transaction::{Declined, Transaction};

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{CommitOutcome, OwnWrites, Store, StoreError, StoreErrorKind, Transactions, Write, WriteOutcome},
};

/// Stores records in this process's memory. They disappear with the process, and no other process sees them.
/// Use it in tests, not in a deployed function.
///
/// A handler may [stage](crate::staging()) a [`Transaction`] of writes to the store's own items.
///
/// Clones share their records and items.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<StoredKey, Record>,
    /// The values of the handlers' items, by table and id.
    items: BTreeMap<(String, String), String>,
    /// The tokens of the transactions that were applied.
    tokens: HashSet<String>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores `record` under `key` unconditionally, or removes the record there: for tests that need a record
    /// in a certain state.
    pub fn set(&self, key: &StoredKey, record: Option<Record>) {
        let records = &mut self.inner().records;
        match record {
            Some(record) => records.insert(key.clone(), record),
            None => records.remove(key),
        };
    }

    /// The record under `key`.
    pub fn get(&self, key: &StoredKey) -> Option<Record> {
        self.inner().records.get(key).cloned()
    }

    /// Every record, in no particular order.
    pub fn all(&self) -> Vec<(StoredKey, Record)> {
        self.inner().records.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    /// The value of an item that a handler's [`Transaction`] has put.
    pub fn item(&self, table: &str, id: &str) -> Option<String> {
        self.inner().items.get(&(table.to_owned(), id.to_owned())).cloned()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Code that holds the lock never panics, so the data in a poisoned one is intact.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn apply_now(&self, key: &StoredKey, write: &Write) -> WriteOutcome {
        self.inner().apply(key, write)
    }

    /// Applies `write` and `own` under this token: both or neither, and once.
    pub(crate) fn commit_now(
        &self,
        key: &StoredKey,
        write: &Write,
        own: &Transaction,
        token: &str,
    ) -> CommitOutcome {
        let mut inner = self.inner();
        if inner.tokens.contains(token) {
            return CommitOutcome::Answered(WriteOutcome::Applied);
        }
        let current = inner.records.get(key);
        if write.apply_to(current).is_none() {
            return CommitOutcome::Answered(WriteOutcome::Refused(current.cloned()));
        }
        match inner.put(own, token) {
            Some(declined) => CommitOutcome::Declined(Box::new(declined)),
            None => CommitOutcome::Answered(inner.apply(key, write)),
        }
    }

    /// Applies `own` without a record, once under this token.
    pub(crate) fn commit_alone_now(&self, own: &Transaction, token: &str) -> CommitOutcome {
        let mut inner = self.inner();
        if inner.tokens.contains(token) {
            return CommitOutcome::Answered(WriteOutcome::Applied);
        }
        match inner.put(own, token) {
            Some(declined) => CommitOutcome::Declined(Box::new(declined)),
            None => CommitOutcome::Answered(WriteOutcome::Applied),
        }
    }

    /// Whether the transaction with this token was applied.
    #[cfg(feature = "testing")]
    pub(crate) fn has_committed(&self, token: &str) -> bool {
        self.inner().tokens.contains(token)
    }
}

impl Inner {
    /// Applies `own` if its conditions hold.
    fn put(&mut self, own: &Transaction, token: &str) -> Option<Declined> {
        let failed = own.failed_conditions(&self.items);
        if !failed.is_empty() {
            return Some(Declined::new(failed));
        }
        own.apply_to(&mut self.items);
        self.tokens.insert(token.to_owned());
        None
    }

    fn apply(&mut self, key: &StoredKey, write: &Write) -> WriteOutcome {
        let current = self.records.get(key);
        match write.apply_to(current) {
            Some(record) => {
                self.records.insert(key.clone(), record);
                WriteOutcome::Applied
            }
            None => WriteOutcome::Refused(current.cloned()),
        }
    }
}

impl Store for MemoryStore {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        Box::pin(async move { Ok(self.apply_now(key, write)) })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { Ok(self.get(key)) })
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }
}

impl Transactions for MemoryStore {
    fn check(&self, _: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        own(writes).map(drop)
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move { Ok(self.commit_now(key, write, own(writes)?, token)) })
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move { Ok(self.commit_alone_now(own(writes)?, token)) })
    }
}

fn own(writes: &OwnWrites) -> Result<&Transaction, StoreError> {
    let writes: &dyn Any = writes;
    writes.downcast_ref().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Rejected,
            "the staged writes aren't this store's: stage a `store::memory::Transaction`",
        )
    })
}
