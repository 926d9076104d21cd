//! User settings of the HTTP layer, and their defaults.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use ::http::{HeaderName, Method, Response, StatusCode, request::Parts};
use lambda_http::Body;

use super::{
    HttpLayer,
    body_key::KeySource,
    caller::Caller,
    credentials::CredentialRules,
    headers::{HeaderRules, REPLAYED},
    key::{KeyRules, Predicate},
    operations::Operations,
    problem::{ProblemKind, ProblemRules},
};
use crate::{
    error::Error,
    future::BoxFuture,
    key_fields::KeyFields,
    lambda::event::IntoKey,
    observe,
    run::replay::Replay,
    selector::{self, Selector},
};

/// The default of [`HttpLayer::max_body`], in bytes. It's API Gateway's own limit ("Quotas", API Gateway developer
/// guide).
const MAX_BODY: usize = 10 * 1024 * 1024;

pub(super) type PathOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
type Resolver = Arc<dyn Fn(&Parts) -> Result<Option<String>, Error> + Send + Sync>;
pub(super) type MayReplay = Arc<dyn Fn(Parts, Option<Caller>) -> BoxFuture<'static, bool> + Send + Sync>;
type OnReplay = Arc<dyn Fn(&Replay, &mut Response<Body>) + Send + Sync>;
type OnNotRetained = Arc<dyn Fn() -> Response<Body> + Send + Sync>;
type Judge = Arc<dyn Fn(&Response<Body>) -> bool + Send + Sync>;

/// How the layer treats keyed requests whose caller has no name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// Requests without credentials share one namespace. Requests with credentials are refused.
    #[default]
    Anonymous,
    /// Requests with and without credentials share one namespace.
    Shared,
    /// Requests with and without credentials are refused.
    Refused,
}

/// The settings of an [`HttpLayer`], whose methods document them.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) keys: KeyRules,
    /// Where the key comes from if a request has no key header.
    pub(super) key: Option<KeySource>,
    pub(super) methods: Vec<Method>,
    pub(super) operations: Operations,
    /// [`HttpLayer::path`].
    pub(super) path: Option<PathOf>,
    /// Whether a closure sees the request, and so its path.
    pub(super) shows_request: bool,
    pub(super) required: Option<Predicate>,
    pub(super) passes: Option<Predicate>,
    pub(super) resolver: Option<Resolver>,
    pub(super) unnamed: Unnamed,
    pub(super) api_name: Option<String>,
    pub(super) credentials: CredentialRules,
    pub(super) fingerprinted_headers: Vec<HeaderName>,
    /// The fields of a JSON body to compare; `None` means the whole body.
    pub(super) fingerprinted_fields: Option<Vec<Selector>>,
    pub(super) raw_body: bool,
    /// The query's parameters that aren't compared.
    pub(super) ignored_query: Vec<String>,
    /// Whether nothing is compared.
    pub(super) key_alone: bool,
    pub(super) max_body: usize,
    /// How long the front end waits for a response. `None` means the front end's default.
    pub(super) answer_within: Option<Duration>,
    pub(super) record_when: Option<Judge>,
    pub(super) headers: HeaderRules,
    pub(super) marker: HeaderName,
    pub(super) problems: ProblemRules,
    pub(super) may_replay: Option<MayReplay>,
    pub(super) on_replay: Option<OnReplay>,
    pub(super) on_not_retained: Option<OnNotRetained>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keys: KeyRules::default(),
            key: None,
            methods: vec![Method::POST, Method::PATCH],
            operations: Operations::default(),
            path: None,
            shows_request: false,
            required: None,
            passes: None,
            resolver: None,
            unnamed: Unnamed::default(),
            api_name: None,
            credentials: CredentialRules::default(),
            fingerprinted_headers: Vec::new(),
            fingerprinted_fields: None,
            raw_body: false,
            ignored_query: Vec::new(),
            key_alone: false,
            max_body: MAX_BODY,
            answer_within: None,
            record_when: None,
            headers: HeaderRules::default(),
            marker: REPLAYED,
            problems: ProblemRules::default(),
            may_replay: None,
            on_replay: None,
            on_not_retained: None,
        }
    }
}

