//! Wall clocks that are set back or stand still: the monotonic clock ends every time limit too.

use std::{
    future::Future,
    sync::{Arc, Mutex},
};

use super::{bank::Deposits, support::elsewhere, *};
use crate::{
    Idempotency,
    future::BoxFuture,
    staging,
    time::{Clock, system_clock},
};

const STEPS: [u64; 3] = [30, 60, 3600];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns how much of tokio's time `future` takes, which no step of the wall clock changes.
async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let began = tokio::time::Instant::now();
    (future.await, began.elapsed())
}

/// Sets the bench's clock back after a while. Poll the result beside the code under test.
async fn set_back_after(bench: Bench, after: Duration, step: Duration) {
    tokio::time::sleep(after).await;
    bench.set_back(step);
    pending::<()>().await;
}

/// Runs `future` while the bench's clock is set back. Returns its result and the time that it took.
async fn stepped<T>(
    bench: &Bench,
    after: Duration,
    step: Duration,
    future: impl Future<Output = T>,
) -> (T, Duration) {
    tokio::select! {
        // The code under test isn't polled between the step and its own next timer.
        biased;
        () = set_back_after(bench.clone(), after, step) => unreachable!("it never ends"),
        done = timed(future) => done,
    }
}

#[tokio::test(start_paused = true)]
async fn set_back_clock_never_admits_a_second_handler() {
    struct Ends(Arc<Mutex<Option<tokio::time::Instant>>>);
    impl Drop for Ends {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(tokio::time::Instant::now());
        }
    }
    for (step, after) in STEPS.into_iter().flat_map(|step| [1, 4, 5, 8].map(|after| (step, after))) {
        for fails_later in [false, true] {
            let bench =
                Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(seconds(9)))).ahead();
            let other = bench.apart(|builder| builder.settings(|s| s.lease_extension = Some(seconds(9))));
            let ended = Arc::default();
            let ends = Ends(Arc::clone(&ended));
            let store = bench.store.clone();
            let handler = async move {
                let _ends = ends;
                if fails_later {
                    store.fail_after(seconds(after), seconds(60), Meets(Fault::Throttle));
                }
                tokio::time::sleep(seconds(60)).await;
                Ok("first".to_owned())
            };
            let running = {
                let bench = bench.clone();
                tokio::spawn(async move {
                    stepped(&bench, seconds(after), seconds(step), bench.with_handler("k", 1, handler)).await
                })
            };
            let began = Arc::new(Mutex::new(None));
            for _ in 0..300 {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let began = Arc::clone(&began);
                let second = async move {
                    *began.lock().unwrap() = Some(tokio::time::Instant::now());
                    Ok("second".to_owned())
                };
                if elsewhere(other.with_handler("k", 1, second)).await.is_ok() {
                    break;
                }
            }
            running.await.unwrap().0.ok();
            let (ended, began): (Option<_>, Option<_>) = (*ended.lock().unwrap(), *began.lock().unwrap());
            let what = format!("{step} s back after {after} s, fails later: {fails_later}");
            assert!(began.is_none_or(|began| ended.unwrap() <= began), "{what}: {ended:?}, {began:?}");
            assert!(began.is_some() || !fails_later, "{what}: the second process takes over");
        }
    }
}

/// A stepped clock that's within the margin still has its lease extended, and so does one that's set back by more.
#[tokio::test(start_paused = true)]
async fn set_back_clock_keeps_extending_the_lease() {
    for step in [1900, 30_000, 3_600_000].map(Duration::from_millis) {
        let bench = Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(seconds(9)))).ahead();
        let handler = async {
            tokio::time::sleep(seconds(60)).await;
            Ok("done".to_owned())
        };
        let (result, _) = stepped(&bench, seconds(5), step, bench.with_handler("k", 1, handler)).await;
        assert_eq!(result.unwrap(), "done", "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn set_back_clock_does_not_prolong_waits() {
    for step in STEPS.map(seconds) {
        let bench = Bench::with(|builder| builder.settings(|s| s.wait_in_progress = seconds(5))).ahead();
        let other = bench.apart(|builder| builder);
        other.in_invocation(other.now().saturating_add(seconds(800))).abandon("k", 1).await;
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(20)));
        let (result, took) = stepped(&bench, seconds(2), step, inside.run("k", 1)).await;
        assert_eq!((kind(result), took), (ErrorKind::InProgress, seconds(5)), "{step:?}, with a deadline");
        bench.set_back(Duration::ZERO);
        let (result, took) = stepped(&bench, seconds(2), step, bench.run("k", 1)).await;
        assert_eq!((kind(result), took), (ErrorKind::InProgress, seconds(5)), "{step:?}, without one");
    }
}

