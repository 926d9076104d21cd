//! The client of the real Runtime API.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::memory::{Gathered, SmallReads};

/// The error of a body or of a connection.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Any request's or response's body.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// The largest answer that Lambda accepts from a function that doesn't stream, in bytes ("Response payload size
/// exceeded maximum allowed payload size (6291556 bytes)").
pub(crate) const MAX_BUFFERED: usize = 6_291_556;
/// The largest head of a request or a response, in bytes. `Lambda-Runtime-Function-XRay-Error-Cause` alone may have
/// 1 MiB ("Using the Lambda runtime API for custom runtimes", AWS Lambda developer guide).
pub(crate) const MAX_HEAD: usize = 4 * 1024 * 1024;

/// The version of the Runtime API, which begins each of its paths.
pub(crate) const VERSION: &str = "/2018-06-01/runtime";

/// The id of one delivery. Deliveries can share a request id, but not this id. A runtime sends it back with its answer.
pub(crate) const INVOCATION_ID: HeaderName = HeaderName::from_static("lambda-runtime-invocation-id");
/// The request id of an invocation.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("lambda-runtime-aws-request-id");
/// Whether a response is streamed.
pub(crate) const RESPONSE_MODE: HeaderName = HeaderName::from_static("lambda-runtime-function-response-mode");
/// The type of a function's error, in a header or in a trailer.
pub(crate) const ERROR_TYPE: HeaderName = HeaderName::from_static("lambda-runtime-function-error-type");

/// Headers that aren't passed on, since they belong to one connection (RFC 9110, section 7.6.1). If the connection to
/// Lambda needs such a header, hyper or `pass` sets it.
const OF_THE_CONNECTION: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::EXPECT,
];

/// The Runtime API that Lambda serves.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Connections>);

/// The connections to the Runtime API. Each carries one request at a time, and is kept for the next. They replace
/// hyper-util's pool, which took more processor time for each invocation: 0.215 ms instead of 0.190 ms, measured with
/// the layer switched off (`layer/scenarios speed`).
struct Connections {
    host: HeaderValue,
    connect: Connect,
    /// The connections that carry no request. On some, the body of the last response may still be arriving.
    kept: Mutex<Vec<SendRequest<AnyBody>>>,
}

/// How to open a connection.
enum Connect {
    /// To this address.
    Tcp(String),
    #[cfg(feature = "in-memory")]
    Memory(Box<dyn Fn() -> tokio::io::DuplexStream + Send + Sync>),
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("host", &self.0.host).finish_non_exhaustive()
    }
}

impl Connections {
    fn new(host: &str, connect: Connect) -> Arc<Self> {
        // If the address can't be a header's value, no connection to it succeeds anyway.
        let host = HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("invalid"));
        Arc::new(Self { host, connect, kept: Mutex::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<SendRequest<AnyBody>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a kept connection from which the last response has been read.
    fn take(&self) -> Option<SendRequest<AnyBody>> {
        let mut kept = self.kept();
        kept.retain(|sender| !sender.is_closed());
        let ready = kept.iter().position(SendRequest::is_ready)?;
        Some(kept.swap_remove(ready))
    }

    async fn open(&self) -> Result<SendRequest<AnyBody>, BoxError> {
        match &self.connect {
            Connect::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                begun(stream).await
            }
            #[cfg(feature = "in-memory")]
            Connect::Memory(connect) => begun(connect()).await,
        }
    }

    /// Sends the request on a kept connection, or on a new one. If the Runtime API has closed a kept connection before
    /// the request was sent, tries another.
    async fn send(&self, mut request: Request<AnyBody>) -> Result<Response<Incoming>, BoxError> {
        loop {
            let kept = self.take();
            let is_new = kept.is_none();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.open().await?,
            };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.kept().push(sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(error.into_error().into()),
                },
            }
        }
    }
}

/// Begins HTTP/1.1 on this stream, in a task that ends with the connection.
async fn begun(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<AnyBody>, BoxError> {
    let stream = TokioIo::new(SmallReads::of(stream));
    let (sender, connection) = Builder::new().max_buf_size(MAX_HEAD).handshake(stream).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the Runtime API ended");
        }
    });
    Ok(sender)
}

