//! Store outages: outcomes are recorded after the outage, and every answer is sent in time.

use std::sync::{Arc, Mutex};

use super::{bank::Deposits, support::elsewhere, *};
use crate::staging;

const DEFINITE: [Script; 3] = [Meets(Fault::Throttle), Meets(Fault::Refuse), Meets(Fault::Conflict)];
const AMBIGUOUS: [Script; 4] =
    [Meets(Fault::LoseRequest), Meets(Fault::LoseAnswer), Meets(Fault::Silence), Meets(Fault::SilenceAfter)];

fn all() -> impl Iterator<Item = Script> {
    DEFINITE.into_iter().chain(AMBIGUOUS)
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Runs a delivery whose deadline is `left` away. When the handler returns, an outage of the store begins. `outage` is
/// its length, and how each call ends. Returns the delivery's answer and duration.
async fn settles_through(
    bench: &Bench,
    left: Duration,
    outage: (Duration, Script),
) -> (Result<String, RunError<TestError>>, Duration) {
    let start = bench.now();
    let store = bench.store.clone();
    let inside = bench.in_invocation(start.saturating_add(left));
    let handler = async move {
        store.fail_for(outage.0, outage.1);
        Ok("done".to_owned())
    };
    let result = inside.with_handler("k", 1, handler).await;
    (result, start.until(bench.now()))
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_recorded_through_outages() {
    for left in [seconds(3.0), seconds(30.0), seconds(900.0)] {
        for share in [0.01, 0.1, 0.5, 0.75, 0.9, 0.95] {
            for script in all() {
                let bench = Bench::new();
                let outage = (left.min(seconds(30.0)).saturating_sub(seconds(0.25))).mul_f64(share);
                let (result, took) = settles_through(&bench, left, (outage, script)).await;
                let what = format!("{left:?} left, {outage:?} of {script:?}, took {took:?}");
                assert_eq!(result.unwrap(), "done", "{what}");
                assert_eq!(bench.record("k").status(), Status::Completed, "{what}");
                assert!(took <= left - seconds(0.25), "{what}");
                assert_eq!(bench.run("k", 1).await.unwrap(), "done", "{what}");
                assert_eq!(bench.runs(), 0, "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn transactions_are_committed_through_outages() {
    for script in all() {
        for is_claimed in [true, false] {
            let bench = Bench::new();
            let protected = if is_claimed { bench.clone() } else { bench.optimistic(false) };
            let inside = protected.in_invocation(bench.now().saturating_add(seconds(30.0)));
            let store = bench.store.clone();
            let handler = async move {
                staging().unwrap().add(Deposits::of("till", 1)).unwrap();
                store.fail_for(seconds(20.0), script);
                Ok("paid".to_owned())
            };
            let result = inside.with_handler("k", 1, handler).await;
            assert_eq!(result.unwrap(), "paid", "{script:?}, {is_claimed}");
            assert_eq!(bench.record("k").status(), Status::Completed);
            assert_eq!(bench.store.bank.balance("till"), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn outage_retries_leave_time_to_answer() {
    for script in all() {
        for (left, limit) in [(3.0, 2.75), (20.0, 19.75), (900.0, 30.0)] {
            let bench = Bench::new();
            let (result, took) =
                settles_through(&bench, seconds(left), (Duration::from_secs(10_000), script)).await;
            assert_eq!(result.unwrap(), "done", "an error would cause a second run");
            assert!(took <= seconds(limit), "{script:?}, {left} s left: took {took:?}");
            let status = match script {
                // The completion was applied, though its answer was lost.
                Meets(Fault::LoseAnswer) | Meets(Fault::SilenceAfter) => Status::Completed,
                _ => Status::Started,
            };
            assert_eq!(bench.record("k").status(), status, "{script:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn front_end_limit_ends_retries() {
    let bench = Bench::new();
    let now = bench.now();
    let invocation = Invocation::entered(now, now.saturating_add(seconds(900.0)), "id")
        .with_caller_waiting_until(now.saturating_add(seconds(20.0)));
    let inside = bench.within(invocation);
    let store = bench.store.clone();
    let handler = async move {
        store.fail_for(Duration::from_secs(1000), Meets(Fault::Throttle));
        Ok("done".to_owned())
    };
    assert_eq!(inside.with_handler("k", 1, handler).await.unwrap(), "done");
    let took = now.until(bench.now());
    assert!(took > seconds(19.0) && took <= seconds(20.0), "{took:?}");
}

/// After a gateway's timeout, the client retries. The retry needs the response, so the library must keep it.
#[tokio::test(start_paused = true)]
async fn responses_after_front_end_limit_are_kept() {
    for (took, is_reachable) in [(28.9, true), (35.0, true), (35.0, false)] {
        let bench = Bench::new();
        bench.store.limit_inline(1);
        let now = bench.now();
        let invocation = Invocation::entered(now, now.saturating_add(seconds(60.0)), "id")
            .with_caller_waiting_until(now.saturating_add(seconds(29.0)));
        let store = bench.store.clone();
        let handler = async move {
            tokio::time::sleep(seconds(took)).await;
            if !is_reachable {
                store.script([Meets(Fault::Silence)]);
            }
            Ok("a response".to_owned())
        };
        let answer = bench.within(invocation).with_handler("k", 1, handler).await;
        assert_eq!(answer.unwrap(), "a response");
        assert!(now.until(bench.now()) < seconds(60.0));
        let State::Completed(outcome) = bench.record("k").state else { panic!("not completed") };
        assert_eq!(matches!(outcome, Outcome::Retained(_)), is_reachable, "{took} s");
    }
}

/// A step begins after the front end has stopped waiting. The store is healthy when the step claims its key. When the
/// step's handler returns, the store fails for 3 s.
#[tokio::test(start_paused = true)]
async fn claims_after_front_end_limit_are_sent() {
    for fail_open in [false, true] {
        let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = fail_open));
        let now = bench.now();
        let invocation = Invocation::entered(now, now.saturating_add(seconds(60.0)), "id")
            .with_caller_waiting_until(now.saturating_add(seconds(29.0)));
        tokio::time::sleep(seconds(31.0)).await;
        let late = bench.within(invocation);
        let store = bench.store.clone();
        let handler = async move {
            store.fail_for(seconds(3.0), Meets(Fault::Throttle));
            Ok("done".to_owned())
        };
        assert_eq!(late.with_handler("k", 1, handler).await.unwrap(), "done", "{fail_open}");
        assert_eq!(late.run("k", 1).await.unwrap(), "done", "{fail_open}");
        assert_eq!((bench.runs(), bench.record("k").status()), (0, Status::Completed), "{fail_open}");
    }
}

/// The process freezes before it sends its claim or its takeover. After the freeze, no time is left for that request.
/// The store hasn't failed, so `fail_open` doesn't apply.
#[tokio::test(start_paused = true)]
async fn unsent_claims_never_cause_unprotected_runs() {
    let mut refused = 0;
    for reads in 0..8 {
        let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
        bench.abandon("k", 1).await;
        tokio::time::sleep(seconds(63.0)).await;
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(10.0)));
        bench.freeze_after(reads, 6_000);
        let result = inside.run("k", 1).await;
        if bench.runs() == 1 {
            assert_eq!(bench.record("k").status(), Status::Completed, "frozen after {reads} reads");
            continue;
        }
        let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("no time is left"), "frozen after {reads} reads: {error}");
        refused += 1;
    }
    assert!(refused >= 2, "expected a refusal for at least two of the freezes, got {refused}");
}

/// The process freezes while it waits for the answer to its claim. After the freeze, the deadline has passed, and the
/// library can't tell whether the store was slow. It's too late for the handler, so `fail_open` doesn't run it.
#[tokio::test(start_paused = true)]
async fn claims_frozen_past_deadline_never_run_unprotected() {
    for script in
        [vec![Meets(Fault::Silence)], vec![Meets(Fault::Silence); 2], vec![Meets(Fault::Silence); 3]]
    {
        let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(10.0)));
        bench.store.script(script);
        let freeze = async {
            tokio::time::sleep(seconds(1.0)).await;
            bench.jump.store(20_000, Ordering::SeqCst);
        };
        let (result, ()) = tokio::join!(inside.run("k", 1), freeze);
        let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
        assert_eq!((error.kind(), bench.runs()), (ErrorKind::Unavailable, 0), "{error}");
    }
}

/// Without a cut-off, the settlement has no time limit. But the chunks' write has a limit, so that the outcome is
/// recorded before the deadline.
#[tokio::test(start_paused = true)]
async fn hanging_chunk_write_leaves_time_to_settle() {
    let bench = Bench::with(|builder| builder.settings(|s| s.cut_off = false));
    bench.store.limit_inline(1);
    let deadline = bench.now().saturating_add(seconds(10.0));
    let store = bench.store.clone();
    let handler = async move {
        tokio::time::sleep(seconds(9.6)).await;
        store.script([Meets(Fault::Silence)]);
        Ok("a response".to_owned())
    };
    assert_eq!(bench.in_invocation(deadline).with_handler("k", 1, handler).await.unwrap(), "a response");
    assert!(bench.now() < deadline);
    let State::Completed(outcome) = bench.record("k").state else { panic!("not completed") };
    assert!(matches!(outcome, Outcome::Omitted));
}

#[tokio::test(start_paused = true)]
async fn claim_during_outage_fails_in_time() {
    for script in all() {
        let bench = Bench::new();
        bench.store.fail_for(Duration::from_secs(1000), script);
        let start = bench.now();
        let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
        let refused = kind(inside.run("k", 1).await);
        let took = start.until(bench.now());
        assert!(took <= seconds(2.75), "{script:?} took {took:?}");
        let expected = match script {
            Meets(Fault::Refuse) => ErrorKind::Invalid,
            Meets(Fault::Conflict) => ErrorKind::InProgress,
            _ => ErrorKind::Unavailable,
        };
        assert_eq!((refused, bench.runs()), (expected, 0), "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_claim_leaves_handler_half_the_time() {
    for script in
        [Meets(Fault::Throttle), Meets(Fault::Refuse), Meets(Fault::LoseRequest), Meets(Fault::Silence)]
    {
        let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
        bench.store.fail_for(Duration::from_secs(1000), script);
        let start = bench.now();
        let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
        let began =
            inside.with_handler("k", 1, async { Ok(format!("{:?}", start.until(bench.now()))) }).await;
        assert!(began.as_deref().is_ok_and(|began| began <= "1.7s"), "{script:?}: {began:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_handler_gets_one_settlement_attempt() {
    for (script, status) in [
        (Script::Pass, Status::Completed),
        (Meets(Fault::Throttle), Status::Started),
        (Meets(Fault::Silence), Status::Started),
    ] {
        let bench = Bench::new();
        let start = bench.now();
        let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
        let store = bench.store.clone();
        let handler = async move {
            tokio::time::sleep(seconds(2.8)).await;
            store.fail_for(Duration::from_secs(1000), script);
            Ok("late".to_owned())
        };
        assert_eq!(inside.with_handler("k", 1, handler).await.unwrap(), "late");
        assert_eq!(bench.record("k").status(), status, "{script:?}");
        assert!(start.until(bench.now()) <= seconds(2.95), "{script:?}");
    }
}

/// The process is frozen while its completion is in flight, and thaws after its deadline. The store never answers the
/// completion, whether it applied the completion or not. Another delivery runs before the process thaws.
#[tokio::test(start_paused = true)]
async fn thawed_process_returns_the_recorded_outcome() {
    for script in [Meets(Fault::Silence), Meets(Fault::SilenceAfter)] {
        let bench = Bench::new();
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(3.0)));
        let (store, frozen) = (bench.store.clone(), bench.clone());
        let handler = async move {
            store.script([script]);
            tokio::spawn(async move {
                tokio::time::sleep(seconds(0.1)).await;
                frozen.jump.fetch_add(60_000, Ordering::SeqCst);
                frozen.run("k", 1).await.unwrap()
            });
            Ok("own".to_owned())
        };
        let answer = inside.with_handler("k", 1, handler).await.unwrap();
        let expected = if script == Meets(Fault::Silence) { "run 1" } else { "own" };
        assert_eq!(answer, expected, "{script:?}");
        assert_eq!(bench.run("k", 1).await.unwrap(), expected, "{script:?}");
    }
}

/// The process is frozen in its handler, which returns as soon as the process thaws.
#[tokio::test(start_paused = true)]
async fn thawed_handler_settles_unless_taken_over() {
    // Under these settings, the key is claimable 150 ms after the deadline.
    let short = |builder: crate::Builder| {
        builder.settings(|s| {
            s.lease_grace = seconds(0.1);
            s.skew_margin = seconds(0.05);
        })
    };
    for (is_taken_over, frozen_for) in [(false, 60_000), (true, 60_000), (false, 3_200), (true, 3_200)] {
        let bench = if frozen_for < 60_000 { Bench::with(short) } else { Bench::new() };
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(3.0)));
        let frozen = bench.clone();
        let handler = async move {
            frozen.jump.fetch_add(frozen_for, Ordering::SeqCst);
            if is_taken_over {
                elsewhere(frozen.run("k", 1)).await.unwrap();
            }
            Ok("own".to_owned())
        };
        let answer = inside.with_handler("k", 1, handler).await.unwrap();
        assert_eq!(answer, if is_taken_over { "run 1" } else { "own" });
        assert_eq!(bench.record("k").status(), Status::Completed, "{is_taken_over}");
    }
}

/// The process is frozen while its completion is in flight. When the process thaws, the store doesn't answer.
#[tokio::test(start_paused = true)]
async fn thawed_process_retries_only_briefly() {
    let bench = Bench::new();
    let inside = bench.in_invocation(bench.now().saturating_add(seconds(3.0)));
    let (store, frozen, start) = (bench.store.clone(), bench.clone(), bench.now());
    let handler = async move {
        store.script([Meets(Fault::Silence)]);
        store.fail_after(seconds(0.2), Duration::from_secs(1000), Meets(Fault::Silence));
        tokio::spawn(async move {
            tokio::time::sleep(seconds(0.1)).await;
            frozen.jump.fetch_add(60_000, Ordering::SeqCst);
        });
        Ok("own".to_owned())
    };
    assert_eq!(inside.with_handler("k", 1, handler).await.unwrap(), "own");
    let took = start.until(bench.now()) - seconds(60.0);
    assert!(took <= seconds(2.0), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn long_chunk_outage_omits_the_response() {
    for (outage, is_kept) in [(0.5, true), (1.5, false)] {
        for script in [Meets(Fault::Throttle), Meets(Fault::LoseRequest)] {
            let bench = Bench::new();
            bench.store.limit_inline(1);
            let start = bench.now();
            let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
            let store = bench.store.clone();
            let handler = async move {
                store.fail_for(seconds(outage), script);
                Ok("a response".to_owned())
            };
            assert_eq!(inside.with_handler("k", 1, handler).await.unwrap(), "a response");
            let State::Completed(outcome) = bench.record("k").state else { panic!("not completed") };
            assert_eq!(matches!(outcome, Outcome::Retained(_)), is_kept, "{script:?} for {outage} s");
            assert!(start.until(bench.now()) <= seconds(2.75));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_chunk_write_gets_half_the_time() {
    let bench = Bench::new();
    bench.store.limit_inline(1);
    let start = bench.now();
    let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
    bench.store.script([Script::Pass, Meets(Fault::Silence)]);
    assert_eq!(inside.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "write chunks", "settle"]);
    assert_eq!(start.until(bench.now()), seconds(1.375));
    assert_eq!(bench.record("k").state, State::Completed(Outcome::Omitted));
}

#[tokio::test(start_paused = true)]
async fn unanswered_claim_is_released() {
    let bench = Bench::new();
    bench.store.script([Meets(Fault::LoseAnswer), Meets(Fault::Throttle)]);
    let Err(RunError::Idempotency(error)) = bench.run("k", 1).await else { panic!("not refused") };
    assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Unavailable, Some(Duration::from_secs(1))));
    assert_eq!(bench.store.take_calls(), ["claim", "read", "settle"]);
    assert_eq!(bench.record("k").status(), Status::Released);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1", "the next delivery doesn't wait for the lease");

    // The release fails too, so the key is blocked until the claim is stale.
    bench.store.script([Meets(Fault::LoseAnswer), Meets(Fault::Throttle), Meets(Fault::Throttle)]);
    let Err(RunError::Idempotency(error)) = bench.run("m", 1).await else { panic!("not refused") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    tokio::time::sleep(error.retry_after().unwrap() - Duration::from_millis(1)).await;
    assert_eq!(kind(bench.run("m", 1).await), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.run("m", 1).await.unwrap(), "run 2");
}

/// Runs a handler, and returns whether its claim reports an earlier attempt that ended without an answer.
async fn learns_of_interruption(bench: &Bench, key: &str, fails: bool) -> bool {
    let learned = std::sync::Arc::new(std::sync::Mutex::new(None));
    let shared = std::sync::Arc::clone(&learned);
    let handler = async move {
        *shared.lock().unwrap() = current().map(|claim| claim.is_takeover());
        if fails { Err(TestError) } else { Ok("done".to_owned()) }
    };
    let _ = bench.with_handler(key, 1, handler).await;
    let learned = learned.lock().unwrap().take();
    learned.expect("the handler didn't run")
}

#[tokio::test(start_paused = true)]
async fn later_attempts_learn_of_interrupted_attempts() {
    let bench = Bench::new();
    // The first run is killed. The next two runs fail and release the key.
    bench.abandon("k", 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    for fails in [true, true, false] {
        assert!(learns_of_interruption(&bench, "k", fails).await);
    }
    assert_eq!(bench.record("k").attempt, 4);
    // An attempt that panics counts as interrupted too.
    bench.panic("m", 1).await;
    for fails in [true, false] {
        assert!(learns_of_interruption(&bench, "m", fails).await);
    }
    // An attempt that returns an error doesn't count as interrupted: the error is its answer.
    for fails in [true, true, false] {
        assert!(!learns_of_interruption(&bench, "n", fails).await);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_step_releases_at_most_once_key() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let steps = bench.beside(|builder| builder);
    // Another delivery holds the step's claim, so the step is refused in both cases.
    steps.abandon("step", 1).await;
    for (passes_on, status) in [(true, Status::Released), (false, Status::Failed)] {
        let step = steps.clone();
        let key = if passes_on { "passed on" } else { "swallowed" };
        let operation = bench.operation();
        let outer = operation.run(Key::new(key).unwrap(), &1, || async move {
            match step.run("step", 1).await {
                Err(error) if passes_on => Err(Box::new(error)),
                Err(_) => Err(Box::new(RunError::Handler(TestError))),
                Ok(answer) => Ok(answer),
            }
        });
        assert!(outer.await.is_err());
        assert_eq!(bench.record(key).status(), status, "{key}");
    }
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(bench.run("passed on", 1).await.unwrap(), "run 1");
}

/// The middle step passes the inner step's refusal on.
#[tokio::test(start_paused = true)]
async fn refusal_through_middle_step_releases_outer_key() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let steps = bench.beside(|builder| builder);
    // Another delivery holds the inner step's claim.
    steps.abandon("inner", 1).await;
    let (operation, middle) = (bench.operation(), steps.operation());
    let outer = operation.run(Key::new("outer").unwrap(), &1, || async move {
        let inner = || async move { steps.run("inner", 1).await.map_err(Box::new) };
        middle.run(Key::new("middle").unwrap(), &1, inner).await.map_err(Box::new)
    });
    assert!(outer.await.is_err());
    assert_eq!(bench.record("outer").status(), Status::Released);
}

/// The middle step runs without protection, so the library doesn't record its failure.
#[tokio::test(start_paused = true)]
async fn refusal_through_unprotected_step_releases_outer_key() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let open = bench.beside(|builder| {
        builder.settings(|s| {
            s.fail_open = true;
            s.on_handler_error = Recording::Record;
        })
    });
    let steps = bench.beside(|builder| builder);
    let (operation, middle, store) = (bench.operation(), open.operation(), bench.store.clone());
    let outer = operation.run(Key::new("outer").unwrap(), &1, || async move {
        store.fail_for(Duration::from_secs(1000), Meets(Fault::Throttle));
        let inner = || async move { steps.run("inner", 1).await.map_err(Box::new) };
        let ended = middle.run(Key::new("middle").unwrap(), &1, inner).await.map_err(Box::new);
        store.fail_for(Duration::ZERO, Meets(Fault::Throttle));
        ended
    });
    assert!(outer.await.is_err());
    assert_eq!(bench.record("outer").status(), Status::Released);
}

/// The inner step is refused. The middle step keeps the refusal, for example in a log, and succeeds. The outer
/// operation fails for another reason.
#[tokio::test(start_paused = true)]
async fn refusals_below_a_successful_step_release_nothing() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let steps = bench.beside(|builder| builder);
    steps.abandon("inner", 1).await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (operation, middle, log) = (bench.operation(), steps.operation(), Arc::clone(&kept));
    let outer = operation.run(Key::new("outer").unwrap(), &1, || async move {
        let inner = || async move {
            let refusal = steps.run("inner", 1).await.unwrap_err();
            log.lock().unwrap().push(refusal);
            Ok::<_, TestError>("logged".to_owned())
        };
        middle.run(Key::new("middle").unwrap(), &1, inner).await.unwrap();
        Err::<String, _>(TestError)
    });
    assert!(outer.await.is_err());
    assert_eq!((kept.lock().unwrap().len(), bench.record("outer").status()), (1, Status::Failed));
}

#[tokio::test(start_paused = true)]
async fn at_most_once_claims_outlive_every_retention() {
    let bench =
        Bench::with(|builder| builder.execution(Execution::AtMostOnce).retention(Duration::from_secs(60)));
    bench.abandon("k", 1).await;
    assert_eq!(bench.record("k").expires_at, None);
    tokio::time::sleep(Duration::from_secs(400 * 86_400)).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::OutcomeUnknown);
    assert_eq!(bench.run("m", 1).await.unwrap(), "run 1");
    assert!(bench.record("m").expires_at.is_some());
}

#[tokio::test]
async fn at_most_once_refuses_unprotected_runs() {
    let builder = crate::Idempotency::builder(crate::store::memory::MemoryStore::new()).function("tests");
    let builder = builder.execution(Execution::AtMostOnce).settings(|s| s.fail_open = true);
    let error = builder.build().unwrap_err();
    assert!(error.to_string().contains("fail_open"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_before_the_deadline() {
    let bench = Bench::with(|builder| builder.settings(|s| s.wait_in_progress = Duration::from_secs(10)));
    bench.abandon("k", 1).await;
    bench.store.fail_after(seconds(0.2), Duration::from_secs(1000), Meets(Fault::Silence));
    let start = bench.now();
    let inside = bench.in_invocation(start.saturating_add(seconds(3.0)));
    assert_eq!(kind(inside.run("k", 1).await), ErrorKind::Unavailable);
    assert!(start.until(bench.now()) <= seconds(2.75));
}
