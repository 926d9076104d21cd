//! Events that are one operation each.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;

use super::{
    bench::{Function, Lambda, posted},
    process::until,
};

const KEY: &[(&str, &str)] = &[("IDEMPOTENCY_KEY", "/id")];

fn with<'a>(settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    KEY.iter().chain(settings).copied().collect()
}

#[tokio::test]
async fn duplicate_never_reaches_the_function() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(r#"{"id": 1, "n": 10.50}"#);
    let event = function.next().await;
    assert_eq!(event.body, r#"{"id": 1, "n": 10.50}"#);
    assert_eq!(event.header("content-type"), "application/json");
    assert!(event.header("lambda-runtime-invocation-id").starts_with("invocation-of-request-"));
    let answered = function.respond(&event, r#"{"paid": 10.50}"#).await;
    assert_eq!((answered.status, &*answered.body), (202, &b"{\"status\":\"OK\"}"[..]));
    let first = posted(first).await;
    assert_eq!((first.is_error, first.text().as_str()), (false, r#"{"paid": 10.50}"#));

    let duplicate = lambda.deliver(r#"{"n": 10.50, "id": 1}"#);
    assert!(function.gets_nothing().await);
    let duplicate = posted(duplicate).await;
    assert_eq!((duplicate.is_error, duplicate.text().as_str()), (false, r#"{"paid": 10.50}"#));
    assert_eq!(duplicate.headers["content-type"], "application/json");
    assert!(duplicate.headers["lambda-runtime-invocation-id"].starts_with("invocation-of-request-"));
}

#[tokio::test]
async fn other_payload_is_a_mismatch() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(r#"{"id": 1, "n": 1}"#);
    function.respond(&function.next().await, "1").await;
    posted(first).await;
    let other = lambda.deliver(r#"{"id": 1, "n": 2}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(other).await.error_type(), "Idempotency.Mismatch");
}

#[tokio::test]
async fn only_compared_fields_must_match() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_COMPARE", "/n,/m")])).await;
    let first = lambda.deliver(r#"{"id": 1, "n": 1, "at": 1}"#);
    function.respond(&function.next().await, "1").await;
    posted(first).await;
    let again = lambda.deliver(r#"{"id": 1, "n": 1, "at": 2}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(again).await.text(), "1");
}

#[tokio::test]
async fn on_missing_key_decides_about_unkeyed_events() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for event in ["{}", "no JSON", r#"{"id": ""}"#] {
        let refused = lambda.deliver(event);
        assert!(function.gets_nothing().await);
        assert_eq!(posted(refused).await.error_type(), "Idempotency.MissingKey", "{event}");
    }
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_ON_MISSING_KEY", "pass")])).await;
    for event in ["{}", "no JSON", "{}"] {
        let passed = lambda.deliver(event);
        let next = function.next().await;
        assert_eq!(next.body, event);
        function.respond(&next, "2").await;
        assert_eq!(posted(passed).await.text(), "2");
    }
}

#[tokio::test]
async fn error_type_decides_whether_errors_are_recorded() {
    let lambda = Lambda::start().await;
    let function =
        Function::start(&lambda, &with(&[("IDEMPOTENCY_ON_ERROR", "record:Declined,Invalid")])).await;
    for (error_type, runs) in [("Timeout", 2), ("Declined", 1)] {
        let event = format!(r#"{{"id": "{error_type}"}}"#);
        for run in 0..2 {
            let failed = lambda.deliver(&event);
            if run < runs {
                function.fail(&function.next().await, error_type).await;
            } else {
                assert!(function.gets_nothing().await);
            }
            let failed = posted(failed).await;
            assert_eq!(failed.error_type(), error_type);
            assert_eq!(failed.headers["lambda-runtime-function-error-type"], error_type);
            let is_own = failed.json()["stackTrace"] == serde_json::json!(["a", "b"]);
            assert_eq!(is_own, run < runs, "Lambda gets the function's own report only from a run");
        }
    }
}

#[tokio::test]
async fn errors_over_the_limit_keep_their_type() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_ON_ERROR", "record:Declined"), ("IDEMPOTENCY_MAX_RESPONSE", "10")];
    let function = Function::start(&lambda, &with(&settings)).await;
    let first = lambda.deliver(r#"{"id": 1}"#);
    // Only the body has the type.
    let report = format!(r#"{{"errorType": "Declined", "errorMessage": "{}"}}"#, "no ".repeat(20));
    function.post(&function.next().await, "error", &[], report.into()).await;
    assert_eq!(posted(first).await.error_type(), "Declined");
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await, "the function ran again after a recorded error");
    assert_eq!(posted(again).await.error_type(), "Declined");
}

#[tokio::test]
async fn rejected_late_answers_are_recorded() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_METRICS", "cloudwatch")])).await;
    let late = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(8), &[]);
    let event = function.next().await;
    tokio::time::sleep(Duration::from_millis(8300)).await;
    lambda.answers(410);
    let accepted = function.respond(&event, "1").await;
    assert_eq!(accepted.status, 202, "a runtime client may end its process at a 410");
    posted(late).await;
    lambda.answers(202);
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(again).await.text(), "1");
    let log = function.log();
    assert!(log.contains("\"idempotency_layer_late_answer\":1"), "{log}");
}

#[tokio::test]
async fn duplicates_of_running_events_are_refused() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("AWS_LAMBDA_MAX_CONCURRENCY", "2")])).await;
    let first = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    let duplicate = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(duplicate).await.error_type(), "Idempotency.InProgress");
    function.respond(&event, "1").await;
    assert_eq!(posted(first).await.text(), "1");
}

#[tokio::test]
async fn concurrent_events_get_their_own_answers() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("AWS_LAMBDA_MAX_CONCURRENCY", "8")])).await;
    let waiting: Vec<_> = (0..8).map(|n| (n, lambda.deliver(format!(r#"{{"id": {n}}}"#)))).collect();
    let mut events = Vec::new();
    for _ in 0..8 {
        events.push(function.next().await);
    }
    for event in events.iter().rev() {
        function.respond(event, format!("{}", event.json()["id"])).await;
    }
    for (n, waiting) in waiting {
        assert_eq!(posted(waiting).await.text(), n.to_string());
    }
}

#[tokio::test]
async fn layer_polls_once_per_idle_poller() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    assert_eq!(lambda.polls(), 0);
    let first = lambda.deliver(r#"{"id": 1}"#);
    let event = function.next().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lambda.polls(), 1, "the layer polled while the function ran");
    function.respond(&event, "1").await;
    posted(first).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lambda.polls(), 1, "the layer polled before the function did");
    // The function's poll stays open during a replay. The layer's second poll gets the duplicate, and its third poll
    // stays open.
    let again = lambda.deliver(r#"{"id": 1}"#);
    let poll = function.waits();
    posted(again).await;
    until("the layer polls again", || lambda.polls() >= 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(lambda.polls(), 3);
    // The next event comes with the polls that are open.
    let next = lambda.deliver(r#"{"id": 2}"#);
    let event = poll.await.unwrap();
    function.respond(&event, "2").await;
    assert_eq!(posted(next).await.text(), "2");
    assert_eq!(lambda.polls(), 3);
}

#[tokio::test]
async fn unreadable_deadlines_leave_events_protected() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for (n, deadline) in ["soon", "-1", "99999999999999999999999", ""].iter().enumerate() {
        let headers = [("lambda-runtime-deadline-ms", *deadline)];
        let deliver = || lambda.deliver_with(format!(r#"{{"id": {n}}}"#), Duration::from_secs(60), &headers);
        let first = deliver();
        let event = function.next().await;
        assert_eq!(event.header("lambda-runtime-deadline-ms"), *deadline);
        function.respond(&event, "1").await;
        assert_eq!(posted(first).await.text(), "1", "{deadline}");
        let again = deliver();
        assert!(function.gets_nothing().await, "{deadline}");
        assert_eq!(posted(again).await.text(), "1", "{deadline}");
    }
}

#[tokio::test]
async fn event_can_carry_the_claim() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_CLAIM_FIELD", "claim")])).await;
    let mut keys = Vec::new();
    for (attempt, id) in [(1, 1), (2, 1), (1, 2)] {
        let waiting = lambda.deliver(format!(r#"{{"id": {id}}}"#));
        let event = function.next().await;
        let claim = &event.json()["claim"];
        assert_eq!((&event.json()["id"], &claim["attempt"]), (&id.into(), &attempt.into()));
        assert_eq!(claim["earlierAttemptMayHaveRun"], false);
        keys.push(claim["key"].as_str().unwrap().to_owned());
        function.fail(&event, "Timeout").await;
        posted(waiting).await;
    }
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[0], keys[2]);
    let forged = lambda.deliver(r#"{"id": 3, "claim": {"attempt": 1}}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(forged).await.error_type(), "Idempotency.Invalid");
}

#[tokio::test]
async fn client_context_can_carry_the_claim() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_CLAIM_FIELD", "context:claim")])).await;
    let context = ("lambda-runtime-client-context", r#"{"custom":{"a":"b"},"env":{"x":"y"}}"#);
    let waiting = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(60), &[context]);
    let event = function.next().await;
    assert_eq!(event.body, r#"{"id": 1}"#);
    let context: serde_json::Value =
        serde_json::from_str(event.header("lambda-runtime-client-context")).unwrap();
    assert_eq!((&context["custom"]["a"], &context["env"]["x"]), (&"b".into(), &"y".into()));
    let claim: serde_json::Value =
        serde_json::from_str(context["custom"]["claim"].as_str().unwrap()).unwrap();
    assert_eq!(claim["attempt"], 1);
    function.respond(&event, "1").await;
    posted(waiting).await;

    let settings =
        with(&[("IDEMPOTENCY_CLAIM_FIELD", "context:claim"), ("IDEMPOTENCY_ON_MISSING_KEY", "pass")]);
    let function = Function::start(&lambda, &settings).await;
    let forged = ("lambda-runtime-client-context", r#"{"custom":{"a":"b","claim":"forged"}}"#);
    let waiting = lambda.deliver_with("{}", Duration::from_secs(60), &[forged]);
    let event = function.next().await;
    assert_eq!(event.header("lambda-runtime-client-context"), r#"{"custom":{"a":"b"}}"#);
    function.respond(&event, "1").await;
    posted(waiting).await;
}

#[tokio::test]
async fn at_most_once_records_errors() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &with(&[("IDEMPOTENCY_EXECUTION", "at-most-once")])).await;
    for run in 0..2 {
        let failed = lambda.deliver(r#"{"id": 1}"#);
        match run {
            0 => drop(function.fail(&function.next().await, "Timeout").await),
            _ => assert!(function.gets_nothing().await),
        }
        assert_eq!(posted(failed).await.error_type(), "Timeout");
    }
}

#[tokio::test]
async fn tenants_have_separate_keys() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for tenant in ["anna", "otto"] {
        let headers = [("lambda-runtime-aws-tenant-id", tenant)];
        let waiting = lambda.deliver_with(r#"{"id": 1}"#, Duration::from_secs(60), &headers);
        let event = function.next().await;
        assert_eq!(event.header("lambda-runtime-aws-tenant-id"), tenant);
        function.respond(&event, format!("\"{tenant}\"")).await;
        assert_eq!(posted(waiting).await.text(), format!("\"{tenant}\""));
    }
}

#[tokio::test]
async fn six_megabyte_payloads_pass_unchanged() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let event = format!(r#"{{"id": 1, "data": "{}"}}"#, "x".repeat(6_000_000));
    let answer = format!("\"{}\"", "y".repeat(6_000_000));
    let first = lambda.deliver_with(&event, Duration::from_secs(15), &[]);
    let next = function.next().await;
    assert!(next.body == event);
    function.respond(&next, Bytes::from(answer.clone())).await;
    assert!(posted(first).await.text() == answer);
    let again = lambda.deliver_with(&event, Duration::from_secs(15), &[]);
    assert!(function.gets_nothing().await);
    assert!(posted(again).await.text() == answer);
}

/// Bedrock AgentCore's gateway sends a tool's bare arguments, and the tool's name only in the client context.
#[tokio::test]
async fn tools_with_equal_arguments_are_distinct() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "/orderId")]).await;
    let strange = "täol ".repeat(30);
    for (nth, tool) in ["orders___charge", "orders___refund", &strange, ""].into_iter().enumerate() {
        for spelling in ["bedrockAgentCoreToolName", "bedrockagentcoreToolName"] {
            // A header of HTTP has ASCII only, so the gateway escapes other characters.
            let context = json!({ "custom": { spelling: tool } }).to_string();
            let context = context.replace('ä', "\\u00e4");
            let headers = [("lambda-runtime-client-context", context.as_str())];
            let waiting = lambda.deliver_with(r#"{"orderId": 17}"#, Duration::from_secs(60), &headers);
            if spelling == "bedrockAgentCoreToolName" {
                function.respond(&function.next().await, nth.to_string()).await;
            } else {
                assert!(function.gets_nothing().await, "{tool}");
            }
            assert_eq!(posted(waiting).await.text(), nth.to_string(), "{tool}");
        }
    }
    // Without a tool, it's another operation.
    let waiting = lambda.deliver(r#"{"orderId": 17}"#);
    function.respond(&function.next().await, "\"plain\"").await;
    assert_eq!(posted(waiting).await.text(), "\"plain\"");
}
