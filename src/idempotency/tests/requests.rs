//! HTTP requests whose failure isn't recorded, replays that can't be read, and the request of `warm_up`.

use std::convert::Infallible;

use lambda_http::{Body, Request, Response};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;
use crate::{Idempotency, settings::Mode};

fn post() -> Request {
    let mut request = Request::new(Body::from("{}"));
    *request.method_mut() = ::http::Method::POST;
    request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    request
}

/// The problem type `operation-failed` tells the client that the operation won't run again. That's true only if the
/// failure is recorded.
#[tokio::test(start_paused = true)]
async fn only_recorded_failures_return_operation_failed() {
    for (script, is_recorded) in [
        (vec![], true),
        // The settlement fails.
        (vec![Script::Pass, Meets(Fault::Throttle)], false),
        // The claim fails, and the handler runs without protection.
        (vec![Meets(Fault::Throttle)], false),
    ] {
        let bench = Bench::with(|builder| {
            builder.settings(|s| {
                s.on_handler_error = Recording::Record;
                s.settle_within = Duration::ZERO;
                s.fail_open = true;
            })
        });
        let failing = service_fn(async |_: Request| Err::<Response<Body>, _>(TestError));
        let service = bench.idempotency.http().layer(failing);
        bench.store.script(script.clone());
        let events = bench.recorded(async {
            match service.oneshot(post()).await {
                Ok(answer) => {
                    let body = String::from_utf8_lossy(answer.body()).into_owned();
                    assert!(is_recorded && body.contains("operation-failed"), "{script:?}: {body}");
                }
                Err(TestError) => assert!(!is_recorded, "{script:?}"),
            }
        });
        let events = events.await;
        let is_logged = events.iter().any(|event| event.contains(r#"event="failure_recorded""#));
        assert_eq!(is_logged, is_recorded, "{script:?}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_http_replays_are_logged() {
    let bench = Bench::new();
    let paid = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::Empty)));
    let service = bench.idempotency.http().layer(paid);
    assert_eq!(service.clone().oneshot(post()).await.unwrap().status(), 200);
    let (key, mut record) = bench.store.inner.all().remove(0);
    record.state = State::Completed(Outcome::Retained(StoredResponse::new("not a response".into())));
    bench.store.inner.set(&key, Some(record));
    let again = async {
        let answer = service.oneshot(post()).await.unwrap();
        assert!(String::from_utf8_lossy(answer.body()).contains("record-unreadable"));
    };
    let events = bench.recorded(again).await;
    let refused = |event: &&String| event.contains(r#"event="refused""#) && event.contains(key.as_str());
    let refused = events.iter().find(refused).unwrap_or_else(|| panic!("no refusal in {events:?}"));
    assert!(refused.contains("Corrupt") && refused.contains("version 1"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn warm_up_reads_once_and_never_fails() {
    let warmed = async |bench: &Bench| {
        let events = bench.recorded(bench.idempotency.warm_up()).await;
        (bench.store.take_calls().join(" "), events.iter().any(|event| event.contains(r#"event="not_warm""#)))
    };
    let bench = Bench::new();
    assert_eq!(warmed(&bench).await, ("read".into(), false));
    bench.store.script([Meets(Fault::Throttle)]);
    assert_eq!(warmed(&bench).await, ("read".into(), true));
    // A store that doesn't answer holds the init up for a second.
    bench.store.script([Meets(Fault::Silence)]);
    let before = tokio::time::Instant::now();
    assert_eq!(warmed(&bench).await, ("read".into(), true));
    assert_eq!(before.elapsed(), Duration::from_secs(1));
    assert_eq!(warmed(&Bench::with(|builder| builder.mode(Mode::Off))).await, (String::new(), false));
    let snapshotted = |name| (name == "AWS_LAMBDA_INITIALIZATION_TYPE").then(|| "snap-start".to_owned());
    let builder = Idempotency::builder(bench.store.clone()).function("tests");
    builder.build_in(snapshotted).unwrap().warm_up().await;
    assert!(bench.store.take_calls().is_empty(), "a snapshot's connections would be dead");
}
