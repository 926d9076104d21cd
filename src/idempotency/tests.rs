//! Operations on a memory store that fails on command, under tokio's paused clock.

#![expect(clippy::large_futures, reason = "the tests nest operations")]
#![expect(clippy::disallowed_methods, reason = "the tests control tokio's paused clock")]

mod bank;
mod batches;
mod cache;
mod clocks;
mod fail_open;
mod fencing;
mod lease;
mod metrics;
mod modes;
mod operator;
mod optimistic;
mod outages;
mod reconcile;
mod requests;
mod results;
mod settings;
mod steps;
mod stored;
mod support;
mod switch;
mod transactions;
mod wait;

use std::{future::pending, sync::atomic::Ordering, time::Duration};

use support::{
    Bench,
    Script::{self, Meets},
    TestError,
};

use crate::{
    ErrorKind, Key, RunError, current,
    fingerprint::Fingerprint,
    invocation::Invocation,
    outcome::{Outcome, Place, StoredResponse},
    record::{Owner, Record, State, Status},
    settings::{Execution, Recording},
    time::Timestamp,
};
use lambda_idempotency_testing::Fault;

fn kind<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RunError<E>>) -> ErrorKind {
    match result {
        Err(RunError::Idempotency(error)) => error.kind(),
        other => panic!("expected an error of the library, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_replayed_with_one_request() {
    let bench = Bench::new();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "settle"]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim"]);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn takeover_costs_two_requests_plus_completion() {
    let bench = Bench::new();
    bench.abandon("k", 1).await;
    bench.store.take_calls();
    tokio::time::sleep(Duration::from_secs(63)).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "take over", "settle"]);
}

