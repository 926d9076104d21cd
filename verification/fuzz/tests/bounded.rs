//! Runs the bounded form of the fuzzing: the corpus, and random changes of it. The long form is `scripts/fuzz`.
//!
//! `FUZZ_INPUTS` sets the number of changed inputs for each target. `FUZZ_SEED` repeats the changes of an earlier run.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::{fs, panic::catch_unwind, path::Path};

use lambda_idempotency_fuzz::{event, key, layer, record};
use testkit::random::{Random, fresh_seed};

/// The seed from the environment, or a fresh one.
fn seed() -> u64 {
    let given = std::env::var("FUZZ_SEED").ok().map(|seed| seed.parse().unwrap());
    given.unwrap_or_else(fresh_seed)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files.into_iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Copies an input of the corpus, and makes one to four changes to its bytes.
fn changed(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut data = corpus[random.index(corpus.len())].clone();
    for _ in 0..=random.index(4) {
        let at = random.index(data.len() + 1);
        let end = (at + random.index(9)).min(data.len());
        match random.index(5) {
            0 if at < data.len() => data[at] = random.bits() as u8,
            1 => drop(data.drain(at..end)),
            2 => data.insert(at, b"\"{}[],:\\0- e."[random.index(13)]),
            3 => {
                let other = &corpus[random.index(corpus.len())];
                let from = random.index(other.len());
                let stretch = &other[from..(from + random.index(33)).min(other.len())];
                drop(data.splice(at..end, stretch.iter().copied()));
            }
            _ => data.extend((0..random.index(17)).map(|_| random.bits() as u8)),
        }
    }
    data
}

fn fuzz(target: &str, count: usize, check: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|data| check(data));
    let seed = seed();
    let count = std::env::var("FUZZ_INPUTS").map_or(count, |count| count.parse().unwrap());
    let mut random = Random::new(seed);
    for nth in 0..count {
        let data = changed(&mut random, &corpus);
        if catch_unwind(|| check(&data)).is_err() {
            panic!("{target}, FUZZ_SEED={seed}, input {nth}: {:?}", String::from_utf8_lossy(&data));
        }
    }
}

#[test]
fn fuzzed_records_break_no_promise() {
    fuzz("record", 5_000, record::check);
}

#[test]
fn fuzzed_keys_break_no_promise() {
    fuzz("key", 5_000, key::check);
}

#[test]
fn fuzzed_events_break_no_promise() {
    fuzz("event", 5_000, event::check);
}

#[test]
fn fuzzed_bytes_never_break_the_layer() {
    fuzz("layer", 1_000, layer::check);
}
