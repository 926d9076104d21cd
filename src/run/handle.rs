//! [`ClaimHandle`]: the handler's view of its claim.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    internal::StoredKeyExt as _,
    key::StoredKey,
    protocol::Held,
    record::{Generation, Lock},
    time::Timestamp,
};

/// A handler's view of the claim that it runs under; see [`current`](crate::current).
#[derive(Clone, Debug)]
pub struct ClaimHandle {
    claim: Arc<Claimed>,
}

#[derive(Debug)]
struct Claimed {
    key: StoredKey,
    /// The claim as it was acquired.
    held: Held,
    /// When the lease ends, in milliseconds. An extension moves it.
    lease_until: AtomicU64,
}

impl ClaimHandle {
    pub(super) fn new(key: StoredKey, held: Held) -> Self {
        let lease_until = AtomicU64::new(held.lock.lease_until.as_millis());
        Self { claim: Arc::new(Claimed { key, held, lease_until }) }
    }

    /// The scoped key as stored: safe to show and to log.
    pub fn key(&self) -> &StoredKey {
        &self.claim.key
    }

    /// How many claims this operation has had, this one included: 1 on a first run.
    pub fn attempt(&self) -> u32 {
        self.claim.held.lock.attempt
    }

    /// Whether an earlier attempt ended without an answer, so that it may have had effects: its process was
    /// killed or frozen, or its handler panicked, was dropped or was cut off. Later attempts don't reset this,
    /// even if one of them released the key.
    pub fn is_takeover(&self) -> bool {
        self.claim.held.lock.mark.is_interrupted()
    }

    /// The fencing token: it grows with every claim of the key. A system that the handler writes to can
    /// remember the highest generation it has seen, and refuse lower ones.
    pub fn generation(&self) -> Generation {
        self.claim.held.lock.generation
    }

    /// When the lease ends. An extension moves it.
    pub fn lease_until(&self) -> Timestamp {
        Timestamp::from_millis(self.claim.lease_until.load(Ordering::Relaxed))
    }

    /// Returns a key for one step of this operation, to pass on to an API that takes idempotency keys.
    ///
    /// The derived key depends only on the scoped key and the step, so every attempt sends the same one. It has the
    /// form of a UUID (version 8, RFC 9562).
    pub fn derive_key(&self, step: &str) -> String {
        self.claim.key.derive(step)
    }

    /// The claim with its current lease.
    pub(super) fn held(&self) -> Held {
        let Held { lock, is_recovered } = self.claim.held.clone();
        Held { lock: Lock { lease_until: self.lease_until(), ..lock }, is_recovered }
    }

    pub(super) fn move_lease(&self, until: Timestamp) {
        self.claim.lease_until.store(until.as_millis(), Ordering::Relaxed);
    }
}
