//! Runs the conformance suite on the store that the guide shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

#[allow(unreachable_pub, reason = "the store is written as in a library")]
mod store;

use std::{path::PathBuf, sync::Arc};

use lambda_idempotency::{
    Fingerprint, StoredKey, conformance,
    store::{Owner, Store as _, StoreErrorKind},
};
use testkit::random::fresh_seed;

use store::FileStore;

fn fresh_folder() -> PathBuf {
    std::env::temp_dir().join(format!("file-store-{}", Owner::random().unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn file_store_passes_the_conformance_suite() {
    let folder = fresh_folder();
    let store = Arc::new(FileStore::new(&folder).unwrap());
    conformance::check(&*store).await;
    conformance::differential(&*store, fresh_seed(), 300).await;
    // The lock must also keep out another process. Here, a second handle stands for that process.
    let other = Arc::new(FileStore::new(&folder).unwrap());
    conformance::check_contention(&[store, other], 32, 5).await;
    std::fs::remove_dir_all(folder).unwrap();
}

/// A truncated record is corrupt, not absent.
#[tokio::test]
async fn truncated_record_is_corrupt() {
    let folder = fresh_folder();
    let (store, key) = (FileStore::new(&folder).unwrap(), StoredKey::from_stored("orders/run#1"));
    assert_eq!(store.read(&key).await.unwrap(), None);
    let path = folder.join(Fingerprint::of_bytes(b"orders/run#1").to_string());
    std::fs::write(path, b"{\"status\":\"COMPLETED\"").unwrap();
    assert_eq!(store.read(&key).await.unwrap_err().kind(), StoreErrorKind::Corrupt);
    std::fs::remove_dir_all(folder).unwrap();
}
