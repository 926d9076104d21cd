//! Kinesis and DynamoDB Streams: the records' order, and the first failed record, which is Lambda's checkpoint.

use lambda_idempotency::lambda::batch::{DynamoDbRecord, KinesisRecord};
use serde_json::Value;

use super::{
    support::{Bench, deliver},
    *,
};

pub(super) fn kinesis(records: &[(u32, &str, &str)]) -> Value {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    let record = |(number, partition, order): &(u32, &str, &str)| {
        let data = json!({ "order": order }).to_string();
        json!({
            "kinesis": {
                "kinesisSchemaVersion": "1.0",
                "partitionKey": partition,
                "sequenceNumber": number.to_string(),
                "data": BASE64_STANDARD.encode(data),
                "approximateArrivalTimestamp": 1_795_000_000.5,
            },
            "eventSource": "aws:kinesis",
            "eventVersion": "1.0",
            "eventID": format!("shardId-000000000006:{number}"),
            "eventName": "aws:kinesis:record",
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        })
    };
    json!({ "Records": records.iter().map(record).collect::<Vec<_>>() })
}

fn changes(records: &[(u32, &str, &str)]) -> Value {
    let record = |(number, item, order): &(u32, &str, &str)| {
        json!({
            "eventID": format!("event-{number}"),
            "eventName": "MODIFY",
            "eventSource": "aws:dynamodb",
            "dynamodb": {
                "Keys": { "id": { "S": item } },
                "NewImage": { "id": { "S": item }, "order": { "S": order } },
                "ApproximateCreationDateTime": 1_795_000_000 + number,
                "SequenceNumber": number.to_string(),
                "StreamViewType": "NEW_IMAGE",
            },
        })
    };
    json!({ "Records": records.iter().map(record).collect::<Vec<_>>() })
}

const RECORDS: [(u32, &str, &str); 7] = [
    (101, "a", "a1"),
    (102, "b", "b1"),
    (103, "a", "fail a2"),
    (104, "b", "b2"),
    (105, "a", "a3"),
    (106, "b", "fail b3"),
    (107, "c", "c1"),
];

#[tokio::test]
async fn streams_return_only_the_first_failure() {
    let bench = Bench::new();
    let orders = bench.clone();
    let worker = bench.idempotency.kinesis(
        |record: &KinesisRecord| record.sequence_key(),
        move |record: KinesisRecord| {
            let orders = orders.clone();
            async move { orders.handle(std::str::from_utf8(record.data())?).await }
        },
    );
    assert_eq!(deliver(&worker, &kinesis(&RECORDS)).await, ["103"]);
    assert_eq!(bench.ran(), ["a1", "a3", "b1", "b2", "c1", "fail a2", "fail b3"]);
    // Lambda redelivers everything from the checkpoint on. Completed records don't run again.
    assert_eq!(deliver(&worker, &kinesis(&RECORDS[2..])).await, ["103"]);
    assert_eq!(bench.ran().len(), 9);

    // Lambda bisects the batch and delivers each half alone.
    let (first, second) = RECORDS[2..].split_at(2);
    assert_eq!(deliver(&worker, &kinesis(first)).await, ["103"]);
    assert_eq!(deliver(&worker, &kinesis(second)).await, ["106"]);
    assert_eq!(bench.ran().len(), 11);
}

#[tokio::test]
async fn ordering_per_partition_key_is_optional() {
    let bench = Bench::in_memory();
    let orders = bench.clone();
    let worker = bench.idempotency.kinesis(
        |record: &KinesisRecord| Key::from_json(record, "/order"),
        move |record: KinesisRecord| {
            let orders = orders.clone();
            async move { orders.handle(std::str::from_utf8(record.data())?).await }
        },
    );
    assert_eq!(deliver(&worker.in_order(), &kinesis(&RECORDS)).await, ["103"]);
    let ran = bench.in_order();
    let of = |key: &str| {
        ran.iter()
            .filter(|order| order.trim_start_matches("fail ").starts_with(key))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of("a"), of("b"), of("c")),
        (
            vec!["a1".into(), "fail a2".into()],
            vec!["b1".into(), "b2".into(), "fail b3".into()],
            vec!["c1".into()],
        )
    );
    assert_eq!(bench.widest(), 3, "three keys run concurrently");
}

#[tokio::test]
async fn ordering_per_item_is_optional() {
    let new = |bench: &Bench| {
        let orders = bench.clone();
        bench.idempotency.dynamodb_stream(
            |record: &DynamoDbRecord| record.event_key(),
            move |record: DynamoDbRecord| {
                let orders = orders.clone();
                async move {
                    let change: Value = serde_json::from_str(record.change().get())?;
                    orders.handle(&json!({ "order": change["NewImage"]["order"]["S"] }).to_string()).await
                }
            },
        )
    };
    let bench = Bench::new();
    assert_eq!(deliver(&new(&bench).in_order(), &changes(&RECORDS)).await, ["103"]);
    assert_eq!(bench.ran(), ["a1", "b1", "b2", "c1", "fail a2", "fail b3"]);

    let bench = Bench::new();
    assert_eq!(deliver(&new(&bench), &changes(&RECORDS)).await, ["103"]);
    assert_eq!(bench.ran().len(), 7, "without `in_order()`, a failure must not stop other changes");
    assert_eq!(deliver(&new(&bench), &changes(&[(107, "c", "c1")])).await, [""; 0]);
    assert_eq!(bench.ran().len(), 7, "a completed change must not run again");
}

/// Two changes with the same key and content are one operation, although their sequence numbers and
/// times differ.
#[tokio::test]
async fn sequence_number_and_time_of_changes_are_ignored() {
    let bench = Bench::new();
    let orders = bench.clone();
    let worker = bench.idempotency.dynamodb_stream(
        |record: &DynamoDbRecord| Key::from_json(record, "/NewImage/order/S"),
        move |_: DynamoDbRecord| {
            let orders = orders.clone();
            async move { orders.handle("{\"order\": \"o\"}").await }
        },
    );
    assert_eq!(deliver(&worker, &changes(&[(101, "a", "o"), (102, "a", "o")])).await, [""; 0]);
    assert_eq!(deliver(&worker, &changes(&[(103, "a", "o")])).await, [""; 0]);
    assert_eq!(bench.ran(), ["o"]);
    assert_eq!(
        deliver(&worker, &changes(&[(104, "b", "o")])).await,
        ["104"],
        "the same key with a change of another item must be a mismatch"
    );
}

#[tokio::test]
async fn unreadable_records_are_returned_as_the_checkpoint() {
    let bench = Bench::new();
    let orders = bench.clone();
    let worker = bench.idempotency.kinesis(
        |record: &KinesisRecord| record.sequence_key(),
        move |_: KinesisRecord| {
            let orders = orders.clone();
            async move { orders.handle("{\"order\": \"read\"}").await }
        },
    );
    for broken in [json!("no Base64!"), json!(null), json!(7)] {
        let mut batch = kinesis(&RECORDS[..2]);
        batch["Records"][1]["kinesis"]["data"] = broken;
        assert_eq!(deliver(&worker, &batch).await, ["102"]);
    }
    assert_eq!(bench.ran(), ["read"]);
    // With `in_order()`, a broken record blocks the later records with its partition key.
    let mut batch = kinesis(&RECORDS[..5]);
    batch["Records"][2]["kinesis"]["data"] = "no Base64!".into();
    assert_eq!(deliver(&worker.in_order(), &batch).await, ["103"]);
    assert_eq!(bench.ran().len(), 3, "two records of b and the first of a must run, but not the third of a");
}
