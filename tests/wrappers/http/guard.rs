//! Events and responses that `lambda_http` mishandles without the guard.

use std::cell::Cell;

use lambda_http::request::LambdaRequest;
use lambda_idempotency::lambda::http::{ProblemKind, guarded, guarded_streaming, guarded_with};
use lambda_runtime::{Context, LambdaEvent};
use proptest::prelude::*;

use super::*;

/// Returns the status and text of a streaming function's answer, which may be a refusal of the event.
async fn streamed(runs: &Runs, event: &Value) -> (u16, String) {
    use futures_util::StreamExt as _;

    recording::secrets(|secrets| secrets.add_http(event));
    let event: LambdaRequest = serde_json::from_value(event.clone()).unwrap();
    let service = guarded_streaming(idempotency().http().streaming().layer(handler(runs)));
    let answer = service.oneshot(LambdaEvent::new(event, Context::default())).await.unwrap();
    let mut stream = answer.stream;
    let mut body = Vec::new();
    while let Some(part) = stream.next().await {
        body.extend(part.unwrap());
    }
    (answer.metadata_prelude.status_code.as_u16(), String::from_utf8(body).unwrap())
}

/// Returns what the front end gets from this service.
async fn delivered<S>(service: S, event: &Value) -> Value
where
    S: Service<LambdaEvent<LambdaRequest>, Response: serde::Serialize, Error = Infallible>,
{
    recording::secrets(|secrets| secrets.add_http(event));
    let event: LambdaRequest = serde_json::from_value(event.clone()).unwrap();
    serde_json::to_value(service.oneshot(LambdaEvent::new(event, Context::default())).await.unwrap()).unwrap()
}

async fn answer(runs: &Runs, event: &Value) -> Value {
    delivered(guarded(idempotency().http().layer(handler(runs))), event).await
}

fn events() -> [Value; 5] {
    [
        include_str!("../../../events/payments/rest-api.json"),
        include_str!("../../../events/payments/http-api.json"),
        include_str!("../../../events/payments/function-url.json"),
        include_str!("../../../events/payments/alb.json"),
        include_str!("vpc-lattice.json"),
    ]
    .map(|text| serde_json::from_str(text).unwrap())
}

#[tokio::test]
async fn repeated_key_headers_are_refused() {
    let runs = Runs::default();
    let [mut event, ..] = events();
    event["multiValueHeaders"]["Idempotency-Key"] = json!(["c4n4ry-a", "c4n4ry-b"]);
    event["headers"]["Idempotency-Key"] = "c4n4ry-b".into();
    let refused = answer(&runs, &event).await;
    assert_eq!(refused["statusCode"], 400);
    assert!(refused["body"].as_str().unwrap().contains("key-invalid"));
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn readable_events_pass_unchanged() {
    for event in events() {
        let runs = Runs::default();
        assert_eq!(
            (answer(&runs, &event).await["statusCode"].as_u64(), runs.count()),
            (Some(201), 1),
            "{event}"
        );
        let runs = Runs::default();
        assert_eq!((streamed(&runs, &event).await.0, runs.count()), (201, 1), "{event}");
    }
}

#[tokio::test]
async fn api_refuses_unreadable_events_itself() {
    let layer = idempotency().http().documentation("https://api.example/keys");
    let problems = layer.clone().status(ProblemKind::RequestUnreadable, StatusCode::NOT_ACCEPTABLE);
    for mut event in events() {
        event["isBase64Encoded"] = true.into();
        event["body"] = "not base64!".into();
        let problems = problems.clone();
        let refusal = move || problems.refusal(ProblemKind::RequestUnreadable);
        let service = guarded_with(layer.clone().layer(handler(&Runs::default())), refusal);
        let refused = delivered(service, &event).await;
        let page = refused["body"].as_str().unwrap().contains("https://api.example/keys#request-unreadable");
        assert_eq!((&refused["statusCode"], page), (&json!(406), true), "{refused}");
    }
}

#[tokio::test]
async fn unreadable_events_get_400() {
    for event in events() {
        let mut bad_body = event.clone();
        bad_body["isBase64Encoded"] = true.into();
        let mut bad_host = event.clone();
        let host = if event["headers"]["host"].is_array() { json!(["a b"]) } else { "a b".into() };
        for name in ["host", "Host"] {
            if event["headers"].get(name).is_some() {
                bad_host["headers"][name] = host.clone();
            }
        }
        for bad in [bad_body, bad_host] {
            let runs = Runs::default();
            let refused = answer(&runs, &bad).await;
            assert_eq!(refused["statusCode"], 400, "{refused}");
            assert!(refused["body"].as_str().unwrap().contains("request-unreadable"));
            let (status, body) = streamed(&runs, &bad).await;
            assert_eq!((status, body.contains("request-unreadable")), (400, true), "{body}");
            assert_eq!(runs.count(), 0);
        }
    }
    let [_, mut bad_query, ..] = events();
    bad_query["rawQueryString"] = "a=b c".into();
    assert_eq!(answer(&Runs::default(), &bad_query).await["statusCode"], 400);
}

/// The layer has already converted the response for Lambda. In a second conversion, `lambda_http` would decode these
/// bytes as UTF-8, since they have no content type.
#[tokio::test]
async fn bytes_without_content_types_stay_unchanged() {
    for event in events() {
        let runs = Runs::default();
        let counted = runs.clone();
        let handler = service_fn(move |_: Request| {
            counted.0.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Infallible>(vec![0_u8, 159, 146, 150]) }
        });
        let service = guarded(idempotency().http().layer(handler));
        for _ in 0..2 {
            let answer = delivered(service.clone(), &event).await;
            assert_eq!((&answer["isBase64Encoded"], &answer["body"]), (&json!(true), &json!("AJ+Slg==")));
        }
        assert_eq!(runs.count(), 1, "{event}");
    }
}

