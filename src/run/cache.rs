//! The local cache of settled records: copies in this process's memory, which answer duplicates without a
//! request to the store. This module contains no rules: the protocol decides what a copy answers, and when to ask the
//! store.

mod lru;

use std::{
    fmt,
    mem::size_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use crate::{
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    outcome::{Outcome, Place, StoredResponse},
    protocol::{Recalled, Refusal, Rules, recall},
    record::{Record, State},
    run::{
        refusal::{Refused, refusal_error},
        replay::{Replay, outcome_of},
    },
    settings::Settings,
    time::Timestamp,
};
use lru::Lru;

/// The largest copy may take the cache's size divided by this number, so that no copy evicts all others.
const LARGEST_SHARE: usize = 8;
/// The longest payload that a copy keeps, in bytes. Each copy that a longer one would evict costs a request, and hashing
/// the payload again costs only microseconds.
const LONGEST_TEXT: usize = 4 * 1024;
/// The size of a copy's bookkeeping, in bytes: its entries in the two maps, the maps' spare capacity, and the
/// allocator's overhead. It's rounded up: measured with 20,000 copies, it was 315 bytes.
const BOOKKEEPING: usize = 384;

/// The copies, and the limits for adding to them. All clones of an `Idempotency` share one cache.
#[derive(Debug)]
pub(crate) struct LocalCache {
    shelf: Mutex<Shelf>,
    largest: usize,
    /// Whether only operations inside an invocation add copies.
    only_in_invocations: bool,
}

#[derive(Debug)]
struct Shelf {
    copies: Lru<Arc<Copied>>,
    /// Counts how many times the cache forgot a key or all keys. A [`Ticket`] from an earlier epoch can't add a copy.
    epoch: u64,
}

/// An immutable copy of a settled record and its outcome.
#[derive(Clone)]
struct Copied {
    record: Record,
    replay: Replay,
    /// A JSON text that has the record's fingerprint.
    text: Option<Box<str>>,
}

/// Hides the text, which is the caller's payload.
impl fmt::Debug for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copied")
            .field("record", &self.record)
            .field("replay", &self.replay)
            .finish_non_exhaustive()
    }
}

/// The right to cache a copy of the store's next answer. It's drawn before the request.
///
/// If any key is forgotten after that, the ticket is void, since the store's answer may be outdated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

impl LocalCache {
    /// Creates the cache that the settings ask for. Returns `None` if its size is 0 bytes.
    ///
    /// A snapshotted process adds nothing before its first invocation. Many processes start from one snapshot's
    /// memory, so the snapshot's cache must be empty.
    pub(crate) fn new(settings: &Settings, is_snapshotted: bool) -> Option<Self> {
        let bytes = settings.local_cache;
        let copies = Lru::new(bytes, settings.local_cache_records.unwrap_or(usize::MAX));
        let shelf = Shelf { copies, epoch: 0 };
        (bytes > 0).then(|| Self {
            shelf: Mutex::new(shelf),
            largest: bytes / LARGEST_SHARE,
            only_in_invocations: is_snapshotted,
        })
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(|poisoned| {
            // The thread that panicked may have left the shelf half changed. Forgetting all copies only costs requests.
            self.shelf.clear_poison();
            let mut shelf = PoisonError::into_inner(poisoned);
            shelf.copies.clear();
            shelf.epoch += 1;
            shelf
        })
    }

    /// Returns the answer that the copy of `key` gives. `None` if there's no copy, or if only the store can answer.
    pub(super) fn recall(
        &self,
        rules: &Rules,
        key: &StoredKey,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> Option<Result<Replay, Refused>> {
        let copy = self.get(key)?;
        match recall(rules, fingerprint, &copy.record, now) {
            Recalled::Replay => {
                observe::recalled(key, &copy.record);
                observe::replayed(key, &copy.record);
                Some(Ok(copy.replay.clone()))
            }
            Recalled::Mismatch => {
                observe::recalled(key, &copy.record);
                Some(Err(refusal_error(key, Refusal::Mismatch, None, now).into()))
            }
            Recalled::Unknown => {
                self.remove(key, &copy);
                None
            }
        }
    }

    /// Returns a ticket for the next request to the store, if its answer may be cached.
    pub(super) fn ticket_in(&self, invocation: &Invocation) -> Option<Ticket> {
        (invocation.is_known() || !self.only_in_invocations).then(|| self.ticket())
    }

    /// Returns a ticket for a settlement. Whether its outcome may be cached was decided when the operation began.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(self.shelf().epoch)
    }

