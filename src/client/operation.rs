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
    Request, Response, StatusCode,
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
use crate::{
    future::BoxFuture,
    key::Key,
    observe,
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
    budget: Budget,
    attempts: Attempts,
    /// The tokens that the last retry took.
    last_cost: Option<u32>,
}

impl<'a> Operation<'a> {
    pub(super) fn new(rules: &'a IdempotentRequests, key: Key) -> Self {
        let budget = Budget::start(&rules.clock, rules.budget);
        Self { rules, key, budget, attempts: Attempts::default(), last_cost: None }
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
            drop(attempted);
            self.rules.clock.sleep(wait.unwrap_or_default()).await;
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
        self.last_cost = self.rules.quota.take(cause);
        self.last_cost.is_some()
    }

    fn note(&self, attempted: &Attempted, wait: Duration) {
        if let Attempted::Answered(response) = attempted {
            observe::sent_again(self.attempts.count, wait, response.status().as_str());
        } else {
            observe::sent_again(self.attempts.count, wait, "no answer");
        }
    }

    fn end(self, attempted: Attempted) -> Result<Response, Error> {
        let mut response = match attempted {
            Attempted::Last(result) => {
                let response = result?;
                self.rules.quota.succeeded(self.last_cost);
                response
            }
            Attempted::Answered(response) => response,
            Attempted::Lost(error) => return Err(self.unanswered(Some(error))),
        };
        let is_replay = is_marked(response.headers(), &self.rules.marker);
        response.extensions_mut().insert(Answered {
            key: self.key,
            attempts: self.attempts.count,
            is_replay,
        });
        Ok(response)
    }

    fn unanswered(self, source: Option<reqwest::Error>) -> Error {
        let Self { rules, key, attempts: Attempts { count: attempts, last_status }, .. } = self;
        Error::middleware(Unanswered { key, attempts, budget: rules.budget, last_status, source })
    }
}

impl IdempotentRequests {
    /// Sends an attempt, which counts from its first poll: if the budget ends before, nothing is sent.
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
        // Noted before the body is read, which may break off.
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
