//! An HTTP client that keeps one key over all attempts of an operation: [`IdempotentRequests`], a middleware
//! for `reqwest`.
//!
//! The server recognises a repeated operation by its key, for example with this library's HTTP layer. So retries are
//! safe if every attempt sends the same key. This middleware draws a key for each operation, or takes the one that
//! you have stored. It sends the key as `Idempotency-Key` with every attempt, retries transient failures, and reports
//! whether the response is a replay.
//!
//! ```
//! use lambda_idempotency::{Key, client::{self, IdempotentRequests}};
//! use reqwest_middleware::ClientBuilder;
//!
//! # async fn pay(store: impl Fn(&str), forget: impl Fn(&str)) -> Result<(), Box<dyn std::error::Error>> {
//! let http = reqwest::Client::builder()
//!     .timeout(std::time::Duration::from_secs(8)) // for each attempt
//!     .redirect(reqwest::redirect::Policy::none()) // a redirect would forward the key
//!     .build()?;
//! let client = ClientBuilder::new(http).with(IdempotentRequests::new()).build();
//!
//! let key = Key::draw()?;
//! store(key.as_str()); // before sending, so that a restart after a crash uses the same key
//! let response = client
//!     .post("https://api.example/payments")
//!     .with_extension(key.clone())
//!     .body(r#"{"amount_cents":1250,"currency":"EUR"}"#)
//!     .send()
//!     .await?;
//! println!("{}, replayed: {}", response.status(), client::is_replay(&response));
//! if response.status().is_success() || client::is_replay(&response) {
//!     forget(key.as_str()); // keep the key until you have an outcome
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Without [`with_extension`](reqwest_middleware::RequestBuilder::with_extension) each `send` is an operation
//! with its own UUID. Such a key survives network failures, but not the end of your process. A request that
//! already has an `Idempotency-Key` header keeps the header unchanged, and the header's value is the key.
//!
//! POST and PATCH are operations, and so is each request with a [`Key`] in its extensions. GET, HEAD,
//! PUT, DELETE and the rest are idempotent already: the middleware adds no key to them, and doesn't retry them.
//! [`IdempotentRequests::methods`] overrides this.
//!
//! # What is retried
//!
//! | result | retried |
//! |---|---|
//! | no response: no connection, a broken connection, a timeout of `reqwest` | yes |
//! | 409 with `"retryable": true`; without that field, 409 with the code `in-progress` or with `Retry-After` | yes |
//! | any other 409: `outcome-unknown`, `not-retained` … | no |
//! | 408, 425, 429, 5xx | yes |
//! | a problem with `"retryable": false`: `operation-failed`, `record-unreadable` … | no |
//! | a response that is marked as a replay, whatever its status: it never changes | no |
//! | 400, 422, and all the rest | no |
//! | an error of another middleware, a request that can't be built, too many redirects | no |
//!
//! The middleware reads problems (`application/problem+json`, RFC 9457) of up to 64 KiB. You still get the
//! whole body.
//!
//! Before each retry, the middleware waits as long as `Retry-After` asks for, in seconds or as a date, plus a random
//! backoff (full jitter). It rounds a fraction of a second up, and ignores a value that it can't read. The longest possible backoff doubles with each attempt, from 100 ms to 5 s. All attempts and
//! waits together stay within the [budget](IdempotentRequests::budget) of 30 s. If a wait would exceed the budget, you
//! get the last attempt's result at once. A response keeps its `Retry-After`. An attempt that's still running when the
//! budget ends is dropped.
//!
//! All operations of a client share a [quota](IdempotentRequests::retry_quota) of retries, as in the standard retry
//! mode of AWS's SDKs, so that retries don't multiply the load in an outage. The quota has 500 tokens. A retry takes 5,
//! or 10 after a timeout. A retry that waits for an outcome (409, 425) takes none. When an operation gets a final
//! response, it returns tokens to the quota. If some of its retries took tokens, it returns as many as the last of them
//! took. Otherwise, it returns 1. If too few tokens are left for a retry, you get the last attempt's result at once.
//!
//! # Results
//!
//! - A response, from the last attempt: [`is_replay`], [`attempts`], [`operation_key`] and [`is_outcome_open`]
//!   describe it. Keep the key until you have an outcome: if [`is_outcome_open`] is true, the operation may have run or
//!   not, whatever the response's status. If the response's body breaks off while you read it, the middleware doesn't
//!   retry: send the operation again with the same key, and you get the body from the record.
//! - No response: an error that contains [`Unanswered`], which [`unanswered`] finds. The operation may have run
//!   or not. Send the operation again with [`Unanswered::key`]. An error of another middleware on the first attempt
//!   doesn't contain the key: if that middleware can fail after it has sent the request, store the key first, as above.
//!
//! # Limits
//!
//! - A body that can't be cloned (a stream) is sent once, with its key.
//! - A multipart form gets a new random boundary each time you build it. If you build it again for the same key, the
//!   body differs, and the server answers 422. Encode the form once, and store its bytes and its `Content-Type` with
//!   the key.
//! - `RequestBuilder::build` of `reqwest-middleware` drops the extensions, and with them the key: the request gets
//!   another key when you execute it. Use `send`, or `execute_with_extensions`, or set the header yourself.
//! - Use each value of `Extensions` for one operation only. A key that the middleware draws stays in the extensions
//!   until the response is a 2xx, or a replay with a status that isn't retried. Until then, a middleware before this
//!   one can send the operation again with the same key. To repeat a request after a 2xx, for example because the
//!   response's body broke off, set the key yourself.
//! - Send a stored key in the same form as before, quoted or [bare](IdempotentRequests::bare). Some servers treat
//!   the two forms as different keys.
//! - If you drop the future of `send`, as `tokio::time::timeout` does, you lose a key that the middleware drew. Draw
//!   and store the key first, or limit the operation with the [budget](IdempotentRequests::budget).
//! - The middleware has no timeout for a single attempt, only the budget. Give `reqwest` a `timeout`, or a
//!   `connect_timeout` and a `read_timeout`: without these, a silent connection uses up the whole budget.
//! - The code `in-progress` counts only with status 409. With any other status, the middleware ignores the code.
//! - A rejected certificate is retried like a failed connection, because `reqwest` reports both alike. So is a request
//!   to an `https` URL if no TLS feature of `reqwest` is enabled: enable one yourself.
//! - `reqwest` follows redirects, to other hosts too. It then forwards the key, and at a 307 or 308 also the body,
//!   though it strips `Authorization`. Give `reqwest` a redirect policy that fits your API, as above.
//! - Middlewares that you add after this one see each attempt. Add middlewares that sign or log requests there.
//!   Middlewares that you add before this one see one request for the whole operation.

