//! Kafka: the partitions' order, failed invocations and partial answers, tombstones, headers and odd records.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use lambda_idempotency::{Error, Invocation, current, lambda::batch::KafkaRecord, time::Timestamp};
use serde_json::Value;

use super::{
    support::{Bench, told},
    *,
};

const CLUSTER: &str = "arn:aws:kafka:eu-west-1:1:cluster/shop/b7-4";

/// A record of the topic `orders`: its partition, its offset, and its order.
type Sent = (u32, u64, &'static str);

fn record((partition, offset, order): &Sent) -> Value {
    json!({
        "topic": "orders", "partition": partition, "offset": offset,
        "timestamp": 1_795_000_000_500_u64, "timestampType": "CREATE_TIME",
        "key": BASE64_STANDARD.encode("customer-1"),
        "value": BASE64_STANDARD.encode(json!({ "order": order, "note": CANARY }).to_string()),
        "headers": [{ "origin": [119, 101, 98] }],
    })
}

/// The event of a mapping with these records.
fn event(records: impl IntoIterator<Item = Value>) -> Value {
    let mut lists = serde_json::Map::new();
    for record in records {
        let name = format!("{}-{}", record["topic"].as_str().unwrap_or("orders"), record["partition"]);
        lists.entry(name).or_insert(json!([])).as_array_mut().unwrap().push(record);
    }
    json!({ "eventSource": "aws:kafka", "eventSourceArn": CLUSTER, "bootstrapServers": "b-1:9098", "records": lists })
}

fn kafka(records: &[Sent]) -> Value {
    event(records.iter().map(record))
}

fn worker(bench: &Bench) -> Batch<KafkaRecord> {
    let bench_of_run = bench.clone();
    let worker = bench.idempotency.kafka(KafkaRecord::offset_key, move |record: KafkaRecord| {
        recording::shown(&record);
        let bench = bench_of_run.clone();
        async move {
            bench.handle(std::str::from_utf8(record.value().unwrap_or(b"{\"order\":\"tombstone\"}"))?).await
        }
    });
    recording::shown(&worker);
    worker
}

/// Delivers an event. Returns the identifiers that the response lists, or the error's kind.
async fn deliver(worker: &Batch<KafkaRecord>, event: &Value) -> Result<Vec<Value>, ErrorKind> {
    let answer = told(worker, event, 0).await.map_err(|error: Error| error.kind())?;
    let answer: Value = serde_json::from_str(answer.get()).unwrap();
    let items = answer["batchItemFailures"].as_array().unwrap();
    Ok(items.iter().map(|item| item["itemIdentifier"].clone()).collect())
}

fn at(places: &[(&str, u64)]) -> Vec<Value> {
    places.iter().map(|(partition, offset)| json!({ "partition": partition, "offset": offset })).collect()
}

const RECORDS: [Sent; 7] = [
    (0, 15, "a1"),
    (0, 16, "fail a2"),
    (0, 17, "a3"),
    (1, 15, "b1"),
    (1, 16, "b2"),
    (1, 17, "fail b3"),
    (2, 15, "c1"),
];

#[tokio::test]
async fn one_failure_fails_the_invocation() {
    let bench = Bench::new();
    let failed = told(&worker(&bench), &kafka(&RECORDS), 0).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BatchFailed);
    assert!(
        failed.to_string().starts_with("3 of 7 records of the `aws:kafka` batch aren't done"),
        "{failed}"
    );
    assert_eq!(bench.ran(), ["a1", "b1", "b2", "c1", "fail a2", "fail b3"]);
    // Lambda redelivers the whole batch. The done records replay.
    assert_eq!(deliver(&worker(&bench), &kafka(&RECORDS)).await, Err(ErrorKind::BatchFailed));
    assert_eq!(bench.ran().len(), 8);
    let done = RECORDS.iter().filter(|(_, _, order)| !order.starts_with("fail")).copied().collect::<Vec<_>>();
    assert_eq!(deliver(&worker(&bench), &kafka(&done)).await, Ok(vec![]));
    assert_eq!(bench.ran().len(), 9, "only a3 ran");
}

