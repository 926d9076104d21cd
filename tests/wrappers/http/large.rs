//! Responses that the front end can't deliver.

use std::{convert::Infallible, sync::atomic::Ordering};

use lambda_http::{Body, Request, Response, http::StatusCode, tower::ServiceExt as _};
use lambda_idempotency::Idempotency;
use serde_json::Value;
use testkit::hooked::store_that_is_down;
use tower::{Layer as _, service_fn};

use super::{Runs, code, idempotency, is_replay};
use crate::{
    front_ends::{POST, event},
    recording,
};

/// Returns the status, problem type and body length of a call and of its duplicate.
async fn twice(front_end: &str, body: Body) -> [(StatusCode, Option<String>, usize); 2] {
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = service_fn(move |_: Request| {
        let _ = counted.0.fetch_add(1, Ordering::SeqCst);
        let response = Response::new(body.clone());
        async move { Ok::<_, Infallible>(response) }
    });
    let service = idempotency().http().shared_namespace().layer(handler);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = lambda_http::request::from_str(&event(front_end, POST).to_string()).unwrap();
        let answer = service.clone().oneshot(request).await.unwrap();
        let problem = serde_json::from_slice::<Value>(answer.body()).ok();
        let problem = problem.and_then(|problem| problem["type"].as_str().map(str::to_owned));
        answers.push((answer.status(), problem, answer.body().len()));
    }
    assert_eq!(runs.count(), 1);
    answers.try_into().unwrap()
}

/// The body alone is as large as the limit. The limit applies to the whole response as JSON, so the response is too
/// large.
#[tokio::test]
async fn load_balancer_limit_is_one_mebibyte() {
    for (status, problem, _) in twice("alb", Body::Text("x".repeat(1024 * 1024))).await {
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(problem.unwrap().ends_with("not-retained"));
    }
}

#[tokio::test]
async fn undeliverable_responses_are_not_retained() {
    const MB: usize = 1024 * 1024;
    let text = |bytes| Body::Text("x".repeat(bytes));
    // JSON encodes each quote in two bytes.
    let quotes = |bytes| Body::Text("\"".repeat(bytes));
    let binary = |bytes| Body::Binary(vec![0xff; bytes]);
    for (front_end, body, is_delivered) in [
        ("alb", text(MB / 4), true),
        ("alb", quotes(MB * 3 / 5), false),
        ("alb", binary(MB * 4 / 5), false),
        ("http-api", text(MB), true),
        ("http-api", binary(5 * MB), false),
        ("rest-api", text(6 * MB + 100), false),
        ("function-url", text(6 * MB + 100), false),
    ] {
        let length = body.len();
        for (status, problem, bytes) in twice(front_end, body).await {
            if is_delivered {
                assert_eq!((status, bytes), (StatusCode::OK, length), "{front_end:?}");
            } else {
                assert_eq!(status, StatusCode::CONFLICT, "{front_end:?}, {length} bytes");
                assert!(problem.unwrap().ends_with("not-retained"));
            }
        }
    }
}

/// The store is down, and with `fail_open` the handler still runs. Nothing is recorded, so the next request, in another
/// process, runs again, and no answer may say that the operation is done.
#[tokio::test]
async fn unrecorded_undeliverable_responses_become_outcome_unknown() {
    let done = || Response::new(Body::from("done"));
    for has_answer in [false, true] {
        let runs = Runs::default();
        for nth in 1..=2 {
            let idempotency = Idempotency::builder(store_that_is_down())
                .function("payments")
                .settings(|s| s.fail_open = true)
                .build()
                .unwrap();
            recording::shown(&idempotency);
            let layer = idempotency.http().shared_namespace();
            let layer = if has_answer { layer.on_not_retained(done) } else { layer };
            let counted = runs.clone();
            let handler = service_fn(move |_: Request| {
                let _ = counted.0.fetch_add(1, Ordering::SeqCst);
                async { Ok::<_, Infallible>(Response::new(Body::Text("x".repeat(1_100_000)))) }
            });
            let service = layer.layer(handler);
            let request = lambda_http::request::from_str(&event("alb", POST).to_string()).unwrap();
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!((answer.status(), code(&answer).as_str()), (StatusCode::CONFLICT, "outcome-unknown"));
            assert!(!is_replay(&answer));
            assert_eq!(runs.count(), nth);
            // The same process never runs the key unprotected a second time.
            let request = lambda_http::request::from_str(&event("alb", POST).to_string()).unwrap();
            let again = service.oneshot(request).await.unwrap();
            assert_eq!(code(&again), "store-unavailable");
        }
    }
}

/// A load balancer delivers less than an HTTP API. The record stays, and is replayed where it fits.
#[tokio::test]
async fn replays_too_large_here_are_refused() {
    let idempotency = idempotency();
    let runs = Runs::default();
    let handler = |counted: Runs| {
        service_fn(move |_: Request| {
            let _ = counted.0.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Infallible>(Response::new(Body::Text("x".repeat(1_200_000)))) }
        })
    };
    let layer = || idempotency.http().shared_namespace().caller(|_| Ok(None)).key_alone(true);
    let service = layer().layer(handler(runs.clone()));
    let send = async |front_end: &str| {
        let request = lambda_http::request::from_str(&event(front_end, POST).to_string()).unwrap();
        service.clone().oneshot(request).await.unwrap()
    };
    assert_eq!(send("http-api").await.status(), StatusCode::OK);
    for _ in 0..2 {
        let refused = send("alb").await;
        assert_eq!((refused.status(), code(&refused).as_str()), (StatusCode::CONFLICT, "not-retained"));
        let problem: Value = serde_json::from_slice(refused.body()).unwrap();
        assert_eq!(problem["title"], "The operation is done, but its response is too large here");
        let replayed = send("http-api").await;
        assert_eq!((is_replay(&replayed), replayed.body().len()), (true, 1_200_000));
    }
    assert_eq!(runs.count(), 1);
    let layer = layer().on_not_retained(|| Response::new(Body::from("done")));
    let request = lambda_http::request::from_str(&event("alb", POST).to_string()).unwrap();
    let substitute = layer.layer(handler(runs.clone())).oneshot(request).await.unwrap();
    assert_eq!((is_replay(&substitute), substitute.body()), (true, &Body::from("done")));
}
