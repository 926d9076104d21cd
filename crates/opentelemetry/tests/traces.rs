//! Deliveries in several traces, exported by OpenTelemetry's own exporter to a receiver on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    env, fs,
    path::Path,
    sync::{Arc, Mutex},
};

use lambda_http::tower::Layer as _;
use lambda_idempotency::{
    Begun, Failure, Fingerprint, Idempotency, Key, KeyFields, Settled,
    lambda::batch::{KafkaRecord, SqsMessage},
    store::memory::MemoryStore,
};
use lambda_idempotency_testing::drawing::{Event, Part, Tone, svg};
use lambda_runtime::{Context, LambdaEvent, Service as _, service_fn};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::{Value, json};
use testkit::http_server::{Reply, Server};
use tracing::{Instrument as _, Span};
use tracing_subscriber::layer::SubscriberExt as _;

const SECRET: &str = "order-17-of-alice";
const SENT: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SENDER: &str = "00f067aa0ba902b7";

/// The spans named `operation` in what the receiver got, and all spans' ids with their names.
struct Exported {
    operations: Vec<Value>,
    names: BTreeMap<String, String>,
    text: String,
}

impl Exported {
    fn of(bodies: &[Vec<u8>]) -> Self {
        let mut text = String::new();
        let (mut operations, mut names) = (Vec::new(), BTreeMap::new());
        for body in bodies {
            text += std::str::from_utf8(body).unwrap();
            let body: Value = serde_json::from_slice(body).unwrap();
            let scopes = body["resourceSpans"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|one| one["scopeSpans"].as_array().unwrap());
            for span in scopes.flat_map(|scope| scope["spans"].as_array().unwrap()) {
                names.insert(text_of(&span["spanId"]), text_of(&span["name"]));
                if span["name"] == "operation" {
                    operations.push(span.clone());
                }
            }
        }
        operations.sort_by_key(|span| text_of(&span["startTimeUnixNano"]).parse::<u64>().unwrap());
        Self { operations, names, text }
    }

