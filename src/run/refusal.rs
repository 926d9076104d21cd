//! Every error that an operation's caller gets: one function for each cause.

use std::{any::type_name, time::Duration};

use crate::{
    error::{Error, ErrorKind},
    internal::ErrorExt as _,
    internal::StoreErrorExt as _,
    key::StoredKey,
    observe,
    protocol::{Decline, End, Refusal, Rules, State},
    record::Record,
    settings::Execution,
    store::{StoreError, StoreErrorKind},
    time::Timestamp,
};

/// The wait to suggest to a caller if nothing says when a retry can succeed: the shortest that `Retry-After` can say.
pub(crate) const DEFAULT_RETRY: Duration = Duration::from_secs(1);
const CUT_OFF: &str = "the handler was cut off, because its time ran out";

/// Why a claim failed.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) by: RefusedBy,
}

/// The source of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedBy {
    /// A rule of the protocol.
    Rule,
    /// The store, which failed before the claim. The handler may run unprotected, if the settings say so.
    Store,
    /// The store, which failed before the claim. It's too late to run the handler, even unprotected.
    StoreTooLate,
    /// The recorded outcome, which couldn't be read.
    Outcome,
}

impl Refused {
    /// The refusal with which `state` ended at `now`. `cause` is the store's last error.
    pub(super) fn of(
        key: &StoredKey,
        refusal: Refusal,
        cause: Option<StoreError>,
        state: &State,
        now: Timestamp,
    ) -> Self {
        let error = refusal_error(key, refusal, cause, now);
        let is_late = now >= state.plan().start_by();
        let by = match refusal {
            Refusal::Unavailable | Refusal::Abandoned(_) | Refusal::Rejected if is_late => {
                RefusedBy::StoreTooLate
            }
            Refusal::Unavailable | Refusal::Abandoned(_) | Refusal::Rejected => RefusedBy::Store,
            _ => RefusedBy::Rule,
        };
        Self { error, by }
    }

    /// Reports the refusal.
    pub(crate) fn reported(self, key: &StoredKey) -> Self {
        observe::refused(key, &self.error, self.by != RefusedBy::Rule);
        self
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, by: RefusedBy::Rule }
    }
}

/// Returns the error kind for a store's error kind.
fn kind(kind: StoreErrorKind) -> ErrorKind {
    match kind {
        StoreErrorKind::Corrupt => ErrorKind::Corrupt,
        StoreErrorKind::Rejected | StoreErrorKind::Unstorable => ErrorKind::Invalid,
        // `Unavailable` and `Conflict`.
        _ => ErrorKind::Unavailable,
    }
}