#[tokio::test]
async fn records_in_progress_fail_the_invocation() {
    let bench = Bench::new();
    let (worker, held) = (worker(&bench), kafka(&[(0, 15, "held")]));
    let meanwhile = async {
        bench.is_held().await;
        let answered = deliver(&worker, &held).await;
        bench.let_go();
        answered
    };
    let (first, second) = tokio::join!(deliver(&worker, &held), meanwhile);
    assert_eq!((first, second), (Ok(vec![]), Err(ErrorKind::BatchFailed)));
    bench.store.is_down.store(true, Ordering::SeqCst);
    assert_eq!(deliver(&worker, &kafka(&[(0, 16, "a")])).await, Err(ErrorKind::BatchFailed));
    assert_eq!(bench.ran(), ["held"]);
}

#[tokio::test]
async fn partitions_keep_their_order() {
    let bench = Bench::in_memory();
    let answered = deliver(&worker(&bench).partial_answers(), &kafka(&RECORDS)).await;
    assert_eq!(answered, Ok(at(&[("orders-0", 16), ("orders-0", 17), ("orders-1", 17)])));
    let ran = bench.in_order();
    let of = |partition: &str| -> Vec<String> {
        ran.iter().filter(|order| order.trim_start_matches("fail ").starts_with(partition)).cloned().collect()
    };
    assert_eq!(
        (of("a"), of("b"), of("c")),
        (
            vec!["a1".into(), "fail a2".into()],
            vec!["b1".into(), "b2".into(), "fail b3".into()],
            vec!["c1".into()],
        )
    );
    assert_eq!(bench.widest(), 3, "three partitions run concurrently");
}

#[tokio::test]
async fn share_groups_have_no_order() {
    let bench = Bench::in_memory();
    let worker = worker(&bench).unordered();
    let answered = deliver(&worker.clone().partial_answers(), &kafka(&RECORDS)).await;
    assert_eq!(answered, Ok(at(&[("orders-0", 16), ("orders-1", 17)])));
    assert_eq!(
        (bench.ran().len(), bench.widest()),
        (7, 5),
        "the five orders that wait for something run concurrently"
    );
    assert_eq!(deliver(&worker, &kafka(&RECORDS)).await, Err(ErrorKind::BatchFailed));
    assert_eq!(bench.ran().len(), 9, "only the failed records run again");
}

/// Queue mode delivers a record to another consumer under the same offset, and stream mode after a switch of the modes.
#[tokio::test]
async fn both_modes_share_a_records_key() {
    let bench = Bench::new();
    let event = kafka(&[(0, 15, "a")]);
    assert_eq!(deliver(&worker(&bench).unordered(), &event).await, Ok(vec![]));
    assert_eq!(deliver(&worker(&bench), &event).await, Ok(vec![]));
    assert_eq!(bench.ran(), ["a"]);
}

#[tokio::test]
async fn places_and_clusters_have_their_own_keys() {
    let bench = Bench::new();
    let of = |change: &dyn Fn(&mut Value)| {
        let mut event = kafka(&[(0, 15, "a")]);
        change(&mut event);
        event
    };
    let own = |servers: &'static str| {
        move |event: &mut Value| {
            *event = json!({ "eventSource": "SelfManagedKafka", "bootstrapServers": servers, "records": event["records"] });
        }
    };
    let runs = [
        (1, of(&|_| {})),
        (2, of(&|event| event["records"]["orders-0"][0]["offset"] = 16.into())),
        (3, of(&|event| event["records"]["orders-0"][0]["partition"] = 1.into())),
        (4, of(&|event| event["records"]["orders-0"][0]["topic"] = "orders-2".into())),
        (4, of(&|event| event["bootstrapServers"] = "b-2:9098".into())),
        (5, of(&|event| event["eventSourceArn"] = "arn:aws:kafka:eu-west-1:1:cluster/shop/c8-4".into())),
        (6, of(&own("b-2:9092, b-1:9092"))),
        (6, of(&own("b-1:9092,b-2:9092"))),
        (7, of(&own("b-3:9092"))),
        (7, of(&|event| event["eventSource"] = json!(null))),
    ];
    for (runs, event) in runs {
        assert_eq!(deliver(&worker(&bench), &event).await, Ok(vec![]), "{event}");
        assert_eq!(bench.ran().len(), runs, "{event}");
    }
    // Two clusters without a name could share keys, so the worker needs one.
    let nameless = of(&|event| {
        event
            .as_object_mut()
            .unwrap()
            .retain(|name, _| name != "eventSourceArn" && name != "bootstrapServers");
    });
    let refused = told(&worker(&bench), &nameless, 0).await.unwrap_err().to_string();
    assert!(refused.contains("Name the cluster with `source_name`"), "{refused}");
    let named = worker(&bench).source_name("shop");
    for event in [&nameless, &of(&own("b-3:9092")), &of(&own("b-4:9092"))] {
        assert_eq!(deliver(&named, event).await, Ok(vec![]));
        assert_eq!(bench.ran().len(), 8);
    }
}

