//! The answers that the layer records.

use lambda_http::http::HeaderName;
use lambda_idempotency::lambda::http::ReleaseRejections;
use tower_http::timeout::TimeoutLayer;

use super::*;

fn at_most_once() -> Idempotency {
    let builder = Idempotency::builder(empty_store()).function("payments");
    builder.execution(Execution::AtMostOnce).build().unwrap()
}

/// A middleware inside the layer answers 408 after the card was charged.
#[tokio::test]
async fn at_most_once_timeouts_charge_once() {
    let charges = Runs::default();
    let counted = charges.clone();
    let handler = service_fn(move |_: Request| {
        let charges = counted.clone();
        async move {
            charges.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(Body::Empty))
        }
    });
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(20));
    let service = at_most_once().http().layer(timeout.layer(handler));
    for is_replayed in [false, true, true] {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((answer.status().as_u16(), is_replay(&answer)), (408, is_replayed));
    }
    assert_eq!(charges.count(), 1);
}

#[tokio::test]
async fn at_most_once_records_every_status() {
    for status in ["401", "403", "404", "408", "409", "413", "415", "421", "423", "425", "429", "500", "503"]
    {
        let runs = Runs::default();
        // An at-most-once layer ignores `record_when` and the list of statuses to release.
        let layer = at_most_once().http().record_when(|_| false);
        let service = layer.layer(handler(&runs));
        for is_replayed in [false, true] {
            let request = with_header(post(Some("k"), "{}"), "status", status);
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!((answer.status().as_str(), is_replay(&answer)), (status, is_replayed));
        }
    }
}

/// With `max_response(0)`, the layer records outcomes without their answers. Duplicates of a recorded outcome get the
/// substitute from `on_not_retained`, whatever the answer's status was. A 500 isn't recorded, so its duplicate runs.
#[tokio::test]
async fn duplicates_of_unretained_responses_get_the_substitute() {
    let done = || Response::builder().status(202).body(Body::from("done")).unwrap();
    for (status, is_done) in [("201", true), ("402", true), ("500", false)] {
        let runs = Runs::default();
        let builder =
            Idempotency::builder(empty_store()).function("payments").settings(|s| s.max_response = 0);
        let idempotency = builder.build().unwrap();
        recording::shown(&idempotency);
        let service = idempotency.http().on_not_retained(done).layer(handler(&runs));
        let ask = async || {
            let request = with_header(post(Some("k"), "{}"), "status", status);
            service.clone().oneshot(request).await.unwrap()
        };
        let first = ask().await;
        assert_eq!((first.status().as_str(), is_replay(&first)), (status, false));
        let second = ask().await;
        let expected = if is_done { ("202", true) } else { (status, false) };
        assert_eq!((second.status().as_str(), is_replay(&second)), expected);
        assert_eq!(runs.count() == 1, is_done);
        if is_done {
            let other = service.oneshot(post(Some("k"), "[]")).await.unwrap();
            assert_eq!(other.status().as_u16(), 422, "another request must not get the substitute");
        }
    }
}

/// `replay_if` also guards the substitute, because a substitute tells the caller that the operation is done.
#[tokio::test]
async fn replay_if_also_guards_substitutes() {
    let runs = Runs::default();
    let builder = Idempotency::builder(empty_store()).function("payments").settings(|s| s.max_response = 0);
    let layer = builder.build().unwrap().http().on_not_retained(|| Response::new(Body::Empty));
    let service = layer.replay_if(|_, _| async { false }).layer(handler(&runs));
    for status in [201, 403] {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
    }
}

/// Answers 429 to requests with the header `hurry`, without running the handler. Answers 408 to requests
/// with the header `late`, after the handler has run.
#[derive(Clone)]
struct Limiter {
    drops_extensions: bool,
}

#[derive(Clone)]
struct Limiting<S>(S, Limiter);

impl<S> Layer<S> for Limiter {
    type Service = Limiting<S>;

    fn layer(&self, inner: S) -> Limiting<S> {
        Limiting(inner, self.clone())
    }
}

impl<S> Service<Request> for Limiting<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut inner = self.0.clone();
        let answer = |status: u16| Ok(Response::builder().status(status).body(Body::Empty).unwrap());
        let headers = request.headers().clone();
        if self.1.drops_extensions {
            request.extensions_mut().clear();
        }
        Box::pin(async move {
            if headers.contains_key("hurry") {
                return answer(429);
            }
            let response = inner.call(request).await;
            if headers.contains_key("late") { answer(408) } else { response }
        })
    }
}

