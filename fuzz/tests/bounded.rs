//! The bounded form: the corpus, and random changes of it. The long form is `scripts/fuzz`.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::{fs, panic::catch_unwind, path::Path};

use lambda_idempotency::Owner;
use lambda_idempotency_fuzz::{event, key, record};

/// Random numbers from a seed: SplitMix64.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("FUZZ_SEED").ok().map(|seed| seed.parse().unwrap());
        let fresh = || u64::from_be_bytes(Owner::random().unwrap().as_bytes()[..8].try_into().unwrap());
        Self(seed.unwrap_or_else(fresh))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// One to four bytes or stretches replaced, removed, put in or repeated.
fn changed(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut data = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(9)).min(data.len());
        match random.below(5) {
            0 if at < data.len() => data[at] = random.next() as u8,
            1 => drop(data.drain(at..end)),
            2 => data.insert(at, b"\"{}[],:\\0- e."[random.below(13)]),
            3 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len());
                let stretch = &other[from..(from + random.below(33)).min(other.len())];
                drop(data.splice(at..end, stretch.iter().copied()));
            }
            _ => data.extend((0..random.below(17)).map(|_| random.next() as u8)),
        }
    }
    data
}

fn fuzz(target: &str, count: usize, check: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|data| check(data));
    let mut random = Random::new();
    let seed = random.0;
    for nth in 0..count {
        let data = changed(&mut random, &corpus);
        if catch_unwind(|| check(&data)).is_err() {
            panic!("{target}, FUZZ_SEED={seed}, input {nth}: {:?}", String::from_utf8_lossy(&data));
        }
    }
}

#[test]
fn records() {
    fuzz("record", 5_000, record::check);
}

#[test]
fn keys() {
    fuzz("key", 5_000, key::check);
}

#[test]
fn events() {
    fuzz("event", 5_000, event::check);
}
