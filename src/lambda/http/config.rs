//! What a user may decide about the HTTP contract; the defaults are the module's.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use ::http::{HeaderName, Method, Response, StatusCode, request::Parts};
use lambda_http::Body;

use super::{
    HttpLayer,
    caller::Caller,
    credentials::IgnoredCookies,
    headers::HeaderRules,
    key::{KeyFormat, KeyRules, KeySyntax},
    problem::{self, ProblemKind},
    response,
};
use crate::{
    error::Error,
    future::BoxFuture,
    observe,
    selector::{self, Selector},
};

/// The largest body that is compared, in bytes: API Gateway's own limit ("Quotas", API Gateway developer guide).
const MAX_BODY: usize = 10 * 1024 * 1024;

pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Resolver = Arc<dyn Fn(&Parts) -> Result<Option<String>, Error> + Send + Sync>;
type MayReplay = Arc<dyn Fn(Parts, Option<Caller>) -> BoxFuture<'static, bool> + Send + Sync>;
type Judge = Arc<dyn Fn(&Response<Body>) -> bool + Send + Sync>;

/// How the layer treats keyed requests whose caller nothing has named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// Those without credentials share one namespace. Those with credentials are refused.
    #[default]
    Anonymous,
    /// They all share one namespace, credentials or not.
    Shared,
    /// They are refused, credentials or not.
    Refused,
}

/// See the methods of [`HttpLayer`].
#[derive(Clone)]
pub(super) struct Config {
    pub(super) keys: KeyRules,
    pub(super) methods: Vec<Method>,
    pub(super) required: Option<Predicate>,
    pub(super) passes: Option<Predicate>,
    pub(super) resolver: Option<Resolver>,
    pub(super) unnamed: Unnamed,
    pub(super) api_name: Option<String>,
    pub(super) ignored_cookies: IgnoredCookies,
    pub(super) fingerprinted_headers: Vec<HeaderName>,
    /// Of a JSON body; none is the whole.
    pub(super) fingerprinted_fields: Option<Vec<Selector>>,
    pub(super) raw_body: bool,
    pub(super) max_body: usize,
    /// How long the front end waits.
    pub(super) answer_within: Option<Duration>,
    pub(super) record_when: Option<Judge>,
    pub(super) headers: HeaderRules,
    pub(super) marker: HeaderName,
    /// The last one of a kind counts.
    pub(super) statuses: Vec<(ProblemKind, StatusCode)>,
    pub(super) documentation: String,
    pub(super) may_replay: Option<MayReplay>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keys: KeyRules::default(),
            methods: vec![Method::POST, Method::PATCH],
            required: None,
            passes: None,
            resolver: None,
            unnamed: Unnamed::default(),
            api_name: None,
            ignored_cookies: IgnoredCookies::default(),
            fingerprinted_headers: Vec::new(),
            fingerprinted_fields: None,
            raw_body: false,
            max_body: MAX_BODY,
            answer_within: None,
            record_when: None,
            headers: HeaderRules::default(),
            marker: response::REPLAYED,
            statuses: Vec::new(),
            documentation: problem::PAGE.into(),
            may_replay: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("keys", &self.keys)
            .field("methods", &self.methods)
            .field("unnamed", &self.unnamed)
            .field("api_name", &self.api_name)
            .field("ignored_cookies", &self.ignored_cookies)
            .field("fingerprinted_headers", &self.fingerprinted_headers)
            .field("fingerprinted_fields", &self.fingerprinted_fields)
            .field("raw_body", &self.raw_body)
            .field("max_body", &self.max_body)
            .field("headers", &self.headers)
            .field("marker", &self.marker)
            .field("statuses", &self.statuses)
            .field("documentation", &self.documentation)
            .finish_non_exhaustive()
    }
}

impl HttpLayer {
    fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// Whether a request of a protected method needs a key: 400 without one. Default: no, it runs unprotected.
    pub fn required(self, is_required: bool) -> Self {
        self.required_when(move |_| is_required)
    }

