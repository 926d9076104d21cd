//! Wraps another layer, and marks the responses with which that layer rejects requests before they reach the handler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use ::http::{Request, Response};
use tower::{Layer, Service};

use crate::{
    future::BoxFuture,
    lambda::{Idempotent, take_ready},
    settings::Recording,
};

/// Wraps another layer, and marks its rejections with [`Recording::Release`].
///
/// A rejection is a response that the wrapped layer gives without calling the handler: a rate limiter's 429, a
/// validator's 422, a body limit's 413. Under at-most-once, every other response is recorded, since the handler may
/// have had an effect before the response.
///
/// A response that the wrapped layer gives after it called the handler isn't marked, whatever its status: a timeout's
/// 408, for example. If the wrapped layer drops a request's extensions, this layer can't tell rejections from other
/// responses, and marks none. If the wrapped layer returns an error instead of a response, nothing is marked either.
///
/// ```
/// use axum::{Router, extract::Request, http::StatusCode, middleware::{self, Next}, response::{IntoResponse, Response}, routing::post};
/// use lambda_idempotency::{settings::Execution, Idempotency, lambda::http::ReleaseRejections};
/// # fn may_pass(_: &Request) -> bool { true }
/// # async fn create_payment() -> &'static str { "paid" }
/// # let store = lambda_idempotency::store::memory::MemoryStore::new();
///
/// async fn limit_rate(request: Request, next: Next) -> Response {
///     if !may_pass(&request) {
///         return StatusCode::TOO_MANY_REQUESTS.into_response(); // releases the key, even under at-most-once
///     }
///     next.run(request).await
/// }
///
/// let idempotency = Idempotency::builder(store).function("payments").execution(Execution::AtMostOnce).build()?;
/// let app: Router = Router::new()
///     .route("/payments", post(create_payment))
///     .layer(ReleaseRejections::of(middleware::from_fn(limit_rate)))
///     .layer(idempotency.http());
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ReleaseRejections<L = ()> {
    /// The wrapped layer, or the handler's service inside it.
    inner: L,
    /// Whether the wrapped layer dropped a request's extensions. In that case, its rejections can't be distinguished
    /// from the handler's responses.
    is_blind: Arc<AtomicBool>,
}

impl<L> ReleaseRejections<L> {
    /// Marks the rejections of `layer`.
    pub fn of(layer: L) -> Self {
        Self { inner: layer, is_blind: Arc::default() }
    }
}

impl<S, L: Layer<ReleaseRejections<S>>> Layer<S> for ReleaseRejections<L> {
    type Service = Idempotent<L::Service, ReleaseRejections>;

    fn layer(&self, inner: S) -> Self::Service {
        let outside = ReleaseRejections::of(());
        let inside = ReleaseRejections { inner, is_blind: Arc::clone(&outside.is_blind) };
        Idempotent { inner: self.inner.layer(inside), layer: outside }
    }
}

/// Whether the wrapped layer called the handler for one request.
#[derive(Clone, Debug, Default)]
struct Called(Arc<AtomicBool>);

/// The service outside the wrapped layer.
impl<S, B, A> Service<Request<B>> for Idempotent<S, ReleaseRejections>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response<A>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<A>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let (is_blind, called) = (Arc::clone(&self.layer.is_blind), Called::default());
        request.extensions_mut().insert(called.clone());
        Box::pin(async move {
            let mut response = inner.call(request).await?;
            if !called.0.load(Ordering::SeqCst) && !is_blind.load(Ordering::SeqCst) {
                response.extensions_mut().insert(Recording::Release);
            }
            Ok(response)
        })
    }
}

/// The service inside the wrapped layer, in front of the handler.
impl<S, B> Service<Request<B>> for ReleaseRejections<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        // Removes the flag, so that a nested `ReleaseRejections` can't mistake it for its own flag.
        match request.extensions_mut().remove::<Called>() {
            Some(called) => called.0.store(true, Ordering::SeqCst),
            None => self.is_blind.store(true, Ordering::SeqCst),
        }
        self.inner.call(request)
    }
}
