//! Keys from the request's body or from a closure, instead of the header.

use lambda_http::http::HeaderValue;
use lambda_idempotency::{Error, Key, KeyFields, lambda::http::HttpLayer};

use super::*;

fn by_field() -> HttpLayer {
    idempotency().http().key_fields(KeyFields::new(["/order/id"]).unwrap())
}

/// Returns a request without a key in a header.
fn order(body: &str) -> Request {
    post(None, body)
}

async fn answered(layer: &HttpLayer, runs: &Runs, request: Request) -> (u16, Option<String>, Response<Body>) {
    let response = layer.layer(handler(runs)).oneshot(request).await.unwrap();
    let is_problem = response.headers()["content-type"] == "application/problem+json";
    (response.status().as_u16(), is_problem.then(|| code(&response)), response)
}

fn field(response: &Response<Body>) -> Value {
    serde_json::from_slice::<Value>(response.body()).unwrap()["field"].clone()
}

#[tokio::test]
async fn body_fields_replace_the_header() {
    let runs = Runs::default();
    let layer = idempotency().http().key_fields(KeyFields::new(["/user", "/product"]).unwrap());
    let first = r#"{"user":"c4n4ry-u1","product":"c4n4ry-p1","cents":5}"#;
    let (_, _, answer) = answered(&layer, &runs, order(first)).await;
    assert!(!is_replay(&answer));
    let (_, _, again) =
        answered(&layer, &runs, order(r#"{"cents":5, "product":"c4n4ry-p1","user":"c4n4ry-u1"}"#)).await;
    assert!(is_replay(&again));
    assert_eq!((answer.body(), runs.count()), (again.body(), 1));
    let (status, code, _) = answered(&layer, &runs, order(&first.replace('5', "6"))).await;
    assert_eq!((status, code.as_deref(), runs.count()), (422, Some("key-reused"), 1));
    let (status, _, _) = answered(&layer, &runs, order(&first.replace("p1", "p2"))).await;
    assert_eq!((status, runs.count()), (201, 2));
}

#[tokio::test]
async fn jmespath_expressions_select_keys() {
    let runs = Runs::default();
    let layer = idempotency().http().key_fields(KeyFields::new(["[user, product]"]).unwrap());
    for (product, runs_by_then) in [("c4n4ry-1", 1), ("c4n4ry-1", 1), ("c4n4ry-2", 2)] {
        let body = format!(r#"{{"user":"c4n4ry-u","product":"{product}"}}"#);
        assert_eq!(answered(&layer, &runs, order(&body)).await.0, 201);
        assert_eq!(runs.count(), runs_by_then);
    }
}

#[tokio::test]
async fn headers_win_over_body_keys() {
    let runs = Runs::default();
    let body = r#"{"order":{"id":"c4n4ry-17"}}"#;
    let layer = by_field();
    for (key, runs_by_then) in [("one", 1), ("two", 2), ("one", 2)] {
        let (status, _, _) = answered(&layer, &runs, post(Some(key), body)).await;
        assert_eq!((status, runs.count()), (201, runs_by_then), "{key}");
    }
    let (status, code, answer) = answered(&layer, &runs, post(Some("\"open"), body)).await;
    assert_eq!((status, code.as_deref()), (400, Some("key-invalid")));
    assert_eq!((field(&answer), runs.count()), (Value::Null, 2), "a malformed header isn't ignored");
}

#[tokio::test]
async fn header_and_body_keys_stay_separate() {
    let service = by_field().layer(service_fn(|_: Request| async {
        let key = current().unwrap().key().as_str().to_owned();
        Ok::<_, Infallible>(
            Response::builder().header("x-record", key).body(Body::from("c4n4ry-paid")).unwrap(),
        )
    }));
    let body = r#"{"order":{"id":"c4n4ry-17"}}"#;
    for (key, operation) in [(Some("17"), "payments/http#"), (None, "payments/http-body#")] {
        let answer = service.clone().oneshot(post(key, body)).await.unwrap();
        assert!(!is_replay(&answer));
        let record = answer.headers()["x-record"].to_str().unwrap();
        assert!(record.starts_with(operation), "{record}");
        assert!(is_replay(&service.clone().oneshot(post(key, body)).await.unwrap()));
    }
}

#[tokio::test]
async fn missing_body_fields_count_as_missing_keys() {
    let runs = Runs::default();
    let (optional, required) = (by_field(), by_field().required(true));
    let mut form = order("a=b&order=c4n4ry");
    form.headers_mut().insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded"));
    let bodies = ["", " \n", "{}", r#"{"order":{"id":null}}"#, r#"{"order":{"id":" "}}"#, "[1]"].map(order);
    for (nth, request) in bodies.into_iter().chain([form]).enumerate() {
        for again in 0..2 {
            let (status, _, answer) = answered(&optional, &runs, request.clone()).await;
            assert_eq!((status, is_replay(&answer)), (201, false));
            assert_eq!(runs.count(), 2 * nth + again + 1, "{request:?} must run without a key");
        }
        let (status, code, answer) = answered(&required, &runs, request).await;
        assert_eq!((status, code.as_deref()), (400, Some("key-missing")));
        assert_eq!((field(&answer), runs.count()), ("/order/id".into(), 2 * (nth + 1)));
    }
    let all = idempotency()
        .http()
        .required(true)
        .key_fields(KeyFields::new(["/user", "/order/id"]).unwrap().all_required());
    let (status, _, answer) = answered(&all, &runs, order(r#"{"user":"c4n4ry-u"}"#)).await;
    assert_eq!(
        (status, field(&answer)),
        (400, "/order/id".into()),
        "the problem must name the missing field"
    );
}

#[tokio::test]
async fn unreadable_body_keys_get_400() {
    let runs = Runs::default();
    for body in ["c4n4ry no JSON", r#"{"order":{"id":"c4n4ry-1"}"#, r#"{"order":{"id":1,"id":2}}"#] {
        let (status, code, answer) = answered(&by_field(), &runs, order(body)).await;
        assert_eq!((status, code.as_deref(), runs.count()), (400, Some("key-invalid"), 0), "{body}");
        assert_eq!(field(&answer), "/order/id");
    }
    // A JSON body with another content type is protected too.
    let mut text = order(r#"{"order":{"id":"c4n4ry-1"}}"#);
    text.headers_mut().insert("content-type", HeaderValue::from_static("text/plain;charset=UTF-8"));
    let layer = by_field();
    for is_again in [false, true] {
        assert_eq!(is_replay(&answered(&layer, &runs, text.clone()).await.2), is_again);
    }
}

#[tokio::test]
async fn closures_take_keys_from_requests() {
    let runs = Runs::default();
    let layer = idempotency().http().key(|request, body| -> Result<Option<Key>, Error> {
        match (request.headers.get("x-delivery"), body) {
            (Some(id), _) => Key::new(id.to_str().unwrap()).map(Some),
            (None, b"bad") => Err(Key::new("").unwrap_err()),
            (None, _) => Ok(None),
        }
    });
    let delivery = || with_header(order("{}"), "x-delivery", "c4n4ry-1");
    assert!(!is_replay(&answered(&layer, &runs, delivery()).await.2));
    assert!(is_replay(&answered(&layer, &runs, delivery()).await.2));
    assert_eq!(answered(&layer, &runs, order("{}")).await.0, 201, "a request without a key runs unprotected");
    let (status, code, answer) = answered(&layer, &runs, order("bad")).await;
    assert_eq!((status, code.as_deref(), field(&answer)), (400, Some("key-invalid"), Value::Null));
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn body_keys_belong_to_their_caller() {
    let runs = Runs::default();
    let layer = by_field().caller(|request| Ok(request.extensions.get::<String>().cloned()));
    for (caller, runs_by_then) in [("c4n4ry-anna", 1), ("c4n4ry-otto", 2), ("c4n4ry-anna", 2)] {
        recording::secrets(|secrets| secrets.add(caller));
        let mut request = order(r#"{"order":{"id":"c4n4ry-17"}}"#);
        request.extensions_mut().insert(caller.to_owned());
        assert_eq!(answered(&layer, &runs, request).await.0, 201);
        assert_eq!(runs.count(), runs_by_then);
    }
    let signed = |body: &str| with_header(order(body), "authorization", "Bearer c4n4ry-token-of-a-caller");
    let (status, code, _) = answered(&by_field(), &runs, signed(r#"{"order":{"id":"c4n4ry-17"}}"#)).await;
    assert_eq!((status, code.as_deref(), runs.count()), (500, Some("caller-unknown"), 2));
    assert_eq!(answered(&by_field(), &runs, signed("{}")).await.0, 201, "a keyless request needs no caller");
}

#[tokio::test]
async fn bodies_are_read_once_and_whole() {
    use axum::{Router, routing};
    async fn echo(request: axum::extract::Request) -> String {
        let body = axum::body::to_bytes(request.into_body(), 1000).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }
    let layer = by_field().max_body(64);
    let app = Router::new().route("/orders", routing::post(echo)).layer(layer);
    let send = |body: &str| {
        recording::secrets(|secrets| secrets.add_body(body));
        let chunks: Vec<_> =
            body.as_bytes().chunks(7).map(|part| Ok::<_, Infallible>(part.to_vec())).collect();
        let body = axum::body::Body::from_stream(futures_util::stream::iter(chunks));
        app.clone().oneshot(lambda_http::http::Request::post("/orders").body(body).unwrap())
    };
    for body in [r#"{"order":{"id":"c4n4ry-a"}}"#, r#"{"order":{"id":"c4n4ry-a"}}"#, r#"{"order":"c4n4ry"}"#]
    {
        let answer = send(body).await.unwrap();
        let answer = axum::body::to_bytes(answer.into_body(), 1000).await.unwrap();
        assert_eq!(answer, body.as_bytes());
    }
    let large = format!(r#"{{"order":{{"id":"{}"}}}}"#, "c4n4ry-".repeat(10));
    assert_eq!(send(&large).await.unwrap().status(), 413);
}

#[tokio::test]
async fn streaming_layers_take_body_keys() {
    let runs = Runs::default();
    let service = by_field().streaming().layer(handler(&runs));
    for is_again in [false, true] {
        let answer = service.clone().oneshot(order(r#"{"order":{"id":"c4n4ry-1"}}"#)).await.unwrap();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), is_again);
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn concurrent_duplicates_with_body_keys_get_409() {
    let (started, release) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let gates = (started.clone(), release.clone());
    let service = by_field().layer(service_fn(move |_: Request| {
        let (started, release) = gates.clone();
        async move {
            started.notify_one();
            release.notified().await;
            Ok::<_, Infallible>("paid")
        }
    }));
    let request = || order(r#"{"order":{"id":"c4n4ry-1"}}"#);
    let first = tokio::spawn(service.clone().oneshot(request()));
    started.notified().await;
    let second = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((second.status().as_u16(), code(&second).as_str()), (409, "in-progress"));
    let problem = String::from_utf8(second.body().to_vec()).unwrap();
    assert!(
        !problem.contains("Idempotency-Key"),
        "the problem must not name a header that the client didn't send: {problem}"
    );
    release.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}
