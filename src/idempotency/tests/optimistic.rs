//! Optimistic runs: no claim before the handler, and one transaction for its outcome and its writes.

use super::{bank::Deposits, *};
use crate::staging;

const SMALLEST_CACHE: usize = 64 * 1024;

impl Bench {
    /// Runs a handler that stages a deposit of one cent, and returns `answer` 10 ms later.
    async fn deposit(&self, key: &str, payload: u32, answer: &str) -> Result<String, RunError<TestError>> {
        self.with_handler(key, payload, async {
            staging().unwrap().add(Deposits::of("till", 1)).unwrap();
            assert!(current().is_none(), "there's no claim");
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(answer.to_owned())
        })
        .await
    }

    fn till_balance(&self) -> i64 {
        self.store.bank.balance("till")
    }
}

/// The first attempt of a transaction is late, and the second attempt is declined. The library can't record the decline
/// as a failure, since the store fails. Then the first attempt is applied.
#[tokio::test(start_paused = true)]
async fn failed_conclusion_leaves_transaction_in_doubt() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.on_handler_error = Recording::Record;
            s.settle_within = Duration::ZERO;
        })
    });
    let bench = bench.optimistic(false);
    bench.store.script([Meets(Fault::Late), Script::Pass, Meets(Fault::Throttle)]);
    let paying = bench.with_handler("k", 1, async {
        staging().unwrap().add(Deposits::of("till", 1).if_balance_is_at_least(1)).unwrap();
        Ok("paid".to_owned())
    });
    let Err(RunError::Idempotency(error)) = paying.await else { panic!("no error") };
    assert_eq!(error.kind(), ErrorKind::InProgress, "{error}");
    assert!(!error.to_string().contains("nothing was written"), "{error}");
    bench.store.bank.pay_in("till", 1);
    let _ = bench.store.apply_late();
    assert_eq!(bench.run("k", 1).await.unwrap(), "paid");
}

