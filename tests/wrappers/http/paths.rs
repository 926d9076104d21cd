//! The path and the query of a request: two requests that the handler can tell apart never share a record, and closures
//! see the path as the API's routes name it.

use std::collections::BTreeMap;

use axum::{Router, body::Body as AxumBody, extract::Path, routing::post as post_to};
use lambda_http::{RequestExt, http::request::Parts};
use lambda_idempotency::lambda::Description;
use lambda_runtime::Context;

use super::*;

const REST: &str = include_str!("../../../events/payments/rest-api.json");
const HTTP: &str = include_str!("../../../events/payments/http-api.json");
const HTTP_1: &str = include_str!("http-api-1.0.json");
const URL: &str = include_str!("../../../events/payments/function-url.json");
const ALB: &str = include_str!("../../../events/payments/alb.json");
const LATTICE: &str = include_str!("vpc-lattice.json");

/// The form in which a front end delivers the query.
#[derive(Clone, Copy)]
enum Query {
    /// As text, `rawQueryString`.
    Raw,
    /// As a map from each name to its values, and a map to the last value. `true` means that the front end decodes them.
    Maps(bool),
    /// As a map from each name to its last value, not decoded.
    Last,
    /// As one map from each name to its values, not decoded.
    Lists,
}

const FRONT_ENDS: [(&str, &str, Query); 7] = [
    ("REST API", REST, Query::Maps(true)),
    ("HTTP API", HTTP, Query::Raw),
    ("HTTP API, format 1.0", HTTP_1, Query::Maps(true)),
    ("function URL", URL, Query::Raw),
    ("load balancer, multi-value", ALB, Query::Maps(false)),
    ("load balancer", ALB, Query::Last),
    ("VPC Lattice", LATTICE, Query::Lists),
];

const PATHS: [&str; 12] = [
    "/invoices/2026",
    "/invoices/2026/",
    "/invoices/2026#17/pay",
    "/invoices/2026#18/pay",
    "/invoices/2026%2317/pay",
    "/invoices/2026?17/pay",
    "/invoices/#",
    "/invoices/?",
    "/invoices/a b",
    "/invoices/a%20b#",
    "/invoices/100%",
    "/invoices/\u{e9}",
];

const QUERIES: [&str; 17] = [
    "",
    "amount=1",
    "amount=1000",
    "amount=1&amount=2",
    "amount=2&amount=1",
    "a=1&b=2",
    "b=2&a=1",
    "a=1%26b=2",
    "a=1&b",
    "a%3D1=b",
    "a=1%3Db",
    "a=%23",
    "a=x%20y",
    "a=x%2520y",
    "a=%FF",
    "a=%FE",
    "a=%EF%BF%BD",
];

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digits = String::from_utf8(vec![*high, *low]).unwrap();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The event of a request with this path and query.
fn event(text: &str, form: Query, path: &str, query: &str) -> Value {
    let mut event: Value = serde_json::from_str(text).unwrap();
    event[if matches!(form, Query::Raw) { "rawPath" } else { "path" }] = path.into();
    let is_decoded = matches!(form, Query::Maps(true));
    let text = |text: &str| if is_decoded { decoded(text) } else { text.to_owned() };
    let mut all = BTreeMap::<String, Vec<String>>::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        all.entry(text(name)).or_default().push(text(value));
    }
    let last: BTreeMap<_, _> = all.iter().map(|(name, values)| (name, values.last().unwrap())).collect();
    match form {
        Query::Raw => {
            event["rawQueryString"] = query.into();
            event["queryStringParameters"] = all
                .iter()
                .map(|(name, values)| (decoded(name), Value::from(decoded(&values.join(",")))))
                .collect();
        }
        Query::Maps(_) => {
            event["queryStringParameters"] = json!(last);
            event["multiValueQueryStringParameters"] = json!(all);
        }
        Query::Last => {
            event.as_object_mut().unwrap().remove("multiValueQueryStringParameters");
            event["queryStringParameters"] = json!(last);
        }
        Query::Lists => event["queryStringParameters"] = json!(all),
    }
    event
}

