//! Records in every form that a source may deliver: their sources' names, what's compared, odd values, pipes and
//! aggregates.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use lambda_idempotency::{
    Error, KeyFields,
    lambda::{
        batch::{DynamoDbRecord, KinesisRecord},
        keys,
    },
};
use serde_json::Value;

use super::{
    support::{Worker, deliver},
    *,
};

/// The three sources.
const SOURCES: [&str; 3] = ["sqs", "kinesis", "dynamodb"];

/// A record with this content from the source's resource of this name. Its identifier is `r` and the number.
fn record(source: &str, resource: &str, number: u32, content: &Value) -> Value {
    let id = format!("r{number}");
    match source {
        "sqs" => json!({
            "messageId": id, "receiptHandle": "handle", "body": content.to_string(),
            "attributes": { "MessageGroupId": "one", "SequenceNumber": id, "ApproximateReceiveCount": "1" },
            "messageAttributes": {}, "md5OfBody": "", "eventSource": "aws:sqs", "awsRegion": "eu-west-1",
            "eventSourceARN": format!("arn:aws:sqs:eu-west-1:1:{resource}"),
        }),
        "kinesis" => json!({
            "kinesis": {
                "kinesisSchemaVersion": "1.0", "partitionKey": "one", "sequenceNumber": id,
                "data": BASE64_STANDARD.encode(content.to_string()), "approximateArrivalTimestamp": 1.5,
            },
            "eventSource": "aws:kinesis", "eventID": format!("shard:{id}"), "awsRegion": "eu-west-1",
            "eventName": "aws:kinesis:record", "invokeIdentityArn": "arn:aws:iam::1:role/f",
            "eventSourceARN": format!("arn:aws:kinesis:eu-west-1:1:stream/{resource}"),
        }),
        _ => json!({
            "eventID": format!("event {id}"), "eventName": "INSERT", "eventSource": "aws:dynamodb",
            "awsRegion": "eu-west-1", "eventVersion": "1.1",
            "dynamodb": {
                "Keys": { "id": { "S": content["order"] } }, "NewImage": content, "SequenceNumber": id,
                "SizeBytes": 26, "StreamViewType": "NEW_IMAGE", "ApproximateCreationDateTime": 1,
            },
            "eventSourceARN": format!("arn:aws:dynamodb:eu-west-1:1:table/{resource}/stream/2026-11-01T08:00:00.000"),
        }),
    }
}

fn batch(records: impl IntoIterator<Item = Value>) -> Value {
    json!({ "Records": records.into_iter().collect::<Vec<_>>() })
}

/// The form in which a pipe delivers the records.
fn piped(records: impl IntoIterator<Item = Value>) -> Value {
    let flat = |mut record: Value| {
        if let Some(Value::Object(nested)) = record.as_object_mut().unwrap().remove("kinesis") {
            record.as_object_mut().unwrap().extend(nested);
        }
        record
    };
    records.into_iter().map(flat).collect()
}

/// Delivers the batches to a worker for the source, one after the other. The worker takes each key from the record's
/// content, and compares `compared`. Returns the identifiers of the records that each batch returns, and the number of
/// runs.
async fn delivered(
    source: &str,
    key: impl Fn(&[u8]) -> Result<Option<Key>, Error> + Send + Sync + 'static,
    compared: &[&str],
    batches: impl IntoIterator<Item = Value>,
) -> (Vec<Vec<String>>, usize) {
    async fn all(
        worker: impl Worker,
        batches: impl IntoIterator<Item = Value>,
        runs: &Mutex<usize>,
    ) -> (Vec<Vec<String>>, usize) {
        let mut returned = Vec::new();
        for batch in batches {
            returned.push(deliver(&worker, &batch).await);
        }
        (returned, *runs.lock().unwrap())
    }
    let bench = Bench::in_memory();
    let runs = Arc::new(Mutex::new(0));
    let count = Arc::clone(&runs);
    let ran = move || {
        *count.lock().unwrap() += 1;
        async { Ok::<_, Failure>(()) }
    };
    macro_rules! worker {
        ($source:ident, $content:expr) => {{
            let worker = bench.idempotency.$source(move |record| key($content(record)), move |_| ran());
            match compared {
                [] => worker,
                fields => worker.fingerprint_fields(fields.iter().copied()).unwrap(),
            }
        }};
    }
    match source {
        "kinesis" => all(worker!(kinesis, KinesisRecord::data), batches, &runs).await,
        "dynamodb" => {
            let worker = worker!(dynamodb_stream, <DynamoDbRecord as AsRef<[u8]>>::as_ref);
            all(worker, batches, &runs).await
        }
        _ => all(worker!(sqs, <SqsMessage as AsRef<[u8]>>::as_ref), batches, &runs).await,
    }
}

fn by_order(source: &str) -> impl Fn(&[u8]) -> Result<Option<Key>, Error> + Send + Sync + use<> {
    let field = if source == "dynamodb" { "/Keys/id/S" } else { "/order" };
    move |content: &[u8]| Key::from_json(content, field)
}

