//! Pages of other origins read the function's answers, their replays, and the layer's own answers.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::front_ends::{FRONT_ENDS, POST, Sent, event, set_header};

use super::{
    bench::{Function, Lambda, Posted, posted},
    http_events::{header, status},
    settings::delivered,
};

const SHOP: &str = "https://shop.example";
const OTHER: &str = "https://other.example";
const HEADERS: [&str; 4] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-expose-headers",
    "vary",
];

fn from(front_end: &str, origin: Option<&str>, sent: Sent) -> String {
    let mut request = event(front_end, sent);
    set_header(&mut request, "origin", origin);
    request.to_string()
}

/// A function's response with its own CORS headers, in the form that the front end takes.
fn own(front_end: &str, allowed: &str) -> String {
    let headers = [(HEADERS[0], allowed), (HEADERS[2], "x-receipt"), (HEADERS[3], "Origin, Accept")];
    let several: Value = headers.iter().map(|(name, value)| ((*name).to_owned(), json!([value]))).collect();
    let one: Value = headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    match front_end {
        "rest-api" | "alb" => json!({ "statusCode": 201, "multiValueHeaders": several, "body": "paid" }),
        _ => json!({ "statusCode": 201, "headers": one, "body": "paid" }),
    }
    .to_string()
}

/// The CORS headers and `Vary`.
fn found(answer: &Posted) -> [Option<String>; 4] {
    HEADERS.map(|name| header(answer, name))
}

fn owned(values: [Option<&str>; 4]) -> [Option<String>; 4] {
    values.map(|value| value.map(str::to_owned))
}

#[tokio::test]
async fn replays_are_readable_for_the_recorded_origin() {
    let kept = |allowed| [Some(allowed), None, Some("x-receipt"), Some("Origin, Accept")];
    let dropped = [None, None, None, Some("Accept")];
    for front_end in FRONT_ENDS {
        for (allowed, origin, expected) in [
            (SHOP, Some(SHOP), kept(SHOP)),
            (SHOP, Some(OTHER), dropped),
            (SHOP, None, dropped),
            ("*", Some(OTHER), kept("*")),
            ("*", None, kept("*")),
            ("null", Some("null"), dropped),
        ] {
            let lambda = Lambda::start().await;
            let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "header")]).await;
            let own = own(front_end, allowed);
            let first = delivered(&lambda, &function, &from(front_end, Some(SHOP), POST), &own).await;
            assert_eq!((first.0, first.1.text()), (true, own.clone()));
            let (runs, replay) = delivered(&lambda, &function, &from(front_end, origin, POST), &own).await;
            assert_eq!((runs, status(&replay)), (false, 201), "{front_end}");
            assert_eq!(found(&replay), owned(expected), "{front_end}, {allowed}, {origin:?}");
        }
    }
}

#[tokio::test]
async fn replay_marker_is_exposed_to_listed_origins() {
    for (marker, expected) in
        [("idempotent-replayed", "x-receipt, idempotent-replayed"), ("x-again", "x-receipt, x-again")]
    {
        let lambda = Lambda::start().await;
        let settings = [
            ("IDEMPOTENCY_KEY", "header"),
            ("IDEMPOTENCY_CORS", SHOP),
            ("IDEMPOTENCY_REPLAY_MARKER", marker),
        ];
        let function = Function::start(&lambda, &settings).await;
        let (request, own) = (from("http-api", Some(SHOP), POST), own("http-api", SHOP));
        delivered(&lambda, &function, &request, &own).await;
        let (_, replay) = delivered(&lambda, &function, &request, &own).await;
        assert_eq!(header(&replay, HEADERS[2]).as_deref(), Some(expected));
        assert_eq!(header(&replay, marker).as_deref(), Some("true"));
    }
}

/// The events to which the layer gives its own answers, and their statuses.
fn refused(front_end: &str, origin: Option<&str>) -> Vec<(String, u64)> {
    let mut broken = event(front_end, POST);
    set_header(&mut broken, "origin", origin);
    broken["isBase64Encoded"] = true.into();
    broken["body"] = "not base64!".into();
    let mut unknown = event("alb", POST);
    set_header(&mut unknown, "origin", origin);
    set_header(&mut unknown, "authorization", Some("Bearer 1"));
    vec![
        (from(front_end, origin, Sent { body: "{}", ..POST }), 422),
        (from(front_end, origin, Sent { key: Some(""), ..POST }), 400),
        (from(front_end, origin, Sent { key: None, ..POST }), 400),
        (broken.to_string(), 400),
        (unknown.to_string(), 500),
    ]
}

