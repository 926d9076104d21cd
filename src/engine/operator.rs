//! What an operator does by hand: looks at an outcome, and settles a record whatever its state is.

use bytes::Bytes;

use crate::{
    claim::Replay,
    engine::{Engine, Idempotency, drive::store_error},
    error::{Error, ErrorKind},
    key::StoredKey,
    observe,
    outcome::Outcome,
    protocol::{self, Intent},
    record::{Owner, Record},
    store::{Seen, StoreErrorKind, Write, Written},
};

/// How many extensions of a claim's lease an operator's write goes after. One comes every few seconds at most.
const MAX_EXTENSIONS: u32 = 5;

/// How an operator settles a record.
#[derive(Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The operation is done, and this is its response: what a replay of the wrapper that the key belongs to can
    /// read. For typed events and [`Operation::run`](crate::Operation::run), the result as JSON; for HTTP,
    /// what [`lambda::http::recorded`](crate::lambda::http::recorded) makes.
    Complete(Bytes),
    /// The operation is done, and its response is not known: duplicates get
    /// [`ErrorKind::NotRetained`].
    CompleteWithoutResponse,
    /// The operation failed for good, and is not to run again: a [`RecordedFailure`](crate::RecordedFailure) as JSON.
    Fail(Bytes),
    /// Nothing happened, or it may happen again: the next delivery runs.
    Release,
}

/// What became of an operator's write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Resolved {
    /// It was made; this is the record now.
    Made(Record),
    /// It was not: the record is not the version that was seen any more. This is what is there, if anything. (Or its
    /// answer was lost, and what it wrote has been replaced since.)
    Lost(Option<Record>),
}

impl std::fmt::Debug for Resolution {
    /// Shows the shape, never the response.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Complete(response) => write!(f, "Complete(<{} bytes>)", response.len()),
            Self::CompleteWithoutResponse => f.write_str("CompleteWithoutResponse"),
            Self::Fail(failure) => write!(f, "Fail(<{} bytes>)", failure.len()),
            Self::Release => f.write_str("Release"),
        }
    }
}

impl Idempotency {
    /// Settles the record of `key` by hand, whatever its state is, if it is still the version that was `seen`, or the same
    /// claim with its lease extended since: for a person, or a job that asks the downstream system what has happened.
    ///
    /// The record gets a new owner and a new generation, so that a claim that is still running is fenced: its own
    /// settlement is refused, and it answers with the outcome that it then finds. If it finds the key released, it
    /// records its own.
    ///
    /// An outcome counts for [`Settings::retention`](crate::Settings::retention) from now on.
    ///
    /// ```
    /// # use lambda_idempotency::{Idempotency, Key, Resolution, Resolved, Store, store::memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = MemoryStore::new();
    /// # let idempotency = Idempotency::builder(store.clone()).function("orders").build()?;
    /// # let none = async || Err::<(), _>(std::io::Error::other("no"));
    /// let charge = idempotency.operation("charge")?;
    /// # let _ = charge.run(Key::new("order-17")?, &"12.50 EUR", none).await;
    /// let key = charge.stored_key(&Key::new("order-17")?);
    /// if let Some(seen) = store.read(&key).await? {
    ///     // The gateway says that the charge went through.
    ///     let response = Resolution::Complete(r#"{"receipt":17}"#.into());
    ///     match idempotency.resolve(&key, &seen, response).await? {
    ///         Resolved::Made(record) => println!("{}", record.status().as_str()),
    ///         Resolved::Lost(now) => println!("another was faster: {now:?}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unavailable`]: the store could not be asked, or its answer was lost and cannot be found out.
    ///   To repeat it is harmless: it is made on the version that was seen, and on no other.
    /// - [`ErrorKind::Invalid`]: the response is over [`Settings::max_response`](crate::Settings::max_response), or
    ///   the store refuses the request as such. Nothing was written.
    /// - [`ErrorKind::Corrupt`]: the record that is there now cannot be read. Nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the record as it was, settled, or still to be.
    pub async fn resolve(
        &self,
        key: &StoredKey,
        seen: &Record,
        resolution: Resolution,
    ) -> Result<Resolved, Error> {
        let engine = self.engine();
        let owner = (engine.owners)()?;
        let intent = match resolution {
            Resolution::Complete(response) => Intent::Complete(engine.kept(key, owner, response).await?),
            Resolution::CompleteWithoutResponse => Intent::Complete(Outcome::Omitted),
            Resolution::Fail(failure) => Intent::Fail(engine.kept(key, owner, failure).await?),
            Resolution::Release => Intent::Release { interrupted: false },
        };
        // Also when it is not known to be made, or when nobody waits for the answer.
        let _forget = engine.forget(key);
        let mut seen = seen.clone();
        let mut extensions = 0;
        let resolved = loop {
            let (retention, now) = (engine.settings.retention, engine.clock.now());
            let write = protocol::resolve(&seen, owner, intent.clone(), retention, now);
            match engine.resolve(key, &seen, owner, &write).await? {
                Resolved::Lost(Some(record))
                    if extensions < MAX_EXTENSIONS && protocol::is_same_claim(&seen, &record) =>
                {
                    (seen, extensions) = (record, extensions + 1);
                }
                resolved => break resolved,
            }
        };
        if let Resolved::Made(record) = &resolved {
            observe::resolved(key, record);
        }
        Ok(resolved)
    }

