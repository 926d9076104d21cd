//! Encodes a handler's outcome for the record, and reads it back.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, ErrorKind, RecordedFailure},
    format::{self, Format},
    future::BoxFuture,
    internal::ErrorExt as _,
    internal::StoredResponseExt as _,
    key::StoredKey,
    observe,
    outcome::{Outcome, Place, StoredResponse, is_key_id},
    protocol::State,
    record::{Owner, Record, Status},
    run::{
        driver::{Driver, pause},
        refusal::{store_error, unread_successor},
        replay::{Replay, outcome_of},
    },
    store::{StoreError, StoreErrorKind},
    time::Timestamp,
};

/// How to settle a claim, before the outcome is encoded.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// A success with this response, and the name of the response's format. `None` is JSON, or a front end's own bytes.
    Complete(Bytes, Option<&'static str>),
    /// A success whose response can't be stored.
    CompleteOmitted,
    /// A permanent failure, with the bytes to replay. `None` if the failure couldn't be encoded.
    Fail(Option<Bytes>),
    /// The key is released: nothing happened, or the effect is allowed to happen again. If `interrupted`, the record
    /// remembers that the handler ended without an answer.
    Release { interrupted: bool },
    /// There's no answer: the claim is marked, and its lease ends at this time (T9). `None`: when the handler's effect
    /// has arrived, if ever.
    Unanswered { until: Option<Timestamp> },
}

impl Verdict {
    /// Completes with these bytes, which are JSON or a front end's own.
    pub(crate) fn complete(response: impl Into<Bytes>) -> Self {
        Self::Complete(response.into(), None)
    }

    /// The response to record, if there is one.
    pub(crate) fn response(&self) -> Option<&Bytes> {
        match self {
            Self::Complete(response, _) | Self::Fail(Some(response)) => Some(response),
            Self::CompleteOmitted | Self::Fail(None) | Self::Release { .. } | Self::Unanswered { .. } => None,
        }
    }

    /// The outcome's name in the operation's span.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Complete(..) | Self::CompleteOmitted => "completed",
            Self::Fail(_) => "failed",
            Self::Release { .. } => "released",
            Self::Unanswered { .. } => "unanswered",
        }
    }

    /// Completes with `value` in the format `F`. A value that can't be read back isn't kept.
    pub(crate) fn result<T, F>(key: &StoredKey, value: &T) -> Self
    where
        T: Serialize + DeserializeOwned,
        F: Format,
    {
        let written = F::write(value).and_then(|bytes| match F::read::<T>(&bytes) {
            Ok(read) => {
                if format::reads_differently(value, &read) {
                    observe::reads_differently(key, std::any::type_name::<T>());
                }
                Ok(bytes)
            }
            Err(why) => Err(format!("its {} can't be read back: {why}", F::NAME).into()),
        });
        match written {
            Ok(bytes) => Self::Complete(bytes.into(), format::recorded_name::<F>()),
            Err(why) => {
                observe::not_readable(key, std::any::type_name::<T>(), &why);
                Self::CompleteOmitted
            }
        }
    }

    /// Records `failure` as a permanent failure, to be replayed.
    pub(crate) fn failure(failure: &RecordedFailure) -> Self {
        Self::Fail(serde_json::to_vec(failure).ok().map(Bytes::from))
    }

    /// The record's status after this verdict.
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Complete(..) | Self::CompleteOmitted => Status::Completed,
            Self::Fail(_) => Status::Failed,
            Self::Release { .. } => Status::Released,
            Self::Unanswered { .. } => Status::Started,
        }
    }

    /// Whether this verdict records neither a success nor a failure.
    pub(crate) fn is_without_outcome(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Unanswered { .. })
    }

    /// Whether this verdict records a success. Only a success commits the handler's own writes.
    pub(super) fn is_success(&self) -> bool {
        self.status() == Status::Completed
    }
}

impl Driver {
    pub(super) async fn outcome(
        &self,
        key: &StoredKey,
        state: &State,
        response: Bytes,
        format: Option<&'static str>,
        until: Timestamp,
    ) -> Outcome {
        let length = response.len();
        if self.settings.max_response == 0 {
            // The user chose to record no responses, so this isn't reported as a loss.
            return Outcome::Omitted;
        }
        if length > self.settings.max_response {
            observe::not_retained(key, Some(length), None);
            return Outcome::Omitted;
        }
        // An earlier, declined transaction may still be applied. Its record would then need the chunks of its own
        // response. Chunks of this response would overwrite those chunks, since the keys of both contain the same
        // owner.
        let may_write_chunks = !state.is_in_doubt();
        let keeping = self.keep(key, state.plan().owner, response, format, Some(until), may_write_chunks);
        match keeping.await {
            Ok(stored) => Outcome::Retained(stored),
            Err(error) => {
                observe::not_retained(key, Some(length), Some(&error));
                Outcome::Omitted
            }
        }
    }