impl Config {
    /// Whether the query's parameter with this decoded name isn't compared.
    pub(super) fn ignores_query(&self, name: &[u8]) -> bool {
        self.ignored_query.iter().any(|ignored| match ignored.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == ignored.as_bytes(),
        })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("keys", &self.keys)
            .field("key", &self.key)
            .field("methods", &self.methods)
            .field("unnamed", &self.unnamed)
            .field("api_name", &self.api_name)
            .field("credentials", &self.credentials)
            .field("fingerprinted_headers", &self.fingerprinted_headers)
            .field("fingerprinted_fields", &self.fingerprinted_fields)
            .field("raw_body", &self.raw_body)
            .field("ignored_query", &self.ignored_query)
            .field("key_alone", &self.key_alone)
            .field("max_body", &self.max_body)
            .field("headers", &self.headers)
            .field("marker", &self.marker)
            .field("problems", &self.problems)
            .finish_non_exhaustive()
    }
}

impl<const STREAMING: bool> HttpLayer<STREAMING> {
    pub(super) fn with(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// Sets a closure that sees the request.
    pub(super) fn with_closure(self, change: impl FnOnce(&mut Config)) -> Self {
        self.with(|config| {
            config.shows_request = true;
            change(config);
        })
    }

    /// Whether a request with a protected method needs a key. If it does, a request without one gets 400. By default,
    /// no request needs a key, and requests without one run unprotected.
    pub fn required(self, is_required: bool) -> Self {
        self.with(|config| config.required = Some(Arc::new(move |_| is_required)))
    }

    /// Refuses a request with a protected method and no key if `is_required` returns true. The closure sees the path [as
    /// the routes name it](super#paths), without the stage.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().required_when(|request| request.uri.path().starts_with("/payments"));
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn required_when(self, is_required: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with_closure(|config| config.required = Some(Arc::new(is_required)))
    }

    /// Protects these methods. Default: POST and PATCH. A WebSocket API's messages count as POST. GET, HEAD, OPTIONS and TRACE are safe (RFC 9110,
    /// section 9.2.1) and always pass through.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|config| {
            config.methods = methods.into_iter().filter(|method| !method.is_safe()).collect();
        })
    }

    /// Passes a request through if `passes` returns true, whether or not the request has a key. The layer doesn't
    /// protect the request and records nothing. With [`streaming`](Self::streaming), the response streams as it
    /// arrives. Use this for a route that streams more than can be recorded, or that has its own protection. The closure
    /// sees the path [as the routes name it](super#paths), without the stage.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().pass_through_when(|request| request.uri.path() == "/exports");
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn pass_through_when(self, passes: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with_closure(|config| config.passes = Some(Arc::new(passes)))
    }

    /// Takes the key from fields of the JSON body if a request has no `Idempotency-Key` header. If a client sends the
    /// header, the header wins. The same text as a key in a body and in a header identifies two operations. [The
    /// module](super#keys-from-the-body) has the rules, and a warning: a customer's second, identical order gets a
    /// replay too.
    ///
    /// ```
    /// use lambda_idempotency::KeyFields;
    ///
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().key_fields(KeyFields::new(["/user", "/product_id"])?);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn key_fields(self, fields: KeyFields) -> Self {
        self.with(|config| config.key = Some(KeySource::Fields(fields)))
    }

    /// Like [`key_fields`](Self::key_fields), but a closure returns the key. The closure gets the request and its body.
    /// If the closure fails because the key isn't valid, the client gets 400 and `key-invalid`.
    ///
    /// ```
    /// use lambda_idempotency::Key;
    ///
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().key(|request, _body| {
    ///     request.headers.get("x-github-delivery").map(|id| Key::new(id.to_str().unwrap_or_default())).transpose()
    /// });
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn key<K: IntoKey>(self, key: impl Fn(&Parts, &[u8]) -> K + Send + Sync + 'static) -> Self {
        let key = move |request: &Parts, body: &[u8]| key(request, body).into_key();
        self.with_closure(|config| config.key = Some(KeySource::Closure(Arc::new(key))))
    }

    /// Whether a key must be a quoted string. The draft requires quotes (section 2.1), but almost no client sends
    /// them. Default: no; `"k"` and `k` are the same key.
    pub fn quoted_keys(self, is_required: bool) -> Self {
        self.with(|config| config.keys.quoted = is_required)
    }

    /// Whether a key must be a UUID in its canonical form, such as `8e03978e-40d5-43dd-bc93-6894a57f9324`, of any
    /// version. Default: no; a key is 1 to 255 visible ASCII characters.
    pub fn uuid_keys(self, is_required: bool) -> Self {
        self.with(|config| config.keys.uuid = is_required)
    }

    /// Refuses keys with fewer characters than `length`, since short keys are easy to guess. Default: 1.
    pub fn shortest_key(self, length: usize) -> Self {
        self.with(|config| config.keys.shortest = length)
    }

    /// Reads the key from this header too, such as `x-idempotency-key`. If the headers of one request have different
    /// keys, the layer refuses the request.
    pub fn key_alias(self, name: HeaderName) -> Self {
        self.with(|config| config.keys.names.push(name))
    }

    /// Takes the caller's name from a closure, in place of the name that the front end verified. For example, read
    /// an extension that an authentication layer outside this one has set. The caller must not be able to choose the
    /// name, and the name must stay the same when a token is refreshed. The layer hashes the name and never stores it
    /// in plaintext. `None` means a caller without a name; see [`shared_namespace`](Self::shared_namespace). After an
    /// error, the client gets 403 and `caller-missing`, or 503 if the [kind](Error::new) is `Unavailable`.
    ///
    /// Put the authentication **outside** this layer. A layer inside this one doesn't see requests that get a
    /// replay, so it doesn't check their tokens.
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
        self.with_closure(|config| config.resolver = Some(Arc::new(resolve)))
    }

    /// Gives the API a name of your choice, in place of the ids in its events. A retry then finds its record
    /// even if it arrives after the API was replaced, its stage was renamed, or a REST API's custom domain got another
    /// base path. All APIs and stages that share the name and call this function count as one API.
    ///
    /// The name matters for callers that belong to one API: a Lambda authorizer's principal, an API key, a client
    /// certificate. By default, such a caller belongs to `<API id>/<stage>`. If the API has a name, the path is
    /// compared without the stage, and for REST APIs also without the base path.
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

    /// Whether a keyed request needs a named caller even if it carries no credentials. Without a named caller, such
    /// a request gets 403. Default: no. If you call both this and [`shared_namespace`](Self::shared_namespace), the
    /// later call counts.
    pub fn require_caller(self, is_required: bool) -> Self {
        self.with(|config| config.unnamed = if is_required { Unnamed::Refused } else { Unnamed::Anonymous })
    }

    /// Puts all keys of callers without a name into one namespace, whatever credentials their requests carry:
    /// **each of these callers gets the others' recorded responses** if it sends the same key and request. Use
    /// it for APIs whose responses don't depend on the caller. Named callers keep their own namespaces, whatever
    /// other credentials their requests carry.
    ///
    /// Without this setting, the layer refuses a keyed request that carries credentials (`Authorization`, an API key, a
    /// client certificate, a cookie) but has no named caller: the client gets 500 and `caller-unknown`, and nothing is
    /// claimed. The reason: the handler may check the credentials, and a replay never reaches the handler. An API key,
    /// a role or a certificate names the caller only if the request carries no other credentials. Keyed requests
    /// without credentials share the anonymous namespace.
    pub fn shared_namespace(self) -> Self {
        self.with(|config| config.unnamed = Unnamed::Shared)
    }

    /// Doesn't treat these cookies as credentials: cookies for analytics or settings, for example. A name
    /// that ends with `*` matches every name with that prefix. Load balancers' stickiness cookies are always
    /// ignored.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().ignore_cookies(["theme", "_ga*"]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn ignore_cookies(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with(|config| config.credentials.ignore_cookies(names))
    }

    /// Compares these request headers too when a key is used again: a header with the API's version, for example.
    /// Default: none.
    pub fn fingerprint_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.with(|config| config.fingerprinted_headers = names.into_iter().collect())
    }

    /// Compares only these fields of a JSON body, [named](crate::KeyFields#naming-a-field) as for a key, in place of
    /// the whole body. Use it for bodies that change in each attempt, for example by a nonce or a timestamp. A body in
    /// which a field is missing doesn't match a body in which that field has a value. If all of the fields are missing,
    /// null or blank, or a field can't be looked up (for example, because the body isn't JSON), the whole body is
    /// compared.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a field's name isn't valid, or `fields` is empty.
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

    /// Doesn't compare these parameters of the query when a key is used again: a signature or a timestamp that each
    /// attempt computes anew, for example. A name that ends with `*` matches every name with that prefix. Names are
    /// compared decoded, and case counts. Default: none.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().ignore_query(["X-Amz-*", "timestamp"]);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn ignore_query(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.with(|config| config.ignored_query.extend(names.into_iter().map(Into::into)))
    }

    /// Whether the key alone counts: a request with a known key gets the recorded response, **whatever the rest of the
    /// request asks for**. Use it only if every client draws a new key for each operation, since the layer then doesn't
    /// notice a key that a client used for two operations. Default: no; another request with the same key gets 422.
    /// The key still belongs to its caller.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().key_alone(true);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn key_alone(self, is_enough: bool) -> Self {
        self.with(|config| config.key_alone = is_enough)
    }

    /// Whether bodies are compared byte for byte, whatever their type. Default: no; a body is compared as JSON
    /// if it's JSON and its `Content-Type` is a JSON type or missing. All other bodies are compared byte for byte, and
    /// so are forms: a client that builds a multipart form again draws another boundary, and gets 422.
    ///
    /// Choose it for large bodies of JSON whose clients send a retry byte for byte: a megabyte of JSON takes about 5 ms
    /// of processor time to compare, and less than 1 ms byte for byte. `lambda_http` takes 4 ms to read it. A request
    /// that isn't protected, such as a GET, costs neither.
    pub fn fingerprint_raw_body(self, is_raw: bool) -> Self {
        self.with(|config| config.raw_body = is_raw)
    }

    /// Limits the body of a keyed request to this number of bytes; a larger one gets 413. Default: 10 MiB, API
    /// Gateway's limit. With [`key_fields`](Self::key_fields) or [`key`](Self::key), the limit also applies to requests
    /// without a key header, because the layer reads their bodies to look for a key.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|config| config.max_body = bytes)
    }

    /// How long the front end waits for a response, counted from the request's start if the event contains that
    /// time. Default: 29 seconds behind API Gateway, or 5 minutes if a REST API streams
    /// ([`streaming`](Self::streaming)). Behind other front ends, there's no default, and only the invocation's
    /// deadline is a limit. After this time, the layer doesn't retry a settlement, since the caller would no longer get
    /// the response.
    ///
    /// Set this limit if API Gateway's quota was raised, if an edge-optimized REST API streams (it closes idle streams
    /// after 30 seconds), or if a load balancer or proxy closes idle connections before the default limit or the
    /// deadline.
    pub fn answer_within(self, limit: Duration) -> Self {
        self.with(|config| config.answer_within = Some(limit))
    }

    /// Decides from the whole response, and not only from its status, whether it's the operation's outcome. If the
    /// response carries a [`Recording`](crate::settings::Recording), that decides, and the closure isn't called. It isn't
    /// called either for a 5xx status after one of the handler's steps was
    /// [refused](crate::settings::Settings::on_handler_error): the key is released. For a streamed response that is too
    /// large to record, the status decides.
    ///
    /// Under at-most-once, the closure is never called, and this method logs a warning. Any response may have come
    /// after an effect, so every response is recorded unless it carries
    /// [`Recording::Release`](crate::settings::Recording::Release).
    pub fn record_when(self, is_outcome: impl Fn(&Response<Body>) -> bool + Send + Sync + 'static) -> Self {
        if self.is_at_most_once() {
            observe::record_when_unused();
        }
        self.with(|config| config.record_when = Some(Arc::new(is_outcome)))
    }

    /// Sets whether replays contain this header. By default, headers that belong to one exchange aren't recorded:
    /// `Set-Cookie`, `Date`, tracing, rate limits, the headers that `Connection` lists, and more. [The
    /// specification](crate::guide::idempotency_specification) has the list. For CORS headers, use
    /// [`replay_cors`](Self::replay_cors), which compares the request's origin.
    ///
    /// ```
    /// # use lambda_http::http::header;
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// // With `Set-Cookie`, every caller who gets the replay gets the session too.
    /// let layer = idempotency.http().replay_header(header::SET_COOKIE, true).replay_header(header::SERVER, false);
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn replay_header(self, name: HeaderName, is_replayed: bool) -> Self {
        self.with(|config| config.headers.set(name, is_replayed))
    }

    /// Marks replays with this header. Default: `idempotent-replayed`.
    pub fn replay_marker(self, name: HeaderName) -> Self {
        self.with(|config| config.marker = name)
    }

    /// Gives a problem another status, for example 202 for [`ProblemKind::InProgress`] if clients poll.
    pub fn status(self, kind: ProblemKind, status: StatusCode) -> Self {
        self.with(|config| config.problems.statuses.push((kind, status)))
    }

    /// Sets the URI of the page that documents the API's idempotency. A problem's `type` is this URI with the
    /// problem's code as the fragment, and each problem links to the page (the draft, section 2.7). Default: this
    /// library's [specification](crate::guide::idempotency_specification), which is accurate as long as you keep the
    /// defaults.
    pub fn documentation(self, uri: impl Into<String>) -> Self {
        self.with(|config| config.problems.documentation = uri.into())
    }

    /// Decides, before each replay, whether the caller may have the recorded response; otherwise the caller
    /// gets 403. Use it for permissions that can be revoked between two deliveries, and that the handler would
    /// have checked. The closure gets the request without its body, and the caller that the key belongs to, if
    /// that caller has a name.
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
        self.with_closure(|config| {
            config.may_replay = Some(Arc::new(move |parts, caller| Box::pin(may_replay(parts, caller))));
        })
    }

    /// Calls a closure with each replay before the caller gets the response, for example to add a header. The record
    /// doesn't change. For a recorded failure, the response is the problem `operation-failed`.
    ///
    /// ```
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let idempotency = lambda_idempotency::Idempotency::builder(store).function("payments").build()?;
    /// let layer = idempotency.http().on_replay(|replay, response| {
    ///     response.headers_mut().insert("x-recorded-by-attempt", replay.attempt().into());
    /// });
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn on_replay(self, add: impl Fn(&Replay, &mut Response<Body>) + Send + Sync + 'static) -> Self {
        self.with(|config| config.on_replay = Some(Arc::new(add)))
    }

    /// Substitutes the closure's response for the problem `not-retained` (409), which callers get if the operation is
    /// done but its response wasn't kept. The operation may have ended with any status, such as 402, so the substitute
    /// mustn't say that the operation succeeded. The substitute gets the replay marker. Use it for jobs whose response
    /// no caller needs: with [`max_response`](crate::settings::Settings::max_response) 0, no response is stored. A
    /// duplicate of a recorded failure still gets `operation-failed`.
    ///
    /// ```
    /// # use lambda_http::{Body, http::Response};
    /// # let store = lambda_idempotency::store::memory::MemoryStore::new();
    /// # let builder = lambda_idempotency::Idempotency::builder(store).function("reports");
    /// let idempotency = builder.settings(|s| s.max_response = 0).build()?;
    /// let layer = idempotency.http().on_not_retained(|| Response::new(Body::from(r#"{"ended":true}"#)));
    /// # let _ = layer;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn on_not_retained(self, answer: impl Fn() -> Response<Body> + Send + Sync + 'static) -> Self {
        self.with(|config| config.on_not_retained = Some(Arc::new(answer)))
    }
}