/// The settlement's retries, its chunks, its transactions, and transactions without a record.
#[tokio::test(start_paused = true)]
async fn set_back_clock_does_not_prolong_settlements() {
    for step in STEPS.map(seconds) {
        for fault in [Fault::Throttle, Fault::LoseRequest, Fault::LoseAnswer, Fault::Silence] {
            for way in ["plain", "chunks", "staged", "optimistic", "off"] {
                let bench = Bench::with(|builder| match way {
                    "off" => builder.mode(crate::settings::Mode::Off),
                    _ => builder,
                });
                let bench = if way == "optimistic" { bench.optimistic(false) } else { bench }.ahead();
                if way == "chunks" {
                    bench.store.limit_inline(0);
                }
                let inside = bench.in_invocation(bench.now().saturating_add(seconds(20)));
                let store = bench.store.clone();
                let handler = async {
                    if !matches!(way, "plain" | "chunks") {
                        staging().unwrap().add(Deposits::of("a", 1)).unwrap();
                    }
                    store.fail_for(seconds(4000), Meets(fault));
                    Ok("done".to_owned())
                };
                let run = inside.with_handler("k", 1, handler);
                let (_, took) = stepped(&bench, seconds(3), step, run).await;
                let what = format!("{step:?} back, {fault:?}, {way}");
                assert!(took <= Duration::from_millis(19_800), "{what}: {took:?}");
                assert!(took >= seconds(18) || way == "off", "{what}: {took:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nested_steps_keep_the_invocations_deadline() {
    for fault in [Fault::Silence, Fault::Throttle] {
        let bench = Bench::new().ahead();
        let inside = bench.in_invocation(bench.now().saturating_add(seconds(20)));
        let (set_back, step) = (bench.clone(), bench.clone());
        let ended = Arc::new(Mutex::new(None));
        let inner = Arc::clone(&ended);
        let handler = async move {
            tokio::time::sleep(seconds(5)).await;
            set_back.set_back(seconds(3600));
            step.store.script([Script::Pass]);
            step.store.fail_after(seconds(1), seconds(4000), Meets(fault));
            let slow = async {
                tokio::time::sleep(seconds(2)).await;
                Ok("step".to_owned())
            };
            let _ = step.with_handler("step", 1, slow).await;
            *inner.lock().unwrap() = Some(tokio::time::Instant::now());
            Ok("done".to_owned())
        };
        let began = tokio::time::Instant::now();
        let (_, took) = timed(inside.with_handler("k", 1, handler)).await;
        assert!(took <= seconds(20), "{fault:?}: {took:?}");
        let step = ended.lock().unwrap().map(|ended| ended - began);
        assert!(step.is_some_and(|step| step <= Duration::from_millis(19_800)), "{fault:?}: {step:?}");
    }
}

/// A stale claim is judged by the wall clock alone, as other processes see it.
#[tokio::test(start_paused = true)]
async fn corrected_clock_judges_later_claims() {
    let bench = Bench::new().ahead();
    let other = bench.apart(|builder| builder);
    other.set_back(seconds(3600));
    let inside = bench.in_invocation(bench.now().saturating_add(seconds(600)));
    // The bench's clock was an hour ahead when the invocation began, and has been corrected.
    bench.set_back(seconds(3600));
    other.abandon("k", 1).await;
    assert_eq!(kind(inside.run("k", 1).await), ErrorKind::InProgress);
}

#[tokio::test(start_paused = true)]
async fn long_settle_within_is_honoured() {
    for (within, outage) in [(600, 150), (600, 550), (840, 800)] {
        for staged in [false, true] {
            let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = seconds(within)));
            let inside = bench.in_invocation(bench.now().saturating_add(seconds(880)));
            let store = bench.store.clone();
            let handler = async {
                if staged {
                    staging().unwrap().add(Deposits::of("a", 1)).unwrap();
                }
                store.fail_for(seconds(outage), Meets(Fault::Refuse));
                Ok("done".to_owned())
            };
            let (result, took) = timed(inside.with_handler("k", 1, handler)).await;
            let what = format!("{within} s, outage of {outage} s, staged: {staged}, took {took:?}");
            assert_eq!(result.unwrap(), "done", "{what}");
            assert_eq!(bench.record("k").status(), Status::Completed, "{what}");
        }
    }
}

/// The claim is lost, and the claim that only records the outcome fails for a long time.
#[tokio::test(start_paused = true)]
async fn reclaims_are_retried_for_settle_within() {
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = seconds(600)));
    let inside = bench.in_invocation(bench.now().saturating_add(seconds(880)));
    let store = bench.store.clone();
    let handler = async {
        store.remove_all();
        store.script([Script::Pass]);
        store.fail_for(seconds(400), Meets(Fault::Refuse));
        Ok("done".to_owned())
    };
    assert_eq!(inside.with_handler("k", 1, handler).await.unwrap(), "done");
    assert_eq!(bench.record("k").status(), Status::Completed);
}

/// Always shows the same time.
#[derive(Clone, Copy, Debug)]
struct Standing;

impl Clock for Standing {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_795_000_000)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        system_clock().sleep(duration)
    }
}

#[tokio::test(start_paused = true)]
async fn standing_clock_is_bounded_by_the_other() {
    let store = support::ScriptedStore::default();
    let idempotency = Idempotency::builder(store.clone()).function("tests").clock(Standing).build().unwrap();
    let step = idempotency.operation("step").unwrap();
    let handler = || async {
        store.fail_for(seconds(4000), Meets(Fault::Refuse));
        Ok::<_, TestError>("done".to_owned())
    };
    let (result, took) = timed(step.run(Key::new("k").unwrap(), &1, handler)).await;
    assert_eq!(result.unwrap(), "done");
    assert!(took >= seconds(28) && took <= seconds(30), "{took:?}");
}