#[tokio::test]
async fn rejections_before_the_handler_are_released() {
    let runs = Runs::default();
    let limiter = ReleaseRejections::of(Limiter { drops_extensions: false });
    // Two nested `ReleaseRejections`: each marks only the rejections of the layer that it wraps.
    let layers = ReleaseRejections::of(tower::util::MapResponseLayer::new(|response| response));
    let service = at_most_once().http().layer(layers.layer(limiter.layer(handler(&runs))));
    let with = |name| with_header(post(Some("k"), "{}"), name, "1");
    for _ in 0..2 {
        let rejected = service.clone().oneshot(with("hurry")).await.unwrap();
        assert_eq!((rejected.status().as_u16(), is_replay(&rejected), runs.count()), (429, false, 0));
    }
    for is_replayed in [false, true] {
        let late = service.clone().oneshot(with("late")).await.unwrap();
        assert_eq!((late.status().as_u16(), is_replay(&late), runs.count()), (408, is_replayed, 1));
    }
    // The handler's own 429 is recorded.
    let own = || with_header(post(Some("own"), "{}"), "status", "429");
    assert!(!is_replay(&service.clone().oneshot(own()).await.unwrap()));
    assert!(is_replay(&service.oneshot(own()).await.unwrap()));
}

/// A limiter outside the layer sees replays too, and a request that it refuses claims nothing.
#[tokio::test]
async fn limiters_outside_leave_the_key_free() {
    let runs = Runs::default();
    let layered = at_most_once().http().layer(handler(&runs));
    let service = Limiter { drops_extensions: false }.layer(layered);
    let hurried = || with_header(post(Some("k"), "{}"), "hurry", "1");
    assert_eq!(service.clone().oneshot(hurried()).await.unwrap().status().as_u16(), 429);
    for is_replayed in [false, true] {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((is_replay(&answer), runs.count()), (is_replayed, 1));
    }
    assert_eq!(service.oneshot(hurried()).await.unwrap().status().as_u16(), 429);
}

#[tokio::test]
async fn answers_are_recorded_despite_dropped_extensions() {
    let runs = Runs::default();
    let limiter = ReleaseRejections::of(Limiter { drops_extensions: true });
    let service = at_most_once().http().layer(limiter.layer(handler(&runs)));
    for is_replayed in [false, true] {
        let request = with_header(post(Some("k"), "{}"), "late", "1");
        let late = service.clone().oneshot(request).await.unwrap();
        assert_eq!((late.status().as_u16(), is_replay(&late), runs.count()), (408, is_replayed, 1));
    }
}

/// The same body can succeed with another header, other rights, or after a deployment.
#[tokio::test]
async fn corrected_requests_run_again() {
    for status in ["404", "405", "406", "407", "411", "412", "415", "426", "428", "431"] {
        let runs = Runs::default();
        let service = idempotency().http().layer(handler(&runs));
        let rejected = with_header(post(Some("k"), "{}"), "status", status);
        assert_eq!(service.clone().oneshot(rejected).await.unwrap().status().as_str(), status);
        let corrected = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((corrected.status().as_u16(), is_replay(&corrected)), (201, false), "{status}");
    }
}

/// The page that API owners publish lists what the layer does for each status.
#[tokio::test]
async fn the_page_lists_released_statuses() {
    let page = include_str!("../../../src/guide/idempotency_specification.md");
    let row = page.lines().find(|line| line.contains("a 5xx") && line.contains("| a new run")).unwrap();
    let listed: Vec<u16> = row
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok().filter(|status| *status >= 100))
        .collect();
    for status in 200..600_u16 {
        let is_released = listed.contains(&status) || status >= 500;
        let service = idempotency().http().layer(service_fn(move |_: Request| async move {
            Ok::<_, Infallible>(Response::builder().status(status).body(Body::Empty).unwrap())
        }));
        service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(is_replay(&again), !is_released, "{status}");
    }
}

/// Headers that describe only one exchange, so a replay leaves them out.
const OF_ONE_EXCHANGE: [&str; 18] = [
    "x-request-id",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "x-ratelimit-remaining",
    "traceparent",
    "tracestate",
    "server-timing",
    "via",
    "x-amz-cf-id",
    "x-amz-cf-pop",
    "x-amz-apigw-id",
    "x-amzn-requestid",
    "x-cache",
    "clear-site-data",
    "proxy-authentication-info",
    "keep-alive",
    "x-hop",
];

#[tokio::test]
async fn per_exchange_headers_are_not_replayed() {
    let answer = |_: Request| async {
        let response = Response::builder().header("connection", "close, X-Hop").header("x-own", "1");
        let response =
            OF_ONE_EXCHANGE.into_iter().fold(response, |response, name| response.header(name, "1"));
        Ok::<_, Infallible>(response.body(Body::Empty).unwrap())
    };
    let service = idempotency().http().layer(service_fn(answer));
    let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
    for name in OF_ONE_EXCHANGE {
        assert!(first.headers().contains_key(name) && !again.headers().contains_key(name), "{name}");
    }
    assert_eq!(again.headers()["x-own"], "1");

    // The user can choose for each header whether it's replayed.
    let via = HeaderName::from_static("via");
    let layer =
        idempotency().http().replay_header(via, true).replay_header(HeaderName::from_static("x-own"), false);
    let service = layer.layer(service_fn(answer));
    service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
    assert!(again.headers().contains_key("via") && !again.headers().contains_key("x-own"));
}

