//! HTTP: a tower layer that implements the `Idempotency-Key` header
//! (draft-ietf-httpapi-idempotency-key-header-07).
//!
//! Put it in front of a `lambda_http` handler, an axum `Router`, or one axum route.
//!
//! ```no_run
//! use lambda_http::{Error, IntoResponse, Request, service_fn, tower::ServiceBuilder};
//! use lambda_idempotency::{Idempotency, lambda::http};
//!
//! async fn create_payment(_request: Request) -> Result<impl IntoResponse, Error> {
//!     Ok("paid")
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! let idempotency = Idempotency::builder(store).build()?;
//! http::run(ServiceBuilder::new().layer(idempotency.http()).service(service_fn(create_payment))).await
//! # }
//! ```
//!
//! The layer protects POST and PATCH; every other method passes through untouched. A WebSocket API's messages count as
//! POST ([below](#websocket-messages)). A request without a key
//! passes through too, unless [`HttpLayer::required`] is set. [`HttpLayer::key_fields`] takes the key from the body.
//!
//! | the layer's own response | status | `code` |
//! |---|---|---|
//! | a key is required and there is none | 400 | `key-missing` |
//! | the key is malformed, empty, too long, sent twice, or not in the configured format | 400 | `key-invalid` |
//! | a caller is required, and the request has none; or the closure of [`HttpLayer::caller`] failed | 403 | `caller-missing` |
//! | the closure of [`HttpLayer::caller`] can't tell now who the caller is | 503 | `store-unavailable` |
//! | the request carries credentials, and their owner can't be identified | 500 | `caller-unknown` |
//! | the caller may not have the recorded response | 403 | `replay-forbidden` |
//! | the key was used with another request | 422 | `key-reused` |
//! | the operation is still running | 409 | `in-progress` |
//! | it's unknown whether the operation took effect: nothing was recorded; or under at-most-once, an earlier run gave no answer | 409 | `outcome-unknown` |
//! | the operation is done, but its response wasn't retained, or this front end can't deliver it | 409 | `not-retained` |
//! | the operation failed permanently, in this run or an earlier one | 500 | `operation-failed` |
//! | the record can't be read | 500 | `record-unreadable` |
//! | the layer wraps one handler twice | 500 | `misconfigured` |
//! | a condition on the handler's writes failed | 409 | `declined` |
//! | the store is unavailable, or no time is left | 503 | `store-unavailable` |
//! | the body is over 10 MiB, or over the limit of a layer outside | 413 | `body-too-large` |
//! | the body breaks off | 400 | `body-unreadable` |
//! | [`run`] can't read the event: the body isn't valid base64, or the URI isn't valid | 400 | `request-unreadable` |
//!
//! Each of these responses is `application/problem+json` (RFC 9457). Its `type` is the URI of its row on
//! [the specification's page](crate::guide::idempotency_specification), or on your own page
//! ([`HttpLayer::documentation`]). The `Link` header links to the same page. The field `retryable` is a boolean, and a
//! retryable response carries `Retry-After`: the rest of the lease, at most 5 s, or 1 s if no lease is known.
//! [`guide::idempotency_specification`](crate::guide::idempotency_specification) is the page to publish for an API's
//! clients.
//!
//! A replay is marked with `Idempotent-Replayed: true`, and leaves out headers that belong to one exchange, such as
//! `Set-Cookie`, `Date` and `x-request-id`. [`HttpLayer::on_replay`] adds headers to replays.
//!
//! The layer records 2xx, 3xx and final 4xx. A 5xx releases the key, and so does a 4xx after which the same
//! body may succeed, such as 401, 404, 415 and 429: [the page](crate::guide::idempotency_specification) has the
//! table. A handler's error releases the key too. [`Recording`](crate::settings::Recording) and
//! [`HttpLayer::record_when`] override these rules.
//!
//! Under at-most-once, the layer records every response, whatever its status, since a layer inside this one may have
//! responded after the handler's effect. A response that carries
//! [`Recording::Release`](crate::settings::Recording::Release) releases the key instead. [`ReleaseRejections`] wraps an
//! inner layer, and adds `Recording::Release` to the responses that the inner layer gives without calling the handler.
//!
//! # Keys from the body
//!
//! Some clients send no header. For their requests, [`HttpLayer::key_fields`] takes the key from fields of the JSON
//! body, and [`HttpLayer::key`] passes the request and the body to a closure that returns the key.
//!
//! ```
//! use std::time::Duration;
//! use lambda_idempotency::KeyFields;
//!
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! # let idempotency = lambda_idempotency::Idempotency::builder(store).function("shop").build()?;
//! let layer = idempotency
//!     .with_settings(|settings| settings.retention = Duration::from_secs(10 * 60))?
//!     .http()
//!     .operation("purchase")?
//!     .key_fields(KeyFields::new(["/user", "/product_id"])?.all_required());
//! # Ok::<(), lambda_idempotency::Error>(())
//! ```
//!
//! **A customer who buys the same product again within the retention gets a replay, and no second product.** The layer
//! can't tell a retry from a second purchase, unless a key field differs, such as a cart's id. Without such a field,
//! keep the retention short: a little longer than clients retry.
//!
//! - If the client sends the header, the header wins. The layer refuses a malformed header without reading the body.
//! - The same text in a header and in a field identifies two operations: keys from headers have the scope `http`, and
//!   keys from bodies `http-body`. So when a client begins to send headers, its keys never match records of keys from
//!   bodies.
//! - If the key's fields are absent, null or blank ([`KeyFields`](crate::KeyFields) has the rules), the request has
//!   no key: it runs unprotected, or gets 400 if a key is [`required`](HttpLayer::required). Requests without a body,
//!   forms and uploaded files have no key either.
//! - A request gets 400 and `key-invalid` if its body claims to be JSON but isn't, or if a field can't be looked up.
//!   The problem's `field` names the field to correct.
//! - The key belongs to its caller, as with headers. Anonymous callers share their keys, and a key from a body is
//!   easier to guess than one from a header: any anonymous caller who sends the same body gets the recorded response.
//!
//! All other rules for headers apply. For example, another method, path, query or body under the same key gets 422.
//! [`HttpLayer::fingerprint_fields`] limits the comparison to some fields. [`HttpLayer::quoted_keys`],
//! [`uuid_keys`](HttpLayer::uuid_keys) and [`shortest_key`](HttpLayer::shortest_key) apply only to headers.
//!
//! # Who gets a replay
//!
//! A key belongs to its caller: another caller can neither get its recorded response, nor block the key, nor learn that
//! the key exists.
//! The layer takes the caller that the front end verified, such as the issuer and subject of an API Gateway
//! JWT; [`guide::callers`](crate::guide::callers) has the table. With [`HttpLayer::caller`], a closure of yours names
//! the caller instead.
//!
//! **Authenticate outside this layer.** A replay doesn't reach the handler, so if the handler or a layer inside
//! this one checks a token, a replay skips that check. The layer therefore refuses a keyed request that carries
//! credentials whose owner it can't identify: the client gets 500, `caller-unknown`, before anything is claimed. To
//! allow such requests, identify the caller with [`HttpLayer::caller`], or use [`HttpLayer::shared_namespace`]. Keyed
//! requests without credentials share one anonymous namespace, unless [`HttpLayer::require_caller`] refuses them.
//!
//! # Paths
//!
//! The layer compares the whole path that the front end received, and closures such as
//! [`HttpLayer::pass_through_when`] see the path as the API's routes name it: without the stage, and without a custom
//! domain's base path if a REST API's event shows where the base path ends. The handler still gets its own URI.
//!
//! Without an event, behind the Lambda Web Adapter or in a local server, the path is the URI's. **Inside axum's
//! `Router::nest`, this path has lost its beginning**, and `/accounts/2/capture` would get the recorded response of
//! `/accounts/1/capture`. So put the layer on the outer router, after `nest`:
//!
//! ```
//! # use axum::{Router, routing::post};
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
//! # let capture = || async { "captured" };
//! let accounts = Router::new().route("/capture", post(capture));
//! let app: Router = Router::new().nest("/accounts/{id}", accounts).layer(idempotency.http());
//! # Ok::<(), lambda_idempotency::Error>(())
//! ```
//!
//! If the layer has to stand inside `nest`, switch on the feature `axum` (for axum 0.8, whose own feature
//! `original-uri` it needs). If something else shortens the path, use [`HttpLayer::path`].
//!
//! # Large responses, and streams
//!
//! If a response exceeds [`Settings::max_response`](crate::settings::Settings::max_response), the layer passes it on
//! whole, and records the operation as done without the response: duplicates get 409, `not-retained`. If the front end
//! can't deliver a response, the layer records the operation in the same way. Then the first caller, too, gets 409:
//! `not-retained`, or `outcome-unknown` if the record couldn't be written. A recorded response that's too large for
//! another front end gets 409 only there: the problem says so, and the record stays.
//!
//! A front end can't deliver a response that's over its limit, or has a header whose value isn't UTF-8, since Lambda's
//! response is JSON. The limit applies to that JSON, with a binary body in base64.
//!
//! | front end | the largest response | time to answer | the limits in AWS's documentation |
//! |---|---|---|---|
//! | REST API | 6,291,556 bytes (Lambda's limit; its own is 10 MB) | 29 s, or more with a raised quota | "Quotas for configuring and running a REST API", API Gateway developer guide |
//! | HTTP API | 6,291,556 bytes (Lambda's limit; its own is 10 MB) | 30 s; the layer counts 29 s | "Quotas for configuring and running an HTTP API", API Gateway developer guide |
//! | WebSocket API | 128 KB, for a route that sends a response; the layer checks only Lambda's limit | 29 s | "Quotas for configuring and running a WebSocket API", API Gateway developer guide |
//! | function URL | 6,291,556 bytes | until the function's timeout | "Lambda quotas", AWS Lambda developer guide |
//! | load balancer | 1 MB (1,048,576 bytes) | until the function's timeout | "Use Lambda functions as targets of an Application Load Balancer" |
//! | VPC Lattice | 6,291,556 bytes (Lambda's limit; its own is 6 MB) | until the function's timeout | "Lambda functions as targets in VPC Lattice" |
//! | a function that streams | 200 MB; the layer records up to `max_response` | REST API: 5 minutes without data | "Lambda quotas"; "Stream the integration response", API Gateway developer guide |
//! | none (a server outside Lambda) | no limit, and any header | no limit | |
//!
//! For functions that stream their responses, use [`HttpLayer::streaming`]: it buffers only as much as it can record.
//! A streamed response's header values have to be ASCII: the others are dropped. [`HttpLayer::pass_through_when`] leaves
//! a route unprotected.
//!
//! If the body of a response breaks off, that counts as a handler's error. A caller whose failure isn't recorded gets
//! 500 without a body. For an axum body, switch the feature `axum` on: the layer then reads the body itself. Any other
//! body is read by `lambda_http`, which panics: with `panic = "abort"` this ends the process, and the key stays claimed
//! until its lease expires.
//!
//! # WebSocket messages
//!
//! Behind a WebSocket API, a message counts as POST, though `lambda_http` shows it as GET. Messages have no headers, so
//! take their keys from the body ([`HttpLayer::key_fields`]). With [`HttpLayer::required`], a message without a key
//! gets 400. `$connect` and `$disconnect` events pass through. The route key and the body are compared, and not the ids
//! of the message and the request. The caller is the one that the authorizer of `$connect` verified. Without one, the
//! same key on another connection gets 422, even for the same client after it has connected again: the handler may know
//! the sender by the connection. Name the caller with an authorizer or [`HttpLayer::caller`].
//!
//! # Repeated headers
//!
//! If a client sends a header to a REST API twice, `lambda_http` keeps only one value. So if a client sends two
//! different keys, the layer sees only one of them. Use [`run`], which keeps both values, in place of
//! `lambda_http::run`. The layer then refuses the request.
//!
//! # Browsers
//!
//! Put `tower_http`'s `CorsLayer` **outside** this layer. `CorsLayer` answers preflights, and adds the headers
//! for the current origin to replays, conflicts and problems. Behind an HTTP API, a function URL or a load balancer,
//! `lambda_http` writes one value per header, so a `Vary` from the handler would hide the CORS layer's `Vary`: let
//! only the CORS layer set this header. If the handler sets its CORS headers itself, and no layer can be outside this
//! layer, use [`HttpLayer::replay_cors`]. Allow the headers that the idempotency layer reads, and expose those it
//! writes:
//!
//! ```
//! use lambda_http::{http::HeaderName, service_fn, tower::ServiceBuilder};
//! use lambda_idempotency::lambda::http::EXPOSED_HEADERS;
//! use tower_http::cors::{Any, CorsLayer};
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
//! # async fn create_payment(_: lambda_http::Request) -> Result<lambda_http::Response<lambda_http::Body>, lambda_http::Error> {
//! #     Ok(lambda_http::Response::default())
//! # }
//!
//! let cors = CorsLayer::new()
//!     .allow_origin(Any)
//!     .allow_headers(["content-type", "idempotency-key"].map(HeaderName::from_static))
//!     .expose_headers(EXPOSED_HEADERS);
//! let service = ServiceBuilder::new()
//!     .layer(cors)
//!     .layer(idempotency.http())
//!     .service(service_fn(create_payment));
//! # Ok::<(), lambda_idempotency::Error>(())
//! ```

