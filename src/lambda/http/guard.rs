//! Guards `lambda_http`: repairs events that `lambda_http` would read only in part, and refuses events and changes
//! responses that would make it panic or fail.

use std::{
    any::Any,
    borrow::Cow,
    collections::HashMap,
    env,
    mem::replace,
    task::{Context, Poll},
};

use ::http::{HeaderMap, HeaderName, Request, Response, Uri, header};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::Stream;
use lambda_http::{
    Adapter, Body, IntoResponse, StreamAdapter,
    aws_lambda_events::{
        alb::AlbTargetGroupRequest,
        apigw::{ApiGatewayProxyRequest, ApiGatewayV2httpRequest, ApiGatewayWebsocketProxyRequest},
        query_map::QueryMap,
        vpc_lattice::VpcLatticeRequestV2,
    },
    request::LambdaRequest,
};
use lambda_runtime::{Diagnostic, LambdaEvent, StreamResponse};
use serde::Serialize;
use tower::Service;
use url::Url;

use super::{
    BoxError,
    answer::{self, Exact, ResponseBody},
    problem::Problem,
    problem::{ProblemKind, ProblemRules},
    response,
};
use crate::{
    future::BoxFuture,
    lambda::{self, take_ready},
    observe,
};

/// Runs an HTTP function as `lambda_http::run` does, and guards it against events and responses that `lambda_http` 1.3
/// mishandles:
///
/// - A client sends a header to a REST API twice: `lambda_http` keeps one value. With this guard, the service sees
///   both values, and this library's layer refuses two keys.
/// - A body claims to be base64 but isn't, or a host or path doesn't form a valid URI: `lambda_http` panics, and the
///   caller gets 502. With this guard, the caller gets 400 and `request-unreadable`, and the service isn't called. The
///   guard checks the event first, so this works with `panic = "abort"` too.
/// - A response has a header whose value isn't UTF-8, so no event can carry it: `lambda_http` fails, and the process
///   ends. With this guard, the response is sent without that value, and the library logs the header's name. The layer
///   itself never records such a response as an outcome to replay: see
///   [the module](super#large-responses-and-streams).
/// - A response's body breaks off: `lambda_http` panics. With this guard, the caller gets 500 if the handler returns
///   an axum body and the feature `axum` is on, or if panics unwind.
/// - This library's layer returns bytes without a content type, or text whose content type names another character set
///   than UTF-8: `lambda_http` converts the body a second time, and changes it. With this guard, the body stays as the
///   layer returned it, if the layer is the outermost service. If it isn't, for example because an axum router contains
///   the layer, set a content type for bytes, such as `application/octet-stream`. Do the same if you use
///   `lambda_http::run`.
///
/// Like [`lambda::run`], it also reports this library's errors to Lambda with their own types, if the handler returns
/// one.
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
    lambda::run(guarded(service)).await
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
    guarded_with(service, refusal)
}

/// Like [`guarded`], but `refusal` returns the response to a request that can't be read. For an API with its own
/// documentation of problems, return [`HttpLayer::refusal`](super::HttpLayer::refusal) of
/// [`ProblemKind::RequestUnreadable`].
pub fn guarded_with<S>(
    service: S,
    refusal: impl Fn() -> Response<Body> + Clone + Send + 'static,
) -> impl Service<LambdaEvent<LambdaRequest>, Response: Serialize + Send, Error = S::Error, Future: Send>
+ Clone
+ Send
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: Send + 'static,
{
    Guarded { service, refusal }
}

/// The guard around a service.
#[derive(Clone, Debug)]
struct Guarded<S, R> {
    service: S,
    refusal: R,
}

impl<S, R> Service<LambdaEvent<LambdaRequest>> for Guarded<S, R>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: Send + 'static,
    R: Fn() -> Response<Body> + Clone + Send + 'static,
{
    type Response =
        <Adapter<'static, Converted, Readable<S, R>> as Service<LambdaEvent<LambdaRequest>>>::Response;
    type Error = S::Error;
    type Future =
        <Adapter<'static, Converted, Readable<S, R>> as Service<LambdaEvent<LambdaRequest>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, event: LambdaEvent<LambdaRequest>) -> Self::Future {
        let (payload, body) = prepared(event.payload);
        let service = take_ready(&mut self.service);
        let readable = Readable { service, body, refusal: self.refusal.clone() };
        Adapter::from(readable).call(LambdaEvent::new(payload, event.context))
    }
}

/// Calls the service with one request and the request's body, or refuses the request if its event can't be read.
struct Readable<S, R> {
    service: S,
    /// The body that was taken out of the event; `None` if the event still has it.
    body: Result<Option<Body>, Unreadable>,
    /// Returns the response to a request that can't be read.
    refusal: R,
}

impl<S, R> Readable<S, R> {
    /// Gives `request` its body. `None` if the request can't be read.
    fn complete(&mut self, mut request: Request<Body>) -> Option<Request<Body>> {
        if let Some(body) = replace(&mut self.body, Ok(None)).ok()? {
            *request.body_mut() = body;
        }
        Some(request)
    }
}