fn because(error: Error, cause: Option<StoreError>) -> Error {
    match cause {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

/// Adds the cause of a rejection, whose sentence the error's own sentence repeats: most people don't look at a source.
/// The store's sentence has the code and what to do next. Its source, which only the log shows, has the server's own
/// text, with ARNs and other names.
fn rejected_because(error: Error, cause: Option<StoreError>) -> Error {
    match cause.and_then(StoreError::into_source) {
        Some(source) => error.rejection().with_source(source),
        None => error.rejection(),
    }
}

pub(crate) fn store_error(key: &StoredKey, what: &str, error: StoreError) -> Error {
    match kind(error.kind()) {
        ErrorKind::Invalid => {
            let message = format!("{key}: {what}: {error}");
            rejected_because(Error::new(ErrorKind::Invalid, message), Some(error))
        }
        kind => Error::new(kind, format!("{key}: {what}")).with_source(error),
    }
}

/// Returns the error for a claim that failed or had to be released.
pub(crate) fn refusal_error(
    key: &StoredKey,
    refusal: Refusal,
    cause: Option<StoreError>,
    now: Timestamp,
) -> Error {
    refused(key, refusal, "nothing ran", cause, now)
}

/// Returns the refusal's error. `missing` says what hasn't happened.
fn refused(
    key: &StoredKey,
    refusal: Refusal,
    missing: &str,
    cause: Option<StoreError>,
    now: Timestamp,
) -> Error {
    let error = match refusal {
        Refusal::Mismatch => Error::new(
            ErrorKind::Mismatch,
            format!("{key}: the idempotency key was used with another payload"),
        ),
        Refusal::InProgress(until) => in_progress(key, until, now),
        Refusal::OutcomeUnknown => Error::new(
            ErrorKind::OutcomeUnknown,
            format!(
                "{key}: an earlier run ended without an answer, and it was allowed to run at most once; settle the \
                 record by hand: `idempotency inspect` shows how"
            ),
        ),
        Refusal::NoTimeLeft => {
            Error::out_of_time(format!("{key}: no time is left before the invocation's deadline; {missing}"))
        }
        Refusal::Abandoned(until) => Error::new(
            ErrorKind::Unavailable,
            format!("{key}: the store didn't answer, so the claim may hold the key; {missing}"),
        )
        .with_retry_after(now.until(until)),
        Refusal::Unavailable => {
            Error::new(ErrorKind::Unavailable, format!("{key}: the store can't be reached; {missing}"))
                .with_retry_after(DEFAULT_RETRY)
        }
        Refusal::Rejected => {
            let why = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
            let message = format!("{key}: the store rejects the request{why}; {missing}");
            return rejected_because(Error::new(ErrorKind::Invalid, message), cause);
        }
        Refusal::Corrupt => Error::new(
            ErrorKind::Corrupt,
            format!("{key}: the stored record can't be read; {missing}. Inspect the record in the store"),
        ),
    };
    because(error, cause)
}

/// Returns the error for a key that another claim holds.
pub(super) fn in_progress(key: &StoredKey, until: Option<Timestamp>, now: Timestamp) -> Error {
    let retry_after = until.map_or(DEFAULT_RETRY, |until| now.until(until));
    Error::new(ErrorKind::InProgress, format!("{key}: another delivery of this operation is still running"))
        .with_retry_after(retry_after)
}

/// Returns the error for a handler's outcome that isn't known to be stored. The handler ran, and its effects have
/// happened.
pub(super) fn unrecorded(key: &StoredKey, end: &End, cause: Option<StoreError>) -> Error {
    let error = match end {
        End::Unrecorded(Refusal::Mismatch) => Error::new(
            ErrorKind::Unrecorded,
            format!("{key}: the outcome isn't stored, because the key is now in use for another request"),
        ),
        End::Fenced(_) | End::Superseded(_) => return fenced(key, cause),
        End::Recorded | End::Unrecorded(_) | End::NotCommitted(_) | End::Unresolved(_) => Error::new(
            ErrorKind::Unrecorded,
            format!("{key}: the handler ran, but its outcome isn't known to be stored"),
        ),
    };
    because(error, cause)
}

/// Returns the error for a release whose answer is unknown, or that failed.
pub(super) fn not_released(key: &StoredKey, cause: Option<StoreError>) -> Error {
    let error = Error::new(
        ErrorKind::Unrecorded,
        format!(
            "{key}: it's unknown whether the key is released; if it isn't, the key is free once the claim's lease has \
             expired, or, under at-most-once, once an operator has settled the record"
        ),
    );
    because(error, cause)
}

/// Returns the error for a question without an answer yet. It's asked again from `until` on.
pub(super) fn not_known(
    key: &StoredKey,
    rules: &Rules,
    until: Timestamp,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    now: Timestamp,
) -> Error {
    let what = match cause {
        None => "isn't known yet",
        Some(_) => "couldn't be asked for",
    };
    let kind = match rules.reruns_when_absent() {
        true => ErrorKind::InProgress,
        false => ErrorKind::OutcomeUnknown,
    };
    let message = format!(
        "{key}: an earlier attempt ended without an answer, and its effect {what}; the next attempt asks again, so retry \
         then"
    );
    let error = Error::new(kind, message).with_retry_after(now.until(until));
    match cause {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

/// Returns the error for a question that was cut off, because the invocation's time or the lease ran out.
pub(super) fn question_cut_off(key: &StoredKey, until: Option<Timestamp>, now: Timestamp) -> Error {
    let message = format!(
        "{key}: the time ran out while the effect of an earlier attempt was asked for; the next attempt asks again, so \
         retry when the lease has expired"
    );
    Error::new(ErrorKind::InProgress, message)
        .with_retry_after(until.map_or(DEFAULT_RETRY, |until| now.until(until)))
}

/// Returns the error for a handler that was cut off under a claim. The key becomes claimable at `until`. `is_replaced`
/// says whether the claim was lost because an operator settled or released the record.
pub(super) fn cut_off(
    key: &StoredKey,
    rules: &Rules,
    until: Timestamp,
    is_replaced: bool,
    now: Timestamp,
) -> Error {
    match rules.execution {
        _ if rules.reconcile.is_some() => Error::new(
            ErrorKind::InProgress,
            format!("{key}: {CUT_OFF}; retry later: the next attempt asks for the effect of this one"),
        )
        .with_retry_after(now.until(until)),
        Execution::AtLeastOnce => {
            Error::new(ErrorKind::InProgress, format!("{key}: {CUT_OFF}; retry when the lease has expired"))
                .with_retry_after(now.until(until))
        }
        Execution::AtMostOnce if is_replaced => Error::new(
            ErrorKind::InProgress,
            format!(
                "{key}: the handler was cut off, because an operator has settled or released the record; a retry gets \
                 the recorded outcome, or runs the operation again"
            ),
        )
        .with_retry_after(DEFAULT_RETRY),
        Execution::AtMostOnce => Error::new(
            ErrorKind::OutcomeUnknown,
            format!(
                "{key}: {CUT_OFF}, and at most one run is allowed; settle the record by hand: `idempotency \
                 inspect` shows how"
            ),
        ),
    }
}

/// Returns the error for a handler that was cut off without a claim, and whose writes weren't sent.
pub(super) fn cut_off_unclaimed(key: &StoredKey) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{key}: {CUT_OFF}; nothing was written, so retry"))
}

/// Returns the error for writes that are committed without a record, if it's unknown whether they were applied, and
/// reports the error.
pub(super) fn alone_in_doubt(key: &StoredKey, cause: Option<StoreError>) -> Error {
    let error = Error::new(
        ErrorKind::Unrecorded,
        format!(
            "{key}: it's unknown whether the handler's writes were applied, and idempotency isn't enforced: a retry \
             may apply them again"
        ),
    );
    let error = because(error, cause);
    observe::not_committed(key, &error, false);
    error
}

/// Returns the error for an operator's write whose answer was lost.
pub(crate) fn resolution_in_doubt(key: &StoredKey, cause: Option<StoreError>) -> Error {
    let error = Error::new(
        ErrorKind::Unavailable,
        format!(
            "{key}: the answer was lost, so it's unknown whether the record was written; read the record again"
        ),
    );
    because(error, cause)
}

/// Returns the error for a successor's outcome that can't be read right now. A retry is answered from the record.
pub(super) fn unread_successor(key: &StoredKey, kind: ErrorKind, error: Error) -> Error {
    Error::new(
        kind,
        format!("{key}: this run was taken over, and its successor's response can't be read right now"),
    )
    .with_retry_after(DEFAULT_RETRY)
    .with_source(error)
}

/// Returns the error for a claim that isn't held anymore.
pub(super) fn fenced(key: &StoredKey, cause: Option<StoreError>) -> Error {
    let error = Error::new(
        ErrorKind::Fenced,
        format!(
            "{key}: this run lost its claim: the record was taken over or settled, or it's gone or unreadable; retry \
             to get the operation's outcome"
        ),
    );
    because(error, cause)
}

/// Returns the record whose outcome counts in place of this run's, or `None` if this run's outcome is stored. For a
/// settlement with the handler's own writes, or without a claim.
///
/// # Errors
///
/// The outcome isn't known to be stored. If it's certain that nothing was written, this also reports the error, because
/// no other code does.
pub(super) fn concluded(
    key: &StoredKey,
    end: End,
    cause: Option<StoreError>,
    now: Timestamp,
) -> Result<Option<Record>, Error> {
    let refusal = match end {
        End::Recorded => return Ok(None),
        End::Superseded(record) => return Ok(Some(record)),
        End::Fenced(until) => return Err(in_progress(key, until, now)),
        End::Unresolved(until) => return Err(unresolved(key, until, cause, now)),
        End::Unrecorded(refusal) | End::NotCommitted(refusal) => refusal,
    };
    // The error can't say "nothing ran", because the handler has run.
    let error = refused(key, refusal, "nothing was written", cause, now);
    observe::not_committed(key, &error, false);
    Err(error)
}

/// Returns the error for a transaction that may have been applied, or may still be applied. A retry gets the
/// transaction's outcome, or runs again under another claim, which fences the transaction.
pub(super) fn unresolved(
    key: &StoredKey,
    until: Option<Timestamp>,
    cause: Option<StoreError>,
    now: Timestamp,
) -> Error {
    let wait = until.map(|until| now.until(until));
    let error = Error::new(
        ErrorKind::InProgress,
        format!(
            "{key}: it's unknown whether the handler's writes and its outcome were stored; retrying is safe"
        ),
    )
    .with_retry_after(wait.unwrap_or(DEFAULT_RETRY));
    because(error, cause)
}

/// Returns the error for a transaction whose last attempt wasn't applied. If there's a claim, it's still held. If
/// `is_in_doubt`, an earlier attempt may still be applied.
pub(super) fn declined(key: &StoredKey, why: Decline, cause: Option<StoreError>, is_in_doubt: bool) -> Error {
    let written = match is_in_doubt {
        true => "an earlier attempt may still be applied, so settle the claim before you repeat the writes",
        false => "nothing was written",
    };
    let kind = match why {
        Decline::Condition => {
            let message = format!("{key}: a condition of the handler's writes failed; {written}");
            return Error::new(ErrorKind::Declined, message);
        }
        Decline::Store(why) => kind(why),
    };
    let message = |reason| format!("{key}: the handler's writes couldn't be applied{reason}; {written}");
    let Some(cause) = cause.filter(|_| kind == ErrorKind::Invalid) else {
        return Error::new(kind, message(String::new()));
    };
    let reason = format!(": {cause}");
    rejected_because(Error::new(kind, message(reason)), Some(cause))
}

/// Returns the error for a transaction of the caller that certainly wasn't committed, and reports the error.
pub(super) fn not_committed(key: &StoredKey, cause: StoreError) -> Error {
    // The message itself says what to correct: most people don't look at an error's source.
    let why = match kind(cause.kind()) {
        ErrorKind::Invalid => format!(": {cause}"),
        _ => String::new(),
    };
    let error =
        store_error(key, &format!("the transaction wasn't committed{why}; nothing was written"), cause);
    observe::not_committed(key, &error, false);
    error
}

/// Returns the error for an `on_declined` closure of the wrong type, and reports the error.
pub(super) fn wrong_closure_type<T>(key: &StoredKey) -> Error {
    let error = Error::misuse(format!(
        "{key}: the closure of `on_declined` takes or returns the wrong type. It must take the store's type, such as \
         `&dynamodb::Declined`, and return {}, as the handler does. Nothing was written",
        type_name::<T>()
    ));
    observe::misused(&error);
    error
}