mod answer;
mod body_key;
mod caller;
mod compared;
mod config;
mod cors;
mod credentials;
mod front_end;
mod guard;
mod headers;
mod key;
#[cfg(feature = "admin")]
pub(super) mod locate;
mod namespace;
mod operations;
mod path;
mod problem;
mod query;
mod recording;
mod rejections;
mod request;
mod response;
mod streaming;
mod websocket;

pub use answer::ResponseBody;
pub use caller::{Caller, scope_caller, verified_caller};
pub use guard::{guarded, guarded_streaming, guarded_with, run, run_streaming};
pub use problem::{EXPOSED_HEADERS, ProblemKind};
pub use rejections::ReleaseRejections;
pub use response::{recorded, replayed};

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use ::http::{HeaderValue, Request, Response, request::Parts};
use lambda_http::{Body, IntoResponse, RequestExt};
use tower::{Layer, Service};

use crate::{
    error::{Error, ErrorKind},
    future::BoxFuture,
    idempotency::Idempotency,
    internal::SettingsExt as _,
    invocation::Invocation,
    key::StoredKey,
    lambda::{Idempotent, take_ready},
    observe,
    run::{
        context::{OperationContext, current, staging, within},
        protect::{Protected, Target, protect},
        replay::Replay,
        shadow,
        staging::AnyAnswer,
    },
    span::OperationSpan,
};
use answer::{Answer, Delivery, Exact, Read};
use body_key::Keyed;
use config::{Config, MayReplay};
use headers::incoming_trace;
use path::Routed;
use problem::Problem;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The HTTP layer: see [`Idempotency::http`]. [`HttpLayer::streaming`] makes one for a function that streams.
#[derive(Clone, Debug)]
#[must_use]
pub struct HttpLayer<const STREAMING: bool = false> {
    idempotency: Idempotency,
    config: Arc<Config>,
}

