//! The hook `on_replay`, which adds headers to replays.

use lambda_idempotency::{Replay, lambda::http::HttpLayer, settings::Recording};

use super::*;

fn told(layer: HttpLayer) -> HttpLayer {
    layer.on_replay(|replay: &Replay, response| {
        let said = format!("{} {}", replay.attempt(), replay.is_failure());
        response.headers_mut().insert("x-recorded-by", said.parse().unwrap());
    })
}

#[tokio::test]
async fn hooks_add_headers_to_replays_only() {
    let runs = Runs::default();
    let idempotency = idempotency();
    let (told, plain) = (told(idempotency.http()), idempotency.http());
    let first = told.layer(handler(&runs)).oneshot(post(Some("k"), "{}")).await.unwrap();
    assert!(!first.headers().contains_key("x-recorded-by"));
    for _ in 0..2 {
        let again = told.layer(handler(&runs)).oneshot(post(Some("k"), "{}")).await.unwrap();
        assert!(is_replay(&again));
        assert!(again.headers().get_all("x-recorded-by").iter().eq(["1 false"]));
        assert_eq!(again.body(), first.body());
    }
    let stored = plain.layer(handler(&runs)).oneshot(post(Some("k"), "{}")).await.unwrap();
    assert!(
        is_replay(&stored) && !stored.headers().contains_key("x-recorded-by"),
        "the record must not contain the hook's header"
    );
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn hooks_see_recorded_failures() {
    let builder = Idempotency::builder(empty_store()).function("payments");
    let idempotency = builder.settings(|s| s.on_handler_error = Recording::Record).build().unwrap();
    let service = told(idempotency.http()).layer(service_fn(|_: Request| async {
        Err::<Response<Body>, _>(std::io::Error::other("c4n4ry-down"))
    }));
    for is_again in [false, true] {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!(code(&answer), "operation-failed");
        assert_eq!(answer.headers().get("x-recorded-by").is_some_and(|said| said == "1 true"), is_again);
    }
}
