//! Measures the time that the library adds to the requests that it sends. `overhead/cases.rs` describes the
//! comparison. `scripts/bench-instructions` compares numbers of instructions instead of times. These numbers are the
//! same in every run.
//!
//! `cargo bench --bench overhead`

#![allow(missing_docs, reason = "criterion's macros make undocumented functions")]

#[allow(dead_code, reason = "the other program counts bytes")]
mod cases;
mod events;

use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tokio::runtime::{Builder, Runtime};

use cases::{CASES, Failure, Prepared, Run, Wire};

fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn overhead(criterion: &mut Criterion) -> Result<(), Failure> {
    let runtime = runtime()?;
    let mut group = criterion.benchmark_group("overhead");
    for (name, case) in CASES {
        let prepared = runtime.block_on(Prepared::new(case))?;
        group.bench_function(name, |bencher| bencher.iter(|| runtime.block_on(prepared.once())));
    }
    group.finish();
    Ok(())
}

/// Shows that no cost grows with the number of keys that an `Idempotency` has seen: the 100,000th key costs the same
/// as the first.
fn keys_seen(criterion: &mut Criterion) -> Result<(), Failure> {
    let runtime = runtime()?;
    let run = Run::new(Wire::Applies, 0)?;
    let mut group = criterion.benchmark_group("keys seen");
    let mut nth = 0_u32;
    for (name, seen) in [("1", 1), ("100,000", 100_000)] {
        while nth < seen {
            runtime.block_on(run.once(&next_key(&mut nth)))?;
        }
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || next_key(&mut nth),
                |key| runtime.block_on(run.once(&key)),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
    Ok(())
}

fn next_key(nth: &mut u32) -> String {
    *nth += 1;
    format!("pay_{nth:014}")
}

fn or_exit(bench: fn(&mut Criterion) -> Result<(), Failure>) -> impl Fn(&mut Criterion) {
    move |criterion| {
        if let Err(error) = bench(criterion) {
            eprintln!("overhead: {error}");
            std::process::exit(1);
        }
    }
}

fn all(criterion: &mut Criterion) {
    or_exit(overhead)(criterion);
    or_exit(keys_seen)(criterion);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(4));
    targets = all
}
criterion_main!(benches);
