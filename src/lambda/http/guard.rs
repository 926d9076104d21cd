//! Guards `lambda_http`: repairs events that `lambda_http` would read only in part, and refuses events that would make
//! it panic.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Poll},
};

use ::http::{HeaderMap, HeaderName, Request, Response, header};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::Stream;
use lambda_http::{
    Adapter, Body, IntoResponse, RequestExt, StreamAdapter,
    aws_lambda_events::{
        alb::AlbTargetGroupRequest,
        apigw::{ApiGatewayProxyRequest, ApiGatewayV2httpRequest},
        vpc_lattice::VpcLatticeRequestV2,
    },
    request::{LambdaRequest, RequestContext},
};
use lambda_runtime::{Diagnostic, LambdaEvent, StreamResponse, tower::ServiceBuilder};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use tower::Service;

use super::{
    BoxError,
    answer::{Exact, ResponseBody},
    problem::Problem,
    problem::{ProblemKind, ProblemRules},
};
use crate::{
    error::{Error, ErrorKind},
    future::BoxFuture,
    lambda::take_ready,
};

/// A field in the request's context that marks an unreadable event. Clients can't set fields of the context.
const UNREADABLE: &str = "lambda-idempotency-unreadable";

const REPAIR: fn(LambdaEvent<LambdaRequest>) -> LambdaEvent<LambdaRequest> =
    |event| LambdaEvent::new(repaired(event.payload), event.context);

/// Runs an HTTP function as `lambda_http::run` does, and guards it against events and responses that `lambda_http` 1.3
/// mishandles:
///
/// - A client sends a header to a REST API twice: `lambda_http` keeps one value. With this guard, the service sees
///   both values, and this library's layer refuses two keys.
/// - A body claims to be base64 but isn't, or a host or path doesn't form a valid URI: `lambda_http` panics, and the
///   caller gets 502. With this guard, the caller gets 400 and `request-unreadable`, and the service isn't called.
/// - This library's layer returns bytes without a content type, or text whose content type names another character set
///   than UTF-8: `lambda_http` converts the body a second time, and changes it. With this guard, the body stays as the
///   layer returned it, if the layer is the outermost service. If it isn't, for example because an axum router contains
///   the layer, set a content type for bytes, such as `application/octet-stream`. Do the same if you use
///   `lambda_http::run`.
///
/// # Errors
///
/// Same as `lambda_http::run`.
///
/// # Cancel safety
///
/// Dropping the future ends the function's loop and the current invocation.
///
/// ```no_run
/// use lambda_http::{Error, Request, service_fn, tower::ServiceBuilder};
/// use lambda_idempotency::{Idempotency, lambda::http};
///
/// async fn create_payment(_request: Request) -> Result<&'static str, Error> {
///     Ok("paid")
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// # let store = lambda_idempotency::store::memory::MemoryStore::new();
/// let idempotency = Idempotency::builder(store).build()?;
/// http::run(ServiceBuilder::new().layer(idempotency.http()).service(service_fn(create_payment))).await
/// # }
/// ```
pub async fn run<S>(service: S) -> Result<(), lambda_runtime::Error>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: std::fmt::Debug + Into<Diagnostic> + Send + 'static,
{
    lambda_runtime::run(guarded(service)).await
}

/// The service that [`run`] gives to the runtime: for tests, and for other runtimes.
pub fn guarded<S>(
    service: S,
) -> impl Service<LambdaEvent<LambdaRequest>, Response: Serialize + Send, Error = S::Error, Future: Send>
+ Clone
+ Send
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: Send + 'static,
{
    ServiceBuilder::new().map_request(REPAIR).service(Adapter::from(Readable(service)))
}

/// Calls the service with readable requests, and refuses the others.
#[derive(Clone, Debug)]
struct Readable<S>(S);

/// A response that was converted for Lambda. This wrapper prevents a second conversion by `lambda_http`, which would
/// treat bytes without a content type as text.
#[derive(Debug)]
struct Converted(Response<Body>);

impl IntoResponse for Converted {
    fn into_response(self) -> BoxFuture<'static, Response<Body>> {
        Box::pin(std::future::ready(self.0))
    }
}

/// Takes the response if it's one that an [`HttpLayer`](super::HttpLayer) marked as converted.
fn exact<R: 'static>(answer: &mut R) -> Option<Response<Body>> {
    let response = (answer as &mut dyn Any).downcast_mut::<Response<Body>>()?;
    response.extensions().get::<Exact>().is_some().then(|| std::mem::take(response))
}

impl<S> Service<Request<Body>> for Readable<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Converted;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Converted, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut service = take_ready(&mut self.0);
        Box::pin(async move {
            if let Some(refusal) = refusal(&request) {
                return Ok(Converted(refusal));
            }
            let mut answer = service.call(request).await?;
            Ok(Converted(match exact(&mut answer) {
                Some(response) => response,
                None => answer.into_response().await,
            }))
        })
    }
}

/// Runs an HTTP function that streams its responses, as `lambda_http::run_with_streaming_response` does, behind
/// the guard of [`run`].
///
/// # Errors
///
/// Same as `lambda_http::run_with_streaming_response`.
///
/// # Cancel safety
///
/// Like [`run`].
pub async fn run_streaming<S, A>(service: S) -> Result<(), lambda_runtime::Error>
where
    S: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::fmt::Debug + Into<Diagnostic> + Send + 'static,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
{
    lambda_runtime::run(guarded_streaming(service)).await
}