mod backoff;
mod body;
mod error;
mod judge;
mod key;
mod operation;
mod quota;

/// The crates whose types this module uses, in the versions that it supports.
pub use {reqwest, reqwest_middleware};

pub use error::{Unanswered, unanswered};
pub use operation::{attempts, is_outcome_open, is_replay, operation_key};

use std::{sync::Arc, time::Duration};

use http::Extensions;
use reqwest::{Method, Request, Response, header::HeaderName};
use reqwest_middleware::{Error, Middleware, Next};

use backoff::Backoff;
use key::Sendable;
use lambda_idempotency_core::{
    Key,
    time::{Clock, system_clock},
};
use operation::Operation;
use quota::Quota;

/// The middleware: a key for each operation, and retries with that key. See [the module](crate).
///
/// ```
/// use std::time::Duration;
///
/// use lambda_idempotency::client::IdempotentRequests;
/// use reqwest_middleware::ClientBuilder;
///
/// let requests = IdempotentRequests::new().budget(Duration::from_secs(60)).max_attempts(5);
/// let client = ClientBuilder::new(reqwest::Client::new()).with(requests).build();
/// # let _ = client;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct IdempotentRequests {
    methods: Vec<Method>,
    header: HeaderName,
    marker: HeaderName,
    backoff: Backoff,
    budget: Duration,
    max_attempts: u32,
    quota: Arc<Quota>,
    is_bare: bool,
    clock: Arc<dyn Clock>,
}