/// The layer has already decoded the text. In a second conversion, `lambda_http` would decode it as ISO 8859-1 again.
#[tokio::test]
async fn text_is_decoded_once() {
    let runs = Runs::default();
    let counted = runs.clone();
    let router = axum::Router::new().fallback(move || {
        counted.0.fetch_add(1, Ordering::SeqCst);
        async { ([("content-type", "text/plain; charset=iso-8859-1")], vec![0xe9_u8]) }
    });
    let [_, event, ..] = events();
    let service = guarded(idempotency().http().layer(router));
    for _ in 0..2 {
        let answer = delivered(service.clone(), &event).await;
        assert_eq!((&answer["isBase64Encoded"], &answer["body"]), (&json!(false), &json!("\u{e9}")));
    }
    assert_eq!(runs.count(), 1);
}

/// If the service has no idempotency layer, the guard converts its response as `lambda_http` does.
#[tokio::test]
async fn answers_of_other_services_are_converted() {
    let text = service_fn(|_: Request| async {
        let response = Response::builder().header("content-type", "text/plain");
        Ok::<_, Infallible>(response.body(Body::Binary(b"paid".to_vec())).unwrap())
    });
    let [_, event, ..] = events();
    let answer = delivered(guarded(text), &event).await;
    assert_eq!((&answer["isBase64Encoded"], &answer["body"]), (&json!(false), &json!("paid")));
}

