//! Batches, record by record.

use std::{collections::VecDeque, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lambda_idempotency_verification_real::wire::HttpWay;
use serde_json::{Value, json};

use super::{
    bench::{Function, Got, Lambda, Posted, posted},
    http_events::STREAM,
    process::{on_table, table, until},
};

const BY_ID: (&str, &str) = ("IDEMPOTENCY_KEY", "/id");

/// The function's timeout, in tests that exceed it.
const TIMEOUT: Duration = Duration::from_secs(6);

fn message(id: &str, body: &Value, group: Option<&str>) -> Value {
    let queue = if group.is_some() { "q.fifo" } else { "q" };
    let attributes = group.map_or(json!({}), |group| json!({ "MessageGroupId": group }));
    json!({
        "messageId": id, "receiptHandle": "h", "body": body.to_string(), "attributes": attributes,
        "eventSource": "aws:sqs", "eventSourceARN": format!("arn:aws:sqs:eu-west-1:1:{queue}"),
    })
}

fn messages(all: &[(&str, u32)]) -> String {
    let records: Vec<_> = all.iter().map(|(id, n)| message(id, &json!({ "id": n }), None)).collect();
    json!({ "Records": records }).to_string()
}

/// The ids of the records that the function got.
fn ids(event: &Got) -> Vec<String> {
    let event = event.json();
    event["Records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["messageId"].as_str().unwrap().into())
        .collect()
}

fn failures(ids: &[&str]) -> String {
    let items: Vec<_> = ids.iter().map(|id| json!({ "itemIdentifier": id })).collect();
    json!({ "batchItemFailures": items }).to_string()
}

fn returned(posted: &Posted) -> Vec<String> {
    assert!(!posted.is_error, "{posted:?}");
    let json = posted.json();
    let items = json["batchItemFailures"].as_array().unwrap();
    items.iter().map(|item| item["itemIdentifier"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn function_gets_only_records_that_must_run() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let event = messages(&[("a", 1), ("b", 2), ("c", 3)]);
    let first = lambda.deliver(&event);
    let next = function.next().await;
    assert_eq!(next.body, event, "if all records run, the function gets the original event");
    function.respond(&next, failures(&["b"])).await;
    assert_eq!(returned(&posted(first).await), ["b"]);

    // The failed `b` is redelivered, together with the new `d`, and with `e` and `f`, which repeat `a` and `d`.
    let second = lambda.deliver(messages(&[("d", 4), ("b", 2), ("e", 1), ("f", 4)]));
    let next = function.next().await;
    assert_eq!(ids(&next), ["d", "b"]);
    function.respond(&next, "null").await;
    assert!(returned(&posted(second).await).is_empty());

    let third = lambda.deliver(messages(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]));
    assert!(function.gets_nothing().await);
    assert!(returned(&posted(third).await).is_empty());
}

#[tokio::test]
async fn refused_and_failed_records_are_reported_together() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let records = [
        message("a", &json!({ "id": 1 }), None),
        message("b", &json!({ "no": "key" }), None),
        message("c", &json!({ "id": 3 }), None),
        message("d", &json!({ "id": 1, "other": "payload" }), None),
    ];
    let waiting = lambda.deliver(json!({ "Records": records }).to_string());
    let next = function.next().await;
    assert_eq!(ids(&next), ["a", "c"]);
    function.respond(&next, failures(&["c"])).await;
    assert_eq!(returned(&posted(waiting).await), ["b", "c", "d"]);
}

#[tokio::test]
async fn function_error_fails_only_unfinished_records() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let first = lambda.deliver(messages(&[("a", 1)]));
    function.respond(&function.next().await, "{}").await;
    posted(first).await;
    // The record `a` is done already, so only `b` fails.
    let partly = lambda.deliver(messages(&[("a", 1), ("b", 2)]));
    function.fail(&function.next().await, "KeyError").await;
    assert_eq!(returned(&posted(partly).await), ["b"]);
    // No record is done, so Lambda gets the function's own error.
    let all = lambda.deliver(messages(&[("b", 2), ("c", 3)]));
    function.fail(&function.next().await, "KeyError").await;
    let all = posted(all).await;
    assert_eq!(all.error_type(), "KeyError");
    assert_eq!(all.json()["stackTrace"], json!(["a", "b"]));
}

/// The function's connection to its own server may break, for example, and the function returns what it has.
#[tokio::test]
async fn answers_that_arent_json_fail_batches() {
    let cut_off = r#"{"batchItemFailures":[{"itemI"#;
    for (batch, answer, redelivered) in [
        ("whole", cut_off, true),
        ("whole", "<html>", true),
        ("whole", "", false),
        ("whole", "\"done\"", false),
        ("each", cut_off, true),
        ("each", "\"done\"", false),
    ] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_BATCH", batch)]).await;
        let first = lambda.deliver(messages(&[("a", 1)]));
        function.respond(&function.next().await, answer).await;
        assert_eq!(returned(&posted(first).await), if redelivered { vec!["a"] } else { vec![] }, "{answer}");
        let again = lambda.deliver(messages(&[("a", 1)]));
        if redelivered {
            function.respond(&function.next().await, "null").await;
        } else {
            assert!(function.gets_nothing().await, "{answer}");
        }
        assert!(returned(&posted(again).await).is_empty(), "{answer}");
    }
}