/// Everything that a handler can see of the path and the query. The order of different names doesn't count.
fn seen(request: &Request) -> String {
    let parameters = request.query_string_parameters();
    let mut parameters: Vec<_> = parameters.iter().collect();
    parameters.sort_by_key(|(name, _)| *name);
    // `lambda_http` puts the end of a path with a question mark into the query.
    let of_path =
        request.raw_http_path().split_once('?').map_or_else(String::new, |(_, end)| format!("{end}?"));
    let query = request.uri().query().unwrap_or_default();
    let mut pairs: Vec<_> = query.strip_prefix(&of_path).unwrap_or(query).split('&').collect();
    pairs.sort_by_key(|pair| pair.split_once('=').map_or(*pair, |(name, _)| name));
    format!("{:?}", (request.raw_http_path(), request.uri().path(), parameters, pairs))
}

/// Two requests have the same fingerprint if and only if their handler can't tell them apart.
#[test]
fn visible_differences_are_never_replayed() {
    let description = Description::new("payments", "http");
    let mut wrong = Vec::new();
    for (front_end, text, form) in FRONT_ENDS {
        let mut by_sight = BTreeMap::new();
        let mut by_fingerprint = BTreeMap::new();
        for (path, query) in PATHS.iter().flat_map(|path| QUERIES.map(|query| (*path, query))) {
            let event = event(text, form, path, query);
            let request = lambda_http::request::from_str(&event.to_string()).unwrap();
            let located =
                description.locate(event.to_string().as_bytes(), &Context::default(), None).unwrap();
            let fingerprint = format!("{:?}", located[0].fingerprint.unwrap());
            let seen = seen(&request);
            if *by_sight.entry(seen.clone()).or_insert_with(|| fingerprint.clone()) != fingerprint {
                wrong.push(format!("{front_end}: two fingerprints of {seen}"));
            }
            let first = by_fingerprint.entry(fingerprint).or_insert_with(|| seen.clone());
            if *first != seen {
                wrong.push(format!("{front_end}: one fingerprint of {first} and {seen}"));
            }
        }
        assert!(by_sight.len() > PATHS.len() * 9, "{front_end}: {} different requests", by_sight.len());
    }
    assert!(wrong.is_empty(), "{} pairs: {wrong:#?}", wrong.len());
}

#[tokio::test]
async fn queries_after_a_hash_are_compared() {
    for (front_end, text, form) in FRONT_ENDS {
        let runs = Runs::default();
        let service = idempotency().http().layer(handler(&runs));
        for (query, status) in [("amount=1", 201), ("amount=1000", 422)] {
            let mut event = event(text, form, "/invoices/2026#17/pay", query);
            event["requestContext"]["authorizer"] = Value::Null;
            let request = lambda_http::request::from_str(&event.to_string()).unwrap();
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.status(), status, "{front_end}, {query}");
        }
    }
}

