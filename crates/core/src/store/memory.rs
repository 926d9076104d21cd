//! An in-memory store for tests, and the shortest implementation of the contract.

#[cfg(feature = "testing")]
pub(crate) mod transaction;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{Put, PutOutcome, Store, StoreError},
};

/// Stores records in this process's memory. They disappear with the process, and no other process sees them.
/// Use it in tests, not in a deployed function.
///
/// With the feature `testing`, a handler may [stage](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/fn.staging.html) a `Transaction` of
/// [`lambda-idempotency-testing`](https://docs.rs/lambda-idempotency-testing): writes to items that the store keeps beside its records.
///
/// Clones share their records and items.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<StoredKey, Record>,
    /// Items that handlers' transactions wrote.
    #[cfg(feature = "testing")]
    own: transaction::Own,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores `record` under `key` without a condition; `None` removes the record. It's for tests that need a record
    /// in a certain state.
    pub fn set(&self, key: &StoredKey, record: Option<Record>) {
        let records = &mut self.inner().records;
        match record {
            Some(record) => records.insert(key.clone(), record),
            None => records.remove(key),
        };
    }

    /// Returns the record under `key`.
    pub fn get(&self, key: &StoredKey) -> Option<Record> {
        self.inner().records.get(key).cloned()
    }

    /// Returns every record, in no particular order.
    pub fn all(&self) -> Vec<(StoredKey, Record)> {
        self.inner().records.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it changes the data, so the data is intact even if the lock is poisoned.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put_now(&self, key: &StoredKey, put: &Put) -> PutOutcome {
        self.inner().put(key, put)
    }
}

impl Inner {
    fn put(&mut self, key: &StoredKey, put: &Put) -> PutOutcome {
        let current = self.records.get(key);
        match put.apply_to(current) {
            Some(record) => {
                self.records.insert(key.clone(), record);
                PutOutcome::Applied
            }
            None => PutOutcome::Refused(current.cloned()),
        }
    }
}

impl Store for MemoryStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move { Ok(self.put_now(key, put)) })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { Ok(self.get(key)) })
    }

    #[cfg(feature = "testing")]
    fn transactions(&self) -> Option<&dyn crate::store::Transactions> {
        Some(self)
    }
}
