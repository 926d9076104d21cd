//! One operation: its attempts, the waits between them, and their common budget.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http::{Extensions, HeaderMap};
use reqwest::{
    Request, Response, StatusCode, Url,
    header::{HeaderName, RETRY_AFTER},
};
use reqwest_middleware::{Error, Next};

use super::{
    IdempotentRequests, Unanswered,
    backoff::retry_after,
    body::read_problem,
    judge::{Shown, is_sent_again, may_be_sent_again},
    quota::Cause,
};
use lambda_idempotency_core::{
    Key,
    store::BoxFuture,
    time::{Clock, Timestamp},
};

/// The header that marks a replay, by default.
pub(super) const REPLAYED: &str = "idempotent-replayed";

/// The facts about an operation that are stored in its response's extensions.
#[derive(Clone, Debug)]
struct Answered {
    key: Key,
    attempts: u32,
    is_replay: bool,
    is_open: bool,
}

/// Whether the response is from the record of an earlier attempt, or of an earlier operation with the same key. The
/// handler didn't run for this response's attempt.
pub fn is_replay(response: &Response) -> bool {
    match response.extensions().get::<Answered>() {
        Some(answered) => answered.is_replay,
        None => is_marked(response.headers(), &HeaderName::from_static(REPLAYED)),
    }
}

/// How often the operation was sent until this response arrived. `None` if the request wasn't an operation.
pub fn attempts(response: &Response) -> Option<u32> {
    response.extensions().get::<Answered>().map(|answered| answered.attempts)
}

/// The operation's key, whether you set the key or the middleware drew it. `None` if the request wasn't an operation.
pub fn operation_key(response: &Response) -> Option<&Key> {
    response.extensions().get::<Answered>().map(|answered| &answered.key)
}

/// Whether the operation's outcome is still open: it may have run or may still be running, but this response isn't its
/// outcome. Keep the key then, and send the operation again with it.
///
/// True if the response calls for a retry, such as a 503, but the middleware gave up. Also true for a 408 or 409 that
/// isn't a replay. After more than one attempt, true for every response that is neither a 2xx nor a replay,
/// because an earlier attempt may have run. False if the request wasn't an operation.
///
/// Only the attempts of this [`send`](reqwest_middleware::RequestBuilder::send) count. If an earlier `send` left the
/// outcome open, it stays open until you get a 2xx or a replay.
pub fn is_outcome_open(response: &Response) -> bool {
    response.extensions().get::<Answered>().is_some_and(|answered| answered.is_open)
}

/// Whether the operation may have run although this response, which isn't a replay, isn't its outcome. After a 409,
/// another attempt may still be running. After a 408, the handler may have begun before its time ran out. After a
/// retry, an earlier attempt may have run.
fn is_open(status: StatusCode, attempts: u32) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT)
        || (attempts > 1 && !status.is_success())
}

/// Whether the response is an outcome that no middleware before this one would retry.
pub(super) fn is_settled(response: &Response) -> bool {
    response.status().is_success() || (is_replay(response) && !may_be_sent_again(response.status()))
}

fn is_marked(headers: &HeaderMap, marker: &HeaderName) -> bool {
    headers.get(marker).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}

/// How one attempt ended.
enum Attempted {
    /// With a final result.
    Last(Result<Response, Error>),
    /// With a response after which the operation may be retried.
    Answered(Response),
    /// Without a response.
    Lost(reqwest::Error),
}

impl Attempted {
    /// An attempt without a response. Removes the error's URL, whose query may contain a token.
    fn lost(error: reqwest::Error) -> Self {
        Self::Lost(error.without_url())
    }
}

/// The attempts of an operation so far.
#[derive(Debug, Default)]
struct Attempts {
    /// How many were sent.
    count: u32,
    /// The status of the latest response whose head arrived.
    last_status: Option<StatusCode>,
}

/// One operation of a caller.
pub(super) struct Operation<'a> {
    rules: &'a IdempotentRequests,
    key: Key,
    url: Url,
    budget: Budget,
    attempts: Attempts,
    /// The tokens of the last retry that took any.
    last_cost: Option<u32>,
}

impl<'a> Operation<'a> {
    pub(super) fn new(rules: &'a IdempotentRequests, key: Key, url: Url) -> Self {
        let budget = Budget::start(&rules.clock, rules.budget);
        Self { rules, key, url, budget, attempts: Attempts::default(), last_cost: None }
    }