/// The limit of recorded answers doesn't limit a batch's answer, which isn't recorded.
#[tokio::test]
async fn batch_answers_may_exceed_the_recording_limit() {
    for (limit, answer) in [("0", "null".to_owned()), ("10", format!("{{\"note\":{:?}}}", "n".repeat(100)))] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_MAX_RESPONSE", limit)]).await;
        let first = lambda.deliver(messages(&[("a", 1)]));
        function.respond(&function.next().await, answer).await;
        assert!(returned(&posted(first).await).is_empty(), "limit {limit}");
        let again = lambda.deliver(messages(&[("a", 1)]));
        assert!(function.gets_nothing().await, "limit {limit}");
        assert!(returned(&posted(again).await).is_empty(), "limit {limit}");
    }
}

#[tokio::test]
async fn streamed_batch_answers_may_exceed_recording_limit() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_MAX_RESPONSE", "0")]).await;
    let first = lambda.deliver(messages(&[("a", 1), ("b", 2)]));
    let streams = [("content-type", "application/json"), STREAM[1]];
    function.post(&function.next().await, "response", &streams, failures(&["b"]).into()).await;
    assert_eq!(returned(&posted(first).await), ["b"]);
    let again = lambda.deliver(messages(&[("a", 1)]));
    assert!(function.gets_nothing().await);
    assert!(returned(&posted(again).await).is_empty());
}

/// A pipe of EventBridge Pipes delivers an array, and isn't documented to redeliver the records behind a failed one.
#[tokio::test]
async fn batches_of_pipes_stay_arrays() {
    let record = |id: &str, data: &str| {
        json!({
            "eventID": format!("shard:{id}"), "sequenceNumber": id, "partitionKey": "p", "data": data,
            "eventSource": "aws:kinesis", "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/s",
        })
    };
    let all = [record("a", "eyJpZCI6MX0="), record("b", "eyJpZCI6Mn0="), record("c", "eyJpZCI6M30=")];
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let first = lambda.deliver(json!(all).to_string());
    let next = function.next().await;
    assert_eq!(next.json(), json!(all));
    function.respond(&next, failures(&["shard:b"])).await;
    assert_eq!(returned(&posted(first).await), ["shard:b"]);
    let second = lambda.deliver(json!(all).to_string());
    let next = function.next().await;
    assert_eq!(next.json(), json!([all[1]]));
    function.respond(&next, "null").await;
    assert!(returned(&posted(second).await).is_empty());
}

