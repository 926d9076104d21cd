//! HTTP events: the `Idempotency-Key` contract.

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::front_ends::{FRONT_ENDS, POST, Sent, event};

use super::bench::{Function, Lambda, Posted, posted};

const KEY: &[(&str, &str)] = &[("IDEMPOTENCY_KEY", "header")];

fn status(posted: &Posted) -> u64 {
    assert!(!posted.is_error, "{posted:?}");
    posted.json()["statusCode"].as_u64().unwrap()
}

/// A header of the response, from `headers` or `multiValueHeaders`.
fn header(posted: &Posted, name: &str) -> Option<String> {
    let json = posted.json();
    let named = |headers: &Value| {
        let headers = headers.as_object()?;
        headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| match value {
            Value::Array(values) => values[0].as_str().unwrap().to_owned(),
            value => value.as_str().unwrap().to_owned(),
        })
    };
    named(&json["headers"]).or_else(|| named(&json["multiValueHeaders"]))
}

fn created() -> Value {
    json!({
        "statusCode": 201,
        "headers": { "content-type": "application/json", "set-cookie": "a=1", "x-receipt": "17" },
        "body": "{\"paid\": 12.50}",
    })
}

#[tokio::test]
async fn every_front_end_honours_idempotency_keys() {
    for front_end in FRONT_ENDS {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, KEY).await;
        let first = lambda.deliver(event(front_end, POST).to_string());
        let next = function.next().await;
        assert_eq!(next.json(), event(front_end, POST), "{front_end}: the function gets the original event");
        let own = format!(" {}\n", created());
        function.respond(&next, own.clone()).await;
        assert_eq!(posted(first).await.text(), own, "{front_end}: Lambda gets the function's own bytes");

        let replay = lambda.deliver(event(front_end, POST).to_string());
        assert!(function.gets_nothing().await);
        let replay = posted(replay).await;
        assert_eq!(status(&replay), 201, "{front_end}");
        assert_eq!(replay.json()["body"], "{\"paid\": 12.50}", "{front_end}");
        assert_eq!(header(&replay, "idempotent-replayed").as_deref(), Some("true"), "{front_end}");
        assert_eq!(header(&replay, "x-receipt").as_deref(), Some("17"), "{front_end}");
        assert_eq!(header(&replay, "set-cookie"), None, "{front_end}");

        let other = lambda.deliver(event(front_end, Sent { body: "{}", ..POST }).to_string());
        assert!(function.gets_nothing().await);
        assert_eq!(status(&posted(other).await), 422, "{front_end}");

        let invalid = lambda.deliver(event(front_end, Sent { key: Some(""), ..POST }).to_string());
        assert!(function.gets_nothing().await);
        assert_eq!(status(&posted(invalid).await), 400, "{front_end}");
    }
}

#[tokio::test]
async fn server_errors_release_the_key() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let malformed = json!({ "message": "no status" });
    for answer in [json!({ "statusCode": 503 }), malformed, created()] {
        let waiting = lambda.deliver(event("rest-api", POST).to_string());
        function.respond(&function.next().await, answer.to_string()).await;
        assert_eq!(posted(waiting).await.json(), answer);
    }
    let waiting = lambda.deliver(event("rest-api", POST).to_string());
    assert!(function.gets_nothing().await);
    assert_eq!(status(&posted(waiting).await), 201);
}

#[tokio::test]
async fn function_errors_release_the_key() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    for _ in 0..2 {
        let waiting = lambda.deliver(event("http-api", POST).to_string());
        function.fail(&function.next().await, "KeyError").await;
        let failed = posted(waiting).await;
        assert_eq!(failed.error_type(), "KeyError");
        assert_eq!(failed.json()["stackTrace"], json!(["a", "b"]));
    }
}

#[tokio::test]
async fn concurrent_request_gets_a_conflict() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(event("alb", POST).to_string());
    let next = function.next().await;
    let second = lambda.deliver(event("alb", POST).to_string());
    assert!(function.gets_nothing().await);
    let second = posted(second).await;
    assert_eq!(status(&second), 409);
    assert!(header(&second, "retry-after").is_some());
    function.respond(&next, created().to_string()).await;
    assert_eq!(status(&posted(first).await), 201);
}

