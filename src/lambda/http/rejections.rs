//! A layer around another layer that marks the responses with which it rejects requests before the handler.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use ::http::{Request, Response};
use tower::{Layer, Service};

use crate::{future::BoxFuture, lambda::take_ready, settings::Recording};

/// Wraps another layer, and marks the responses that it gives without calling the handler with
/// [`Recording::Release`]: a rate limiter's 429, a validator's 422, a body limit's 413. At most once, every
/// other response is recorded, since the handler may have had an effect before it.
///
/// A response that the layer gives after it called the handler isn't marked, whatever its status: a timeout's
/// 408, for example. If the wrapped layer dropped the request's extensions, this layer can't tell the two apart
/// and marks neither. An error in place of a response isn't marked either.
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
///         return StatusCode::TOO_MANY_REQUESTS.into_response(); // releases the key, even at most once
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
pub struct ReleaseRejections<L>(L);

impl<L> ReleaseRejections<L> {
    /// Marks the rejections of `layer`.
    pub fn of(layer: L) -> Self {
        Self(layer)
    }
}

impl<S, L: Layer<RejectionsHandler<S>>> Layer<S> for ReleaseRejections<L> {
    type Service = RejectionsService<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        let is_blind = Arc::<AtomicBool>::default();
        let inner = self.0.layer(RejectionsHandler { inner, is_blind: Arc::clone(&is_blind) });
        RejectionsService { inner, is_blind }
    }
}

/// Whether the wrapped layer called the handler for one request.
#[derive(Clone, Debug, Default)]
struct Called(Arc<AtomicBool>);

/// The service outside the wrapped layer; see [`ReleaseRejections`].
#[derive(Clone, Debug)]
pub struct RejectionsService<S> {
    inner: S,
    /// The wrapped layer dropped a request's extensions, so its rejections can't be distinguished from the
    /// handler's responses.
    is_blind: Arc<AtomicBool>,
}

impl<S, B, A> Service<Request<B>> for RejectionsService<S>
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
        let (is_blind, called) = (Arc::clone(&self.is_blind), Called::default());
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

/// The service inside the wrapped layer, in front of the handler; see [`ReleaseRejections`].
#[derive(Clone, Debug)]
pub struct RejectionsHandler<S> {
    inner: S,
    is_blind: Arc<AtomicBool>,
}

impl<S, B> Service<Request<B>> for RejectionsHandler<S>
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
        // Removed, so that a nested `ReleaseRejections` can't find this one's.
        match request.extensions_mut().remove::<Called>() {
            Some(called) => called.0.store(true, Ordering::SeqCst),
            None => self.is_blind.store(true, Ordering::SeqCst),
        }
        self.inner.call(request)
    }
}
