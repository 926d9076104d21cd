//! HTTP events: the `Idempotency-Key` contract.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::front_ends::{FRONT_ENDS, POST, Sent, event};

use super::bench::{Function, Lambda, Posted, posted};

const KEY: &[(&str, &str)] = &[("IDEMPOTENCY_KEY", "header")];

pub(crate) fn status(posted: &Posted) -> u64 {
    assert!(!posted.is_error, "{posted:?}");
    posted.json()["statusCode"].as_u64().unwrap()
}

/// A header of the response, from `headers` or `multiValueHeaders`.
pub(crate) fn header(posted: &Posted, name: &str) -> Option<String> {
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

pub(crate) fn created() -> Value {
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
async fn on_missing_key_decides_about_unkeyed_requests() {
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
async fn by_default_only_header_keys_are_optional() {
    for (key, passes) in [("header", true), ("request-id", false), ("eventbridge", false), ("sqs", false)] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", key)]).await;
        let waiting = lambda.deliver(event("http-api", Sent { key: None, ..POST }).to_string());
        if passes {
            function.respond(&function.next().await, created().to_string()).await;
        } else {
            assert!(function.gets_nothing().await, "{key}");
        }
        assert_eq!(status(&posted(waiting).await), if passes { 201 } else { 400 }, "{key}");
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

/// The headers of a stream of this type.
fn stream_of(content_type: &str) -> [(&str, &str); 3] {
    [("content-type", content_type), STREAM[1], STREAM[2]]
}

/// The head and the body of a streamed response.
fn parts(posted: &Posted) -> (Value, String) {
    let text = posted.text();
    let (head, body) = text.split_once("\0\0\0\0\0\0\0\0").unwrap();
    (serde_json::from_str(head).unwrap(), body.to_owned())
}

/// Sends two equal requests to a function URL. Each time the function runs, it answers with these headers and this
/// body. It must run for the second request if `runs_again` is true, and mustn't otherwise. Returns both answers. The
/// limit for recorded answers is 1,000 bytes.
async fn twice(headers: &[(&str, &str)], body: &str, runs_again: bool) -> [Posted; 2] {
    twice_behind("function-url", headers, body, runs_again).await
}

async fn twice_behind(
    front_end: &str,
    headers: &[(&str, &str)],
    body: &str,
    runs_again: bool,
) -> [Posted; 2] {
    let lambda = Lambda::start().await;
    let settings = [KEY, &[("IDEMPOTENCY_MAX_RESPONSE", "1000")]].concat();
    let function = Function::start(&lambda, &settings).await;
    let first = lambda.deliver(event(front_end, POST).to_string());
    function.post(&function.next().await, "response", headers, body.to_owned().into()).await;
    let first = posted(first).await;
    let again = lambda.deliver(event(front_end, POST).to_string());
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
async fn oversized_server_errors_release_the_key() {
    let large = json!({ "statusCode": 503, "body": "a".repeat(2000) }).to_string();
    let [first, again] = twice(&[("content-type", "application/json")], &large, true).await;
    assert_eq!((first.text(), again.text()), (large.clone(), large));
    let large = format!("{}{}{}", json!({ "statusCode": 503 }), "\0".repeat(8), "a".repeat(3000));
    let [first, again] = twice(&STREAM, &large, true).await;
    assert_eq!((first.text(), again.text()), (large.clone(), large));
}

/// If a stream has no head, a function URL takes the whole stream as the body of a response with the status 200.
#[tokio::test]
async fn streams_without_a_head_are_replayed() {
    let [first, again] = twice(&stream_of("text/plain"), "part one, part two", false).await;
    assert_eq!(first.text(), "part one, part two");
    let (head, body) = parts(&again);
    assert_eq!((&head["statusCode"], &head["headers"]["content-type"]), (&json!(200), &json!("text/plain")));
    assert_eq!(body, "part one, part two");
}

/// Node's client writes the head before the first part of the body, so it posts nothing for a response without a body.
#[tokio::test]
async fn empty_streams_are_replayed() {
    let [first, again] = twice(&STREAM, "", false).await;
    assert_eq!((first.text().as_str(), first.headers["content-type"].as_str()), ("", STREAM[0].1));
    let (head, body) = parts(&again);
    assert_eq!((&head["statusCode"], &head["headers"]["idempotent-replayed"]), (&json!(200), &json!("true")));
    assert_eq!(body, "");
}

/// AWS's sample for REST APIs writes the head itself, but doesn't set the content type of a stream with a head.
#[tokio::test]
async fn rest_apis_read_heads_of_any_type() {
    let headers = stream_of("application/octet-stream");
    let stream = |status: u16, length: usize| {
        let head = json!({ "statusCode": status, "headers": { "x-receipt": "17" } });
        format!("{head}{}{}", "\0".repeat(8), "a".repeat(length))
    };
    for length in [10, 3000] {
        let failed = stream(503, length);
        let [first, again] = twice_behind("rest-api", &headers, &failed, true).await;
        assert_eq!((first.text(), again.text()), (failed.clone(), failed));
    }
    let paid = stream(201, 10);
    let [first, again] = twice_behind("rest-api", &headers, &paid, false).await;
    assert_eq!(first.text(), paid);
    let (head, body) = parts(&again);
    assert_eq!((&head["statusCode"], body.as_str()), (&json!(201), "aaaaaaaaaa"));
    let headers_of_replay = &head["headers"];
    assert_eq!(
        (&headers_of_replay["x-receipt"], &headers_of_replay["idempotent-replayed"]),
        (&json!("17"), &json!("true"))
    );

    let [_, again] = twice_behind("rest-api", &headers, &stream(201, 3000), false).await;
    assert!(again.text().contains("not-retained"), "{again:?}");
    let failed = stream(503, 10);
    let [_, again] = twice(&headers, &failed, false).await;
    assert_eq!(parts(&again).1, failed, "a function URL reads no head in a stream of this type");
}

/// HTTP APIs and load balancers buffer streams, and read them as JSON.
#[tokio::test]
async fn streamed_envelopes_are_replayed_as_json() {
    for (front_end, content_type) in [("http-api", "application/octet-stream"), ("alb", "application/json")] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, KEY).await;
        let first = lambda.deliver(event(front_end, POST).to_string());
        let (next, headers) = (function.next().await, stream_of(content_type));
        function.post(&next, "response", &headers, created().to_string().into()).await;
        assert_eq!(posted(first).await.json(), created(), "{front_end}");
        for (body, expected) in [(POST.body, 201), ("{}", 422)] {
            let own = lambda.deliver(event(front_end, Sent { body, ..POST }).to_string());
            assert!(function.gets_nothing().await);
            assert_eq!(status(&posted(own).await), expected, "{front_end}");
        }
    }
}

#[tokio::test]
async fn streamed_json_over_the_limit_is_read() {
    let headers = stream_of("application/json");
    let large = json!({ "statusCode": 503, "body": "a".repeat(20_000) }).to_string();
    let [first, again] = twice_behind("http-api", &headers, &large, true).await;
    assert_eq!((first.text(), again.text()), (large.clone(), large));
    let large = json!({ "statusCode": 201, "body": "a".repeat(20_000) }).to_string();
    let [first, again] = twice_behind("http-api", &headers, &large, false).await;
    assert_eq!(first.text(), large);
    assert_eq!((status(&again), again.text().contains("not-retained")), (409, true), "{again:?}");
}

/// The fenced delivery gets the successor's outcome, whose response was too large to record.
#[tokio::test]
async fn fenced_stream_is_refused_as_not_retained() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_MAX_RESPONSE", "1000"), ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:20s")];
    let function = Function::start(&lambda, &[KEY, &settings].concat()).await;
    let request = event("function-url", POST).to_string();
    let stream = |length| format!("{}{}{}", json!({ "statusCode": 201 }), "\0".repeat(8), "a".repeat(length));
    let fenced = lambda.deliver_with(&request, Duration::from_secs(4), &[]);
    let slow = function.next().await;
    // The successor waits until the lease has expired.
    let successor = lambda.deliver(&request);
    function.post(&function.next().await, "response", &STREAM, stream(3000).into()).await;
    assert_eq!(posted(successor).await.text(), stream(3000));
    function.post(&slow, "response", &STREAM, stream(10).into()).await;
    let fenced = posted(fenced).await;
    assert!(fenced.text().contains("not-retained"), "{fenced:?}");
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

#[tokio::test]
async fn refusals_are_streamed_for_streaming_functions() {
    let lambda = Lambda::start().await;
    let settings = [KEY, &[("IDEMPOTENCY_STREAMING", "true")]].concat();
    let function = Function::start(&lambda, &settings).await;
    let mut broken = event("function-url", POST);
    broken["isBase64Encoded"] = true.into();
    broken["body"] = "not base64!".into();
    let waiting = lambda.deliver(broken.to_string());
    assert!(function.gets_nothing().await);
    let (head, body) = parts(&posted(waiting).await);
    assert_eq!((&head["statusCode"], body.contains("request-unreadable")), (&json!(400), true));
}

/// An HTTP API buffers streams, so it gets JSON, though a function URL of the same function gets streams.
#[tokio::test]
async fn buffering_front_ends_get_no_streams() {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, KEY).await;
    let first = lambda.deliver(event("function-url", POST).to_string());
    let streamed = format!("{}{}done", json!({ "statusCode": 201 }), "\0".repeat(8));
    function.post(&function.next().await, "response", &STREAM, streamed.clone().into()).await;
    assert_eq!(posted(first).await.text(), streamed);
    let mut broken = event("http-api", POST);
    broken["isBase64Encoded"] = true.into();
    broken["body"] = "not base64!".into();
    let waiting = lambda.deliver(broken.to_string());
    assert!(function.gets_nothing().await);
    assert_eq!(status(&posted(waiting).await), 400);
}