    /// Caches a copy of `record`, which the store holds, with its `response`.
    pub(super) fn keep_copy(
        &self,
        ticket: Option<Ticket>,
        key: &StoredKey,
        record: &Record,
        response: &Bytes,
    ) {
        if let Some(ticket) = ticket
            && response.len() <= self.largest
            && let Some(copy) = Copied::new(record, response)
        {
            self.put(ticket, key, copy);
        }
    }

    /// Returns the fingerprint of this JSON text, if the copy of `key` has the same text. A JSON text's fingerprint
    /// depends on nothing else.
    pub(crate) fn fingerprint_of(&self, key: &StoredKey, text: &str) -> Option<Fingerprint> {
        let copy = self.get(key)?;
        copy.text.as_deref().filter(|known| *known == text).map(|_| copy.record.fingerprint)
    }

    /// Adds the JSON text with this fingerprint to the copy of `key`, if the copy has the same fingerprint.
    pub(crate) fn remember(&self, key: &StoredKey, fingerprint: Fingerprint, text: String) {
        let mut shelf = self.shelf();
        let fits = |copy: &&Arc<Copied>| copy.record.fingerprint == fingerprint && copy.text.is_none();
        let Some(copy) = shelf.copies.get(key).filter(fits) else { return };
        let copy = Copied { text: Some(text.into()), ..(**copy).clone() };
        let bytes = copy.bytes(key);
        if copy.text.as_ref().is_some_and(|text| text.len() <= LONGEST_TEXT) && bytes <= self.largest {
            shelf.copies.put(key.clone(), Arc::new(copy), bytes);
        }
    }

    fn get(&self, key: &StoredKey) -> Option<Arc<Copied>> {
        self.shelf().copies.get(key).cloned()
    }

    /// Removes this copy, but not another that has replaced it.
    fn remove(&self, key: &StoredKey, copy: &Arc<Copied>) {
        let mut shelf = self.shelf();
        if shelf.copies.get(key).is_some_and(|there| Arc::ptr_eq(there, copy)) {
            shelf.copies.remove(key);
        }
    }

    /// Adds a copy. Does nothing if a key was forgotten since the ticket was drawn, or if there's a copy of a later
    /// generation. If the new copy is too large, only removes the old one.
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

    pub(crate) fn clear(&self) {
        let mut shelf = self.shelf();
        shelf.copies.clear();
        shelf.epoch += 1;
    }
}

impl Copied {
    /// Copies `record`, if it has an outcome with a response. The response gets its own allocation:
    /// `response` may be a small piece of a large buffer, which would stay in memory.
    fn new(record: &Record, response: &Bytes) -> Option<Self> {
        let (outcome, is_failure) = outcome_of(record)?;
        let Outcome::Retained(stored) = outcome else { return None };
        let response = Bytes::copy_from_slice(response);
        let stored = StoredResponse {
            deflated: false,
            length: stored.length,
            sha256: stored.sha256,
            labels: None,
            place: Place::Inline(response.clone()),
        };
        let state = match is_failure {
            true => State::Failed(Outcome::Retained(stored)),
            false => State::Completed(Outcome::Retained(stored)),
        };
        let replay = Replay::of(record, is_failure, response);
        // The request ID is only for searching the logs, so a copy doesn't need it.
        Some(Self { record: Record { request_id: None, state, ..record.clone() }, replay, text: None })
    }

    /// The copy's size in bytes: the key, the response, the text, this struct and the bookkeeping.
    fn bytes(&self, key: &StoredKey) -> usize {
        let text = self.text.as_ref().map_or(0, |text| text.len());
        key.as_str().len() + self.replay.response().len() + text + size_of::<Self>() + BOOKKEEPING
    }
}

/// A guard: when it's dropped, the cache forgets the copy of this key.
#[must_use]
pub(crate) struct Forget<'a> {
    cache: Option<&'a LocalCache>,
    key: &'a StoredKey,
}

impl<'a> Forget<'a> {
    pub(crate) fn new(cache: Option<&'a LocalCache>, key: &'a StoredKey) -> Self {
        Self { cache, key }
    }
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache {
            cache.forget(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Generation, Mark, Owner},
        settings::Execution,
    };

    const BYTES: usize = 64 * 1024;

