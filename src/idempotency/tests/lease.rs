//! Leases that are extended while the handler runs.

use std::sync::{Arc, Mutex};

use super::{
    bank::{Deposits, Short},
    *,
};
use crate::{Begun, Failure, staging};

const LENGTH: Duration = Duration::from_secs(30);

fn extending() -> Bench {
    Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(LENGTH)))
}

/// Records the time when it's dropped.
struct Dropped(Bench, Arc<Mutex<Option<Timestamp>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.1.lock().unwrap() = Some(self.0.now());
    }
}

/// Runs a handler that never ends. Returns the error's kind, the time until the cut-off, and the error's `retry_after`.
async fn cut_off(bench: &Bench, key: &str) -> (ErrorKind, Duration, Option<Duration>) {
    let (start, at) = (bench.now(), Arc::default());
    let dropped = Dropped(bench.clone(), Arc::clone(&at));
    let result = bench
        .with_handler(key, 1, async move {
            let _dropped = dropped;
            pending().await
        })
        .await;
    let Err(RunError::Idempotency(error)) = result else { panic!("{result:?}") };
    let at = at.lock().unwrap().unwrap();
    (error.kind(), start.until(at), error.retry_after())
}

async fn sleep(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn lease_is_extended_while_the_handler_runs() {
    let bench = extending();
    let other = bench.clone();
    let start = bench.now();
    let result = bench
        .with_handler("k", 1, async {
            let claim = current().unwrap();
            assert_eq!(claim.lease_until(), start.saturating_add(LENGTH));
            sleep(105).await;
            assert_eq!(claim.lease_until(), start.saturating_add(Duration::from_secs(130)));
            assert_eq!(other.record("k").lease_until(), Some(claim.lease_until()));
            // Without the extensions, the lease would have expired long ago.
            assert_eq!(kind(super::support::elsewhere(other.run("k", 1)).await), ErrorKind::InProgress);
            Ok("done".to_owned())
        })
        .await;
    assert_eq!(result.unwrap(), "done");
    let mut calls = vec!["claim"];
    calls.extend([&["extend"; 10][..], &["claim", "settle"]].concat());
    assert_eq!(bench.store.take_calls(), calls);
    assert_eq!(bench.run("k", 1).await.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn short_lease_frees_key_after_crash() {
    let bench = extending();
    bench.abandon("k", 1).await;
    sleep(32).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::InProgress);
    sleep(1).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
}

#[tokio::test(start_paused = true)]
async fn unanswered_extension_is_retried() {
    let bench = extending();
    bench.store.script([Script::Pass, Meets(Fault::Silence), Meets(Fault::Silence)]);
    let handler = async {
        sleep(40).await;
        Ok("done".to_owned())
    };
    assert_eq!(bench.with_handler("k", 1, handler).await.unwrap(), "done");
    assert_eq!(bench.record("k").attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn failed_extensions_cut_the_handler_off() {
    for script in
        [Meets(Fault::Throttle), Meets(Fault::LoseRequest), Meets(Fault::Refuse), Meets(Fault::Conflict)]
    {
        let bench = extending();
        bench.store.script([Script::Pass].into_iter().chain([script; 50]));
        // The library sends the first extension after a third of the lease, and retries it after every further twelfth
        // of the lease. It cuts the handler off one grace period before the lease expires. The caller may retry once
        // the skew margin has passed too.
        let expected = (ErrorKind::InProgress, Duration::from_secs(28), Some(Duration::from_millis(4001)));
        assert_eq!(cut_off(&bench, "k").await, expected, "{script:?}");
        let mut calls = vec!["claim"];
        calls.extend(["extend"; 8]);
        assert_eq!(bench.store.take_calls(), calls, "{script:?}");
        bench.store.end_script();
        assert_eq!(bench.record("k").status(), Status::Started, "the handler may have had an effect");
        sleep(5).await;
        assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_extension_is_retried() {
    for script in [Meets(Fault::Throttle), Meets(Fault::LoseAnswer), Meets(Fault::Conflict)] {
        let bench = extending();
        bench.store.script([Script::Pass, script, Script::Pass, script, script]);
        let result = bench.with_handler("k", 1, async {
            sleep(60).await;
            Ok("done".to_owned())
        });
        assert_eq!(result.await.unwrap(), "done", "{script:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_claim_cuts_the_handler_off() {
    type TakenOver = fn(&Bench);
    let ways: [TakenOver; 3] = [
        |bench| bench.store.remove_all(),
        |bench| {
            let record = Record { owner: Owner::from_bytes([9; 16]), ..bench.record("k") };
            bench.store.set("k", record);
        },
        |bench| {
            let record = Record { state: State::Released, ..bench.record("k") };
            bench.store.set("k", record);
        },
    ];
    for take_over in ways {
        let bench = extending();
        let other = bench.clone();
        let running = tokio::spawn(async move { cut_off(&bench, "k").await });
        sleep(12).await;
        take_over(&other);
        let (kind, after, _) = running.await.unwrap();
        assert_eq!((kind, after), (ErrorKind::InProgress, Duration::from_secs(20)));
    }
}

/// A handler is cut off when its at-most-once claim is lost. If the record then has another owner, for example because
/// an operator wrote it, the caller may retry. If the record is gone, the outcome is unknown.
#[tokio::test(start_paused = true)]
async fn replaced_at_most_once_claim_is_retryable() {
    let outcome = || Some(State::Completed(Outcome::Omitted));
    let claimed = || Some(State::Started { lease_until: Timestamp::from_secs(u64::MAX / 2000) });
    let cases = [outcome(), claimed(), None].into_iter().zip([
        ErrorKind::InProgress,
        ErrorKind::InProgress,
        ErrorKind::OutcomeUnknown,
    ]);
    for (state, expected) in cases {
        let bench = Bench::with(|builder| {
            builder.settings(|s| s.lease_extension = Some(LENGTH)).execution(Execution::AtMostOnce)
        });
        let other = bench.clone();
        let running = tokio::spawn(async move { cut_off(&bench, "k").await });
        sleep(12).await;
        if let Some(state) = state {
            let owner = Owner::from_bytes([9; 16]);
            other.store.set("k", Record { owner, state, ..other.record("k") });
        } else {
            other.store.remove_all();
        }
        let (kind, after, _) = running.await.unwrap();
        assert_eq!((kind, after), (expected, Duration::from_secs(20)));
    }
}

#[tokio::test(start_paused = true)]
async fn lease_never_outlasts_deadline_plus_grace() {
    let bench = extending();
    let start = bench.now();
    let deadline = start.saturating_add(Duration::from_secs(45));
    let (kind, after, retry_after) = cut_off(&bench.in_invocation(deadline), "k").await;
    assert_eq!((kind, after), (ErrorKind::InProgress, Duration::from_secs(45)));
    assert_eq!(retry_after, Some(Duration::from_millis(4001)));
    assert_eq!(bench.record("k").lease_until(), Some(start.saturating_add(Duration::from_secs(47))));
    assert_eq!(bench.store.take_calls(), ["claim", "extend", "extend"]);
    // With only 20 s left, the claim's lease already lasts until the deadline plus the grace. So it's never extended.
    let deadline = bench.now().saturating_add(Duration::from_secs(20));
    let (_, after, _) = cut_off(&bench.in_invocation(deadline), "m").await;
    assert_eq!((after, bench.store.take_calls()), (Duration::from_secs(20), vec!["claim"]));
}

/// Without the cut-off, a result that comes after the deadline is recorded. The setting is for handlers whose work runs
/// in another process, where the library can't stop it.
#[tokio::test(start_paused = true)]
async fn late_result_is_recorded_without_cut_off() {
    for (seconds, millis) in [(10, 0), (10, 200), (11, 500), (40, 0)] {
        let bench = Bench::with(|builder| builder.settings(|s| s.cut_off = false));
        let deadline = bench.now().saturating_add(Duration::from_secs(10));
        let invoked = bench.in_invocation(deadline);
        let result = invoked.with_handler("k", 1, async {
            tokio::time::sleep(Duration::from_millis(seconds * 1000 + millis)).await;
            Ok("late".to_owned())
        });
        assert_eq!(result.await.unwrap(), "late");
        assert_eq!(bench.run("k", 1).await.unwrap(), "late", "{seconds} {millis}");
    }
}

#[tokio::test(start_paused = true)]
async fn successor_fences_a_late_result() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.lease_extension = Some(LENGTH);
            s.cut_off = false;
        })
    });
    let other = bench.clone();
    let handler = async {
        sleep(12).await;
        other.store.remove_all();
        assert_eq!(super::support::elsewhere(other.run("k", 1)).await.unwrap(), "run 1");
        sleep(100).await;
        Ok("late".to_owned())
    };
    let result = bench.with_handler("k", 1, handler).await;
    assert_eq!(result.unwrap(), "run 1", "the successor's outcome");
}

#[tokio::test(start_paused = true)]
async fn blocking_handler_is_cut_at_next_poll() {
    let bench = extending();
    let (blocked, went_on) = (bench.clone(), Arc::new(Mutex::new(false)));
    let sets_went_on = went_on.clone();
    let result = bench
        .with_handler("k", 1, async move {
            sleep(5).await;
            // Simulates a handler that blocks its thread for 31 s: neither a timer nor the extension runs.
            blocked.jump.store(31_000, Ordering::SeqCst);
            tokio::task::yield_now().await;
            *sets_went_on.lock().unwrap() = true;
            Ok(String::new())
        })
        .await;
    assert_eq!(kind(result), ErrorKind::InProgress);
    assert!(!*went_on.lock().unwrap());
    assert_eq!(bench.store.take_calls(), ["claim"]);
    // This handler blocks for less than its lease. The lease is extended late, and the handler continues.
    let bench = extending();
    let blocked = bench.clone();
    let result = bench.with_handler("k", 1, async move {
        sleep(5).await;
        blocked.jump.store(12_000, Ordering::SeqCst);
        sleep(20).await;
        Ok("done".to_owned())
    });
    assert_eq!(result.await.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn transaction_uses_the_extended_lease() {
    let bench = extending();
    let mut script = vec![Script::Pass; 10];
    script.extend([Meets(Fault::Conflict); 3]);
    bench.store.script(script);
    let result = bench.with_handler("k", 1, async {
        sleep(95).await;
        staging().unwrap().add(Deposits::of("till", 1)).unwrap();
        Ok("paid".to_owned())
    });
    assert_eq!(result.await.unwrap(), "paid");
    assert_eq!(bench.store.bank.balance("till"), 1);
}

#[tokio::test(start_paused = true)]
async fn decline_closure_uses_the_extended_lease() {
    let bench = extending();
    let result = bench.with_handler("k", 1, async {
        sleep(95).await;
        let staging = staging().unwrap();
        staging.add(Deposits::of("till", 1).if_balance_is_at_least(1)).unwrap();
        staging.on_declined(|_: &Short| -> Result<String, TestError> { Ok("sold out".to_owned()) });
        Ok("paid".to_owned())
    });
    assert_eq!(result.await.unwrap(), "sold out");
    assert_eq!(bench.record("k").status(), Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn running_extension_does_not_delay_settling() {
    for (millis, extension) in [
        // The handler returns at the moment when the first extension is due.
        (10_000, Script::Pass),
        // It returns while the extension hangs.
        (10_500, Meets(Fault::Silence)),
        (10_500, Meets(Fault::SilenceAfter)),
    ] {
        let bench = extending();
        let start = bench.now();
        bench.store.script([Script::Pass, extension]);
        let result = bench.with_handler("k", 1, async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok("done".to_owned())
        });
        assert_eq!(result.await.unwrap(), "done", "{extension:?}");
        assert_eq!(bench.record("k").status(), Status::Completed, "{extension:?}");
        assert_eq!(start.until(bench.now()), Duration::from_millis(millis), "{extension:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn manual_extension_never_shortens_the_lease() {
    let bench = Bench::new();
    let begun = bench.operation().begin(Key::new("k").unwrap(), Fingerprint::of(&1).unwrap()).await.unwrap();
    let Begun::Claimed(mut claim) = begun else { panic!("{begun:?}") };
    let start = bench.now();
    bench.store.take_calls();
    claim.extend(Duration::from_secs(60)).await.unwrap();
    assert!(bench.store.take_calls().is_empty(), "the lease is already that long");
    claim.extend(Duration::from_secs(90)).await.unwrap();
    assert_eq!(claim.handle().lease_until(), start.saturating_add(Duration::from_secs(90)));
    bench.store.script([Meets(Fault::LoseRequest)]);
    let error = claim.extend(Duration::from_secs(100)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    bench.store.remove_all();
    assert_eq!(claim.extend(Duration::from_secs(100)).await.unwrap_err().kind(), ErrorKind::Fenced);
    drop(claim);
}

/// Runs a handler whose work another process did, and that process died.
async fn die(bench: &Bench) {
    let handler = async || Err::<String, _>(Failure::interrupted("killed"));
    let died = bench.operation().run(Key::new("k").unwrap(), &1, handler).await;
    assert!(matches!(died, Err(RunError::Handler(_))), "{died:?}");
}

#[tokio::test(start_paused = true)]
async fn dead_handlers_keep_keys_only_briefly() {
    for bench in [Bench::new(), extending()] {
        let deadline = bench.now().saturating_add(Duration::from_secs(900));
        let died_at = bench.now();
        let events = bench.recorded(die(&bench.in_invocation(deadline))).await;
        assert!(events.iter().any(|event| event.contains(r#"event="interrupted""#)), "{events:?}");
        let lease_until = bench.record("k").lease_until().unwrap();
        assert_eq!(died_at.until(lease_until), Duration::from_secs(10));
        assert_eq!(kind(bench.run("k", 1).await), ErrorKind::InProgress);
        sleep(13).await;
        let takes_over = async {
            let claim = current().unwrap();
            assert_eq!((claim.is_takeover(), claim.attempt()), (true, 2));
            Ok("done".to_owned())
        };
        assert_eq!(bench.with_handler("k", 1, takes_over).await.unwrap(), "done");
    }
}

#[tokio::test(start_paused = true)]
async fn dead_handlers_never_run_twice_under_at_most_once() {
    let bench = Bench::with(|builder| builder.execution(Execution::AtMostOnce));
    let deadline = bench.now().saturating_add(Duration::from_secs(100));
    die(&bench.in_invocation(deadline)).await;
    let record = bench.record("k");
    assert_eq!(record.lease_until(), Some(deadline.saturating_add(Duration::from_secs(2))));
    assert_eq!((record.status(), record.expires_at), (Status::Started, None));
    sleep(120).await;
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::OutcomeUnknown);
    assert_eq!(bench.runs(), 0);
}