#[tokio::test]
async fn own_answers_are_readable_for_listed_origins() {
    let exposed = "idempotent-replayed, retry-after, link";
    let allowed = [Some(SHOP), Some("true"), Some(exposed), Some("origin")];
    let others = [None, None, None, Some("origin")];
    for front_end in FRONT_ENDS {
        for (cors, origin, expected) in [
            (Some("https://till.example, https://shop.example"), Some(SHOP), allowed),
            (Some(SHOP), Some(OTHER), others),
            (Some(SHOP), Some("https://shop.example.evil.test"), others),
            (Some(SHOP), Some("null"), others),
            (Some(SHOP), None, others),
            (None, Some(SHOP), [None; 4]),
        ] {
            let lambda = Lambda::start().await;
            let usual = [("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_ON_MISSING_KEY", "refuse")];
            let settings: Vec<_> =
                usual.into_iter().chain(cors.map(|cors| ("IDEMPOTENCY_CORS", cors))).collect();
            let function = Function::start(&lambda, &settings).await;
            let first = lambda.deliver(from(front_end, Some(SHOP), POST));
            let next = function.next().await;
            let again = lambda.deliver(from(front_end, origin, POST));
            assert!(function.gets_nothing().await);
            let again = posted(again).await;
            assert_eq!((status(&again), header(&again, "retry-after").is_some()), (409, true));
            assert_eq!(found(&again), owned(expected), "{front_end}, {cors:?}, {origin:?}: {again:?}");
            function.respond(&next, own(front_end, SHOP)).await;
            posted(first).await;
            for (refused, code) in refused(front_end, origin) {
                let (runs, answer) = delivered(&lambda, &function, &refused, "never").await;
                assert_eq!((runs, status(&answer)), (false, code), "{front_end}: {answer:?}");
                assert_eq!(found(&answer), owned(expected), "{front_end}, {cors:?}, {origin:?}: {answer:?}");
            }
        }
    }
}

/// The table's address refuses connections, so the layer answers 503 shortly before the deadline.
#[tokio::test]
async fn outages_are_readable_for_listed_origins() {
    let lambda = Lambda::start().await;
    let settings = [
        ("IDEMPOTENCY_KEY", "header"),
        ("IDEMPOTENCY_CORS", SHOP),
        ("IDEMPOTENCY_TABLE", "records"),
        ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let function = Function::start(&lambda, &settings).await;
    let answer = lambda.deliver_with(from("rest-api", Some(SHOP), POST), Duration::from_secs(2), &[]);
    function.gets_nothing_until(tokio::time::sleep(Duration::from_secs(2))).await;
    let answer = posted(answer).await;
    assert_eq!((status(&answer), header(&answer, HEADERS[0]).as_deref()), (503, Some(SHOP)), "{answer:?}");
}

#[tokio::test]
async fn streamed_answers_have_cors_headers_too() {
    let lambda = Lambda::start().await;
    let settings =
        [("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_STREAMING", "true"), ("IDEMPOTENCY_CORS", SHOP)];
    let function = Function::start(&lambda, &settings).await;
    let head = json!({ "statusCode": 201, "headers": { "access-control-allow-origin": SHOP } });
    let stream = format!("{head}{}paid", "\0".repeat(8));
    let types = [
        ("content-type", "application/vnd.awslambda.http-integration-response"),
        ("lambda-runtime-function-response-mode", "streaming"),
    ];
    let first = lambda.deliver(from("function-url", Some(SHOP), POST));
    function.post(&function.next().await, "response", &types, stream.into()).await;
    posted(first).await;
    for (origin, body, code, allowed) in [
        (SHOP, POST.body, 201, Some(SHOP)),
        (OTHER, POST.body, 201, None),
        (SHOP, "{}", 422, Some(SHOP)),
        (OTHER, "{}", 422, None),
    ] {
        let answer = lambda.deliver(from("function-url", Some(origin), Sent { body, ..POST }));
        assert!(function.gets_nothing().await);
        let answer = posted(answer).await.text();
        let head: Value = serde_json::from_str(answer.split('\0').next().unwrap()).unwrap();
        let found = head["headers"]["access-control-allow-origin"].as_str();
        assert_eq!((head["statusCode"].as_u64(), found), (Some(code), allowed), "{answer}");
    }
}

#[tokio::test]
async fn preflights_reach_the_function() {
    let lambda = Lambda::start().await;
    let function =
        Function::start(&lambda, &[("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_CORS", SHOP)]).await;
    for _ in 0..2 {
        let preflight = from("rest-api", Some(SHOP), Sent { method: "OPTIONS", key: None, ..POST });
        let (runs, answer) = delivered(&lambda, &function, &preflight, r#"{"statusCode":204}"#).await;
        assert_eq!((runs, answer.text()), (true, r#"{"statusCode":204}"#.to_owned()));
    }
}