/// The service that [`run_streaming`] gives to the runtime: for tests, and for other runtimes that stay on one task,
/// since `lambda_http`'s adapter isn't `Send`.
pub fn guarded_streaming<S, A>(
    service: S,
) -> impl Service<
    LambdaEvent<LambdaRequest>,
    Response = StreamResponse<impl Stream<Item = Result<Bytes, BoxError>> + Unpin + Send>,
    Error = S::Error,
> + Clone
where
    S: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
{
    ServiceBuilder::new().map_request(REPAIR).service(StreamAdapter::from(ReadableStreaming(service)))
}

/// [`Readable`] for services that stream.
#[derive(Clone, Debug)]
struct ReadableStreaming<S>(S);

impl<S, A> Service<Request<Body>> for ReadableStreaming<S>
where
    S: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut service = take_ready(&mut self.0);
        Box::pin(async move {
            match refusal(&request) {
                Some(refusal) => Ok(refusal.map(Into::into)),
                None => Ok(service.call(request).await?.map(ResponseBody::streamed)),
            }
        })
    }
}

/// The response to a request that can't be read.
fn refusal(request: &Request<Body>) -> Option<Response<Body>> {
    is_unreadable(request)
        .then(|| Problem::from(ProblemKind::RequestUnreadable).into_response(&ProblemRules::default()))
}

fn is_unreadable(request: &Request<Body>) -> bool {
    let marks = match request.extensions().request_context_ref() {
        Some(RequestContext::ApiGatewayV1(context)) => &context.other,
        Some(RequestContext::ApiGatewayV2(context)) => &context.other,
        Some(RequestContext::Alb(context)) => &context.other,
        Some(RequestContext::VpcLattice(context)) => &context.other,
        _ => return false,
    };
    marks.contains_key(UNREADABLE)
}

/// Returns the event if `lambda_http` can read it, and otherwise an empty event with the field [`UNREADABLE`]. The
/// arguments after the event's type are the fields from which `lambda_http` builds the URI.
macro_rules! readable {
    ($event:ident, $kind:ident($type:ident), $($($field:ident).+),+) => {{
        let mut uri = $type::default();
        $(uri.$($field).+.clone_from(&$event.$($field).+);)+
        if is_readable($event.is_base64_encoded, $event.body.as_deref(), LambdaRequest::$kind(uri)) {
            LambdaRequest::$kind($event)
        } else {
            let mut marked = $type::default();
            marked.request_context.other.insert(UNREADABLE.into(), Value::Bool(true));
            LambdaRequest::$kind(marked)
        }
    }};
}

/// The request that the layer gets for this event.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't an HTTP event, or can't be read.
pub(super) fn request_of(event: &RawValue) -> Result<Request<Body>, Error> {
    let invalid = |why: &'static str| Error::new(ErrorKind::Invalid, why);
    let event: LambdaRequest = serde_json::from_str(event.get())
        .map_err(|_| invalid("the event isn't an HTTP request of a known front end"))?;
    let request = Request::from(repaired(event));
    if is_unreadable(&request) {
        return Err(invalid("the request can't be read; the function answers 400 and `request-unreadable`"));
    }
    Ok(request)
}

/// Changes the event so that `lambda_http` reads all of it. If that's impossible, returns an empty event with the field
/// [`UNREADABLE`].
fn repaired(event: LambdaRequest) -> LambdaRequest {
    match event {
        LambdaRequest::ApiGatewayV1(mut event) => {
            keep_repeated(&mut event.headers, &event.multi_value_headers);
            readable!(
                event,
                ApiGatewayV1(ApiGatewayProxyRequest),
                headers,
                path,
                request_context.domain_name,
                request_context.stage
            )
        }
        LambdaRequest::ApiGatewayV2(event) => readable!(
            event,
            ApiGatewayV2(ApiGatewayV2httpRequest),
            headers,
            raw_path,
            raw_query_string,
            request_context.domain_name,
            request_context.stage
        ),
        LambdaRequest::Alb(mut event) => {
            keep_repeated(&mut event.headers, &event.multi_value_headers);
            readable!(event, Alb(AlbTargetGroupRequest), headers, path)
        }
        LambdaRequest::VpcLatticeV2(event) => {
            readable!(event, VpcLatticeV2(VpcLatticeRequestV2), headers, path)
        }
        other => other,
    }
}

/// Removes every header from `headers` that's also in the multi-value map `all`. Otherwise `lambda_http` would replace
/// the map's values with the single value. Keeps the host and the scheme, which `lambda_http` reads from `headers`.
fn keep_repeated(headers: &mut HeaderMap, all: &HeaderMap) {
    const READ: [HeaderName; 2] = [header::HOST, HeaderName::from_static("x-forwarded-proto")];
    for name in all.keys().filter(|name| !READ.contains(name)) {
        headers.remove(name);
    }
}

/// Whether `lambda_http` can read this body, and build a `Request` from `uri`, an event with only the URI's fields.
/// Otherwise `lambda_http` would panic, for example on an invalid host or a query with a space.
fn is_readable(is_base64: bool, body: Option<&str>, uri: LambdaRequest) -> bool {
    let is_decodable = !is_base64 || body.is_none_or(|body| STANDARD.decode(body).is_ok());
    is_decodable && catch_unwind(AssertUnwindSafe(|| drop(Request::from(uri)))).is_ok()
}
