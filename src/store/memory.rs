//! An in-memory store for tests, and the shortest implementation of the contract.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{Store, StoreError, Write, WriteOutcome},
};

/// Stores records in this process's memory. They disappear with the process, and no other process sees them.
/// Use it in tests, not in a deployed function.
///
/// Clones share their records.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    records: Arc<Mutex<HashMap<StoredKey, Record>>>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores `record` under `key` unconditionally, or removes the record there: for tests that need a record
    /// in a certain state.
    pub fn set(&self, key: &StoredKey, record: Option<Record>) {
        let mut records = self.records();
        match record {
            Some(record) => records.insert(key.clone(), record),
            None => records.remove(key),
        };
    }

    /// The record under `key`.
    pub fn get(&self, key: &StoredKey) -> Option<Record> {
        self.records().get(key).cloned()
    }

    /// Every record, in no particular order.
    pub fn all(&self) -> Vec<(StoredKey, Record)> {
        self.records().iter().map(|(key, record)| (key.clone(), record.clone())).collect()
    }

    fn records(&self) -> MutexGuard<'_, HashMap<StoredKey, Record>> {
        // Code that holds the lock never panics, so the data in a poisoned one is intact.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply_now(&self, key: &StoredKey, write: &Write) -> WriteOutcome {
        let mut records = self.records();
        let current = records.get(key);
        match write.apply_to(current) {
            Some(record) => {
                records.insert(key.clone(), record);
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
}
