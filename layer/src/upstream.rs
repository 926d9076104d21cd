//! The client of the real Runtime API.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// The error of a body or of a connection.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Any request's or response's body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// Largest head of a request or a response, in bytes. `Lambda-Runtime-Function-XRay-Error-Cause` alone may have 1 MiB
/// ("Using the Lambda runtime API for custom runtimes", AWS Lambda developer guide).
pub(crate) const MAX_HEAD: usize = 4 * 1024 * 1024;

/// The version of the Runtime API, which begins each of its paths.
pub(crate) const VERSION: &str = "/2018-06-01/runtime";

/// Identifies one delivery, since deliveries can share a request id. A runtime sends it back with its answer.
pub(crate) const INVOCATION_ID: HeaderName = HeaderName::from_static("lambda-runtime-invocation-id");
/// The request id of an invocation.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("lambda-runtime-aws-request-id");
/// Whether a response is streamed.
pub(crate) const RESPONSE_MODE: HeaderName = HeaderName::from_static("lambda-runtime-function-response-mode");
/// The type of a function's error, in a header or in a trailer.
pub(crate) const ERROR_TYPE: HeaderName = HeaderName::from_static("lambda-runtime-function-error-type");

/// Headers that belong to one connection (RFC 9110, section 7.6.1), which hyper writes itself.
const OF_THE_CONNECTION: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::EXPECT,
];

/// The Runtime API that Lambda serves.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    authority: String,
    wire: Wire,
}

#[derive(Clone)]
enum Wire {
    Pool(Box<Client<HttpConnector, AnyBody>>),
    /// A Runtime API in memory, with a new connection for each request.
    #[cfg(feature = "fuzz")]
    Memory(std::sync::Arc<dyn Fn() -> tokio::io::DuplexStream + Send + Sync>),
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    async fn send(&self, request: Request<AnyBody>) -> Result<Response<Incoming>, BoxError> {
        match self {
            Self::Pool(client) => Ok(client.request(request).await?),
            #[cfg(feature = "fuzz")]
            Self::Memory(connect) => {
                let stream = hyper_util::rt::TokioIo::new(connect());
                let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
                tokio::spawn(connection);
                Ok(sender.send_request(request).await?)
            }
        }
    }
}

impl Upstream {
    /// A client for the address in `AWS_LAMBDA_RUNTIME_API`.
    pub(crate) fn new(authority: impl Into<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).http1_max_buf_size(MAX_HEAD).build(connector);
        Self { authority: authority.into(), wire: Wire::Pool(Box::new(client)) }
    }

    /// A client of a Runtime API in this process.
    #[cfg(feature = "fuzz")]
    pub(crate) fn in_memory(connect: impl Fn() -> tokio::io::DuplexStream + Send + Sync + 'static) -> Self {
        Self { authority: "memory".into(), wire: Wire::Memory(std::sync::Arc::new(connect)) }
    }

    /// Passes a request on to Lambda, without its connection's headers.
    ///
    /// # Errors
    ///
    /// If there's no connection, or it breaks before the response begins.
    pub(crate) async fn pass(&self, request: Request<AnyBody>) -> Result<Response<Incoming>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = Uri::builder()
            .scheme("http")
            .authority(self.authority.as_str())
            .path_and_query(path)
            .build()
            .map_err(BoxError::from)?;
        parts.version = http::Version::HTTP_11;
        for name in &OF_THE_CONNECTION {
            parts.headers.remove(name);
        }
        self.wire.send(Request::from_parts(parts, body)).await
    }

    /// Polls for the next invocation.
    ///
    /// # Errors
    ///
    /// As [`pass`](Self::pass).
    pub(crate) async fn next(&self) -> Result<Response<Bytes>, BoxError> {
        let request = Request::get(format!("{VERSION}/invocation/next")).body(empty())?;
        whole(self.pass(request).await?).await
    }

    /// Posts the response (`response`) or the error (`error`) of an invocation.
    ///
    /// # Errors
    ///
    /// As [`pass`](Self::pass).
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: AnyBody,
    ) -> Result<Response<Bytes>, BoxError> {
        let mut request = Request::post(format!("{VERSION}/{path}")).body(body)?;
        *request.headers_mut() = headers;
        whole(self.pass(request).await?).await
    }

    /// Reports that the function can't start, and why.
    ///
    /// # Errors
    ///
    /// As [`pass`](Self::pass).
    pub(crate) async fn cannot_start(&self, why: &str) -> Result<(), BoxError> {
        const TYPE: &str = "Idempotency.Invalid";
        let mut headers = json_headers();
        headers.insert(ERROR_TYPE, HeaderValue::from_static(TYPE));
        self.post("init/error", headers, full(error_report(TYPE, why))).await.map(drop)
    }
}

/// An error report, as a runtime posts it.
pub(crate) fn error_report(error_type: &str, message: &str) -> Bytes {
    let report = serde_json::json!({ "errorType": error_type, "errorMessage": message, "stackTrace": [] });
    report.to_string().into()
}

/// The headers of a JSON body.
pub(crate) fn json_headers() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))])
}

/// Reads a response's body.
async fn whole(response: Response<Incoming>) -> Result<Response<Bytes>, BoxError> {
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
}

/// The body with these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> AnyBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The empty body.
pub(crate) fn empty() -> AnyBody {
    full(Bytes::new())
}

/// A response that the proxy makes itself.
pub(crate) fn answer(status: StatusCode, body: impl Into<Bytes>) -> Response<AnyBody> {
    let mut response = Response::new(full(body));
    *response.status_mut() = status;
    *response.headers_mut() = json_headers();
    response
}

/// A body of unknown length, which is sent in chunks: the parts read so far, the rest of the stream, and the trailers.
pub(crate) struct Chunked {
    begun: std::collections::VecDeque<Bytes>,
    rest: Option<Incoming>,
    trailers: Option<HeaderMap>,
}

impl Chunked {
    /// The body of these parts.
    pub(crate) fn body(
        begun: impl IntoIterator<Item = Bytes>,
        rest: Option<Incoming>,
        trailers: Option<HeaderMap>,
    ) -> AnyBody {
        let begun = begun.into_iter().filter(|part| !part.is_empty()).collect();
        UnsyncBoxBody::new(Self { begun, rest, trailers })
    }
}

impl http_body::Body for Chunked {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(part) = self.begun.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx).map_err(Into::into),
            None => Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }
}
