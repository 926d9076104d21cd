//! Runs of an operation, while something changes under them.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::{Idempotency, Key};

const WORKERS: usize = 8;
/// How many runs each worker ends between two changes at least, so that a slow machine makes as many as a fast one.
const RUNS: usize = 3;

/// How the runs ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How many there were.
    pub runs: usize,
    /// How many of them failed.
    pub failed: usize,
}

/// Makes `changes` changes, and runs operations with fresh keys before, during and after each.
pub async fn under_load(
    idempotency: &Idempotency,
    changes: usize,
    mut change: impl AsyncFnMut(usize),
) -> Ended {
    let (failed, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let counts: [_; WORKERS] = std::array::from_fn(|_| Arc::<AtomicUsize>::default());
    let workers = counts.iter().enumerate().map(|(worker, count)| {
        let (count, failed, is_over) = (count.clone(), failed.clone(), is_over.clone());
        let operation = idempotency.operation("run").unwrap();
        tokio::spawn(async move {
            for nth in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let key = Key::new(format!("{worker}-{nth}")).unwrap();
                if let Err(error) = operation.run(&key, &1, async || Ok::<_, Infallible>(2)).await {
                    eprintln!("run failed: {error:?}");
                    failed.fetch_add(1, Ordering::SeqCst);
                }
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    for nth in 0..changes {
        pass(&counts).await;
        change(nth).await;
    }
    pass(&counts).await;
    is_over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    let runs = counts.iter().map(|count| count.load(Ordering::SeqCst)).sum();
    Ended { runs, failed: failed.load(Ordering::SeqCst) }
}

/// Waits until each worker has ended [`RUNS`] more runs.
async fn pass(counts: &[Arc<AtomicUsize>]) {
    for count in counts {
        let until = count.load(Ordering::SeqCst) + RUNS;
        while count.load(Ordering::SeqCst) < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
