//! The stored data of a schedule, and the requests that change it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lambda_idempotency::{
    Key, Scope, StoredKey,
    store::{Put, Record},
};

/// The stored data, shared by all executors' stores.
#[derive(Debug, Default)]
pub struct Table {
    inner: Mutex<Stored>,
}

#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) records: BTreeMap<StoredKey, Record>,
    pub(super) parts: BTreeMap<(StoredKey, [u8; 16]), Vec<u8>>,
    /// Writes whose senders gave up on them, each with the time when it arrives.
    pub(super) late: Vec<(u64, StoredKey, Request)>,
    /// The applied transactions by token, each with the time when it was applied.
    pub(super) tokens: BTreeMap<String, (u64, StoredKey, Request)>,
}

/// A request to the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A put of the protocol.
    Put(Put),
    /// A put of the protocol in a transaction with the handler's own writes.
    Commit { put: Put, effects: Effects, token: String },
}

/// The effects that a handler adds to a transaction, instead of real writes. Each effect is the number of its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects(pub Vec<usize>);

impl std::ops::AddAssign for Effects {
    fn add_assign(&mut self, more: Self) {
        self.0.extend(more.0);
    }
}

impl Table {
    pub(super) fn stored(&self) -> MutexGuard<'_, Stored> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record under this key.
    pub fn record(&self, key: &StoredKey) -> Option<Record> {
        self.stored().records.get(key).cloned()
    }

    /// The current claim of the operation with this key: its owner, and the end of its lease.
    pub fn claim_of(&self, key: &str) -> Option<([u8; 16], u64)> {
        let key = Key::new(key).ok()?;
        let scope = Scope::new("simulated", "run:step").ok()?;
        // `record` takes the table's lock, which the audit doesn't hold when it calls this function.
        let record = self.record(&StoredKey::new(&scope, &key))?;
        Some((*record.owner.as_bytes(), record.lease_until()?.as_millis()))
    }
}
