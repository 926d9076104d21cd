//! Stores that keep the contract only while one handle is used. Two handles stand for two processes.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, Store, StoreError, memory::MemoryStore},
};

/// A store that reads and then writes under a lock. Each handle has its own lock.
#[derive(Debug)]
pub struct LockedPerHandle {
    shared: MemoryStore,
    lock: tokio::sync::Mutex<()>,
}

impl LockedPerHandle {
    /// Another handle of the records in `shared`.
    pub fn new(shared: &MemoryStore) -> Self {
        Self { shared: shared.clone(), lock: tokio::sync::Mutex::default() }
    }
}

impl Store for LockedPerHandle {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            let _lock = self.lock.lock().await;
            let current = self.shared.get(key);
            // The request takes time, so another handle can write now.
            tokio::task::yield_now().await;
            Ok(match put.apply_to(current.as_ref()) {
                Some(record) => {
                    self.shared.set(key, Some(record));
                    PutOutcome::Applied
                }
                None => PutOutcome::Refused(current),
            })
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.shared.read(key)
    }
}

/// A store whose writes are atomic. Each handle caches the records that it reads, until it writes them itself.
#[derive(Debug)]
pub struct CachedPerHandle {
    shared: MemoryStore,
    cache: Mutex<HashMap<StoredKey, Option<Record>>>,
}

impl CachedPerHandle {
    /// Another handle of the records in `shared`.
    pub fn new(shared: &MemoryStore) -> Self {
        Self { shared: shared.clone(), cache: Mutex::default() }
    }

    fn cache(&self) -> MutexGuard<'_, HashMap<StoredKey, Option<Record>>> {
        self.cache.lock().expect("no test panics while it holds the lock")
    }
}

impl Store for CachedPerHandle {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            // Removes the cached record before the write and again after it, because a read during the write may cache
            // the old record.
            self.cache().remove(key);
            let outcome = self.shared.put(key, put).await;
            self.cache().remove(key);
            outcome
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let mut cache = self.cache();
            Ok(cache.entry(key.clone()).or_insert_with(|| self.shared.get(key)).clone())
        })
    }
}