impl Upstream {
    /// A client for the address in `AWS_LAMBDA_RUNTIME_API`.
    pub(crate) fn new(authority: impl Into<String>) -> Self {
        let authority = authority.into();
        Self(Connections::new(&authority.clone(), Connect::Tcp(authority)))
    }

    /// A client of a Runtime API in this process.
    #[cfg(feature = "in-memory")]
    pub(crate) fn in_memory(connect: impl Fn() -> tokio::io::DuplexStream + Send + Sync + 'static) -> Self {
        Self(Connections::new("memory", Connect::Memory(Box::new(connect))))
    }

    /// Keeps none of the connections that are open now. Requests and responses on them end as they would.
    pub(crate) fn close_connections(&self) {
        self.0.kept().clear();
    }

    /// Passes a request on to Lambda, without its connection's headers.
    ///
    /// # Errors
    ///
    /// If there's no connection, or it breaks before the response begins.
    pub(crate) async fn pass(&self, request: Request<AnyBody>) -> Result<Response<Incoming>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = Uri::builder().path_and_query(path).build().map_err(BoxError::from)?;
        parts.version = http::Version::HTTP_11;
        for name in &OF_THE_CONNECTION {
            parts.headers.remove(name);
        }
        parts.headers.insert(header::HOST, self.0.host.clone());
        self.0.send(Request::from_parts(parts, body)).await
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

    /// Posts a body to a path of the Runtime API, such as `invocation/ID/response`.
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
    let (parts, mut body) = response.into_parts();
    let mut gathered = Gathered::of(&body);
    while let Some(frame) = body.frame().await {
        // The Runtime API sends no trailers.
        if let Ok(data) = frame?.into_data() {
            gathered.push(data);
        }
    }
    Ok(Response::from_parts(parts, gathered.bytes()))
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

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        sync::mpsc::{Receiver, channel},
    };

    use super::*;

    /// How many requests the server answers on each connection.
    const REQUESTS: usize = 2;

    /// Starts a server, and returns its address and a receiver. The server answers `REQUESTS` requests on each
    /// connection, closes the connection, and sends the connection's number, counted from 1, to the receiver.
    fn serve() -> (String, Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (closed, closings) = channel();
        std::thread::spawn(move || {
            for (nth, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                // The client may end the connection earlier.
                let _ = (0..REQUESTS).try_for_each(|_| answer_one(&mut stream));
                drop(stream);
                let _ = closed.send(nth + 1);
            }
        });
        (address, closings)
    }

    fn answer_one(stream: &mut TcpStream) -> std::io::Result<()> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let host = format!("host: {}\r\n", stream.local_addr()?);
        assert!(String::from_utf8_lossy(&head).contains(&host));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    }

    #[tokio::test]
    async fn connections_are_kept_and_replaced_once_closed() {
        let (address, closings) = serve();
        let upstream = Upstream::new(address);
        for nth in 1..=3 {
            for _ in 0..REQUESTS {
                assert_eq!(upstream.next().await.unwrap().into_body(), "ok");
                assert_eq!(upstream.0.kept().len(), 1);
            }
            assert_eq!(closings.recv().unwrap(), nth);
            while !upstream.0.kept().iter().all(SendRequest::is_closed) {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn unsent_requests_move_to_another_connection() {
        let (address, _closings) = serve();
        let upstream = Upstream::new(&address);
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let (sender, connection) = Builder::new().handshake(TokioIo::new(stream)).await.unwrap();
        let mut connection = Box::pin(connection);
        let polled = poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await;
        assert!(polled.is_pending() && sender.is_ready());
        upstream.0.kept().push(sender);
        // The kept connection takes the request, and is dropped before it sends a byte.
        let (answered, ()) = tokio::join!(upstream.next(), async { drop(connection) });
        assert_eq!(answered.unwrap().into_body(), "ok");
    }

    #[tokio::test]
    async fn refused_connections_are_errors() {
        // The socket holds its port, so that no other test can use the port. It never listens.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = held.local_addr().unwrap();
        for address in [closed.to_string(), "no address".into(), "line\nbreak".into()] {
            assert!(Upstream::new(&address).next().await.is_err(), "{address}");
        }
    }
}
