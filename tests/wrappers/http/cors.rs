//! An API for browsers: the CORS layer outside, the idempotency layer inside.

use super::*;
use lambda_http::http::{HeaderName, HeaderValue, Method};
use lambda_idempotency::lambda::http::EXPOSED_HEADERS;
use tower_http::cors::CorsLayer;

const ORIGINS: [&str; 2] = ["https://shop.example", "https://till.example"];

fn cors() -> CorsLayer {
    let names = |names: [&'static str; 2]| names.map(HeaderName::from_static);
    CorsLayer::new()
        .allow_origin(ORIGINS.map(HeaderValue::from_static))
        .allow_headers(names(["content-type", "idempotency-key"]))
        .expose_headers(EXPOSED_HEADERS)
}

fn from(origin: &'static str, key: Option<&str>, body: &str) -> Request {
    with_header(post(key, body), "origin", origin)
}

#[tokio::test]
async fn cors_answers_match_each_requests_origin() {
    let runs = Runs::default();
    let service = cors().layer(idempotency().http().required(true).layer(handler(&runs)));
    for (request, status, replayed) in [
        (from(ORIGINS[0], Some("k"), "{}"), 201, false),
        (from(ORIGINS[1], Some("k"), "{}"), 201, true),
        (from(ORIGINS[1], Some("k"), "[]"), 422, false),
        (from(ORIGINS[0], None, "{}"), 400, false),
        (from(ORIGINS[0], Some("\"open"), "{}"), 400, false),
    ] {
        let origin = request.headers()["origin"].clone();
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), is_replay(&answer)), (status, replayed));
        let allowed: Vec<_> = answer.headers().get_all("access-control-allow-origin").iter().collect();
        assert_eq!(allowed, [&origin], "the only allowed origin must be this request's");
        assert_eq!(answer.headers()["access-control-expose-headers"], "idempotent-replayed,retry-after,link");
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn preflights_reach_neither_store_nor_handler() {
    let runs = Runs::default();
    let down = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    let service = cors().layer(down.http().required(true).layer(handler(&runs)));
    let mut preflight = from(ORIGINS[0], Some("k"), "");
    *preflight.method_mut() = Method::OPTIONS;
    let preflight = with_header(preflight, "access-control-request-method", "POST");
    let answer = service.oneshot(preflight).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-headers"], "content-type,idempotency-key");
    assert_eq!(runs.count(), 0);
}

/// A handler that sets its own CORS headers, for the origins that it knows.
fn with_own_cors(
    allowed: &'static str,
    vary: &'static str,
) -> impl Service<Request, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    service_fn(move |_: Request| async move {
        let response =
            Response::builder().header("vary", vary).header("access-control-expose-headers", "x-own");
        Ok(response.header("access-control-allow-origin", allowed).body(Body::Empty).unwrap())
    })
}

#[tokio::test]
async fn replays_keep_cors_for_permitted_origins() {
    let [shop, till] = ORIGINS.map(Some);
    for (allowed, vary, origin, kept) in [
        ("*", "accept", till, true),
        ("*", "accept", None, true),
        (ORIGINS[0], "origin, accept", shop, true),
        (ORIGINS[0], "origin, accept", till, false),
        (ORIGINS[0], "origin, accept", None, false),
        ("null", "origin, accept", Some("null"), false),
    ] {
        let idempotency = idempotency();
        let service = idempotency.http().replay_cors(true).layer(with_own_cors(allowed, vary));
        let sent = |origin: Option<&'static str>| match origin {
            Some(origin) => from(origin, Some("k"), "{}"),
            None => post(Some("k"), "{}"),
        };
        let first = service.clone().oneshot(sent(shop)).await.unwrap();
        assert_eq!(first.headers()["access-control-allow-origin"], allowed);
        let replay = service.oneshot(sent(origin)).await.unwrap();
        assert!(is_replay(&replay));
        let found = |name| replay.headers().get(name).map(|value| value.to_str().unwrap());
        let names = ["access-control-allow-origin", "access-control-expose-headers", "vary"];
        let expected =
            if kept { [Some(allowed), Some("x-own"), Some(vary)] } else { [None, None, Some("accept")] };
        assert_eq!(names.map(found), expected, "{allowed} {origin:?}");

        // A layer without the setting replays the same record to any origin without its CORS headers.
        let usual = idempotency.http().layer(with_own_cors(allowed, vary));
        let replay = usual.oneshot(sent(shop)).await.unwrap();
        assert!(is_replay(&replay) && !replay.headers().contains_key("access-control-allow-origin"));
    }
}
