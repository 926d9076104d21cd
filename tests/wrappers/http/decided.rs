//! The user's settings for the HTTP layer.

use super::*;
use lambda_http::{
    RequestExt as _,
    http::{HeaderName, Method},
};
use lambda_idempotency::{
    Begun, Error, ErrorKind, Fingerprint, Key,
    lambda::http::{HttpLayer, ProblemKind},
    settings::Recording,
};

/// Sends the requests in order to one layered handler. Returns each answer's status, and whether it was a replay.
async fn deliver(
    layer: HttpLayer,
    runs: &Runs,
    requests: impl IntoIterator<Item = Request>,
) -> Vec<(u16, bool)> {
    let service = layer.clone().layer(handler(runs));
    let mut answers = Vec::new();
    for request in requests {
        let answer = service.clone().oneshot(request).await.unwrap();
        answers.push((answer.status().as_u16(), is_replay(&answer)));
    }
    recording::shown(&layer);
    answers
}

fn as_method(method: Method) -> Request {
    let mut request = post(Some("k"), "{}");
    *request.method_mut() = method;
    request
}

#[tokio::test]
async fn protected_methods_are_configurable_except_safe_ones() {
    let runs = Runs::default();
    let layer = idempotency().http().required(true).methods([Method::PUT, Method::GET]);
    let twice = |method: Method| [as_method(method.clone()), as_method(method)];
    assert_eq!(deliver(layer.clone(), &runs, twice(Method::PUT)).await, [(201, false), (201, true)]);
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::DELETE] {
        assert_eq!(deliver(layer.clone(), &runs, twice(method.clone())).await, [(201, false); 2], "{method}");
    }
}

