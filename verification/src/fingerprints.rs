//! Fast, fixed hashing: a visited state is kept as 128 bits, and the hash is the same in every run.

use std::hash::{BuildHasherDefault, Hasher};

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

/// MurmurHash3 (x64, 128 bits) over whole words. It mixes well, is in the public domain and has no keys: the
/// same states have the same fingerprints in every run.
pub fn fingerprint(words: &[u64]) -> u128 {
    let (mut h1, mut h2) = (0x9e37_79b9_7f4a_7c15_u64, 0xc2b2_ae3d_27d4_eb4f_u64);
    for pair in words.chunks(2) {
        let (k1, k2) = (pair[0], pair.get(1).copied().unwrap_or(0));
        h1 ^= k1.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= k2.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let length = words.len() as u64;
    h1 ^= length;
    h2 ^= length;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1);
    h2 = finish(h2);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (u128::from(h1) << 64) | u128::from(h2)
}

fn finish(mut k: u64) -> u64 {
    k ^= k >> 33;
    k = k.wrapping_mul(0xff51_afd7_ed55_8ccd);
    k ^= k >> 33;
    k = k.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    k ^ (k >> 33)
}

/// A hasher for the memo tables, whose keys are a few small numbers. The standard hasher defends against an
/// adversary and would take most of the exploration's time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quick(u64);

/// Builds [`Quick`] hashers.
pub type BuildQuick = BuildHasherDefault<Quick>;

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        finish(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(C1) ^ (self.0 >> 29);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// A set of fingerprints: 16 bytes per entry, in one table with open addressing.
#[derive(Debug)]
pub struct Visited {
    table: Vec<u128>,
    entries: usize,
}

impl Visited {
    /// An empty set.
    pub fn new() -> Self {
        Self { table: vec![0; 1 << 16], entries: 0 }
    }

    /// Adds `fingerprint`, and returns whether it's new. Zero marks an empty entry. A state's fingerprint is
    /// zero with a probability of 2^-128.
    pub fn insert(&mut self, fingerprint: u128) -> bool {
        // The table stays at most seven eighths full. In a fuller table, the runs of occupied entries become
        // long.
        if self.entries * 8 >= self.table.len() * 7 {
            self.grow();
        }
        let is_new = place(&mut self.table, fingerprint);
        self.entries += usize::from(is_new);
        is_new
    }

    /// The size of the table in bytes. While the table grows, the old table is in memory too.
    pub fn memory(&self) -> usize {
        self.table.len() * size_of::<u128>()
    }

    fn grow(&mut self) {
        let mut larger = vec![0; self.table.len() * 2];
        for &taken in self.table.iter().filter(|&&taken| taken != 0) {
            place(&mut larger, taken);
        }
        self.table = larger;
    }
}

impl Default for Visited {
    fn default() -> Self {
        Self::new()
    }
}

fn place(table: &mut [u128], fingerprint: u128) -> bool {
    let mask = table.len() - 1;
    // The fingerprint's low bits are as well mixed as its other bits.
    let mut at = fingerprint as usize & mask;
    loop {
        match table[at] {
            0 => {
                table[at] = fingerprint;
                return true;
            }
            taken if taken == fingerprint => return false,
            _ => at = (at + 1) & mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_depends_on_every_word() {
        let base = [1, 2, 3, 4, 5];
        for at in 0..base.len() {
            let mut other = base;
            other[at] ^= 1 << 40;
            let (a, b) = (fingerprint(&base), fingerprint(&other));
            assert!((a ^ b).count_ones() > 30, "word {at}");
        }
        assert_ne!(fingerprint(&[1]), fingerprint(&[1, 0]));
    }

    #[test]
    fn set_contains_inserted_fingerprints() {
        let mut visited = Visited::new();
        for n in 0..300_000u64 {
            assert!(visited.insert(fingerprint(&[n])));
        }
        for n in 0..300_000u64 {
            assert!(!visited.insert(fingerprint(&[n])));
        }
    }
}
