//! HTTP: a tower layer that keeps the contract of the `Idempotency-Key` header
//! (draft-ietf-httpapi-idempotency-key-header-07).
//!
//! It stands in front of a `lambda_http` handler, an axum `Router`, or one axum route.
//!
//! ```no_run
//! use lambda_http::{Error, IntoResponse, Request, run, service_fn, tower::ServiceBuilder};
//! use lambda_idempotency::Idempotency;
//!
//! async fn create_payment(_request: Request) -> Result<impl IntoResponse, Error> {
//!     Ok("paid")
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! let idempotency = Idempotency::builder(store).build()?;
//! run(ServiceBuilder::new().layer(idempotency.http()).service(service_fn(create_payment))).await
//! # }
//! ```
//!
//! POST and PATCH are protected; every other method passes through untouched. A request without a key
//! passes through too, unless [`HttpLayer::required`] says otherwise.
//!
//! | the layer's own answer | status | `code` |
//! |---|---|---|
//! | a key is required and there is none | 400 | `key-missing` |
//! | the key is malformed, empty or too long | 400 | `key-invalid` |
//! | the key was used with another request | 422 | `key-reused` |
//! | the operation is still running | 409 | `in-progress` |
//! | at most once, and an earlier run ended without an answer | 409 | `outcome-unknown` |
//! | done, but the response was not kept | 409 | `not-retained` |
//! | failed for good in an earlier run | 500 | `operation-failed` |
//! | the record cannot be read | 500 | `record-unreadable` |
//! | the store cannot be used | 503 | `store-unavailable` |
//! | the body is over 10 MiB | 413 | `body-too-large` |
//! | the body breaks off | 400 | `body-unreadable` |
//!
//! Each is `application/problem+json` (RFC 9457) with the `type` `urn:lambda-idempotency:problem:<code>`
//! and a boolean `retryable`; those that are carry `Retry-After`. A replay is marked with
//! `Idempotent-Replayed: true`.
//!
//! Recorded are 2xx, 3xx and final 4xx; 401, 403, 408, 409, 413, 421, 423, 425, 429 and 5xx give the key
//! back (at most once, 5xx are recorded as well). A handler's error gives the key back too.
//!
//! A key belongs to the caller that the front end verified: an API Gateway JWT's issuer and subject, a
//! Lambda authorizer's principal, an IAM principal, and the tenant of the invocation. An API without an
//! authorizer has one namespace for all its callers.

mod caller;
mod key;
mod problem;
mod request;
mod response;

pub use caller::{Caller, scope_caller};
pub use response::{recorded, replayed};

use std::task::{Context, Poll};

use ::http::{HeaderName, Method, Request, Response, request::Parts};
use lambda_http::{Body, IntoResponse, RequestExt};
use tower::{Layer, Service};

use crate::{
    claim::current,
    engine::{Idempotency, Operation, Protected, Verdict},
    error::{Error, ErrorKind, RecordedFailure},
    fingerprint::Fingerprint,
    future::BoxFuture,
    invocation::{Invocation, Surroundings, within},
    key::{Key, StoredKey},
    observe,
    policy::{Execution, MissingKey, OnHandlerError},
};
use problem::Problem;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

impl Idempotency {
    /// A tower layer that keeps the contract of the `Idempotency-Key` header; see
    /// [the module](crate::lambda::http).
    pub fn http(&self) -> HttpLayer {
        HttpLayer { idempotency: self.clone(), missing_key: MissingKey::RunUnprotected }
    }
}

/// See [`Idempotency::http`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HttpLayer {
    idempotency: Idempotency,
    missing_key: MissingKey,
}

impl HttpLayer {
    /// Refuses a POST or PATCH without a key. Default: such a request runs unprotected.
    pub fn required(mut self) -> Self {
        self.missing_key = MissingKey::Refuse;
        self
    }
}

impl<S> Layer<S> for HttpLayer {
    type Service = HttpService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        HttpService { inner, layer: self.clone() }
    }
}

/// An HTTP handler, made idempotent; see [`Idempotency::http`].
#[derive(Clone, Debug)]
pub struct HttpService<S> {
    inner: S,
    layer: HttpLayer,
}

