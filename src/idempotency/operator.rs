//! The operator's action: settling a record, whatever its state is.

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind},
    invocation::Invocation,
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{Action, End, Event, Intent},
    record::{Owner, Record},
    run::{
        cache::Forget,
        driver::Driver,
        limits,
        refusal::{resolution_in_doubt, store_error},
    },
};

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
    let unknown = Invocation::unknown();
    let limits = limits::of(&driver.settings, driver.now(), &unknown);
    let mut state = driver.machine(owner, seen.fingerprint, &unknown, limits);
    let event = Event::Resolve { seen: Box::new(seen.clone()), intent };
    let driven = driver.drive(key, &mut state, event, &driver.to_store(None)).await;
    match (driven.action, driven.store_error) {
        (Action::Resolved(record), _) => {
            if let Some(record) = &record {
                observe::resolved(key, record);
            }
            Ok(record)
        }
        (Action::Settled(End::Unrecorded(_)), Some(error)) => {
            Err(store_error(key, "nothing was written", error))
        }
        (_, doubt) => Err(resolution_in_doubt(key, doubt)),
    }
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
