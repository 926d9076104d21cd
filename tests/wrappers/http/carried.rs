//! Responses that an event can't carry, and response bodies that break off.

use std::{
    io,
    pin::Pin,
    task::{Context as TaskContext, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use lambda_http::{
    http::{HeaderName, HeaderValue, response::Parts},
    request::LambdaRequest,
};
use lambda_idempotency::lambda::http::{HttpLayer, guarded, guarded_streaming};
use lambda_runtime::{Context, LambdaEvent};
use proptest::prelude::*;

use super::*;
use crate::front_ends::{self, POST, set_header};

/// Builds the same keyed payment from each front end.
fn event(front_end: &str) -> Value {
    let event = match front_end {
        "vpc-lattice" => {
            let mut event: Value = serde_json::from_str(include_str!("vpc-lattice.json")).unwrap();
            event["body"] = POST.body.into();
            event
        }
        _ => front_ends::event(front_end, POST),
    };
    recording::secrets(|secrets| secrets.add_http(&event));
    event
}

fn front_ends() -> impl Iterator<Item = &'static str> {
    front_ends::FRONT_ENDS.into_iter().chain(["vpc-lattice"])
}

fn delivery(event: &Value) -> LambdaEvent<LambdaRequest> {
    LambdaEvent::new(serde_json::from_value(event.clone()).unwrap(), Context::default())
}

/// A response's status, and the values of its header `x-told` and of its cookies.
type Head = (u64, Vec<String>);

/// The answer of a function that doesn't stream, as Lambda gets it.
async fn buffered<S>(service: &S, event: &Value) -> (Head, String)
where
    S: Service<LambdaEvent<LambdaRequest>, Response: serde::Serialize, Error = Infallible> + Clone,
{
    let answer = service.clone().oneshot(delivery(event)).await.unwrap();
    let answer = serde_json::to_value(answer).expect("Lambda must get every answer");
    let told = [&answer["headers"]["x-told"], &answer["multiValueHeaders"]["x-told"]];
    let told = told.into_iter().find(|told| !told.is_null());
    let told = told.map(|told| told.as_str().or(told[0].as_str()).unwrap().to_owned());
    (
        (answer["statusCode"].as_u64().unwrap(), told.into_iter().collect()),
        answer["body"].as_str().unwrap_or_default().into(),
    )
}

/// The status and the problem's code of a streaming function's answer.
async fn streamed<S>(layer: HttpLayer, handler: S, event: &Value, times: usize) -> Vec<(u64, String)>
where
    S: Service<Request, Response = Response<axum::body::Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    use futures_util::StreamExt as _;

    let service = guarded_streaming(layer.streaming().layer(handler));
    let mut answers = Vec::new();
    for _ in 0..times {
        let mut answer = service.clone().oneshot(delivery(event)).await.unwrap();
        let prelude = serde_json::to_value(&answer.metadata_prelude).expect("Lambda must get every answer");
        let mut body = Vec::new();
        while let Some(part) = answer.stream.next().await {
            body.extend(part.unwrap());
        }
        let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
        let code = problem["code"].as_str().unwrap_or_default().to_owned();
        answers.push((prelude["statusCode"].as_u64().unwrap(), code));
    }
    answers
}

/// A handler that always gives this head.
fn told(head: &Parts, runs: &Runs) -> impl Fn() -> Response<axum::body::Body> + Clone + Send + 'static {
    let (head, counted) = (head.clone(), runs.clone());
    move || {
        counted.0.fetch_add(1, Ordering::SeqCst);
        Response::from_parts(head.clone(), axum::body::Body::from("done"))
    }
}

/// Checks the first answer and the replay of this head at every front end, buffered and streamed.
async fn check(head: Parts) {
    let is_text = head.headers.values().all(|value| std::str::from_utf8(value.as_bytes()).is_ok());
    let is_outcome = head.status.is_success();
    for front_end in front_ends() {
        let event = event(front_end);
        let runs = Runs::default();
        let answer = told(&head, &runs);
        let layer = idempotency().http().shared_namespace();
        let handler = service_fn(move |_: Request| {
            let response = answer();
            async move { Ok::<_, Infallible>(response) }
        });
        let service = guarded(layer.layer(handler.clone()));
        let (first, again) = (buffered(&service, &event).await, buffered(&service, &event).await);
        let expected_runs = if is_outcome { 1 } else { 2 };
        assert_eq!(runs.count(), expected_runs, "{front_end}: {head:?}");
        if is_outcome && !is_text {
            for answer in [&first, &again] {
                assert!(answer.0.0 == 409 && answer.1.contains("not-retained"), "{front_end}: {answer:?}");
            }
        } else {
            assert_eq!(first, again, "{front_end}: {head:?}");
            assert_eq!(first.0.0, u64::from(head.status.as_u16()), "{front_end}");
        }
        let codes = streamed(idempotency().http().shared_namespace(), handler, &event, 2).await;
        assert_eq!(runs.count(), 2 * expected_runs, "{front_end}, streamed: {head:?}");
        let expected = match is_outcome && !is_text {
            true => (409, "not-retained".to_owned()),
            false => (u64::from(head.status.as_u16()), String::new()),
        };
        assert_eq!(codes, [expected.clone(), expected], "{front_end}, streamed: {head:?}");
    }
}

