//! A handler's own writes, in one transaction with its outcome.

use std::cell::Cell;

use super::{
    bank::{Deposits, Short},
    *,
};
use crate::{
    Begun, Claim, Error, Idempotency, Settled, Staging,
    run::protect::{Target, protect},
    run::{driver::Way, response::Verdict},
    span::OperationSpan,
    staging,
};
use lambda_idempotency_testing::Fault::{
    Conflict, Late, LoseAnswer, LoseRequest, Refuse, Throttle, Unreadable,
};

const SOLD_OUT: &str = "sold out";

type Paid = Result<String, TestError>;

fn stage(deposits: Deposits) -> Staging {
    let staging = staging().unwrap();
    staging.add(deposits).unwrap();
    staging
}

/// A deposit whose condition fails: it needs one cent in the till, which is empty.
fn short() -> Deposits {
    Deposits::of("till", 1).if_balance_is_at_least(1)
}

impl Bench {
    /// Pays one cent into the till.
    async fn pay(&self, key: &str) -> Result<String, RunError<TestError>> {
        self.with_handler(key, 1, async {
            stage(Deposits::of("till", 1));
            Ok("paid".to_owned())
        })
        .await
    }

    /// Runs a handler that stages `short()` with `answer` as its `on_declined` closure.
    async fn declined(
        &self,
        answer: impl FnOnce(&Short) -> Paid + Send + 'static,
    ) -> Result<String, RunError<TestError>> {
        self.with_handler("k", 1, async {
            stage(short()).on_declined(answer);
            Ok("paid".to_owned())
        })
        .await
    }

    fn till(&self) -> i64 {
        self.store.bank.balance("till")
    }

    pub(super) async fn hold(&self, key: &str) -> Claim {
        let fingerprint = Fingerprint::of(&1).unwrap();
        match self.operation().begin(Key::new(key).unwrap(), fingerprint).await.unwrap() {
            Begun::Claimed(claim) => claim,
            Begun::Replay(replay) => panic!("{replay:?}"),
        }
    }
}

/// A bench whose settings leave no time for retries.
fn without_retries() -> Bench {
    Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO))
}