    /// The outcome that `record`, of `key`, holds, wherever its response is kept: for a person who looks. No delivery
    /// is answered with it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::NotRetained`]: it has one, but the response was not kept.
    /// - [`ErrorKind::Corrupt`]: it has none, or the response is damaged.
    /// - [`ErrorKind::Unavailable`] or [`ErrorKind::Invalid`]: a part of the response could not be read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn outcome_of(&self, key: &StoredKey, record: &Record) -> Result<Replay, Error> {
        self.engine().outcome_in(key, record, None).await
    }
}

impl Engine {
    /// A person can try again: what cannot be kept is an error here, where a handler's outcome would be recorded
    /// without its response.
    async fn kept(&self, key: &StoredKey, owner: Owner, response: Bytes) -> Result<Outcome, Error> {
        let (length, most) = (response.len(), self.settings.max_response);
        if length > most {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{key}: the response has {length} bytes, and at most {most} are kept; nothing was written"
                ),
            ));
        }
        let what = "the response could not be stored, and the record is as it was";
        let stored = self.keep(key, owner, response, None).await;
        stored.map(Outcome::Retained).map_err(|error| store_error(key, what, error))
    }

    /// Makes `write`, and looks when the answer is doubtful: its owner tells.
    async fn resolve(
        &self,
        key: &StoredKey,
        seen: &Record,
        owner: Owner,
        write: &Write,
    ) -> Result<Resolved, Error> {
        let found = |record: Option<Record>| match record {
            Some(record) if record.owner == owner => Resolved::Made(record),
            other => Resolved::Lost(other),
        };
        let mut last_error = None;
        // Once more, if it did not arrive: the same write cannot be made twice.
        for _ in 0..2 {
            match self.store.apply(key, write).await {
                Ok(Written::Applied) => {
                    return Ok(write.apply_to(Some(seen)).map_or(Resolved::Lost(None), Resolved::Made));
                }
                Ok(Written::Refused(record)) => return Ok(found(record)),
                Err(error) if error.is_maybe_applied() && error.kind() != StoreErrorKind::Corrupt => {
                    last_error = Some(error);
                }
                Err(error) => return Err(store_error(key, "nothing was written", error)),
            }
            match self.store.read(key).await {
                Ok(Some(record)) if Seen::of(&record) == Seen::of(seen) => {}
                Ok(record) => return Ok(found(record)),
                Err(error) => {
                    last_error = Some(error);
                    break;
                }
            }
        }
        let error = Error::new(
            ErrorKind::Unavailable,
            format!(
                "{key}: the answer was lost, and it is not known whether the record was written; look at it"
            ),
        );
        Err(match last_error {
            Some(cause) => error.with_source(cause),
            None => error,
        })
    }
}