#[tokio::test]
async fn longest_topic_names_have_keys() {
    let bench = Bench::new();
    let long = |topic: &str| {
        let mut record = record(&(u32::MAX, u64::MAX, "a"));
        record["topic"] = format!("{topic:x<249}").into();
        event([record])
    };
    for (topic, runs) in [("one", 1), ("one", 1), ("two", 2)] {
        assert_eq!(deliver(&worker(&bench), &long(topic)).await, Ok(vec![]));
        assert_eq!(bench.ran().len(), runs);
    }
}

/// The handler's last record.
async fn handled(bench: &Bench, record: Value) -> KafkaRecord {
    let seen = Arc::new(Mutex::new(None));
    let told = Arc::clone(&seen);
    let worker = bench.idempotency.kafka(KafkaRecord::offset_key, move |record: KafkaRecord| {
        *told.lock().unwrap() = Some(record);
        async { Ok::<_, Failure>(()) }
    });
    assert_eq!(deliver(&worker, &event([record])).await, Ok(vec![]));
    seen.lock().unwrap().take().unwrap()
}

#[tokio::test]
async fn tombstones_and_headers_are_read() {
    let bench = Bench::new();
    let whole = handled(&bench, record(&(0, 15, "a"))).await;
    assert_eq!((whole.topic(), whole.partition(), whole.offset()), ("orders", 0, 15));
    assert_eq!(whole.offset_key().unwrap(), Key::new("orders-0@15").unwrap());
    assert_eq!(
        (whole.key(), whole.json::<Value>().unwrap()["order"].as_str()),
        (Some(&b"customer-1"[..]), Some("a"))
    );
    assert!(!format!("{whole:?}").contains("customer"), "{whole:?}");

    let mut tombstone = record(&(0, 16, ""));
    (tombstone["value"], tombstone["key"]) = (json!(null), BASE64_STANDARD.encode("\"entry 7\"").into());
    // Java's bytes are signed, a name may occur twice, and a header may be null or odd.
    tombstone["headers"] = json!([{ "a": [-61, -92] }, { "b": null }, { "a": [195, 164], "c": [300] }, { "d": "text" }, { "e": [] }, 5]);
    let tombstone = handled(&bench, tombstone).await;
    assert_eq!((tombstone.value(), tombstone.key_json::<String>().unwrap().as_str()), (None, "entry 7"));
    let expected = [("a", "ä".as_bytes()), ("a", "ä".as_bytes()), ("e", b"")];
    assert_eq!(tombstone.headers(), expected.map(|(name, bytes)| (name.to_owned(), bytes.to_owned())));
    let refused = tombstone.json::<Value>().unwrap_err();
    assert!(
        refused.kind() == ErrorKind::Invalid && refused.to_string().contains("is a tombstone"),
        "{refused}"
    );

    let mut bare = record(&(0, 17, ""));
    bare.as_object_mut().unwrap().retain(|name, _| ["topic", "partition", "offset"].contains(&name.as_str()));
    let bare = handled(&bench, bare).await;
    assert_eq!((bare.value(), bare.key(), bare.headers()), (None, None, vec![]));
    assert!(bare.key_json::<Value>().is_err());
}

