//! Fuzzes a key as a client sends it.
//!
//! For any header bytes, either the library refuses the request with 400 before anything runs, or it uses the key: a
//! second delivery is a replay, and a request with the same key and another body is refused.

use lambda_http::http::{HeaderValue, Request, StatusCode};
use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::block_on;

/// Checks `data` as the text of a [`Key`], and as the value of the header `idempotency-key`.
///
/// # Panics
///
/// If the library breaks a promise of this module's docs.
pub fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        check_text(text);
    }
    if let Ok(value) = HeaderValue::from_bytes(data) {
        check_header(&value);
    }
}

fn check_text(text: &str) {
    let is_valid = (1..=255).contains(&text.len())
        && !text.chars().any(char::is_control)
        && !text.chars().all(char::is_whitespace);
    match Key::new(text) {
        Ok(key) => {
            assert!(is_valid, "an invalid key was accepted: {text:?}");
            assert_eq!(key.as_str(), text, "the key was trimmed or normalized");
        }
        Err(error) => {
            assert!(!is_valid, "a valid key was refused: {text:?}: {error}");
            let told = error.to_string();
            // A shorter key can be a part of the message by chance.
            assert!(text.len() < 9 || !told.contains(text), "the error message shows the key");
        }
    }
}

fn check_header(value: &HeaderValue) {
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store.clone()).function("fuzz").build().expect("valid settings");
    let runs = std::sync::atomic::AtomicUsize::new(0);
    let runs = std::sync::Arc::new(runs);
    let counted = std::sync::Arc::clone(&runs);
    let handler = service_fn(move |_: Request<lambda_http::Body>| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        async { Ok::<_, std::convert::Infallible>("paid") }
    });
    let service = idempotency.http().required(true).layer(handler);
    let deliver = |body: &'static str| {
        let request = Request::post("/payments").header("idempotency-key", value);
        let request = request.body(lambda_http::Body::Text(body.into())).expect("a valid request");
        block_on(service.clone().oneshot(request)).expect("every request gets an answer")
    };
    let first = deliver("{}");
    let ran = || runs.load(std::sync::atomic::Ordering::Relaxed);
    if first.status() == StatusCode::BAD_REQUEST {
        assert_eq!((ran(), store.all().len()), (0, 0), "a refused request ran or stored a record");
        return;
    }
    assert_eq!((first.status(), ran()), (StatusCode::OK, 1));
    let again = deliver("{}");
    assert_eq!((again.status(), again.body(), ran()), (StatusCode::OK, first.body(), 1));
    assert!(again.headers().contains_key("idempotent-replayed"));
    assert_eq!((deliver("[]").status(), ran()), (StatusCode::UNPROCESSABLE_ENTITY, 1));
    check_strict(&idempotency, value);
}

/// Checks strict parsing (`quoted_keys`) of a key that lenient parsing has accepted. Without quotes, the key must be
/// refused. With quotes, it must be read as the same key, so that the request is a replay.
fn check_strict(idempotency: &Idempotency, value: &HeaderValue) {
    let handler = service_fn(|_: Request<lambda_http::Body>| async {
        Ok::<_, std::convert::Infallible>("ran under another key")
    });
    let service = idempotency.http().required(true).quoted_keys(true).layer(handler);
    let request = Request::post("/payments").header("idempotency-key", value);
    let request = request.body(lambda_http::Body::Text("{}".into())).expect("a valid request");
    let answer = block_on(service.oneshot(request)).expect("every request gets an answer");
    let is_quoted = value.as_bytes().trim_ascii_start().starts_with(b"\"");
    let expected = if is_quoted { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    assert_eq!(answer.status(), expected);
    assert_eq!(answer.headers().contains_key("idempotent-replayed"), is_quoted);
}
