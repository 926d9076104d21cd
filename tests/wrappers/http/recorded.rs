//! Which answers are recorded.

use lambda_idempotency::lambda::http::ReleaseRejections;
use tower_http::timeout::TimeoutLayer;

use super::*;

fn at_most_once() -> Idempotency {
    let builder = Idempotency::builder(empty_store()).function("payments");
    builder.execution(Execution::AtMostOnce).build().unwrap()
}

/// The middleware inside the layer answers 408 after the card was charged.
#[tokio::test]
async fn at_most_once_a_timeout_inside_charges_once() {
    let charges = Runs::default();
    let counted = charges.clone();
    let handler = service_fn(move |_: Request| {
        let charges = counted.clone();
        async move {
            charges.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, Infallible>(Response::new(Body::Empty))
        }
    });
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(20));
    let service = at_most_once().http().layer(timeout.layer(handler));
    for is_replayed in [false, true, true] {
        let answer = service.clone().oneshot(post(Some("k"), "{}")).await.unwrap();
        assert_eq!((answer.status().as_u16(), is_replay(&answer)), (408, is_replayed));
    }
    assert_eq!(charges.count(), 1);
}

#[tokio::test]
async fn at_most_once_every_status_is_recorded() {
    for status in ["401", "403", "404", "408", "409", "413", "415", "421", "423", "425", "429", "500", "503"]
    {
        let runs = Runs::default();
        // The list of statuses isn't asked, and neither is this.
        let layer = at_most_once().http().record_when(|_| false);
        let service = layer.layer(handler(&runs));
        for is_replayed in [false, true] {
            let request = with_header(post(Some("k"), "{}"), "status", status);
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!((answer.status().as_str(), is_replay(&answer)), (status, is_replayed));
        }
    }
}

/// Answers 429 to requests with the header `hurry`; answers 408 after the handler to those with `late`.
#[derive(Clone)]
struct Limiter {
    drops_extensions: bool,
}

#[derive(Clone)]
struct Limiting<S>(S, Limiter);

impl<S> Layer<S> for Limiter {
    type Service = Limiting<S>;

    fn layer(&self, inner: S) -> Limiting<S> {
        Limiting(inner, self.clone())
    }
}

impl<S> Service<Request> for Limiting<S>
where
    S: Service<Request, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut inner = self.0.clone();
        let answer = |status: u16| Ok(Response::builder().status(status).body(Body::Empty).unwrap());
        let headers = request.headers().clone();
        if self.1.drops_extensions {
            request.extensions_mut().clear();
        }
        Box::pin(async move {
            if headers.contains_key("hurry") {
                return answer(429);
            }
            let response = inner.call(request).await;
            if headers.contains_key("late") { answer(408) } else { response }
        })
    }
}

#[tokio::test]
async fn rejections_before_the_handler_are_released() {
    let runs = Runs::default();
    let limiter = ReleaseRejections::of(Limiter { drops_extensions: false });
    // Nested: each looks at its own layer.
    let layers = ReleaseRejections::of(tower::util::MapResponseLayer::new(|response| response));
    let service = at_most_once().http().layer(layers.layer(limiter.layer(handler(&runs))));
    let with = |name| with_header(post(Some("k"), "{}"), name, "1");
    for _ in 0..2 {
        let rejected = service.clone().oneshot(with("hurry")).await.unwrap();
        assert_eq!((rejected.status().as_u16(), is_replay(&rejected), runs.count()), (429, false, 0));
    }
    for is_replayed in [false, true] {
        let late = service.clone().oneshot(with("late")).await.unwrap();
        assert_eq!((late.status().as_u16(), is_replay(&late), runs.count()), (408, is_replayed, 1));
    }
    // A status of the handler's own is recorded.
    let own = || with_header(post(Some("own"), "{}"), "status", "429");
    assert!(!is_replay(&service.clone().oneshot(own()).await.unwrap()));
    assert!(is_replay(&service.oneshot(own()).await.unwrap()));
}

#[tokio::test]
async fn nothing_is_marked_where_extensions_are_lost() {
    let runs = Runs::default();
    let limiter = ReleaseRejections::of(Limiter { drops_extensions: true });
    let service = at_most_once().http().layer(limiter.layer(handler(&runs)));
    for is_replayed in [false, true] {
        let request = with_header(post(Some("k"), "{}"), "late", "1");
        let late = service.clone().oneshot(request).await.unwrap();
        assert_eq!((late.status().as_u16(), is_replay(&late), runs.count()), (408, is_replayed, 1));
    }
}
