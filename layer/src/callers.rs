//! Whose key an HTTP request's key is. By default, the library takes the caller from the front end. With another
//! setting, this module names the caller before the request reaches the library.

mod credential;
mod field;
mod jwks;
mod jwt;

use credential::ANALYTICS_COOKIES;
pub(crate) use field::{Field, ephemeral_claim};
pub(crate) use jwks::{Keys, Location};
pub(crate) use jwt::{Jwt, TokenIn};

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use lambda_http::Body;
use lambda_idempotency::{
    Error, ErrorKind,
    lambda::http::{HttpLayer, ProblemKind},
};

use crate::event::Event;

/// Which callers share idempotency keys over HTTP.
#[derive(Debug, Default)]
pub(crate) enum Callers {
    /// Each caller that the front end verified has its own keys. A request with credentials but without a verified
    /// caller is refused.
    #[default]
    Verified,
    /// Like `Verified`, but every request without a verified caller is refused.
    Required,
    /// All callers that the front end didn't verify share one namespace of keys.
    Shared,
    /// A field that a trusted front end writes names the caller.
    Field(Field),
    /// A claim of a JWT that the layer verifies names the caller.
    Jwt(Box<Jwt>),
    /// A hash of the request's credential is the caller. Only of an API key or of Basic authentication, or of any
    /// credential.
    Credential {
        /// Whether bearer tokens and cookies count too.
        is_any: bool,
    },
}

/// Why a request's caller has no name. The message is for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// The request doesn't prove who the caller is.
    Refused(String),
    /// The layer can't tell now. A retry may succeed.
    Later(String),
}

/// The caller that this module found, on its way to the library. `Ok(None)` leaves it to the library whether a request
/// without a name is anonymous, or has a credential and is refused.
#[derive(Clone)]
struct Found(Result<Option<String>, Unnamed>);

impl Callers {
    /// Logs a warning if retries may run again because of this choice, and begins to fetch the keys of JWTs. Call it
    /// once.
    pub(crate) async fn start(&self, is_snapshotted: bool) {
        match self {
            Self::Credential { is_any: true } => tracing::warn!(
                "IDEMPOTENCY_CALLERS=any-credential: a retry with a refreshed token or a new session is another \
                 caller's request, so the function runs it again. If tokens are refreshed between two attempts, set \
                 IDEMPOTENCY_CALLERS to jwt, or to a field in which the front end names the caller"
            ),
            // A snapshot would have an open connection, and the state of the random generator.
            Self::Jwt(jwt) if !is_snapshotted => jwt.keys.warm().await,
            _ => {}
        }
    }

    /// Whether this module names the caller, rather than the library.
    fn names(&self) -> bool {
        matches!(self, Self::Field(_) | Self::Jwt(_) | Self::Credential { .. })
    }

    /// The text that names the caller `name` in a record's scope, for `idempotency why --resolved-caller`. `None` if the
    /// library names the callers, or if the text is a hash.
    pub(crate) fn text_of(&self, name: &str) -> Option<String> {
        match self {
            Self::Field(field) => Some(field.text_of(name)),
            Self::Jwt(jwt) => Some(jwt.text_of(name)),
            Self::Verified | Self::Required | Self::Shared | Self::Credential { .. } => None,
        }
    }

    /// The status of the layer's own answers before the user's settings.
    pub(crate) fn begin(&self, layer: HttpLayer) -> HttpLayer {
        match self {
            // The request doesn't prove who the caller is, and the client can change that with another token.
            Self::Jwt(_) => layer.status(ProblemKind::CallerMissing, StatusCode::UNAUTHORIZED),
            _ => layer,
        }
        .ignore_cookies(ANALYTICS_COOKIES)
    }

    /// The library's layer with this choice.
    pub(crate) fn apply(&self, layer: HttpLayer) -> HttpLayer {
        match self {
            Self::Verified => layer,
            Self::Required => layer.require_caller(true),
            Self::Shared => layer.shared_namespace(),
            Self::Field(_) | Self::Jwt(_) | Self::Credential { .. } => layer.caller(found),
        }
    }

    /// Names the request's caller, if this module does. Only a request that may be protected needs one: the others don't
    /// wait for a token's issuer.
    pub(crate) async fn name(&self, layer: &HttpLayer, request: &mut Request<Body>, event: &Event) {
        if !self.names() || !layer.may_protect(request) {
            return;
        }
        let headers = request.headers();
        let found = match self {
            Self::Field(field) => field.caller(headers, &event.body).map(Some),
            Self::Jwt(jwt) => jwt.caller(headers, event.time_left()).await.map(Some),
            Self::Credential { is_any } => Ok(credential::caller(layer, headers, *is_any)),
            Self::Verified | Self::Required | Self::Shared => return,
        };
        request.extensions_mut().insert(Found(found));
    }

    /// Tells the client of a refused request how to authenticate, as HTTP requires for the status 401 (RFC 9110,
    /// section 15.5.2).
    pub(crate) fn challenge(&self, response: &mut Response<Body>) {
        let is_own = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes)
            == Some(b"application/problem+json");
        if matches!(self, Self::Jwt(_)) && is_own && response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }
}

/// Whether the log already has the advice of [`advise`].
static IS_ADVISED: AtomicBool = AtomicBool::new(false);

/// Logs, once, which settings name the caller of a request that was refused with `caller-unknown`.
pub(crate) fn advise() {
    if !IS_ADVISED.swap(true, Ordering::Relaxed) {
        tracing::error!(
            "refused a request with caller-unknown: it has a credential that the front end didn't verify. Let the \
             front end verify callers, or set IDEMPOTENCY_CALLERS to what names them: jwt, header:NAME, a field of \
             /requestContext, credential, or shared if all callers may get each other's answers. Name cookies that \
             don't authenticate in IDEMPOTENCY_IGNORE_COOKIES"
        );
    }
}

/// Gives the library the caller that this module found.
fn found(request: &Parts) -> Result<Option<String>, Error> {
    match request.extensions.get::<Found>() {
        Some(Found(Ok(caller))) => Ok(caller.clone()),
        Some(Found(Err(Unnamed::Refused(why)))) => Err(Error::new(ErrorKind::Invalid, why.clone())),
        Some(Found(Err(Unnamed::Later(why)))) => Err(Error::new(ErrorKind::Unavailable, why.clone())),
        // Only requests with safe methods have none, and they're never protected.
        None => Err(Error::new(ErrorKind::Invalid, "the layer hasn't looked for this request's caller")),
    }
}

/// The only value of this header, or why there's none.
fn only<'h>(headers: &'h HeaderMap, name: &http::HeaderName) -> Result<&'h str, Unnamed> {
    let mut values = headers.get_all(name).iter();
    let refused = |problem: &str| Unnamed::Refused(format!("the request {problem} `{name}`"));
    match (values.next(), values.next()) {
        (None, _) => Err(refused("has no header")),
        (Some(_), Some(_)) => Err(refused("has more than one header")),
        (Some(value), None) => {
            let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty());
            text.ok_or_else(|| refused("has no readable text in the header"))
        }
    }
}

/// A caller's text, which can't be the same as that of a caller with another `kind` or other parts.
fn caller_of(kind: &str, parts: &[&str]) -> String {
    serde_json::json!([kind, parts]).to_string()
}