/// An event of the route `/exports/{id}` behind a stage or a base path, and the URI's path that a closure sees.
fn staged() -> Vec<(&'static str, Value, &'static str)> {
    let rest = |path: &str, resource: &str| {
        let mut event = event(REST, Query::Maps(true), path, "a=1");
        event["requestContext"]["resourcePath"] = resource.into();
        event["pathParameters"] = json!({"proxy": "exports/1"});
        event
    };
    let http = |text, form, path: &str, stage: &str| {
        let mut event = event(text, form, path, "a=1");
        event["requestContext"]["stage"] = stage.into();
        event["requestContext"]["resourcePath"] = "$default".into();
        event
    };
    vec![
        ("REST API with a stage", rest("/exports/1", "/exports/{id}"), "/exports/1"),
        ("REST API with a base path", rest("/shop/v1/exports/1", "/exports/{id}"), "/exports/1"),
        ("REST API with a greedy resource", rest("/shop/exports/1", "/{proxy+}"), "/exports/1"),
        ("HTTP API with a stage", http(HTTP, Query::Raw, "/v1/exports/1", "v1"), "/exports/1"),
        ("HTTP API without a stage", http(HTTP, Query::Raw, "/exports/1", "$default"), "/exports/1"),
        (
            "HTTP API with a decoded path",
            http(HTTP, Query::Raw, "/v1/exports/1#2 3", "v1"),
            "/exports/1%232%203",
        ),
        ("HTTP API with dots", http(HTTP, Query::Raw, "/v1/payments/../exports/1", "v1"), "/exports/1"),
        ("HTTP API, format 1.0", http(HTTP_1, Query::Maps(true), "/v1/exports/1", "v1"), "/exports/1"),
        ("function URL", event(URL, Query::Raw, "/exports/1", "a=1"), "/exports/1"),
        ("load balancer", event(ALB, Query::Maps(false), "/exports/1", "a=1"), "/exports/1"),
        ("VPC Lattice", event(LATTICE, Query::Lists, "/exports/1", "a=1"), "/exports/1"),
    ]
}

#[tokio::test]
async fn closures_see_paths_as_routes_name_them() {
    for (name, mut event, path) in staged() {
        event["requestContext"]["authorizer"] = Value::Null;
        let own = lambda_http::request::from_str(&event.to_string()).unwrap().uri().clone();
        let is_seen = move |request: &Parts| {
            assert_eq!(request.uri.query(), Some("a=1"), "{name}");
            request.uri.path() == path
        };
        let handled = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&handled);
        let handler = service_fn(move |request: Request| {
            seen.lock().unwrap().push(request.uri().clone());
            async { Ok::<_, Infallible>(Response::new(Body::Empty)) }
        });
        let send = async |layer: lambda_idempotency::lambda::http::HttpLayer, event: &Value| {
            let request = lambda_http::request::from_str(&event.to_string()).unwrap();
            layer.layer(handler.clone()).oneshot(request).await.unwrap()
        };
        let passing = idempotency().http().pass_through_when(is_seen);
        for _ in 0..2 {
            assert!(!is_replay(&send(passing.clone(), &event).await), "{name}");
        }
        assert_eq!(
            send(
                idempotency()
                    .http()
                    .caller(move |request| Ok(is_seen(request).then(|| "c".into())))
                    .require_caller(true),
                &event
            )
            .await
            .status(),
            200,
            "{name}"
        );
        assert_eq!(
            *handled.lock().unwrap(),
            [own.clone(), own.clone(), own],
            "{name}: the handler's own URI"
        );
        for headers in ["headers", "multiValueHeaders"] {
            let Some(headers) = event[headers].as_object_mut() else { continue };
            headers.retain(|name, _| !name.eq_ignore_ascii_case("idempotency-key"));
        }
        let required = send(idempotency().http().required_when(is_seen), &event).await;
        assert_eq!(code(&required), "key-missing", "{name}");
    }
}

#[tokio::test]
async fn named_apis_compare_paths_without_resources() {
    let named = idempotency().http().api_name("payments");
    let of = |path: &str| {
        let mut event = event(HTTP_1, Query::Maps(true), path, "");
        event["requestContext"]["resourcePath"] = "$default".into();
        lambda_http::request::from_str(&event.to_string()).unwrap()
    };
    let service = named.layer(handler(&Runs::default()));
    for (path, status) in [("/accounts/1", 201), ("/accounts/2", 422)] {
        assert_eq!(service.clone().oneshot(of(path)).await.unwrap().status(), status, "{path}");
    }
}

fn capture(runs: &Runs) -> Router {
    let runs = runs.clone();
    let capture = async move |Path(account): Path<String>| {
        format!("{account}, {}", runs.0.fetch_add(1, Ordering::SeqCst) + 1)
    };
    Router::new().route("/capture", post_to(capture))
}

