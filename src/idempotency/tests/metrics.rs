//! The metrics count each event once. Counters have no labels, since a label could hold a secret.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::{
    bank::Deposits,
    support::{
        Bench,
        Script::{self, Meets},
    },
};
use crate::{
    Resolution,
    metrics::{Metric, describe_metrics},
    settings::{Execution, Mode},
};
use lambda_idempotency_testing::Fault;

#[derive(Debug, Default)]
struct Recorded {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    samples: Arc<Samples>,
    units: Mutex<BTreeMap<String, Unit>>,
}

#[derive(Debug, Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.units.lock().unwrap().insert(key.as_str().into(), unit.unwrap());
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.units.lock().unwrap().insert(key.as_str().into(), unit.unwrap());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        assert_eq!(key.labels().len(), 0, "a label could hold a secret: {key}");
        Counter::from_arc(Arc::clone(self.counters.lock().unwrap().entry(key.name().into()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        unreachable!("the library has no gauges")
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(&self.samples))
    }
}

/// Runs `future`. Returns each counter's name (without `idempotency_`) and count, and the number of measured latencies.
async fn counted(future: impl Future) -> (Vec<(String, u64)>, usize) {
    let recorded = Recorded::default();
    let guard = metrics::set_default_local_recorder(&recorded);
    future.await;
    drop(guard);
    let counters = recorded.counters.lock().unwrap();
    let counts = counters.iter().map(|(name, count)| {
        let name = name.strip_prefix("idempotency_").expect("the metric's name begins with `idempotency_`");
        (name.to_owned(), count.load(Ordering::SeqCst))
    });
    (counts.collect(), recorded.samples.0.lock().unwrap().len())
}

/// Checks the counts, and the number of measured latencies: one for each claim and one for each settlement.
async fn counts(future: impl Future, expected: &[(&str, u64)], measured: usize) {
    let (counts, samples) = counted(future).await;
    let counts: Vec<_> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(counts, expected);
    assert_eq!(samples, measured, "{expected:?}");
}

#[tokio::test(start_paused = true)]
async fn normal_outcomes_are_counted() {
    let bench = Bench::new();
    counts(bench.run("k", 1), &[("executed", 1), ("recorded", 1)], 2).await;
    counts(bench.run("k", 1), &[("replayed", 1)], 1).await;
    counts(bench.run("k", 2), &[("mismatch", 1)], 1).await;
    counts(bench.fail("m", 1), &[("executed", 1), ("released", 1)], 2).await;
    counts(bench.panic("m", 1), &[("executed", 1), ("panicked", 1), ("released", 1)], 2).await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted() {
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
    counts(bench.abandon("k", 1), &[("abandoned", 1), ("executed", 1)], 1).await;
    counts(bench.run("k", 1), &[("in_progress", 1)], 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    counts(bench.run("k", 1), &[("executed", 1), ("recorded", 1), ("takeover", 1)], 2).await;

    bench.store.script([Meets(Fault::LoseAnswer)]);
    counts(bench.run("l", 1), &[("claim_recovered", 1), ("executed", 1), ("recorded", 1)], 2).await;
    bench.store.script([Meets(Fault::Throttle)]);
    counts(bench.run("m", 1), &[("store_unavailable", 1)], 1).await;
    bench.store.script([Meets(Fault::Refuse)]);
    counts(bench.run("m", 1), &[("store_unavailable", 1)], 1).await;
    bench.store.script([Meets(Fault::Unreadable)]);
    counts(bench.run("m", 1), &[("corrupt", 1)], 1).await;
    bench.store.script([Script::Pass, Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    counts(bench.run("m", 1), &[("executed", 1), ("unrecorded", 1)], 2).await;
    bench.store.script([Script::Pass, Meets(Fault::Throttle)]);
    counts(bench.fail("o", 1), &[("abandoned", 1), ("executed", 1)], 2).await;
    counts(bench.hang("n", 1), &[("abandoned", 1), ("cut_off", 1), ("executed", 1)], 1).await;
}

#[tokio::test(start_paused = true)]
async fn setting_dependent_outcomes_are_counted() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.max_response = 1).execution(Execution::AtMostOnce));
    counts(bench.run("k", 1), &[("executed", 1), ("recorded", 1), ("response_omitted", 1)], 2).await;
    counts(bench.run("k", 1), &[("not_retained", 1)], 1).await;
    bench.abandon("m", 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    counts(bench.run("m", 1), &[("outcome_unknown", 1)], 1).await;

    let (key, seen) = (bench.stored_key("m"), bench.record("m"));
    let by_hand = bench.idempotency.resolve(&key, &seen, Resolution::Release);
    counts(by_hand, &[("resolved", 1)], 0).await;

    let bench = Bench::with(|builder| builder.settings(|s| s.fail_open = true));
    bench.store.script([Meets(Fault::Throttle)]);
    counts(bench.run("k", 1), &[("store_unavailable", 1), ("unprotected", 1)], 1).await;
    let late = bench.in_invocation(bench.now().saturating_add(Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(11)).await;
    counts(late.run("k", 1), &[("no_time_left", 1)], 1).await;
}

#[tokio::test(start_paused = true)]
async fn cache_hits_are_counted() {
    let bench = Bench::with(|builder| builder.settings(|s| s.local_cache = 1 << 20));
    counts(bench.run("k", 1), &[("executed", 1), ("recorded", 1)], 2).await;
    counts(bench.run("k", 1), &[("local_cache_hit", 1), ("replayed", 1)], 1).await;
    counts(bench.run("k", 2), &[("local_cache_hit", 1), ("mismatch", 1)], 1).await;
}

/// Runs a handler that stages a deposit. The deposit needs a balance of `at_least` in the till.
async fn deposit(bench: &Bench, key: &str, at_least: i64) {
    let handler = async {
        let deposit = Deposits::of("till", 1).if_balance_is_at_least(at_least);
        crate::staging().unwrap().add(deposit).unwrap();
        Ok("paid".to_owned())
    };
    let _ = bench.with_handler(key, 1, handler).await;
}

#[tokio::test(start_paused = true)]
async fn transaction_outcomes_are_counted() {
    let bench = Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO));
    counts(deposit(&bench, "k", 0), &[("executed", 1), ("recorded", 1)], 2).await;
    counts(deposit(&bench, "m", 9), &[("declined", 1), ("executed", 1), ("released", 1)], 3).await;
    bench.store.script([Script::Pass, Meets(Fault::Throttle)]);
    counts(deposit(&bench, "n", 0), &[("executed", 1), ("not_committed", 1), ("released", 1)], 3).await;
    bench.store.script([
        Script::Pass,
        Meets(Fault::LoseRequest),
        Meets(Fault::LoseRequest),
        Meets(Fault::Throttle),
    ]);
    counts(deposit(&bench, "o", 0), &[("executed", 1), ("unresolved", 1)], 2).await;
}

#[tokio::test(start_paused = true)]
async fn optimistic_runs_are_counted() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.settle_within = Duration::ZERO)).optimistic(false);
    counts(deposit(&bench, "k", 0), &[("executed", 1), ("recorded", 1)], 1).await;
    // The handler ran again, but its write wasn't applied, and the first outcome was replayed.
    counts(deposit(&bench, "k", 0), &[("executed", 1), ("replayed", 1)], 1).await;
    counts(bench.fail("m", 1), &[("executed", 1)], 1).await;
    counts(bench.panic("m", 1), &[("executed", 1), ("panicked", 1)], 1).await;
    counts(deposit(&bench, "m", 9), &[("declined", 1), ("executed", 1)], 2).await;
    bench.store.script([Meets(Fault::Throttle)]);
    counts(deposit(&bench, "m", 0), &[("executed", 1), ("not_committed", 1)], 2).await;
    bench.store.script([Meets(Fault::LoseRequest), Meets(Fault::LoseRequest), Meets(Fault::Throttle)]);
    counts(deposit(&bench, "m", 0), &[("executed", 1), ("unresolved", 1)], 1).await;
    counts(bench.hang("n", 1), &[("cut_off", 1)], 0).await;
    let reading_first = bench.optimistic(true);
    counts(reading_first.run("k", 1), &[("replayed", 1)], 1).await;
    counts(reading_first.run("k", 2), &[("mismatch", 1)], 1).await;
    let cached = Bench::with(|builder| builder.settings(|s| s.local_cache = 1 << 20)).optimistic(false);
    counts(cached.run("k", 1), &[("executed", 1), ("recorded", 1)], 1).await;
    counts(cached.run("k", 2), &[("local_cache_hit", 1), ("mismatch", 1)], 1).await;
}

