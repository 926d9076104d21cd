//! Unprotected runs while the store fails: one at most for each key that this process knows of.

use futures_util::future::join_all;

use super::*;

fn opened() -> Bench {
    Bench::with(|builder| builder.settings(|s| s.fail_open = true))
}

/// Delivers `count` duplicates at once, and returns how many of them ran.
async fn runs_of(bench: &Bench, count: usize) -> usize {
    let before = bench.runs();
    let deliveries = (0..count).map(|_| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let inside = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(20)));
            let runs = bench.clone();
            let handler = async move {
                runs.count_run();
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok(String::new())
            };
            inside.with_handler("k", 1, handler).await
        })
    });
    join_all(deliveries).await;
    bench.runs() - before
}

#[tokio::test(start_paused = true)]
async fn duplicates_never_stampede_on_slow_store() {
    for fault in [Fault::Throttle, Fault::LoseRequest, Fault::LoseAnswer, Fault::Silence] {
        for passed in [0, 1, 100, 499, 900] {
            let bench = opened();
            // The first claims pass, and the store is too slow for the others.
            bench.store.script((0..passed).map(|_| Script::Pass).chain([Meets(fault); 2000]));
            let ran = runs_of(&bench, 500).await;
            bench.store.end_script();
            assert!(ran <= 1, "{fault:?} after {passed} calls: {ran} ran");
            let again = runs_of(&bench, 500).await;
            assert!(ran + again >= 1, "{fault:?} after {passed} calls: once the store is back, one runs");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_ran_never_run_unprotected() {
    let bench = opened();
    assert_eq!(bench.run("k", 1).await.unwrap(), "run 1");
    bench.store.fail_for(Duration::from_secs(600), Meets(Fault::Throttle));
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Unavailable, "this process has run it");
    assert_eq!(bench.run("m", 1).await.unwrap(), "run 2", "another key");
    assert_eq!(kind(bench.run("m", 1).await), ErrorKind::Unavailable, "it ran unprotected");
    bench.store.fail_for(Duration::ZERO, Script::Pass);
    let begun = bench.operation().begin(Key::new("n").unwrap(), Fingerprint::of(&1).unwrap()).await;
    bench.store.fail_for(Duration::from_secs(600), Meets(Fault::Throttle));
    assert_eq!(kind(bench.run("n", 1).await), ErrorKind::Unavailable, "a claim of it is held here");
    drop(begun);
}

#[tokio::test(start_paused = true)]
async fn waiting_delivery_never_runs_unprotected() {
    let bench = Bench::with(|builder| {
        builder.settings(|s| {
            s.fail_open = true;
            s.wait_in_progress = Duration::from_secs(5);
        })
    });
    bench.beside(|builder| builder).abandon("k", 1).await;
    bench.store.fail_after(Duration::from_secs(1), Duration::from_secs(600), Meets(Fault::Throttle));
    assert_eq!(kind(bench.run("k", 1).await), ErrorKind::Unavailable, "the store has answered it");
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn answering_store_prevents_unprotected_runs() {
    let bench = opened();
    bench.store.script([Meets(Fault::Silence)]);
    let (slow, other) = (bench.clone(), bench.clone());
    let slow = tokio::spawn(async move {
        slow.in_invocation(slow.now().saturating_add(Duration::from_secs(20))).run("k", 1).await
    });
    tokio::task::yield_now().await;
    assert_eq!(other.run("m", 1).await.unwrap(), "run 1");
    assert_eq!(kind(slow.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(bench.runs(), 1);
}