/// The library converts JSON without a status to a response whose body is a string, in which each quote takes two
/// bytes. That makes this answer's recorded form too large for the front end.
#[tokio::test]
async fn answers_with_oversized_recorded_form_are_delivered() {
    let large = json!(vec!["a"; 1_100_000]).to_string();
    assert!(large.len() < 6_000_000 && large.len() + 2_200_000 > 6_291_556);
    for (setting, expected, says) in [
        (None, 409, "not-retained"),
        (Some(("IDEMPOTENCY_STATUS", "not-retained=200")), 200, "not-retained"),
        (Some(("IDEMPOTENCY_ON_NOT_RETAINED", "\"ended\"")), 200, "ended"),
    ] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[KEY, setting.as_slice()].concat()).await;
        let request = event("http-api", POST).to_string();
        let first = lambda.deliver_with(&request, Duration::from_secs(20), &[]);
        let json = [("content-type", "application/json")];
        function.post(&function.next().await, "response", &json, large.clone().into()).await;
        assert!(posted(first).await.text() == large, "the first caller gets the function's answer");
        let again = lambda.deliver(request);
        assert!(function.gets_nothing().await, "the operation ran twice");
        let again = posted(again).await;
        assert_eq!((status(&again), again.text().contains(says)), (expected, true), "{setting:?}");
    }
}

