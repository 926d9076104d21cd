//! The local cache of settled records: copies in this process's memory, which answer a duplicate without a
//! request. It holds no rule: the protocol says what a copy answers, and when the store has to be asked.

mod lru;

use std::{
    mem::size_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use crate::{
    claim::{Replay, outcome_of},
    engine::{
        Begun, Engine, Idempotency,
        drive::{Refused, refusal_error},
    },
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    outcome::{Encoding, Outcome, Place, StoredResponse},
    protocol::{Recalled, Refusal, recall},
    record::{Record, State},
    time::Timestamp,
};
use lru::Lru;

/// One copy takes at most this part of the cache: a large response must not push out everything else.
const LARGEST_SHARE: usize = 8;
/// What a copy takes beside its key, its response and itself: its places in the two maps, with the room that
/// a map leaves free as it grows, and the allocator's own words. Rather too much than too little: measured with
/// 20,000 copies, it was 315.
const BOOKKEEPING: usize = 384;

/// The copies, and who may add to them. One for all clones of an engine.
#[derive(Debug)]
pub(crate) struct LocalCache {
    shelf: Mutex<Shelf>,
    largest: usize,
    /// Whether what runs outside of an invocation adds nothing.
    only_in_invocations: bool,
}

#[derive(Debug)]
struct Shelf {
    copies: Lru<Arc<Copied>>,
    /// How often something was forgotten that must not come back.
    epoch: u64,
}

/// A settled record and its outcome, which nobody can change.
#[derive(Debug)]
struct Copied {
    record: Record,
    replay: Replay,
}

/// The right to add a copy of what the store says from now on. It ends when anything is forgotten: what was read
/// before that may be older than what was forgotten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

impl LocalCache {
    /// A cache of so many bytes, if there are any. From a snapshot many processes start, with what memory held
    /// then: what is to be restored begins empty, since nothing is added before the first invocation.
    pub(super) fn new(bytes: usize, is_snapshotted: bool) -> Option<Self> {
        let shelf = Shelf { copies: Lru::new(bytes), epoch: 0 };
        (bytes > 0).then(|| Self {
            shelf: Mutex::new(shelf),
            largest: bytes / LARGEST_SHARE,
            only_in_invocations: is_snapshotted,
        })
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(|poisoned| {
            // Who panicked may have left it half changed; what is forgotten is asked for again.
            self.shelf.clear_poison();
            let mut shelf = PoisonError::into_inner(poisoned);
            shelf.copies.clear();
            shelf.epoch += 1;
            shelf
        })
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.shelf().epoch)
    }

    fn get(&self, key: &StoredKey) -> Option<Arc<Copied>> {
        self.shelf().copies.get(key).cloned()
    }

    /// Forgets this copy, and no other that may have taken its place.
    fn remove(&self, key: &StoredKey, copy: &Arc<Copied>) {
        let mut shelf = self.shelf();
        if shelf.copies.get(key).is_some_and(|there| Arc::ptr_eq(there, copy)) {
            shelf.copies.remove(key);
        }
    }

    /// Adds a copy, unless something was forgotten since the ticket was drawn, or a later one is there.
    fn put(&self, ticket: Ticket, key: &StoredKey, copy: Copied) {
        let bytes = copy.bytes(key);
        let mut shelf = self.shelf();
        let is_later = |there: &Arc<Copied>| there.record.generation > copy.record.generation;
        if shelf.epoch != ticket.0 || shelf.copies.get(key).is_some_and(is_later) {
            return;
        }
        if bytes > self.largest {
            shelf.copies.remove(key);
        } else {
            shelf.copies.put(key.clone(), Arc::new(copy), bytes);
        }
    }

    fn forget(&self, key: &StoredKey) {
        let mut shelf = self.shelf();
        shelf.copies.remove(key);
        shelf.epoch += 1;
    }

    fn clear(&self) {
        let mut shelf = self.shelf();
        shelf.copies.clear();
        shelf.epoch += 1;
    }
}