    /// The operations whose id contains `part`.
    fn of_id(&self, part: &str) -> Vec<&Value> {
        self.operations.iter().filter(|span| attribute(span, "id").as_str().unwrap().contains(part)).collect()
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The attribute's value, without OTLP's type. JSON's form of an integer is a text.
fn attribute(span: &Value, name: &str) -> Value {
    let all = span["attributes"].as_array().unwrap();
    let named = all.iter().find(|one| one["key"] == name);
    named.map_or(Value::Null, |one| one["value"].as_object().unwrap().values().next().unwrap().clone())
}

fn ended(span: &Value) -> (Value, Value, Value) {
    (attribute(span, "attempt"), attribute(span, "outcome"), attribute(span, "kind"))
}

async fn pay(idempotency: &Idempotency, cents: u32) {
    let pay = idempotency.operation("pay").unwrap();
    let paying = pay.run(Key::new(SECRET).unwrap(), &cents, async || Ok::<_, Infallible>("paid".to_owned()));
    // Each delivery is in its own trace.
    let _ = paying.instrument(tracing::info_span!(parent: None, "delivery")).await;
}

fn message(id: &str, sent: &Value, attributes: &Value) -> Value {
    json!({
        "messageId": id, "receiptHandle": "r", "body": "{}", "attributes": sent, "messageAttributes": attributes,
        "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:111122223333:orders",
    })
}

/// Ten messages at once. The first has X-Ray's header, the second a `traceparent`, and the rest have none.
async fn work(idempotency: &Idempotency) {
    let mut worker = idempotency.sqs(
        |message: &_| SqsMessage::message_key(message),
        async |_| {
            tokio::task::yield_now().await;
            Ok::<_, Failure>(())
        },
    );
    let records: Vec<Value> = (0..10)
        .map(|nth| {
            let (root, tail) = SENT.split_at(8);
            let sent = format!("Root=1-{root}-{tail};Parent={SENDER};Sampled=1");
            let traceparent =
                json!({ "dataType": "String", "stringValue": format!("00-{SENT}-{SENDER}-01") });
            match nth {
                0 => message("m0", &json!({ "AWSTraceHeader": sent }), &json!({})),
                1 => message("m1", &json!({}), &json!({ "traceparent": traceparent })),
                nth => message(&format!("m{nth}"), &json!({}), &json!({})),
            }
        })
        .collect();
    let event = serde_json::value::to_raw_value(&json!({ "Records": records })).unwrap();
    let answer = worker.call(LambdaEvent::new(event, Context::default()));
    answer.instrument(tracing::info_span!(parent: None, "invocation")).await.unwrap();
}

/// A Kafka record with a `traceparent`.
async fn consume(idempotency: &Idempotency) {
    let traceparent = format!("00-{SENT}-{SENDER}-01").into_bytes();
    let event = json!({
        "eventSource": "aws:kafka", "eventSourceArn": "arn:aws:kafka:eu-west-1:111122223333:cluster/c/1", "bootstrapServers": "b",
        "records": { "orders-0": [{
            "topic": "orders", "partition": 0, "offset": 7, "timestamp": 1, "timestampType": "CREATE_TIME",
            "value": "e30=", "headers": [{ "traceparent": traceparent }],
        }] },
    });
    let mut worker = idempotency.kafka(KafkaRecord::offset_key, async |_| Ok::<_, Failure>(()));
    let event = serde_json::value::to_raw_value(&event).unwrap();
    worker.call(LambdaEvent::new(event, Context::default())).await.unwrap();
}

/// An operation that isn't a closure, its duplicate, and one that's released.
async fn ship(idempotency: &Idempotency) {
    let ship = idempotency.operation("ship").unwrap();
    for key in [SECRET, SECRET, "another order"] {
        let delivery = async {
            let begun = ship.begin(Key::new(key).unwrap(), Fingerprint::of_bytes(b"1")).await.unwrap();
            let Begun::Claimed(claim) = begun else { return };
            if key == SECRET {
                assert!(matches!(claim.complete("{}").await.unwrap(), Settled::Recorded));
            } else {
                // The memory store has no transactions, so the claim is still held.
                claim.commit("{}", ()).await.unwrap_err().into_claim().unwrap().release().await.unwrap();
            }
        };
        delivery.instrument(tracing::info_span!(parent: None, "delivery")).await;
    }
}

/// A header that names the sender's trace, with whether the sender samples the trace.
fn received() -> [(&'static str, String, bool); 4] {
    let (root, tail) = SENT.split_at(8);
    let xray = |flag| format!("Root=1-{root}-{tail};Parent={SENDER};Sampled={flag}");
    [
        ("traceparent", format!("00-{SENT}-{SENDER}-01"), true),
        ("traceparent", format!("00-{SENT}-{SENDER}-00"), false),
        ("x-amzn-trace-id", xray(1), true),
        ("x-amzn-trace-id", xray(0), false),
    ]
}

/// An HTTP request with each header, and an event in an invocation with each header of X-Ray.
async fn receive() {
    for (nth, (name, header, _)) in received().into_iter().enumerate() {
        let idempotency = Idempotency::builder(MemoryStore::new()).function(format!("received-{nth}"));
        let idempotency = idempotency.build().unwrap();
        // Also with nothing around.
        let delivery = || if nth == 1 { Span::none() } else { tracing::info_span!(parent: None, "delivery") };
        let request =
            lambda_http::http::Request::post("/").header("idempotency-key", "k").header(name, &header);
        let paid = service_fn(async |_: lambda_http::Request| Ok::<_, Infallible>("paid"));
        let paying = idempotency.http().layer(paid).call(request.body(lambda_http::Body::Empty).unwrap());
        assert_eq!(paying.instrument(delivery()).await.unwrap().status(), 200);
        if name == "traceparent" {
            continue;
        }
        let mut context = Context::default();
        context.xray_trace_id = Some(header);
        let event = serde_json::value::to_raw_value(&json!({ "id": 1 })).unwrap();
        let shipped = service_fn(async |_: LambdaEvent<Value>| Ok::<_, lambda_runtime::Error>(json!({})));
        let mut ship = idempotency.events_by(KeyFields::new(["/id"]).unwrap()).layer(shipped);
        ship.call(LambdaEvent::new(event, context)).instrument(delivery()).await.unwrap();
    }
}

/// Checks that `replay` has one link, to `run` in another trace.
fn assert_linked(replay: &Value, run: &Value) {
    assert_eq!(attribute(run, "generation"), attribute(replay, "generation"));
    assert_ne!(run["traceId"], replay["traceId"]);
    let links = replay["links"].as_array().unwrap();
    assert_eq!(links.len(), 1);
    assert_eq!((&links[0]["traceId"], &links[0]["spanId"]), (&run["traceId"], &run["spanId"]));
}

/// Checks that the guide draws what the receiver got. `ACCEPT=1` writes the drawing.
fn assert_drawn(exported: &Exported, run: &Value, replay: &Value) {
    let traces = ["the first delivery", "its duplicate"];
    let spans = |trace, span: &Value| {
        let [attempt, outcome] = ["attempt", "outcome"].map(|name| text_of(&attribute(span, name)));
        let parent = exported.names[&text_of(&span["parentSpanId"])].clone();
        let text = format!("{}: attempt {attempt}, {outcome}", text_of(&span["name"]));
        [Event::mark(trace, format!("{parent} begins")), Event::mark(trace, text)]
    };
    let linked = replay["links"][0]["spanId"] == run["spanId"];
    let link = Event::arrow(traces[1], traces[0], "links to the run of its answer", Tone::Good);
    let events =
        spans(traces[0], run).into_iter().chain(spans(traces[1], replay)).chain(linked.then_some(link));
    let part = Part { events: events.collect(), ..Part::default() };
    let drawing =
        svg("A replay is linked to the run of its answer", &traces.map(str::to_owned), &[part], true);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/guide/drawn/traces.svg");
    if env::var("ACCEPT").as_deref() == Ok("1") {
        fs::write(&file, &drawing).unwrap();
    }
    assert_eq!(fs::read_to_string(file).unwrap_or_default(), drawing, "accept it with ACCEPT=1");
}

#[test]
fn replay_links_to_run_of_its_answer() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&bodies);
    let receiver = runtime.block_on(Server::start(move |received| {
        kept.lock().unwrap().push(received.body);
        async { Reply::Whole(200, vec![("content-type".into(), "application/json".into())], b"{}".to_vec()) }
    }));
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(receiver.url("/v1/traces"))
        .build()
        .unwrap();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("payments"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    lambda_idempotency_opentelemetry::connect();

    let idempotency = Idempotency::builder(MemoryStore::new()).function("payments").build().unwrap();
    runtime.block_on(async {
        pay(&idempotency, 1250).await;
        pay(&idempotency, 1250).await;
        pay(&idempotency, 9900).await;
        work(&idempotency).await;
        ship(&idempotency).await;
        receive().await;
        consume(&idempotency).await;
    });
    provider.force_flush().unwrap();
    let exported = Exported::of(&bodies.lock().unwrap());

    let [run, replay, refused] = exported.of_id("pay#")[..] else { panic!("{}", exported.text) };
    assert_eq!(ended(run), (json!("1"), json!("completed"), Value::Null));
    assert_eq!(ended(replay), (json!("1"), json!("replayed"), Value::Null));
    assert_eq!(ended(refused), (Value::Null, json!("refused"), json!("Mismatch")));
    assert_linked(replay, run);
    assert_eq!(exported.names[&text_of(&replay["parentSpanId"])], "delivery");
    assert_drawn(&exported, run, replay);

    let [shipped, again, released] = exported.of_id("ship#")[..] else { panic!("{}", exported.text) };
    assert_eq!(ended(shipped), (json!("1"), json!("completed"), Value::Null));
    assert_eq!(ended(again), (json!("1"), json!("replayed"), Value::Null));
    assert_eq!(ended(released), (json!("1"), json!("released"), Value::Null));
    assert_linked(again, shipped);

    for (nth, (name, header, is_sampled)) in received().into_iter().enumerate() {
        let spans = exported.of_id(&format!("received-{nth}"));
        assert_eq!(spans.len(), if name == "traceparent" { 1 } else { 2 }, "{header}: {}", exported.text);
        for span in spans {
            let parent = exported.names.get(&text_of(&span["parentSpanId"])).map(String::as_str);
            let links = span["links"].as_array().map_or(&[][..], Vec::as_slice);
            let is_linked = links.iter().any(|link| link["traceId"] == SENT);
            let is_continued = span["traceId"] == SENT && span["parentSpanId"] == SENDER;
            // Otherwise a sender could switch the span off.
            let expected = match nth {
                _ if is_sampled => (true, None, false),
                1 => (false, None, true),
                _ => (false, Some("delivery"), true),
            };
            assert_eq!((is_continued, parent, is_linked), expected, "{header}");
        }
    }

    let records = exported.of_id("sqs");
    assert_eq!(records.len(), 10, "{}", exported.text);
    let ids: std::collections::BTreeSet<_> =
        records.iter().map(|span| text_of(&attribute(span, "id"))).collect();
    assert_eq!(ids.len(), 10);
    let (continued, inside): (Vec<_>, Vec<_>) = records.into_iter().partition(|span| span["traceId"] == SENT);
    assert_eq!((continued.len(), inside.len()), (2, 8));
    for span in continued {
        assert_eq!(span["parentSpanId"], SENDER);
        // To the invocation that processes it.
        assert_eq!(exported.names[&text_of(&span["links"][0]["spanId"])], "invocation");
    }
    for span in inside {
        assert_eq!(exported.names[&text_of(&span["parentSpanId"])], "invocation");
    }
    let [consumed] = exported.of_id("kafka")[..] else { panic!("{}", exported.text) };
    assert_eq!((&consumed["traceId"], &consumed["parentSpanId"]), (&json!(SENT), &json!(SENDER)));
    assert!(!exported.text.contains(SECRET), "{}", exported.text);
}