/// VPC Lattice sends headers as lists. Its events have a caller only if IAM verified one.
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

/// Go's client streams with the content type only: it sends no response mode.
#[tokio::test]
async fn streams_without_a_mode_replay_as_streams() {
    const STREAM: &str = "application/vnd.awslambda.http-integration-response";
    for front_end in ["rest-api", "function-url"] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, KEY).await;
        let first = lambda.deliver(event(front_end, POST).to_string());
        let next = function.next().await;
        let own = b"{\"statusCode\":201,\"headers\":{\"x-receipt\":\"17\"}}\0\0\0\0\0\0\0\0paid";
        let headers = [("content-type", STREAM), ("transfer-encoding", "chunked")];
        function.post(&next, "response", &headers, Bytes::from_static(own)).await;
        let first = posted(first).await;
        assert_eq!((first.headers["content-type"].as_str(), first.body.as_slice()), (STREAM, own.as_slice()));
        assert!(!first.headers.contains_key("content-length"), "{front_end}: {:?}", first.headers);

        let replay = lambda.deliver(event(front_end, POST).to_string());
        assert!(function.gets_nothing().await);
        let replay = posted(replay).await;
        assert_eq!(replay.headers["content-type"], STREAM, "{front_end}");
        assert_eq!(replay.headers["lambda-runtime-function-response-mode"], "streaming", "{front_end}");
        assert!(replay.body.ends_with(b"\0\0\0\0\0\0\0\0paid"), "{front_end}: {replay:?}");
    }
}