thread_local! {
    /// Whether a panic happened in this thread.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Hosts, paths, queries and other texts of an event, as a client or a front end may send them.
fn texts() -> impl Strategy<Value = String> {
    let odd = proptest::sample::select(vec![
        "",
        "/",
        "//",
        "#",
        "?",
        "%",
        "%00",
        "%zz",
        "@",
        ":",
        ":99999",
        "[",
        "[::1",
        "]",
        "\\",
        " ",
        "\t",
        "\u{0}",
        "<b>",
        "\"{}\"",
        "xn--0",
        "xn--",
        "..",
        "a/../..",
        "\u{e9}",
        "\u{20ac}",
        "$default",
        "1.2.3.400",
        "0x1.example",
        "<url-id>.lambda-url.eu-west-1.on.aws",
        "a b",
        "a%00b",
        "user@host",
        "host:1",
        "*",
        "http://",
        "a,b",
    ]);
    let part = prop_oneof![3 => odd.prop_map(str::to_owned), 1 => "\\PC{0,6}", 2 => "[a-z0-9./?#%&=:@\\[\\]+-]{0,8}"];
    let short = proptest::collection::vec(part, 0..4).prop_map(|parts| parts.concat());
    prop_oneof![20 => short.clone(), 1 => (short, 0..70_000_usize).prop_map(|(text, more)| text + &"%FFa".repeat(more / 4))]
}

/// An event in which these texts stand in every place from which `lambda_http` builds a URI or a body.
fn odd_event(front_end: usize, texts: &[String], is_empty_list: bool, is_base64: bool) -> Value {
    let [host, path, query, stage, value, scheme, body] = texts else { unreachable!("seven texts") };
    let mut event = if front_end == 5 {
        json!({"requestContext": {"eventType": "MESSAGE", "connectedAt": 1, "requestTimeEpoch": 1, "messageId": "m"}})
    } else {
        events()[front_end].clone()
    };
    event["rawPath"] = path.as_str().into();
    event["path"] = path.as_str().into();
    event["rawQueryString"] = query.as_str().into();
    let is_list =
        event["queryStringParameters"].as_object().is_some_and(|all| all.values().any(Value::is_array));
    let list = if is_empty_list { json!([]) } else { json!([value]) };
    event["queryStringParameters"] =
        if is_list { json!({query: list.clone()}) } else { json!({query: value}) };
    event["multiValueQueryStringParameters"] = json!({query: list});
    event["requestContext"]["stage"] = stage.as_str().into();
    event["requestContext"]["domainName"] = host.as_str().into();
    let is_list = event["headers"]["host"].is_array();
    let one = |text: &str| if is_list { json!([text]) } else { json!(text) };
    // A header's value can't have these, and the event wouldn't be read at all.
    let is_header = |text: &str| !text.bytes().any(|byte| byte < 0x20 || byte == 0x7f);
    for (name, text) in [("host", host), ("Host", host), ("x-forwarded-proto", scheme)] {
        event["headers"].as_object_mut().map(|headers| headers.remove(name));
        if is_header(text) && !text.is_empty() && name != "Host" {
            event["headers"][name] = one(text);
        }
    }
    event["body"] = body.as_str().into();
    event["isBase64Encoded"] = is_base64.into();
    event
}

/// With `panic = "abort"`, a panic ends the process, so no event may cause one, not even one that's caught.
#[test]
fn no_event_causes_a_panic() {
    recording::begin();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HAS_PANICKED.set(true);
        hook(panic);
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let service = guarded(service_fn(|_: Request| async { Ok::<_, Infallible>("seen") }));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) };
    let strategy = (0..6_usize, proptest::collection::vec(texts(), 7), any::<bool>(), any::<bool>());
    proptest!(config, |((front_end, texts, is_empty_list, is_base64) in strategy)| {
        let event = odd_event(front_end, &texts, is_empty_list, is_base64);
        let Ok(read) = serde_json::from_value::<LambdaRequest>(event.clone()) else { return Ok(()) };
        let answering = service.clone().oneshot(LambdaEvent::new(read, Context::default()));
        let answer = serde_json::to_value(runtime.block_on(answering).unwrap()).unwrap();
        prop_assert!(!HAS_PANICKED.get(), "{event}");
        let status = answer["statusCode"].as_u64();
        prop_assert!(status == Some(200) || status == Some(400), "{answer}");
    });
}

/// The guard decodes the body, so that `lambda_http` needn't.
#[tokio::test]
async fn handlers_get_the_events_body() {
    for event in events() {
        for (body, is_base64, expected) in [
            (json!("caf\u{e9}"), false, Body::Text("caf\u{e9}".into())),
            (json!("AJ+Slg=="), true, Body::Binary(vec![0, 159, 146, 150])),
            (json!(""), false, Body::Text(String::new())),
            (Value::Null, false, Body::Empty),
        ] {
            let mut event = event.clone();
            event["body"] = body;
            event["isBase64Encoded"] = is_base64.into();
            let direct = lambda_http::request::from_str(&event.to_string()).unwrap();
            assert_eq!(direct.body(), &expected);
            let seen = Arc::new(std::sync::Mutex::new(None));
            let kept = Arc::clone(&seen);
            let service = service_fn(move |request: Request| {
                *kept.lock().unwrap() = Some(request);
                async { Ok::<_, Infallible>("seen") }
            });
            let _ = delivered(guarded(service), &event).await;
            let request = seen.lock().unwrap().take().unwrap();
            assert_eq!((request.body(), request.uri()), (&expected, direct.uri()));
        }
    }
}
