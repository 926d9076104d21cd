//! Events and responses that `lambda_http` mishandles without the guard.

use lambda_http::request::LambdaRequest;
use lambda_idempotency::lambda::http::{guarded, guarded_streaming};
use lambda_runtime::{Context, LambdaEvent};

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
