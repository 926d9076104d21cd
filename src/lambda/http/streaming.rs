//! The layer for functions that stream their responses.

use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower::Service;

use super::{
    BoxError, HttpLayer,
    answer::{Answer, ResponseBody},
};
use crate::{
    future::BoxFuture,
    lambda::{Idempotent, take_ready},
};

impl HttpLayer {
    /// Turns this layer into one for a function that streams its responses: a function that's started with
    /// [`run_streaming`](super::run_streaming) or `lambda_http::run_with_streaming_response`, and whose handler
    /// returns a `Response` of any [`http_body::Body`].
    ///
    /// The body is buffered first: bytes sent before the record exists could be sent again. The layer reads up
    /// to [`Settings::max_response`](crate::settings::Settings::max_response) bytes, records them, and then sends them.
    /// If the body is larger, the layer records that the operation is done, so that duplicates get
    /// `not-retained`, and then streams all of it. If the response's status, or
    /// [`Recording::Release`](crate::settings::Recording::Release), says that the response isn't the operation's
    /// outcome, the layer streams it and releases the key. If a body breaks off while the layer reads it, that counts
    /// as a handler's error.
    ///
    /// Don't use this layer for endless streams, such as server-sent events: the buffered part is sent only when the
    /// stream has ended or the limit is reached. Perform the operation's effects before the body has produced its
    /// first `max_response` bytes: the code that produces the rest of the body runs after the operation was recorded as
    /// done, and without a claim ([`current`](crate::current)). To stream a route without protection, use
    /// [`pass_through_when`](Self::pass_through_when).
    ///
    /// ```no_run
    /// use lambda_http::{Error, Request, Response, service_fn, tower::ServiceBuilder};
    /// use lambda_idempotency::{Idempotency, lambda::http::run_streaming};
    ///
    /// async fn report(_request: Request) -> Result<Response<axum::body::Body>, Error> {
    ///     Ok(Response::new(axum::body::Body::from("a,b,c")))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Error> {
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// let idempotency = Idempotency::builder(store).build()?;
    /// let layer = idempotency.http().streaming();
    /// run_streaming(ServiceBuilder::new().layer(layer).service(service_fn(report))).await
    /// # }
    /// ```
    pub fn streaming(self) -> HttpLayer<true> {
        HttpLayer { idempotency: self.idempotency, config: self.config }
    }
}

impl<S, B, A> Service<Request<B>> for Idempotent<S, HttpLayer<true>>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
    B: http_body::Body + From<Vec<u8>> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = take_ready(&mut self.inner);
        let layer = self.layer.clone();
        Box::pin(async move { layer.call(inner, request).await.map(Answer::into_streaming) })
    }
}