#[tokio::test]
async fn only_compared_fields_of_records_must_match() {
    let order = |at: u32| json!({ "id": "order-17", "at": at });
    let bus = |replay: Option<&str>| json!({ "id": "e1", "source": "shop", "detail-type": "paid", "detail": {}, "replay-name": replay });
    for (settings, one, two) in [
        ([BY_ID, ("IDEMPOTENCY_COMPARE", "/id")], order(1), order(2)),
        ([("IDEMPOTENCY_KEY", "eventbridge"), ("IDEMPOTENCY_EVENT", "sqs")], bus(None), bus(Some("again"))),
    ] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &settings).await;
        let batch = |id: &str, body: &Value| json!({ "Records": [message(id, body, None)] }).to_string();
        let first = lambda.deliver(batch("a", &one));
        function.respond(&function.next().await, "null").await;
        assert!(returned(&posted(first).await).is_empty());
        let again = lambda.deliver(batch("b", &two));
        assert!(function.gets_nothing().await, "{settings:?}");
        assert!(returned(&posted(again).await).is_empty(), "{settings:?}");
    }
}

#[tokio::test]
async fn batch_can_fail_as_a_whole() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_BATCH_ANSWER", "fail")]).await;
    let first = lambda.deliver(messages(&[("a", 1), ("b", 2)]));
    function.respond(&function.next().await, failures(&["b"])).await;
    assert_eq!(posted(first).await.error_type(), "Idempotency.BatchFailed");
    let second = lambda.deliver(messages(&[("a", 1), ("b", 2)]));
    let next = function.next().await;
    assert_eq!(ids(&next), ["b"]);
    function.respond(&next, "{}").await;
    assert!(returned(&posted(second).await).is_empty());
}

#[tokio::test]
async fn each_record_can_have_its_own_event() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_BATCH", "each")]).await;
    let waiting = lambda.deliver(messages(&[("a", 1), ("b", 2), ("c", 3)]));
    for expected in ["a", "b", "c"] {
        let next = function.next().await;
        assert_eq!(ids(&next), [expected]);
        match expected {
            "b" => function.fail(&next, "KeyError").await,
            _ => function.respond(&next, "\"done\"").await,
        };
    }
    assert_eq!(returned(&posted(waiting).await), ["b"]);
    assert_eq!(lambda.polls(), 1, "the layer polled between a batch's records");
}

#[tokio::test]
async fn pollers_share_the_records_of_a_batch() {
    let lambda = Lambda::start().await;
    let settings = [BY_ID, ("IDEMPOTENCY_BATCH", "each"), ("AWS_LAMBDA_MAX_CONCURRENCY", "3")];
    let function = Function::start(&lambda, &settings).await;
    let waiting = lambda.deliver(messages(&[("a", 1), ("b", 2), ("c", 3)]));
    let events = [function.next().await, function.next().await, function.next().await];
    let mut got: Vec<_> = events.iter().flat_map(ids).collect();
    got.sort();
    assert_eq!(got, ["a", "b", "c"]);
    for event in &events {
        let answer = if ids(event) == ["b"] { failures(&["b"]) } else { failures(&[]) };
        function.respond(event, answer).await;
    }
    assert_eq!(returned(&posted(waiting).await), ["b"]);
}

