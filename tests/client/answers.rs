//! Checks which answers the client retries, and that its caller gets the complete last answer.

use std::time::Duration;

use lambda_idempotency::client::{self, IdempotentRequests};
use reqwest::header::HeaderName;

use super::{
    http_server::Reply,
    stage::{CREATED, Stage, answer, answer_with, problem},
};

/// Returns how often the client sends a payment if `first` answers the first attempt.
async fn sent(first: Reply) -> usize {
    let stage = Stage::new([first]).await;
    stage.payment().send().await.unwrap();
    stage.received().len()
}

#[tokio::test]
async fn transient_failures_are_retried() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        assert_eq!(sent(answer(status)).await, 2, "{status}");
    }
    assert_eq!(sent(problem(409, "in-progress", true)).await, 2);
    assert_eq!(sent(problem(503, "store-unavailable", true)).await, 2);
    let busy = answer_with(409, &[("retry-after", "1"), ("content-type", "text/plain")], "busy");
    assert_eq!(sent(busy).await, 2, "a 409 of another vendor, with Retry-After");
}

#[tokio::test]
async fn permanent_failures_are_sent_once() {
    for status in [200, 204, 304, 400, 401, 403, 404, 409, 410, 413, 422] {
        assert_eq!(sent(answer(status)).await, 1, "{status}");
    }
    for (status, code) in [
        (409, "outcome-unknown"),
        (409, "not-retained"),
        (422, "key-reused"),
        (500, "operation-failed"),
        (500, "record-unreadable"),
    ] {
        assert_eq!(sent(problem(status, code, false)).await, 1, "{code}");
    }
    for status in [400, 422] {
        assert_eq!(
            sent(problem(status, "body-unreadable", true)).await,
            1,
            "never retried, regardless of the body"
        );
    }
}

#[tokio::test]
async fn replays_are_marked_and_not_retried() {
    for status in [200, 201, 409, 429, 500, 503] {
        let stage = Stage::new([answer_with(status, &[("Idempotent-Replayed", "true")], CREATED)]).await;
        let response = stage.payment().send().await.unwrap();
        assert!(client::is_replay(&response), "{status}");
        assert_eq!((response.status().as_u16(), stage.received().len()), (status, 1));
    }
    let stage = Stage::new([answer_with(201, &[("idempotent-replayed", "false")], CREATED)]).await;
    assert!(!client::is_replay(&stage.payment().send().await.unwrap()));
    assert!(!client::is_replay(&stage.payment().send().await.unwrap()));
}

#[tokio::test]
async fn responses_show_whether_outcome_is_open() {
    let busy = || answer_with(409, &[("retry-after", "60")], "busy");
    let replay = || answer_with(500, &[("idempotent-replayed", "true")], "");
    for (script, status, is_open) in [
        (vec![busy()], 409, true),
        (vec![answer(504), busy()], 409, true),
        (vec![Reply::Dropped, answer(401)], 401, true),
        (vec![answer(504), problem(500, "operation-failed", false)], 500, true),
        (vec![Reply::Dropped, replay()], 500, false),
        (vec![Reply::Dropped, answer(201)], 201, false),
        (vec![answer(401)], 401, false),
        // A timeout layer answers 408 after the handler began.
        (vec![answer_with(408, &[("retry-after", "60")], "")], 408, true),
        (vec![problem(408, "timeout", false)], 408, true),
        (vec![answer(409)], 409, true),
        (vec![problem(409, "outcome-unknown", false)], 409, true),
        (vec![Reply::Dropped, answer(302)], 302, true),
        (vec![replay()], 500, false),
    ] {
        let stage = Stage::new(script).await;
        let response = stage.payment().send().await.unwrap();
        assert_eq!((response.status().as_u16(), client::is_outcome_open(&response)), (status, is_open));
    }
}

#[tokio::test]
async fn the_replay_marker_is_configurable() {
    let marked = || answer_with(503, &[("x-replayed", "true"), ("idempotent-replayed", "no")], "");
    let stage = Stage::new([marked(), marked()]).await;
    let rules = IdempotentRequests::new().replay_marker(HeaderName::from_static("x-replayed"));
    let response = stage.client_with(rules).post(stage.server.url("/")).send().await.unwrap();
    assert!(client::is_replay(&response));
    assert_eq!(stage.received().len(), 1);
    let response = stage.payment().send().await.unwrap();
    assert!(!client::is_replay(&response), "a client with default rules must ignore the custom marker");
}

