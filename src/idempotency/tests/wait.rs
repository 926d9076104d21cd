//! Deliveries that wait for another delivery's outcome.

use std::time::Duration;

use super::{
    kind,
    support::{Bench, Script::Meets},
};
use crate::{ErrorKind, Invocation};
use lambda_idempotency_testing::Fault;

fn waiting(budget: Duration) -> Bench {
    Bench::with(|builder| builder.settings(|s| s.wait_in_progress = budget))
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_the_outcome() {
    let bench = waiting(Duration::from_secs(10));
    let slow = async { tokio::time::sleep(Duration::from_secs(3)).await };
    let first = bench.with_handler("k", 1, async move {
        slow.await;
        Ok("slow".to_owned())
    });
    let began = bench.now();
    let duplicate = async {
        tokio::task::yield_now().await;
        let answer = bench.run("k", 1).await;
        (answer, began.until(bench.now()))
    };
    let (first, (again, took)) = tokio::join!(first, duplicate);
    assert_eq!((first.unwrap().as_str(), again.unwrap().as_str()), ("slow", "slow"));
    assert_eq!(bench.runs(), 0, "the duplicate's handler hasn't run");
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
    let attempts = bench.store.take_calls().iter().filter(|call| **call == "claim").count();
    assert!((4..13).contains(&attempts), "{attempts} attempts in 3 s");
}

#[tokio::test(start_paused = true)]
async fn wait_respects_budget_and_remaining_time() {
    let bench = waiting(Duration::from_secs(5));
    bench.abandon("k", 1).await;
    let began = bench.now();
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::InProgress);
    let took = began.until(bench.now());
    assert_eq!(took, Duration::from_secs(5), "the whole budget, then one more attempt");

    let soon = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(2)));
    let began = bench.now();
    assert_eq!(kind(soon.run("k", 1).await), ErrorKind::InProgress);
    let took = began.until(bench.now());
    assert_eq!(took, Duration::from_secs(1), "half of the time that was left");
}

#[tokio::test(start_paused = true)]
async fn wait_ends_before_the_front_end_limit() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.wait_in_progress = Duration::from_secs(30);
            s.fail_open = true;
        })
    });
    bench.abandon("k", 1).await;
    let began = bench.now();
    let after = |seconds| began.saturating_add(Duration::from_secs(seconds));
    let invocation = Invocation::entered(began, after(60), "id").with_caller_waiting_until(after(29));
    assert_eq!(kind(bench.within(invocation).run("k", 1).await), ErrorKind::InProgress);
    let took = began.until(bench.now());
    assert_eq!(took, Duration::from_millis(14_500), "half of the time that the front end waits");
}

#[tokio::test(start_paused = true)]
async fn waiting_delivery_takes_over_stale_claims() {
    let bench = Bench::with(|builder| builder.settings(|s| s.wait_in_progress = Duration::from_secs(90)));
    bench.abandon("k", 1).await;
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    assert_eq!(bench.record("k").attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn only_live_claims_are_waited_for() {
    let bench = waiting(Duration::from_secs(10));
    bench.run("k", 1).await.unwrap();
    let began = bench.now();
    assert_eq!(kind(bench.run("k", 2).await), ErrorKind::Mismatch);
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(kind(bench.run("m", 1).await), ErrorKind::Unavailable);
    assert_eq!(began, bench.now());
}
