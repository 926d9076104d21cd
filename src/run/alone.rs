//! Commits the handler's own writes without a record, while idempotency isn't enforced.

use crate::{
    key::StoredKey,
    protocol::{Decline, Limits, SHORTEST_ANSWER, SHORTEST_CALL},
    run::{
        driver::{Declined, Driver, pause},
        staging::NO_TRANSACTIONS,
    },
    store::{CommitOutcome, OwnWrites, StoreError, StoreErrorKind},
    time::Timestamp,
};

/// Commits `writes` in one transaction. While the store fails, this sends the same transaction again, under one
/// token. It stops when the caller's answer is due, and at the latest after
/// [`Settings::settle_within`](crate::settings::Settings::settle_within).
///
/// # Errors
///
/// The last attempt wasn't applied.
pub(super) async fn commit_alone(
    driver: &Driver,
    key: &StoredKey,
    limits: Limits,
    writes: &OwnWrites,
) -> Result<(), Declined> {
    let not_applied = |error: StoreError, is_in_doubt| {
        let why = Decline::Store(error.kind());
        Declined { why, details: None, store_error: Some(error), is_in_doubt }
    };
    let store = driver.store().clone();
    let Some(transactions) = store.transactions() else {
        return Err(not_applied(StoreError::new(StoreErrorKind::Rejected, NO_TRANSACTIONS), false));
    };
    let random = StoreError::new(StoreErrorKind::Unavailable, "the operating system returned no random bits");
    let Ok(owner) = driver.owner() else { return Err(not_applied(random, false)) };
    let token = key.derive(&format!("writes of {owner} without a record"));
    let end = limits.settle_by(driver.now());
    let (mut nth, mut is_in_doubt) = (0, false);
    loop {
        let now = driver.now();
        let longest = now.saturating_add((now.until(end) / 2).max(SHORTEST_CALL));
        let last = if nth == 0 { first_call_until(limits, now) } else { Some(end) };
        let until = last.map_or(longest, |last| last.min(longest));
        let error = match driver.in_time(now, Some(until), transactions.commit_alone(writes, &token)).await {
            Ok(CommitOutcome::Answered(_)) => return Ok(()),
            // If an answer was lost, that earlier attempt may have been applied, or may still be applied.
            Ok(CommitOutcome::Declined(details)) => {
                let details = (!is_in_doubt).then_some(details);
                return Err(Declined { why: Decline::Condition, details, store_error: None, is_in_doubt });
            }
            Err(error) => error,
        };
        is_in_doubt |= error.is_maybe_applied();
        let pause = pause(nth, owner);
        nth = nth.saturating_add(1);
        let is_transient = matches!(error.kind(), StoreErrorKind::Unavailable | StoreErrorKind::Conflict);
        if !is_transient || driver.now().saturating_add(pause) >= end {
            return Err(not_applied(error, is_in_doubt));
        }
        driver.clock().sleep(pause).await;
    }
}

/// Returns the time at which the first attempt to commit must end. The attempt is made even if the answer is overdue:
/// without it, the writes would be lost.
pub(crate) fn first_call_until(limits: Limits, now: Timestamp) -> Option<Timestamp> {
    let is_in_time = |last: &Timestamp| now.saturating_add(SHORTEST_ANSWER) < *last;
    let overdue = now.saturating_add(SHORTEST_CALL);
    limits.last_call().map(|last| Some(last).filter(is_in_time).unwrap_or(overdue))
}
