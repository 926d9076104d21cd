//! One key per operation: generated, given by the caller, or already in the request.

use lambda_http::http::Extensions;
use lambda_idempotency::{
    ErrorKind, Key,
    client::{self, IdempotentRequests},
};
use reqwest::{Method, header::HeaderName};

use super::{
    http_server::Reply,
    stage::{BODY, Stage, StageClock, answer, answer_with},
};

#[tokio::test]
async fn all_attempts_share_the_generated_key() {
    let stage = Stage::new([Reply::Dropped, answer(503), answer(429)]).await;
    let response = stage.payment().send().await.unwrap();
    assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(4)));
    let key = client::operation_key(&response).unwrap();
    assert_eq!(key.as_str().len(), 36);
    assert_eq!(stage.keys(), vec![Some(format!("\"{}\"", key.as_str())); 4]);
    for request in stage.received() {
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/payments"));
        assert_eq!(request.body, BODY.as_bytes());
    }
}

#[tokio::test]
async fn each_operation_has_its_own_key() {
    let stage = Stage::new([]).await;
    let client = stage.client();
    for _ in 0..3 {
        client.post(stage.server.url("/")).send().await.unwrap();
    }
    let mut keys = stage.keys();
    keys.dedup();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(Option::is_some));
}

#[tokio::test]
async fn given_keys_are_sent_quoted() {
    let stage = Stage::new([answer(500)]).await;
    let key = Key::new(r#"order "17""#).unwrap();
    let response = stage.payment().with_extension(key.clone()).send().await.unwrap();
    assert_eq!(client::operation_key(&response), Some(&key));
    assert_eq!(stage.keys(), vec![Some(r#""order \"17\"""#.into()); 2]);
}

/// Many APIs take a bare UUID, and count quotes as part of the key.
#[tokio::test]
async fn bare_keys_have_no_quotes() {
    let stage = Stage::new([answer(500)]).await;
    let client = stage.client_with(IdempotentRequests::new().bare());
    let response = client.post(stage.server.url("/payments")).send().await.unwrap();
    let key = client::operation_key(&response).unwrap();
    assert_eq!(stage.keys(), vec![Some(key.as_str().to_owned()); 2]);
    // The client rejects a key that a server would read as another key.
    let key = Key::new("\"a\"").unwrap();
    let Err(reqwest_middleware::Error::Middleware(error)) =
        client.post(stage.server.url("/payments")).with_extension(key).send().await
    else {
        panic!("the client sent an ambiguous key")
    };
    assert_eq!(error.downcast_ref::<lambda_idempotency::Error>().unwrap().kind(), ErrorKind::InvalidKey);
    assert_eq!(stage.keys().len(), 2);
}

#[tokio::test]
async fn existing_key_headers_are_sent_unchanged() {
    let stage = Stage::new([answer(503)]).await;
    let response = stage.payment().header("Idempotency-Key", "order-17").send().await.unwrap();
    assert_eq!(client::operation_key(&response).unwrap().as_str(), "order-17");
    assert_eq!(stage.keys(), vec![Some("order-17".into()); 2]);
}

#[tokio::test]
async fn ambiguous_keys_are_refused_before_sending() {
    let stage = Stage::new([]).await;
    let other = Key::new("other").unwrap();
    for request in [
        stage.payment().header("idempotency-key", "\"open"),
        stage.payment().header("idempotency-key", "a").header("idempotency-key", "b"),
        stage.payment().header("idempotency-key", "secret").with_extension(other),
    ] {
        let Err(reqwest_middleware::Error::Middleware(error)) = request.send().await else {
            panic!("the client sent the request")
        };
        let error = error.downcast_ref::<lambda_idempotency::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
    assert!(stage.received().is_empty());
}

#[tokio::test]
async fn idempotent_methods_are_sent_once_without_key() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let stage = Stage::new([answer(503)]).await;
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let response = stage.client().request(method, stage.server.url("/payments")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), client::attempts(&response)), (503, None));
        assert_eq!(stage.keys(), [None]);
    }
}

#[tokio::test]
async fn explicit_keys_protect_any_method() {
    let stage = Stage::new([answer(503), answer(201)]).await;
    let key = Key::new("put-17").unwrap();
    let request = stage.client().put(stage.server.url("/payments")).with_extension(key);
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), client::attempts(&response)), (201, Some(2)));
    assert_eq!(stage.keys(), [Some("\"put-17\"".to_owned()), Some("\"put-17\"".to_owned())]);
}