impl Default for IdempotentRequests {
    fn default() -> Self {
        Self {
            methods: vec![Method::POST, Method::PATCH],
            header: HeaderName::from_static("idempotency-key"),
            marker: HeaderName::from_static(operation::REPLAYED),
            backoff: Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) },
            budget: Duration::from_secs(30),
            max_attempts: 20,
            quota: Arc::new(Quota::new(quota::CAPACITY)),
            is_bare: false,
            clock: Arc::new(system_clock()),
        }
    }
}

impl IdempotentRequests {
    /// A middleware with the defaults from [the module](crate).
    pub fn new() -> Self {
        Self::default()
    }

    /// Treats requests with these methods as operations, instead of POST and PATCH.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// Sends the key in this header, instead of `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sends the key unquoted, for APIs that take a bare UUID. The draft that defines the header
    /// (draft-ietf-httpapi-idempotency-key-header, section 2.1) asks for quotes. This library's server side
    /// accepts both by default.
    ///
    /// ```
    /// use lambda_idempotency::client::IdempotentRequests;
    ///
    /// let requests = IdempotentRequests::new().bare(); // Idempotency-Key: 8e03978e-40d5-43e8-bc93-6894a57f9324
    /// # let _ = requests;
    /// ```
    pub fn bare(mut self) -> Self {
        self.is_bare = true;
        self
    }

    /// Recognises a replay by this header, with the value `true`, instead of by `Idempotent-Replayed`.
    pub fn replay_marker(mut self, name: HeaderName) -> Self {
        self.marker = name;
        self
    }

    /// Sets the longest possible waits: `first` after the first attempt, then twice as long after each further attempt,
    /// up to `longest`. The actual wait is a random part of the longest possible one. Default: 100 ms and 5 s.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = Backoff { first, longest };
        self
    }

    /// How long an operation may take, with all of its attempts and waits. Default: 30 s.
    ///
    /// Make the budget longer than the server's function may run, because the client waits while it gets `in-progress`.
    /// The operation ends when the response's head has arrived. The time in which you read the body doesn't count.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// The highest number of attempts. Default: 20. Even with 0, an operation is sent once, unless the budget ends
    /// before the first attempt.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The tokens for retries, shared by all operations of this client and its clones. Default: 500. See
    /// [the module](crate). With 0, the middleware retries only after a 409 or 425, since these retries take no
    /// tokens.
    pub fn retry_quota(mut self, tokens: u32) -> Self {
        self.quota = Arc::new(Quota::new(tokens));
        self
    }

    /// Replaces the clock, for tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

#[async_trait::async_trait]
impl Middleware for IdempotentRequests {
    /// # Errors
    ///
    /// [`Unanswered`] if the last attempt got no response, if a redirect failed, or if any attempt after the first
    /// failed with another error. This library's [`Error`](lambda_idempotency_core::Error) if there is no key to send. Its kind is
    /// [`ErrorKind::InvalidKey`](lambda_idempotency_core::ErrorKind::InvalidKey) if the request's own key isn't valid. Other errors of
    /// the first attempt are passed on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the current attempt, which the server may still process. Sending the operation
    /// again with the same key is safe.
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, Error> {
        let is_given = extensions.get::<Key>().is_some();
        if !is_given && !self.methods.contains(request.method()) {
            return next.run(request, extensions).await;
        }
        let key =
            Sendable::of(&mut request, &self.header, self.is_bare, extensions).map_err(Error::middleware)?;
        let operation = Operation::new(self, key.into_key(), request.url().clone());
        let response = operation.run(request, extensions, next).await?;
        if operation::is_settled(&response) {
            key::forget_drawn(extensions);
        }
        Ok(response)
    }
}
