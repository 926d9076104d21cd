//! The operator's action: settling a record, whatever its state is.

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind},
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{self, Intent},
    record::{Owner, Record, Status},
    run::{
        cache::Forget,
        driver::Driver,
        refusal::{resolution_in_doubt, store_error},
    },
    store::{Put, PutOutcome, StoreError, StoreErrorKind},
};

/// How many times an operator's write is retried because the running claim's lease was extended. The extensions of one
/// lease are seconds apart, so a write rarely meets more than one.
const MAX_EXTENSIONS: u32 = 5;

/// How an operator settles a record.
#[derive(Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The operation is done, and this is its response, in the format that the key's wrapper replays. For
    /// typed events and [`Operation::run`](crate::Operation::run) it's the result as JSON; for HTTP, the
    /// output of [`lambda::http::recorded`](crate::lambda::http::recorded).
    Complete(Bytes),
    /// The operation is done, and its response is unknown: duplicates get [`ErrorKind::NotRetained`].
    CompleteWithoutResponse,
    /// The operation failed permanently, and won't run again. The bytes are a
    /// [`RecordedFailure`](crate::RecordedFailure) as JSON.
    Fail(Bytes),
    /// The effect didn't happen, or is allowed to happen again: the next delivery runs.
    Release,
    /// The effect may have happened, and may happen again: the next delivery runs, and its handler learns of the earlier
    /// attempt by [`ClaimHandle::is_takeover`](crate::ClaimHandle::is_takeover). Use it for the unresolved claims of a
    /// function that you change from at-most-once to at-least-once.
    RunAgain,
}

/// The result of an operator's write.
enum Resolved {
    /// The record as the operator wrote it.
    Written(Record),
    /// The write's condition failed. Contains the current record, if there's one.
    Changed(Option<Record>),
}

impl std::fmt::Debug for Resolution {
    /// Shows the variant and the length, never the response.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Complete(response) => write!(f, "Complete(<{} bytes>)", response.len()),
            Self::CompleteWithoutResponse => f.write_str("CompleteWithoutResponse"),
            Self::Fail(failure) => write!(f, "Fail(<{} bytes>)", failure.len()),
            Self::Release => f.write_str("Release"),
            Self::RunAgain => f.write_str("RunAgain"),
        }
    }
}

/// Settles the record of `key` by hand; see [`Idempotency::resolve`](crate::Idempotency::resolve).
pub(super) async fn resolve(
    driver: &Driver,
    key: &StoredKey,
    seen: &Record,
    resolution: Resolution,
) -> Result<Option<Record>, Error> {
    let owner = driver.owner()?;
    let intent = match resolution {
        Resolution::Complete(response) => Intent::Complete(kept(driver, key, owner, response).await?),
        Resolution::CompleteWithoutResponse => Intent::Complete(Outcome::Omitted),
        Resolution::Fail(failure) => Intent::Fail(kept(driver, key, owner, failure).await?),
        Resolution::Release => Intent::Release { interrupted: false },
        Resolution::RunAgain => Intent::Release { interrupted: true },
    };
    // Removes the cached entry even if the write's answer is lost, or if the caller drops this future.
    let _forget = Forget::new(driver.shared.cache.as_ref(), key);
    let mut seen = seen.clone();
    let (mut extensions, mut doubt) = (0, None);
    loop {
        let (retention, now) = (driver.settings.retention, driver.now());
        let put = protocol::resolve(&seen, owner, intent.clone(), retention, now);
        match apply(driver, key, &seen, owner, &put, &mut doubt).await? {
            Resolved::Written(record) => {
                observe::resolved(key, &record);
                return Ok(Some(record));
            }
            Resolved::Changed(Some(record))
                if extensions < MAX_EXTENSIONS
                    && protocol::is_same_claim(&seen, &record)
                    && (is_stale(driver, &record) || !is_stale(driver, &seen)) =>
            {
                (seen, extensions) = (record, extensions + 1);
            }
            // An interruption (T9) may restore the lease that an unanswered put expects. So only the claim's
            // settlement ends the doubt.
            Resolved::Changed(Some(record)) if doubt.is_some() && record.status() == Status::Started => {
                return Err(resolution_in_doubt(key, doubt));
            }
            Resolved::Changed(_) => return Ok(None),
        }
    }
}

/// Whether the claim in `record` is stale now. A decision about a stale claim isn't one about a handler that runs.
fn is_stale(driver: &Driver, record: &Record) -> bool {
    protocol::outlook(&driver.rules(), record, driver.now()).is_stale
}

/// Prepares an operator's response for the record. Fails if the response can't be stored: a person can try again. (If a
/// handler's response can't be stored, its outcome is recorded without the response instead.)
async fn kept(driver: &Driver, key: &StoredKey, owner: Owner, response: Bytes) -> Result<Outcome, Error> {
    let (length, most) = (response.len(), driver.settings.max_response);
    if length > most {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{key}: the response has {length} bytes, but `max_response` is {most}; nothing was written"
            ),
        ));
    }
    let what = "the response couldn't be stored; the record is unchanged";
    let stored = driver.keep(key, owner, response, None, None, true).await;
    stored.map(Outcome::Retained).map_err(|error| store_error(key, what, error))
}

/// Sends `put`. If the answer is ambiguous, reads the record: its owner shows whether the write was applied. `doubt` is the
/// error of the last put, this one or an earlier one, whose answer was ambiguous.
async fn apply(
    driver: &Driver,
    key: &StoredKey,
    seen: &Record,
    owner: Owner,
    put: &Put,
    doubt: &mut Option<StoreError>,
) -> Result<Resolved, Error> {
    let found = |record: Option<Record>, doubt: &mut Option<StoreError>| match record {
        Some(record) if record.owner == owner => Ok(Resolved::Written(record)),
        other if doubt.is_none() || other.as_ref().is_some_and(|record| is_by_same_owner(seen, record)) => {
            Ok(Resolved::Changed(other))
        }
        // The attempt whose answer was lost may have been applied, and its record replaced since.
        _ => Err(resolution_in_doubt(key, doubt.take())),
    };
    // Sends the write a second time if the record shows that it wasn't applied. The same write can't be applied twice.
    for _ in 0..2 {
        match driver.store().put(key, put).await {
            Ok(PutOutcome::Applied) => {
                return Ok(Resolved::Written(put.record().clone()));
            }
            Ok(PutOutcome::Refused(record)) => return found(record, doubt),
            Err(error) if error.is_maybe_applied() && error.kind() != StoreErrorKind::Corrupt => {
                *doubt = Some(error);
            }
            // An earlier attempt may still be applied.
            Err(error) if doubt.is_some() => {
                *doubt = Some(error);
                break;
            }
            Err(error) => return Err(store_error(key, "nothing was written", error)),
        }
        match driver.store().read(key).await {
            Ok(Some(record)) if record.has_version_of(seen) => {}
            Ok(record) => return found(record, doubt),
            Err(error) => {
                *doubt = Some(error);
                break;
            }
        }
    }
    Err(resolution_in_doubt(key, doubt.take()))
}

/// Whether `record` still belongs to the claim that was `seen`. If it does, no operator's write was applied since:
/// every operator's write sets a new owner and generation.
fn is_by_same_owner(seen: &Record, record: &Record) -> bool {
    (record.owner, record.generation) == (seen.owner, seen.generation)
}
