//! A wrapper's description locates the records that the wrapper made for an event.

use std::{collections::BTreeSet, convert::Infallible, fs};

use lambda_http::{
    Body, Request, Response,
    http::{HeaderName, Method},
    request::LambdaRequest,
    tower::ServiceExt,
};
use lambda_idempotency::{
    ErrorKind, Failure, Fingerprint, Idempotency, Key, KeyFields, StoredKey,
    lambda::{
        Description, Located,
        batch::{DynamoDbRecord, KafkaRecord, KinesisRecord, SqsMessage},
        event::EventLayer,
        http::{HttpLayer, guarded},
        keys,
    },
    settings::{Execution, Mode},
    store::memory::MemoryStore,
};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json, value::RawValue};
use tower::{Layer, service_fn};

use crate::recording;

const REQUEST: &str = "8f5b2c70-4d1e-4a93-b6c8-0e7d9a3f1b52";

/// Returns an empty store, and the `Idempotency` of the function `shop` over this store.
fn shop() -> (MemoryStore, Idempotency) {
    recording::begin();
    let store = MemoryStore::new();
    (store.clone(), Idempotency::builder(store).function("shop").build().unwrap())
}

fn sample(name: &str) -> String {
    fs::read_to_string(format!("{}/events/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn context() -> Context {
    let mut context = Context::default();
    context.request_id = REQUEST.to_owned();
    context
}

fn delivery(event: &str) -> LambdaEvent<Box<RawValue>> {
    LambdaEvent::new(serde_json::from_str(event).unwrap(), context())
}

async fn deliver(layer: &EventLayer<Value>, event: &str) {
    let handler = service_fn(async |_: LambdaEvent<Value>| Ok::<_, lambda_runtime::Error>("done"));
    let _ = layer.layer(handler).oneshot(delivery(event)).await.unwrap();
}

async fn send(layer: &HttpLayer, event: &str) {
    let handler = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
    let event: LambdaRequest = serde_json::from_str(event).unwrap();
    let _ = guarded(layer.layer(handler)).oneshot(LambdaEvent::new(event, context())).await.unwrap();
}

type Found = BTreeSet<(String, Option<String>)>;

fn entry(key: &StoredKey, fingerprint: Option<Fingerprint>) -> (String, Option<String>) {
    (key.as_str().to_owned(), fingerprint.map(|fingerprint| fingerprint.to_string()))
}

/// The store's records: their ids and fingerprints.
fn made(store: &MemoryStore) -> Found {
    let made: Found = store.all().iter().map(|(key, record)| entry(key, Some(record.fingerprint))).collect();
    assert!(!made.is_empty());
    made
}

fn without_fingerprints(found: Found) -> Found {
    found.into_iter().map(|(id, _)| (id, None)).collect()
}

fn all(located: &[Located]) -> Found {
    located.iter().map(|located| entry(&located.key, located.fingerprint)).collect()
}

fn located(description: &Description, event: &str) -> Vec<Located> {
    description.locate(event.as_bytes(), &context(), None).unwrap()
}

fn parts(located: &[Located]) -> Vec<&str> {
    located.iter().filter_map(|located| located.part.as_deref()).collect()
}

fn refused(description: &Description, event: &str) -> String {
    let error = description.locate(event.as_bytes(), &Context::default(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error.to_string()
}

#[tokio::test]
async fn records_are_located_for_each_event_source() {
    for (name, fields) in [
        ("receipts/event-bridge.json", keys::event_bridge()),
        ("sources/sns.json", keys::sns()),
        ("sources/s3.json", keys::s3()),
        ("sources/scheduler.json", keys::scheduler()),
        ("sources/step-functions.json", keys::step_functions()),
    ] {
        let (store, idempotency) = shop();
        let (event, layer) = (sample(name), idempotency.events_by::<Value>(fields));
        deliver(&layer, &event).await;
        assert_eq!(all(&located(&layer.describe(), &event)), made(&store), "{name}");
        // The event doesn't show which fields the function compares, so `detect` finds no fingerprints.
        let detected = located(&Description::detect("shop", event.as_bytes()), &event);
        assert_eq!(all(&detected), without_fingerprints(made(&store)), "{name}");
        assert_eq!(parts(&detected), [""; 0], "{name}");
    }
}

#[tokio::test]
async fn record_of_each_batch_message_is_located() {
    let done = async |_| Ok::<_, Failure>("done");
    for (name, id) in [
        ("orders/sqs.json", "/messageId"),
        ("sources/kinesis.json", "/kinesis/sequenceNumber"),
        ("sources/dynamodb.json", "/dynamodb/SequenceNumber"),
        ("sources/kafka.json", ""),
    ] {
        let (store, idempotency) = shop();
        let event = sample(name);
        let _ = match name {
            "orders/sqs.json" => {
                idempotency.sqs(SqsMessage::message_key, done).oneshot(delivery(&event)).await
            }
            "sources/kinesis.json" => {
                let worker = idempotency.kinesis(KinesisRecord::sequence_key, async |_| Ok::<_, Failure>(()));
                worker.oneshot(delivery(&event)).await
            }
            "sources/kafka.json" => {
                let worker = idempotency.kafka(KafkaRecord::offset_key, async |_| Ok::<_, Failure>(()));
                worker.oneshot(delivery(&event)).await
            }
            _ => {
                let handler = async |_| Ok::<_, Failure>(());
                let worker = idempotency.dynamodb_stream(DynamoDbRecord::event_key, handler);
                worker.oneshot(delivery(&event)).await
            }
        };
        let found = located(&Description::detect("shop", event.as_bytes()), &event);
        assert_eq!(all(&found), made(&store), "{name}");
        if id.is_empty() {
            assert_eq!(parts(&found), ["orders-0@15", "orders-0@16", "orders-1@15"]);
            continue;
        }
        let event: Value = serde_json::from_str(&event).unwrap();
        let ids = event["Records"].as_array().unwrap().iter().map(|record| record.pointer(id).unwrap());
        assert_eq!(parts(&found), ids.map(|id| id.as_str().unwrap()).collect::<Vec<_>>(), "{name}");
    }
}

#[tokio::test]
async fn records_with_payload_keys_are_located() {
    let (store, idempotency) = shop();
    let event = sample("orders/sqs.json");
    let key = |message: &SqsMessage| Key::from_json(message, "/order_id");
    let worker = idempotency.sqs(key, async |_| Ok::<_, Failure>(())).source_name("orders");
    let mut description = worker.describe();
    assert_eq!((description.via.as_str(), description.key_from.as_deref()), ("sqs", Some("closure")));
    assert!(refused(&description, &event).contains("comes from a closure"));
    description.key_fields = vec!["/order_id".to_owned()];
    let _ = worker.oneshot(delivery(&event)).await.unwrap();
    assert_eq!(all(&located(&description, &event)), made(&store));
    description.source_name = None;
    assert_ne!(all(&located(&description, &event)), made(&store));
}

/// A pipe of EventBridge Pipes delivers an array, and identifies a stream's records by their events' ids.
#[tokio::test]
async fn records_of_pipes_are_located() {
    recording::begin();
    for (name, id) in [
        ("orders/sqs.json", "messageId"),
        ("sources/kinesis.json", "eventID"),
        ("sources/dynamodb.json", "eventID"),
    ] {
        let (event, mut records) = (sample(name), vec![]);
        for mut record in
            serde_json::from_str::<Value>(&event).unwrap()["Records"].as_array().unwrap().clone()
        {
            if let Some(Value::Object(nested)) = record.as_object_mut().unwrap().remove("kinesis") {
                record.as_object_mut().unwrap().extend(nested);
            }
            records.push(record);
        }
        let piped = Value::from(records.clone()).to_string();
        let found = located(&Description::detect("shop", piped.as_bytes()), &piped);
        assert_eq!(
            all(&found),
            all(&located(&Description::detect("shop", event.as_bytes()), &event)),
            "{name}"
        );
        assert_eq!(
            parts(&found),
            records.iter().map(|record| record[id].as_str().unwrap()).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn notifications_through_a_queue_are_located() {
    let (store, idempotency) = shop();
    let record = json!({ "messageId": "m1", "body": sample("sources/s3.json"), "eventSource": "aws:sqs" });
    let event = json!({ "Records": [record] }).to_string();
    let key = |message: &SqsMessage| keys::s3().key_of(message.as_ref());
    let worker = idempotency.sqs(key, async |_| Ok::<_, Failure>(()));
    let mut description = worker.describe();
    let _ = worker.oneshot(delivery(&event)).await.unwrap();
    assert!(refused(&description, &event).contains("comes from a closure"));
    description.key_from = Some("s3".to_owned());
    assert_eq!(all(&located(&description, &event)), made(&store));
}

#[test]
fn events_that_no_wrapper_takes_are_named() {
    recording::begin();
    let twice = |name: &str| {
        let mut event: Value = serde_json::from_str(&sample(name)).unwrap();
        let record = event["Records"][0].clone();
        event["Records"].as_array_mut().unwrap().push(record);
        event
    };
    let record: Value = serde_json::from_str(&sample("orders/sqs.json")).unwrap();
    for (event, says) in [
        (json!({ "eventSource": "aws:docdb", "events": [] }), "DocumentDB"),
        (record["Records"][0].clone(), "a single record of `aws:sqs` without its batch"),
        (json!({ "raw_path": "/", "method": "POST", "headers": {} }), "`LambdaEventStructureVersion`"),
        (twice("sources/s3.json"), "the key of `s3` identifies only one"),
        (twice("sources/sns.json"), "the key of `sns` identifies only one"),
    ] {
        let event = event.to_string();
        let told = refused(&Description::detect("shop", event.as_bytes()), &event);
        assert!(told.contains(says), "{told}");
    }
}

#[tokio::test]
async fn records_of_http_requests_are_located() {
    for name in ["http-api", "rest-api", "function-url", "alb"] {
        let (store, idempotency) = shop();
        let (event, layer) = (sample(&format!("payments/{name}.json")), idempotency.http());
        send(&layer, &event).await;
        for description in [layer.describe(), Description::detect("shop", event.as_bytes())] {
            assert_eq!(all(&located(&description, &event)), made(&store), "{name}");
        }
    }
    let without_key = sample("payments/http-api-get.json");
    assert_eq!(located(&Description::detect("shop", without_key.as_bytes()), &without_key), []);
}

#[tokio::test]
async fn http_keys_from_closures_are_never_guessed() {
    let (store, idempotency) = shop();
    let layer = idempotency.http().key(|_, _| Key::new("17"));
    let with_header = sample("payments/http-api.json");
    send(&layer, &with_header).await;
    assert_eq!(all(&located(&layer.describe(), &with_header)), made(&store));
    assert_eq!(located(&layer.describe(), &sample("payments/http-api-get.json")), []);
    let without_header = with_header.replace("idempotency-key", "x-other");
    assert!(refused(&layer.describe(), &without_header).contains("comes from a closure"));
}

#[tokio::test]
async fn record_is_located_under_custom_http_settings() {
    let (store, idempotency) = shop();
    let event = sample("payments/http-api.json");
    let layer = idempotency.http().operation("pay").unwrap().fingerprint_raw_body(true);
    let layer = layer.fingerprint_headers([HeaderName::from_static("host")]).api_name("payments");
    send(&layer, &event).await;
    assert_eq!(all(&located(&layer.describe(), &event)), made(&store));
    assert_ne!(all(&located(&idempotency.http().describe(), &event)), made(&store));
}

/// In AWS's own samples, the host of a function URL is a placeholder.
#[test]
fn placeholder_hosts_are_refused_in_words() {
    recording::begin();
    let host = "x7k2m9q4w1p5r8t3.lambda-url.eu-central-1.on.aws";
    let event = sample("payments/function-url.json").replace(host, "<url-id>.lambda-url.us-west-2.on.aws");
    let refusal = refused(&Description::detect("shop", event.as_bytes()), &event);
    assert!(refusal.contains("host, path and query") && refusal.contains("placeholder"), "{refusal}");
}

#[tokio::test]
async fn uncompared_parts_of_requests_are_located() {
    let event = sample("payments/http-api.json");
    let signed = event.replace("\"rawQueryString\": \"\"", "\"rawQueryString\": \"at=2\"");
    assert_ne!(signed, event);
    for layer in [|i: &Idempotency| i.http().ignore_query(["at"]), |i: &Idempotency| i.http().key_alone(true)]
    {
        let (store, idempotency) = shop();
        send(&layer(&idempotency), &event).await;
        assert_eq!(all(&located(&layer(&idempotency).describe(), &signed)), made(&store));
    }
}

#[tokio::test]
async fn only_requests_with_protected_methods_are_located() {
    let (store, idempotency) = shop();
    let post = sample("payments/http-api.json");
    let put = post.replace("\"POST\"", "\"PUT\"");
    assert_ne!(put, post);
    let layer = idempotency.http().methods([Method::PUT]);
    send(&layer, &put).await;
    let mut description = layer.describe();
    assert_eq!(all(&located(&description, &put)), made(&store));
    assert_eq!(located(&description, &post), []);
    description.methods = Some(vec!["NOT ONE".to_owned()]);
    assert!(refused(&description, &put).contains("\"NOT ONE\" isn't an HTTP method"));

    // No layer protects safe methods such as GET, so these two layers protect no request.
    let records = made(&store);
    for layer in [idempotency.http().methods([Method::GET]), idempotency.http().methods([])] {
        send(&layer, &post).await;
        assert_eq!(made(&store), records);
        let description = layer.describe();
        assert_eq!(located(&description, &post), []);
        let read: Description = serde_json::from_value(written(&description)).unwrap();
        assert_eq!(located(&read, &post), []);
    }
    let default = idempotency.http().describe();
    assert_eq!((default.methods.as_ref(), located(&default, &post).len()), (None, 1));
}

#[tokio::test]
async fn callers_from_closures_must_be_passed_in() {
    let (store, idempotency) = shop();
    let event = sample("payments/http-api.json");
    let layer = idempotency.http().caller(|_| Ok(Some("customer-7".to_owned())));
    send(&layer, &event).await;
    let description = layer.describe();
    assert!(refused(&description, &event).contains("names the caller"));
    let found = description.locate(event.as_bytes(), &context(), Some("customer-7")).unwrap();
    assert_eq!(all(&found), made(&store));
}

#[tokio::test]
async fn records_by_request_id_are_located() {
    let (store, idempotency) = shop();
    let (event, layer) = (sample("sources/async-invoke.json"), idempotency.events_by_request_id());
    deliver(&layer, &event).await;
    let description = layer.describe();
    assert_eq!(description.key_from.as_deref(), Some("request id"));
    assert_eq!(all(&located(&description, &event)), made(&store));
    assert!(refused(&description, &event).contains("request id; pass that id"));
}

#[tokio::test]
async fn steps_on_broker_messages_are_located() {
    for (name, lists, count) in [("activemq", "messages", 2), ("rabbitmq", "rmqMessagesByQueue", 2)] {
        let (store, idempotency) = shop();
        let ship = idempotency.operation("ship").unwrap();
        let event = sample(&format!("sources/{name}.json"));
        let json: Value = serde_json::from_str(&event).unwrap();
        let fields = |queue: &str| keys::mq_message(json["eventSourceArn"].as_str().unwrap(), queue);
        let records: Vec<(&str, &Value)> = match &json[lists] {
            Value::Object(lists) => {
                let of = lists.iter().flat_map(|(name, list)| {
                    list.as_array().unwrap().iter().map(move |record| (name.as_str(), record))
                });
                of.collect()
            }
            list => list.as_array().unwrap().iter().map(|message| ("orders", message)).collect(),
        };
        assert_eq!(records.len(), count, "{name}");
        for (queue, record) in records {
            let key = fields(queue).key_of(record.to_string().as_bytes()).unwrap().unwrap();
            ship.run(key, record, || async { Ok::<_, std::io::Error>(()) }).await.unwrap();
        }
        let mut description = Description::detect("shop", event.as_bytes());
        assert!(refused(&description, &event).contains("a step needs its name"), "{name}");
        description.operation = Some("ship".to_owned());
        let found = located(&description, &event);
        assert_eq!(all(&found), without_fingerprints(made(&store)), "{name}");
        assert_eq!(parts(&found), ["record 0", "record 1", "record 2"][..count], "{name}");
    }
}

#[tokio::test]
async fn steps_for_a_caller_are_located() {
    let (store, idempotency) = shop();
    let event = sample("refunds/invoke.json");
    let step = idempotency.operation("refund").unwrap();
    let mut description = step.describe();
    assert_eq!(description.key_from.as_deref(), Some("closure"));
    assert!(refused(&description, &event).contains("name the fields"));
    description.key_fields = vec!["/refund_id".to_owned()];
    let key = Key::from_json(&event, "/refund_id").unwrap().unwrap();
    let refund = || async { Ok::<_, std::io::Error>(()) };
    step.for_caller("customer-7").unwrap().run(key, &1, refund).await.unwrap();
    let of = |caller| description.locate(event.as_bytes(), &context(), caller).unwrap();
    assert_eq!(all(&of(Some("customer-7"))), without_fingerprints(made(&store)));
    assert_ne!(all(&of(None)), all(&of(Some("customer-7"))));
    let mut of_tenant = context();
    of_tenant.tenant_id = Some("blue".to_owned());
    let step = idempotency.for_context(&of_tenant).operation("refund").unwrap();
    let key = Key::from_json(&event, "/refund_id").unwrap().unwrap();
    let located = description.locate(event.as_bytes(), &of_tenant, None).unwrap();
    assert_eq!(located[0].key, step.stored_key(&key));
}

#[test]
fn sources_are_detected_by_their_fields() {
    recording::begin();
    for (event, via, keyed) in [
        (json!({ "headers": {}, "multiValueHeaders": {} }), "event", &[][..]),
        (json!({ "requestContext": {} }), "event", &[]),
        (json!({ "requestContext": {}, "multiValueHeaders": {} }), "http", &[]),
        (json!({ "source": "web-shop" }), "event", &[]),
        (json!({ "source": "web-shop", "detail-type": "placed" }), "event", &["/id"]),
        (json!({ "source": "aws.scheduler" }), "event", &["/resources/0", "/time"]),
        (json!({ "execution": "e" }), "event", &[]),
        (json!({ "state": "s" }), "event", &[]),
        (json!({ "execution": "e", "state": "s" }), "event", &["/execution", "/state", "/entered", "/item"]),
        (json!({ "Records": [{ "eventSource": "aws:codecommit" }] }), "event", &[]),
        (json!([{ "eventSource": "aws:sqs" }]), "sqs", &[]),
        (json!([{ "eventSource": "aws:kinesis" }]), "kinesis", &[]),
        (json!([{ "eventSource": "aws:dynamodb" }]), "dynamodb", &[]),
        (json!({ "raw_path": "/", "method": "POST", "headers": {} }), "http", &[]),
        (json!({ "raw_path": "/", "method": "POST" }), "event", &[]),
        (json!("no object"), "event", &[]),
    ] {
        let detected = Description::detect("shop", event.to_string().as_bytes());
        assert_eq!((detected.function.as_str(), detected.via.as_str()), ("shop", via), "{event}");
        assert_eq!(detected.key_fields, keyed, "{event}");
        if keyed.is_empty() && via == "event" {
            assert!(
                refused(&detected, &event.to_string()).contains("has no key for this event's source"),
                "{event}"
            );
        }
    }
}

/// Returns a description's JSON without its store, which may come from the test's environment.
fn written(description: &Description) -> Value {
    let mut json = serde_json::to_value(description).unwrap();
    json.as_object_mut().unwrap().remove("store");
    json
}

#[test]
fn descriptions_list_every_changed_setting() {
    recording::begin();
    let builder = Idempotency::builder(MemoryStore::new()).function("shop").operation("charge");
    let builder = builder
        .execution(Execution::AtMostOnce)
        .settings(|s| s.skew_margin = std::time::Duration::from_secs(7));
    let idempotency = builder.mode(Mode::Shadow).build().unwrap();
    let fields = KeyFields::new(["/order", "/line"]).unwrap().all_required();
    let http = idempotency.http().key_alias(HeaderName::from_static("x-key")).key_fields(fields.clone());
    let http = http.caller(|_| Ok(None)).shared_namespace().api_name("payments").ignore_cookies(["theme"]);
    let http = http.fingerprint_headers([HeaderName::from_static("prefer")]).fingerprint_raw_body(true);
    let http = http.methods([Method::PUT, Method::POST]).path(|_| None);
    let http = http.credential_headers([HeaderName::from_static("x-member")]);
    let http = http.methods([Method::PUT, Method::POST]).ignore_query(["at", "X-Amz-*"]).key_alone(true);
    let of_all = json!({
        "function": "shop", "operation": "charge", "at_most_once": true, "skew_margin_ms": 7000, "mode": "shadow",
    });
    let with = |more: Value| {
        let mut all = of_all.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let event = idempotency.events_by::<Value>(keys::step_functions());
    let sns = idempotency.events_by::<Value>(keys::sns());
    let queue = idempotency.sqs(SqsMessage::message_key, async |_| Ok::<_, Failure>(()));
    for (description, expected) in [
        (
            http.describe(),
            json!({
                "via": "http", "key_headers": ["idempotency-key", "x-key"], "methods": ["PUT", "POST"],
                "key_fields": ["/order", "/line"],
                "required_key_fields": 2, "caller_from_closure": true, "shared_namespace": true,
                "api_name": "payments", "ignored_cookies": ["theme"], "compared_headers": ["prefer"],
                "credential_headers": ["x-member"], "path_from_closure": true,
                "raw_body": true, "ignored_query": ["at", "X-Amz-*"], "key_alone": true,
            }),
        ),
        (
            event.fingerprint_fields(["/order"]).unwrap().describe(),
            json!({
                "via": "event", "key_from": "step_functions", "key_fields": ["/execution", "/state", "/entered", "/item"],
                "required_key_fields": 3, "compared_fields": ["/order"],
            }),
        ),
        (
            sns.describe(),
            json!({
                "via": "event", "key_from": "sns", "key_fields": ["/Records/0/Sns/MessageId"],
                "required_key_fields": 1,
                "compared_fields": [
                    "/Records/0/Sns/TopicArn", "/Records/0/Sns/Subject", "/Records/0/Sns/Message",
                    "/Records/0/Sns/MessageAttributes",
                ],
            }),
        ),
        (
            queue.fingerprint_fields(["/order"]).unwrap().describe(),
            json!({ "via": "sqs", "key_from": "closure", "compared_fields": ["/order"] }),
        ),
        (
            idempotency.operation("refund").unwrap().describe(),
            json!({
                "via": "run", "operation": "refund", "key_from": "closure",
            }),
        ),
    ] {
        assert_eq!(written(&description), with(expected));
        let read: Description = serde_json::from_value(serde_json::to_value(&description).unwrap()).unwrap();
        assert_eq!(read, description);
    }
}

#[test]
fn descriptions_leave_out_defaults() {
    let (_, idempotency) = shop();
    let margin = idempotency.settings().skew_margin.as_millis();
    let layer = idempotency.events_by::<Value>(KeyFields::new(["/id"]).unwrap());
    assert_eq!(
        written(&layer.describe()),
        json!({
            "function": "shop", "via": "event", "key_fields": ["/id"], "skew_margin_ms": margin,
            "mode": "enforce",
        })
    );
}

#[test]
fn modes_are_read_by_name() {
    recording::begin();
    let mut description = Description::new("shop", "event");
    assert_eq!(description.mode().unwrap(), None);
    for mode in [Mode::Off, Mode::Shadow, Mode::Enforce] {
        description.mode = Some(mode.as_str().to_owned());
        assert_eq!(description.mode().unwrap(), Some(mode));
    }
    description.mode = Some("maybe".to_owned());
    assert_eq!(description.mode().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(refused(&Description::new("shop", "ftp"), "{}").contains("isn't a wrapper"));
}

/// Delivers one record, and returns what its handler sees.
async fn seen<R>(
    worker: impl FnOnce(&Idempotency, std::sync::mpsc::Sender<Vec<String>>) -> R,
    record: Value,
) -> Vec<String>
where
    R: tower::Service<LambdaEvent<Box<RawValue>>, Error: std::fmt::Debug> + 'static,
{
    let (_, idempotency) = shop();
    let (tell, told) = std::sync::mpsc::channel();
    let worker = worker(&idempotency, tell);
    let _ = worker.oneshot(delivery(&json!({ "Records": [record] }).to_string())).await.unwrap();
    told.recv().unwrap()
}

#[tokio::test]
async fn record_fields_reach_the_handler() {
    let sqs = seen(
        |idempotency, tell| {
            idempotency.sqs(SqsMessage::message_key, move |message: SqsMessage| {
                let attributes = [message.group_id(), message.attribute("ApproximateReceiveCount")];
                let mut all: Vec<_> = attributes.map(|text| text.unwrap().to_owned()).into();
                all.extend([message.queue_arn(), message.receipt_handle()].map(str::to_owned));
                tell.send(all).unwrap();
                async { Ok::<_, Failure>(()) }
            })
        },
        json!({
            "messageId": "m1", "receiptHandle": "handle-1", "body": "{}", "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
            "attributes": { "MessageGroupId": "group-1", "ApproximateReceiveCount": "3" },
        }),
    );
    assert_eq!(sqs.await, ["group-1", "3", "arn:aws:sqs:eu-west-1:1:orders", "handle-1"]);
    let kinesis = seen(
        |idempotency, tell| {
            idempotency.kinesis(KinesisRecord::sequence_key, move |record: KinesisRecord| {
                tell.send([record.sequence_number(), record.partition_key()].map(str::to_owned).into())
                    .unwrap();
                async { Ok::<_, Failure>(()) }
            })
        },
        json!({
            "eventID": "shardId-0:103", "eventSource": "aws:kinesis",
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/orders",
            "kinesis": { "partitionKey": "customer-7", "sequenceNumber": "103", "data": "e30=" },
        }),
    );
    assert_eq!(kinesis.await, ["103", "customer-7"]);
    let change = seen(
        |idempotency, tell| {
            idempotency.dynamodb_stream(DynamoDbRecord::event_key, move |record: DynamoDbRecord| {
                tell.send([record.sequence_number(), record.event_name()].map(str::to_owned).into()).unwrap();
                async { Ok::<_, Failure>(()) }
            })
        },
        json!({
            "eventID": "e1", "eventName": "MODIFY", "eventSource": "aws:dynamodb",
            "eventSourceARN": "arn:aws:dynamodb:eu-west-1:1:table/orders/stream/2026-11-01T08:00:00.000",
            "dynamodb": { "SequenceNumber": "4421", "Keys": {} },
        }),
    );
    assert_eq!(change.await, ["4421", "MODIFY"]);
}
