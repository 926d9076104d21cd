//! A client that keeps one key over all attempts of an operation: [`IdempotentRequests`], a middleware for
//! `reqwest`.
//!
//! The layer on the other side runs an operation once; this one makes it safe to ask again. It draws a key for each
//! operation, or takes the one that you have stored, sends it as `Idempotency-Key` with every attempt, repeats what
//! may go better later, and tells whether the answer is a replay.
//!
//! ```
//! use lambda_idempotency::client::{self, IdempotentRequests, OperationKey};
//! use reqwest_middleware::ClientBuilder;
//!
//! # async fn pay(store: impl Fn(&str)) -> Result<(), Box<dyn std::error::Error>> {
//! let http = reqwest::Client::builder()
//!     .timeout(std::time::Duration::from_secs(8)) // of each attempt
//!     .redirect(reqwest::redirect::Policy::none()) // a redirect takes the key along
//!     .build()?;
//! let client = ClientBuilder::new(http).with(IdempotentRequests::new()).build();
//!
//! let key = OperationKey::draw()?;
//! store(key.as_str()); // before it is sent: whoever starts again after a crash goes on with the same key
//! let response = client
//!     .post("https://api.example/payments")
//!     .with_extension(key)
//!     .body(r#"{"amount_cents":1250,"currency":"EUR"}"#)
//!     .send()
//!     .await?;
//! println!("{}, replayed: {}", response.status(), client::is_replay(&response));
//! # Ok(())
//! # }
//! ```
//!
//! Without [`with_extension`](reqwest_middleware::RequestBuilder::with_extension) each `send` is an operation with a
//! UUID of its own. That survives what goes wrong on the way, but not the end of your process. A request that already has an
//! `Idempotency-Key` header keeps it, letter for letter, and its value is the key.
//!
//! POST and PATCH are operations, and so is each request that an [`OperationKey`] was put into. GET, HEAD, PUT, DELETE and the
//! rest are idempotent by themselves: they pass with no key, and are not repeated from here. [`IdempotentRequests::methods`]
//! says otherwise.
//!
//! # What is sent again
//!
//! | what came back | sent again |
//! |---|---|
//! | no answer: no connection, a connection that broke, a time-out of `reqwest`'s | yes |
//! | 409 that says `in-progress` or `"retryable": true`, or has `Retry-After` and says neither | yes |
//! | 409, any other: `outcome-unknown`, `not-retained` … | no |
//! | 425, 429, 5xx | yes |
//! | a problem that says `"retryable": false`: `operation-failed`, `record-unreadable` … | no |
//! | an answer that is marked as a replay, whatever its status: it stays as it is | no |
//! | 400, 422, and all the rest | no |
//! | an error of another middleware, a request that cannot be built, too many redirects | no |
//!
//! What a problem says is read from `application/problem+json` (RFC 9457), up to 64 KiB of it; you get its body all the same.
//!
//! Before each further attempt is a wait: what `Retry-After` asks for, in seconds or as a date, and a random part of a
//! longest wait that doubles from 100 ms to 5 s (full jitter). All attempts and waits together stay within the
//! [budget](IdempotentRequests::budget) of 30 s. A wait that would reach its end is not begun: you get the last answer as it
//! is, with its `Retry-After`. An attempt that is on its way then is dropped.
//!
//! All operations of a client share a [quota](IdempotentRequests::retry_quota) of retries, as in the standard retry mode of AWS's
//! SDKs, so that an outage isn't multiplied. It has 500 tokens. A further attempt takes 5, or 10 after a timeout; one that waits for an
//! outcome (409, 425) takes none. An operation that ends well gives back what its last retry took, or 1 if it had none. With too few
//! tokens left you get the last answer at once.
//!
//! # What you get
//!
//! - an answer, the last one: [`is_replay`], [`attempts`] and [`operation_key`] tell about it. Its body is yours to read:
//!   if it breaks off then, nothing is repeated by itself. Send the operation again with the same key, and the
//!   body is replayed;
//! - no answer: an error that [`unanswered`] finds [`Unanswered`] in. The operation may have been done or not, and
//!   [`Unanswered::key`] is what to send it again with.
//!
//! # Limits
//!
//! - A body that cannot be cloned (a stream) is sent once, with its key.
//! - Nothing here bounds one attempt but the budget. Give `reqwest` a `timeout`, or a `connect_timeout` and a
//!   `read_timeout`: without them a connection that has gone silent takes the whole budget.
//! - An API that says `in-progress` with another status than 409 or 425 is not asked again.
//! - A certificate that is refused counts as no connection, and so does `https` without a TLS feature of `reqwest`, which is
//!   yours to pick: `reqwest` does not tell them apart.
//! - `reqwest` follows redirects by itself, to another host too, and takes the key and the body of a 307 or 308 along, though
//!   it strips `Authorization`. Give it a policy that fits your API, as above.
//! - Middlewares that are added after this one see each attempt, so put there what signs or logs requests. Those
//!   before it see one operation.