/// The response to a request that can't be read.
fn refusal() -> Response<Body> {
    observe::unreadable();
    Problem::from(ProblemKind::RequestUnreadable).into_response(&ProblemRules::default())
}

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

impl<S, R> Service<Request<Body>> for Readable<S, R>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send + 'static,
    S::Error: Send,
    R: Fn() -> Response<Body>,
{
    type Response = Converted;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Converted, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.complete(request).map(|request| self.service.call(request));
        let answering = answering.ok_or_else(|| (self.refusal)());
        Box::pin(async move {
            let mut answer = match answering {
                Ok(answering) => answering.await?,
                Err(refusal) => return Ok(Converted(refusal)),
            };
            let mut response = match exact(&mut answer) {
                Some(response) => response,
                None => answer::converted(answer).await.unwrap_or_else(answer::broken_off),
            };
            response::keep_delivered(response.headers_mut(), response::is_utf8);
            Ok(Converted(response))
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
    lambda::run(guarded_streaming(service)).await
}

/// The service that [`run_streaming`] gives to the runtime: for tests, and for other runtimes.
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
    GuardedStreaming(service)
}

/// [`Guarded`] for services that stream.
#[derive(Clone, Debug)]
struct GuardedStreaming<S>(S);

impl<S, A> Service<LambdaEvent<LambdaRequest>> for GuardedStreaming<S>
where
    S: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
{
    type Response = <StreamAdapter<'static, ReadableStreaming<S>, ResponseBody> as Service<
        LambdaEvent<LambdaRequest>,
    >>::Response;
    type Error = S::Error;
    type Future = <StreamAdapter<'static, ReadableStreaming<S>, ResponseBody> as Service<
        LambdaEvent<LambdaRequest>,
    >>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, event: LambdaEvent<LambdaRequest>) -> Self::Future {
        let (payload, body) = prepared(event.payload);
        let readable = Readable { service: take_ready(&mut self.0), body, refusal: () };
        let readable = ReadableStreaming(readable);
        StreamAdapter::from(readable).call(LambdaEvent::new(payload, event.context))
    }
}

/// [`Readable`] for services that stream.
struct ReadableStreaming<S>(Readable<S, ()>);

impl<S, A> Service<Request<Body>> for ReadableStreaming<S>
where
    S: Service<Request<Body>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    A: http_body::Body + Send + 'static,
    A::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<ResponseBody>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.0.complete(request).map(|request| self.0.service.call(request));
        Box::pin(async move {
            match answering {
                Some(answering) => {
                    let mut response = answering.await?.map(ResponseBody::streamed);
                    // `lambda_runtime` 1.5 would leave out the other values, and write an empty list in their place.
                    response::keep_delivered(response.headers_mut(), |name, value| {
                        *name == header::SET_COOKIE || value.to_str().is_ok()
                    });
                    Ok(response)
                }
                None => Ok(refusal().map(Into::into)),
            }
        })
    }
}

/// The part of an event that makes it unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Body,
    Uri,
}

/// Takes the body out of the event, so that `lambda_http` neither copies nor decodes it. The last argument says
/// whether `lambda_http` can build the event's URI.
macro_rules! prepared {
    ($event:ident, $kind:ident($type:ident), $is_valid:expr) => {{
        let is_valid = $is_valid;
        match if is_valid {
            body_of(&mut $event.body, $event.is_base64_encoded)
        } else {
            Err(Unreadable::Uri)
        } {
            Ok(body) => (LambdaRequest::$kind($event), Ok(Some(body))),
            Err(unreadable) => (LambdaRequest::$kind($type::default()), Err(unreadable)),
        }
    }};
}

/// The same for an event in the form of a REST API.
macro_rules! prepared_as_rest {
    ($event:ident, $kind:ident($type:ident)) => {{
        keep_repeated(&mut $event.headers, &$event.multi_value_headers);
        keep_valued(&mut $event.query_string_parameters);
        keep_valued(&mut $event.multi_value_query_string_parameters);
        let context = &$event.request_context;
        let path = with_stage(context.stage.as_deref(), $event.path.as_deref().unwrap_or_default());
        let uri = uri(&path, &$event.headers, context.domain_name.as_deref());
        let query = query_of([&$event.multi_value_query_string_parameters, &$event.query_string_parameters]);
        prepared!($event, $kind($type), is_valid(uri, &query))
    }};
}