impl Copied {
    /// A copy of `record`, if it has an outcome whose response is kept. The response is one allocation of its
    /// own: the given one may be a small piece of a large buffer, which would stay as long.
    fn new(record: &Record, response: &Bytes) -> Option<Self> {
        let (outcome, is_failure) = outcome_of(record)?;
        let Outcome::Retained(stored) = outcome else { return None };
        let response = Bytes::copy_from_slice(response);
        let stored = StoredResponse {
            encoding: Encoding::Identity,
            length: stored.length,
            sha256: stored.sha256,
            place: Place::Inline(response.clone()),
        };
        let state = match is_failure {
            true => State::Failed(Outcome::Retained(stored)),
            false => State::Completed(Outcome::Retained(stored)),
        };
        let replay = Replay { is_failure, response, generation: record.generation };
        // Nobody searches the logs by a copy.
        Some(Self { record: Record { request_id: None, state, ..record.clone() }, replay })
    }

    /// What it counts as: key, fingerprint, response, and what it takes to find it again.
    fn bytes(&self, key: &StoredKey) -> usize {
        key.as_str().len() + self.replay.response.len() + size_of::<Self>() + BOOKKEEPING
    }
}

/// Forgets a key's copy when it is dropped, however that comes about.
#[must_use]
pub(super) struct Forget<'a> {
    engine: &'a Engine,
    key: &'a StoredKey,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(cache) = &self.engine.local_cache {
            cache.forget(self.key);
        }
    }
}

