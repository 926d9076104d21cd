mod body_keys;
mod caller_table;
mod callers;
mod carried;
mod cors;
mod decided;
mod draft;
mod guard;
mod large;
mod openapi;
mod paths;
mod recorded;
mod replays;
mod streaming;
mod websocket;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_http::{Body, IntoResponse, Request, Response, http::StatusCode, tower::ServiceExt};
use lambda_idempotency::{
    ClaimHandle, Idempotency, current,
    settings::Execution,
    store::{BoxFuture, Store},
};
use serde_json::{Value, json};
use testkit::hooked::store_that_is_down;
use tower::{Layer, Service, service_fn};

use crate::{api::CANARY, recording, store::empty_store};

#[derive(Clone, Default)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn idempotency() -> Idempotency {
    let idempotency = Idempotency::builder(empty_store()).function("payments").build().unwrap();
    recording::shown(&idempotency);
    idempotency
}

/// A handler that answers with the status in the request's `status` header, or with 201.
fn handler(
    runs: &Runs,
) -> impl Service<
    Request,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Clone
+ Send
+ 'static {
    let runs = runs.clone();
    service_fn(move |request: Request| {
        let nth = runs.0.fetch_add(1, Ordering::SeqCst) + 1;
        let status = request.headers().get("status").map_or("201", |status| status.to_str().unwrap());
        let response = Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .header("location", format!("/payments/{CANARY}-{nth}"))
            .header("idempotent-replayed", "true")
            .body(Body::Text(format!("{{\"payment\":\"{CANARY}-{nth}\"}}")))
            .unwrap();
        async move { Ok(response) }
    })
}

/// Builds a request with a canary in its key, and in its body if that's an object, so that the audit in `silence.rs`
/// finds any output that contains them.
fn post(key: Option<&str>, body: &str) -> Request {
    let key = key.map(canary_key);
    let body = match body.strip_prefix('{') {
        Some("}") => format!("{{\"note\":\"{CANARY}-body\"}}"),
        Some(fields) => format!("{{\"note\":\"{CANARY}-body\",{fields}"),
        None => body.to_owned(),
    };
    recording::secrets(|secrets| {
        secrets.add(key.as_deref().unwrap_or_default());
        secrets.add_body(&body);
    });
    let mut request = lambda_http::http::Request::post("/payments");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    request.body(Body::Text(body)).unwrap()
}

/// Puts a canary in front of the key's text. A quoted key stays quoted, and an empty key stays empty.
fn canary_key(key: &str) -> String {
    match key.strip_prefix('"') {
        Some(rest) => format!("\"{CANARY}-{rest}"),
        None if key.is_empty() => String::new(),
        None => format!("{CANARY}-{key}"),
    }
}