/// Changes the event so that `lambda_http` reads all of it, and returns it with its body. If that's impossible, returns
/// an empty event.
pub(super) fn prepared(event: LambdaRequest) -> (LambdaRequest, Result<Option<Body>, Unreadable>) {
    match event {
        LambdaRequest::ApiGatewayV1(mut event) => {
            prepared_as_rest!(event, ApiGatewayV1(ApiGatewayProxyRequest))
        }
        LambdaRequest::WebSocket(mut event) => {
            prepared_as_rest!(event, WebSocket(ApiGatewayWebsocketProxyRequest))
        }
        LambdaRequest::ApiGatewayV2(mut event) => {
            let context = &event.request_context;
            let path = with_stage(context.stage.as_deref(), event.raw_path.as_deref().unwrap_or_default());
            let uri = uri(&path, &event.headers, context.domain_name.as_deref());
            let query = event.raw_query_string.as_deref().unwrap_or_default();
            prepared!(event, ApiGatewayV2(ApiGatewayV2httpRequest), is_valid(uri, query))
        }
        LambdaRequest::Alb(mut event) => {
            keep_repeated(&mut event.headers, &event.multi_value_headers);
            keep_valued(&mut event.query_string_parameters);
            keep_valued(&mut event.multi_value_query_string_parameters);
            let uri = uri(event.path.as_deref().unwrap_or_default(), &event.headers, None);
            let mut query =
                query_of([&event.multi_value_query_string_parameters, &event.query_string_parameters]);
            query = query.repeat(RECODED);
            prepared!(event, Alb(AlbTargetGroupRequest), is_valid(uri, &query))
        }
        LambdaRequest::VpcLatticeV2(mut event) => {
            keep_valued(&mut event.query_string_parameters);
            let uri = uri(event.path.as_deref().unwrap_or_default(), &event.headers, None);
            let query = query_of([&event.query_string_parameters; 2]).repeat(RECODED);
            prepared!(event, VpcLatticeV2(VpcLatticeRequestV2), is_valid(uri, &query))
        }
        other => (other, Ok(None)),
    }
}

/// `lambda_http` decodes the query of a load balancer or of VPC Lattice once more, and encodes the result. That makes
/// the query at most this many times as long, and a URI's length is limited.
const RECODED: usize = 2;

/// The event's body. It's decoded here, once, and text isn't copied.
fn body_of(body: &mut Option<String>, is_base64: bool) -> Result<Body, Unreadable> {
    match body.take() {
        None => Ok(Body::Empty),
        Some(text) if is_base64 => STANDARD.decode(text).map(Body::Binary).map_err(|_| Unreadable::Body),
        Some(text) => Ok(Body::Text(text)),
    }
}

/// Removes every header from `headers` that's also in the multi-value map `all`. Otherwise `lambda_http` would replace
/// the map's values with the single value. Keeps the host and the scheme, which `lambda_http` reads from `headers`.
fn keep_repeated(headers: &mut HeaderMap, all: &HeaderMap) {
    const READ: [HeaderName; 2] = [header::HOST, SCHEME];
    for name in all.keys().filter(|name| !READ.contains(name)) {
        headers.remove(name);
    }
}

const SCHEME: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes the names without a value. `QueryMap`'s iterator panics at such a name, and its type shows its names only as
/// JSON.
fn keep_valued(query: &mut QueryMap) {
    if query.is_empty() {
        return;
    }
    let Ok(json) = serde_json::to_string(query) else { return };
    if json.contains(":[]") {
        let mut pairs: HashMap<String, Vec<String>> = serde_json::from_str(&json).unwrap_or_default();
        pairs.retain(|_, values| !values.is_empty());
        *query = QueryMap::from(pairs);
    }
}

/// The query that `lambda_http` 1.3.2 appends to the URI of an event without a raw query.
fn query_of(queries: [&QueryMap; 2]) -> String {
    queries.into_iter().find(|query| !query.is_empty()).map(QueryMap::to_query_string).unwrap_or_default()
}

/// The path in the URI: begins with the stage, as `lambda_http` 1.3.2 builds it.
fn with_stage<'a>(stage: Option<&str>, path: &'a str) -> Cow<'a, str> {
    match stage
        .filter(|stage| *stage != "$default" && env::var("AWS_LAMBDA_HTTP_IGNORE_STAGE_IN_PATH").is_err())
    {
        Some(stage) if !path.starts_with(&format!("/{stage}/")) => format!("/{stage}{path}").into(),
        _ => path.into(),
    }
}

/// The URI without its query, as `lambda_http` 1.3.2 builds it. `None` where `lambda_http` panics.
fn uri(path: &str, headers: &HeaderMap, domain: Option<&str>) -> Option<String> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    Some(match text(header::HOST).or(domain) {
        None => Url::parse(&format!("http://localhost{path}")).ok()?.path().to_owned(),
        Some(host) => {
            let scheme = text(SCHEME).unwrap_or("https");
            Url::parse(&format!("{scheme}://{host}{path}")).ok()?.into()
        }
    })
}

/// Whether `lambda_http` can build a `Request` with this URI. Otherwise it would panic, for example on a query with a
/// space.
fn is_valid(uri: Option<String>, query: &str) -> bool {
    let Some(mut uri) = uri else { return false };
    if !query.is_empty() {
        uri.push('?');
        uri.push_str(query);
    }
    Uri::try_from(uri).is_ok()
}