/// If the layer had more open polls than the function has idle workers, Lambda would hand out an invocation to each
/// poll. Some of these invocations would then wait until a worker is idle. A worker isn't idle while the batch has
/// another record for it, even if that record isn't claimed yet.
#[tokio::test]
async fn layer_polls_once_per_idle_worker() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let each = [("IDEMPOTENCY_BATCH", "each"), ("AWS_LAMBDA_MAX_CONCURRENCY", "3")];
    let function = Function::start(&lambda, &[&on_table(&endpoint)[..], &each].concat()).await;
    // Claims and settlements take a quarter of a second.
    wire.break_next(1000, HttpWay::FastDrip);
    let waiting = lambda.deliver(messages(&[("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]));
    let mut running = VecDeque::from([function.next().await, function.next().await, function.next().await]);
    for _ in ["d", "e"] {
        function.respond(&running.pop_front().unwrap(), "null").await;
        running.push_back(function.next().await);
    }
    assert_eq!(lambda.polls(), 1, "the layer polled between a batch's records");
    let mut idle = Vec::new();
    for (event, polls) in running.iter().zip(2..) {
        function.respond(event, "null").await;
        idle.push(function.waits());
        until("the layer polls again", || lambda.polls() >= polls).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(lambda.polls(), polls);
    }
    assert!(returned(&posted(waiting).await).is_empty());
    assert!(idle.iter().all(|poll| !poll.is_finished()));
}

/// Only Lambda can stop the function, and only at the deadline. Until the function answers, the layer neither answers
/// the batch nor polls for the next event.
#[tokio::test]
async fn batch_waits_for_the_functions_answer() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let mut first = lambda.deliver_with(messages(&[("a", 1), ("b", 2)]), TIMEOUT, &[]);
    let next = function.next().await;
    tokio::time::sleep(TIMEOUT + Duration::from_millis(500)).await;
    assert!(first.try_recv().is_err(), "the batch was answered while its function ran");
    assert_eq!(lambda.polls(), 1, "the layer polled while the function was busy");
    function.respond(&next, failures(&["b"])).await;
    assert_eq!(returned(&posted(first).await), ["b"]);
    // The outcome was recorded, although it came late.
    let again = lambda.deliver(messages(&[("a", 1)]));
    assert!(function.gets_nothing().await);
    assert!(returned(&posted(again).await).is_empty());
}

/// After the deadline, another delivery may run the records that wait for a poll.
#[tokio::test]
async fn waiting_records_never_run_after_the_deadline() {
    let lambda = Lambda::start().await;
    let settings = [BY_ID, ("IDEMPOTENCY_BATCH", "each"), ("AWS_LAMBDA_MAX_CONCURRENCY", "3")];
    let function = Function::start(&lambda, &settings).await;
    let batch = messages(&[("a", 1), ("b", 2), ("c", 3)]);
    let waiting = lambda.deliver_with(batch, TIMEOUT, &[]);
    let next = function.next().await;
    tokio::time::sleep(TIMEOUT + Duration::from_millis(500)).await;
    function.respond(&next, "null").await;
    assert!(function.gets_nothing().await);
    let missing: Vec<_> = ["a", "b", "c"].into_iter().filter(|id| [*id] != *ids(&next)).collect();
    assert_eq!(returned(&posted(waiting).await), missing);
}

/// The function runs as without the layer: it gets the original event once, and Lambda gets the function's own answer.
#[tokio::test]
async fn shadow_mode_leaves_batches_unchanged() {
    for (mode, answer) in [("whole", "report"), ("each", "report"), ("each", "fail")] {
        let lambda = Lambda::start().await;
        let batches = [("IDEMPOTENCY_BATCH", mode), ("IDEMPOTENCY_BATCH_ANSWER", answer)];
        let settings = [&[BY_ID, ("IDEMPOTENCY_MODE", "shadow")][..], &batches].concat();
        let function = Function::start(&lambda, &settings).await;
        let in_group = |group| {
            let records =
                [("a1", 1), ("a2", 2), ("a3", 1)].map(|(id, n)| message(id, &json!({ "id": n }), group));
            json!({ "Records": records }).to_string()
        };
        for batch in [in_group(Some("g")), in_group(None)] {
            for answer in [failures(&["a2"]), " null".to_owned(), "\"done\"".to_owned()] {
                let waiting = lambda.deliver(&batch);
                let next = function.next().await;
                assert_eq!(next.body, batch, "{mode}");
                function.respond(&next, answer.clone()).await;
                assert_eq!(posted(waiting).await.text(), answer, "{mode}");
            }
            let failing = lambda.deliver(&batch);
            let next = function.next().await;
            assert_eq!(next.body, batch, "{mode}");
            function.fail(&next, "KeyError").await;
            assert_eq!(posted(failing).await.error_type(), "KeyError", "{mode}");
        }
    }
}

#[tokio::test]
async fn fifo_groups_keep_their_order() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let records: Vec<_> = [("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")]
        .iter()
        .enumerate()
        .map(|(n, (id, group))| message(id, &json!({ "id": n }), Some(group)))
        .collect();
    let waiting = lambda.deliver(json!({ "Records": records }).to_string());
    let next = function.next().await;
    assert_eq!(ids(&next), ["a1", "b1"]);
    function.respond(&next, failures(&["b1"])).await;
    let next = function.next().await;
    assert_eq!(ids(&next), ["a2"], "the group of the failed message is blocked");
    function.respond(&next, failures(&[])).await;
    let next = function.next().await;
    assert_eq!(ids(&next), ["a3"]);
    function.respond(&next, failures(&[])).await;
    assert_eq!(returned(&posted(waiting).await), ["b1", "b2"]);
}

/// If the layer passed on a second answer to one record, Lambda would treat it as the answer to the whole batch.
#[tokio::test]
async fn second_answers_to_a_record_are_dropped() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID]).await;
    let records = [("a1", 1), ("a2", 2)].map(|(id, n)| message(id, &json!({ "id": n }), Some("a")));
    let waiting = lambda.deliver(json!({ "Records": records }).to_string());
    let first = function.next().await;
    for _ in 0..2 {
        assert_eq!(function.respond(&first, "null").await.status, 202);
    }
    let second = function.next().await;
    assert_eq!(ids(&second), ["a2"]);
    function.respond(&second, failures(&["a2"])).await;
    assert_eq!(returned(&posted(waiting).await), ["a2"]);
}

