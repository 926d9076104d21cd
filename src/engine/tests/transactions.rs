//! A handler's own writes, in one transaction with its outcome.

use std::cell::Cell;

use super::{
    bank::{Deposits, Short},
    *,
};
use crate::{
    Begun, Claim, Error, Idempotency, Settled, Staging,
    engine::{Mode, Target, Verdict},
    staging,
    store::memory::MemoryStore,
};

const SOLD_OUT: &str = "sold out";

type Paid = Result<String, TestError>;

fn stage(deposits: Deposits) -> Staging {
    let staging = staging().unwrap();
    staging.add(deposits).unwrap();
    staging
}

/// Needs one cent more than there is.
fn short() -> Deposits {
    Deposits::of("till", 1).if_there_is(1)
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

    /// Stages a deposit that's declined, and answers with `answer`.
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

    async fn hold(&self, key: &str) -> Claim {
        let fingerprint = Fingerprint::of(&1).unwrap();
        match self.operation().begin(Key::new(key).unwrap(), fingerprint).await.unwrap() {
            Begun::Claimed(claim) => claim,
            Begun::Replay(replay) => panic!("{replay:?}"),
        }
    }
}

/// A bench that never retries.
fn hurried() -> Bench {
    Bench::with(|builder| builder.settle_within(Duration::ZERO))
}