mod backoff;
mod body;
mod error;
mod judge;
mod key;
mod operation;
mod quota;

/// The crates that this module's types come from, in the versions that it is made for.
pub use {reqwest, reqwest_middleware};

pub use error::{Unanswered, unanswered};
pub use key::OperationKey;
pub use operation::{attempts, is_replay, operation_key};

use std::{sync::Arc, time::Duration};

use ::http::Extensions;
use reqwest::{Method, Request, Response, header::HeaderName};
use reqwest_middleware::{Error, Middleware, Next};

use crate::time::{Clock, SystemClock};
use backoff::Backoff;
use operation::Operation;
use quota::Quota;

/// The middleware: a key for each operation, and further attempts under it. See [the module](crate::client).
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
            clock: Arc::new(SystemClock),
        }
    }
}

impl IdempotentRequests {
    /// A middleware with the settings that [the module](crate::client) names.
    pub fn new() -> Self {
        Self::default()
    }

    /// The methods whose requests are operations, instead of POST and PATCH.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// The header that the key is sent in, instead of `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header = name;
        self
    }

    /// Sends the key as it is, and not as a quoted string: for APIs that take a bare UUID. The draft that defines the header
    /// (draft-ietf-httpapi-idempotency-key-header, section 2.1) and this library's server side ask for quotes.
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

    /// The header by which a server marks a replay, with the value `true`, instead of `Idempotent-Replayed`.
    pub fn replay_marker(mut self, name: HeaderName) -> Self {
        self.marker = name;
        self
    }

    /// The longest first wait, and the longest of all; between them it doubles with every attempt. What is waited is a
    /// random part of that. By default 100 ms and 5 s.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = Backoff { first, longest };
        self
    }

    /// How long an operation may take, with all of its attempts and waits; by default 30 s.
    ///
    /// Make it longer than the function behind may run: who is told `in-progress` waits for that. It ends when the
    /// answer's head is there; reading the body is yours.
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// How often an operation is sent at most; by default 20. It is sent once in any case,
    /// unless the budget is spent before that.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The tokens that further attempts take, shared by all operations of this client and its clones; by default 500.
    /// See [the module](crate::client). 0 sends again only for an operation that is in progress.
    pub fn retry_quota(mut self, tokens: u32) -> Self {
        self.quota = Arc::new(Quota::new(tokens));
        self
    }

    /// The clock: for tests.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }
}

#[async_trait::async_trait]
impl Middleware for IdempotentRequests {
    /// # Errors
    ///
    /// [`Unanswered`] if no attempt was answered, and this library's [`Error`](crate::Error) if there is no key to be
    /// sent, with [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) if the request's own is none; what else comes
    /// from below is handed on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the attempt that is on its way, which the server may handle all the same. Sending the
    /// operation again with the same key is safe.
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, Error> {
        let is_given = extensions.get::<OperationKey>().is_some();
        if !is_given && !self.methods.contains(request.method()) {
            return next.run(request, extensions).await;
        }
        let key = OperationKey::of(&mut request, &self.header, self.is_bare, extensions)
            .map_err(Error::middleware)?;
        Operation::new(self, key).run(request, extensions, next).await
    }
}