    /// Refuses a request of a protected method without a key where `is_required` says so. Behind API Gateway the URI's path
    /// begins with the stage; the path without it is `raw_http_path`.
    ///
    /// ```
    /// # use lambda_http::RequestExt as _;
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().required_when(|request| request.raw_http_path().starts_with("/payments"));
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn required_when(self, is_required: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.required = Some(Arc::new(is_required)))
    }

    /// Protects these methods. Default: POST and PATCH. GET, HEAD, OPTIONS and TRACE, which are safe (RFC 9110, section
    /// 9.2.1), pass through whatever is said here.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|config| {
            config.methods = methods.into_iter().filter(|method| !method.is_safe()).collect();
        })
    }

    /// Passes requests through where `passes` says so, key or no key: they are not protected, nothing is recorded, and what
    /// they answer is not read. For a route that streams more than can be recorded, or that has its own protection.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().pass_through_when(|request| request.uri.path() == "/exports");
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn pass_through_when(self, passes: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|config| config.passes = Some(Arc::new(passes)))
    }

    /// Takes keys as they are written in this way. Default: quoted or bare.
    pub fn key_syntax(self, syntax: KeySyntax) -> Self {
        self.with(|config| config.keys.syntax = syntax)
    }

    /// Takes keys of this form. Default: any.
    pub fn key_format(self, format: KeyFormat) -> Self {
        self.with(|config| config.keys.format = format)
    }

    /// Reads the key from this header too, such as `x-idempotency-key`. Two headers with keys that differ are refused.
    pub fn key_alias(self, name: HeaderName) -> Self {
        self.with(|config| config.keys.names.push(name))
    }

    /// Names the caller, in place of what the front end verified: from an extension that an authentication layer outside
    /// this one has set, for example. The text must be one that the caller can't choose, and must stay the same over a
    /// refreshed token. The layer hashes it and never stores it in plaintext. `None` is a caller without a name: see
    /// [`shared_namespace`](Self::shared_namespace) for what happens then.
    ///
    /// Put the authentication **outside** this layer. A layer that checks a token inside this one checks it after a
    /// replay was answered, or never.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// #[derive(Clone)]
    /// struct Account(String);
    ///
    /// let layer = idempotency
    ///     .http()
    ///     .caller(|request| Ok(request.extensions.get::<Account>().map(|account| account.0.clone())))
    ///     .require_caller(true);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn caller(
        self,
        resolve: impl Fn(&Parts) -> Result<Option<String>, Error> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.resolver = Some(Arc::new(resolve)))
    }

    /// Gives the API a name of your choice, in place of the ids that its events carry: a retry that arrives after the API was
    /// replaced, its stage was renamed, or its custom domain got another base path is still the same operation. All APIs and
    /// stages of one name that call this function are one.
    ///
    /// It matters where the caller is one API's: a Lambda authorizer's principal, an API key, a client certificate. By default
    /// such a caller belongs to `<API id>/<stage>`. The path is then compared without the stage and the base path.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().api_name("payments-production");
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn api_name(self, name: impl Into<String>) -> Self {
        self.with(|config| config.api_name = Some(name.into()))
    }

    /// Whether keyed requests need a named caller, credentials or not: 403 without credentials. Default: no. Between this and
    /// [`shared_namespace`](Self::shared_namespace), the later call counts.
    pub fn require_caller(self, is_required: bool) -> Self {
        self.with(|config| config.unnamed = if is_required { Unnamed::Refused } else { Unnamed::Anonymous })
    }

    /// Puts all keys of callers without a name into one namespace, whatever credentials their requests carry: **each of
    /// these callers gets the others' recorded answers** if it sends the same key and request. It's for APIs whose answers
    /// hold nothing that depends on the caller. Named callers keep their own namespaces.
    ///
    /// Without it, a keyed request with credentials (`Authorization`, an API key, a client certificate, a cookie) and
    /// without a named caller is refused before anything is claimed, with 500 and `caller-unknown`: the handler may be
    /// what checks the credentials, and a replay would never reach it. Keyed requests without credentials share the
    /// anonymous namespace.
    pub fn shared_namespace(self) -> Self {
        self.with(|config| config.unnamed = Unnamed::Shared)
    }

    /// Doesn't count these cookies as credentials, such as those for analytics or settings. A name that ends with `*`
    /// means every name that begins with the rest. Load balancers' stickiness cookies never count.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().ignore_cookies(["theme", "_ga*"]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn ignore_cookies(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with(|config| config.ignored_cookies.add(names))
    }

    /// Counts these request headers to what must be the same when a key is used again, such as an API's version.
    /// Default: none.
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.fingerprinted_headers = names.into_iter().collect())
    }

    /// Compares only these fields of a JSON body, each named as a [`Selector`] is, in place of the whole of it: for
    /// bodies that hold something new in each attempt, such as a nonce or the time. A field that is not there is compared
    /// as absent; a body that has none of them, or in which one cannot be looked up (it is no JSON, say), is compared as a
    /// whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if one is no [`Selector`], or there is none.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().fingerprint_fields(["/order_id", "/amount/cents"])?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn fingerprint_fields<'a>(self, fields: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let fields = selector::some_of(fields)?;
        Ok(self.with(|config| config.fingerprinted_fields = Some(fields)))
    }

    /// Whether bodies are compared byte for byte, whatever their type. Default: no, a body is compared as JSON if it is JSON and its
    /// `Content-Type` is a JSON type or missing.
    pub fn fingerprint_raw_body(self, is_raw: bool) -> Self {
        self.with(|config| config.raw_body = is_raw)
    }

    /// Answers a request whose body is over so many bytes with 413. Default: 10 MiB, API Gateway's limit.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|config| config.max_body = bytes)
    }

    /// How long the front end waits for an answer, counted from the request's start where its event says when that was.
    /// Default: 29 seconds behind API Gateway, and no limit but the invocation's deadline behind anything else. Outcomes
    /// are not tried to be recorded for longer than that, since the caller would no longer see the answer.
    ///
    /// Set it where API Gateway's quota was raised, or a load balancer or proxy closes idle connections earlier.
    pub fn answer_within(self, limit: Duration) -> Self {
        self.with(|config| config.answer_within = Some(limit))
    }

    /// Decides by the whole response whether it's the operation's outcome, in place of the list of statuses. The
    /// handler's [`Recording`](super::Recording) overrides it. It isn't asked about a streamed response that is too large to be
    /// recorded: the status decides that.
    ///
    /// At most once it isn't asked either, and a warning says so when it's set: every answer may have come after an effect, so
    /// every answer is recorded unless it carries [`Recording::Release`](super::Recording::Release).
    pub fn record_when(self, is_outcome: impl Fn(&Response<Body>) -> bool + Send + Sync + 'static) -> Self {
        if self.is_at_most_once() {
            observe::record_when_unused();
        }
        self.with(|config| config.record_when = Some(Arc::new(is_outcome)))
    }

    /// Replays this header, or doesn't, whatever the list says. By default, headers of one exchange aren't recorded: `Set-Cookie`, `Date`,
    /// tracing, rate limits, those that `Connection` names, and more. [The page](crate::guide::idempotency_specification) has
    /// the list.
    ///
    /// ```
    /// # use lambda_http::http::header;
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// // Whoever gets the replay gets the session too.
    /// let layer = idempotency.http().replay_header(header::SET_COOKIE, true).replay_header(header::SERVER, false);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn replay_header(self, name: HeaderName, is_replayed: bool) -> Self {
        self.with(|config| config.headers.set(name, is_replayed))
    }

    /// Marks replays by this header. Default: `idempotent-replayed`.
    pub fn replay_marker(self, name: HeaderName) -> Self {
        self.with(|config| config.marker = name)
    }

    /// Answers a problem with another status: 202 for [`ProblemKind::InProgress`], say, where callers poll.
    pub fn status(self, kind: ProblemKind, status: StatusCode) -> Self {
        self.with(|config| config.statuses.push((kind, status)))
    }

    /// The page that documents the API's idempotency: a problem's `type` is this URI with its code as the
    /// fragment, and each problem links to it (the draft, section 2.7). Default: this library's
    /// [specification](crate::guide::idempotency_specification), which is true as long as you change no default.
    pub fn documentation(self, uri: impl Into<String>) -> Self {
        self.with(|config| config.documentation = uri.into())
    }

    /// Asks, before each replay, whether the caller may have the recorded answer: for rights that can be taken away
    /// between two deliveries, and that the handler would have checked. Where not, the answer is 403. The closure gets the
    /// request without its body, and the caller whose key it is, if that has a name.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// # async fn may_pay(_: &str) -> bool { true }
    /// use lambda_idempotency::lambda::http::Caller;
    ///
    /// let layer = idempotency.http().replay_if(|_request, caller| async move {
    ///     match caller {
    ///         Some(Caller::Jwt { subject, .. }) => may_pay(&subject).await,
    ///         _ => false,
    ///     }
    /// });
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn replay_if<F, Fut>(self, may_replay: F) -> Self
    where
        F: Fn(Parts, Option<Caller>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.with(|config| {
            config.may_replay = Some(Arc::new(move |parts, caller| Box::pin(may_replay(parts, caller))));
        })
    }
}