fn kinesis(numbers: &[u32]) -> String {
    let record = |n: &u32| {
        json!({
            "eventSource": "aws:kinesis", "eventID": format!("shardId-0:{n}"),
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/s",
            "kinesis": { "partitionKey": "p", "sequenceNumber": n.to_string(), "data": "e30=" },
        })
    };
    json!({ "Records": numbers.iter().map(record).collect::<Vec<_>>() }).to_string()
}

#[tokio::test]
async fn stream_records_after_a_failure_run_again() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "kinesis")]).await;
    let first = lambda.deliver(kinesis(&[101, 102, 103]));
    function.respond(&function.next().await, failures(&["102"])).await;
    assert_eq!(returned(&posted(first).await), ["102"]);
    let second = lambda.deliver(kinesis(&[102, 103, 104]));
    let next = function.next().await;
    assert_eq!(next.json()["Records"].as_array().unwrap().len(), 3, "103 follows the failed 102");
    function.respond(&next, failures(&[])).await;
    assert!(returned(&posted(second).await).is_empty());
}

/// A record that can never run has no place in the order. Lambda gives up on the whole batch in the end, so the others
/// must have run by then.
#[tokio::test]
async fn stream_records_behind_a_mismatch_run() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "kinesis")]).await;
    let alone = lambda.deliver(kinesis(&[102]));
    function.respond(&function.next().await, failures(&[])).await;
    assert!(returned(&posted(alone).await).is_empty());
    let batch = kinesis(&[101, 102, 103]);
    let (first, rest) = batch.split_at(batch.find("shardId-0:102").unwrap());
    let refused = lambda.deliver(format!("{first}{}", rest.replacen("e30=", "W10=", 1)));
    let next = function.next().await;
    assert_eq!(next.json(), serde_json::from_str::<Value>(&kinesis(&[101, 103])).unwrap());
    function.respond(&next, failures(&[])).await;
    assert_eq!(returned(&posted(refused).await), ["102"]);
}

