//! A store with a limit for concurrent calls. The library claims all records of a batch at the same time, and a batch
//! may have 10,000 records.

use std::sync::Arc;

use lambda_idempotency::{
    StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, ResponseChunks, Store, StoreError, Transactions},
};
use tokio::sync::Semaphore;

/// The limit for concurrent calls. Each call may take its own connection, and Lambda limits the function and the
/// layer together to 1,024 open files ("Lambda quotas", AWS Lambda developer guide).
const MOST_CALLS: usize = 64;

/// A store that makes a limited number of calls at the same time. Other calls wait.
#[derive(Debug)]
pub(crate) struct Limited {
    store: Arc<dyn Store>,
    calls: Semaphore,
}

impl Limited {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, calls: Semaphore::new(MOST_CALLS) }
    }

    async fn within<T>(&self, call: BoxFuture<'_, T>) -> T {
        // `acquire` fails only if the semaphore is closed, and nothing closes it. If it did fail, the call would run
        // without a permit, which only exceeds the limit.
        let _permit = self.calls.acquire().await;
        call.await
    }
}

impl Store for Limited {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.within(self.store.put(key, put)))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.within(self.store.read(key)))
    }

    // The capabilities aren't limited: the outcomes of a batch's records are too small for chunks, and the layer commits
    // no transactions.
    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.store.chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        self.store.transactions()
    }

    fn compress_from(&self, key: &StoredKey) -> usize {
        self.store.compress_from(key)
    }

    fn close_connections(&self) {
        self.store.close_connections();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lambda_idempotency::store::memory::MemoryStore;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn calls_over_the_limit_wait() {
        let limited = Arc::new(Limited::new(Arc::new(MemoryStore::new())));
        let [now, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let mut calls = JoinSet::new();
        for _ in 0..500 {
            let (limited, now, most) = (Arc::clone(&limited), Arc::clone(&now), Arc::clone(&most));
            let call = async move {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::Relaxed);
            };
            calls.spawn(async move { limited.within(Box::pin(call)).await });
        }
        calls.join_all().await;
        assert_eq!(most.load(Ordering::Relaxed), MOST_CALLS);
    }
}
