//! The OpenAPI fragment: it's a valid OpenAPI 3.1 document, and the layer's answers are as it says.

use std::{path::Path, process::Command};

use lambda_idempotency::{lambda::http::ProblemKind, settings::Recording};

use super::*;

/// An answer, as `openapi.py` reads it.
fn told(name: &str, answer: &Response<Body>) -> Value {
    let text = |value: &lambda_http::http::HeaderValue| value.to_str().unwrap().to_owned();
    let headers: std::collections::BTreeMap<_, _> =
        answer.headers().iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    json!([name, answer.status().as_u16(), headers, String::from_utf8_lossy(answer.body())])
}

/// Sends a request to a service, and returns its answer.
async fn answered<S>(service: &S, request: Request) -> Response<Body>
where
    S: Service<Request, Response = Response<Body>> + Clone,
    S::Error: std::fmt::Debug,
{
    service.clone().oneshot(request).await.unwrap()
}

/// One answer of each status in the document, and each way to get it that has its own code or headers.
async fn answers() -> Vec<Value> {
    let runs = Runs::default();
    let required = idempotency().http().required(true).layer(handler(&runs));
    let mut told_all = Vec::new();
    for (name, request) in [
        ("first", post(Some("k"), "{}")),
        ("replay", post(Some("\"k\""), "{}")),
        ("reused", post(Some("k"), "[]")),
        ("missing", post(None, "{}")),
        ("malformed", post(Some("\"open"), "{}")),
        ("too large", post(Some("large"), &"x".repeat(10 * 1024 * 1024 + 1))),
    ] {
        told_all.push(told(name, &answered(&required, request).await));
    }
    let down = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    told_all.push(told("down", &answered(&down.http().layer(handler(&runs)), post(Some("k"), "{}")).await));
    let of_caller = down.http().require_caller(true).layer(handler(&runs));
    told_all.push(told("no caller", &answered(&of_caller, post(Some("k"), "{}")).await));

    let builder = || Idempotency::builder(empty_store()).function("payments");
    let recording_errors = builder().settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
    let fails = |_: Request| async { Err::<&str, _>(std::io::Error::other("c4n4ry-out of stock")) };
    told_all.push(told(
        "failed",
        &answered(&recording_errors.http().layer(service_fn(fails)), post(Some("k"), "{}")).await,
    ));

    let forgetting = builder().settings(|s| s.max_response = 0).build().unwrap().http().layer(handler(&runs));
    answered(&forgetting, post(Some("k"), "{}")).await;
    told_all.push(told("not retained", &answered(&forgetting, post(Some("k"), "{}")).await));

    let (started, release) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let gates = (started.clone(), release.clone());
    let held = idempotency().http().layer(service_fn(move |_: Request| {
        let (started, release) = gates.clone();
        async move {
            started.notify_one();
            release.notified().await;
            Ok::<_, Infallible>("paid")
        }
    }));
    let first = tokio::spawn(held.clone().oneshot(post(Some("k"), "{}")));
    started.notified().await;
    told_all.push(told("in progress", &answered(&held, post(Some("k"), "{}")).await));
    release.notify_one();
    first.await.unwrap().unwrap();
    told_all
}

/// Texts of the header, each with whether the layer accepts it as a key.
async fn keys() -> Vec<(String, bool)> {
    let (runs, mut told) = (Runs::default(), Vec::new());
    let required = idempotency().http().required(true).layer(handler(&runs));
    let quoted = |text: &str| format!("\"{text}\"");
    let mut texts: Vec<String> =
        ["k", "", "a b", "a,b", "a;b", "a\\b", "\"open", "\"", "\"\"", "a\"b", "'k'"]
            .map(str::to_owned)
            .into();
    texts.extend([255, 256, 257, 258].map(|length| "x".repeat(length)));
    texts.extend([255, 256].map(|length| quoted(&"x".repeat(length))));
    texts.extend([255, 256].map(|length| quoted(&"\\\"".repeat(length))));
    texts.extend(["a b", "   ", " a", "a\"b", "a\\\"b", "a\\\\b", "a\\n", "a\\", "a,b;c"].map(quoted));
    for text in texts {
        let request = lambda_http::http::Request::post("/payments").header("idempotency-key", &text);
        let answer = answered(&required, request.body(Body::Empty).unwrap()).await;
        told.push((text, answer.status() != 400));
    }
    told
}

/// Returns what the check of this document and these answers prints. `None` if the validator isn't installed.
fn checked(document: &Path, keys: &[(String, bool)], answers: &[Value]) -> Option<String> {
    let python = testkit::tools::python()?;
    let file = std::env::temp_dir().join(format!("openapi-answers-{}.json", std::process::id()));
    let codes: std::collections::BTreeMap<_, _> =
        ProblemKind::ALL.iter().map(|kind| (kind.code(), kind.status().as_str().to_owned())).collect();
    let told = json!({ "codes": codes, "keys": keys, "answers": answers });
    std::fs::write(&file, told.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrappers/http/openapi.py");
    let checked = Command::new(python).arg(script).arg(document).arg(&file).output().unwrap();
    std::fs::remove_file(file).unwrap();
    assert_eq!(String::from_utf8_lossy(&checked.stderr), "");
    Some(String::from_utf8(checked.stdout).unwrap().trim().to_owned())
}

#[tokio::test]
async fn answers_are_as_openapi_says() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/openapi.yaml");
    let (keys, answers) = (keys().await, answers().await);
    let Some(faults) = checked(&document, &keys, &answers) else { return };
    assert_eq!(faults, "");

    // The check finds a fault of each kind.
    let text = std::fs::read_to_string(&document).unwrap();
    for (part, broken, fault) in [
        ("{1,255}\"|", "+\"|", "': accepted is False"),
        ("operationId: createPayment", "operationId: [1]", "the document: "),
        ("enum: [in-progress,", "enum: [", "in progress: 'in-progress' is not one of"),
        ("const: \"true\"", "const: \"false\"", "replay: idempotent-replayed: 'false' was expected"),
        ("maximum: 5", "maximum: 4", "in progress: retry-after: 5 is greater than the maximum of 4"),
        ("\"422\":", "\"423\":", "reused: the status 422 isn't in the document"),
        ("enum: [caller-missing, ", "enum: [", "no caller: 'caller-missing' is not one of"),
        (", misconfigured]", "]", "the codes are {"),
        ("required: [type,", "required: [instance, type,", "down: 'instance' is a required property"),
    ] {
        assert!(text.contains(part), "{part}");
        let file = std::env::temp_dir().join(format!("openapi-broken-{}.yaml", std::process::id()));
        std::fs::write(&file, text.replace(part, broken)).unwrap();
        let faults = checked(&file, &keys, &answers).unwrap();
        std::fs::remove_file(file).unwrap();
        assert!(faults.contains(fault), "{broken}: {faults}");
    }
}
