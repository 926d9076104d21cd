//! Keeps `fail_open` from turning load into a stampede: a process never runs a handler unprotected if it knows of another
//! delivery of the key, or if the store still answers.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher as _,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::key::StoredKey;

/// How many keys a process remembers. A key takes about 50 bytes.
const MOST_KEYS: usize = 16 * 1024;

/// What a process knows about the keys that it works on. Used only with `fail_open`.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    keys: Mutex<Keys>,
    /// How often the store has answered any operation of this process.
    answers: AtomicU64,
    hasher: RandomState,
}

/// Keys by their hashes. Two keys with one hash only make the brake stricter.
#[derive(Debug, Default)]
struct Keys {
    /// The keys that deliveries wait for or run, and the number of these deliveries.
    in_flight: HashMap<u64, usize>,
    /// The keys that ran here, or that the store had a record of.
    known: HashSet<u64>,
    /// The known keys, oldest first.
    by_age: VecDeque<u64>,
}

/// One delivery in this process, from before its claim until its end.
#[derive(Debug)]
pub(super) struct Passage<'b> {
    brake: &'b Brake,
    key: u64,
    /// `Brake::answers` when the delivery began.
    answers: u64,
}

impl Brake {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the store has answered.
    pub(super) fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a delivery of `key`.
    pub(super) fn enter(&self, key: &StoredKey) -> Passage<'_> {
        let key = self.hasher.hash_one(key);
        *self.keys().in_flight.entry(key).or_default() += 1;
        Passage { brake: self, key, answers: self.answers.load(Ordering::Relaxed) }
    }
}

impl Passage<'_> {
    /// Notes that the handler runs, or that the key has a record.
    pub(super) fn knows_the_key(&self) {
        self.brake.keys().learn(self.key);
    }

    /// Whether the handler may run unprotected. If so, the key is known from now on.
    pub(super) fn may_run_unprotected(&self) -> bool {
        let mut keys = self.brake.keys();
        let is_alone = keys.in_flight.get(&self.key).is_none_or(|deliveries| *deliveries == 1);
        let is_silent = self.brake.answers.load(Ordering::Relaxed) == self.answers;
        let may_run = is_alone && is_silent && !keys.known.contains(&self.key);
        if may_run {
            keys.learn(self.key);
        }
        may_run
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let mut keys = self.brake.keys();
        if let Some(deliveries) = keys.in_flight.get_mut(&self.key) {
            *deliveries -= 1;
            if *deliveries == 0 {
                keys.in_flight.remove(&self.key);
            }
        }
    }
}

impl Keys {
    /// Adds a known key, and forgets the oldest one if there are too many.
    fn learn(&mut self, key: u64) {
        if !self.known.insert(key) {
            return;
        }
        self.by_age.push_back(key);
        if self.by_age.len() > MOST_KEYS
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, Scope};

    fn key(n: usize) -> StoredKey {
        StoredKey::new(&Scope::new("f", "run:step").unwrap(), &Key::new(format!("k{n}")).unwrap())
    }

    #[test]
    fn one_silent_delivery_may_run() {
        let brake = Brake::default();
        let first = brake.enter(&key(1));
        let second = brake.enter(&key(1));
        assert!(!first.may_run_unprotected(), "another delivery waits for the key");
        drop(first);
        assert!(brake.enter(&key(2)).may_run_unprotected(), "another key");
        assert!(second.may_run_unprotected());
        drop(second);
        assert!(!brake.enter(&key(1)).may_run_unprotected(), "it ran");
        let third = brake.enter(&key(3));
        brake.answered();
        assert!(!third.may_run_unprotected(), "the store answers");
        drop(third);
        let third = brake.enter(&key(3));
        assert!(third.may_run_unprotected(), "the store answered an earlier delivery");
    }

    #[test]
    fn memory_is_bounded() {
        let brake = Brake::default();
        for n in 0..MOST_KEYS + 10 {
            brake.enter(&key(n)).knows_the_key();
        }
        let keys = brake.keys();
        assert_eq!((keys.known.len(), keys.by_age.len(), keys.in_flight.len()), (MOST_KEYS, MOST_KEYS, 0));
    }
}
