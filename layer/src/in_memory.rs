//! Runs the layer in this process, with connections in memory. Checks can bring their own store and clock.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use lambda_idempotency::{Builder, store::Store, time::Timestamp};
use tokio::{io::DuplexStream, sync::oneshot};

use crate::{
    config::{Config, Rules},
    proxy::Proxy,
    server,
    telemetry::Telemetry,
    turn::Protection,
    upstream::{
        AnyBody, BoxError, MAX_HEAD, REQUEST_ID, Upstream, VERSION, answer, empty, full, json_headers,
    },
};

/// How many bytes each connection buffers.
const BUFFERED: usize = 64 * 1024;

/// An answer that the function gives, or that Lambda gets: `Ok` is a response, `Err` an error report.
pub type Answer = Result<Bytes, Bytes>;

/// An event, and the deadline for its answer.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The event.
    pub event: Bytes,
    /// The invocation's deadline.
    pub deadline: Timestamp,
}

/// A simulated Runtime API that hands out one invocation.
#[derive(Debug)]
struct Lambda {
    invocation: Mutex<Option<Invocation>>,
    answered: Mutex<Option<oneshot::Sender<Answer>>>,
}

/// Delivers an event to `function`, which is behind the layer, and returns the answer that Lambda gets.
///
/// `settings` are the layer's variables. The layer's records are in `store`. `with` can set more on the library's
/// builder, such as a clock.
///
/// # Errors
///
/// If a setting is wrong, if the function panics, if the function's connection to the layer breaks, or if the layer
/// doesn't answer.
///
/// # Cancel safety
///
/// If the future is dropped, the layer and the function continue without it.
pub async fn deliver(
    settings: &[(&str, &str)],
    store: Arc<dyn Store>,
    with: impl FnOnce(Builder) -> Builder,
    invocation: Invocation,
    function: impl FnOnce(&Bytes) -> Answer + Send + 'static,
) -> Result<Answer, BoxError> {
    let rules = rules(settings)?;
    let idempotency = rules.open_with(store, with)?;
    let (sender, answered) = oneshot::channel();
    let lambda = Lambda { invocation: Mutex::new(Some(invocation)), answered: Mutex::new(Some(sender)) };
    let lambda = Arc::new(lambda);
    let upstream = Upstream::in_memory(move || {
        let lambda = Arc::clone(&lambda);
        connection(move |request| Arc::clone(&lambda).serve(request))
    });
    let protection = Protection::new(idempotency, rules, upstream.clone(), Telemetry::default())?;
    let function = tokio::spawn(run(Proxy::new(upstream, Some(protection), Telemetry::default()), function));
    tokio::pin!(answered);
    tokio::select! {
        biased;
        answered = &mut answered => return Ok(answered?),
        ended = function => ended??,
    }
    Ok(answered.await?)
}

/// Reads the layer's rules from these settings.
///
/// # Errors
///
/// If a setting is wrong.
pub(crate) fn rules(settings: &[(&str, &str)]) -> Result<Rules, String> {
    let value = |name: &str| {
        settings.iter().find(|(setting, _)| *setting == name).map(|(_, value)| (*value).to_owned())
    };
    let no_file = |_: &PathBuf| Err(std::io::ErrorKind::NotFound.into());
    Ok(Config::read(std::iter::empty(), &value, no_file)?.rules)
}

/// Opens a connection to a server in this process.
pub(crate) fn connection<F>(serve: impl Fn(Request<Incoming>) -> F + Send + 'static) -> DuplexStream
where
    F: Future<Output = Result<Response<AnyBody>, BoxError>> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(BUFFERED);
    tokio::spawn(async move {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.max_buf_size(MAX_HEAD);
        // The client may hang up.
        let _ = builder.serve_connection(TokioIo::new(far), service_fn(serve)).await;
    });
    near
}

/// Connects a function's runtime to the layer.
///
/// # Errors
///
/// If the connection can't begin.
pub(crate) async fn connected(proxy: Proxy) -> Result<SendRequest<AnyBody>, BoxError> {
    let (function, layer) = tokio::io::duplex(BUFFERED);
    tokio::spawn(server::connection(layer, proxy));
    let (sender, connection) = http1::handshake(TokioIo::new(function)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Polls once, like a runtime. Returns the request id and the event, or `None` if Lambda has no event.
///
/// # Errors
///
/// If the connection breaks.
pub(crate) async fn polled(sender: &mut SendRequest<AnyBody>) -> Result<Option<(String, Bytes)>, BoxError> {
    let poll = Request::get(format!("{VERSION}/invocation/next")).header("host", "r").body(empty())?;
    sender.ready().await?;
    let event = sender.send_request(poll).await?;
    let Some(id) = event.headers().get(REQUEST_ID).cloned() else { return Ok(None) };
    Ok(Some((id.to_str()?.to_owned(), event.into_body().collect().await?.to_bytes())))
}

/// Posts an answer, like a runtime. Returns the status of the layer's response.
///
/// # Errors
///
/// If the connection breaks.
pub(crate) async fn posted(
    sender: &mut SendRequest<AnyBody>,
    id: &str,
    answer: Answer,
) -> Result<StatusCode, BoxError> {
    let (kind, body) = match answer {
        Ok(response) => ("response", response),
        Err(report) => ("error", report),
    };
    let mut post = Request::post(format!("{VERSION}/invocation/{id}/{kind}")).header("host", "r");
    if let Some(headers) = post.headers_mut() {
        headers.extend(json_headers());
    }
    // The last response's body has been read, but the connection may still need a moment before it takes a request.
    sender.ready().await?;
    let replied = sender.send_request(post.body(full(body))?).await?;
    let status = replied.status();
    replied.into_body().collect().await?;
    Ok(status)
}

/// Polls once, and runs the function if Lambda has an event.
async fn run(proxy: Proxy, function: impl FnOnce(&Bytes) -> Answer) -> Result<(), BoxError> {
    let mut sender = connected(proxy).await?;
    let Some((id, event)) = polled(&mut sender).await? else { return Ok(()) };
    posted(&mut sender, &id, function(&event)).await?;
    Ok(())
}

impl Lambda {
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
        let is_error = request.uri().path().ends_with("/error");
        if request.method() == Method::GET {
            return Ok(self.next());
        }
        let body = request.into_body().collect().await?.to_bytes();
        let sender = self.answered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(sender) = sender else { return Ok(answer(StatusCode::BAD_REQUEST, "{}")) };
        // `deliver`, which waits for the answer, may have been dropped.
        let _ = sender.send(if is_error { Err(body) } else { Ok(body) });
        Ok(answer(StatusCode::ACCEPTED, "{}"))
    }

    fn next(&self) -> Response<AnyBody> {
        let invocation = self.invocation.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Invocation { event, deadline }) = invocation else {
            return answer(StatusCode::FORBIDDEN, "{}");
        };
        let mut response = answer(StatusCode::OK, event);
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, HeaderValue::from_static("in-memory"));
        headers.insert("lambda-runtime-deadline-ms", deadline.as_millis().into());
        response
    }
}