impl HttpLayer {
    pub(super) fn new(idempotency: &Idempotency) -> Self {
        Self { idempotency: idempotency.clone(), config: Arc::new(Config::default()) }
    }
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Names the operation. If a function has more than one such layer, give each its own name, or they share
    /// keys. Default: the name from [`Builder::operation`](crate::Builder::operation).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty, too long, or contains anything but
    /// ASCII letters, digits, `-`, `_` and `.`.
    pub fn operation(mut self, name: impl AsRef<str>) -> Result<Self, Error> {
        self.idempotency = self.idempotency.named(name.as_ref())?;
        Ok(self)
    }
}

impl<S, const STREAMING: bool> Layer<S> for HttpLayer<STREAMING> {
    type Service = Idempotent<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotent { inner, layer: self.clone() }
    }
}

impl<S, B> Service<Request<B>> for Idempotent<S, HttpLayer>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body + From<Vec<u8>> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = take_ready(&mut self.inner);
        let layer = self.layer.clone();
        Box::pin(async move {
            Ok(match layer.call(inner, request).await? {
                Answer::Whole(response) => response,
                // Only a response whose body broke off.
                Answer::Streamed(response, _) => response.into_response().await,
            })
        })
    }
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    async fn call<S, B>(&self, inner: S, request: Request<B>) -> Result<Answer, S::Error>
    where
        Self: Read<S::Response>,
        S: Service<Request<B>>,
        S::Response: 'static,
        S::Error: 'static,
        B: http_body::Body + From<Vec<u8>> + 'static,
        B::Error: Into<BoxError>,
    {
        let joins = response::needs_joining(request.extensions().request_context_ref());
        let mut answer = self.handle(inner, request).await?;
        if joins {
            response::join(answer.headers_mut());
        }
        Ok(answer)
    }

    async fn handle<S, B>(&self, mut inner: S, request: Request<B>) -> Result<Answer, S::Error>
    where
        Self: Read<S::Response>,
        S: Service<Request<B>>,
        S::Response: 'static,
        S::Error: 'static,
        B: http_body::Body + From<Vec<u8>> + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let routed = Routed::enter(&self.config, &mut parts);
        let invocation = parts
            .extensions
            .lambda_context_ref()
            .map_or_else(Invocation::unknown, |context| self.idempotency.entered(context));
        let now = self.idempotency.driver().now();
        let origin_of_page = cors::origin(&parts.headers);
        let context = parts.extensions.request_context_ref();
        let delivery = Self::delivery(context);
        let invocation =
            match front_end::caller_waits_until(context, self.config.answer_within, STREAMING, now) {
                Some(until) => invocation.with_caller_waiting_until(until),
                None => invocation,
            };
        let Keyed { key, body } = match self.keyed(&parts, body).await {
            Ok(keyed) => keyed,
            Err(problem) => return Ok(Answer::Whole(self.problem(problem))),
        };
        let scoped = key.map(|(key, origin)| {
            let caller = self.caller_of(&parts)?;
            Ok((key, origin, self.scope(&parts, caller.as_ref(), origin)?, caller))
        });
        let scoped = match scoped.transpose() {
            Ok(scoped) => scoped,
            Err(problem) if self.lets_pass(&problem) => None,
            Err(problem) => return Ok(Answer::Whole(self.problem(problem))),
        };
        let Some((key, origin, scope, caller)) = scoped else {
            let surroundings = OperationContext::unprotected(invocation);
            routed.leave(&mut parts);
            let request = Request::from_parts(parts, body.into_body());
            let response = async { Ok(self.unmarked(Self::pass(inner.call(request).await?).await)) };
            return within(surroundings, response).await;
        };
        let body = match body.read(self.most_body()).await {
            Ok(body) => body,
            Err(problem) => return Ok(Answer::Whole(self.problem(problem))),
        };
        let fingerprint = self.fingerprint(&parts, caller.as_ref(), routed.given(), body.bytes());
        let for_replay =
            self.config.may_replay.as_ref().map(|may_replay| (may_replay, parts.clone(), caller));
        routed.leave(&mut parts);
        let stored = StoredKey::new(&scope, &key);
        let target = Target {
            span: OperationSpan::new(&stored, || incoming_trace(&parts.headers)),
            key: stored.clone(),
            fingerprint,
            invocation,
            cut_off: None,
            way: self.idempotency.way(),
            inside: None,
        };
        let handler = || {
            let mut request = Request::from_parts(parts, body.into_body());
            if let Some(claim) = current() {
                request.extensions_mut().insert(claim);
            }
            if let Some(staging) = staging() {
                request.extensions_mut().insert(staging);
            }
            let response = inner.call(request);
            async { Ok(self.unmarked(self.read_as_needed(response.await?).await)) }
        };
        let judge = |result, policy| self.judged(result, policy, delivery);
        let again = |answer: AnyAnswer| {
            let response = answer.downcast::<Result<S::Response, S::Error>>().ok()?;
            Some(async { Ok(self.unmarked(self.read_as_needed((*response)?).await)) })
        };
        match protect(self.idempotency.driver(), target, handler, judge, again).await {
            Ok(Protected::Ran(judged)) => self.answered(judged, true),
            Ok(Protected::RanUnrecorded(judged)) => self.answered(judged, false),
            Ok(Protected::Replayed(replay)) => {
                let answer =
                    || self.delivered(self.replayed(&stored, &replay, origin_of_page.as_ref()), delivery);
                Ok(Answer::Whole(self.if_allowed(for_replay, answer).await))
            }
            Err(error) if error.kind() == ErrorKind::NotRetained && !error.is_of_failure() => {
                let done = || self.not_retained(Problem::from(&error).of(origin));
                Ok(Answer::Whole(self.if_allowed(for_replay, done).await))
            }
            Err(error) => Ok(Answer::Whole(self.problem(Problem::from(&error).of(origin)))),
        }
    }

    /// Answers a duplicate, or refuses it if the API's `replay_if` forbids the replay.
    async fn if_allowed(
        &self,
        for_replay: Option<(&MayReplay, Parts, Option<Caller>)>,
        answer: impl FnOnce() -> Response<Body>,
    ) -> Response<Body> {
        let may_replay = match for_replay {
            Some((may_replay, parts, caller)) => may_replay(parts, caller).await,
            None => true,
        };
        if may_replay { answer() } else { self.problem(ProblemKind::ReplayForbidden) }
    }

    /// The response if the operation is recorded as done, but its response wasn't retained.
    fn not_retained(&self, problem: impl Into<Problem>) -> Response<Body> {
        let Some(answer) = &self.config.on_not_retained else { return self.problem(problem) };
        let mut response = answer();
        response.headers_mut().insert(&self.config.marker, HeaderValue::from_static("true"));
        response
    }

    /// Reads a response as far as recording needs it. If idempotency isn't enforced, a streamed response passes
    /// through unread.
    async fn read_as_needed<R>(&self, response: R) -> Answer
    where
        Self: Read<R>,
    {
        if self.is_enforced() { self.read(response).await } else { Self::pass(response).await }
    }

    fn is_enforced(&self) -> bool {
        self.idempotency.settings().is_enforced()
    }

    /// The largest request body that the layer reads, in bytes.
    fn most_body(&self) -> usize {
        if self.is_enforced() { self.config.max_body } else { usize::MAX }
    }

    /// Whether a request runs unprotected in spite of this problem, because idempotency isn't enforced.
    fn lets_pass(&self, problem: &Problem) -> bool {
        let kind = match problem.kind() {
            ProblemKind::CallerUnknown => "CallerUnknown",
            _ => "CallerMissing",
        };
        shadow::lets_pass(self.idempotency.driver(), kind)
    }

    /// The replay, or the problem if this request's front end can't deliver it. The record may have been made behind
    /// another front end, which can, so it stays.
    fn delivered(&self, replay: Response<Body>, delivery: Option<Delivery>) -> Response<Body> {
        match delivery.and_then(|delivery| delivery.refuses(&replay)) {
            Some(why) => self.not_retained(Problem::from(ProblemKind::NotRetained).saying(why.texts())),
            None => replay,
        }
    }

    /// The response for a duplicate whose page has this origin.
    fn replayed(&self, key: &StoredKey, replay: &Replay, origin: Option<&HeaderValue>) -> Response<Body> {
        let mut response = if replay.is_failure() {
            self.problem(ProblemKind::OperationFailed)
        } else {
            match response::decode(replay.response(), &self.config.marker) {
                Ok(mut response) => {
                    self.config.headers.replay_to(origin, response.headers_mut());
                    response.extensions_mut().insert(Exact);
                    response
                }
                Err(error) => {
                    observe::refused(key, &error, false);
                    return self.problem(&error);
                }
            }
        };
        if let Some(on_replay) = &self.config.on_replay {
            on_replay(replay, &mut response);
        }
        response
    }

    /// The response that this layer gives in place of the handler's, with the API's own status and documentation. For
    /// code outside the layer that refuses requests in the same form, such as [`guarded_with`]'s closure.
    ///
    /// ```
    /// # use lambda_idempotency::lambda::http::ProblemKind;
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().documentation("https://api.example/idempotency");
    /// assert_eq!(layer.refusal(ProblemKind::CallerMissing).status(), 403);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn refusal(&self, kind: ProblemKind) -> Response<Body> {
        self.problem(kind)
    }

    fn problem(&self, problem: impl Into<Problem>) -> Response<Body> {
        problem.into().into_response(&self.config.problems)
    }

    /// Removes a replay marker that the handler set, since only a replay may have one.
    fn unmarked(&self, mut answer: Answer) -> Answer {
        answer.headers_mut().remove(headers::REPLAYED);
        answer.headers_mut().remove(&self.config.marker);
        answer
    }
}
