//! The namespace of a request's key: its caller, or the refusal of a request whose caller has no name.

use ::http::{HeaderMap, HeaderName, Request, request::Parts};
use lambda_http::RequestExt;

use super::{
    HttpLayer,
    caller::{Caller, Verified, scope_caller, verified_in},
    config::Unnamed,
    key::Origin,
    problem::{Problem, ProblemKind, Texts},
};
use crate::{
    error::{Error, ErrorKind},
    key::Scope,
    lambda::tenant,
    observe,
};

/// The value of the field `found` in the log event for an unknown caller, if the front end verified a caller but its
/// event doesn't name the caller. In all other cases, the field has the name of a credential header.
const VERIFIED: &str = "the front end's authorizer";

const CALLER_UNAVAILABLE: Texts = (
    "The caller can't be verified right now",
    "The service that says who you are is unavailable. Nothing was done; send the same request again later.",
);

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    /// Treats these request headers as credentials too: headers in which your own gateway passes a token or the name of
    /// a user, for example. The layer then refuses a keyed request with such a header if it can't name the header's
    /// owner. [`guide::callers`](crate::guide::callers#callers-without-a-name) lists the headers that always count.
    ///
    /// ```
    /// # use lambda_http::http::HeaderName;
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().credential_headers([HeaderName::from_static("x-shop-member")]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn credential_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.credentials.add_headers(names))
    }

    /// The credentials in these headers, each as its header's name and its value. Each cookie counts alone. Cookies that
    /// are [ignored](Self::ignore_cookies) don't count. Use it in a closure for [`caller`](Self::caller) that accepts
    /// one kind of credential and no other.
    ///
    /// ```
    /// use lambda_http::http::{HeaderMap, HeaderValue};
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    ///
    /// let layer = idempotency.http().ignore_cookies(["theme"]);
    /// let mut headers = HeaderMap::new();
    /// headers.insert("cookie", HeaderValue::from_static("theme=dark; session=17"));
    /// let found: Vec<_> = layer.credentials(&headers).collect();
    /// assert_eq!(found, [("cookie", &b"session=17"[..])]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn credentials<'h>(&'h self, headers: &'h HeaderMap) -> impl Iterator<Item = (&'h str, &'h [u8])> {
        self.config.credentials.all_in(headers)
    }

    /// Whether this request may be protected: its method is, and it has a key's header, or keys may be elsewhere in the
    /// request. Otherwise the layer passes it on, or refuses it for its missing key, without asking for its caller.
    pub fn may_protect<B>(&self, request: &Request<B>) -> bool {
        let has_header = || self.config.keys.names.iter().any(|name| request.headers().contains_key(name));
        self.config.methods.contains(request.method()) && (self.config.key.is_some() || has_header())
    }

    /// The caller that the key belongs to. If `HttpLayer::caller` has set a closure, the closure names the caller.
    /// Otherwise the front end does.
    pub(super) fn caller_of(&self, parts: &Parts) -> Result<Option<Caller>, Problem> {
        let caller = match &self.config.resolver {
            Some(resolve) => resolve(parts).map_err(|error| self.not_scoped(&error))?.map(Caller::Resolved),
            None => match (verified_in(parts), &self.config.api_name) {
                (Verified::Caller(caller), Some(name)) => Some(caller.of_api(name)),
                (Verified::Caller(caller), None) => Some(caller),
                (Verified::Nobody, _) => None,
                (Verified::Unnamed, _) => return self.unnamed_is_shared(VERIFIED).map(|()| None),
            },
        };
        if caller.as_ref().is_none_or(Caller::may_be_several) {
            match (self.config.credentials.second(caller.as_ref(), parts), self.config.unnamed) {
                (Some(header), _) => self.unnamed_is_shared(header.as_str())?,
                (None, Unnamed::Refused) if caller.is_none() => return Err(self.caller_missing()),
                (None, _) => {}
            }
        }
        Ok(caller)
    }

    /// Accepts a caller without a name if the API chose one shared namespace for such callers.
    ///
    /// # Errors
    ///
    /// [`ProblemKind::CallerUnknown`] if the API has no such namespace.
    fn unnamed_is_shared(&self, found: &str) -> Result<(), Problem> {
        if self.config.unnamed == Unnamed::Shared {
            return Ok(());
        }
        if self.is_enforced() {
            observe::caller_unknown(found);
        }
        Err(ProblemKind::CallerUnknown.into())
    }

    /// The problem for a key that can't be scoped to its caller. A retry would fail the same way, unless the error says
    /// otherwise.
    fn not_scoped(&self, error: &Error) -> Problem {
        if self.is_enforced() {
            observe::refused_unasked(error);
        }
        match error.kind() {
            ErrorKind::Unavailable => Problem::from(ProblemKind::StoreUnavailable).saying(CALLER_UNAVAILABLE),
            _ => ProblemKind::CallerMissing.into(),
        }
    }

    fn caller_missing(&self) -> Problem {
        if self.is_enforced() {
            observe::caller_missing();
        }
        ProblemKind::CallerMissing.into()
    }

    /// The namespace of the caller's keys.
    pub(super) fn scope(
        &self,
        parts: &Parts,
        caller: Option<&Caller>,
        origin: Origin,
    ) -> Result<Scope, Problem> {
        let tenant = parts.extensions.lambda_context_ref().and_then(tenant);
        let idempotency = self.config.operations.named_by(parts.uri.path(), &self.idempotency);
        let scope = idempotency.and_then(|idempotency| idempotency.scope(origin.via()));
        let scope = scope.and_then(|scope| match scope_caller(caller, tenant) {
            Some(caller) => scope.with_caller(caller),
            None => Ok(scope),
        });
        scope.map_err(|error| self.not_scoped(&error))
    }
}
