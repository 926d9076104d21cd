use std::collections::BTreeMap;

pub use crate::store::memory::transaction::{Declined, Transaction};
use crate::{
    key::StoredKey,
    store::{CommitOutcome, Put, PutOutcome, memory::MemoryStore},
};

methods! {
    /// Methods of [`Transaction`].
    TransactionExt of Transaction {
        fn described(&self) -> Vec<(String, String, String)>;
    }
}

methods! {
    /// Methods of [`MemoryStore`].
    MemoryStoreExt of MemoryStore {
        fn put_now(&self, key: &StoredKey, put: &Put) -> PutOutcome;
        fn commit_now(&self, record: Option<(&StoredKey, &Put)>, own: &Transaction, token: &str)
        -> CommitOutcome;
        fn items(&self) -> BTreeMap<(String, String), String>;
        fn has_committed(&self, token: &str) -> bool;
    }
}
