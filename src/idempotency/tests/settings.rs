//! Settings and errors of one operation, and the details of a replay.

use super::*;
use crate::{Failure, Operation};

/// Runs `operation` under `key` with a handler that fails with `failure`.
async fn fail(operation: &Operation, key: &str, failure: fn() -> Failure) -> Result<(), RunError<Failure>> {
    operation.run(Key::new(key).unwrap(), &1, || async { Err(failure()) }).await
}

#[tokio::test(start_paused = true)]
async fn operations_have_their_own_settings() {
    let bench = Bench::new();
    let hour = Duration::from_secs(3600);
    let charge = bench.operation();
    let short = charge.with_settings(|settings| settings.retention = hour).unwrap();
    let run = async |operation: &Operation, key: &str| {
        let result = operation.run(Key::new(key).unwrap(), &1, || async { Ok::<_, TestError>(()) });
        result.await.unwrap();
        bench.record(key).expires_at.unwrap()
    };
    let now = bench.now();
    assert_eq!(run(&short, "a").await, now.saturating_add(hour).rounded_up_to_second());
    assert_eq!(run(&charge, "b").await, now.saturating_add(24 * hour).rounded_up_to_second());
}

/// A step with its own at-least-once settings runs again after an error.
#[tokio::test(start_paused = true)]
async fn at_most_once_function_can_retry_steps() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let step =
        bench.operation().with_settings(|settings| settings.execution = Execution::AtLeastOnce).unwrap();
    for (operation, key, again) in [(&step, "a", true), (&bench.operation(), "b", false)] {
        let mut runs = 0;
        for _ in 0..2 {
            let failing = operation.run(Key::new(key).unwrap(), &1, || {
                runs += 1;
                async { Err::<(), _>(TestError) }
            });
            assert!(failing.await.is_err());
        }
        assert_eq!(runs == 2, again, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn contradictory_settings_are_refused() {
    let bench = Bench::new();
    let idempotency = &bench.idempotency;
    assert!(idempotency.with_settings(|settings| settings.retention = Duration::ZERO).is_err());
    assert!(
        idempotency.with_settings(|settings| settings.local_cache = 1 << 20).is_err(),
        "the builder set up no cache"
    );
    let at_most_once = |settings: &mut crate::settings::Settings| settings.execution = Execution::AtMostOnce;
    assert!(idempotency.with_settings(at_most_once).is_ok());
    assert!(idempotency.optimistic().unwrap().with_settings(at_most_once).is_err());
    let waiting = idempotency.with_settings(|settings| settings.wait_in_progress = Duration::ZERO);
    assert_eq!(waiting.unwrap().settings().wait_in_progress, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn operation_can_opt_out_of_cache() {
    let bench = Bench::with(|builder| builder.settings(|s| s.local_cache = 1 << 20));
    let uncached = bench.operation().with_settings(|settings| settings.local_cache = 0).unwrap();
    for (operation, key, requests) in [(bench.operation(), "a", 2), (uncached, "b", 3)] {
        bench.store.take_calls();
        for _ in 0..2 {
            operation.run(Key::new(key).unwrap(), &1, || async { Ok::<_, TestError>(()) }).await.unwrap();
        }
        assert_eq!(bench.store.take_calls().len(), requests, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_decides_whether_it_is_recorded() {
    let final_one = || Failure::permanent("Final", "no");
    let transient = || Failure::transient("down");
    for (policy, failure, is_recorded) in [
        (Recording::Release, final_one as fn() -> Failure, true),
        (Recording::Record, final_one, true),
        (Recording::Release, transient, false),
        (Recording::Record, transient, false),
        (Recording::Release, || "as the settings say".into(), false),
        (Recording::Record, || "as the settings say".into(), true),
    ] {
        let bench = Bench::with(|builder| builder.settings(|s| s.on_handler_error = policy));
        let operation = bench.operation();
        let error = fail(&operation, "k", failure).await.unwrap_err();
        assert_eq!(matches!(error, RunError::Recorded(_)), is_recorded, "{policy:?}: {error:?}");
        let status = if is_recorded { Status::Failed } else { Status::Released };
        assert_eq!(bench.record("k").status(), status, "{policy:?}: {error:?}");
    }
    // At-most-once execution records even a transient failure, since nothing may run again.
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    assert!(fail(&bench.operation(), "k", transient).await.is_err());
    assert_eq!(bench.record("k").status(), Status::Failed);
}

#[tokio::test(start_paused = true)]
async fn replay_reports_the_recorded_attempt() {
    let bench = Bench::new();
    let operation = bench.operation();
    let ran = async || {
        let work = || async { Ok::<_, TestError>("done".to_owned()) };
        operation.run_with_replay(Key::new("k").unwrap(), &1, work).await.unwrap()
    };
    bench.abandon("k", 1).await;
    tokio::time::advance(Duration::from_secs(120)).await;
    let claimed_at = bench.now();
    assert_eq!(ran().await, ("done".to_owned(), None));
    let (result, replay) = ran().await;
    let replay = replay.unwrap();
    assert_eq!((result.as_str(), replay.attempt(), replay.claimed_at()), ("done", 2, claimed_at));
    assert_eq!(replay.expires_at(), bench.record("k").expires_at);
}
