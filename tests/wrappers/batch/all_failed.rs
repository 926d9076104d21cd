//! The metric `AllFailed` counts each batch without a success, unless all its records are in progress. If the handlers
//! of all its records failed, and the user chose `fail_if_all_fail`, the batch also fails the invocation.

use std::{collections::BTreeMap, future::Future};

use lambda_idempotency::{ErrorKind, metrics::Metric};
use metrics::{Counter, Gauge, Histogram, Key as Name, KeyName, Metadata, Recorder, SharedString, Unit};

use super::*;

/// Records only counters.
#[derive(Debug, Default)]
struct Counters(Mutex<BTreeMap<String, Arc<std::sync::atomic::AtomicU64>>>);

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, name: &Name, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(name.name().into()).or_default()))
    }

    fn register_gauge(&self, _: &Name, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Name, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Returns how many whole batches failed while `future` ran, and the output of `future`.
async fn all_failed<T>(future: impl Future<Output = T>) -> (u64, T) {
    counted(Metric::AllFailed, future).await
}

/// Returns the metric's count while `future` ran, and the output of `future`.
async fn counted<T>(metric: Metric, future: impl Future<Output = T>) -> (u64, T) {
    let counters = Counters::default();
    let guard = metrics::set_default_local_recorder(&counters);
    let result = future.await;
    drop(guard);
    let counters = counters.0.lock().unwrap();
    (counters.get(metric.name()).map_or(0, |count| count.load(Ordering::SeqCst)), result)
}

/// Returns the number of failed items, or the error's kind.
async fn answered(worker: &Batch<SqsMessage>, batch: &serde_json::Value) -> Result<usize, ErrorKind> {
    let answer = told(worker, batch, 0).await;
    answer.map(|answer| returned(&answer).len()).map_err(|error| error.kind())
}

#[tokio::test]
async fn failed_batches_are_counted() {
    let failing =
        || [Message::new("m1", "fail 1"), Message::new("m2", "panic 1"), Message::new("m3", "final 1")];
    for (fails, expected) in [(false, Ok(3)), (true, Err(ErrorKind::AllFailed))] {
        let bench = Bench::new();
        let worker = bench.worker(by_order).fail_if_all_fail(fails);
        for delivery in 1..=2 {
            let failed = all_failed(answered(&worker, &sqs(failing()))).await;
            assert_eq!(failed, (1, expected), "delivery {delivery}");
        }
        let with_one = failing().into_iter().chain([Message::new("m4", "a")]);
        assert_eq!(all_failed(answered(&worker, &sqs(with_one))).await, (0, Ok(3)), "one succeeds");
        assert_eq!(all_failed(answered(&worker, &sqs([]))).await, (0, Ok(0)), "an empty batch");
    }
}

#[tokio::test]
async fn messages_without_a_key_are_counted() {
    let worker = Bench::new().worker(|_: &SqsMessage| None::<Key>);
    let batch = sqs([Message::new("m1", "a"), Message::new("m2", "b")]);
    assert_eq!(counted(Metric::MissingKey, answered(&worker, &batch)).await, (2, Ok(2)));
}

#[tokio::test]
async fn messages_behind_failures_count_as_failed() {
    let bench = Bench::new();
    let of = |id: &str, order: &str| Message::new(id, order).in_group("one").fifo();
    let worker = bench.worker(by_id).fail_if_all_fail(true);
    let failed = all_failed(answered(&worker, &sqs([of("m1", "fail 1"), of("m2", "a")]))).await;
    assert_eq!(failed, (1, Err(ErrorKind::AllFailed)));
}

/// `fail_if_all_fail` fails the invocation, so that Lambda polls the source less. Polling less doesn't help if a record
/// is in progress or can't be read, or if the store is down, so the invocation doesn't fail in these cases.
#[tokio::test]
async fn records_in_progress_never_fail_the_invocation() {
    let bench = Bench::new();
    let worker = bench.worker(by_order).fail_if_all_fail(true);
    let held = sqs([Message::new("m1", "held")]);
    let meanwhile = async {
        bench.is_held().await;
        let alone = all_failed(answered(&worker, &held)).await;
        let both = sqs([Message::new("m1", "held"), Message::new("m2", "fail 1")]);
        let with_failure = all_failed(answered(&worker, &both)).await;
        bench.let_go();
        (alone, with_failure)
    };
    let (first, second) = tokio::join!(deliver(&worker, &held), meanwhile);
    assert_eq!((first.len(), second), (0, ((0, Ok(1)), (1, Ok(2)))));

    let unread = sqs([Message::new("m3", "x").with_body("no JSON"), Message::new("m4", "fail 1")]);
    assert_eq!(all_failed(answered(&worker, &unread)).await, (1, Ok(2)));
    bench.store.is_down.store(true, Ordering::SeqCst);
    assert_eq!(all_failed(answered(&worker, &held)).await, (1, Ok(1)));
}