impl<S, B> Service<Request<B>> for HttpService<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Response: IntoResponse + Send,
    S::Future: Send,
    S::Error: Send,
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
        // The service that was made ready is the one to call; the clone takes its place.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let layer = self.layer.clone();
        Box::pin(async move { layer.handle(inner, request).await })
    }
}

impl HttpLayer {
    async fn handle<S, B>(&self, mut inner: S, request: Request<B>) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<B>>,
        S::Response: IntoResponse,
        B: http_body::Body + From<Vec<u8>> + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let invocation = parts
            .extensions
            .lambda_context_ref()
            .map_or_else(Invocation::unknown, |context| self.idempotency.entered(context));
        let key = match self.key_of(&parts).inspect_err(observe::refused_unasked) {
            Ok(Some(key)) => key,
            Ok(None) => {
                let surroundings = Surroundings { invocation, claim: None };
                let request = Request::from_parts(parts, body);
                return within(surroundings, async { answered(inner.call(request).await).await }).await;
            }
            Err(error) => return Ok(Problem::for_error(&error).into_response()),
        };
        let (fingerprint, body) = match request::fingerprinted(&parts, body).await {
            Ok(read) => read,
            Err(problem) => return Ok(problem.into_response()),
        };
        let operation = match self.operation(&parts, &key, fingerprint, invocation) {
            Ok(operation) => operation,
            Err(error) => return Ok(Problem::for_error(&error).into_response()),
        };
        let handler = || {
            let mut request = Request::from_parts(parts, body);
            if let Some(claim) = current() {
                request.extensions_mut().insert(claim);
            }
            let response = inner.call(request);
            async { answered(response.await).await }
        };
        let judge = |result| (self.verdict(&result), result);
        match self.idempotency.engine().protect(operation, handler, judge).await {
            Ok(Protected::Ran(result)) => result,
            Ok(Protected::Replayed(replay)) if replay.is_failure() => Ok(Problem::FAILED.into_response()),
            Ok(Protected::Replayed(replay)) => Ok(response::decode(replay.response())
                .unwrap_or_else(|error| Problem::for_error(&error).into_response())),
            Err(error) => Ok(Problem::for_error(&error).into_response()),
        }
    }

    /// The request's key, if it has one and its method is protected.
    fn key_of(&self, parts: &Parts) -> Result<Option<Key>, Error> {
        if !matches!(parts.method, Method::POST | Method::PATCH) {
            return Ok(None);
        }
        match (key::read(&parts.headers, &KEY_HEADER)?, self.missing_key) {
            (None, MissingKey::Refuse) => {
                Err(Error::new(ErrorKind::MissingKey, "the request has no Idempotency-Key header"))
            }
            (key, _) => Ok(key),
        }
    }

    fn operation(
        &self,
        parts: &Parts,
        key: &Key,
        fingerprint: Fingerprint,
        invocation: Invocation,
    ) -> Result<Operation, Error> {
        let mut scope = self.idempotency.scope("http")?;
        if let Some(caller) = caller::verified(&parts.extensions) {
            scope = scope.with_caller(caller)?;
        }
        Ok(Operation { key: StoredKey::new(&scope, key), fingerprint, invocation })
    }

    fn verdict<E>(&self, result: &Result<Response<Body>, E>) -> Verdict {
        let settings = self.idempotency.settings();
        match result {
            Ok(response) if self.is_recorded(response) => {
                response::encode(response).map_or(Verdict::CompleteOmitted, Verdict::Complete)
            }
            Err(_) if settings.effective_on_handler_error() == OnHandlerError::Record => {
                Verdict::failure(&RecordedFailure::new("HandlerError", "the handler returned an error"))
            }
            _ => Verdict::Release,
        }
    }

    fn is_recorded(&self, response: &Response<Body>) -> bool {
        let at_most_once = self.idempotency.settings().execution == Execution::AtMostOnce;
        response::is_outcome(response.status()) || at_most_once && response.status().is_server_error()
    }
}

/// The handler's answer, whole. A marker that it set itself is not believed.
async fn answered<R: IntoResponse, E>(result: Result<R, E>) -> Result<Response<Body>, E> {
    let mut response = result?.into_response().await;
    response.headers_mut().remove(response::REPLAYED);
    Ok(response)
}