#[tokio::test]
async fn predicates_decide_which_requests_need_keys() {
    let runs = Runs::default();
    let layer = idempotency().http().required_when(|request| request.uri.path().starts_with("/payments"));
    let mut elsewhere = post(None, "{}");
    *elsewhere.uri_mut() = "/notes".parse().unwrap();
    assert_eq!(deliver(layer, &runs, [post(None, "{}"), elsewhere]).await, [(400, false), (201, false)]);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn required_when_sees_paths_without_stages() {
    for front_end in ["http-api", "function-url", "rest-api", "alb"] {
        let runs = Runs::default();
        let layer =
            idempotency().http().required_when(|request| request.raw_http_path().starts_with("/payments"));
        let mut request = through(front_end);
        request.headers_mut().remove("idempotency-key");
        assert_eq!(deliver(layer, &runs, [request]).await, [(400, false)], "{front_end}");
    }
}

/// A REST API's event has all values of a repeated header. `lambda_http` passes on only the last value, so the layer
/// doesn't see the other key.
#[tokio::test]
async fn lambda_http_shows_only_the_last_key() {
    let mut event: Value =
        serde_json::from_str(include_str!("../../../events/payments/rest-api.json")).unwrap();
    event["multiValueHeaders"]["Idempotency-Key"] = json!(["a", "b"]);
    event["headers"]["Idempotency-Key"] = "b".into();
    let request = lambda_http::request::from_str(&event.to_string()).unwrap();
    assert_eq!(request.headers().get_all("idempotency-key").iter().collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn key_header_and_format_are_configurable() {
    let runs = Runs::default();
    let alias = HeaderName::from_static("x-idempotency-key");
    let layer = idempotency().http().required(true).key_alias(alias).shortest_key(10);
    let by_alias = |key| with_header(post(None, "{}"), "x-idempotency-key", key);
    let both = with_header(post(Some("key"), "{}"), "x-idempotency-key", "c4n4ry-yek");
    let sent = [by_alias("c4n4ry-key"), post(Some("key"), "{}"), both, by_alias("c4n4ry-k")];
    let answers = [(201, false), (201, true), (400, false), (400, false)];
    assert_eq!(deliver(layer, &runs, sent).await, answers);

    let strict = idempotency().http().quoted_keys(true);
    let sent = [post(Some("\"key\""), "{}"), post(Some("key"), "{}")];
    assert_eq!(deliver(strict, &runs, sent).await, [(201, false), (400, false)]);
}

#[derive(Clone)]
struct Account(&'static str);

#[tokio::test]
async fn custom_callers_have_their_own_keys() {
    let runs = Runs::default();
    let layer = idempotency()
        .http()
        .caller(|request| Ok(request.extensions.get::<Account>().map(|account| account.0.to_owned())))
        .require_caller(true);
    let by = |account| {
        recording::secrets(|secrets| secrets.add(account));
        let mut request = post(Some("k"), "{}");
        request.extensions_mut().insert(Account(account));
        request
    };
    let sent =
        [by("c4n4ry-alice"), by("c4n4ry-bob"), by("c4n4ry-alice"), post(Some("k"), "{}"), post(None, "{}")];
    let answers = [(201, false), (201, false), (201, true), (403, false), (201, false)];
    assert_eq!(deliver(layer, &runs, sent).await, answers);
}

#[tokio::test]
async fn unknown_callers_get_403_or_500() {
    let runs = Runs::default();
    let down = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    let service = down.http().require_caller(true).layer(handler(&runs));
    let answer = service.oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (403, "caller-missing"));

    // An authorizer ran and named no principal. The API's owner has to fix that, whether or not a caller is required.
    let mut event: Value =
        serde_json::from_str(include_str!("../../../events/payments/http-api.json")).unwrap();
    event["requestContext"]["authorizer"] = json!({"lambda": {"plan": "gold"}});
    let request = lambda_http::request::from_str(&event.to_string()).unwrap();
    let answer = down.http().layer(handler(&runs)).oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (500, "caller-unknown"));
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn errors_of_the_caller_choose_the_status() {
    let runs = Runs::default();
    for (kind, status, code_of_problem) in
        [(ErrorKind::Invalid, 403, "caller-missing"), (ErrorKind::Unavailable, 503, "store-unavailable")]
    {
        let layer = idempotency().http().caller(move |_| Err(Error::new(kind, "no caller")));
        let answer = layer.layer(handler(&runs)).oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (status, code_of_problem));
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503);
    }
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn selected_headers_are_compared() {
    let runs = Runs::default();
    let layer = idempotency().http().fingerprint_headers([HeaderName::from_static("api-version")]);
    let of = |version| with_header(post(Some("k"), "{}"), "api-version", version);
    let traced = with_header(of("1"), "traceparent", "00-1-1-01");
    let sent = [of("1"), traced, of("2"), post(Some("k"), "{}")];
    assert_eq!(deliver(layer, &runs, sent).await, [(201, false), (201, true), (422, false), (422, false)]);
}

#[tokio::test]
async fn bodies_over_custom_limits_get_413() {
    let runs = Runs::default();
    let layer = idempotency().http().max_body(4);
    let sent = [post(Some("k"), "[12]"), post(Some("l"), "[123]"), post(None, "[123]")];
    assert_eq!(deliver(layer, &runs, sent).await, [(201, false), (413, false), (201, false)]);
}

#[tokio::test]
async fn recording_follows_handler_then_setting_then_status() {
    /// Sends a request twice to a handler that answers with this status and this `Recording`. Returns the second
    /// answer's status, and whether it was a replay.
    async fn twice(layer: HttpLayer, status: u16, says: Option<Recording>) -> (u16, bool) {
        let answer = move |_: Request| async move {
            let mut response = Response::builder().status(status).body(Body::Empty).unwrap();
            if let Some(says) = says {
                response.extensions_mut().insert(says);
            }
            Ok::<_, Infallible>(response)
        };
        let service = layer.layer(service_fn(answer));
        service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        (again.status().as_u16(), is_replay(&again))
    }
    let plain = || idempotency().http();
    assert_eq!(twice(plain(), 500, None).await, (500, false));
    assert_eq!(twice(plain(), 500, Some(Recording::Record)).await, (500, true));
    assert_eq!(twice(plain(), 201, Some(Recording::Release)).await, (201, false));
    let teapots = || plain().record_when(|response| response.status() == 418);
    assert_eq!(twice(teapots(), 201, None).await, (201, false));
    assert_eq!(twice(teapots(), 418, None).await, (418, true));
    assert_eq!(twice(teapots(), 418, Some(Recording::Release)).await, (418, false));
    let at_most_once =
        Idempotency::builder(empty_store()).function("payments").execution(Execution::AtMostOnce);
    let released = at_most_once.build().unwrap().http();
    assert_eq!(
        twice(released, 503, Some(Recording::Release)).await,
        (503, false),
        "`Release` says that nothing happened, so a later attempt may run"
    );
}

/// A handler answers 503 because a step is in progress elsewhere. `record_when` would record every response.
#[tokio::test]
async fn refused_step_releases_despite_record_when() {
    let everything = || idempotency().http().record_when(|_| true);
    for (status, said, is_recorded) in
        [(503, None, false), (503, Some(Recording::Record), true), (422, None, true)]
    {
        let step = idempotency().operation("step").unwrap();
        let key = Key::new("held").unwrap();
        let fingerprint = Fingerprint::of(&1).unwrap();
        let Ok(Begun::Claimed(_held)) = step.begin(&key, fingerprint).await else { panic!("not claimed") };
        let answer = move |_: Request| {
            let (step, key) = (step.clone(), key.clone());
            async move {
                let refused = step.run(&key, &1, || async { Ok::<_, Infallible>("done".to_owned()) }).await;
                let mut response = Response::builder().status(status).body(Body::Empty).unwrap();
                assert!(refused.is_err());
                if let Some(said) = said {
                    response.extensions_mut().insert(said);
                }
                Ok::<_, Infallible>(response)
            }
        };
        let service = everything().layer(service_fn(answer));
        service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((again.status().as_u16(), is_replay(&again)), (status, is_recorded), "{status} {said:?}");
    }
}

#[tokio::test]
async fn replayed_cookies_and_marker_are_configurable() {
    let marker = HeaderName::from_static("x-replayed");
    for with_cookies in [false, true] {
        let mut layer = idempotency().http().replay_marker(marker.clone());
        if with_cookies {
            layer = layer.replay_header(lambda_http::http::header::SET_COOKIE, true);
        }
        let answer = |_: Request| async {
            let response = Response::builder().header("set-cookie", "a=1").header("set-cookie", "b=2");
            Ok::<_, Infallible>(response.header("x-replayed", "true").body(Body::Empty).unwrap())
        };
        let service = layer.layer(service_fn(answer));
        let first = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert!(!first.headers().contains_key(&marker), "the layer must remove the handler's own marker");
        let again = service.oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(again.headers()[&marker], "true");
        assert!(!again.headers().contains_key("idempotent-replayed"));
        let cookies = again.headers().get_all("set-cookie").iter().count();
        assert_eq!(cookies, if with_cookies { 2 } else { 0 });
    }
}

#[tokio::test]
async fn revoked_rights_get_403_instead_of_replays() {
    let runs = Runs::default();
    let layer = idempotency().http().shared_namespace().replay_if(|request, _| async move {
        request.headers.get("authorization").is_some_and(|token| token == "c4n4ry-good")
    });
    let with = |token| with_header(post(Some("k"), "{}"), "authorization", token);
    // The layer doesn't call `replay_if` for the first run, since a handler checks the rights itself.
    let answers =
        deliver(layer.clone(), &runs, [with("c4n4ry-bad"), with("c4n4ry-good"), with("c4n4ry-bad")]).await;
    assert_eq!(answers, [(201, false), (201, true), (403, false)]);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn local_caches_change_no_answer() {
    let runs = Runs::default();
    let builder = Idempotency::builder(empty_store()).function("payments");
    let idempotency = builder.settings(|s| s.local_cache = 1024 * 1024).build().unwrap();
    let layer = idempotency.http().shared_namespace().replay_if(|request, _| async move {
        request.headers.get("authorization").is_none_or(|token| token == "c4n4ry-good")
    });
    let with = |token| with_header(post(Some("k"), "{}"), "authorization", token);
    let requests = [post(Some("k"), "{}"), post(Some("k"), "{}"), post(Some("k"), "[]"), with("c4n4ry-bad")];
    let answers = deliver(layer, &runs, requests).await;
    assert_eq!(answers, [(201, false), (201, true), (422, false), (403, false)]);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn custom_statuses_are_used() {
    let runs = Runs::default();
    let layer = idempotency()
        .http()
        .status(ProblemKind::KeyReused, StatusCode::CONFLICT)
        .documentation("https://api.example/idempotency");
    let service = layer.layer(handler(&runs));
    service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    let answer = service.oneshot(post(Some("k"), "[]")).await.unwrap();
    assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (409, "key-reused"));
    assert!(answer.headers()["link"].to_str().unwrap().starts_with("<https://api.example/idempotency>"));
}

/// Returns the request that the function gets through this front end.
fn through(front_end: &str) -> Request {
    let text = match front_end {
        "http-api" => include_str!("../../../events/payments/http-api.json"),
        "function-url" => include_str!("../../../events/payments/function-url.json"),
        "rest-api" => include_str!("../../../events/payments/rest-api.json"),
        "vpc-lattice" => include_str!("vpc-lattice.json"),
        _ => include_str!("../../../events/payments/alb.json"),
    };
    lambda_http::request::from_str(text).unwrap()
}

#[tokio::test]
async fn repeated_headers_reach_every_front_end() {
    for (front_end, joined) in [
        ("http-api", true),
        ("function-url", true),
        ("alb", true),
        ("vpc-lattice", true),
        ("rest-api", false),
    ] {
        let answer = |_: Request| async {
            let response = Response::builder().header("link", "</a>").header("link", "</b>");
            Ok::<_, Infallible>(response.body(Body::Empty).unwrap())
        };
        let service = idempotency().http().layer(service_fn(answer));
        for is_replayed in [false, true] {
            let answer = service.clone().oneshot(through(front_end)).await.unwrap();
            assert_eq!(is_replay(&answer), is_replayed);
            let links: Vec<_> = answer.headers().get_all("link").iter().collect();
            let expected: &[&str] = if joined { &["</a>, </b>"] } else { &["</a>", "</b>"] };
            assert_eq!(links, expected, "{front_end}");
        }
    }
}

#[tokio::test]
async fn wrapping_handlers_twice_fails_immediately() {
    let runs = Runs::default();
    let layer = idempotency().http();
    let service = layer.clone().layer(layer.layer(handler(&runs)));
    for _ in 0..2 {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(answer.status(), 500);
        assert!(std::str::from_utf8(answer.body()).unwrap().contains("\"misconfigured\""));
    }
    assert_eq!(runs.count(), 0);
}