#[tokio::test(start_paused = true)]
async fn extensions_are_counted() {
    let bench =
        Bench::with(|builder| builder.settings(|s| s.lease_extension = Some(Duration::from_secs(30))));
    bench.store.script([Script::Pass, Meets(Fault::Throttle), Script::Pass]);
    let long = bench.with_handler("k", 1, async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        Ok(String::new())
    });
    let expected = [("executed", 1), ("lease_extended", 1), ("lease_not_extended", 1), ("recorded", 1)];
    counts(long, &expected, 2).await;
    let taken_over = bench.clone();
    let lost = bench.with_handler("m", 1, async {
        taken_over.store.remove_all();
        std::future::pending().await
    });
    counts(lost, &[("abandoned", 1), ("cut_off", 1), ("executed", 1), ("fenced", 1)], 1).await;
}

#[test]
fn each_metric_has_its_unit() {
    let recorded = Recorded::default();
    metrics::with_local_recorder(&recorded, describe_metrics);
    let units = recorded.units.lock().unwrap();
    assert_eq!(units.len(), Metric::ALL.len());
    for metric in Metric::ALL {
        let unit = if metric.is_latency() { Unit::Milliseconds } else { Unit::Count };
        assert_eq!(units[metric.name()], unit, "{}", metric.name());
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_deliveries_are_counted() {
    let off = Bench::with(|builder| builder.mode(Mode::Off).settings(|s| s.settle_within = Duration::ZERO));
    off.store.script([Meets(Fault::LoseRequest)]);
    counts(deposit(&off, "k", 0), &[("not_enforced", 1), ("unresolved", 1)], 0).await;
    counts(
        async { (off.run("k", 1).await.unwrap(), off.run("k", 1).await.unwrap()) },
        &[("not_enforced", 2)],
        0,
    )
    .await;
    let shadow = Bench::with(|builder| builder.mode(Mode::Shadow));
    counts(shadow.run("k", 1), &[("not_enforced", 1)], 2).await;
    counts(shadow.run("k", 1), &[("not_enforced", 1), ("shadow_differed", 1), ("shadow_replayed", 1)], 1)
        .await;
    counts(shadow.run("k", 2), &[("not_enforced", 1), ("shadow_mismatch", 1)], 1).await;
    let _ = tokio::time::timeout(Duration::from_millis(1), shadow.hang("s", 1)).await;
    counts(shadow.run("s", 1), &[("not_enforced", 1), ("shadow_in_progress", 1)], 1).await;
    tokio::time::sleep(Duration::from_secs(63)).await;
    counts(shadow.run("s", 1), &[("not_enforced", 1), ("shadow_takeover", 1)], 2).await;
    shadow.store.script([Meets(Fault::Throttle)]);
    counts(shadow.run("k", 1), &[("not_enforced", 1), ("shadow_unknown", 1)], 1).await;
}
