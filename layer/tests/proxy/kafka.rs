//! Batches of Kafka's records.

use serde_json::{Value, json};

use super::bench::{Function, Lambda, posted};

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

/// A record whose claim is refused holds back the later ones of its partition, as if the function had reported it.
#[tokio::test]
async fn refused_record_holds_back_its_partition() {
    let whole = kafka(&[(0, 15), (0, 16), (0, 17), (1, 17)]);
    let another = whole.to_string().replace(
        r#""offset":16,"partition":0,"topic":"orders","value":"e30=""#,
        r#""offset":16,"partition":0,"topic":"orders","value":"W10=""#,
    );
    assert_ne!(another, whole.to_string());
    for (event, handed) in [("kafka", &[(0, 15), (1, 17)][..]), ("kafka-queue", &[(0, 15), (0, 17), (1, 17)])]
    {
        let lambda = Lambda::start().await;
        let settings = [("IDEMPOTENCY_EVENT", event), ("IDEMPOTENCY_BATCH_ANSWER", "report")];
        let function = Function::start(&lambda, &settings).await;
        let alone = lambda.deliver(kafka(&[(0, 16)]).to_string());
        function.respond(&function.next().await, "null").await;
        assert!(!posted(alone).await.is_error);

        // Another payload under the same key is a mismatch.
        let refused = lambda.deliver(&another);
        let next = function.next().await;
        assert_eq!(next.json(), kafka(handed), "{event}");
        function.respond(&next, "null").await;
        let behind = [("orders-0", 16), ("orders-0", 17)];
        let expected = if event == "kafka" { &behind[..] } else { &behind[..1] };
        assert_eq!(posted(refused).await.json(), serde_json::from_str::<Value>(&places(expected)).unwrap());

        let second = lambda.deliver(whole.to_string());
        if event == "kafka" {
            let next = function.next().await;
            assert_eq!(next.json(), kafka(&[(0, 17)]), "17 runs behind 16");
            function.respond(&next, "null").await;
        } else {
            assert!(function.gets_nothing().await);
        }
        assert_eq!(posted(second).await.json(), serde_json::from_str::<Value>(&places(&[])).unwrap());
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