async fn sent(app: &Router, path: &str) -> (u16, bool) {
    let request = lambda_http::http::Request::post(path).header("idempotency-key", "k");
    let answer = app.clone().oneshot(request.body(AxumBody::from("{}")).unwrap()).await.unwrap();
    (answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed"))
}

#[tokio::test]
async fn nested_routes_are_compared_whole() {
    let inside = capture(&Runs::default()).route_layer(idempotency().http());
    let outside = Router::new().nest("/accounts/{id}", capture(&Runs::default())).layer(idempotency().http());
    let twice = Router::new().nest("/accounts/{id}", inside.clone());
    for app in
        [outside, Router::new().nest("/accounts/{id}", inside.clone()), Router::new().nest("/v1", twice)]
    {
        let prefix = if sent(&app, "/v1/accounts/0/capture").await.0 == 404 { "" } else { "/v1" };
        let first = if prefix.is_empty() { (200, false) } else { (422, false) };
        assert_eq!(sent(&app, &format!("{prefix}/accounts/1/capture")).await, first);
        assert_eq!(sent(&app, &format!("{prefix}/accounts/2/capture")).await, (422, false));
    }
}

#[tokio::test]
async fn closures_see_whole_paths_inside_nest() {
    let layer = idempotency().http().pass_through_when(|request| request.uri.path() == "/accounts/1/capture");
    let app = Router::new().nest("/accounts/{id}", capture(&Runs::default()).route_layer(layer));
    for (path, replayed) in [("1", false), ("1", false), ("2", false), ("2", true)] {
        assert_eq!(sent(&app, &format!("/accounts/{path}/capture")).await, (200, replayed), "{path}");
    }
}

/// Code that isn't axum's shortens the path, and keeps the whole path in an extension.
#[tokio::test]
async fn paths_from_a_closure_are_compared() {
    #[derive(Clone)]
    struct WholePath(String);

    let runs = Runs::default();
    let layer = idempotency().http().path(|request| Some(request.extensions.get::<WholePath>()?.0.clone()));
    let layer = layer.pass_through_when(|request| request.uri.path() == "/accounts/3/capture");
    let inner = layer.layer(handler(&runs));
    let outer = service_fn(move |mut request: Request| {
        let whole = WholePath(request.uri().path().to_owned());
        request.extensions_mut().insert(whole);
        *request.uri_mut() = "/capture".parse().unwrap();
        inner.clone().oneshot(request)
    });
    for (account, expected) in
        [(1, (201, false)), (1, (201, true)), (2, (422, false)), (3, (201, false)), (3, (201, false))]
    {
        let mut request = post(Some("k"), "{}");
        *request.uri_mut() = format!("/accounts/{account}/capture").parse().unwrap();
        let answer = outer.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), is_replay(&answer)), expected, "{account}");
    }
    assert_eq!(runs.count(), 3);
}

#[tokio::test]
async fn operations_are_named_by_their_paths() {
    let names = [("/exports/{id}", "export"), ("/imports", "import")];
    for (front_end, staged, _) in staged() {
        let runs = Runs::default();
        let idempotency = idempotency();
        let layer = idempotency.http().operations(names).unwrap();
        let [named, other] = [layer.clone(), idempotency.http()].map(|layer| layer.layer(handler(&runs)));
        let request = || lambda_http::request::from_str(&staged.to_string()).unwrap();
        assert!(!is_replay(&named.clone().oneshot(request()).await.unwrap()), "{front_end}");
        assert!(is_replay(&named.oneshot(request()).await.unwrap()), "{front_end}");
        assert!(
            !is_replay(&other.oneshot(request()).await.unwrap()),
            "{front_end}: the operation has no name"
        );
        let located = layer.describe().locate(staged.to_string().as_bytes(), &Context::default(), None);
        let located = located.unwrap()[0].key.to_string();
        assert!(located.starts_with("payments/http:export#"), "{front_end}: {located}");
    }
    for invalid in [("exports", "export"), ("/a/{rest+}/b", "export"), ("/a", "no:colon"), ("/a", "")] {
        assert!(idempotency().http().operations([invalid]).is_err(), "{invalid:?}");
    }
}