#[tokio::test]
async fn inspected_responses_are_complete() {
    let Reply::Whole(status, mut headers, body) = problem(409, "not-retained", false) else { unreachable!() };
    headers.push(("x-request-id".into(), "r-1".into()));
    let stage = Stage::new([Reply::Whole(status, headers, body.clone())]).await;
    let response = stage.payment().send().await.unwrap();
    assert_eq!(response.status(), 409);
    assert_eq!(response.url().as_str(), stage.server.url("/payments"));
    assert_eq!(response.version(), reqwest::Version::HTTP_11);
    assert_eq!(response.headers()["x-request-id"], "r-1");
    assert_eq!(response.content_length(), Some(body.len() as u64));
    assert!(response.remote_addr().is_some_and(|address| address.ip().is_loopback()));
    assert!(client::operation_key(&response).is_some());
    assert_eq!(response.bytes().await.unwrap(), body);
}

#[tokio::test]
async fn problems_without_length_are_complete() {
    let text = r#"{"code":"outcome-unknown","retryable":false}"#;
    let (one, two) = text.split_at(9);
    let raw = format!(
        "HTTP/1.1 409 -\r\ncontent-type: Application/Problem+JSON; charset=utf-8\r\nretry-after: 1\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n",
        one.len(),
        two.len()
    );
    let stage = Stage::new([Reply::Raw(raw.into())]).await;
    let response = stage.payment().send().await.unwrap();
    assert_eq!((stage.received().len(), response.text().await.unwrap().as_str()), (1, text));
}

#[tokio::test]
async fn oversized_problems_pass_through_uninspected() {
    let padding = "x".repeat(70_000);
    let text = format!(r#"{{"code":"in-progress","retryable":true,"detail":"{padding}"}}"#);
    let head = "HTTP/1.1 409 -\r\ncontent-type: application/problem+json\r\n";
    let length = text.len();
    let known = format!("{head}content-length: {length}\r\n\r\n{text}");
    let unknown = format!("{head}transfer-encoding: chunked\r\n\r\n{length:x}\r\n{text}\r\n0\r\n\r\n");
    for raw in [known, unknown] {
        let stage = Stage::new([Reply::Raw(raw.into())]).await;
        let response = stage.payment().send().await.unwrap();
        assert_eq!((response.status().as_u16(), stage.received().len()), (409, 1));
        assert_eq!(response.url().path(), "/payments");
        assert_eq!(response.text().await.unwrap(), text);
    }
}

#[tokio::test]
async fn retry_after_may_be_seconds_or_date() {
    let after = |text| answer_with(503, &[("retry-after", text)], "");
    // The clock starts at 09:15:44, and is 7 s later when the client reads the date.
    let stage = Stage::new([after("7"), after("Fri, 20 Nov 2026 09:15:54 GMT")]).await;
    stage.payment().send().await.unwrap();
    let waits = stage.clock.waits();
    assert_eq!(waits.len(), 2);
    // The client adds part of its backoff to each wait, so that clients don't all retry at once. So the first wait
    // takes up to 0.1 s longer than 7 s, and 2.9 s to 3 s remain until the date.
    for (wait, asked) in waits.iter().zip([7_000, 2_900]) {
        assert!((asked..=asked + 300).contains(&wait.as_millis()), "{wait:?}");
    }
}

#[tokio::test]
async fn fractions_in_retry_after_are_rounded_up() {
    let after = |text| answer_with(429, &[("retry-after", text)], "");
    let stage = Stage::new([after("1.5"), after(".25"), after("3.")]).await;
    stage.payment().send().await.unwrap();
    let waits = stage.clock.waits();
    assert_eq!(waits.len(), 3);
    for (wait, asked) in waits.iter().zip([2_000, 1_000, 3_000]) {
        assert!((asked..=asked + 400).contains(&wait.as_millis()), "{wait:?}");
    }
    // A wait beyond the budget ends the operation.
    let stage = Stage::new([after("299.997")]).await;
    let response = stage.payment().send().await.unwrap();
    assert_eq!((response.status().as_u16(), stage.received().len()), (429, 1));
    assert!(client::is_outcome_open(&response));
}

#[tokio::test]
async fn waits_are_random_parts_of_the_backoff() {
    let second = Duration::from_secs(1);
    let stage = Stage::new((0..40).map(|_| answer_with(503, &[("retry-after", "0")], ""))).await;
    let rules = IdempotentRequests::new().backoff(second, second).budget(100 * second).max_attempts(41);
    stage.client_with(rules).post(stage.server.url("/")).send().await.unwrap();
    let waits = stage.clock.waits();
    assert_eq!(waits.len(), 40);
    assert!(waits.iter().all(|wait| *wait <= second));
    assert!(waits.iter().any(|wait| *wait < second / 2) && waits.iter().any(|wait| *wait > second / 2));
}