fn refused<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RunError<E>>) -> Error {
    match result {
        Err(RunError::Idempotency(error)) => error,
        other => panic!("not the library's error: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_writes_and_the_outcome_are_one_request_beside_the_claim() {
    let bench = Bench::new();
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert_eq!(bench.store.take_calls(), ["claim", "commit"]);
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert_eq!((bench.store.take_calls(), bench.till()), (vec!["claim"], 1));
}

/// Every sequence of three faults after the claim, or of all calls without one. There are never two effects,
/// never a success without the effect, and never "nothing was written" with it. Retries succeed.
#[tokio::test(start_paused = true)]
async fn whatever_the_store_does_there_is_one_effect_and_the_answer_is_right() {
    use Script::{Conflict, Corrupt, Down, InFlight, LoseAnswer, LoseRequest, Pass, Reject};
    let faults = [Pass, LoseAnswer, LoseRequest, Down, Reject, Corrupt, Conflict, InFlight];
    let mut ends = std::collections::BTreeMap::new();
    for case in 0..faults.len().pow(3) * 12 {
        let (mode, knows_tokens, retries, case) = (case % 3, case / 3 % 2 == 0, case / 6 % 2 == 0, case / 12);
        let script = [case / 64, case / 8 % 8, case % 8].map(|nth| faults[nth]);
        let bench = if retries { Bench::new() } else { hurried() };
        let bench = if mode == 0 { bench } else { bench.optimistic(mode == 2) };
        if !knows_tokens {
            bench.store.bank.forget_tokens();
        }
        bench.store.script((mode != 1).then_some(Pass).into_iter().chain(script));
        let what = format!("{script:?}, mode {mode}, {knows_tokens}, {retries}");
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
async fn a_lost_answer_is_asked_for_again_by_the_same_token() {
    for (script, calls) in [
        (vec![Script::LoseAnswer], vec!["claim", "commit", "commit"]),
        (vec![Script::LoseRequest], vec!["claim", "commit", "commit"]),
        (vec![Script::LoseAnswer, Script::LoseAnswer], vec!["claim", "commit", "commit", "read"]),
        (vec![Script::LoseRequest, Script::LoseRequest], vec!["claim", "commit", "commit", "read", "commit"]),
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
async fn contention_is_waited_for_under_another_token_each_time() {
    let bench = Bench::new();
    bench.store.script([Script::Pass, Script::Conflict, Script::Conflict]);
    let start = bench.now();
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    assert!(start.until(bench.now()) >= Duration::from_millis(12 + 25));
    let mut tokens = bench.store.bank.tokens();
    tokens.dedup();
    assert_eq!((tokens.len(), bench.till()), (3, 1));
    // It retries while there's time, and then releases the key.
    let bench = hurried();
    bench.store.script([Script::Pass, Script::Conflict]);
    let error = refused(bench.pay("m").await);
    assert_eq!((error.kind(), bench.record("m").status()), (ErrorKind::Unavailable, Status::Released));
    assert!(error.is_retryable() && error.to_string().contains("nothing was written"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_says_when_to_repeat() {
    let bench = hurried();
    bench.store.script([Script::Pass, Script::LoseAnswer, Script::LoseAnswer, Script::Down]);
    let error = refused(bench.pay("k").await);
    assert_eq!(error.kind(), ErrorKind::InProgress);
    // Once the lease is stale: a minute and the margin.
    assert_eq!(error.retry_after(), Some(Duration::from_millis(62_001)));
    assert_eq!((bench.pay("k").await.unwrap().as_str(), bench.till()), ("paid", 1));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_comes_after_a_takeover_is_not_made() {
    let bench = hurried();
    let late = [Script::Late, Script::LoseRequest, Script::Down];
    bench.store.script([Script::Pass].into_iter().chain(late));
    assert_eq!(kind(bench.pay("k").await), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(bench.pay("k").await.unwrap(), "paid");
    let committed = bench.store.make_late();
    assert!(matches!(
        committed,
        crate::store::CommitOutcome::Answered(crate::store::WriteOutcome::Refused(Some(_)))
    ));
    assert_eq!(bench.till(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_declined_condition_is_answered_by_the_closure_and_that_is_recorded() {
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
async fn the_closure_may_fail_or_panic_as_the_handler_may() {
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
async fn the_closure_may_stage_anew_and_is_asked_anew() {
    let bench = Bench::new();
    let anew = |_: &Short| {
        stage(Deposits::of("waiting list", 1));
        Ok("on the waiting list".to_owned())
    };
    assert_eq!(bench.declined(anew).await.unwrap(), "on the waiting list");
    let tokens = bench.store.bank.tokens();
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!((bench.store.bank.balance("waiting list"), bench.till()), (1, 0));

    // Declined again: with a new closure, or with none.
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
async fn a_closure_of_other_types_is_invalid_and_gives_the_key_back() {
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
async fn declined_without_a_closure_it_is_an_error_of_the_handlers() {
    type Configure = fn(crate::Builder) -> crate::Builder;
    let policies: [(Configure, Status); 3] = [
        (|builder| builder, Status::Released),
        (|builder| builder.execution(Execution::AtMostOnce), Status::Failed),
        (|builder| builder.on_handler_error(OnHandlerError::Record), Status::Failed),
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
async fn declined_and_made_all_the_same_its_outcome_is_the_answer() {
    // The first attempt is on its way when the second is declined, and is applied before anything else.
    for closure in [true, false] {
        let bench = Bench::new();
        bench.store.script([Script::Pass, Script::Late]);
        let store = bench.store.clone();
        let result = bench
            .with_handler("k", 1, async {
                let staging = stage(short());
                let late = store.clone();
                if closure {
                    staging.on_declined(move |_: &Short| -> Paid {
                        late.bank.pay_in("till", 1);
                        let _ = late.make_late();
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
                    "what stands is what was made, not what was answered then"
                );
                assert_eq!((bench.till(), bench.pay("k").await.unwrap().as_str()), (2, "paid"));
            }
            false => {
                assert_eq!(kind(result), ErrorKind::Declined);
                bench.store.bank.pay_in("till", 1);
                let _ = bench.store.make_late();
                assert_eq!(bench.till(), 1, "the release has fenced it");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_claim_what_was_declined_in_doubt_is_not_told_to_be_not_made() {
    // Nothing fences the first attempt, which is still on its way when the second is declined.
    for closure in [true, false] {
        for is_late in [true, false] {
            let bench = Bench::new().optimistic(false);
            bench.store.script([if is_late { Script::Late } else { Script::Pass }]);
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
                    let _ = bench.store.make_late();
                    assert_eq!((bench.pay("k").await.unwrap().as_str(), bench.till()), ("paid", 2));
                }
                (false, true) => assert!(matches!(result, Err(RunError::Handler(TestError)))),
                (false, false) => assert_eq!(kind(result), ErrorKind::Declined),
            }
        }
    }
}

/// The `on_declined` closure is cut off while the first attempt of its transaction may still be applied.
#[tokio::test(start_paused = true)]
async fn without_a_claim_a_second_word_that_is_cut_off_is_not_told_that_nothing_happened() {
    for (is_late, told) in [(true, ErrorKind::InProgress), (false, ErrorKind::Unavailable)] {
        let bench = Bench::new().optimistic(false);
        bench.store.script([if is_late { Script::Late } else { Script::Pass }]);
        let operation = Target {
            key: bench.stored_key("k"),
            fingerprint: Fingerprint::of(&1).unwrap(),
            invocation: Invocation::entered(
                bench.now(),
                bench.now().saturating_add(Duration::from_secs(60)),
                "request",
            ),
            cut_off: None,
            mode: Mode::Optimistic { reads_first: false },
        };
        let handler = async || {
            stage(short()).on_declined(|_: &Short| -> Paid { Ok(SOLD_OUT.to_owned()) });
            Paid::Ok("paid".to_owned())
        };
        let judge = |paid: Paid, _| (Verdict::CompleteOmitted, paid);
        let engine = bench.idempotency.engine();
        let result = engine.protect(operation, handler, judge, |_| Some(pending::<Paid>())).await;
        assert_eq!(result.map(|_| ()).unwrap_err().kind(), told);
    }
}

#[tokio::test(start_paused = true)]
async fn who_fails_after_its_transaction_was_made_all_the_same_answers_with_that() {
    let bench = Bench::new();
    bench.store.script([Script::Pass, Script::Late]);
    let late = bench.store.clone();
    let result = bench
        .declined(move |_| {
            late.bank.pay_in("till", 1);
            let _ = late.make_late();
            Err(TestError)
        })
        .await;
    assert_eq!((result.unwrap().as_str(), bench.till()), ("paid", 2));
}

#[tokio::test(start_paused = true)]
async fn at_most_once_no_time_left_for_the_closure_does_not_give_the_key_back() {
    for (execution, status) in
        [(Execution::AtMostOnce, Status::Failed), (Execution::AtLeastOnce, Status::Released)]
    {
        let bench = Bench::with(|builder| builder.execution(execution));
        let frozen = bench.clone();
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let by_closure = asked.clone();
        let result = bench
            .with_handler("k", 1, async move {
                stage(short()).on_declined(move |_: &Short| -> Paid {
                    by_closure.store(true, Ordering::SeqCst);
                    Ok(SOLD_OUT.to_owned())
                });
                // The handler returns at the moment when its time ends.
                frozen.jump.store(59_000, Ordering::SeqCst);
                Ok("paid".to_owned())
            })
            .await;
        assert_eq!((kind(result), asked.load(Ordering::SeqCst)), (ErrorKind::Declined, false));
        assert_eq!(bench.record("k").status(), status, "the handler has run");
    }
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_a_handler_that_fails_are_dropped() {
    for policy in [OnHandlerError::Release, OnHandlerError::Record] {
        let bench = Bench::with(|builder| builder.on_handler_error(policy));
        let failing = bench.with_handler("k", 1, async {
            stage(Deposits::of("till", 1));
            Err(TestError)
        });
        match policy {
            OnHandlerError::Release => assert!(matches!(failing.await, Err(RunError::Handler(TestError)))),
            OnHandlerError::Record => assert!(matches!(failing.await, Err(RunError::Recorded(_)))),
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
                assert!(ends != "panics", "as it must");
                pending().await
            };
            kind(bench.with_handler("k", 1, handler).await)
        });
        match task.await {
            Ok(kind) => assert_eq!((kind, ends), (ErrorKind::InProgress, "is cut off")),
            Err(error) => assert!(error.is_panic() && ends == "panics"),
        }
        // Code that still has the handle gets an error: it's too late.
        let staging = kept.lock().unwrap().take().unwrap();
        assert_eq!(staging.add(Deposits::of("till", 1)).unwrap_err().kind(), ErrorKind::Invalid, "{ends}");
    }
    assert_eq!(bench.till(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_staged_is_refused_where_it_is_staged_and_nothing_is_added() {
    #[derive(Clone)]
    struct Other;
    impl crate::store::Writes for Other {
        fn append(&mut self, _: Self) {}
    }
    let bench = Bench::new();
    let kept = Cell::new(None);
    let result = bench.with_handler("k", 1, async {
        let staging = staging().unwrap();
        let of_another_store = staging.add(Other).unwrap_err();
        assert!(of_another_store.to_string().contains("the bank takes deposits"), "{of_another_store}");
        staging.add(Deposits::of("till", 1)).unwrap();
        staging.add(Deposits::of("safe", 1)).unwrap();
        let two_types = staging.add(Other).unwrap_err();
        assert!(two_types.to_string().contains("another type"), "{two_types}");
        let mut two = Deposits::of("till", 10);
        crate::store::Writes::append(&mut two, Deposits::of("till", 10));
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
async fn a_store_without_transactions_says_so_where_it_is_staged() {
    let idempotency = Idempotency::builder(MemoryStore::new()).function("tests").build().unwrap();
    let step = idempotency.operation("step").unwrap();
    let run = step.run(Key::new("k").unwrap(), &1, || async {
        let error = staging().unwrap().add(Deposits::of("till", 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        Err::<String, _>(error)
    });
    let Err(RunError::Handler(error)) = run.await else { panic!("ran") };
    assert!(error.to_string().contains("makes no transactions"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn fenced_the_writes_are_not_made_and_the_successors_outcome_is_the_answer() {
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
async fn gone_the_key_is_claimed_again_and_the_writes_are_made() {
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
async fn the_low_level_holds_its_claim_until_something_is_made() {
    let bench = Bench::new();
    let commitment = bench.hold("k").await.commit("paid", short()).await.unwrap();
    let Settled::NotCommitted(not_made) = commitment else { panic!("{commitment:?}") };
    assert_eq!(not_made.error().kind(), ErrorKind::Declined);
    assert_eq!(not_made.details(), Some(&Short { account: "till", has: 0 }));
    assert_eq!(not_made.details::<String>(), None);
    let commitment = not_made.into_claim().commit("paid", Deposits::of("till", 1)).await.unwrap();
    assert!(matches!(commitment, Settled::Recorded), "{commitment:?}");
    assert_eq!(bench.till(), 1);

    let bench = bench.beside(|builder| builder.settle_within(Duration::ZERO));
    for (script, expected) in [
        (Script::Down, ErrorKind::Unavailable),
        (Script::Reject, ErrorKind::Invalid),
        (Script::Corrupt, ErrorKind::Corrupt),
    ] {
        let claim = bench.hold("m").await;
        bench.store.script([script]);
        let commitment = claim.commit("paid", Deposits::of("till", 1)).await.unwrap();
        let Settled::NotCommitted(not_made) = commitment else { panic!("{commitment:?}") };
        assert_eq!(not_made.error().kind(), expected);
        not_made.into_claim().release().await.unwrap();
    }
    let claim = bench.hold("m").await;
    bench.store.script([Script::LoseRequest, Script::LoseRequest, Script::Down]);
    let error = claim.commit("paid", Deposits::of("till", 1)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::InProgress, Some(Duration::from_millis(62_001)))
    );
    assert_eq!(bench.till(), 1);

    let commitment = bench.hold("n").await.commit("paid", Text("no deposit")).await.unwrap();
    let Settled::NotCommitted(not_made) = commitment else { panic!("{commitment:?}") };
    assert_eq!(not_made.error().kind(), ErrorKind::Invalid);
    let completion = not_made.into_claim().complete("done").await.unwrap();
    assert!(matches!(completion, Settled::Recorded), "{completion:?}");
}

/// Writes of a type that no store accepts.
#[derive(Clone)]
struct Text(#[expect(dead_code, reason = "what it says is no matter")] &'static str);

impl crate::store::Writes for Text {
    fn append(&mut self, _: Self) {}
}
