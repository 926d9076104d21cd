//! The store for the wrappers' tests: memory, or the DynamoDB that the environment names.

use std::sync::Arc;

use lambda_idempotency::store::{Store, memory::MemoryStore};

/// Starts the test's recording, and returns an empty store.
#[cfg(not(feature = "dynamodb"))]
pub(crate) fn empty_store() -> Arc<dyn Store> {
    crate::recording::begin();
    Arc::new(MemoryStore::new())
}

/// Starts the test's recording, and returns an empty store.
#[cfg(feature = "dynamodb")]
pub(crate) fn empty_store() -> Arc<dyn Store> {
    use lambda_idempotency::store::dynamodb::DynamoDbStore;

    use crate::emulator::{ENDPOINT, client, fresh_table};

    crate::recording::begin();
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return Arc::new(MemoryStore::new()) };
    let table = fresh_table();
    let store = || DynamoDbStore::new(client(&endpoint), &table).unwrap();
    // Tests call this where they can't await, so another thread creates the table, with its own runtime.
    std::thread::scope(|scope| {
        let create = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(store().create_table()).unwrap()
        };
        scope.spawn(create).join().unwrap()
    });
    Arc::new(store())
}