/// Two payloads under one key: the second mustn't take the key while the first may still run.
#[tokio::test]
async fn stream_records_of_one_key_keep_their_order() {
    let lambda = Lambda::start().await;
    let function =
        Function::start(&lambda, &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_EVENT", "kinesis")]).await;
    let data = |text: &str| STANDARD.encode(text);
    let batch = kinesis(&[101, 102]);
    let batch =
        batch.replacen("e30=", &data(r#"{"id":1,"n":1}"#), 1).replacen("e30=", &data(r#"{"id":1,"n":2}"#), 1);
    let first = lambda.deliver(&batch);
    let next = function.next().await;
    assert_eq!(next.json()["Records"].as_array().unwrap().len(), 1);
    function.respond(&next, failures(&["101"])).await;
    assert_eq!(returned(&posted(first).await), ["101"]);
    let second = lambda.deliver(&batch);
    let next = function.next().await;
    assert_eq!(next.json()["Records"][0]["kinesis"]["sequenceNumber"], "101");
    function.respond(&next, failures(&[])).await;
    assert_eq!(returned(&posted(second).await), ["102"], "a mismatch");
}

#[tokio::test]
async fn dynamodb_changes_are_keyed_by_event_id() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_EVENT", "dynamodb")]).await;
    let change = |n: u32| {
        json!({
            "eventID": format!("e{n}"), "eventName": "INSERT", "eventSource": "aws:dynamodb",
            "eventSourceARN": "arn:aws:dynamodb:eu-west-1:1:table/t/stream/1",
            "dynamodb": { "SequenceNumber": n.to_string(), "Keys": { "id": { "N": "1" } } },
        })
    };
    let first = lambda.deliver(json!({ "Records": [change(1), change(2)] }).to_string());
    function.respond(&function.next().await, failures(&["2"])).await;
    assert_eq!(returned(&posted(first).await), ["2"]);
    let second = lambda.deliver(json!({ "Records": [change(1), change(2)] }).to_string());
    let next = function.next().await;
    assert_eq!(next.json()["Records"], json!([change(2)]));
    function.respond(&next, "null").await;
    assert!(returned(&posted(second).await).is_empty());
}

#[tokio::test]
async fn each_record_carries_its_claim() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_CLAIM_FIELD", "claim")]).await;
    let waiting = lambda.deliver(messages(&[("a", 1), ("b", 2)]));
    let next = function.next().await;
    let keys = [0, 1].map(|n| next.json()["Records"][n]["claim"]["key"].clone());
    assert!(keys[0].is_string() && keys[0] != keys[1], "{keys:?}");
    function.respond(&next, "null").await;
    assert!(returned(&posted(waiting).await).is_empty());
}

/// If a record of the batch had two fields of one name, most parsers would read the facts of the claim, not the record's
/// own field.
#[tokio::test]
async fn claim_field_never_replaces_a_batch_records_field() {
    for mode in ["enforce", "shadow"] {
        let lambda = Lambda::start().await;
        let settings = [BY_ID, ("IDEMPOTENCY_CLAIM_FIELD", "body"), ("IDEMPOTENCY_MODE", mode)];
        let function = Function::start(&lambda, &settings).await;
        let batch = messages(&[("a", 1), ("b", 2)]);
        let waiting = lambda.deliver(&batch);
        if mode == "enforce" {
            assert!(function.gets_nothing().await);
            assert_eq!(posted(waiting).await.error_type(), "Idempotency.Invalid");
        } else {
            let next = function.next().await;
            assert_eq!(next.body, batch);
            function.respond(&next, "null").await;
            assert_eq!(posted(waiting).await.text(), "null");
        }
    }
}

/// The records of a batch share one client context, so it can't carry a claim for each. If the settings don't name the
/// kind of the events, the layer can't find this mistake until a batch arrives.
#[tokio::test]
async fn batches_with_context_claims_are_refused() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[BY_ID, ("IDEMPOTENCY_CLAIM_FIELD", "context:claim")]).await;
    let refused = lambda.deliver(messages(&[("a", 1)]));
    assert!(function.gets_nothing().await);
    let refused = posted(refused).await;
    assert_eq!(refused.error_type(), "Idempotency.Invalid");
    assert!(refused.text().contains("IDEMPOTENCY_CLAIM_FIELD"), "{refused:?}");
}