    /// Prepares `response` for the record: encrypts it if there's a cipher, and writes chunks if it's too large.
    ///
    /// The chunks are written under `owner`. While the cipher or the store fails, this retries until the time
    /// `until`. If `until` is `None`, it tries once.
    ///
    /// # Errors
    ///
    /// The cipher's or the store's error; [`StoreErrorKind::Unstorable`] if the response needs chunks, and
    /// `may_write_chunks` is false.
    pub(crate) async fn keep(
        &self,
        key: &StoredKey,
        owner: Owner,
        response: Bytes,
        format: Option<&'static str>,
        until: Option<Timestamp>,
        may_write_chunks: bool,
    ) -> Result<StoredResponse, StoreError> {
        let stored = StoredResponse::compressed_from(response, self.store().compress_from(key));
        let stored = match format {
            Some(name) => stored.in_format(name),
            None => stored,
        };
        let stored = match (&self.shared.cipher, &stored.place) {
            (None, _) | (_, Place::Chunks(_)) => stored,
            (Some(cipher), Place::Inline(plain)) => {
                let encrypting = || cipher.encrypt(key, plain);
                let (key_id, ciphertext) = self.persistently(owner, until, encrypting).await?;
                if !is_key_id(&key_id) {
                    let what = "the cipher's key id isn't 1 to 512 visible ASCII characters";
                    return Err(StoreError::new(StoreErrorKind::Unstorable, what));
                }
                stored.encrypted(&key_id, ciphertext)
            }
        };
        let Place::Inline(kept) = &stored.place else { return Ok(stored) };
        let Some(chunks) = self.store().chunks().filter(|chunks| kept.len() > chunks.inline_limit()) else {
            return Ok(stored);
        };
        if !may_write_chunks {
            let what =
                "an earlier transaction may still be applied, and its response may be in the same chunks";
            return Err(StoreError::new(StoreErrorKind::Unstorable, what));
        }
        let expires_at = self.now().saturating_add(self.settings.retention).rounded_up_to_second();
        let writing = || chunks.write_chunks(key, owner, kept, expires_at);
        let count = self.persistently(owner, until, writing).await?;
        Ok(stored.into_chunks(count))
    }

    /// Retries `request` while it fails, until the time `until`. If `until` is `None`, tries once.
    async fn persistently<'a, T>(
        &self,
        owner: Owner,
        until: Option<Timestamp>,
        request: impl Fn() -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut nth = 0;
        loop {
            let error = match self.in_time(self.now(), until, request()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = pause(nth, owner);
            nth = nth.saturating_add(1);
            let is_final = matches!(error.kind(), StoreErrorKind::Unstorable | StoreErrorKind::Corrupt);
            let is_late = |until| self.now().saturating_add(pause) >= until;
            if is_final || until.is_none_or(is_late) {
                return Err(error);
            }
            self.clock().sleep(pause).await;
        }
    }

    /// As [`outcome_in`](Self::outcome_in), and reports the replay.
    ///
    /// # Errors
    ///
    /// As [`outcome_in`](Self::outcome_in).
    pub(super) async fn replay(
        &self,
        key: &StoredKey,
        record: &Record,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        let replay = self.outcome_in(key, record, until).await?;
        observe::replayed(key, record);
        Ok(replay)
    }

    /// Returns the outcome in `record`. Requests to the store and the cipher end by the time `until`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRetained`], [`ErrorKind::Corrupt`], [`ErrorKind::Invalid`] if the response is encrypted and
    /// there's no cipher, or the error of the store or the cipher, usually [`ErrorKind::Unavailable`].
    pub(crate) async fn outcome_in(
        &self,
        key: &StoredKey,
        record: &Record,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        let corrupt = |what: &str| {
            Error::new(ErrorKind::Corrupt, format!("{key}: {what}. Inspect the record in the store"))
        };
        let (response, is_failure) = match outcome_of(record) {
            Some((Outcome::Retained(response), is_failure)) => (response, is_failure),
            Some((Outcome::Omitted, true)) => return Err(Error::failure_not_retained(key)),
            Some((Outcome::Omitted, false)) => {
                return Err(Error::new(
                    ErrorKind::NotRetained,
                    format!("{key}: the operation is done, but its response wasn't kept"),
                ));
            }
            None => return Err(corrupt("the record has no outcome")),
        };
        let kept = match (&response.place, self.store().chunks()) {
            (Place::Inline(kept), _) => kept.clone(),
            (Place::Chunks(_), None) => {
                return Err(corrupt("the response is in chunks, which this store can't read"));
            }
            (Place::Chunks(count), Some(chunks)) => {
                let reading = chunks.read_chunks(key, record.owner, *count, response.kept_limit());
                let read = self.in_time(self.now(), until, reading).await;
                read.map_err(|error| store_error(key, "the response couldn't be read", error))?
            }
        };
        let damaged = |damage| corrupt("the stored response is damaged").with_source(damage);
        let response = match response.labels().map_err(damaged)?.key_id {
            None => response.decode(&kept).map_err(damaged)?,
            Some(key_id) => {
                response.check_digest(&kept).map_err(damaged)?;
                let plain = self.decrypted(key, key_id, &kept, until).await?;
                response.decoded(&plain).map_err(damaged)?
            }
        };
        Ok(Replay::of(record, is_failure, response))
    }

    async fn decrypted(
        &self,
        key: &StoredKey,
        key_id: &str,
        ciphertext: &Bytes,
        until: Option<Timestamp>,
    ) -> Result<Bytes, Error> {
        let Some(cipher) = &self.shared.cipher else {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{key}: the response is encrypted with the key `{key_id}`, and this function has no cipher; set \
                     Builder::cipher"
                ),
            ));
        };
        let decrypted = self.in_time(self.now(), until, cipher.decrypt(key, key_id, ciphertext)).await;
        decrypted.map_err(|error| store_error(key, "the response couldn't be decrypted", error))
    }

    /// Returns the outcome of a claim that took over from this delivery's claim. This delivery's handler has run.
    ///
    /// # Errors
    ///
    /// As [`replay`](Self::replay), but never [`ErrorKind::Unavailable`], which would mean that nothing ran.
    /// If the response can't be read right now, the error's kind is `unreadable`; a retry is answered from the record.
    pub(super) async fn successors_outcome(
        &self,
        key: &StoredKey,
        record: &Record,
        unreadable: ErrorKind,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        self.replay(key, record, until).await.map_err(|error| match error.kind() {
            ErrorKind::Unavailable => unread_successor(key, unreadable, error),
            _ => error,
        })
    }
}
