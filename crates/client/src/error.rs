//! The error for an operation without a final response.

use std::{error::Error as StdError, fmt, time::Duration};

use reqwest::StatusCode;

use lambda_idempotency_core::Key;

/// No attempt of an operation got a final response, so the operation may have run or not.
///
/// Send the same request again with the same [`key`](Self::key), now or after a restart. If the operation ran, you get
/// the recorded response. The server keeps the record for 24 h by default. If you retry after that time, the operation
/// runs again.
///
/// A response may leave the outcome open too: see [`is_outcome_open`](super::is_outcome_open).
///
/// ```
/// use lambda_idempotency::{Key, client::{self, Unanswered}};
///
/// # fn keep(_: Option<&Key>) {}
/// # fn example(sent: Result<reqwest::Response, reqwest_middleware::Error>) {
/// match &sent {
///     Ok(response) if client::is_outcome_open(response) => keep(client::operation_key(response)),
///     Ok(_) => {} // the outcome, or a refusal such as a 400
///     Err(error) => keep(client::unanswered(error).map(Unanswered::key)),
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Unanswered {
    pub(super) key: Key,
    pub(super) attempts: u32,
    pub(super) budget: Duration,
    pub(super) last_status: Option<StatusCode>,
    pub(super) source: Option<reqwest_middleware::Error>,
}

impl Unanswered {
    /// The operation's key. Send it in the same form as before, quoted or [bare](super::IdempotentRequests::bare).
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How often the operation was sent.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The status of the latest response whose head arrived. It's the last attempt's status if that attempt's body
    /// broke off, or if the budget ended after that attempt's head had arrived. Otherwise, it's an earlier attempt's
    /// status. `None` if no attempt got a response's head.
    pub fn last_status(&self) -> Option<StatusCode> {
        self.last_status
    }

    /// Why the last attempt got no complete response. `None` if the budget ended first, or if another middleware
    /// failed. If a middleware failed, [`source`](StdError::source) is its error.
    pub fn last_error(&self) -> Option<&reqwest::Error> {
        match self.source.as_ref()? {
            reqwest_middleware::Error::Reqwest(error) => Some(error),
            reqwest_middleware::Error::Middleware(_) => None,
        }
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, budget, .. } = self;
        let why = if self.source.is_some() { "the last attempt failed" } else { "the budget ended" };
        write!(
            f,
            "the operation got no final response (attempts: {attempts}, budget: {budget:?}): {why}; the operation \
             may have run, so retry it with the same key"
        )
    }
}

impl StdError for Unanswered {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.source.as_ref()? {
            reqwest_middleware::Error::Reqwest(error) => Some(error),
            reqwest_middleware::Error::Middleware(error) => Some(&**error),
        }
    }
}

/// The [`Unanswered`] in an error of [`send`](reqwest_middleware::RequestBuilder::send), if it contains one.
pub fn unanswered(error: &reqwest_middleware::Error) -> Option<&Unanswered> {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
        reqwest_middleware::Error::Reqwest(_) => None,
    }
}