    fn cache() -> LocalCache {
        let mut settings = Settings::default();
        settings.local_cache = BYTES;
        LocalCache::new(&settings, false).unwrap()
    }

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
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_secs(2000)),
            mark: Mark::None,
            request_id: Some("invocation".into()),
            trace: None,
            state: State::Failed(Outcome::Retained(stored)),
        };
        Copied::new(&record, &Bytes::from_static(response)).unwrap()
    }

    fn generation(cache: &LocalCache) -> Option<u64> {
        cache.get(&key()).map(|copy| copy.record.generation.get())
    }

    #[test]
    fn earlier_generation_never_replaces_a_later_one() {
        let cache = cache();
        for (put, then) in [(2, 2), (1, 2), (3, 3), (3, 3)] {
            cache.put(cache.ticket(), &key(), copied(put, b"response"));
            assert_eq!(generation(&cache), Some(then));
        }
        // A copy that's too large isn't kept, but removes the outdated copy.
        static LARGE: [u8; BYTES] = [0; BYTES];
        cache.put(cache.ticket(), &key(), copied(2, &LARGE));
        assert_eq!(generation(&cache), Some(3));
        cache.put(cache.ticket(), &key(), copied(4, &LARGE));
        assert_eq!(generation(&cache), None);
    }

    #[test]
    fn forgetting_any_key_invalidates_earlier_tickets() {
        type Forgets = fn(&LocalCache);
        let forgets: [Forgets; 2] =
            [LocalCache::clear, |cache| cache.forget(&StoredKey::from_stored("another"))];
        for forget in forgets {
            let cache = cache();
            let ticket = cache.ticket();
            cache.put(ticket, &key(), copied(1, b"response"));
            forget(&cache);
            cache.put(ticket, &key(), copied(2, b"response"));
            assert_ne!(generation(&cache), Some(2));
        }
    }

    #[test]
    fn removing_a_copy_spares_its_replacement() {
        let cache = cache();
        cache.put(cache.ticket(), &key(), copied(1, b"response"));
        let seen = cache.get(&key()).unwrap();
        cache.put(cache.ticket(), &key(), copied(2, b"response"));
        cache.remove(&key(), &seen);
        assert_eq!(generation(&cache), Some(2));
        cache.remove(&key(), &cache.get(&key()).unwrap());
        assert_eq!(generation(&cache), None);
    }

    #[test]
    fn cache_is_emptied_after_a_panic() {
        let cache = cache();
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
        assert_eq!(generation(&cache), None, "the ticket is from before the panic");
        cache.put(cache.ticket(), &key(), copied(2, b"response"));
        assert_eq!(generation(&cache), Some(2));
    }

    #[test]
    fn other_texts_are_hashed_again() {
        let cache = cache();
        let fingerprint = Fingerprint::of_bytes(b"request");
        let known = |text: &str| cache.fingerprint_of(&key(), text);
        cache.remember(&key(), fingerprint, "{}".to_owned());
        assert_eq!(known("{}"), None, "there's no copy yet");
        cache.put(cache.ticket(), &key(), copied(1, b"response"));
        for (fingerprint, text) in [
            (Fingerprint::of_bytes(b"another"), "{}".to_owned()),
            (fingerprint, "x".repeat(LONGEST_TEXT + 1)),
        ] {
            cache.remember(&key(), fingerprint, text.clone());
            assert_eq!(known(&text), None);
        }
        let before = cache.shelf().copies.bytes();
        cache.remember(&key(), fingerprint, "{}".to_owned());
        assert_eq!((known("{}"), cache.shelf().copies.bytes()), (Some(fingerprint), before + 2));
        assert_eq!((known("{ }"), known("{"), known("")), (None, None, None));
        assert_eq!(cache.fingerprint_of(&StoredKey::from_stored("f/run#2"), "{}"), None);
        assert!(!format!("{:?}", cache.get(&key())).contains("{}"));
        // A later record may have been made for another payload.
        cache.put(cache.ticket(), &key(), copied(2, b"response"));
        assert_eq!(known("{}"), None);
    }

    #[test]
    fn copy_drops_the_request_id() {
        let copy = copied(1, b"response");
        assert_eq!((copy.record.request_id.as_deref(), copy.replay.is_failure()), (None, true));
        let Some((Outcome::Retained(stored), true)) = outcome_of(&copy.record) else {
            panic!("the copy isn't a retained failure")
        };
        let Place::Inline(kept) = &stored.place else { panic!("the copy's response is in chunks") };
        assert_eq!(stored.decode(kept).unwrap(), *copy.replay.response());
        assert_eq!(
            copy.bytes(&key()),
            "f/run#1".len() + "response".len() + size_of::<Copied>() + BOOKKEEPING
        );
        assert!(!format!("{copy:?}").contains("response\""), "{copy:?}");
    }
}