/// Any legal head with one value or two in a header, a cookie or a content type.
fn heads() -> impl Strategy<Value = Parts> {
    let value = prop_oneof![
        proptest::collection::vec(prop_oneof![Just(b'\t'), 0x20..0x7f_u8, 0x80..=0xff_u8], 0..12),
        "[a-z\u{e9}\u{20ac}]{1,8}".prop_map(String::into_bytes),
    ];
    let name = prop_oneof![
        Just("x-told"),
        Just("set-cookie"),
        Just("content-type"),
        Just("content-disposition"),
        Just("date"),
        Just("link"),
    ];
    let status = prop_oneof![4 => Just(201_u16), 1 => Just(503), 1 => Just(200)];
    (status, proptest::collection::vec((name, value), 1..4)).prop_map(|(status, lines)| {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in lines {
            response
                .headers_mut()
                .append(HeaderName::from_static(name), HeaderValue::from_bytes(&value).unwrap());
        }
        response.into_parts().0
    })
}

/// The runtime ends the process if it can't serialise an answer. If such an answer were recorded, each replay would end
/// the process again.
#[test]
fn every_legal_head_reaches_lambda() {
    recording::begin();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) }, |(head in heads())| {
        runtime.block_on(check(head));
    });
}

#[tokio::test]
async fn headers_beyond_utf_8_are_not_retained() {
    let mut head = Response::new(()).into_parts().0;
    let name = HeaderValue::from_bytes(b"attachment; filename=\"caf\xe9.pdf\"").unwrap();
    head.headers.insert("content-disposition", name);
    check(head).await;
}

/// No event carries the response here, so any bytes are deliverable.
#[tokio::test]
async fn servers_without_events_deliver_any_header() {
    let service = idempotency().http().layer(service_fn(|_: Request| async {
        let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        Ok::<_, Infallible>(Response::builder().header("x-told", value).body(Body::from("done")).unwrap())
    }));
    for _ in 0..2 {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(
            (answer.status(), answer.headers()["x-told"].as_bytes()),
            (StatusCode::OK, &b"caf\xe9"[..])
        );
    }
}

/// The record was made on a server without events. A front end that can't deliver it says so, and the record stays.
#[tokio::test]
async fn undeliverable_replays_are_refused_here() {
    let runs = Runs::default();
    let counted = runs.clone();
    let service = idempotency().http().key_alone(true).layer(service_fn(move |_: Request| {
        counted.0.fetch_add(1, Ordering::SeqCst);
        let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        let response = Response::builder().header("x-told", value).body(Body::from("done")).unwrap();
        async { Ok::<_, Infallible>(response) }
    }));
    let event = event("alb");
    let request = || lambda_http::request::from_str(&event.to_string()).unwrap();
    let without_event = || {
        let mut request = request();
        request.extensions_mut().clear();
        request
    };
    assert!(!is_replay(&service.clone().oneshot(without_event()).await.unwrap()));
    let refused = service.clone().oneshot(request()).await.unwrap();
    let problem: Value = serde_json::from_slice(refused.body()).unwrap();
    assert_eq!(code(&refused), "not-retained");
    assert_eq!(problem["title"], "The operation is done, but its response can't be sent here");
    assert!(is_replay(&service.oneshot(without_event()).await.unwrap()));
    assert_eq!(runs.count(), 1);
}

