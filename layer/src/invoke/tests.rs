use std::{
    collections::BTreeMap,
    sync::{Mutex, atomic::AtomicU64, atomic::Ordering::Relaxed},
};

use bytes::Bytes;
use http::Response;
use lambda_idempotency::{
    metrics::Metric,
    store::{Put, memory::MemoryStore},
    time::{Clock as _, system_clock},
};
use lambda_idempotency_testing::Fault;
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};
use testkit::{
    hooked::{Asked, Hooked, Then},
    http_server::{Received, Reply, Server},
};
use tokio::sync::oneshot;

use super::*;
use crate::{
    config::tests::read,
    function::Payload,
    telemetry::Telemetry,
    upstream::{Upstream, json_headers},
};

/// How the test's store fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    Panics,
    /// The store never answers settlements.
    NeverSettles,
}

/// A memory store with this defect.
fn faulty(defect: Defect) -> Hooked {
    Hooked::new(MemoryStore::new(), move |_, asked| match (defect, asked) {
        (Defect::Panics, Asked::Put(_)) => panic!("a fault in the layer"),
        (Defect::NeverSettles, Asked::Put(Put::Mine { .. })) => Then::Meet(Fault::Silence),
        _ => Then::Pass,
    })
}

/// The layer, and a simulated Runtime API that keeps the requests it gets.
struct Bench {
    protection: Arc<Protection>,
    posted: Arc<Mutex<Vec<Received>>>,
    _server: Server,
}

impl Bench {
    async fn new(defect: Defect, settings: &[(&str, &str)], reserve: Duration) -> Self {
        let posted = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&posted);
        let server = Server::start(move |request| {
            keeps.lock().unwrap().push(request);
            std::future::ready(Reply::Whole(202, Vec::new(), b"{}".to_vec()))
        })
        .await;
        let mut rules = read(settings).unwrap();
        rules.settings.answer_reserve = reserve;
        let builder = lambda_idempotency::Idempotency::builder(faulty(defect)).function("f");
        let idempotency = builder.settings(|s| *s = rules.settings.clone()).build().unwrap();
        let upstream = Upstream::new(server.url("").trim_start_matches("http://"));
        let protection = Protection::new(idempotency, rules, upstream, Telemetry::default()).unwrap();
        Self { protection, posted, _server: server }
    }

    /// Runs an invocation with this timeout. The function answers immediately if it gets the event.
    async fn invoke(&self, time: Duration) {
        self.until_posted(invoke(&self.protection, &event(time))).await;
    }

    /// Runs an invocation that panics before it calls the library.
    async fn panic_before_the_claim(&self) {
        let panicking = async { panic!("a fault in the layer") };
        self.until_posted(run(&self.protection, &event(Duration::from_secs(10)), panicking)).await;
    }

    /// Drives `invoking` until Lambda gets an answer. The function answers immediately if it gets the event.
    async fn until_posted(&self, invoking: impl Future<Output = ()>) {
        let answering = async {
            let next = match self.protection.function.next() {
                Ok(next) => next,
                Err(waiting) => waiting.await.unwrap(),
            };
            assert_eq!(next.headers()["lambda-runtime-aws-request-id"], "r");
            let sender = self.protection.function.answered("r", None).unwrap();
            let (reply, _replied) = oneshot::channel();
            let body = Payload::Whole(Bytes::from_static(b"1"));
            sender.send(Ok(Posted { is_error: false, headers: json_headers(), body, reply })).unwrap();
            // The function's answer doesn't end the `select!` below: Lambda hasn't got the answer yet.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = invoking => {}
            () = answering => {}
            () = self.has_posted() => {}
        }
    }

    async fn has_posted(&self) {
        while self.posted.lock().unwrap().is_empty() {
            system_clock().sleep(Duration::from_millis(5)).await;
        }
    }

    /// The path and the body of the one answer that Lambda got.
    fn answer(&self) -> (String, String) {
        let posted = self.posted.lock().unwrap();
        let [one] = posted.as_slice() else { panic!("{posted:?}") };
        (one.path.clone(), String::from_utf8(one.body.clone()).unwrap())
    }
}

/// An event with this timeout.
fn event(time: Duration) -> Arc<Event> {
    let deadline = system_clock().now().saturating_add(time).as_millis();
    let response = Response::builder()
        .header("lambda-runtime-aws-request-id", "r")
        .header("lambda-runtime-deadline-ms", deadline)
        .body(Bytes::from_static(b"{\"id\":1}"))
        .unwrap();
    Arc::new(Event::of(response).unwrap())
}

/// Records counters.
#[derive(Debug, Default)]
struct Counters(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn get(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.load(Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, name: &metrics::Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(name.name().into()).or_default()))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs an invocation that panics, and returns the counts of internal errors and of unprotected events.
async fn counted(invoking: impl Future<Output = ()>) -> [u64; 2] {
    let counters = Counters::default();
    // The test's runtime has one thread, so the invocation's task uses this recorder too.
    let guard = metrics::set_default_local_recorder(&counters);
    invoking.await;
    drop(guard);
    ["idempotency_layer_internal_error", Metric::Unprotected.name()].map(|name| counters.get(name))
}

/// The layer can't know what the store wrote before its panic: the event may be claimed, or the record complete. So the
/// function doesn't get the event, even with `IDEMPOTENCY_ON_INTERNAL_ERROR=pass`.
#[tokio::test]
async fn panic_ends_only_its_invocation() {
    for settings in [&[][..], &[("IDEMPOTENCY_ON_INTERNAL_ERROR", "pass")]] {
        let bench = Bench::new(Defect::Panics, settings, Duration::from_millis(250)).await;
        for _ in 0..2 {
            bench.posted.lock().unwrap().clear();
            let invoking = Box::pin(bench.invoke(Duration::from_secs(10)));
            assert_eq!(counted(invoking).await, [1, 0]);
            let (path, body) = bench.answer();
            assert_eq!(path, "/2018-06-01/runtime/invocation/r/error");
            assert!(
                body.contains("Idempotency.Internal") && !body.contains("a fault in the layer"),
                "{body}"
            );
        }
    }
}

#[tokio::test]
async fn events_can_run_unprotected_after_panics() {
    for (settings, expected) in [
        (&[][..], ([1, 0], "error", None)),
        (&[("IDEMPOTENCY_ON_INTERNAL_ERROR", "pass")], ([1, 1], "response", Some("1"))),
        // The layer refuses nothing in shadow mode.
        (&[("IDEMPOTENCY_MODE", "shadow")], ([1, 1], "response", Some("1"))),
    ] {
        let (counts, kind, own) = expected;
        let bench = Bench::new(Defect::Panics, settings, Duration::from_millis(250)).await;
        assert_eq!(counted(Box::pin(bench.panic_before_the_claim())).await, counts, "{settings:?}");
        let (path, body) = bench.answer();
        assert_eq!(path, format!("/2018-06-01/runtime/invocation/r/{kind}"), "{settings:?}");
        assert_eq!(own.unwrap_or(&body), body, "{settings:?}");
    }
}

#[tokio::test]
async fn answer_is_sent_before_the_deadline() {
    // The function answers immediately, but the store never answers the settlement.
    let bench = Bench::new(Defect::NeverSettles, &[], Duration::from_secs(3)).await;
    bench.invoke(Duration::from_millis(4500)).await;
    assert_eq!(bench.answer(), ("/2018-06-01/runtime/invocation/r/response".to_owned(), "1".to_owned()));
}