/// Checks the library's error after a handler has run and nothing was written. An error that says "nothing ran" would
/// be false.
fn expect_nothing_written(result: Result<String, RunError<TestError>>) {
    let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("nothing was written") && !text.contains("nothing ran"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn optimistic_runs_commit_in_one_request() {
    let bench = Bench::new().optimistic(false);
    assert_eq!(bench.deposit("k", 1, "first").await.unwrap(), "first");
    assert_eq!(bench.store.take_calls(), ["commit"]);
    // The handler runs again, but its write isn't applied, and the answer is the recorded outcome.
    assert_eq!(bench.deposit("k", 1, "second").await.unwrap(), "first");
    assert_eq!((bench.store.take_calls(), bench.till_balance()), (vec!["commit"], 1));

    let bench = bench.optimistic(true);
    assert_eq!(bench.hang("k", 1).await.unwrap(), "first", "the handler doesn't run");
    assert_eq!(bench.store.take_calls(), ["read"]);
    assert_eq!(bench.deposit("m", 1, "other").await.unwrap(), "other");
    assert_eq!((bench.store.take_calls(), bench.till_balance()), (vec!["read", "commit"], 2));
}

#[tokio::test(start_paused = true)]
async fn concurrent_optimistic_runs_have_one_winner() {
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
        assert_eq!((answers.len(), bench.till_balance()), (1, 1), "{answers:?}");
        assert_eq!(bench.store.take_calls().iter().filter(|call| **call == "commit").count(), 32);
    }
}

#[tokio::test(start_paused = true)]
async fn mismatched_optimistic_run_commits_nothing() {
    for reads_first in [false, true] {
        let bench = Bench::new().optimistic(reads_first);
        bench.deposit("k", 1, "first").await.unwrap();
        assert_eq!(kind(bench.deposit("k", 2, "second").await), ErrorKind::Mismatch);
        assert_eq!(bench.till_balance(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn optimistic_run_replaces_only_stale_claims() {
    for reads_first in [false, true] {
        let claiming = Bench::new();
        let bench = claiming.optimistic(reads_first);
        claiming.abandon("k", 1).await;
        assert_eq!(kind(bench.deposit("k", 1, "free").await), ErrorKind::InProgress);
        assert_eq!(bench.till_balance(), 0);
        tokio::time::sleep(Duration::from_secs(63)).await;
        assert_eq!(bench.deposit("k", 1, "free").await.unwrap(), "free");
        assert_eq!((bench.till_balance(), bench.record("k").attempt), (1, 2));
        assert_eq!(claiming.run("k", 1).await.unwrap(), "free", "a run with a claim replays the outcome");
    }
}

#[tokio::test(start_paused = true)]
async fn at_most_once_needs_a_claim() {
    let claiming = Bench::with(|builder| builder.execution(Execution::AtMostOnce)).idempotency;
    for refused in [claiming.optimistic(), claiming.optimistic_reading_first()] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("at-most-once"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn expired_record_is_replaced() {
    for reads_first in [false, true] {
        let bench = Bench::with(|builder| builder.retention(Duration::from_secs(10))).optimistic(reads_first);
        bench.deposit("k", 1, "first").await.unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(bench.deposit("k", 2, "second").await.unwrap(), "second");
        assert_eq!(bench.till_balance(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_optimistic_handler_sends_nothing() {
    let bench = Bench::new().optimistic(false);
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError))));
    let payload = bench.panic("k", 1).await;
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the handler's own panic"));
    assert!(bench.store.take_calls().is_empty() && bench.store.inner.all().is_empty());
    // With `Recording::Record`, the failure is stored.
    let bench =
        Bench::with(|builder| builder.settings(|s| s.on_handler_error = Recording::Record)).optimistic(false);
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Recorded(_))));
    assert_eq!(bench.record("k").status(), Status::Failed);
    assert!(matches!(bench.deposit("k", 1, "late").await, Err(RunError::Recorded(_))));
    assert_eq!(bench.till_balance(), 0);
}

#[tokio::test(start_paused = true)]
async fn outcome_without_writes_needs_no_transaction() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO)).optimistic(false);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!((bench.store.take_calls(), bench.runs()), (vec!["conclude", "conclude"], 2));
    // If the library doesn't know whether the outcome was stored, it returns an error instead of the outcome.
    bench.store.script([Meets(Fault::LoseRequest), Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    let Err(RunError::Idempotency(error)) = bench.run("m", 1).await else { panic!("no error") };
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::InProgress, Some(Duration::from_secs(1))));
}

#[tokio::test(start_paused = true)]
async fn optimistic_outcomes_are_cached() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.local_cache = SMALLEST_CACHE;
            s.settle_within = Duration::ZERO;
        })
    });
    let optimistic = bench.optimistic(false);
    optimistic.deposit("k", 1, "first").await.unwrap();
    optimistic.store.take_calls();
    for again in [&optimistic, &bench.optimistic(true), &bench] {
        assert_eq!(again.hang("k", 1).await.unwrap(), "first", "the handler doesn't run");
    }
    assert_eq!(kind(optimistic.hang("k", 2).await), ErrorKind::Mismatch);
    assert!(bench.store.take_calls().is_empty(), "the store gets no request");
    // Another process reads the outcome once, and then answers from its cache.
    let beside =
        bench.beside(|builder| builder.settings(|s| s.local_cache = SMALLEST_CACHE)).optimistic(true);
    for calls in [vec!["read"], vec![]] {
        assert_eq!(beside.hang("k", 1).await.unwrap(), "first");
        assert_eq!(beside.store.take_calls(), calls);
    }
    // An outcome that wasn't stored isn't cached.
    bench.store.script([Meets(Fault::LoseRequest), Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    assert_eq!(kind(optimistic.deposit("m", 1, "lost").await), ErrorKind::InProgress);
    assert_eq!(optimistic.deposit("m", 1, "made").await.unwrap(), "made");
    assert_eq!(bench.till_balance(), 2);
}

#[tokio::test(start_paused = true)]
async fn only_the_deadline_limits_optimistic_runs() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(Duration::from_secs(10))))
            .optimistic(false);
    let long = |seconds| async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok("done".to_owned())
    };
    assert_eq!(bench.with_handler("k", 1, long(40)).await.unwrap(), "done");
    let within = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(100)));
    assert_eq!(within.with_handler("m", 1, long(99)).await.unwrap(), "done");
    let within = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(100)));
    let start = bench.now();
    expect_nothing_written(within.with_handler("n", 1, long(101)).await);
    assert_eq!(start.until(bench.now()), Duration::from_secs(100));
    assert!(bench.store.inner.all().len() == 2, "the cut-off run leaves no record");
}

#[tokio::test(start_paused = true)]
async fn optimistic_store_failure_writes_nothing() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO)).optimistic(true);
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(kind(bench.deposit("k", 1, "first").await), ErrorKind::Unavailable);
    assert_eq!(bench.store.take_calls(), ["read"]);
    bench.store.script([Script::Pass, Meets(Fault::Throttle)]);
    expect_nothing_written(bench.deposit("k", 1, "first").await);
    assert_eq!((bench.store.take_calls(), bench.till_balance()), (vec!["read", "commit"], 0));
}