/// The guard drops the header of a response that isn't recorded, such as the answer to a request without a key.
#[tokio::test]
async fn undeliverable_headers_of_keyless_answers_are_dropped() {
    let service = guarded(idempotency().http().layer(service_fn(|_: Request| async {
        let value = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        let response = Response::builder().status(201).header("x-name", value).header("x-told", "plain");
        Ok::<_, Infallible>(response.body(Body::from("done")).unwrap())
    })));
    for front_end in front_ends() {
        let mut event = event(front_end);
        set_header(&mut event, "idempotency-key", None);
        set_header(&mut event, "Idempotency-Key", None);
        assert_eq!(buffered(&service, &event).await, ((201, vec!["plain".to_owned()]), "done".to_owned()));
    }
}

/// The runtime writes an empty list for a value beyond ASCII.
#[tokio::test]
async fn streamed_headers_beyond_ascii_are_dropped() {
    let service = guarded_streaming(service_fn(|_: Request| async {
        let response = Response::builder().header("x-name", "caf\u{e9}").header("x-told", "plain");
        Ok::<_, Infallible>(response.body(axum::body::Body::from("done")).unwrap())
    }));
    let answer = service.oneshot(delivery(&event("function-url"))).await.unwrap();
    let prelude = serde_json::to_value(&answer.metadata_prelude).unwrap();
    assert_eq!(prelude["headers"], json!({"x-told": "plain"}));
}

/// A body that breaks off after its first part: a proxied response, for example.
struct BreaksOff(bool);

impl http_body::Body for BreaksOff {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(match std::mem::replace(&mut self.0, true) {
            false => Ok(Frame::data(Bytes::from_static(b"part"))),
            true => Err(io::ErrorKind::UnexpectedEof.into()),
        }))
    }
}

/// Returns the statuses of two calls and the runs, if the first run's body breaks off.
async fn broken_then_whole<B>(
    execution: Execution,
    key: Option<&str>,
    body: fn(bool) -> B,
) -> ([u16; 2], usize)
where
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug> + Unpin + Send + 'static,
{
    let builder = Idempotency::builder(empty_store()).function("payments").execution(execution);
    let idempotency = builder.build().unwrap();
    recording::shown(&idempotency);
    let runs = Runs::default();
    let counted = runs.clone();
    let service = idempotency.http().layer(service_fn(move |_: Request| {
        let is_first = counted.0.fetch_add(1, Ordering::SeqCst) == 0;
        async move { Ok::<_, Infallible>(Response::new(body(is_first))) }
    }));
    let mut statuses = [0; 2];
    for status in &mut statuses {
        *status = service.clone().oneshot(post(key, "{}")).await.unwrap().status().as_u16();
    }
    (statuses, runs.count())
}

#[tokio::test]
async fn bodies_that_break_off_are_handler_errors() {
    use Execution::{AtLeastOnce, AtMostOnce};

    fn axum_body(breaks: bool) -> axum::body::Body {
        if breaks { axum::body::Body::new(BreaksOff(false)) } else { "whole".into() }
    }
    fn other_body(breaks: bool) -> UnsyncBoxBody<Bytes, io::Error> {
        if breaks {
            BreaksOff(false).boxed_unsync()
        } else {
            http_body_util::Full::from("whole").map_err(|never| match never {}).boxed_unsync()
        }
    }
    for (execution, key, expected) in [
        (AtLeastOnce, Some("k"), ([500, 200], 2)),
        (AtMostOnce, Some("k"), ([500, 500], 1)),
        (AtLeastOnce, None, ([500, 200], 2)),
    ] {
        assert_eq!(broken_then_whole(execution, key, axum_body).await, expected, "{execution:?}, {key:?}");
        assert_eq!(broken_then_whole(execution, key, other_body).await, expected, "{execution:?}, {key:?}");
    }
}

#[tokio::test]
async fn guard_answers_500_to_broken_bodies() {
    let broken = service_fn(|_: Request| async {
        Ok::<_, Infallible>(Response::new(axum::body::Body::new(BreaksOff(false))))
    });
    assert_eq!(buffered(&guarded(broken), &event("http-api")).await.0.0, 500);
}

/// The closure may count or log, and reading a large body twice is slow.
#[tokio::test]
async fn each_answer_is_judged_once() {
    let judged = Runs::default();
    let counted = judged.clone();
    let layer = idempotency().http().shared_namespace().record_when(move |_| {
        counted.0.fetch_add(1, Ordering::SeqCst);
        true
    });
    let service = guarded(layer.layer(handler(&Runs::default())));
    for _ in 0..2 {
        assert_eq!(buffered(&service, &event("alb")).await.0.0, 201);
    }
    assert_eq!(judged.count(), 1);
}
