//! The modes off and shadow on every front end: every delivery runs, and a failing store changes no answer.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_http::{Body, Request, Response, tower::ServiceExt};
use lambda_idempotency::{
    Begun, Error, Failure, Fingerprint, Idempotency, Key, Settled, current,
    lambda::batch::{KinesisRecord, SqsMessage},
    settings::Mode,
    store::memory::MemoryStore,
};
use lambda_idempotency_testing::Fault;
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json, value::RawValue};
use testkit::{
    clock::SetClock,
    hooked::{Hooked, Then, down},
};
use tokio::time::Instant;
use tower::{Layer, service_fn};

use crate::recording;

const NOT_ENFORCED: [Mode; 2] = [Mode::Off, Mode::Shadow];
/// The longest delay that shadow mode may add to a delivery.
const MOST: Duration = Duration::from_millis(100);

/// A memory store whose calls fail on demand.
#[derive(Clone, Debug, Default)]
struct Troubled {
    inner: MemoryStore,
    trouble: Arc<AtomicU8>,
    /// How many calls succeed before calls begin to fail.
    healthy: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// The ways in which a call fails: with an error or without an answer, before or after it's applied.
const TROUBLES: [u8; 4] = [BEFORE, AFTER, SILENT_BEFORE, SILENT_AFTER];
const BEFORE: u8 = 1;
const AFTER: u8 = 2;
const SILENT_BEFORE: u8 = 3;
const SILENT_AFTER: u8 = 4;

impl Troubled {
    fn store(&self) -> Hooked {
        let Self { inner, trouble, healthy, requests } = self.clone();
        Hooked::new(inner, move |_, _| {
            requests.fetch_add(1, Ordering::SeqCst);
            let is_healthy =
                healthy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            match trouble.load(Ordering::SeqCst) {
                _ if is_healthy.is_ok() => Then::Pass,
                BEFORE => Then::Fail(down()),
                AFTER => Then::Meet(Fault::LoseAnswer),
                SILENT_BEFORE => Then::Meet(Fault::Silence),
                SILENT_AFTER => Then::Meet(Fault::SilenceAfter),
                _ => Then::Pass,
            }
        })
    }
}

fn idempotency(store: &Troubled, mode: Mode) -> Idempotency {
    let builder = Idempotency::builder(store.store()).function("tests").clock(SetClock::tokio());
    recording::begin();
    let idempotency = builder.mode(mode).build().unwrap();
    recording::shown(&idempotency);
    idempotency
}

/// The handler's runs: when each started, and whether it had a claim.
#[derive(Clone)]
struct Runs(Arc<Mutex<Vec<(Duration, bool)>>>, Instant);

impl Runs {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// Counts a run, and returns its number as the answer.
    fn next(&self) -> String {
        let mut runs = self.0.lock().unwrap();
        runs.push((self.1.elapsed(), current().is_some()));
        format!("run {}", runs.len())
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FrontEnd {
    Run,
    ByHand,
    Attribute,
    Http,
    Streaming,
    Event,
    Sqs,
    Kinesis,
}

const FRONT_ENDS: &[FrontEnd] = &[
    FrontEnd::Run,
    FrontEnd::ByHand,
    FrontEnd::Attribute,
    FrontEnd::Http,
    FrontEnd::Streaming,
    FrontEnd::Event,
    FrontEnd::Sqs,
    FrontEnd::Kinesis,
];

type Answered = Result<String, lambda_runtime::Error>;

fn raw(event: Value) -> LambdaEvent<Box<RawValue>> {
    LambdaEvent::new(RawValue::from_string(event.to_string()).unwrap(), Context::default())
}

fn request(key: Option<&str>) -> Request {
    let request = lambda_http::http::Request::post("/orders");
    let request = match key {
        Some(key) => request.header("Idempotency-Key", key),
        None => request,
    };
    request.body(Body::Text("{}".to_owned())).unwrap()
}

fn text(body: &Body) -> String {
    String::from_utf8(body.to_vec()).unwrap()
}

/// A function with the attribute `#[idempotent]`.
#[lambda_idempotency::idempotent(key = key, compare = 1)]
async fn attributed(key: &str, runs: &Runs, idempotency: &Idempotency) -> Result<String, std::io::Error> {
    Ok(runs.next())
}

impl FrontEnd {
    /// Delivers an event with this key, and returns the answer that its caller gets. For batches, see [`answered`].
    async fn deliver(self, idempotency: &Idempotency, key: &str, runs: &Runs) -> Answered {
        let handler = runs.clone();
        match self {
            Self::Run => {
                let step = idempotency.operation("step")?;
                let run = || async { Ok::<_, std::io::Error>(handler.next()) };
                Ok(step.run(Key::new(key)?, &1, run).await.map_err(|error| error.to_string())?)
            }
            Self::ByHand => {
                let begun =
                    idempotency.operation("hand")?.begin(Key::new(key)?, Fingerprint::of(&1)?).await?;
                let Begun::Claimed(claim) = begun else { return Ok("a replay".to_owned()) };
                // The library doesn't set `current()` for code that calls `begin` itself.
                handler.0.lock().unwrap().push((handler.1.elapsed(), true));
                let answer = format!("run {}", handler.count());
                let Settled::Recorded = claim.complete(answer.clone()).await? else { panic!("superseded") };
                Ok(answer)
            }
            Self::Attribute => {
                Ok(attributed(key, &handler, idempotency).await.map_err(|error| error.to_string())?)
            }
            Self::Http => {
                let service = service_fn(move |_: Request| {
                    let handler = handler.clone();
                    async move { Ok::<_, Infallible>(Response::new(Body::Text(handler.next()))) }
                });
                let service = idempotency.http().required(true).layer(service);
                Ok(text(service.oneshot(request(Some(key))).await?.body()))
            }
            Self::Streaming => {
                let service = service_fn(move |_: Request| {
                    let handler = handler.clone();
                    async move {
                        Ok::<_, Infallible>(Response::new(http_body_util::Full::<bytes::Bytes>::from(
                            handler.next(),
                        )))
                    }
                });
                let service = idempotency.http().streaming().layer(service);
                let body = service.oneshot(request(Some(key))).await?.into_body();
                let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
                Ok(String::from_utf8(body.to_vec())?)
            }
            Self::Event => {
                let service = service_fn(move |_: LambdaEvent<Value>| {
                    let handler = handler.clone();
                    async move { Ok::<_, lambda_runtime::Error>(handler.next()) }
                });
                let key_of = |event: &Value| Key::new(event["id"].as_str().unwrap_or_default());
                let service = idempotency.events(key_of).layer(service);
                let answer =
                    service.oneshot(raw(json!({ "id": key }))).await.map_err(|error| error.to_string())?;
                Ok(serde_json::from_str(answer.get())?)
            }
            Self::Sqs => {
                let worker = idempotency.sqs(SqsMessage::message_key, move |_: SqsMessage| {
                    let handler = handler.clone();
                    async move { Ok::<_, Failure>(handler.next()) }
                });
                let record = json!({
                    "messageId": key, "receiptHandle": "handle", "body": "{}", "attributes": {},
                    "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
                });
                answered(worker.oneshot(raw(json!({ "Records": [record] }))).await?, runs)
            }
            Self::Kinesis => {
                let worker = idempotency.kinesis(KinesisRecord::sequence_key, move |_: KinesisRecord| {
                    let handler = handler.clone();
                    async move { Ok::<_, Failure>(handler.next()) }
                });
                let record = json!({
                    "eventID": format!("shardId-0:{key}"), "eventSource": "aws:kinesis",
                    "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/orders",
                    "kinesis": { "partitionKey": "p", "sequenceNumber": key, "data": "e30=",
                                 "approximateArrivalTimestamp": 1_795_000_000.0 },
                });
                answered(worker.oneshot(raw(json!({ "Records": [record] }))).await?, runs)
            }
        }
    }
}

/// A batch's answer doesn't contain the handler's result, so this returns the number of the last run.
fn answered(answer: Box<RawValue>, runs: &Runs) -> Answered {
    assert_eq!(serde_json::to_value(&answer)?, json!({ "batchItemFailures": [] }));
    Ok(format!("run {}", runs.count()))
}

#[tokio::test(start_paused = true)]
async fn every_front_end_runs_each_delivery() {
    for mode in NOT_ENFORCED {
        for front_end in FRONT_ENDS {
            let (store, runs) = (Troubled::default(), Runs::new());
            let idempotency = idempotency(&store, mode);
            for nth in 1..=3 {
                let answer = front_end.deliver(&idempotency, "17", &runs).await.unwrap();
                assert_eq!(answer, format!("run {nth}"), "{mode:?} {front_end:?}");
            }
            assert!(runs.0.lock().unwrap().iter().all(|(_, has_claim)| *has_claim), "{front_end:?}");
            let requests = store.requests.load(Ordering::SeqCst);
            // In shadow mode, the first delivery claims and completes. The other two only send a claim.
            assert_eq!(requests, if mode == Mode::Off { 0 } else { 4 }, "{front_end:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shadow_and_enforce_ignore_each_others_records() {
    for front_end in FRONT_ENDS {
        let (store, runs) = (Troubled::default(), Runs::new());
        let [shadow, enforce] = [Mode::Shadow, Mode::Enforce].map(|mode| idempotency(&store, mode));
        front_end.deliver(&shadow, "17", &runs).await.unwrap();
        assert_eq!(front_end.deliver(&enforce, "17", &runs).await.unwrap(), "run 2", "{front_end:?}");
        front_end.deliver(&enforce, "17", &runs).await.unwrap();
        assert_eq!(runs.count(), 2, "{front_end:?}: mode enforce must replay its own record");
        front_end.deliver(&enforce, "18", &runs).await.unwrap();
        front_end.deliver(&shadow, "18", &runs).await.unwrap();
        assert_eq!(runs.count(), 4, "{front_end:?}");
        assert_eq!(store.inner.all().len(), 4, "{front_end:?}: two keys in each namespace");
    }
}

/// The store fails or hangs, before or after it applies a call. No answer changes. No run starts late, except after
/// a direct call of `begin`.
#[tokio::test(start_paused = true)]
async fn failing_stores_change_no_answer() {
    for mode in NOT_ENFORCED {
        for front_end in FRONT_ENDS {
            for trouble in TROUBLES {
                for healthy in 0..=1 {
                    let (store, runs) = (Troubled::default(), Runs::new());
                    store.trouble.store(trouble, Ordering::SeqCst);
                    store.healthy.store(healthy, Ordering::SeqCst);
                    let begun = Instant::now();
                    let answer = front_end.deliver(&idempotency(&store, mode), "17", &runs).await.unwrap();
                    let what = format!("{mode:?} {front_end:?}: trouble {trouble} after {healthy} calls");
                    assert_eq!(answer, "run 1", "{what}");
                    assert!(begun.elapsed() <= MOST, "{what}: {:?}", begun.elapsed());
                    let (started, _) = runs.0.lock().unwrap()[0];
                    // Only code that calls `begin` itself waits for the shadow claim, for at most 100 ms.
                    assert!(started.is_zero() || *front_end == FrontEnd::ByHand, "{what}: {started:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_http_requests_are_never_refused() {
    let no_key = || request(None);
    let two_keys = || {
        let mut request = request(Some("17"));
        request.headers_mut().append("Idempotency-Key", "18".parse().unwrap());
        request
    };
    let credentials = || {
        let mut request = request(Some("17"));
        request.headers_mut().append("authorization", "Bearer x".parse().unwrap());
        request
    };
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Off] {
        for (what, request) in [
            ("no key", no_key()),
            ("two keys", two_keys()),
            ("no uuid", request(Some("17"))),
            ("unnamed", credentials()),
        ] {
            let (store, runs) = (Troubled::default(), Runs::new());
            let idempotency = idempotency(&store, mode);
            let http = idempotency.http().required(true);
            let http = if what == "no uuid" { http.uuid_keys(true) } else { http };
            let handler = runs.clone();
            let service = http.layer(service_fn(move |request: Request| {
                let handler = handler.clone();
                assert_eq!(text(request.body()), "{}");
                async move { Ok::<_, Infallible>(Response::new(Body::Text(handler.next()))) }
            }));
            let answer = service.oneshot(request).await.unwrap();
            let passes = mode != Mode::Enforce;
            assert_eq!(answer.status() == 200, passes, "{mode:?} {what}: {answer:?}");
            assert_eq!(runs.count(), usize::from(passes), "{mode:?} {what}");
            assert_eq!(store.requests.load(Ordering::SeqCst), 0, "{mode:?} {what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_modes_run_keyless_events_and_records() {
    for mode in [Mode::Enforce, Mode::Shadow, Mode::Off] {
        let expected = if mode == Mode::Enforce { 0 } else { 1 };
        let (store, runs) = (Troubled::default(), Runs::new());
        let idempotency = idempotency(&store, mode);
        let handler = runs.clone();
        let service =
            idempotency.events(|_: &Value| None::<Key>).layer(service_fn(move |_: LambdaEvent<Value>| {
                let handler = handler.clone();
                async move { Ok::<_, lambda_runtime::Error>(handler.next()) }
            }));
        assert_eq!(service.oneshot(raw(json!({}))).await.is_ok(), expected == 1, "{mode:?}");
        assert_eq!(runs.count(), expected, "{mode:?}");
        type KeyOf = fn(&SqsMessage) -> Result<Option<Key>, Error>;
        let keys: [KeyOf; 3] =
            [|_| Ok(None), |_| Key::new("").map(Some), |_| panic!("the key closure's own panic")];
        for (nth, key) in keys.into_iter().enumerate() {
            let runs = Runs::new();
            let handler = runs.clone();
            let worker = idempotency.sqs(key, move |_: SqsMessage| {
                let handler = handler.clone();
                async move { Ok::<_, Failure>(handler.next()) }
            });
            let record = json!({
                "messageId": "m", "receiptHandle": "handle", "body": "{}", "attributes": {},
                "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
            });
            let answer = worker.oneshot(raw(json!({ "Records": [record] }))).await.unwrap();
            let returned =
                serde_json::to_value(&answer).unwrap()["batchItemFailures"].as_array().unwrap().len();
            assert_eq!((runs.count(), returned), (expected, 1 - expected), "{mode:?} {nth}");
        }
    }
}

/// In mode enforce, the first message's outcome answers the second message.
#[tokio::test(start_paused = true)]
async fn unenforced_modes_run_duplicates_in_a_batch() {
    for (mode, expected) in [(Mode::Enforce, 1), (Mode::Shadow, 2), (Mode::Off, 2)] {
        let (store, runs) = (Troubled::default(), Runs::new());
        let handler = runs.clone();
        let worker = idempotency(&store, mode).sqs(
            |_: &SqsMessage| Key::new("17"),
            move |_: SqsMessage| {
                let handler = handler.clone();
                async move { Ok::<_, Failure>(handler.next()) }
            },
        );
        let record = |id: &str| {
            json!({
                "messageId": id, "receiptHandle": "handle", "body": "{}", "attributes": {},
                "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
            })
        };
        let _ = worker.oneshot(raw(json!({ "Records": [record("a"), record("b")] }))).await.unwrap();
        assert_eq!(runs.count(), expected, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unenforced_permanent_failures_are_returned() {
    for mode in NOT_ENFORCED {
        let store = Troubled::default();
        let worker = idempotency(&store, mode).sqs(SqsMessage::message_key, async |_: SqsMessage| {
            Err::<(), _>(Failure::permanent("Final", "no"))
        });
        let worker = worker.acknowledge_permanent_failures(true);
        let record = json!({
            "messageId": "m", "receiptHandle": "handle", "body": "{}", "attributes": {},
            "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
        });
        let answer = worker.oneshot(raw(json!({ "Records": [record] }))).await.unwrap();
        let returned = serde_json::to_value(&answer).unwrap()["batchItemFailures"].as_array().unwrap().len();
        assert_eq!(returned, 1, "{mode:?}: no record has the failure, so the message is returned");
    }
}

/// In mode enforce, the layer answers only after it has read the body to its end or to the response limit. This test's
/// body reaches neither.
#[tokio::test(start_paused = true)]
async fn unenforced_streams_pass_at_once() {
    use http_body_util::{BodyExt, StreamBody};
    for mode in NOT_ENFORCED {
        let service = service_fn(|_: Request| async {
            let first = futures_util::stream::iter([Ok::<_, Infallible>(http_body::Frame::data(
                bytes::Bytes::from_static(b"first"),
            ))]);
            let rest = futures_util::stream::pending();
            Ok::<_, Infallible>(Response::new(StreamBody::new(futures_util::StreamExt::chain(first, rest))))
        });
        let service = idempotency(&Troubled::default(), mode).http().streaming().layer(service);
        let mut body = service.oneshot(request(Some("17"))).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(&first[..], b"first", "{mode:?}");
    }
}

/// In mode enforce, the layer records the failure, and answers with a problem in place of the handler's error. An answer
/// that's too large to record isn't replayed: its duplicate gets a problem.
#[tokio::test(start_paused = true)]
async fn unenforced_modes_pass_failed_and_large_answers() {
    const LARGER_THAN_RECORDED: usize = 9 << 20;
    let failing =
        service_fn(|_: Request| async { Err::<Response<Body>, _>(Failure::permanent("Final", "no")) });
    let large = service_fn(|_: Request| async {
        Ok::<_, Infallible>(Response::new(Body::Text("x".repeat(LARGER_THAN_RECORDED))))
    });
    for mode in NOT_ENFORCED {
        let idempotency = idempotency(&Troubled::default(), mode);
        let error = idempotency.http().layer(failing).oneshot(request(Some("17"))).await.unwrap_err();
        assert_eq!(error.to_string(), "no", "{mode:?}");
        for _ in 0..2 {
            let answer = idempotency.http().layer(large).oneshot(request(Some("18"))).await.unwrap();
            assert_eq!(
                (answer.status().as_u16(), answer.body().len()),
                (200, LARGER_THAN_RECORDED),
                "{mode:?}"
            );
        }
    }
    let enforced = idempotency(&Troubled::default(), Mode::Enforce);
    let answer = enforced.http().layer(failing).oneshot(request(Some("17"))).await.unwrap();
    assert_eq!(answer.status(), 500);
    for status in [200, 409] {
        let answer = enforced.http().layer(large).oneshot(request(Some("18"))).await.unwrap();
        assert_eq!(answer.status(), status);
    }
}