#[tokio::test(start_paused = true)]
async fn different_payload_is_a_mismatch() {
    let bench = Bench::new();
    bench.run("k", 1).await.unwrap();
    assert_eq!(kind(bench.run("k", 2).await), ErrorKind::Mismatch);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn handler_error_releases_the_key() {
    let bench = Bench::new();
    assert!(matches!(bench.fail("k", 1).await, Err(RunError::Handler(TestError))));
    assert_eq!(bench.record("k").status(), Status::Released);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.record("k").attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn recorded_error_is_replayed() {
    for bench in [
        Bench::with(|builder| builder.settings(|s| s.on_handler_error = Recording::Record)),
        Bench::with(|builder| builder.execution(Execution::AtMostOnce)),
    ] {
        assert!(bench.fail("k", 1).await.is_err());
        let Err(RunError::Recorded(failure)) = bench.run("k", 1).await else { panic!("not replayed") };
        assert_eq!(failure.error_message, "the test's own error");
        assert_eq!(bench.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn panic_releases_the_key_and_propagates() {
    let bench = Bench::new();
    let panic = bench.panic("k", 1).await;
    assert_eq!(*panic.downcast::<&str>().unwrap(), "the handler's own panic");
    assert_eq!(bench.record("k").status(), Status::Released);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn at_most_once_records_a_panic() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    bench.panic("k", 1).await;
    assert!(matches!(bench.run("k", 1).await, Err(RunError::Recorded(_))));
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn at_most_once_never_reruns_stale_claims() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    bench.abandon("k", 1).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::OutcomeUnknown);
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn claim_with_lost_response_runs_once() {
    let bench = Bench::new();
    bench.store.script([Meets(Fault::LoseAnswer)]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "read", "settle"]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn lost_claim_request_is_resent() {
    let bench = Bench::new();
    bench.store.script([Meets(Fault::LoseRequest)]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.store.take_calls(), ["claim", "read", "claim", "settle"]);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn completion_survives_a_lost_message() {
    for lost in [Meets(Fault::LoseAnswer), Meets(Fault::LoseRequest)] {
        let bench = Bench::new();
        bench.store.script([Script::Pass, lost]);
        assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
        assert_eq!(bench.record("k").status(), Status::Completed);
        assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn takeover_with_lost_message_runs_once() {
    for lost in [Meets(Fault::LoseAnswer), Meets(Fault::LoseRequest)] {
        let bench = Bench::new();
        bench.abandon("k", 1).await;
        tokio::time::sleep(Duration::from_secs(63)).await;
        bench.store.script([Script::Pass, lost]);
        assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
        assert_eq!((bench.runs(), bench.record("k").attempt), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn unrecorded_response_still_reaches_the_caller() {
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
    bench.store.script([Script::Pass, Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1", "an error would cause a second run");
    assert_eq!(bench.record("k").status(), Status::Started);
}

#[tokio::test(start_paused = true)]
async fn nothing_runs_while_the_store_is_down() {
    let bench = Bench::new();
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Unavailable);
    bench.store.script([Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Unavailable);
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn unprotected_runs_are_opt_in() {
    let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    // `fail_open` applies only if the store fails. A mismatch is still refused.
    bench.run("m", 1).await.unwrap();
    assert_eq!(kind(bench.run("m", 2).await), ErrorKind::Mismatch);
    assert_eq!(bench.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn rejected_request_reports_the_reason() {
    let bench = Bench::new();
    bench.store.script([Meets(Fault::Refuse)]);
    let Err(RunError::Idempotency(error)) = bench.run("k", 1).await else { panic!("not refused") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the credentials have expired"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn lease_bounds_handlers_without_a_deadline() {
    let bench = Bench::new();
    let before = bench.now();
    let result = bench.hang("k", 1).await;
    assert_eq!(kind(result), ErrorKind::InProgress);
    assert_eq!(before.until(bench.now()), Duration::from_secs(58));
    assert_eq!(bench.record("k").status(), Status::Started, "the handler's effect may still happen");
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn deadline_bounds_lease_and_handler() {
    let bench = Bench::new();
    let deadline = bench.now().saturating_add(Duration::from_secs(10));
    assert_eq!(kind(bench.in_invocation(deadline).hang("k", 1).await), ErrorKind::InProgress);
    assert_eq!(
        bench.now(),
        deadline,
        "the handler is cut off at the deadline, even if the process could run longer"
    );
    assert_eq!(bench.record("k").lease_until(), Some(deadline.saturating_add(Duration::from_secs(2))));
}

#[tokio::test(start_paused = true)]
async fn operation_inside_itself_is_refused_immediately() {
    let bench = Bench::with(|builder| builder.settings(|s| s.wait_in_progress = Duration::from_secs(60)));
    for is_optimistic in [false, true] {
        let bench = if is_optimistic { bench.optimistic(true) } else { bench.clone() };
        let (inner, start) = (bench.clone(), bench.now());
        let outer = bench.with_handler("k", 1, async {
            let other = inner.run("another", 1).await.unwrap();
            let Err(RunError::Idempotency(error)) = inner.run("k", 1).await else { panic!("not refused") };
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("already runs"), "{error}");
            Ok(other)
        });
        assert!(outer.await.unwrap().starts_with("run"));
        assert_eq!(bench.now(), start, "no wait");
        bench.store.remove_all();
    }
    // The second of two runs in sequence is a replay.
    let outer = bench.with_handler("m", 1, async {
        assert_eq!(bench.run("twice", 1).await.unwrap(), bench.run("twice", 1).await.unwrap());
        Ok("done".to_owned())
    });
    assert_eq!(outer.await.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn spawned_task_can_keep_the_deadline() {
    let bench = Bench::new();
    let deadline = bench.now().saturating_add(Duration::from_secs(10));
    let (inner, outside) = (bench.clone(), bench.in_invocation(deadline));
    let outer = outside.with_handler("k", 1, async move {
        let invocation = Invocation::current().unwrap();
        let step = inner.within(invocation);
        tokio::spawn(async move { step.abandon("step", 1).await }).await.unwrap();
        Ok("done".to_owned())
    });
    assert_eq!(outer.await.unwrap(), "done");
    assert_eq!(bench.record("step").lease_until(), Some(deadline.saturating_add(Duration::from_secs(2))));
}

#[tokio::test(start_paused = true)]
async fn clock_set_back_does_not_prolong_handlers() {
    let bench = Bench::new();
    bench.jump.store(120_000, Ordering::SeqCst);
    let (began, jump) = (tokio::time::Instant::now(), bench.jump.clone());
    let deadline = bench.now().saturating_add(Duration::from_secs(10));
    let handler = async move {
        jump.store(0, Ordering::SeqCst);
        pending().await
    };
    assert_eq!(
        kind(bench.in_invocation(deadline).with_handler("k", 1, handler).await),
        ErrorKind::InProgress
    );
    assert_eq!(began.elapsed(), Duration::from_secs(10), "cut off by the timer");
}

#[tokio::test(start_paused = true)]
async fn no_claim_is_sent_after_the_deadline() {
    let bench = Bench::new();
    let inside = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(kind(inside.run("k", 1).await), ErrorKind::Unavailable);
    assert!(bench.store.take_calls().is_empty(), "no claim without time to run");
}

#[tokio::test(start_paused = true)]
async fn clock_is_checked_before_each_poll() {
    // The timer doesn't count the time that a sandbox is frozen; the clock does.
    let bench = Bench::new();
    let jump = bench.jump.clone();
    let result = bench
        .with_handler("k", 1, async move {
            jump.store(59_000, Ordering::SeqCst);
            tokio::task::yield_now().await;
            unreachable!("polled again after its deadline")
        })
        .await;
    assert_eq!(kind(result), ErrorKind::InProgress);
}

#[tokio::test(start_paused = true)]
async fn freeze_before_handler_start_releases_the_key() {
    let known = Duration::from_secs(10);
    // The freeze of 9.8 s ends 200 ms before the known deadline, which is inside the answer's reserve.
    for (deadline, freeze, least) in [(None, 59_000, 2), (Some(known), 59_000, 2), (Some(known), 9_800, 1)] {
        let mut released = 0;
        for reads in 0..10 {
            let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
            let inside = match deadline {
                Some(left) => bench.in_invocation(bench.now().saturating_add(left)),
                None => bench.clone(),
            };
            bench.freeze_after(reads, freeze);
            let result = inside.run("k", 1).await;
            let calls = bench.store.take_calls();
            let what = format!("frozen for {freeze} ms after {reads} reads of the clock");
            if bench.runs() == 1 {
                assert_eq!(result.unwrap(), "run 1", "{what}");
                assert_eq!(bench.record("k").status(), Status::Completed, "{what}");
                continue;
            }
            assert_eq!(kind(result), ErrorKind::Unavailable, "nothing ran; {what}");
            if !calls.is_empty() {
                released += 1;
                let expected = (vec!["claim", "settle"], Status::Released);
                assert_eq!((calls, bench.record("k").status()), expected, "{what}");
            }
            assert_eq!(bench.run("k", 1).await.unwrap(), "run 1", "the next delivery doesn't wait; {what}");
        }
        assert!(released >= least, "only {released} of the freezes of {freeze} ms led to a release");
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_response_is_not_retained() {
    let bench = Bench::with(|builder| builder.settings(|s| s.max_response = 3));
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::NotRetained);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn response_at_the_limit_is_retained() {
    let bench = Bench::with(|builder| builder.settings(|s| s.max_response = r#""run 1""#.len()));
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn large_response_is_stored_in_chunks() {
    for (limit, calls) in [(7, vec!["claim", "settle"]), (6, vec!["claim", "write chunks", "settle"])] {
        let bench = Bench::new();
        bench.store.limit_inline(limit);
        assert_eq!(bench.run("k", 1).await.unwrap().len(), 5, "5 bytes, or 7 in JSON");
        assert_eq!(bench.store.take_calls(), calls, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn damaged_response_fails_without_a_rerun() {
    let bench = Bench::new();
    bench.run("k", 1).await.unwrap();
    let mut record = bench.record("k");
    let State::Completed(Outcome::Retained(response)) = &mut record.state else { panic!("not completed") };
    response.sha256[0] ^= 1;
    bench.store.set("k", record);
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Corrupt);
    bench.store.script([Meets(Fault::Unreadable)]);
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Corrupt);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn error_of_wrongly_typed_replay_hides_response() {
    let bench = Bench::new();
    bench.run("k", 1).await.unwrap();
    let result: Result<u64, RunError<TestError>> =
        bench.operation().run(Key::new("k").unwrap(), &1, || async { panic!("the handler ran") }).await;
    let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!format!("{error:?}").contains("run 1"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_future_settles_nothing_and_warns_once() {
    let bench = Bench::new();
    let events = bench.recorded(bench.abandon("k", 1)).await;
    assert_eq!(bench.record("k").status(), Status::Started);
    let warnings: Vec<_> = events.iter().filter(|event| event.contains("abandoned")).collect();
    assert_eq!(warnings.len(), 1, "{events:?}");
    let lease_until = bench.record("k").lease_until().unwrap();
    let frees_at = bench.idempotency.driver().rules().claimable_at(lease_until);
    assert!(warnings[0].contains(&format!("frees_at_ms={}", frees_at.as_millis())), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn dropped_at_most_once_run_needs_operator() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let events = bench.recorded(bench.abandon("k", 1)).await;
    let warning = events.iter().find(|event| event.contains("abandoned")).unwrap();
    assert!(!warning.contains("frees") && warning.contains("idempotency inspect"), "{warning}");
}

#[tokio::test(start_paused = true)]
async fn log_events_never_show_secrets() {
    let bench = Bench::new();
    let events = bench
        .recorded(async {
            bench.run("secret-key", "secret-payload").await.unwrap();
            bench.run("secret-key", "secret-payload").await.unwrap();
            let _ = bench.run("secret-key", "other-payload").await;
            bench.store.script([Script::Pass, Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
            let _ = bench.run("secret-two", "secret-payload").await;
            let _ = bench.fail("secret-three", "secret-payload").await;
            bench.panic("secret-four", "secret-payload").await;
        })
        .await;
    assert!(events.len() > 5, "{events:?}");
    for event in events {
        assert!(!event.contains("secret") && !event.contains("run 1"), "{event}");
    }
}

#[tokio::test(start_paused = true)]
async fn nested_operations_have_their_own_claims() {
    let bench = Bench::new();
    assert!(current().is_none());
    let inner = bench.clone();
    bench
        .with_handler("k", 1, async move {
            let outer = current().unwrap();
            assert_eq!((outer.attempt(), outer.is_takeover()), (1, false));
            assert_eq!(Some(outer.lease_until()), inner.record("k").lease_until());
            let step = inner.idempotency.operation("inner").unwrap();
            let nested = step
                .run(Key::new("k").unwrap(), &1, || async {
                    Ok::<_, TestError>(current().unwrap().key().as_str().to_owned())
                })
                .await
                .unwrap();
            assert_ne!(nested, outer.key().as_str());
            assert!(nested.starts_with("tests/run:inner#"), "{nested}");
            assert_eq!(current().unwrap().key(), outer.key(), "the outer claim is current again");
            Ok(String::new())
        })
        .await
        .unwrap();
    assert!(current().is_none());
}

#[tokio::test(start_paused = true)]
async fn derived_key_survives_a_takeover() {
    let bench = Bench::new();
    let report = || async {
        let claim = current().unwrap();
        assert_ne!(claim.derive_key("charge"), claim.derive_key("refund"));
        let (key, attempt) = (claim.derive_key("charge"), claim.attempt());
        Ok(format!("{key} {} {} {attempt}", claim.is_takeover(), claim.generation()))
    };
    let first = bench.abandon_with("k", 1, report()).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    let second = bench.with_handler("k", 1, report()).await.unwrap();
    let (first, second): (Vec<_>, Vec<_>) = (first.split(' ').collect(), second.split(' ').collect());
    assert_eq!(first[0], second[0]);
    assert_eq!((first[1], second[1]), ("false", "true"));
    assert_eq!((first[3], second[3]), ("1", "2"));
    assert!(first[2].parse::<u64>().unwrap() < second[2].parse::<u64>().unwrap());
}

#[tokio::test(start_paused = true)]
async fn nested_operation_inherits_the_deadline() {
    let bench = Bench::new();
    let deadline = bench.now().saturating_add(Duration::from_secs(10));
    let inner = bench.clone();
    bench
        .in_invocation(deadline)
        .with_handler("outer", 1, async move {
            inner.abandon("inner", 1).await;
            Ok(String::new())
        })
        .await
        .unwrap();
    assert_eq!(bench.record("inner").lease_until(), Some(deadline.saturating_add(Duration::from_secs(2))));
}

#[tokio::test(start_paused = true)]
async fn retry_after_ends_when_key_is_claimable() {
    let bench = Bench::new();
    bench.abandon("k", 1).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let Err(RunError::Idempotency(error)) = bench.run("k", 1).await else { panic!("not refused") };
    // The rest of the lease, the skew margin, and one millisecond.
    assert_eq!(error.retry_after(), Some(Duration::from_millis(42_001)));
    tokio::time::sleep(Duration::from_millis(42_000)).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::InProgress);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn concurrent_deliveries_run_once() {
    let bench = Bench::new();
    let all = (0..64).map(|_| {
        let bench = bench.clone();
        tokio::spawn(async move { bench.run("k", 1).await.is_ok() })
    });
    let mut answered = 0;
    for task in all.collect::<Vec<_>>() {
        answered += usize::from(task.await.unwrap());
    }
    assert_eq!(bench.runs(), 1);
    assert!(answered >= 1);
}

#[test]
fn invalid_settings_fail_the_build() {
    use crate::{Idempotency, store::memory::MemoryStore};
    let builder = || Idempotency::builder(MemoryStore::new());
    for (built, expected) in [
        (builder().function("").build(), "empty"),
        (builder().function("f").operation("").build(), "operation"),
        (builder().function("f").operation("a/b").build(), "'/'"),
        (builder().function("f").retention(Duration::ZERO).build(), "retention"),
        (builder().function("f").retention(Duration::MAX).build(), "retention"),
        (
            builder().function("f").settings(|s| s.skew_margin = Duration::from_secs(3601)).build(),
            "skew_margin",
        ),
        (builder().function("f").settings(|s| s.lease_grace = Duration::MAX).build(), "lease_grace"),
        (
            builder().function("f").settings(|s| s.lease_fallback = Duration::from_secs(86_401)).build(),
            "lease_fallback",
        ),
        (
            builder().function("f").settings(|s| s.lease_extension = Some(Duration::MAX)).build(),
            "lease_extension",
        ),
        (builder().build(), "AWS_LAMBDA_FUNCTION_NAME"),
    ] {
        let error = built.err().unwrap_or_else(|| panic!("built, without an error about {expected}"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn function_name_comes_from_the_environment() {
    use crate::{Idempotency, store::memory::MemoryStore};
    let build = |variables: &'static [(&str, &str)]| {
        let builder = Idempotency::builder(MemoryStore::new()).retention(Duration::from_secs(7));
        builder.build_in(move |name| {
            variables.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned())
        })
    };
    const FUNCTION: (&str, &str) = ("AWS_LAMBDA_FUNCTION_NAME", "payments");
    let lambda = build(&[FUNCTION]).unwrap();
    assert_eq!(lambda.settings().retention, Duration::from_secs(7));
    for without in [&[][..], &[("AWS_LAMBDA_FUNCTION_NAME", "")]] {
        assert_eq!(build(without).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn futures_and_handles_are_send() {
    fn is_send<T: Send>(_: T) {}
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    is_shared::<crate::Idempotency>();
    is_shared::<crate::ClaimHandle>();
    let bench = Bench::new();
    let key = Key::new("k").unwrap();
    is_send(bench.operation().run(key, &1, pending::<Result<String, TestError>>));
    is_send(bench.idempotency.for_invocation(Invocation::unknown()));
    let _: Timestamp = bench.now();
    let _: fn(&Record) -> Status = Record::status;
}