/// The sample of "Using Lambda with self-managed Apache Kafka" (AWS Lambda developer guide). Its key isn't canonical Base64.
fn documented() -> Value {
    let brokers = "b-2.demo-cluster-1.a1bcde.c1.kafka.us-east-1.amazonaws.com:9092,b-1.demo-cluster-1.a1bcde.c1.kafka.us-east-1.amazonaws.com:9092";
    let value: Vec<u8> = b"headerValue".to_vec();
    json!({
        "eventSource": "SelfManagedKafka", "bootstrapServers": brokers,
        "records": { "mytopic-0": [{
            "topic": "mytopic", "partition": 0, "offset": 15, "timestamp": 1_545_084_650_987_u64,
            "timestampType": "CREATE_TIME", "key": "abcDEFghiJKLmnoPQRstuVWXyz1234==",
            "value": "SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==", "headers": [{ "headerKey": value }],
        }] },
    })
}

#[tokio::test]
async fn documented_events_are_read() {
    let mut event = documented();
    // Older editions of the page have this name, and the partition as text.
    for (source, partition) in [("SelfManagedKafka", json!(0)), ("aws:SelfManagedKafka", json!("0"))] {
        event["eventSource"] = source.into();
        let mut record = event["records"]["mytopic-0"][0].clone();
        record["partition"] = partition;
        let record = handled(&Bench::new(), record).await;
        assert_eq!((record.key().unwrap().len(), record.value()), (22, Some(&b"Hello, this is a test."[..])));
        assert_eq!(record.headers(), [("headerKey".to_owned(), b"headerValue".to_vec())]);
    }
    let worker = worker(&Bench::new()).partial_answers();
    assert_eq!(deliver(&worker, &event).await, Ok(at(&[("mytopic-0", 15)])), "its value isn't an order");
}

/// Two tombstones delete two entries, although both have no value.
#[tokio::test]
async fn keys_and_values_are_compared() {
    let bench = Bench::new();
    let bench_of_run = bench.clone();
    let worker = bench.idempotency.kafka(
        |_: &KafkaRecord| Key::new("one"),
        move |_: KafkaRecord| {
            let bench = bench_of_run.clone();
            async move { bench.handle("{\"order\":\"a\"}").await }
        },
    );
    let of = |offset: u64, change: &dyn Fn(&mut Value)| {
        let mut record = record(&(0, offset, "a"));
        record["value"] = json!(null);
        change(&mut record);
        event([record])
    };
    let mismatch = Err(ErrorKind::BatchFailed);
    for (event, answered) in [
        (of(15, &|_| {}), Ok(vec![])),
        (of(16, &|record| record["headers"] = json!([])), Ok(vec![])),
        (of(17, &|record| record["key"] = BASE64_STANDARD.encode("customer-2").into()), mismatch.clone()),
        (of(18, &|record| record["key"] = json!(null)), mismatch.clone()),
        (of(19, &|record| record["value"] = "".into()), mismatch),
    ] {
        assert_eq!(deliver(&worker, &event).await, answered, "{event}");
    }
    assert_eq!(bench.ran(), ["a"]);
}

#[tokio::test]
async fn odd_records_run_or_are_returned() {
    let bench = Bench::new();
    let worker = worker(&bench).partial_answers();
    let good = |offset: u64| record(&(0, offset, "a"));
    let mut offset = 100;
    let mut odd = |name: &str, value: Value| {
        offset += 1;
        let mut record = good(offset);
        record[name] = value;
        (offset, event([record]))
    };
    for name in ["key", "headers", "timestamp", "timestampType", "more"] {
        for value in [json!(null), json!(5), json!(true), json!("no Base64!"), json!([1]), json!({ "a": 1 })]
        {
            let (_, event) = odd(name, value);
            assert_eq!(deliver(&worker, &event).await, Ok(vec![]), "{event}");
        }
    }
    // A value of another type isn't a tombstone.
    let ran = bench.ran().len();
    for value in [json!(5), json!(true), json!("no Base64!"), json!([1]), json!({ "a": 1 })] {
        let (offset, event) = odd("value", value);
        assert_eq!(deliver(&worker, &event).await, Ok(at(&[("orders-0", offset)])), "{event}");
    }
    // It blocks its partition.
    let mut unread = good(11);
    unread["value"] = 5.into();
    let blocked = event([unread, good(12)]);
    assert_eq!(deliver(&worker, &blocked).await, Ok(at(&[("orders-0", 11), ("orders-0", 12)])));
    // A record that the response couldn't list fails the whole event.
    for (name, value) in [("topic", json!(null)), ("offset", json!("x")), ("partition", json!(-1))] {
        let (_, event) = odd(name, value);
        assert_eq!(deliver(&worker, &event).await, Err(ErrorKind::Invalid), "{event}");
    }
    assert_eq!(bench.ran().len(), ran);
}