/// A middleware around the client that repeats a request after a 5xx.
struct SendsAgain;

#[async_trait::async_trait]
impl reqwest_middleware::Middleware for SendsAgain {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut lambda_http::http::Extensions,
        next: reqwest_middleware::Next<'_>,
    ) -> Result<reqwest::Response, reqwest_middleware::Error> {
        let copy = request.try_clone().unwrap();
        let first = next.clone().run(request, extensions).await?;
        if first.status().is_server_error() { next.run(copy, extensions).await } else { Ok(first) }
    }
}

#[tokio::test]
async fn outer_retries_reuse_the_key() {
    let stage = Stage::new([answer(504), answer(504), answer(201)]).await;
    let client =
        reqwest_middleware::ClientBuilder::new(reqwest::Client::builder().no_proxy().build().unwrap())
            .with(SendsAgain)
            .with(IdempotentRequests::new().max_attempts(2).clock(StageClock::default()))
            .build();
    assert_eq!(client.post(stage.server.url("/payments")).send().await.unwrap().status(), 201);
    let keys = stage.keys();
    assert!(
        keys.len() == 3 && keys[0].is_some() && keys.iter().all(|key| *key == keys[0]),
        "the attempts have different keys"
    );
}

#[tokio::test]
async fn extensions_keep_drawn_key_until_its_outcome() {
    let replay = |status| answer_with(status, &[("idempotent-replayed", "true")], "");
    let stage = Stage::new([answer(201), replay(402), answer(422), replay(500), replay(500)]).await;
    let (client, mut extensions) = (stage.client(), Extensions::new());
    let url = stage.server.url("/payments");
    for _ in 0..6 {
        let request = client.post(&url).body(BODY).build().unwrap();
        client.execute_with_extensions(request, &mut extensions).await.unwrap();
    }
    let keys = stage.keys();
    assert!(keys.iter().all(Option::is_some));
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "an operation got the previous operation's key");
    assert!(keys[2] == keys[3], "the key must stay: a 422 isn't an outcome");
    assert!(keys[3] == keys[4] && keys[4] == keys[5], "the key must stay: a middleware may retry a 500");

    extensions.insert(Key::new("order-17").unwrap());
    for _ in 0..2 {
        let request = client.post(&url).body(BODY).build().unwrap();
        client.execute_with_extensions(request, &mut extensions).await.unwrap();
    }
    assert_eq!(stage.keys()[6..], [Some("\"order-17\"".to_owned()), Some("\"order-17\"".to_owned())]);
}

#[tokio::test]
async fn methods_and_header_are_configurable() {
    let stage = Stage::new([answer(503), answer(201), answer(503)]).await;
    let rules =
        IdempotentRequests::new().methods([Method::PUT]).header(HeaderName::from_static("x-request-id"));
    let client = stage.client_with(rules);
    let put = client.put(stage.server.url("/")).header("x-request-id", "r-1").send().await.unwrap();
    let post = client.post(stage.server.url("/")).send().await.unwrap();
    assert_eq!((put.status().as_u16(), post.status().as_u16()), (201, 503));
    let ids = stage.received().iter().map(|r| r.headers.get("x-request-id").cloned()).collect::<Vec<_>>();
    assert_eq!(ids, [Some("r-1".into()), Some("r-1".into()), None]);
}