fn with_header(mut request: Request, name: &'static str, value: &'static str) -> Request {
    recording::secrets(|secrets| secrets.add(value));
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

fn code(response: &Response<Body>) -> String {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(problem["status"], response.status().as_u16());
    problem["code"].as_str().unwrap().to_owned()
}

/// Returns whether the response is a replay. Also adds its body to the secrets, unless it's a problem.
fn is_replay(response: &Response<Body>) -> bool {
    recording::secrets(|secrets| {
        // A problem's text isn't secret.
        if response.headers().get("content-type").is_none_or(|of| of != "application/problem+json") {
            secrets.add_body(&String::from_utf8_lossy(response.body()));
        }
    });
    response.headers().get_all("idempotent-replayed").iter().eq(["true"])
}

#[tokio::test]
async fn repeated_requests_run_once() {
    let runs = Runs::default();
    let service = idempotency().http().layer(handler(&runs));
    let first = service.clone().oneshot(post(Some("k"), r#"{"a":1,"b":2}"#)).await.unwrap();
    let again = service.clone().oneshot(post(Some("\"k\""), r#"{"b":2, "a":1}"#)).await.unwrap();
    assert_eq!(first.status(), StatusCode::CREATED);
    assert!(!is_replay(&first), "the layer must remove the handler's own `idempotent-replayed`");
    assert!(is_replay(&again));
    assert_eq!((again.status(), again.body()), (first.status(), first.body()));
    for name in ["location", "content-type"] {
        assert_eq!(again.headers()[name], first.headers()[name]);
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn reused_keys_get_422() {
    let runs = Runs::default();
    let service = idempotency().http().layer(handler(&runs));
    service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    let mut elsewhere = post(Some("k"), "{}");
    *elsewhere.uri_mut() = "/refunds".parse().unwrap();
    for other in [post(Some("k"), "[]"), elsewhere] {
        let answer = service.clone().oneshot(other).await.unwrap();
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (422, "key-reused"));
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn bad_keys_get_400_and_run_nothing() {
    let runs = Runs::default();
    let idempotency = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    let service = idempotency.http().layer(handler(&runs));
    let twice = with_header(post(Some("k"), "{}"), "idempotency-key", "k");
    let long = "x".repeat(256);
    for bad in [twice, post(Some(""), "{}"), post(Some("\"open"), "{}"), post(Some(&long), "{}")] {
        let answer = service.clone().oneshot(bad).await.unwrap();
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (400, "key-invalid"));
    }
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn keys_are_optional_unless_required() {
    let runs = Runs::default();
    let optional = idempotency().http().layer(handler(&runs));
    for _ in 0..2 {
        assert_eq!(optional.clone().oneshot(post(None, "{}")).await.unwrap().status(), 201);
    }
    assert_eq!(runs.count(), 2);
    let required = idempotency().http().required(true).layer(handler(&runs));
    let answer = required.clone().oneshot(post(None, "{}")).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (400, "key-missing"));
    let mut get = post(None, "");
    *get.method_mut() = lambda_http::http::Method::GET;
    assert_eq!(required.oneshot(get).await.unwrap().status(), 201, "a GET needs no key");
}

#[tokio::test]
async fn get_requests_pass_even_during_outages() {
    let runs = Runs::default();
    let idempotency = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    let mut get = post(Some("k"), "");
    *get.method_mut() = lambda_http::http::Method::GET;
    assert_eq!(idempotency.http().layer(handler(&runs)).oneshot(get).await.unwrap().status(), 201);
}

#[tokio::test]
async fn store_outages_cause_503_and_run_nothing() {
    let runs = Runs::default();
    let idempotency = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    let answer = idempotency.http().layer(handler(&runs)).oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (503, "store-unavailable"));
    assert_eq!(answer.headers()["retry-after"], "1");
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn concurrent_duplicates_get_409_with_retry_after() {
    let (started, release) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let gates = (started.clone(), release.clone());
    let service = idempotency().http().layer(service_fn(move |_: Request| {
        let (started, release) = gates.clone();
        async move {
            started.notify_one();
            release.notified().await;
            Ok::<_, Infallible>("paid")
        }
    }));
    let first = tokio::spawn(service.clone().oneshot(post(Some("k"), "{}")));
    started.notified().await;
    let second = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!((second.status().as_u16(), code(&second).as_str()), (409, "in-progress"));
    let wait: u64 = second.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(wait, 5, "`Retry-After` must be short, although the lease lasts another minute");
    let other = service.clone().oneshot(post(Some("k"), "[]")).await.unwrap();
    assert_eq!(other.status(), 422, "another payload is a mismatch, even while the first request runs");
    release.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert!(is_replay(&service.oneshot(post(Some("k"), "{}")).await.unwrap()));
}

#[tokio::test]
async fn only_permanent_failures_are_recorded_and_replayed() {
    for (status, runs_twice) in
        [("404", true), ("410", false), ("422", false), ("429", true), ("500", true), ("503", true)]
    {
        let runs = Runs::default();
        let service = idempotency().http().layer(handler(&runs));
        for _ in 0..2 {
            let answer =
                service.clone().oneshot(with_header(post(Some("k"), "{}"), "status", status)).await.unwrap();
            assert_eq!(answer.status().as_str(), status);
        }
        assert_eq!(runs.count() == 2, runs_twice, "{status}");
    }
}

#[tokio::test]
async fn at_most_once_replays_a_500() {
    let runs = Runs::default();
    let builder = Idempotency::builder(empty_store()).function("payments");
    let service = builder.execution(Execution::AtMostOnce).build().unwrap().http().layer(handler(&runs));
    for _ in 0..2 {
        let request = with_header(post(Some("k"), "{}"), "status", "500");
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 500);
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn text_and_binary_bodies_are_replayed_exactly() {
    for body in [Body::Empty, Body::Text("caf\u{e9}\n".into()), Body::Binary(vec![0, 159, 146, 150, 10])] {
        let answer = body.clone();
        let service = idempotency().http().layer(service_fn(move |_: Request| {
            let mut response = Response::new(answer.clone());
            if matches!(answer, Body::Binary(_)) {
                response.headers_mut().insert("content-type", "image/png".parse().unwrap());
            }
            async move { Ok::<_, Infallible>(response) }
        }));
        let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(again.body(), first.body());
        assert_eq!(again.body().as_ref(), body.as_ref());
    }
}

#[tokio::test]
async fn handlers_get_their_body_and_claim() {
    let service = idempotency().http().layer(service_fn(|request: Request| async move {
        let text = matches!(request.body(), Body::Text(text) if text.ends_with(",\"a\":1}"));
        let claim = request.extensions().get::<ClaimHandle>().map(|claim| claim.key().to_string());
        let same = claim == current().map(|claim| claim.key().to_string()) && claim.is_some();
        Ok::<_, Infallible>(json!({ "text": text, "same": same }))
    }));
    let answer = service.oneshot(post(Some("k"), "{\"a\":1}")).await.unwrap();
    assert_eq!(answer.body().as_ref(), br#"{"same":true,"text":true}"#);
}

#[tokio::test]
async fn axum_routers_or_routes_can_be_wrapped() {
    use axum::{Router, routing};
    async fn pay(request: axum::extract::Request) -> String {
        let claimed = request.extensions().get::<ClaimHandle>().is_some();
        let body = axum::body::to_bytes(request.into_body(), 1000).await.unwrap();
        format!("{claimed} {}", String::from_utf8_lossy(&body))
    }
    let idempotency = idempotency();
    let whole = idempotency.http().layer(Router::new().route("/payments", routing::post(pay)));
    let first = whole.clone().oneshot(post(Some("whole"), "[]")).await.unwrap();
    assert_eq!((first.status().as_u16(), first.body().as_ref()), (200, &b"true []"[..]));
    assert!(is_replay(&whole.oneshot(post(Some("whole"), "[]")).await.unwrap()));

    let routed = Router::new()
        .route("/payments", routing::post(pay))
        .route_layer(idempotency.http().required(true))
        .route("/free", routing::post(pay));
    let send = |path: &str, key: Option<&str>| {
        let mut request = axum::extract::Request::post(path);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        routed.clone().oneshot(request.body(axum::body::Body::from("{}")).unwrap())
    };
    assert_eq!(send("/payments", None).await.unwrap().status(), 400);
    let first = send("/payments", Some("route")).await.unwrap();
    let again = send("/payments", Some("route")).await.unwrap();
    assert!(
        again.headers().contains_key("idempotent-replayed")
            && !first.headers().contains_key("idempotent-replayed")
    );
    let free = send("/free", None).await.unwrap();
    let body = axum::body::to_bytes(free.into_body(), 1000).await.unwrap();
    assert_eq!(body, "false {}", "the layer doesn't wrap this route");
}

#[tokio::test]
async fn real_events_are_accepted() {
    let event = include_str!("../../events/payments/http-api.json");
    recording::secrets(|secrets| secrets.add_http(&serde_json::from_str(event).unwrap()));
    let runs = Runs::default();
    let service = idempotency().http().layer(handler(&runs));
    for nth in 0..2 {
        let request = lambda_http::request::from_str(event).unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(is_replay(&answer), nth == 1);
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn keys_are_separate_for_each_caller() {
    let runs = Runs::default();
    let service = idempotency().http().layer(handler(&runs));
    let mut event: Value = serde_json::from_str(include_str!("../../events/payments/http-api.json")).unwrap();
    for (subject, replayed) in [("c4n4ry-alice", false), ("c4n4ry-bob", false), ("c4n4ry-alice", true)] {
        event["requestContext"]["authorizer"] =
            json!({"jwt": {"claims": {"iss": "https://issuer", "sub": subject}, "scopes": null}});
        recording::secrets(|secrets| {
            secrets.add(subject);
            secrets.add_http(&event);
        });
        let request = lambda_http::request::from_str(&event.to_string()).unwrap();
        assert_eq!(is_replay(&service.clone().oneshot(request).await.unwrap()), replayed, "{subject}");
    }
}

/// A request body that fails before its end.
struct BreaksOff;

impl http_body::Body for BreaksOff {
    type Data = bytes::Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>> {
        std::task::Poll::Ready(Some(Err(std::io::ErrorKind::UnexpectedEof.into())))
    }
}

#[tokio::test]
async fn truncated_bodies_get_400() {
    let runs = Runs::default();
    let ran = runs.clone();
    let handler = service_fn(move |_: lambda_http::http::Request<axum::body::Body>| {
        ran.0.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::new(Body::Empty)) }
    });
    let (parts, _) = post(Some("k"), "{}").into_parts();
    let request = lambda_http::http::Request::from_parts(parts, axum::body::Body::new(BreaksOff));
    let answer = idempotency().http().layer(handler).oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (400, "body-unreadable"));
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn oversized_bodies_get_413() {
    let service = idempotency().http().layer(handler(&Runs::default()));
    let answer = service.oneshot(post(Some("k"), &"x".repeat(10 * 1024 * 1024 + 1))).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (413, "body-too-large"));
}

/// Checks that layered handlers meet the trait bounds of `lambda_http::run` and its variants. No test calls this.
#[expect(dead_code, reason = "it only has to compile")]
async fn it_works_under_every_run() -> Result<(), lambda_http::Error> {
    async fn text(_: Request) -> Result<impl IntoResponse, lambda_http::Error> {
        Ok("text")
    }
    let layer = || idempotency().http();
    lambda_http::run(layer().layer(service_fn(text))).await?;
    lambda_http::run(layer().layer(axum::Router::new())).await?;
    lambda_http::run_concurrent(layer().layer(handler(&Runs::default()))).await?;
    lambda_http::run_with_streaming_response(layer().layer(handler(&Runs::default()))).await
}

#[test]
fn retention_and_margin_defaults_are_pinned() {
    let idempotency = idempotency();
    let settings = idempotency.settings();
    assert_eq!(settings.retention, Duration::from_secs(86_400));
    assert_eq!(settings.skew_margin, Duration::from_secs(2));
}