#[tokio::test]
async fn other_events_are_refused() {
    let worker = worker(&Bench::new());
    for (event, named) in [
        (json!({ "Records": [{ "eventSource": "aws:sqs" }] }), "without a source"),
        (json!({ "eventSource": "aws:rmq", "rmqMessagesByQueue": {} }), "`aws:rmq`"),
        (json!({ "eventSource": "aws:kafka", "records": [] }), "`aws:kafka`"),
        (json!({ "eventSource": "aws:kafka", "records": { "orders-0": 5 } }), "`aws:kafka`"),
        (json!([{ "eventSource": "aws:kinesis", "eventID": "1" }]), "`aws:kinesis`"),
        (json!("text"), "without a source"),
    ] {
        let error = told(&worker, &event, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(named), "{event}: {error}");
    }
    let empty =
        json!({ "eventSource": "aws:kafka", "eventSourceArn": CLUSTER, "records": { "orders-0": null } });
    assert_eq!(deliver(&worker, &empty).await, Ok(vec![]));
}

/// A pipe delivers an array whose records name the cluster, and doesn't read an answer.
#[tokio::test]
async fn pipes_fail_whole_batches() {
    let bench = Bench::new();
    let piped = |records: &[Sent]| -> Value {
        let of = |sent: &Sent| {
            let mut record = record(sent);
            record["partition"] = sent.0.to_string().into();
            (record["eventSource"], record["eventSourceArn"]) = ("aws:kafka".into(), CLUSTER.into());
            record["eventSourceKey"] = format!("orders-{}", sent.0).into();
            record
        };
        records.iter().map(of).collect()
    };
    let worker = worker(&bench).partial_answers();
    assert_eq!(deliver(&worker, &piped(&RECORDS)).await, Err(ErrorKind::BatchFailed));
    assert_eq!(deliver(&worker, &piped(&RECORDS[3..5])).await, Ok(vec![]));
    // The same records by a mapping are duplicates.
    assert_eq!(deliver(&worker, &kafka(&RECORDS[3..5])).await, Ok(vec![]));
    assert_eq!(bench.ran(), ["a1", "b1", "b2", "c1", "fail a2", "fail b3"]);
}

#[tokio::test]
async fn handlers_know_their_invocation() {
    for is_keyed in [true, false] {
        let clock = SetClock::tokio();
        let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| builder.clock(clock.clone()));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let key = move |record: &KafkaRecord| is_keyed.then(|| record.offset_key()).transpose();
        let handler = move |_: KafkaRecord| {
            let invocation = Invocation::current().unwrap();
            let text = |value: Option<&Arc<str>>| value.map(ToString::to_string);
            let (request, tenant) = (text(invocation.request_id()), text(invocation.tenant()));
            told.lock().unwrap().push((invocation.deadline().map(|at| at.as_millis()), request, tenant));
            async { Ok::<_, Failure>(()) }
        };
        let mut worker = bench.idempotency.kafka(key, handler).required(false);
        let mut context = Context::default();
        (context.deadline, context.request_id) = (clock.after(9_000), "request-1".to_owned());
        context.tenant_id = Some("anna".to_owned());
        let event = RawValue::from_string(kafka(&RECORDS[..1]).to_string()).unwrap();
        worker.call(LambdaEvent::new(event, context.clone())).await.unwrap();
        let expected = (Some(context.deadline), Some("request-1".to_owned()), Some("anna".to_owned()));
        assert_eq!(*seen.lock().unwrap(), [expected], "keyed: {is_keyed}");
    }
}

