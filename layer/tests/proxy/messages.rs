//! Messages to the layer's users are in the words of its variables. Every test in this program checks that, by the
//! bench. These tests add inputs whose messages come from the library.

use serde_json::json;

use super::{
    bench::{Function, INIT_ERROR, Lambda, assert_plain, posted, program},
    http_events::status,
    settings::delivered,
};

/// The error that the caller of a refused event gets.
async fn refusal(settings: &[(&str, &str)], event: &str) -> String {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, settings).await;
    let (runs, answer) = delivered(&lambda, &function, event, "{}").await;
    assert!(!runs && answer.is_error, "{event}: {answer:?}");
    answer.json()["errorMessage"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn refusals_name_the_missing_field() {
    for (key, event, says) in [
        ("/orderId", "{}", "`/orderId`"),
        ("/orderId", r#"{"orderId": null}"#, "`/orderId`"),
        ("/orderId", r#"{"orderId": " "}"#, "`/orderId`"),
        ("/a,/b", r#"{"a": 1}"#, "`/b` is absent"),
        ("jmespath:order.id", "{}", "`order.id`"),
        ("step-functions", r#"{"Execution": {"Id": "e"}}"#, "`/execution` is absent"),
        ("eventbridge", "{}", "`/id`"),
        ("header", "{}", "no idempotency key"),
        ("/orderId", "no JSON", "isn't JSON"),
        ("/orderId", r#"{"orderId": "k", "orderId": "l"}"#, "orderId"),
        ("/orderId/x", r#"{"orderId": 1}"#, "`/orderId/x`"),
        ("jmespath:json(body)", r#"{"body": "{"}"#, "json"),
        ("jmespath:length(a)", r#"{"a": 1}"#, "length"),
        ("sns", r#"{"Records": [{"Sns": {"MessageId": "1"}}, {"Sns": {"MessageId": "2"}}]}"#, "only one"),
    ] {
        let message = refusal(&[("IDEMPOTENCY_KEY", key)], event).await;
        assert!(message.contains(says), "{key} {event}: {message}");
    }
}

#[tokio::test]
async fn deeply_nested_events_are_refused_in_words() {
    for (settings, event) in [
        ([("IDEMPOTENCY_KEY", "/id")], json!({ "id": "k", "deep": "DEEP" }).to_string()),
        ([("IDEMPOTENCY_KEY", "request-id")], json!("DEEP").to_string()),
    ] {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let message = refusal(&settings, &event.replace("\"DEEP\"", &deep)).await;
        assert!(message.contains("nested more than 127 deep"), "{message}");
    }
}

#[tokio::test]
async fn durable_executions_are_refused_in_words() {
    let event = json!({
        "DurableExecutionArn": "arn:aws:lambda:eu-west-1:1:function:f:1/durable-execution/e/i",
        "CheckpointToken": "t",
        "InitialExecutionState": { "Operations": [{ "Id": "0", "Type": "EXECUTION", "Status": "STARTED" }] },
    });
    for (key, kind) in [("/DurableExecutionArn", ""), ("/orderId", "event"), ("request-id", "event")] {
        let settings = [("IDEMPOTENCY_KEY", key), ("IDEMPOTENCY_EVENT", kind)];
        let message = refusal(&settings, &event.to_string()).await;
        assert!(message.contains("belongs to a durable execution"), "{message}");
    }
    for mode in ["off", "shadow"] {
        let lambda = Lambda::start().await;
        let settings = [("IDEMPOTENCY_KEY", "/DurableExecutionArn"), ("IDEMPOTENCY_MODE", mode)];
        let function = Function::start(&lambda, &settings).await;
        for answer in [r#"{"Status":"PENDING"}"#, r#"{"Status":"SUCCEEDED"}"#] {
            let (runs, answered) = delivered(&lambda, &function, &event.to_string(), answer).await;
            assert!(runs && answered.text() == answer, "{mode}: {answered:?}");
        }
    }
    // Another event may have a field of one of these names.
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "/CheckpointToken")]).await;
    let (runs, _) = delivered(&lambda, &function, r#"{"CheckpointToken": "t"}"#, "1").await;
    assert!(runs);
}

#[tokio::test]
async fn init_errors_are_in_variables() {
    for settings in [
        &[("IDEMPOTENCY_STORE", "x")][..],
        &[("IDEMPOTENCY_TABLE", "t")],
        &[("IDEMPOTENCY_STORE", "dynamodb://t?x=1")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_TABLE", "orders")],
        &[],
        &[("IDEMPOTENCY_STORE", "memory:"), ("AWS_LAMBDA_FUNCTION_NAME", "")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_KEY", "jmespath:a[")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_KEY", "jmespath:none(a)")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_KEY", "/a~2")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_RETENTION", "0s")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_LEASE", "1ms")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_OPERATION", "a:b")],
        &[("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_MODE", "off"), ("IDEMPOTENCY_REQUIRED", "1")],
    ] {
        let lambda = Lambda::start().await;
        let mut command = program(&lambda, &[("IDEMPOTENCY_KEY", "/id")]);
        let ended = command.envs(settings.iter().copied()).args(["--", "/bin/true"]).output().await.unwrap();
        assert!(!ended.status.success(), "{settings:?}");
        let report = lambda.others().into_iter().find(|other| other.path == INIT_ERROR).unwrap();
        assert_plain(&String::from_utf8_lossy(&report.body));
        assert_plain(&String::from_utf8_lossy(&ended.stderr));
        assert_plain(&String::from_utf8_lossy(&ended.stdout));
    }
}

#[tokio::test]
async fn oversized_answers_are_logged_in_words() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_MAX_RESPONSE", "10")];
    let function = Function::start(&lambda, &settings).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    function.respond(&function.next().await, format!("{:?}", "x".repeat(99))).await;
    assert!(!posted(waiting).await.is_error);
    let (runs, duplicate) = delivered(&lambda, &function, r#"{"id": 1}"#, "").await;
    assert!(!runs && duplicate.is_error, "{duplicate:?}");
}

#[tokio::test]
async fn unknown_callers_are_logged_in_variables() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "header")]).await;
    let request = super::callers::sent("alb", &[("authorization", "Bearer c4n4ry")]).to_string();
    for _ in 0..2 {
        let (_, refused) = delivered(&lambda, &function, &request, "").await;
        assert_eq!(status(&refused), 500);
    }
    let log = function.log();
    assert_eq!(log.matches("IDEMPOTENCY_IGNORE_COOKIES").count(), 1, "{log}");
    assert!(log.contains("IDEMPOTENCY_CALLERS") && !log.contains("c4n4ry"), "{log}");
}
