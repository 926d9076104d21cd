//! Fuzzes an event as a runtime delivers it: typed, and as an HTTP request from any front end.
//!
//! Two deliveries of the same event must get the same answer. The handler runs at most once for both, unless the event
//! is an HTTP request that the library doesn't protect.

use std::{
    cell::Cell,
    convert::Infallible,
    panic::{catch_unwind, set_hook, take_hook},
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
};

use lambda_http::{Body, Request, http::Method, request::LambdaRequest};
use lambda_idempotency::{Error, Idempotency, Key, RunError, store::memory::MemoryStore};
use lambda_runtime::{Context, LambdaEvent};
use serde_json::{Value, value::RawValue};
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
    if let (Some(first), Some(again)) = (request(json), request(json)) {
        check_http(first, again);
    }
}

fn idempotency() -> Idempotency {
    Idempotency::builder(MemoryStore::new()).function("fuzz").build().expect("valid settings")
}

/// Converts the event with `lambda_http`, which panics on some events, for example if the host is invalid, or if a body
/// is wrongly marked as base64. In Lambda, the runtime catches such a panic before any layer sees the event. So this
/// function returns `None`.
fn request(json: &str) -> Option<Request> {
    thread_local! {
        static IS_THEIRS: Cell<bool> = const { Cell::new(false) };
    }
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_THEIRS.get() {
                hook(panic);
            }
        }));
    });
    IS_THEIRS.set(true);
    let request = catch_unwind(|| serde_json::from_str::<LambdaRequest>(json).ok().map(Request::from));
    IS_THEIRS.set(false);
    request.ok().flatten()
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

fn check_http(first: Request, again: Request) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = service_fn(move |_: Request| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>("paid") }
    });
    let service = idempotency().http().layer(handler);
    let deliver = |request: Request| {
        let is_protected = matches!(*request.method(), Method::POST | Method::PATCH)
            && request.headers().contains_key("idempotency-key");
        let answer = block_on(service.clone().oneshot(request)).expect("every request gets an answer");
        (is_protected, answer.status(), bytes_of(answer.into_body()))
    };
    let (first, again) = (deliver(first), deliver(again));
    assert_eq!(first, again, "the answers differ");
    let runs = runs.load(Ordering::Relaxed);
    match first {
        (true, status, _) => assert_eq!(runs, usize::from(status.is_success()), "{status}"),
        (false, status, _) => assert_eq!((runs, status.as_u16()), (2, 200), "unprotected requests must run"),
    }
}

fn bytes_of(body: Body) -> Vec<u8> {
    body.to_vec()
}