/// A name may be one of the ARN's own words.
#[tokio::test]
async fn sources_share_no_keys_whatever_their_names() {
    let names = ["orders", "stream", "consumer", "table", "a.b-c_d"];
    for source in SOURCES {
        let batches = names.map(|name| batch([record(source, name, 1, &json!({ "order": "17" }))]));
        let (returned, runs) = delivered(source, by_order(source), &[], batches).await;
        assert!(returned.iter().all(Vec::is_empty), "{source}: {returned:?}");
        assert_eq!(runs, names.len(), "{source}");
    }
}

/// The events of sources that may come through a queue or a stream, each with its key and a second copy of it.
fn copies() -> Vec<(&'static str, KeyFields, Value, Value)> {
    macro_rules! event {
        ($name:literal) => {
            serde_json::from_str::<Value>(include_str!(concat!("../../../events/", $name))).unwrap()
        };
    }
    let with = |event: &Value, fields: &[(&str, &str)]| {
        let mut copy = event.clone();
        for (pointer, value) in fields {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            copy.pointer_mut(parent).unwrap()[name] = (*value).into();
        }
        copy
    };
    let bus = event!("receipts/event-bridge.json");
    let replay = with(&bus, &[("/replay-name", "after-the-outage")]);
    let s3 = event!("sources/s3.json");
    let of_request = "/Records/0/responseElements/x-amz-request-id";
    let s3_again = with(&s3, &[("/Records/0/eventTime", "2026-11-20T09:18:51.412Z"), (of_request, "7B2A")]);
    let sns = event!("sources/sns.json");
    let sns_again = with(&sns, &[("/Records/0/EventSubscriptionArn", "another")]);
    let envelope = sns.pointer("/Records/0/Sns").unwrap();
    let signed = with(envelope, &[("/Signature", "another"), ("/Timestamp", "2026-11-20T09:18:52.000Z")]);
    let schedule = event!("sources/scheduler.json");
    let rescheduled = with(&schedule, &[("/id", "another")]);
    vec![
        ("event_bridge", keys::event_bridge(), bus, replay),
        ("s3", keys::s3(), s3, s3_again),
        ("sns", keys::sns(), sns.clone(), sns_again),
        ("sns envelope", keys::sns(), envelope.clone(), signed),
        ("scheduler", keys::scheduler(), schedule, rescheduled),
    ]
}

#[tokio::test]
async fn copied_notifications_are_duplicates_through_queues() {
    for (name, fields, one, two) in copies() {
        assert_ne!(one, two, "{name}");
        for (source, resource) in [("sqs", "orders"), ("sqs", "orders.fifo"), ("kinesis", "orders")] {
            let key = fields.clone();
            let key = move |content: &[u8]| key.key_of(content);
            let batches = [&one, &two, &two].into_iter().zip(1..);
            let batches = batches.map(|(body, number)| batch([record(source, resource, number, body)]));
            let (returned, runs) = delivered(source, key, &[], batches).await;
            assert!(
                returned.iter().all(Vec::is_empty),
                "{name} through {resource} of {source}: {returned:?}"
            );
            assert_eq!(runs, 1, "{name} through {resource} of {source}");
        }
    }
    // The content is compared: the same notification about something else is a mismatch.
    let (_, fields, one, mut two) = copies().remove(0);
    two["detail"]["amount_cents"] = 1.into();
    let batches = [one, two].into_iter().zip(1..);
    let batches = batches.map(|(body, number)| batch([record("sqs", "orders", number, &body)]));
    let (returned, runs) = delivered("sqs", move |content| fields.key_of(content), &[], batches).await;
    assert_eq!((returned, runs), (vec![vec![], vec!["r2".into()]], 1));
}