fn refused<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RunError<E>>) -> Error {
    match result {
        Err(RunError::Idempotency(error)) => error,
        other => panic!("expected an error of the library, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn writes_and_outcome_commit_in_one_request() {
    let bench = Bench::new();
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert_eq!(bench.store.take_calls(), ["claim", "commit"]);
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert_eq!((bench.store.take_calls(), bench.till()), (vec!["claim"], 1));
}

/// Tests every sequence of three faults, with and without a claim. No deposit is made twice. A run that succeeds has
/// made its deposit. A run that fails hasn't, unless its error is `InProgress`. A retry succeeds.
#[tokio::test(start_paused = true)]
async fn every_fault_sequence_has_one_effect() {
    let mut faults = vec![Script::Pass, Script::InFlight];
    faults.extend([LoseAnswer, LoseRequest, Throttle, Refuse, Unreadable, Conflict].map(Meets));
    let mut ends = std::collections::BTreeMap::new();
    for case in 0..faults.len().pow(3) * 12 {
        let (mode, knows_tokens, retries, case) = (case % 3, case / 3 % 2 == 0, case / 6 % 2 == 0, case / 12);
        let script = [case / 64, case / 8 % 8, case % 8].map(|nth| faults[nth]);
        let bench = if retries { Bench::new() } else { without_retries() };
        let bench = if mode == 0 { bench } else { bench.optimistic(mode == 2) };
        if !knows_tokens {
            bench.store.bank.ignore_tokens();
        }
        bench.store.script((mode != 1).then_some(Script::Pass).into_iter().chain(script));
        let what = format!("{script:?}, mode {mode}, knows tokens: {knows_tokens}, retries: {retries}");
        match bench.pay("k").await {
            Ok(paid) => {
                assert_eq!((paid.as_str(), bench.till()), ("paid", 1), "{what}");
                assert_eq!(bench.record("k").status(), Status::Completed, "{what}");
                *ends.entry("paid".to_owned()).or_insert(0) += 1;
            }
            Err(RunError::Idempotency(error)) => {
                *ends.entry(format!("{:?}", error.kind())).or_insert(0) += 1;
                match error.kind() {
                    ErrorKind::InProgress => assert!(error.retry_after().is_some(), "{what}"),
                    ErrorKind::Unavailable | ErrorKind::Invalid | ErrorKind::Corrupt => {
                        assert_eq!(bench.till(), 0, "{what}: {error}");
                    }
                    kind => panic!("{what}: {kind:?}"),
                }
            }
            other => panic!("{what}: {other:?}"),
        }
        bench.store.end_script();
        let mut repeated = bench.pay("k").await;
        if repeated.is_err() {
            tokio::time::sleep(Duration::from_secs(70)).await;
            repeated = bench.pay("k").await;
        }
        assert_eq!((repeated.unwrap().as_str(), bench.till()), ("paid", 1), "{what}");
    }
    let kinds: Vec<_> = ends.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["Corrupt", "InProgress", "Invalid", "Unavailable", "paid"], "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn resent_commit_reuses_its_token() {
    for (script, calls) in [
        (vec![Meets(LoseAnswer)], vec!["claim", "commit", "commit"]),
        (vec![Meets(LoseRequest)], vec!["claim", "commit", "commit"]),
        (vec![Meets(LoseAnswer), Meets(LoseAnswer)], vec!["claim", "commit", "commit", "read"]),
        (vec![Meets(LoseRequest), Meets(LoseRequest)], vec!["claim", "commit", "commit", "read", "commit"]),
    ] {
        let bench = Bench::new();
        bench.store.script([Script::Pass].into_iter().chain(script.clone()));
        assert_eq!(bench.pay("k").await.unwrap(), "paid", "{script:?}");
        let tokens = bench.store.bank.tokens();
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{script:?}: {tokens:?}");
        assert_eq!((bench.store.take_calls(), bench.till()), (calls, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn retries_after_conflicts_use_new_tokens() {
    let bench = Bench::new();
    bench.store.script([Script::Pass, Meets(Conflict), Meets(Conflict)]);
    let start = bench.now();
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert!(start.until(bench.now()) >= Duration::from_millis(12 + 25));
    let mut tokens = bench.store.bank.tokens();
    tokens.dedup();
    assert_eq!((tokens.len(), bench.till()), (3, 1));
    // Without time for a retry, the library releases the key.
    let bench = without_retries();
    bench.store.script([Script::Pass, Meets(Conflict)]);
    let error = refused(bench.pay("m").await);
    assert_eq!((error.kind(), bench.record("m").status()), (ErrorKind::Unavailable, Status::Released));
    assert!(error.is_retryable() && error.to_string().contains("nothing was written"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn unresolved_commit_says_when_to_retry() {
    let bench = without_retries();
    bench.store.script([Script::Pass, Meets(LoseAnswer), Meets(LoseAnswer), Meets(Throttle)]);
    let error = refused(bench.pay("k").await);
    assert_eq!(error.kind(), ErrorKind::InProgress);
    // The caller may retry once the claim is stale: after its lease of one minute and the skew margin.
    assert_eq!(error.retry_after(), Some(Duration::from_millis(62_001)));
    assert_eq!((bench.pay("k").await.unwrap().as_str(), bench.till()), ("paid", 1));
}

#[tokio::test(start_paused = true)]
async fn late_transaction_after_takeover_is_rejected() {
    let bench = without_retries();
    let late = [Meets(Late), Meets(LoseRequest), Meets(Throttle)];
    bench.store.script([Script::Pass].into_iter().chain(late));
    assert_eq!(kind(bench.pay("k").await), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    let committed = bench.store.apply_late();
    assert!(matches!(
        committed,
        crate::store::CommitOutcome::Answered(crate::store::PutOutcome::Refused(Some(_)))
    ));
    assert_eq!(bench.till(), 1);
}

#[tokio::test(start_paused = true)]
async fn answer_of_decline_closure_is_recorded() {
    let bench = Bench::new();
    let answer = |short: &Short| {
        assert_eq!(short, &Short { account: "till", has: 0 });
        Ok(SOLD_OUT.to_owned())
    };
    assert_eq!(bench.declined(answer).await.unwrap(), SOLD_OUT);
    assert_eq!(bench.store.take_calls(), ["claim", "commit", "settle"]);
    assert_eq!(bench.pay("k").await.unwrap(), SOLD_OUT, "replayed");
    assert_eq!(bench.till(), 0);
}

#[tokio::test(start_paused = true)]
async fn decline_closure_errors_and_panics_release_key() {
    let bench = Bench::new();
    let result = bench.declined(|_| Err(TestError)).await;
    assert!(matches!(result, Err(RunError::Handler(TestError))), "{result:?}");
    assert_eq!(bench.record("k").status(), Status::Released);

    let panicking = bench.clone();
    let task = tokio::spawn(async move { panicking.declined(|_| panic!("the closure's own panic")).await });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!((bench.record("k").status(), bench.till()), (Status::Released, 0));
}

#[tokio::test(start_paused = true)]
async fn decline_closure_may_stage_new_writes() {
    let bench = Bench::new();
    let stage_again = |_: &Short| {
        stage(Deposits::of("waiting list", 1));
        Ok("on the waiting list".to_owned())
    };
    assert_eq!(bench.declined(stage_again).await.unwrap(), "on the waiting list");
    let tokens = bench.store.bank.tokens();
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!((bench.store.bank.balance("waiting list"), bench.till()), (1, 0));

    // The second transaction is declined too, with a new closure or without one.
    for again in [true, false] {
        let bench = Bench::new();
        let result = bench
            .declined(move |_| {
                let staging = stage(short());
                if again {
                    staging.on_declined(|_: &Short| -> Paid { Ok(SOLD_OUT.to_owned()) });
                }
                Ok("paid".to_owned())
            })
            .await;
        match again {
            true => assert_eq!(result.unwrap(), SOLD_OUT),
            false => assert_eq!(kind(result), ErrorKind::Declined),
        }
        let status = if again { Status::Completed } else { Status::Released };
        assert_eq!((bench.record("k").status(), bench.till()), (status, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn wrongly_typed_decline_closure_is_invalid() {
    let bench = Bench::new();
    let closures: [fn(&Staging); 2] = [
        |staging| staging.on_declined(|_: &String| -> Paid { Ok(SOLD_OUT.to_owned()) }),
        |staging| staging.on_declined(|_: &Short| SOLD_OUT),
    ];
    for closure in closures {
        let result = bench
            .with_handler("k", 1, async {
                closure(&stage(short()));
                Ok("paid".to_owned())
            })
            .await;
        let error = refused(result);
        assert_eq!((error.kind(), bench.record("k").status()), (ErrorKind::Invalid, Status::Released));
        assert!(error.to_string().contains("the wrong type"), "{error}");
    }
    assert_eq!(bench.till(), 0);
}

#[tokio::test(start_paused = true)]
async fn decline_without_closure_is_a_handler_error() {
    type Configure = fn(crate::Builder) -> crate::Builder;
    let policies: [(Configure, Status); 3] = [
        (|builder| builder, Status::Released),
        (|builder| builder.execution(Execution::AtMostOnce), Status::Failed),
        (|builder| builder.settings(|s| s.on_handler_error = Recording::Record), Status::Failed),
    ];
    for (configure, status) in policies {
        let bench = Bench::with(configure);
        let decline = || {
            bench.with_handler("k", 1, async {
                stage(short());
                Ok("paid".to_owned())
            })
        };
        let error = refused(decline().await);
        assert_eq!((error.kind(), bench.record("k").status()), (ErrorKind::Declined, status));
        assert!(!error.is_retryable());
        match status {
            Status::Failed => assert!(matches!(bench.pay("k").await, Err(RunError::Recorded(_)))),
            _ => assert_eq!(bench.pay("k").await.unwrap(), "paid"),
        }
        assert_eq!(bench.till(), i64::from(status == Status::Released));
    }
}

#[tokio::test(start_paused = true)]
async fn outcome_of_late_applied_transaction_is_returned() {
    // The second attempt is declined. The first attempt is applied before the settlement (with a closure) or after it.
    for closure in [true, false] {
        let bench = Bench::new();
        bench.store.script([Script::Pass, Meets(Late)]);
        let store = bench.store.clone();
        let result = bench
            .with_handler("k", 1, async {
                let staging = stage(short());
                let late = store.clone();
                if closure {
                    staging.on_declined(move |_: &Short| -> Paid {
                        late.bank.pay_in("till", 1);
                        let _ = late.apply_late();
                        Ok(SOLD_OUT.to_owned())
                    });
                }
                Ok("paid".to_owned())
            })
            .await;
        match closure {
            true => {
                assert_eq!(
                    result.unwrap(),
                    "paid",
                    "the applied transaction's outcome wins over the closure's"
                );
                assert_eq!((bench.till(), bench.pay("k").await.unwrap().as_str()), (2, "paid"));
            }
            false => {
                assert_eq!(kind(result), ErrorKind::Declined);
                bench.store.bank.pay_in("till", 1);
                let _ = bench.store.apply_late();
                assert_eq!(bench.till(), 1, "the release fenced the late transaction");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ambiguous_optimistic_decline_is_unresolved() {
    // If `is_late`, the first attempt is still in flight when the second one is declined, and nothing fences the first.
    for closure in [true, false] {
        for is_late in [true, false] {
            let bench = Bench::new().optimistic(false);
            bench.store.script([if is_late { Meets(Late) } else { Script::Pass }]);
            let result = bench
                .with_handler("k", 1, async {
                    let staging = stage(short());
                    if closure {
                        staging.on_declined(|_: &Short| -> Paid { Err(TestError) });
                    }
                    Ok("paid".to_owned())
                })
                .await;
            match (is_late, closure) {
                (true, _) => {
                    assert_eq!(kind(result), ErrorKind::InProgress);
                    bench.store.bank.pay_in("till", 1);
                    let _ = bench.store.apply_late();
                    assert_eq!((bench.pay("k").await.unwrap().as_str(), bench.till()), ("paid", 2));
                }
                (false, true) => assert!(matches!(result, Err(RunError::Handler(TestError)))),
                (false, false) => assert_eq!(kind(result), ErrorKind::Declined),
            }
        }
    }
}

/// The `on_declined` closure is cut off. If `is_late`, the transaction's first attempt may still be applied.
#[tokio::test(start_paused = true)]
async fn cut_off_decline_closure_leaves_commit_unresolved() {
    for (is_late, expected) in [(true, ErrorKind::InProgress), (false, ErrorKind::Unavailable)] {
        let bench = Bench::new().optimistic(false);
        bench.store.script([if is_late { Meets(Late) } else { Script::Pass }]);
        let until = bench.now().saturating_add(Duration::from_secs(60));
        let target = Target {
            span: OperationSpan::none(),
            key: bench.stored_key("k"),
            fingerprint: Fingerprint::of(&1).unwrap(),
            invocation: Invocation::entered(bench.now(), until, "request"),
            cut_off: None,
            way: Way::Optimistic { reads_first: false },
            inside: None,
        };
        let handler = async || {
            stage(short()).on_declined(|_: &Short| -> Paid { Ok(SOLD_OUT.to_owned()) });
            Paid::Ok("paid".to_owned())
        };
        let judge = |paid: Paid, _| (Verdict::CompleteOmitted, paid);
        let driver = bench.idempotency.driver();
        let result = protect(driver, target, handler, judge, |_| Some(pending::<Paid>())).await;
        assert_eq!(result.map(|_| ()).unwrap_err().kind(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn late_applied_transaction_overrides_closure_error() {
    let bench = Bench::new();
    bench.store.script([Script::Pass, Meets(Late)]);
    let late = bench.store.clone();
    let result = bench
        .declined(move |_| {
            late.bank.pay_in("till", 1);
            let _ = late.apply_late();
            Err(TestError)
        })
        .await;
    assert_eq!((result.unwrap().as_str(), bench.till()), ("paid", 2));
}

#[tokio::test(start_paused = true)]
async fn skipped_decline_closure_counts_as_handler_error() {
    for (execution, status) in
        [(Execution::AtMostOnce, Status::Failed), (Execution::AtLeastOnce, Status::Released)]
    {
        let bench = Bench::with(|builder| builder.execution(execution));
        let frozen = bench.clone();
        let is_called = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let by_closure = is_called.clone();
        let result = bench
            .with_handler("k", 1, async move {
                stage(short()).on_declined(move |_: &Short| -> Paid {
                    by_closure.store(true, Ordering::SeqCst);
                    Ok(SOLD_OUT.to_owned())
                });
                // The handler returns after its time has ended, so no time is left to call the closure.
                frozen.jump.store(59_000, Ordering::SeqCst);
                Ok("paid".to_owned())
            })
            .await;
        assert_eq!((kind(result), is_called.load(Ordering::SeqCst)), (ErrorKind::Declined, false));
        assert_eq!(bench.record("k").status(), status, "the handler has run");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_of_failed_handlers_are_dropped() {
    for policy in [Recording::Release, Recording::Record] {
        let bench = Bench::with(|builder| builder.settings(|s| s.on_handler_error = policy));
        let failing = bench.with_handler("k", 1, async {
            stage(Deposits::of("till", 1));
            Err(TestError)
        });
        match policy {
            Recording::Release => assert!(matches!(failing.await, Err(RunError::Handler(TestError)))),
            Recording::Record => assert!(matches!(failing.await, Err(RunError::Recorded(_)))),
        }
        assert_eq!((bench.store.take_calls(), bench.till()), (vec!["claim", "settle"], 0));
    }
    let bench = Bench::new();
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    for ends in ["panics", "is cut off"] {
        let (bench, keep) = (bench.clone(), kept.clone());
        let task = tokio::spawn(async move {
            let handler = async {
                *keep.lock().unwrap() = Some(stage(Deposits::of("till", 1)));
                assert!(ends != "panics", "the handler's own panic");
                pending().await
            };
            kind(bench.with_handler("k", 1, handler).await)
        });
        match task.await {
            Ok(kind) => assert_eq!((kind, ends), (ErrorKind::InProgress, "is cut off")),
            Err(error) => assert!(error.is_panic() && ends == "panics"),
        }
        // Code that still has the staging handle gets an error, since the handler has ended.
        let staging = kept.lock().unwrap().take().unwrap();
        assert_eq!(staging.add(Deposits::of("till", 1)).unwrap_err().kind(), ErrorKind::Invalid, "{ends}");
    }
    assert_eq!(bench.till(), 0);
}

#[tokio::test(start_paused = true)]
async fn invalid_writes_fail_when_staged() {
    #[derive(Clone)]
    struct Other;
    impl std::ops::AddAssign for Other {
        fn add_assign(&mut self, _: Self) {}
    }
    let bench = Bench::new();
    let kept = Cell::new(None);
    let result = bench.with_handler("k", 1, async {
        let staging = staging().unwrap();
        let of_another_store = staging.add(Other).unwrap_err();
        assert!(of_another_store.to_string().contains("the bank takes only deposits"), "{of_another_store}");
        staging.add(Deposits::of("till", 1)).unwrap();
        staging.add(Deposits::of("safe", 1)).unwrap();
        let two_types = staging.add(Other).unwrap_err();
        assert!(two_types.to_string().contains("another type"), "{two_types}");
        let mut two = Deposits::of("till", 10);
        two += Deposits::of("till", 10);
        let too_many = staging.add(two).unwrap_err();
        assert!(too_many.to_string().contains("three deposits"), "{too_many}");
        for error in [of_another_store, two_types, too_many] {
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        kept.set(Some(staging));
        Ok("paid".to_owned())
    });
    assert_eq!(result.await.unwrap(), "paid");
    assert_eq!((bench.till(), bench.store.bank.balance("safe")), (1, 1));
    let late = kept.take().unwrap().add(Deposits::of("till", 1)).unwrap_err();
    assert!(late.to_string().contains("the handler has returned"), "{late}");
    assert!(staging().is_none(), "outside of a handler");
}

#[tokio::test(start_paused = true)]
async fn staging_needs_a_transactional_store() {
    let idempotency =
        Idempotency::builder(super::support::Plain::default()).function("tests").build().unwrap();
    let step = idempotency.operation("step").unwrap();
    let run = step.run(Key::new("k").unwrap(), &1, || async {
        let error = staging().unwrap().add(Deposits::of("till", 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        Err::<String, _>(error)
    });
    let Err(RunError::Handler(error)) = run.await else { panic!("not the handler's error") };
    assert!(error.to_string().contains("doesn't support transactional writes"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn fenced_transaction_returns_the_successors_outcome() {
    let bench = Bench::new();
    let successor = bench.clone();
    let result = bench.with_handler("k", 1, async {
        stage(Deposits::of("till", 100));
        successor.jump.store(70_000, Ordering::SeqCst);
        assert_eq!(super::support::elsewhere(successor.run("k", 1)).await.unwrap(), "run 1");
        successor.jump.store(0, Ordering::SeqCst);
        Ok("too late".to_owned())
    });
    assert_eq!((result.await.unwrap().as_str(), bench.till()), ("run 1", 0));
}

#[tokio::test(start_paused = true)]
async fn commit_claims_a_removed_key_again() {
    let bench = Bench::new();
    let sweeper = bench.clone();
    let result = bench.with_handler("k", 1, async {
        stage(Deposits::of("till", 1));
        sweeper.store.remove_all();
        Ok("paid".to_owned())
    });
    assert_eq!(result.await.unwrap(), "paid");
    assert_eq!(bench.store.take_calls(), ["claim", "commit", "claim", "commit"]);
    assert_eq!((bench.till(), bench.record("k").status()), (1, Status::Completed));
}

#[tokio::test(start_paused = true)]
async fn failed_commit_returns_the_claim() {
    let bench = Bench::new();
    let not_committed = bench.hold("k").await.commit("paid", short()).await.unwrap_err();
    assert_eq!(not_committed.error().kind(), ErrorKind::Declined);
    assert_eq!(not_committed.details(), Some(&Short { account: "till", has: 0 }));
    assert_eq!(not_committed.details::<String>(), None);
    let settled = not_committed.into_claim().unwrap().commit("paid", Deposits::of("till", 1)).await;
    assert!(matches!(settled, Ok(Settled::Recorded)), "{settled:?}");
    assert_eq!(bench.till(), 1);

    let bench = bench.beside(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
    for (script, expected) in [
        (Meets(Throttle), ErrorKind::Unavailable),
        (Meets(Refuse), ErrorKind::Invalid),
        (Meets(Unreadable), ErrorKind::Corrupt),
    ] {
        let claim = bench.hold("m").await;
        bench.store.script([script]);
        let not_committed = claim.commit("paid", Deposits::of("till", 1)).await.unwrap_err();
        assert_eq!(not_committed.error().kind(), expected);
        not_committed.into_claim().unwrap().release().await.unwrap();
    }
    let claim = bench.hold("m").await;
    bench.store.script([Meets(LoseRequest), Meets(LoseRequest), Meets(Throttle)]);
    let not_committed = claim.commit("paid", Deposits::of("till", 1)).await.unwrap_err();
    let error = not_committed.into_claim().unwrap_err();
    let wait = Some(Duration::from_millis(62_001));
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::InProgress, wait));
    assert_eq!(bench.till(), 1);

    let not_committed = bench.hold("n").await.commit("paid", Text("no deposit")).await.unwrap_err();
    assert_eq!(not_committed.error().kind(), ErrorKind::Invalid);
    assert!(matches!(not_committed.into_claim().unwrap().complete("done").await, Ok(Settled::Recorded)));
}

/// Writes of a type that no store accepts.
#[derive(Clone)]
struct Text(#[expect(dead_code, reason = "its text doesn't matter")] &'static str);

impl std::ops::AddAssign for Text {
    fn add_assign(&mut self, _: Self) {}
}
