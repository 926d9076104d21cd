//! Optimistic: the handler runs, and its outcome and its writes are put in one transaction.

use super::{bank::Deposits, *};
use crate::staging;

const SMALLEST_CACHE: usize = 64 * 1024;

impl Bench {
    /// Pays one cent into the till, after a while.
    async fn deposit(&self, key: &str, payload: u32, answer: &str) -> Result<String, RunError<TestError>> {
        self.with_handler(key, payload, async {
            staging().unwrap().add(Deposits::of("till", 1)).unwrap();
            assert!(current().is_none(), "there is no claim");
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(answer.to_owned())
        })
        .await
    }

    fn in_the_till(&self) -> i64 {
        self.store.bank.balance("till")
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_run_is_one_request_and_a_duplicate_one() {
    let bench = Bench::new().optimistic(false);
    assert_eq!(bench.deposit("k", 1, "first").await.unwrap(), "first");
    assert_eq!(bench.store.take_calls(), ["commit"]);
    // The handler runs without effect, and the recorded outcome is the answer.
    assert_eq!(bench.deposit("k", 1, "second").await.unwrap(), "first");
    assert_eq!((bench.store.take_calls(), bench.in_the_till()), (vec!["commit"], 1));

    let bench = bench.optimistic(true);
    assert_eq!(bench.pend("k", 1).await.unwrap(), "first", "it does not run");
    assert_eq!(bench.store.take_calls(), ["read"]);
    assert_eq!(bench.deposit("m", 1, "other").await.unwrap(), "other");
    assert_eq!((bench.store.take_calls(), bench.in_the_till()), (vec!["read", "commit"], 2));
}

#[tokio::test(start_paused = true)]
async fn of_many_at_once_one_commits_and_all_get_its_outcome() {
    for reads_first in [false, true] {
        let bench = Bench::new().optimistic(reads_first);
        let tasks: Vec<_> = (0..32)
            .map(|nth| {
                let bench = bench.clone();
                tokio::spawn(async move { bench.deposit("k", 1, &format!("run {nth}")).await.unwrap() })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers.dedup();
        assert_eq!((answers.len(), bench.in_the_till()), (1, 1), "{answers:?}");
        assert_eq!(bench.store.take_calls().iter().filter(|call| **call == "commit").count(), 32);
    }
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_key_has_done_nothing() {
    for reads_first in [false, true] {
        let bench = Bench::new().optimistic(reads_first);
        bench.deposit("k", 1, "first").await.unwrap();
        assert_eq!(kind(bench.deposit("k", 2, "second").await), ErrorKind::Mismatch);
        assert_eq!(bench.in_the_till(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_stands_is_in_progress_and_a_stale_one_is_concluded_over() {
    for reads_first in [false, true] {
        let claiming = Bench::new();
        let bench = claiming.optimistic(reads_first);
        claiming.abandon("k", 1).await;
        assert_eq!(kind(bench.deposit("k", 1, "free").await), ErrorKind::InProgress);
        assert_eq!(bench.in_the_till(), 0);
        tokio::time::sleep(Duration::from_secs(63)).await;
        assert_eq!(bench.deposit("k", 1, "free").await.unwrap(), "free");
        assert_eq!((bench.in_the_till(), bench.record("k").attempt), (1, 2));
        assert_eq!(claiming.run("k", 1).await.unwrap(), "free", "a claim replays it");
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_once_needs_a_claim() {
    let claiming = Bench::with(|builder| builder.execution(Execution::AtMostOnce)).idempotency;
    for refused in [claiming.optimistic(), claiming.optimistic_reading_first()] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("at most once"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_expired_is_replaced() {
    for reads_first in [false, true] {
        let bench = Bench::with(|builder| builder.retention(Duration::from_secs(10))).optimistic(reads_first);
        bench.deposit("k", 1, "first").await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(bench.deposit("k", 2, "second").await.unwrap(), "second");
        assert_eq!(bench.in_the_till(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_leaves_nothing_and_costs_nothing() {
    let bench = Bench::new().optimistic(false);
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError))));
    let payload = bench.panic("k", 1).await;
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the handler's own panic"));
    assert!(bench.store.take_calls().is_empty() && bench.store.inner.all().is_empty());
    // Unless the error is recorded.
    let bench = Bench::with(|builder| builder.on_handler_error(OnHandlerError::Record)).optimistic(false);
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Recorded(_))));
    assert_eq!(bench.record("k").status(), Status::Failed);
    assert!(matches!(bench.deposit("k", 1, "late").await, Err(RunError::Recorded(_))));
    assert_eq!(bench.in_the_till(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_writes_its_outcome_alone_is_put() {
    let bench = Bench::with(|builder| builder.settle_within(Duration::ZERO)).optimistic(false);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!((bench.store.take_calls(), bench.runs()), (vec!["conclude", "conclude"], 2));
    // An outcome that isn't known to be stored isn't the answer.
    bench.store.script([Script::LoseRequest, Script::LoseRequest, Script::Down]);
    let Err(RunError::Idempotency(error)) = bench.run("m", 1).await else { panic!("answered") };
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::InProgress, Some(Duration::from_secs(1))));
}

#[tokio::test(start_paused = true)]
async fn the_local_cache_keeps_what_was_put_and_what_was_found() {
    let bench = Bench::with(|builder| builder.local_cache(SMALLEST_CACHE).settle_within(Duration::ZERO));
    let free = bench.optimistic(false);
    free.deposit("k", 1, "first").await.unwrap();
    free.store.take_calls();
    for again in [&free, &bench.optimistic(true), &bench] {
        assert_eq!(again.pend("k", 1).await.unwrap(), "first", "it does not run");
    }
    assert_eq!(kind(free.pend("k", 2).await), ErrorKind::Mismatch);
    assert!(bench.store.take_calls().is_empty(), "and the store is not asked");
    // Another process reads it once.
    let beside = bench.beside(|builder| builder.local_cache(SMALLEST_CACHE)).optimistic(true);
    for calls in [vec!["read"], vec![]] {
        assert_eq!(beside.pend("k", 1).await.unwrap(), "first");
        assert_eq!(beside.store.take_calls(), calls);
    }
    // An outcome that wasn't stored isn't cached.
    bench.store.script([Script::LoseRequest, Script::LoseRequest, Script::Down]);
    assert_eq!(kind(free.deposit("m", 1, "lost").await), ErrorKind::InProgress);
    assert_eq!(free.deposit("m", 1, "made").await.unwrap(), "made");
    assert_eq!(bench.in_the_till(), 2);
}

#[tokio::test(start_paused = true)]
async fn it_is_cut_off_by_its_invocation_and_by_no_lease() {
    let bench = Bench::with(|builder| builder.lease_extension(Duration::from_secs(10))).optimistic(false);
    let long = |seconds| async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok("done".to_owned())
    };
    assert_eq!(bench.with_handler("k", 1, long(40)).await.unwrap(), "done");
    let within = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(100)));
    assert_eq!(within.with_handler("m", 1, long(99)).await.unwrap(), "done");
    let within = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(100)));
    let start = bench.now();
    assert_eq!(kind(within.with_handler("n", 1, long(101)).await), ErrorKind::Unavailable);
    assert_eq!(start.until(bench.now()), Duration::from_secs(100));
    assert!(bench.store.inner.all().len() == 2, "and leaves nothing");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_before_it_refuses_and_after_it_nothing_was_written() {
    let bench = Bench::with(|builder| builder.settle_within(Duration::ZERO)).optimistic(true);
    bench.store.script([Script::Down]);
    assert_eq!(kind(bench.deposit("k", 1, "first").await), ErrorKind::Unavailable);
    assert_eq!(bench.store.take_calls(), ["read"]);
    bench.store.script([Script::Pass, Script::Down]);
    assert_eq!(kind(bench.deposit("k", 1, "first").await), ErrorKind::Unavailable);
    assert_eq!((bench.store.take_calls(), bench.in_the_till()), (vec!["read", "commit"], 0));
}