#[tokio::test]
async fn only_chosen_fields_of_records_are_compared() {
    let (order, changed) = (json!({ "order": "17", "sent_at": 1 }), json!({ "order": "17", "sent_at": 2 }));
    for source in SOURCES {
        let field = if source == "dynamodb" { "/NewImage/order" } else { "/order" };
        let batches = || {
            [&order, &changed].map(|order| order["sent_at"].as_u64().map(|at| (at as u32, order)).unwrap())
        };
        let batches = || batches().map(|(number, order)| batch([record(source, "orders", number, order)]));
        let (returned, runs) = delivered(source, by_order(source), &[field], batches()).await;
        assert_eq!((returned, runs), (vec![vec![]; 2], 1), "{source}");
        // Without a choice, or if no chosen field has a value, the whole content is compared.
        for compared in [&[][..], &["/absent"]] {
            let (returned, runs) = delivered(source, by_order(source), compared, batches()).await;
            assert_eq!((returned, runs), (vec![vec![], vec!["r2".into()]], 1), "{source}: {compared:?}");
        }
    }
    let worker = Bench::in_memory().worker(by_id);
    assert_eq!(worker.fingerprint_fields([]).unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn records_with_odd_optional_fields_run() {
    for source in SOURCES {
        let whole = record(source, "orders", 1, &json!({ "order": "17" }));
        let needed = ["messageId", "body", "kinesis", "dynamodb"];
        let mut paths: Vec<String> =
            whole.as_object().unwrap().keys().map(|name| format!("/{name}")).collect();
        for nested in ["attributes", "kinesis", "dynamodb"] {
            let fields = whole[nested].as_object().into_iter().flatten();
            paths.extend(fields.map(|(name, _)| format!("/{nested}/{name}")));
        }
        let is_needed = |path: &str| {
            needed.iter().any(|name| path == format!("/{name}"))
                || ["/sequenceNumber", "/data", "/SequenceNumber", "/Keys"]
                    .iter()
                    .any(|end| path.ends_with(end))
        };
        for path in paths.iter().filter(|path| !is_needed(path) || path.starts_with("/attributes")) {
            for odd in [json!(null), json!(5), json!(true), json!([1]), json!({ "a": 1 })] {
                let mut record = whole.clone();
                *record.pointer_mut(path).unwrap() = odd.clone();
                // A source's name that's there must be the right one, but any other value counts as absent.
                let (returned, runs) = delivered(source, by_order(source), &[], [batch([record])]).await;
                assert_eq!((returned, runs), (vec![vec![]], 1), "{source}: {odd} in {path}");
            }
        }
    }
}

/// The second message mustn't run before the first one has succeeded.
#[tokio::test]
async fn messages_without_readable_group_keep_their_order() {
    for (pointer, odd) in [("/attributes/MessageGroupId", json!(7)), ("/eventSourceARN", json!(null))] {
        let bench = Bench::in_memory();
        let messages = [(1, "fail 1"), (2, "a")].map(|(number, order)| {
            let mut message = record("sqs", "orders.fifo", number, &json!({ "order": order }));
            *message.pointer_mut(pointer).unwrap() = odd.clone();
            message
        });
        let worker = bench.worker(by_id);
        assert_eq!(deliver(&worker, &batch(messages)).await, ["r1", "r2"], "{pointer}");
        assert_eq!(bench.ran(), ["fail 1"], "{pointer}");
    }
}

#[tokio::test]
async fn changes_without_event_id_run_by_other_keys() {
    let mut change = record("dynamodb", "orders", 1, &json!({ "order": "17" }));
    change.as_object_mut().unwrap().remove("eventID");
    let batches = || [batch([change.clone()]), batch([change.clone()])];
    assert_eq!(delivered("dynamodb", by_order("dynamodb"), &[], batches()).await, (vec![vec![]; 2], 1));
    let bench = Bench::in_memory();
    let worker = bench.idempotency.dynamodb_stream(DynamoDbRecord::event_key, async |_| Ok::<_, Failure>(()));
    assert_eq!(deliver(&worker, &batch([change])).await, ["r1"], "the key needs the id");
}

#[tokio::test]
async fn batches_of_pipes_run_record_by_record() {
    for source in SOURCES {
        let records = || {
            let bodies = [json!({ "order": "17" }), json!({}), json!({ "order": "18" }), json!({})];
            bodies.into_iter().zip(1..).map(|(body, number)| record(source, "orders", number, &body))
        };
        let (returned, runs) =
            delivered(source, by_order(source), &[], [piped(records()), piped(records())]).await;
        // The response lists every failed record, since a pipe isn't documented to redeliver the ones behind it.
        let failed = match source {
            "sqs" => ["r2", "r4"],
            "kinesis" => ["shard:r2", "shard:r4"],
            _ => ["event r2", "event r4"],
        };
        assert_eq!((returned, runs), (vec![failed.map(str::to_owned).to_vec(); 2], 2), "{source}");
        // The same records by a mapping are duplicates.
        let (_, runs) = delivered(source, by_order(source), &[], [piped(records()), batch(records())]).await;
        assert_eq!(runs, 2, "{source}");
    }
}

#[tokio::test]
async fn aggregates_of_the_producer_library_are_named() {
    let mut data = vec![0xf3, 0x89, 0x9a, 0xc2];
    data.extend([0x0a; 60]);
    let mut aggregate = record("kinesis", "orders", 1, &json!({}));
    aggregate["kinesis"]["data"] = BASE64_STANDARD.encode(&data).into();
    let event = batch([aggregate]);
    let named = "an aggregate of the Kinesis Producer Library";

    let bench = Bench::in_memory();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let handler = move |record: KinesisRecord| {
        let error = record.json::<Value>().unwrap_err().to_string();
        told.lock().unwrap().push((record.data().len(), error.contains(named)));
        async { Ok::<_, Failure>(()) }
    };
    let by_sequence = bench.idempotency.kinesis(KinesisRecord::sequence_key, handler.clone());
    assert_eq!(deliver(&by_sequence, &event).await, [""; 0], "the handler may take the aggregate apart");
    assert_eq!(*seen.lock().unwrap(), [(64, true)]);

    let by_field = bench.idempotency.kinesis(|record| Key::from_json(record, "/order"), handler);
    assert_eq!(deliver(&by_field, &event).await, ["r1"]);
    assert_eq!(seen.lock().unwrap().len(), 1);
}