impl Engine {
    /// What the local cache answers; nothing, if the store has to be asked.
    pub(super) fn recall(
        &self,
        key: &StoredKey,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Option<Result<Begun, Refused>> {
        let cache = self.local_cache.as_ref()?;
        let copy = cache.get(key)?;
        match recall(&self.rules(), fingerprint, &copy.record, now) {
            Recalled::Replay => {
                observe::recalled(key, &copy.record);
                observe::replayed(key, &copy.record);
                Some(Ok(Begun::Replay(copy.replay.clone())))
            }
            Recalled::Mismatch => {
                observe::recalled(key, &copy.record);
                Some(Err(refusal_error(key, Refusal::Mismatch, None, now).into()))
            }
            Recalled::Unknown => {
                cache.remove(key, &copy);
                None
            }
        }
    }

    /// A ticket for what the store is asked next, if its answer may be kept.
    pub(super) fn ticket(&self, invocation: &Invocation) -> Option<Ticket> {
        let cache = self.local_cache.as_ref()?;
        (invocation.is_known() || !cache.only_in_invocations).then(|| cache.ticket())
    }

    /// A ticket for a claim's settlement: whether one may be had was decided when it was claimed.
    pub(super) fn settlement_ticket(&self) -> Option<Ticket> {
        self.local_cache.as_ref().map(LocalCache::ticket)
    }

    /// Keeps a copy of `record`, which the store has said that it holds, and whose response this is.
    pub(super) fn keep_copy(
        &self,
        ticket: Option<Ticket>,
        key: &StoredKey,
        record: &Record,
        response: &Bytes,
    ) {
        if let (Some(cache), Some(ticket)) = (&self.local_cache, ticket)
            && response.len() <= cache.largest
            && let Some(copy) = Copied::new(record, response)
        {
            cache.put(ticket, key, copy);
        }
    }

    /// Forgets the copy of `key` when what is returned is dropped: its record is about to be written by hand.
    pub(super) fn forget<'a>(&'a self, key: &'a StoredKey) -> Forget<'a> {
        Forget { engine: self, key }
    }
}

impl Idempotency {
    /// Empties the [local cache](crate::Builder::local_cache) of this engine and all its clones: the next delivery of
    /// each key asks the store. Harmless where there is no cache.
    ///
    /// Call it when the process was restored from a snapshot of its memory, if yours has a hook for that; and when
    /// you know that a record was changed by hand elsewhere. What an operation in flight has been told by the store
    /// before is not kept either.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, store::memory::MemoryStore};
    /// let idempotency =
    ///     Idempotency::builder(MemoryStore::new()).function("orders").local_cache(4 * 1024 * 1024).build()?;
    /// idempotency.clear_local_cache();
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn clear_local_cache(&self) {
        if let Some(cache) = &self.engine().local_cache {
            cache.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Generation, Owner};

    const BYTES: usize = 64 * 1024;

    fn key() -> StoredKey {
        StoredKey::from_stored("f/run#1")
    }

    fn copied(generation: u64, response: &'static [u8]) -> Copied {
        let stored = StoredResponse::new(Bytes::from_static(response));
        let record = Record {
            owner: Owner::from_bytes([7; 16]),
            generation: Generation::new(generation),
            attempt: 1,
            fingerprint: Fingerprint::of_bytes(b"request"),
            lock_acquired_at: Timestamp::from_secs(1000),
            expires_at: Some(Timestamp::from_secs(2000)),
            interrupted: false,
            request_id: Some("invocation".into()),
            state: State::Failed(Outcome::Retained(stored)),
        };
        Copied::new(&record, &Bytes::from_static(response)).unwrap()
    }

    fn generation(cache: &LocalCache) -> Option<u64> {
        cache.get(&key()).map(|copy| copy.record.generation.get())
    }

    #[test]
    fn a_later_generation_is_not_replaced_by_an_earlier_one() {
        let cache = LocalCache::new(BYTES, false).unwrap();
        for (put, then) in [(2, 2), (1, 2), (3, 3), (3, 3)] {
            cache.put(cache.ticket(), &key(), copied(put, b"response"));
            assert_eq!(generation(&cache), Some(then));
        }
        // One that is too large takes what is outdated with it.
        static LARGE: [u8; BYTES] = [0; BYTES];
        cache.put(cache.ticket(), &key(), copied(2, &LARGE));
        assert_eq!(generation(&cache), Some(3));
        cache.put(cache.ticket(), &key(), copied(4, &LARGE));
        assert_eq!(generation(&cache), None);
    }

    #[test]
    fn a_ticket_ends_when_anything_is_forgotten() {
        type Forgets = fn(&LocalCache);
        let forgets: [Forgets; 2] =
            [LocalCache::clear, |cache| cache.forget(&StoredKey::from_stored("another"))];
        for forget in forgets {
            let cache = LocalCache::new(BYTES, false).unwrap();
            let ticket = cache.ticket();
            cache.put(ticket, &key(), copied(1, b"response"));
            forget(&cache);
            cache.put(ticket, &key(), copied(2, b"response"));
            assert_ne!(generation(&cache), Some(2));
        }
    }

    #[test]
    fn only_the_copy_that_was_seen_is_removed() {
        let cache = LocalCache::new(BYTES, false).unwrap();
        cache.put(cache.ticket(), &key(), copied(1, b"response"));
        let seen = cache.get(&key()).unwrap();
        cache.put(cache.ticket(), &key(), copied(2, b"response"));
        cache.remove(&key(), &seen);
        assert_eq!(generation(&cache), Some(2));
        cache.remove(&key(), &cache.get(&key()).unwrap());
        assert_eq!(generation(&cache), None);
    }

    #[test]
    fn after_a_panic_under_the_lock_it_is_empty_and_goes_on() {
        let cache = LocalCache::new(BYTES, false).unwrap();
        let ticket = cache.ticket();
        cache.put(ticket, &key(), copied(1, b"response"));
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _shelf = cache.shelf.lock();
                panic!("under the lock");
            });
            assert!(panics.join().is_err());
        });
        assert_eq!(generation(&cache), None);
        cache.put(ticket, &key(), copied(2, b"response"));
        assert_eq!(generation(&cache), None, "the ticket is of before");
        cache.put(cache.ticket(), &key(), copied(2, b"response"));
        assert_eq!(generation(&cache), Some(2));
    }

    #[test]
    fn a_copy_is_the_record_without_what_nobody_asks_it_for() {
        let copy = copied(1, b"response");
        assert_eq!((copy.record.request_id.as_deref(), copy.replay.is_failure), (None, true));
        let Some((Outcome::Retained(stored), true)) = outcome_of(&copy.record) else { panic!("no failure") };
        let Place::Inline(kept) = &stored.place else { panic!("in parts") };
        assert_eq!(stored.decode(kept).unwrap(), copy.replay.response);
        assert_eq!(
            copy.bytes(&key()),
            "f/run#1".len() + "response".len() + size_of::<Copied>() + BOOKKEEPING
        );
        assert!(!format!("{copy:?}").contains("response\""), "{copy:?}");
    }
}
