//! Batches of Kafka's records.

use serde_json::{Value, json};

use super::{
    bench::{Function, Lambda, posted},
    process::{on_table, table},
};

/// A mapping's event with these records of Kafka: each is a partition and an offset.
fn kafka(places: &[(u32, u64)]) -> Value {
    let mut lists = serde_json::Map::new();
    for (partition, offset) in places {
        let record = json!({ "topic": "orders", "partition": partition, "offset": offset, "value": "e30=", "headers": [] });
        let list = lists.entry(format!("orders-{partition}")).or_insert(json!([]));
        list.as_array_mut().unwrap().push(record);
    }
    json!({
        "eventSource": "aws:kafka", "eventSourceArn": "arn:aws:kafka:eu-west-1:1:cluster/shop/b7-4",
        "bootstrapServers": "b-1:9098", "records": lists,
    })
}

fn places(places: &[(&str, u64)]) -> String {
    let item = |(partition, offset): &(&str, u64)| json!({ "itemIdentifier": { "partition": partition, "offset": offset } });
    json!({ "batchItemFailures": places.iter().map(item).collect::<Vec<_>>() }).to_string()
}

/// Lambda may not read a list of failures, so the invocation fails by default. The records behind a failed one count as
/// failed, as in Lambda's stream mode.
#[tokio::test]
async fn kafka_fails_whole_batches_by_default() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "kafka")]).await;
    let whole = kafka(&[(0, 15), (0, 16), (0, 17), (1, 15), (1, 16)]);
    let first = lambda.deliver(whole.to_string());
    let next = function.next().await;
    assert_eq!(next.json(), whole);
    function.respond(&next, places(&[("orders-0", 16)])).await;
    let failed = posted(first).await;
    assert!(failed.is_error && failed.json()["errorType"] == "Idempotency.BatchFailed", "{failed:?}");

    let second = lambda.deliver(whole.to_string());
    let next = function.next().await;
    assert_eq!(next.json(), kafka(&[(0, 16), (0, 17)]), "the event keeps its other fields");
    function.respond(&next, "null").await;
    assert!(!posted(second).await.is_error);
    let third = lambda.deliver(whole.to_string());
    assert!(function.gets_nothing().await);
    assert!(!posted(third).await.is_error);
}

/// A record that another delivery is processing holds back the later ones of its partition, which run behind it. Under
/// at-most-once, too: the function never got them.
#[tokio::test]
async fn record_in_progress_holds_back_its_partition() {
    let whole = kafka(&[(0, 15), (0, 16), (0, 17), (1, 17)]);
    for (event, execution, handed) in [
        ("kafka", "at-least-once", &[(0, 15), (1, 17)][..]),
        ("kafka", "at-most-once", &[(0, 15), (1, 17)]),
        ("kafka-queue", "at-least-once", &[(0, 15), (0, 17), (1, 17)]),
    ] {
        let (_database, wire) = table().await;
        let endpoint = wire.endpoint();
        let of_table = on_table(&endpoint).into_iter().filter(|(name, _)| *name != "IDEMPOTENCY_KEY");
        let own = [
            ("IDEMPOTENCY_EVENT", event),
            ("IDEMPOTENCY_EXECUTION", execution),
            ("IDEMPOTENCY_BATCH_ANSWER", "report"),
        ];
        let settings: Vec<_> = of_table.chain(own).collect();
        let (lambda, another) = (Lambda::start().await, Lambda::start().await);
        let busy = Function::start(&another, &settings).await;
        let alone = another.deliver(kafka(&[(0, 16)]).to_string());
        let running = busy.next().await;

        let function = Function::start(&lambda, &settings).await;
        let first = lambda.deliver(whole.to_string());
        let next = function.next().await;
        assert_eq!(next.json(), kafka(handed), "{event}, {execution}");
        function.respond(&next, "null").await;
        let behind = [("orders-0", 16), ("orders-0", 17)];
        let returned = if event == "kafka" { &behind[..] } else { &behind[..1] };
        let listed = |places: &[_]| serde_json::from_str::<Value>(&self::places(places)).unwrap();
        assert_eq!(posted(first).await.json(), listed(returned), "{event}, {execution}");

        busy.respond(&running, "null").await;
        assert_eq!(posted(alone).await.json(), listed(&[]));
        let second = lambda.deliver(whole.to_string());
        if event == "kafka" {
            let next = function.next().await;
            assert_eq!(next.json(), kafka(&[(0, 17)]), "{execution}");
            function.respond(&next, "null").await;
        } else {
            assert!(function.gets_nothing().await);
        }
        assert_eq!(posted(second).await.json(), listed(&[]), "{event}, {execution}");
    }
}

#[tokio::test]
async fn kafka_reports_records_if_set() {
    for (event, listed) in
        [("kafka", &[("orders-0", 15), ("orders-0", 16)][..]), ("kafka-queue", &[("orders-0", 15)])]
    {
        let lambda = Lambda::start().await;
        let settings = [("IDEMPOTENCY_EVENT", event), ("IDEMPOTENCY_BATCH_ANSWER", "report")];
        let function = Function::start(&lambda, &settings).await;
        let first = lambda.deliver(kafka(&[(0, 15), (0, 16), (1, 15)]).to_string());
        function.respond(&function.next().await, places(&[("orders-0", 15)])).await;
        let answer = posted(first).await;
        assert_eq!(
            (answer.is_error, answer.json()),
            (false, serde_json::from_str(&places(listed)).unwrap()),
            "{event}"
        );
        // An answer that names no record of the event fails all records.
        let second = lambda.deliver(kafka(&[(2, 1)]).to_string());
        function.respond(&function.next().await, places(&[("orders-2", 9)])).await;
        let expected: Value = serde_json::from_str(&places(&[("orders-2", 1)])).unwrap();
        let answer = posted(second).await;
        assert!(answer.is_error || answer.json() == expected, "{event}: {answer:?}");
    }
}

#[tokio::test]
async fn kafka_partitions_keep_their_order() {
    let lambda = Lambda::start().await;
    let settings =
        [("IDEMPOTENCY_KEY", "kafka"), ("IDEMPOTENCY_BATCH", "each"), ("IDEMPOTENCY_BATCH_ANSWER", "report")];
    let function = Function::start(&lambda, &settings).await;
    let first = lambda.deliver(kafka(&[(0, 15), (0, 16)]).to_string());
    let next = function.next().await;
    assert_eq!(next.json(), kafka(&[(0, 15)]));
    function.respond(&next, places(&[("orders-0", 15)])).await;
    assert!(function.gets_nothing().await, "16 waits for 15");
    let expected: Value = serde_json::from_str(&places(&[("orders-0", 15), ("orders-0", 16)])).unwrap();
    assert_eq!(posted(first).await.json(), expected);
}