    pub(super) async fn run(
        mut self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, Error> {
        loop {
            let copy = request.try_clone();
            let attempt = self.rules.attempt(&mut self.attempts, next.clone().run(request, extensions));
            let Some(attempted) = self.budget.within(attempt).await else {
                return Err(self.unanswered(None));
            };
            let wait = self.wait_after(&attempted);
            match copy {
                Some(copy) if wait.is_some_and(|wait| self.may_go_on(wait)) && self.pays(&attempted) => {
                    request = copy
                }
                _ => return self.end(attempted),
            }
            self.note(&attempted, wait.unwrap_or_default());
            // Drop the response before the wait, because an unread response occupies its connection.
            drop(attempted);
            let pause = self.rules.clock.sleep(wait.unwrap_or_default());
            if self.budget.within(pause).await.is_none() {
                return Err(self.unanswered(None));
            }
        }
    }

    /// How long to wait before a retry; `None` if the result is final.
    fn wait_after(&self, attempted: &Attempted) -> Option<Duration> {
        let asked = match attempted {
            Attempted::Last(_) => return None,
            Attempted::Answered(response) => retry_after(response.headers(), self.rules.clock.now()),
            Attempted::Lost(_) => None,
        };
        // The backoff is added so that callers with the same `Retry-After` don't retry at the same time.
        Some(asked.unwrap_or_default().saturating_add(self.rules.backoff.wait(self.attempts.count)))
    }

    fn may_go_on(&self, wait: Duration) -> bool {
        self.attempts.count < self.rules.max_attempts && self.budget.outlasts(wait)
    }

    /// Takes the retry's tokens from the quota that all operations share. Returns false if too few tokens are left.
    fn pays(&mut self, attempted: &Attempted) -> bool {
        let cause = match attempted {
            Attempted::Answered(response) => Cause::Status(response.status()),
            Attempted::Lost(error) if error.is_timeout() => Cause::Timeout,
            Attempted::Lost(_) | Attempted::Last(_) => Cause::Lost,
        };
        let Some(cost) = self.rules.quota.take(cause) else { return false };
        // A retry that waits for an outcome takes no tokens, and leaves `last_cost` as it is. A final response then
        // still returns the tokens of an earlier retry.
        if cost > 0 {
            self.last_cost = Some(cost);
        }
        true
    }

    fn note(&self, attempted: &Attempted, wait: Duration) {
        if let Attempted::Answered(response) = attempted {
            sent_again(self.attempts.count, wait, response.status().as_str());
        } else {
            sent_again(self.attempts.count, wait, "no answer");
        }
    }

    fn end(self, attempted: Attempted) -> Result<Response, Error> {
        let (mut response, is_given_up) = match attempted {
            Attempted::Last(Err(error)) => return Err(self.failed(error)),
            Attempted::Last(Ok(response)) => {
                self.rules.quota.succeeded(self.last_cost);
                (response, false)
            }
            Attempted::Answered(response) => (response, true),
            Attempted::Lost(error) => return Err(self.unanswered(Some(error.into()))),
        };
        let is_replay = is_marked(response.headers(), &self.rules.marker);
        let attempts = self.attempts.count;
        let is_open = is_given_up || (!is_replay && is_open(response.status(), attempts));
        response.extensions_mut().insert(Answered { key: self.key, attempts, is_replay, is_open });
        Ok(response)
    }

    /// Converts an error that isn't retried into the caller's error. If there was an earlier attempt, or if the server
    /// redirected the request, the operation may have run: the caller then gets the key with the error.
    fn failed(self, error: Error) -> Error {
        if self.attempts.count > 1 || is_redirected(&error, &self.url) {
            // The URL's query may contain a token.
            self.unanswered(Some(error.without_url()))
        } else {
            error
        }
    }

    fn unanswered(self, source: Option<Error>) -> Error {
        let Self { rules, key, attempts: Attempts { count: attempts, last_status }, .. } = self;
        Error::middleware(Unanswered { key, attempts, budget: rules.budget, last_status, source })
    }
}

impl IdempotentRequests {
    /// Sends an attempt. The attempt counts from this future's first poll: if the budget ends before that poll, nothing
    /// is sent.
    async fn attempt(
        &self,
        attempts: &mut Attempts,
        sent: impl Future<Output = Result<Response, Error>>,
    ) -> Attempted {
        attempts.count += 1;
        let response = match sent.await {
            Ok(response) if may_be_sent_again(response.status()) => response,
            Err(Error::Reqwest(error)) if is_lost(&error) => return Attempted::lost(error),
            result => return Attempted::Last(result),
        };
        // Note the status before reading the body, because the body may break off.
        attempts.last_status = Some(response.status());
        let (problem, response) = match read_problem(response).await {
            Ok(read) => read,
            Err(error) => return Attempted::lost(error),
        };
        let shown = Shown {
            status: response.status(),
            is_replay: is_marked(response.headers(), &self.marker),
            has_retry_after: response.headers().contains_key(RETRY_AFTER),
            problem,
        };
        if is_sent_again(&shown) { Attempted::Answered(response) } else { Attempted::Last(Ok(response)) }
    }
}

/// Whether the attempt ended without the response's head: no connection, a broken connection, a timeout. A request that
/// couldn't be built or redirected doesn't count.
fn is_lost(error: &reqwest::Error) -> bool {
    error.is_request()
}

/// Whether the server redirected the request, and `reqwest` then refused to follow. If the new URL's scheme is neither
/// `http` nor `https`, `reqwest` reports a builder error, as if you had sent a request to that URL. Then only the
/// error's URL shows the redirect.
fn is_redirected(error: &Error, sent_to: &Url) -> bool {
    error.is_redirect() || (error.is_builder() && error.url().is_some_and(|url| url != sent_to))
}

/// The time limit of an operation.
struct Budget {
    clock: Arc<dyn Clock>,
    until: Timestamp,
    /// Ends the budget even if the clock is set back.
    timer: BoxFuture<'static, ()>,
}

impl Budget {
    fn start(clock: &Arc<dyn Clock>, budget: Duration) -> Self {
        let until = clock.now().saturating_add(budget);
        Self { until, timer: clock.sleep(budget), clock: Arc::clone(clock) }
    }

    /// Whether there is time left after a wait.
    fn outlasts(&self, wait: Duration) -> bool {
        self.clock.now().saturating_add(wait) < self.until
    }

    /// The result of `work`, or `None` if the budget ends first.
    ///
    /// Besides the timer, this checks the clock before each poll, because a timer can miss the time for which Lambda
    /// froze the sandbox.
    async fn within<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if self.clock.now() >= self.until || self.timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// A client sends its operation again. `cause` is the reason, and holds no key, body or address.
fn sent_again(attempt: u32, wait: std::time::Duration, cause: &str) {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(
        target: "lambda_idempotency", event = "sent_again", attempt, wait_ms, cause, "retries the operation after a wait"
    );
}
