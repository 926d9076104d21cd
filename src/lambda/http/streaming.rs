//! The layer for functions that stream their answers.

use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower::{Layer, Service};

use super::{
    BoxError, HttpLayer,
    answer::{Answer, ResponseBody, Streaming},
};
use crate::{future::BoxFuture, lambda::take_ready};

impl HttpLayer {
    /// The same contract for a function that streams: for [`run_streaming`](super::run_streaming), or `lambda_http::run_with_streaming_response`, in front of
    /// handlers whose answer is a `Response` of any [`http_body::Body`].
    ///
    /// An answer that is recorded has to be read first, since what is told before it is recorded may be told twice. So
    /// up to [`Settings::max_response`](crate::Settings::max_response) bytes are read, recorded, and then sent. Of a larger one it
    /// is recorded that the operation is done, which duplicates are told with `not-retained`, and then all of it is sent as it
    /// comes. An answer that is not the operation's outcome by its status, or by [`Recording::Release`](super::Recording::Release),
    /// is sent as it comes and the key given back. A body that breaks off while it is read is a handler's error.
    ///
    /// It is not for streams that go on, such as server-sent events: what is read before it is sent comes when it has ended.
    /// What a handler does for the operation belongs before the end of its body's first so many bytes: what comes
    /// later runs when the record says that it is done, and has no claim ([`current`](crate::current)) any more. A route that is to stream without being protected is told by
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
    pub fn streaming(self) -> StreamingHttpLayer {
        StreamingHttpLayer(self)
    }
}

/// See [`HttpLayer::streaming`].
#[derive(Clone, Debug)]
#[must_use]
pub struct StreamingHttpLayer(HttpLayer);

impl<S> Layer<S> for StreamingHttpLayer {
    type Service = StreamingHttpService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        StreamingHttpService { inner, layer: self.0.clone() }
    }
}

/// An HTTP handler whose answers are streamed, made idempotent; see [`HttpLayer::streaming`].
#[derive(Clone, Debug)]
pub struct StreamingHttpService<S> {
    inner: S,
    layer: HttpLayer,
}

impl<S, B, A> Service<Request<B>> for StreamingHttpService<S>
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
        Box::pin(
            async move { layer.call::<Streaming, _, _>(inner, request).await.map(Answer::into_streaming) },
        )
    }
}