/// In stream mode, a crash blocks a partition for seconds. In queue mode, another consumer may get the record at any time.
#[tokio::test(start_paused = true)]
async fn leases_are_short_in_stream_mode_only() {
    for (is_ordered, lease) in [(true, 15), (false, 62)] {
        let clock = SetClock::tokio();
        let bench = Bench::over(Arc::new(MemoryStore::new()), |builder| builder.clock(clock.clone()));
        let until = Arc::new(Mutex::new(Timestamp::default()));
        let told_until = Arc::clone(&until);
        let worker = bench.idempotency.kafka(KafkaRecord::offset_key, move |_: KafkaRecord| {
            *told_until.lock().unwrap() = current().unwrap().lease_until();
            async { Ok::<_, Failure>(()) }
        });
        let worker = if is_ordered { worker } else { worker.unordered() };
        let now = clock.now();
        told(&worker, &kafka(&RECORDS[..1]), clock.after(60_000)).await.unwrap();
        assert_eq!(now.until(*until.lock().unwrap()), Duration::from_secs(lease), "ordered: {is_ordered}");
    }
}

/// Powertools for Python reads the same records from an event, and lists the same ones in its answer.
#[tokio::test]
async fn powertools_reads_and_answers_alike() {
    use std::{io::Write as _, process};
    let Some(python) = testkit::tools::python() else { return };
    let mut tombstone = record(&(3, 15, ""));
    (tombstone["value"], tombstone["key"]) = (json!(null), json!(null));
    let mut signed = record(&(3, 16, "fail d2"));
    signed["headers"] = json!([{ "a": [-61, -92] }, { "b": [0, 255] }]);
    let own = include_str!("../../../events/sources/kafka-self-managed.json");
    let whole = RECORDS.iter().map(record).chain([tombstone, signed]);
    for event in [event(whole), serde_json::from_str(own).unwrap(), documented()] {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wrappers/batch/powertools.py");
        let mut judge = process::Command::new(&python);
        let judge = judge.arg(script).stdin(process::Stdio::piped()).stdout(process::Stdio::piped());
        let mut judge = judge.spawn().unwrap();
        judge.stdin.take().unwrap().write_all(event.to_string().as_bytes()).unwrap();
        let judged: Value = serde_json::from_slice(&judge.wait_with_output().unwrap().stdout).unwrap();

        let seen = Arc::new(Mutex::new(Vec::new()));
        let told_seen = Arc::clone(&seen);
        let worker = Bench::new().idempotency.kafka(KafkaRecord::offset_key, move |record: KafkaRecord| {
            let key = record.key().map(<[u8]>::to_vec);
            let value = record.value().map(|value| String::from_utf8(value.to_vec()).unwrap());
            let fails = value.as_ref().is_some_and(|value| value.contains("fail"));
            let (topic, partition, offset) = (record.topic(), record.partition(), record.offset());
            // Powertools lowers the headers' names.
            let headers: Vec<_> =
                record.headers().into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
            told_seen.lock().unwrap().push(json!([topic, partition, offset, key, value, headers]));
            async move { if fails { Err("fail".into()) } else { Ok::<_, Failure>(()) } }
        });
        let listed = deliver(&worker.clone().unordered().partial_answers(), &event).await.unwrap();
        let items: Vec<_> = listed.iter().map(|item| json!({ "itemIdentifier": item })).collect();
        assert_eq!(json!({ "batchItemFailures": items }), judged["answer"]);
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_by_key(|record| (record[1].as_u64(), record[2].as_u64()));
        assert_eq!(json!(seen), judged["seen"]);
        // In stream mode, the first listed record of each partition is the same.
        let listed = deliver(&worker.partial_answers(), &event).await.unwrap();
        let first = |items: &mut dyn Iterator<Item = &Value>| {
            let mut first = std::collections::BTreeMap::new();
            for item in items {
                first.entry(item["partition"].to_string()).or_insert(item["offset"].clone());
            }
            first
        };
        let theirs = judged["answer"]["batchItemFailures"].as_array().unwrap();
        let theirs = first(&mut theirs.iter().map(|item| &item["itemIdentifier"]));
        assert_eq!(first(&mut listed.iter()), theirs);
    }
}
