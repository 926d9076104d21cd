//! Fuzzes an event as a runtime delivers it: typed, and as an HTTP request from any front end.
//!
//! Two deliveries of the same event must get the same answer. The handler runs at most once for both, unless the event
//! is an HTTP request that the library doesn't protect. HTTP requests go through `lambda::http::guarded`, so no event
//! may make `lambda_http` panic. The handler answers with the body's bytes in a header, and Lambda must get each answer.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use lambda_http::{
    Body, Request, RequestExt as _, Response,
    http::{HeaderValue, Method},
    request::{LambdaRequest, RequestContext},
};
use lambda_idempotency::{
    Error, Idempotency, Key, RunError, lambda::http::guarded, store::memory::MemoryStore,
};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, json, value::RawValue};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::block_on;

/// Checks `data` as an event.
///
/// # Panics
///
/// If the library breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    let Ok(json) = std::str::from_utf8(data) else { return };
    let Ok(raw) = RawValue::from_string(json.to_owned()) else { return };
    check_typed(&raw);
    let event = || serde_json::from_str::<LambdaRequest>(json).ok();
    if let (Some(first), Some(again)) = (event(), event()) {
        check_http(first, again);
    }
}

fn idempotency() -> Idempotency {
    Idempotency::builder(MemoryStore::new()).function("fuzz").build().expect("valid settings")
}

/// Returns the event's field `id` as the key, or `None` if the field isn't a string.
fn key(event: &Value) -> Result<Option<Key>, Error> {
    event.get("id").and_then(Value::as_str).map(Key::new).transpose()
}

fn check_typed(raw: &RawValue) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |event: LambdaEvent<Value>| {
        let nth = counted.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, Infallible>((nth, event.payload)) }
    });
    let service = idempotency().events(key).layer(handler);
    let deliver = || {
        let event = LambdaEvent::new(raw.to_owned(), Context::default());
        block_on(service.clone().oneshot(event))
    };
    match (deliver(), deliver()) {
        (Ok(first), Ok(again)) => {
            assert_eq!(runs.load(Ordering::Relaxed), 1, "the handler didn't run exactly once");
            assert_eq!(first.get(), again.get(), "the answers differ");
        }
        (Err(RunError::Idempotency(first)), Err(RunError::Idempotency(again))) => {
            assert_eq!(runs.load(Ordering::Relaxed), 0, "the handler ran for a refused event");
            assert_eq!(first.kind(), again.kind());
        }
        (first, again) => panic!("the two answers differ: first {first:?}, then {again:?}"),
    }
}

/// Whether the layer protects this request.
fn is_protected(request: &Request) -> bool {
    let is_message = match request.request_context_ref() {
        Some(RequestContext::WebSocket(context)) => {
            !matches!(context.event_type.as_deref(), Some("CONNECT" | "DISCONNECT"))
        }
        _ => false,
    };
    (is_message || matches!(*request.method(), Method::POST | Method::PATCH))
        && request.headers().contains_key("idempotency-key")
}

/// The answer to a request, with the body's bytes in a header, if a header can hold them.
fn answer(body: &Body) -> Response<&'static str> {
    let mut response = Response::new("paid");
    if let Ok(value) = HeaderValue::from_bytes(body) {
        response.headers_mut().insert("x-body", value);
    }
    response
}

fn check_http(first: LambdaRequest, again: LambdaRequest) {
    /// What the guard let through.
    const REFUSED: usize = 0;
    const UNPROTECTED: usize = 1;
    const PROTECTED: usize = 2;

    let (runs, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(REFUSED)));
    let (counted, noted) = (Arc::clone(&runs), Arc::clone(&seen));
    let handler = service_fn(move |request: Request| {
        counted.fetch_add(1, Ordering::Relaxed);
        let response = answer(request.body()).map(Body::from);
        async { Ok::<_, Infallible>(response) }
    });
    let service = idempotency().http().layer(handler).map_request(move |request: Request| {
        let protection = if is_protected(&request) { PROTECTED } else { UNPROTECTED };
        noted.store(protection, Ordering::Relaxed);
        request
    });
    let service = guarded(service);
    let deliver = |event: LambdaRequest| {
        let answering = service.clone().oneshot(LambdaEvent::new(event, Context::default()));
        let answer = block_on(answering).expect("every request gets an answer");
        let mut answer = serde_json::to_value(answer).expect("Lambda gets every answer");
        for headers in ["headers", "multiValueHeaders"] {
            // VPC Lattice's form has no headers if they're empty.
            let headers = answer.as_object_mut().map(|answer| answer.entry(headers).or_insert(json!({})));
            if let Some(headers) = headers.and_then(Value::as_object_mut) {
                headers.remove("idempotent-replayed");
            }
        }
        answer
    };
    let (first, again) = (deliver(first), deliver(again));
    assert_eq!(first, again, "the answers differ");
    let status = first["statusCode"].as_u64();
    let is_omitted = first["body"].as_str().is_some_and(|body| body.contains("not-retained"));
    let expected = match (seen.load(Ordering::Relaxed), status) {
        (REFUSED, Some(400)) => 0,
        (UNPROTECTED, Some(200)) => 2,
        (PROTECTED, Some(status)) => usize::from(status == 200 || is_omitted),
        (seen, status) => panic!("seen as {seen}, answered with {status:?}"),
    };
    assert_eq!(runs.load(Ordering::Relaxed), expected, "{first}");
}