#[tokio::test]
async fn recorded_errors_are_replayed_identically() {
    for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
        let builder = Idempotency::builder(empty_store()).function("payments").execution(execution);
        let idempotency = builder
            .settings(|s| s.on_handler_error = lambda_idempotency::settings::Recording::Record)
            .build()
            .unwrap();
        let fails = |_: Request| async { Err::<&str, _>(std::io::Error::other("c4n4ry-out of stock")) };
        let service = idempotency.http().layer(service_fn(fails));
        let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((first.status().as_u16(), code(&first).as_str()), (500, "operation-failed"));
        assert_eq!((first.status(), first.body()), (again.status(), again.body()));
    }
}

#[tokio::test]
async fn content_type_decides_how_bodies_are_compared() {
    // These bodies are equal as JSON, but their bytes differ.
    let (one, other) = (r#"{"a":1,"b":2}"#, r#"{"b":2, "a":1}"#);
    for (content_type, raw, status) in [
        (None, false, 201),
        (Some("application/json; charset=utf-8"), false, 201),
        (Some("application/merge-patch+JSON"), false, 201),
        (Some("text/plain"), false, 422),
        (Some("application/x-www-form-urlencoded"), false, 422),
        (Some("multipart/form-data; boundary=b"), false, 422),
        (Some("application/octet-stream"), false, 422),
        (Some("application/json"), true, 422),
    ] {
        let service = idempotency().http().fingerprint_raw_body(raw).layer(handler(&Runs::default()));
        let of = |body: &str| match content_type {
            Some(content_type) => with_header(post(Some("k"), body), "content-type", content_type),
            None => post(Some("k"), body),
        };
        assert_eq!(service.clone().oneshot(of(one)).await.unwrap().status(), 201);
        assert_eq!(service.oneshot(of(other)).await.unwrap().status(), status, "{content_type:?}, {raw}");
    }
}

#[tokio::test]
async fn ignored_query_parameters_are_not_compared() {
    let layer = || idempotency().http().ignore_query(["X-Amz-*", "at"]);
    let at = |query: &str| {
        let mut request = post(Some("k"), "{}");
        *request.uri_mut() = format!("/payments?{query}").parse().unwrap();
        request
    };
    for (one, other, status) in [
        ("X-Amz-Date=1&X-Amz-Signature=a&n=1", "n=1&X-Amz-Signature=b&X-Amz-Date=2", 201),
        ("n=1&%61t=1", "n=1", 201),
        ("n=1&at=1", "n=2&at=1", 422),
        ("n=1&x-amz-date=1", "n=1&x-amz-date=2", 422),
        ("n=1&attempt=1", "n=1&attempt=2", 422),
    ] {
        let service = layer().layer(handler(&Runs::default()));
        assert_eq!(service.clone().oneshot(at(one)).await.unwrap().status(), 201);
        assert_eq!(service.oneshot(at(other)).await.unwrap().status(), status, "{one}, then {other}");
    }
}

#[tokio::test]
async fn the_key_alone_may_count() {
    let runs = Runs::default();
    let layer = idempotency().http().key_alone(true);
    let service = layer.layer(handler(&runs));
    let mut other = with_header(post(Some("k"), "other"), "content-type", "text/plain");
    *other.uri_mut() = "/refunds?n=1".parse().unwrap();
    *other.method_mut() = lambda_http::http::Method::PATCH;
    let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    let again = service.clone().oneshot(other).await.unwrap();
    assert!(is_replay(&again) && again.body() == first.body());
    assert!(!is_replay(&service.oneshot(post(Some("l"), "{}")).await.unwrap()));
    assert_eq!(runs.count(), 2);
}

/// A layer outside this one limits the body, and wraps the limit's error in its own.
#[tokio::test]
async fn bodies_over_outer_limits_get_413() {
    use http_body_util::Limited;

    let app: axum::Router = axum::Router::new()
        .route("/payments", axum::routing::post(|body: String| async { body }))
        .route_layer(idempotency().http())
        .layer(axum::middleware::map_request(|request: axum::extract::Request| async {
            request.map(|body| axum::body::Body::new(Limited::new(body, 10)))
        }));
    for (length, status) in [(10, 200), (11, 413)] {
        let request = post(Some("k"), "{}").map(|_| axum::body::Body::from("x".repeat(length)));
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (status, false));
    }
}

#[tokio::test]
async fn late_requests_hear_of_missing_time() {
    use lambda_http::RequestExt as _;

    let runs = Runs::default();
    let mut context = lambda_http::Context::default();
    context.deadline = 1_700_000_000_000;
    let request = post(Some("k"), "{}").with_lambda_context(context);
    let answer = idempotency().http().layer(handler(&runs)).oneshot(request).await.unwrap();
    let problem: Value = serde_json::from_slice(answer.body()).unwrap();
    assert_eq!(
        (answer.status().as_u16(), &problem["title"]),
        (503, &json!("No time is left to run the operation"))
    );
    assert_eq!((&problem["retryable"], runs.count()), (&json!(true), 0));
}
