use std::collections::BTreeMap;

pub use crate::store::memory::transaction::{Declined, Transaction};
use crate::{
    key::StoredKey,
    store::{CommitOutcome, Put, PutOutcome, memory::MemoryStore},
};

/// Methods of [`Transaction`].
pub trait TransactionExt: Sized {
    fn described(&self) -> Vec<(String, String, String)>;
}

impl TransactionExt for Transaction {
    fn described(&self) -> Vec<(String, String, String)> {
        Self::described(self)
    }
}

/// Methods of [`MemoryStore`].
pub trait MemoryStoreExt: Sized {
    fn put_now(&self, key: &StoredKey, put: &Put) -> PutOutcome;
    fn commit_now(&self, record: Option<(&StoredKey, &Put)>, own: &Transaction, token: &str)
    -> CommitOutcome;
    fn items(&self) -> BTreeMap<(String, String), String>;
    fn has_committed(&self, token: &str) -> bool;
}

impl MemoryStoreExt for MemoryStore {
    fn put_now(&self, key: &StoredKey, put: &Put) -> PutOutcome {
        Self::put_now(self, key, put)
    }

    fn commit_now(
        &self,
        record: Option<(&StoredKey, &Put)>,
        own: &Transaction,
        token: &str,
    ) -> CommitOutcome {
        Self::commit_now(self, record, own, token)
    }

    fn items(&self) -> BTreeMap<(String, String), String> {
        Self::items(self)
    }

    fn has_committed(&self, token: &str) -> bool {
        Self::has_committed(self, token)
    }
}
