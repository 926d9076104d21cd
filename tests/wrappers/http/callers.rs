//! The callers that get a replay. The layer refuses a request with credentials if it can't name the request's caller.

use super::*;

/// An API that checks tokens inside the layer, as most axum applications do.
fn checks_tokens_inside(
    runs: &Runs,
) -> impl Service<
    Request,
    Response = Response<Body>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Body>, Infallible>> + Send,
> + Clone
+ Send
+ 'static {
    let runs = runs.clone();
    service_fn(move |request: Request| {
        let response = match request.headers().get("authorization") {
            Some(token) => {
                runs.0.fetch_add(1, Ordering::SeqCst);
                let secret = format!("{CANARY}-secret of {}", token.to_str().unwrap());
                Response::builder().status(201).body(Body::Text(secret)).unwrap()
            }
            None => Response::builder().status(401).body(Body::Empty).unwrap(),
        };
        async move { Ok(response) }
    })
}

#[tokio::test]
async fn unnamed_credentials_are_refused_before_claiming() {
    let runs = Runs::default();
    let service = idempotency().http().layer(checks_tokens_inside(&runs));
    let by = |token| with_header(post(Some("k"), "{}"), "authorization", token);
    for token in ["Bearer c4n4ry-alice", "Bearer c4n4ry-mallory"] {
        let answer = service.clone().oneshot(by(token)).await.unwrap();
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (500, "caller-unknown"), "{token}");
    }
    // The refused requests left no claim, so the same key without a token reaches the handler, which answers 401. A
    // request without a key reaches the handler too.
    let anonymous = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
    assert_eq!((anonymous.status().as_u16(), is_replay(&anonymous)), (401, false));
    let keyless = with_header(post(None, "{}"), "authorization", "Bearer c4n4ry-alice");
    assert_eq!(service.oneshot(keyless).await.unwrap().status(), 201);
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn every_credential_needs_a_named_caller() {
    let down = Idempotency::builder(store_that_is_down()).function("payments").build().unwrap();
    for (name, value) in [
        ("authorization", "Bearer c4n4ry-token"),
        ("x-api-key", "c4n4ry-api-key"),
        ("x-amzn-mtls-clientcert-subject", "CN=c4n4ry"),
        ("x-amzn-oidc-data", "c4n4ry.oidc.data"),
        ("cookie", "AWSALB=x; session=c4n4ry-session"),
    ] {
        let runs = Runs::default();
        let service = down.http().layer(handler(&runs));
        let request = with_header(post(Some("k"), "{}"), name, value);
        let answer = service.oneshot(request).await.unwrap();
        // The store is down, so a claim before this check would give 503.
        assert_eq!((answer.status().as_u16(), code(&answer).as_str()), (500, "caller-unknown"), "{name}");
        assert_eq!(runs.count(), 0);
    }
}

#[tokio::test]
async fn ignored_cookies_need_no_caller() {
    let runs = Runs::default();
    let service = idempotency().http().ignore_cookies(["theme", "_ga*"]).layer(handler(&runs));
    let with = |cookies| with_header(post(Some("k"), "{}"), "cookie", cookies);
    assert!(!is_replay(&service.clone().oneshot(with("AWSALBCORS=a; theme=dark")).await.unwrap()));
    assert!(is_replay(&service.clone().oneshot(with("_ga_1=b; theme=light")).await.unwrap()));
    let session = service.oneshot(with("theme=dark; session=c4n4ry-session")).await.unwrap();
    assert_eq!(code(&session), "caller-unknown");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn shared_namespaces_are_opt_in() {
    let runs = Runs::default();
    let service = idempotency().http().shared_namespace().layer(handler(&runs));
    for (token, replayed) in [("c4n4ry-alice", false), ("c4n4ry-bob", true)] {
        let request = with_header(post(Some("k"), "{}"), "authorization", token);
        assert_eq!(is_replay(&service.clone().oneshot(request).await.unwrap()), replayed, "{token}");
    }
    // Named callers keep their own namespace.
    let request =
        lambda_http::request::from_str(include_str!("../../../events/payments/http-api.json")).unwrap();
    assert!(!is_replay(&service.oneshot(request).await.unwrap()));
}

/// A common mistake: the layer that puts the caller into the request's extensions is inside the idempotency layer. So
/// the closure that's given to `caller` doesn't find the caller.
#[tokio::test]
async fn credentials_without_a_resolved_caller_are_refused() {
    let runs = Runs::default();
    let layer = idempotency().http().caller(|request| Ok(request.extensions.get::<String>().cloned()));
    let service = layer.clone().layer(handler(&runs));
    let request = || with_header(post(Some("k"), "{}"), "authorization", "Bearer c4n4ry-alice");
    let answer = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((code(&answer).as_str(), runs.count()), ("caller-unknown", 0));

    let mut named = request();
    named.extensions_mut().insert(String::from("c4n4ry-alice"));
    assert_eq!(service.oneshot(named).await.unwrap().status(), 201);
}

/// The safe order: the token is checked outside the idempotency layer, so it's also checked before a replay.
#[tokio::test]
async fn outer_authentication_checks_each_replay() {
    let runs = Runs::default();
    let layer = idempotency().http().caller(|request| Ok(request.extensions.get::<String>().cloned()));
    let inner = layer.layer(checks_tokens_inside(&runs));
    let service = service_fn(move |mut request: Request| {
        let mut inner = inner.clone();
        async move {
            let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
            let Some(account) = token.and_then(|token| token.strip_prefix("Bearer valid-c4n4ry-")) else {
                return Ok(Response::builder().status(401).body(Body::Empty).unwrap());
            };
            let account = account.to_owned();
            request.extensions_mut().insert(account);
            inner.call(request).await
        }
    });
    let by = |token| with_header(post(Some("k"), "{}"), "authorization", token);
    for (request, status, replayed) in [
        (by("Bearer valid-c4n4ry-alice"), 201, false),
        (by("Bearer valid-c4n4ry-alice"), 201, true),
        (by("Bearer valid-c4n4ry-bob"), 201, false),
        (by("Bearer forged-c4n4ry-alice"), 401, false),
        (post(Some("k"), "{}"), 401, false),
    ] {
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), is_replay(&answer)), (status, replayed));
    }
    assert_eq!(runs.count(), 2);
}