#[tokio::test]
async fn unkeyed_requests_pass_unless_refused() {
    for (policy, passes) in [("pass", true), ("refuse", false)] {
        let lambda = Lambda::start().await;
        let settings = [KEY, &[("IDEMPOTENCY_ON_MISSING_KEY", policy)]].concat();
        let function = Function::start(&lambda, &settings).await;
        let waiting = lambda.deliver(event("http-api", Sent { key: None, ..POST }).to_string());
        if passes {
            function.respond(&function.next().await, created().to_string()).await;
        } else {
            assert!(function.gets_nothing().await);
        }
        assert_eq!(status(&posted(waiting).await), if passes { 201 } else { 400 });
    }
}

#[tokio::test]
async fn key_can_come_from_the_body() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "/order_id")]).await;
    let unkeyed = || event("function-url", Sent { key: None, ..POST }).to_string();
    let first = lambda.deliver(unkeyed());
    function.respond(&function.next().await, created().to_string()).await;
    posted(first).await;
    let again = lambda.deliver(unkeyed());
    assert!(function.gets_nothing().await);
    assert_eq!(header(&posted(again).await, "idempotent-replayed").as_deref(), Some("true"));
}

#[tokio::test]
async fn http_apis_replay_answers_without_status() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(event("http-api", POST).to_string());
    function.respond(&function.next().await, r#"{"paid": 1.50}"#).await;
    assert_eq!(posted(first).await.text(), r#"{"paid": 1.50}"#);
    let again = lambda.deliver(event("http-api", POST).to_string());
    assert!(function.gets_nothing().await);
    let again = posted(again).await;
    assert_eq!((status(&again), again.json()["body"].clone()), (200, json!(r#"{"paid": 1.50}"#)));
    assert_eq!(header(&again, "content-type").as_deref(), Some("application/json"));
}

#[tokio::test]
async fn streamed_response_is_replayed_as_a_stream() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let body = b"{\"statusCode\":201,\"headers\":{\"x-receipt\":\"17\"}}\0\0\0\0\0\0\0\0part one, part two";
    let first = lambda.deliver(event("function-url", POST).to_string());
    function.post(&function.next().await, "response", &STREAM, Bytes::from_static(body)).await;
    let first = posted(first).await;
    assert_eq!(first.body, body);
    assert_eq!(first.headers["lambda-runtime-function-response-mode"], "streaming");
    let again = lambda.deliver(event("function-url", POST).to_string());
    assert!(function.gets_nothing().await);
    let again = posted(again).await;
    assert_eq!(again.headers["lambda-runtime-function-response-mode"], "streaming");
    assert_eq!(again.headers["transfer-encoding"], "chunked");
    let (head, rest) = again.body.split_at(again.body.iter().position(|byte| *byte == 0).unwrap());
    assert_eq!(&rest[8..], b"part one, part two");
    let head: Value = serde_json::from_slice(head).unwrap();
    assert_eq!((&head["statusCode"], &head["headers"]["idempotent-replayed"]), (&json!(201), &json!("true")));
}

pub(crate) const STREAM: [(&str, &str); 3] = [
    ("content-type", "application/vnd.awslambda.http-integration-response"),
    ("lambda-runtime-function-response-mode", "streaming"),
    ("transfer-encoding", "chunked"),
];

/// Answers two equal requests with this post, and checks whether the second one ran. Returns both answers.
async fn twice(headers: &[(&str, &str)], body: &str, runs_again: bool) -> [Posted; 2] {
    let lambda = Lambda::start().await;
    let settings = [KEY, &[("IDEMPOTENCY_MAX_RESPONSE", "1000")]].concat();
    let function = Function::start(&lambda, &settings).await;
    let first = lambda.deliver(event("function-url", POST).to_string());
    function.post(&function.next().await, "response", headers, body.to_owned().into()).await;
    let first = posted(first).await;
    let again = lambda.deliver(event("function-url", POST).to_string());
    if runs_again {
        function.post(&function.next().await, "response", headers, body.to_owned().into()).await;
    } else {
        assert!(function.gets_nothing().await, "the operation ran twice");
    }
    [first, posted(again).await]
}

#[tokio::test]
async fn responses_over_the_limit_are_not_retained() {
    let large = json!({ "statusCode": 201, "body": "a".repeat(2000) }).to_string();
    let [first, again] = twice(&[("content-type", "application/json")], &large, false).await;
    assert_eq!(first.text(), large);
    assert_eq!((status(&again), again.text().contains("not-retained")), (409, true), "{again:?}");
    for (head, length) in [
        (json!({ "statusCode": 201 }), 3000),
        // The head alone exceeds the limit.
        (json!({ "statusCode": 201, "headers": { "x-long": "h".repeat(1500) } }), 3000),
    ] {
        let large = format!("{head}{}{}", "\0".repeat(8), "a".repeat(length));
        let [first, again] = twice(&STREAM, &large, false).await;
        assert_eq!(first.text(), large);
        assert!(again.text().contains("not-retained"), "{again:?}");
    }
}

#[tokio::test]
async fn server_errors_over_the_limit_release_the_key() {
    let large = json!({ "statusCode": 503, "body": "a".repeat(2000) }).to_string();
    let [first, again] = twice(&[("content-type", "application/json")], &large, true).await;
    assert_eq!((first.text(), again.text()), (large.clone(), large));
    let large = format!("{}{}{}", json!({ "statusCode": 503 }), "\0".repeat(8), "a".repeat(3000));
    let [first, again] = twice(&STREAM, &large, true).await;
    assert_eq!((first.text(), again.text()), (large.clone(), large));
}

/// Without a head, the whole stream is a function URL's body, with the status 200.
#[tokio::test]
async fn streams_without_a_head_are_replayed() {
    let headers = [("content-type", "text/plain"), STREAM[1], STREAM[2]];
    let [first, again] = twice(&headers, "part one, part two", false).await;
    assert_eq!(first.text(), "part one, part two");
    let again = again.text();
    let (head, body) = again.split_once("\0\0\0\0\0\0\0\0").unwrap();
    let head: Value = serde_json::from_str(head).unwrap();
    assert_eq!((&head["statusCode"], &head["headers"]["content-type"]), (&json!(200), &json!("text/plain")));
    assert_eq!(body, "part one, part two");
}

#[tokio::test]
async fn bytes_without_a_content_type_are_replayed() {
    let binary = json!({ "statusCode": 201, "body": "mIAA/w==", "isBase64Encoded": true }).to_string();
    for front_end in FRONT_ENDS {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, KEY).await;
        let first = lambda.deliver(event(front_end, POST).to_string());
        function.respond(&function.next().await, binary.clone()).await;
        posted(first).await;
        let again = lambda.deliver(event(front_end, POST).to_string());
        assert!(function.gets_nothing().await);
        let again = posted(again).await.json();
        assert_eq!(
            (&again["body"], &again["isBase64Encoded"]),
            (&json!("mIAA/w=="), &json!(true)),
            "{front_end}"
        );
    }
}

#[tokio::test]
async fn malformed_request_is_refused_with_400() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let mut broken = event("http-api", POST);
    broken["isBase64Encoded"] = true.into();
    broken["body"] = "not base64!".into();
    let waiting = lambda.deliver(broken.to_string());
    assert!(function.gets_nothing().await);
    assert_eq!(status(&posted(waiting).await), 400);
}

/// VPC Lattice sends headers as lists. Its events have no caller unless IAM verified one.
#[tokio::test]
async fn vpc_lattice_honours_idempotency_keys() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let request: Value =
        serde_json::from_str(include_str!("../../../tests/wrappers/http/vpc-lattice.json")).unwrap();
    let first = lambda.deliver(request.to_string());
    let next = function.next().await;
    assert_eq!(next.json(), request, "the function gets the original event");
    function.respond(&next, created().to_string()).await;
    assert_eq!(posted(first).await.json(), created());

    let replay = lambda.deliver(request.to_string());
    assert!(function.gets_nothing().await);
    let replay = posted(replay).await;
    assert_eq!((status(&replay), &replay.json()["body"]), (201, &json!("{\"paid\": 12.50}")));
    assert_eq!(header(&replay, "idempotent-replayed").as_deref(), Some("true"));

    let mut other = request;
    other["body"] = "{}".into();
    let refused = lambda.deliver(other.to_string());
    assert!(function.gets_nothing().await);
    assert_eq!(status(&posted(refused).await), 422);
}
