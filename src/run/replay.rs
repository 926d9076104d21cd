//! [`Replay`]: an outcome from the record.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tracing::Instrument as _;

use crate::{
    error::{Error, ErrorKind, RunError},
    format::{self, Format, Json},
    internal::StoredResponseExt as _,
    key::StoredKey,
    observe,
    outcome::Outcome,
    record::{Generation, Record, State},
    span::OperationSpan,
    time::Timestamp,
};

/// An outcome from the record.
#[derive(Clone, PartialEq, Eq)]
pub struct Replay {
    is_failure: bool,
    response: Bytes,
    /// The format's name, if it isn't JSON.
    format: Option<Arc<str>>,
    generation: Generation,
    attempt: u32,
    claimed_at: Timestamp,
    expires_at: Option<Timestamp>,
    /// The trace of the run that recorded the outcome.
    trace: Option<Arc<String>>,
}

/// Runs a part of an operation in its `span`, and says there if the part ended the operation with a replay or an error.
pub(crate) async fn in_span<T>(
    span: &OperationSpan,
    part: impl Future<Output = Result<T, Error>>,
    replay_in: impl FnOnce(&T) -> Option<&Replay>,
) -> Result<T, Error> {
    let done = part.instrument(span.span().clone()).await;
    match done.as_ref().map(replay_in) {
        Ok(Some(replay)) => replay.shown_in(span),
        Ok(None) => {}
        Err(error) => span.refused(error.kind()),
    }
    done
}

impl Replay {
    /// Says in the operation's span that this outcome answers it.
    pub(super) fn shown_in(&self, span: &OperationSpan) {
        span.replayed(self.attempt, self.generation.get(), self.trace.as_deref().map(String::as_str));
    }

    /// Returns the outcome that `record` has, with its decoded `response`.
    pub(super) fn of(record: &Record, is_failure: bool, response: Bytes) -> Self {
        Self {
            is_failure,
            response,
            format: match outcome_of(record) {
                Some((Outcome::Retained(stored), _)) => {
                    stored.labels().ok().and_then(|labels| labels.format).map(Into::into)
                }
                Some((Outcome::Omitted, _)) | None => None,
            },
            generation: record.generation,
            attempt: record.attempt,
            claimed_at: record.lock_acquired_at,
            expires_at: record.expires_at,
            trace: record.trace.clone(),
        }
    }

    /// Whether the outcome is a permanent failure.
    pub fn is_failure(&self) -> bool {
        self.is_failure
    }

    /// The recorded response, decrypted. If it's the result of [`Operation::run`](crate::Operation::run), the
    /// bytes are in the operation's [`Format`].
    pub fn response(&self) -> &Bytes {
        &self.response
    }

    /// Returns the same bytes as [`response`](Self::response).
    pub fn into_response(self) -> Bytes {
        self.response
    }

    /// The generation that recorded the outcome.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The number of the attempt that recorded the outcome: 1 for a first run.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the attempt that recorded the outcome claimed the key. Without a claim, when it recorded the outcome.
    ///
    /// The record doesn't say when a claim's outcome was recorded. That happened after this time and, unless the store
    /// was down, before the claim's lease ended.
    pub fn claimed_at(&self) -> Timestamp {
        self.claimed_at
    }

    /// The time until which the outcome is replayed. Executors may replay it for up to the skew margin longer.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// Deserializes the recorded result of `key`, and reports a result that can't be read.
    pub(crate) fn result_of<T: DeserializeOwned, F: Format, E>(
        &self,
        key: &StoredKey,
    ) -> Result<T, RunError<E>> {
        let result_type = std::any::type_name::<T>();
        let corrupt = |message: String| Error::new(ErrorKind::Corrupt, message);
        if self.is_failure {
            let unreadable = |why| {
                let error =
                    corrupt(format!("{key}: can't read the recorded failure ({why}); inspect the record"));
                observe::refused(key, &error, false);
                error
            };
            return Err(RunError::Recorded(Json::read(&self.response).map_err(unreadable)?));
        }
        format::read::<T, F>(self.format.as_deref(), &self.response).map_err(|why| {
            let error = corrupt(format!(
                "{key}: the operation is done, but its recorded result doesn't fit {result_type} ({why}). If \
                 the type or the format has changed since, return to the old one, or make the new one read \
                 old results: see \"Change a result's type\" in the guide's recipes"
            ));
            observe::result_does_not_fit(key, &error, result_type);
            error.into()
        })
    }
}

impl fmt::Debug for Replay {
    /// Shows the response's length, never the response.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("is_failure", &self.is_failure)
            .field("response_bytes", &self.response.len())
            .field("generation", &self.generation)
            .field("attempt", &self.attempt)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// Returns a settled record's outcome, and whether it's a failure. `None` if the record isn't settled.
pub(crate) fn outcome_of(record: &Record) -> Option<(&Outcome, bool)> {
    match &record.state {
        State::Completed(outcome) => Some((outcome, false)),
        State::Failed(outcome) => Some((outcome, true)),
        State::Started { .. } | State::Released => None,
    }
}
