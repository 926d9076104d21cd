//! A map of bounded size, in bytes and in values, which evicts the least recently used value.

use std::collections::{BTreeMap, HashMap};

use crate::key::StoredKey;

/// A map of at most `values` values, of at most `most` bytes in total.
///
/// Each use gets the next number. The value whose last use has the lowest number is evicted first, which needs
/// no clock and no pointers.
#[derive(Debug)]
pub(super) struct Lru<V> {
    most: usize,
    values: usize,
    bytes: usize,
    entries: HashMap<StoredKey, Entry<V>>,
    /// The keys by the number of their last use.
    order: BTreeMap<u64, StoredKey>,
    uses: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<V> Lru<V> {
    /// Creates an empty map for at most `values` values, of at most `most` bytes in total.
    pub(super) fn new(most: usize, values: usize) -> Self {
        Self { most, values, bytes: 0, entries: HashMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// Returns the value of `key`, and counts that as a use.
    pub(super) fn get(&mut self, key: &StoredKey) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        if let Some(key) = self.order.remove(&entry.used) {
            self.order.insert(self.uses, key);
        }
        entry.used = self.uses;
        Some(&entry.value)
    }

    /// Puts `value`, which counts as `bytes` bytes, in place of the key's old value, and evicts the least recently
    /// used values until there's room. If `value` is larger than the map's limit, only removes the old value.
    pub(super) fn put(&mut self, key: StoredKey, value: V, bytes: usize) {
        self.remove(&key);
        if bytes > self.most {
            return;
        }
        while self.bytes > self.most - bytes || self.entries.len() >= self.values {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        self.order.insert(self.uses, key.clone());
        self.entries.insert(key, Entry { value, bytes, used: self.uses });
    }

    /// Removes the value of `key`.
    pub(super) fn remove(&mut self, key: &StoredKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    /// Removes everything, and frees the memory.
    pub(super) fn clear(&mut self) {
        self.entries = HashMap::new();
        self.order = BTreeMap::new();
        self.bytes = 0;
    }

    /// The total size of the values, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::random_bits;

    const MOST: usize = 100;
    /// Small enough that the test's steps reach this limit, and large enough that they also reach the limit in bytes.
    const VALUES: usize = 5;

    /// The same map in its simplest form: a list of entries, the least recently used one first.
    #[derive(Default)]
    struct Naive(Vec<(StoredKey, u64, usize)>);

    impl Naive {
        fn get(&mut self, key: &StoredKey) -> Option<u64> {
            let at = self.0.iter().position(|(one, ..)| one == key)?;
            let entry = self.0.remove(at);
            self.0.push(entry);
            self.0.last().map(|(_, value, _)| *value)
        }

        fn put(&mut self, key: StoredKey, value: u64, bytes: usize) {
            self.remove(&key);
            if bytes <= MOST {
                self.0.push((key, value, bytes));
                while self.bytes() > MOST || self.0.len() > VALUES {
                    self.0.remove(0);
                }
            }
        }

        fn remove(&mut self, key: &StoredKey) {
            self.0.retain(|(one, ..)| one != key);
        }

        fn bytes(&self) -> usize {
            self.0.iter().map(|(.., bytes)| bytes).sum()
        }
    }

    /// The random number generator SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % end
        }
    }

    #[test]
    fn random_operations_match_the_naive_model() {
        let [a, b, c, d, e, f, g, h, ..] = random_bits("a test").unwrap();
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        eprintln!("seed {seed}");
        let mut random = Random(seed);
        let (mut lru, mut naive) = (Lru::new(MOST, VALUES), Naive::default());
        for nth in 0..20_000 {
            let key = StoredKey::from_stored(format!("k{}", random.below(12)));
            match random.below(100) {
                0..45 => {
                    let bytes = random.below(40) as usize + if random.below(20) == 0 { 70 } else { 0 };
                    lru.put(key.clone(), nth, bytes);
                    naive.put(key, nth, bytes);
                }
                45..85 => assert_eq!(lru.get(&key).copied(), naive.get(&key), "seed {seed}, step {nth}"),
                85..99 => {
                    lru.remove(&key);
                    naive.remove(&key);
                }
                _ => {
                    lru.clear();
                    naive.0.clear();
                }
            }
            let keys: Vec<_> = naive.0.iter().map(|(key, ..)| key).collect();
            assert_eq!(lru.order.values().collect::<Vec<_>>(), keys, "seed {seed}, step {nth}");
            assert_eq!(lru.entries.len(), keys.len(), "seed {seed}, step {nth}");
            assert_eq!(lru.bytes(), naive.bytes(), "seed {seed}, step {nth}");
            assert!(lru.bytes() <= MOST && keys.len() <= VALUES, "seed {seed}, step {nth}");
        }
    }
}
