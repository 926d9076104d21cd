//! A shared limit on retries, so that clients don't multiply the load of a server that is down.

use std::sync::{Mutex, MutexGuard, PoisonError};

use reqwest::StatusCode;

/// The number of tokens. Like the three numbers below, it's from the standard retry mode of AWS's SDKs
/// (`DEFAULT_CAPACITY`, `LEGACY_RETRY_COST`, `LEGACY_RETRY_TIMEOUT_COST` and `PERMIT_REGENERATION_AMOUNT` in
/// `aws-smithy-runtime` 1.16, `client/retries/token_bucket.rs`).
pub(super) const CAPACITY: u32 = 500;
const RETRY: u32 = 5;
const RETRY_AFTER_TIMEOUT: u32 = 10;
/// The tokens that an operation returns to the quota if no retry took any.
const FIRST_SUCCESS: u32 = 1;

/// Why an operation is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Status(StatusCode),
    Timeout,
    /// No connection, or a broken one.
    Lost,
}

impl Cause {
    fn cost(self) -> u32 {
        match self {
            // The server is up: another attempt of the operation is in progress.
            Self::Status(StatusCode::CONFLICT | StatusCode::TOO_EARLY) => 0,
            Self::Status(_) | Self::Lost => RETRY,
            Self::Timeout => RETRY_AFTER_TIMEOUT,
        }
    }
}

/// A token bucket that all operations of a client share.
#[derive(Debug)]
pub(super) struct Quota {
    capacity: u32,
    left: Mutex<u32>,
}

impl Quota {
    pub(super) fn new(capacity: u32) -> Self {
        Self { capacity, left: Mutex::new(capacity) }
    }

    /// Takes a retry's tokens, and returns their number; `None` if too few tokens are left.
    pub(super) fn take(&self, cause: Cause) -> Option<u32> {
        let mut left = self.left();
        let rest = left.checked_sub(cause.cost())?;
        *left = rest;
        Some(cause.cost())
    }

    /// Called for an operation that got a final response. Puts back `last_cost` tokens: as many as the operation's
    /// last retry that took any. Puts back one token if no retry took any.
    pub(super) fn succeeded(&self, last_cost: Option<u32>) {
        let mut left = self.left();
        *left = left.saturating_add(last_cost.unwrap_or(FIRST_SUCCESS)).min(self.capacity);
    }

    fn left(&self) -> MutexGuard<'_, u32> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: Cause = Cause::Status(StatusCode::SERVICE_UNAVAILABLE);

    #[test]
    fn outages_drain_quota_and_successes_refill_it() {
        let quota = Quota::new(CAPACITY);
        assert_eq!((0..1000).filter(|_| quota.take(DOWN).is_some()).count(), 100);
        quota.succeeded(Some(RETRY));
        assert_eq!((quota.take(DOWN), quota.take(DOWN)), (Some(5), None));
        for _ in 0..9 {
            quota.succeeded(None);
        }
        assert_eq!((quota.take(Cause::Timeout), quota.take(Cause::Lost)), (None, Some(5)));
        for _ in 0..10_000 {
            quota.succeeded(Some(RETRY_AFTER_TIMEOUT));
        }
        assert_eq!(*quota.left(), CAPACITY);
    }

    #[test]
    fn waiting_for_outcomes_uses_no_quota() {
        let quota = Quota::new(0);
        assert_eq!(quota.take(Cause::Status(StatusCode::CONFLICT)), Some(0));
        assert_eq!(quota.take(Cause::Status(StatusCode::TOO_EARLY)), Some(0));
        assert_eq!(quota.take(Cause::Status(StatusCode::TOO_MANY_REQUESTS)), None);
    }
}
