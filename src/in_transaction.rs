//! The record in the handler's own transaction: claim, work and outcome are committed together, or nothing is.
//!
//! The machine does what it does optimistic: it reads the record, the work runs, and it puts the finished
//! record. In between, the transaction's own lock holds the key, and ends with the transaction.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    claim::Replay,
    engine::{Engine, Idempotency, Operation, Verdict, in_progress, refusal_error, replayed},
    error::{Error, ErrorKind, RunError},
    fingerprint::Fingerprint,
    invocation::{OperationContext, within},
    key::{Key, StoredKey},
    observe,
    protocol::{Action, End, Event, Input, Refusal, State, refusal_for, step},
    record::{Owner, Record},
    store::{
        StoreError, StoreErrorKind,
        postgres::{Looked, PostgresStore, PostgresTransaction, tokio_postgres},
    },
    time::Timestamp,
};

/// How often, and how far apart, the library checks on a commit whose answer was lost. The disconnected
/// session may still be processing it.
const QUESTIONS: u32 = 20;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);

/// The result of [`Operation::begin_in`].
#[derive(Debug)]
#[must_use]
#[expect(clippy::large_enum_variant, reason = "the large variant is the common one")]
pub enum Begun<'t> {
    /// The key is this transaction's: do the work in it, complete, then commit.
    Open(InTransaction<'t>),
    /// The operation has its outcome: answer with it.
    Replay(Replay),
}

/// An operation in your transaction. Dropping it leaves nothing behind: roll the transaction back, or commit
/// your work without a record.
#[must_use = "without its outcome, the operation runs again"]
pub struct InTransaction<'t> {
    engine: Arc<Engine>,
    key: StoredKey,
    owner: Owner,
    state: State,
    records: PostgresTransaction<'t>,
}

/// How [`InTransaction::complete`] ended, when it didn't fail.
#[derive(Debug)]
#[must_use = "where it is superseded, the transaction is to be rolled back"]
pub enum Settled {
    /// The outcome is in the transaction: commit it.
    Recorded,
    /// Another run was faster: roll the transaction back, and answer with this outcome.
    Superseded(Replay),
}

impl Operation {
    /// Locks `key` in your transaction, or finds its outcome.
    ///
    /// While the transaction is open, every other delivery of the key is refused as in progress, without
    /// waiting: an advisory lock holds the key. The lock ends with the transaction, so there's no lease and
    /// no takeover. A crash rolls back the work and the record. If a process freezes or hangs in the middle,
    /// it keeps the key until its session ends: set `idle_in_transaction_session_timeout` for the role or the
    /// connection, to a little more than the work takes between two statements (PostgreSQL's default is
    /// never).
    ///
    /// Build the engine over the same [`PostgresStore`] as the transaction's records.
    /// [`run_in`](Self::run_in) does all of this in one call.
    ///
    /// ```
    /// # use lambda_idempotency::{Begun, Settled, Fingerprint, Key, Operation};
    /// # use lambda_idempotency::store::postgres::{PostgresStore, tokio_postgres::Client};
    /// # async fn example(
    /// #     place: Operation, store: PostgresStore, client: &mut Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// let key = Key::new("order-17")?;
    /// match place.begin_in(store.in_transaction(&transaction), &key, Fingerprint::of(&12)?).await? {
    ///     Begun::Replay(replay) => println!("placed before: {:?}", replay.response()),
    ///     Begun::Claimed(operation) => {
    ///         transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&"order-17"]).await?;
    ///         match operation.complete("placed").await? {
    ///             Settled::Recorded => transaction.commit().await?,
    ///             Settled::Superseded(replay) => println!("placed by another: {:?}", replay.response()),
    ///         }
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin), and [`ErrorKind::Invalid`] at most once: a rollback removes the claim, so
    /// the work could run again. Nothing was written; roll the transaction back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the key locked until the transaction ends.
    pub async fn begin_in<'t>(
        &self,
        records: PostgresTransaction<'t>,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> Result<Begun<'t>, Error> {
        self.idempotency()
            .settings()
            .refuse_at_most_once("an operation in a transaction of the caller's, which a rollback undoes")?;
        let key = self.stored_key(key);
        let engine = Arc::clone(self.idempotency().engine());
        match engine.look_in(&records, &key, fingerprint, self.idempotency()).await {
            Ok(Ok((owner, state))) => {
                Ok(Begun::Claimed(InTransaction { engine, key, owner, state, records }))
            }
            Ok(Err(replay)) => Ok(Begun::Replay(replay)),
            Err(error) => {
                observe::refused(&key, &error, error.kind() == ErrorKind::Unavailable);
                Err(error)
            }
        }
    }

    /// Runs `operation` once for `key` in a transaction on `client`, and commits it together with its
    /// recorded result. Every later call gets that result. So the operation's effects in the transaction
    /// happen exactly once.
    ///
    /// An error of the operation rolls everything back, and the next call runs it again. If the commit's
    /// answer is lost, the library reads the record over another connection, until the disconnected session
    /// has ended: the record shows whether the commit succeeded.
    ///
    /// ```
    /// # use lambda_idempotency::{Key, Operation, RunError};
    /// # use lambda_idempotency::store::postgres::{PostgresStore, tokio_postgres::{Client, Error}};
    /// # async fn example(
    /// #     place: Operation, store: PostgresStore, client: &mut Client,
    /// # ) -> Result<(), RunError<Error>> {
    /// let placed: String = place
    ///     .run_in(&store, client, &Key::new("order-17")?, &12, async |transaction| {
    ///         transaction.execute("INSERT INTO orders (id) VALUES ($1)", &[&"order-17"]).await?;
    ///         Ok("placed".to_owned())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RunError::Handler`] with the operation's own error, or [`RunError::Idempotency`] as in
    /// [`begin`](Self::begin). Nothing was written. The exception is [`ErrorKind::InProgress`], which can
    /// also mean that it's unknown whether the commit succeeded: a retry finds out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls everything back, or leaves everything committed.
    pub async fn run_in<T, E, P>(
        &self,
        store: &PostgresStore,
        client: &mut tokio_postgres::Client,
        key: &Key,
        payload: &P,
        operation: impl AsyncFnOnce(&tokio_postgres::Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        P: Serialize + ?Sized,
    {
        let fingerprint = Fingerprint::of(payload)?;
        let shown = self.stored_key(key);
        let engine = self.idempotency().engine();
        let now = engine.clock.now();
        let ask_by = engine.timing(now, &self.idempotency().invocation()).limits.ask_by;
        let beginning =
            Box::pin(async { client.transaction().await.map_err(|error| store.fault_of(&error)) });
        let transaction =
            engine.in_time(now, ask_by, beginning).await.map_err(|error| not_begun(&shown, error))?;
        let open = match self.begin_in(store.in_transaction(&transaction), key, fingerprint).await? {
            Begun::Claimed(open) => open,
            Begun::Replay(replay) => return replayed(&replay),
        };
        let surroundings = OperationContext::unprotected(self.idempotency().invocation());
        let result = within(surroundings, async { operation(&transaction).await }).await;
        let value = result.map_err(RunError::Handler)?;
        let verdict = Verdict::result(&shown, &value);
        let (engine, owner) = (Arc::clone(&open.engine), open.owner);
        let answer_by = open.state.plan().limits.answer_by;
        match open.settle(verdict).await? {
            Settled::Recorded => {}
            Settled::Superseded(replay) => return replayed(&replay),
        }
        match engine.in_time(engine.clock.now(), answer_by, Box::pin(store.commit(transaction))).await {
            Ok(()) => {}
            Err(error) if error.is_maybe_applied() => {
                engine.find_out_whether_committed(store, &shown, owner, error, answer_by).await?;
            }
            Err(error) => return Err(not_committed(&shown, error).into()),
        }
        observe::concluded(&shown);
        Ok(value)
    }
}

impl InTransaction<'_> {
    /// Puts `response` into the transaction as the operation's outcome. It takes effect when the transaction
    /// commits.
    ///
    /// # Errors
    ///
    /// The outcome isn't in the transaction; roll it back. [`ErrorKind::InProgress`], [`ErrorKind::Mismatch`]
    /// or [`ErrorKind::OutcomeUnknown`], if a delivery that runs under a claim came in between;
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Invalid`] or [`ErrorKind::Corrupt`] if the database couldn't
    /// write it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the outcome in the transaction or not: roll it back.
    pub async fn complete(self, response: impl Into<Bytes>) -> Result<Settled, Error> {
        self.settle(Verdict::Complete(response.into())).await
    }

    /// Puts `failure` into the transaction as the operation's outcome: it failed permanently, and won't run again.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, failure: impl Into<Bytes>) -> Result<Settled, Error> {
        self.settle(Verdict::Fail(Some(failure.into()))).await
    }

    async fn settle(self, verdict: Verdict) -> Result<Settled, Error> {
        let Self { engine, key, owner, mut state, records } = self;
        let until = state.prepare_until(engine.clock.now());
        let answer_by = state.plan().limits.answer_by;
        let mut event = Event::Settle(engine.intent(&key, owner, verdict, until).await);
        let end = loop {
            let now = engine.clock.now();
            let (next, action) = step(state, Input { now, event });
            state = next;
            let until = state.call_until(now);
            event = match action {
                Action::Apply(write) => {
                    match engine.in_time(now, until, Box::pin(records.apply(&key, &write))).await {
                        Ok(written) => Event::Answered(written),
                        // The first error ends the transaction, so there's nothing to retry in it.
                        Err(error) => return Err(not_committed(&key, error.maybe_applied(false))),
                    }
                }
                Action::Settled(end) => break end,
                _ => break End::NotCommitted(Refusal::Unavailable),
            };
        };
        match end {
            End::Recorded => Ok(Settled::Recorded),
            End::Superseded(record) => {
                observe::outrun(&key);
                let outcome =
                    engine.successors_outcome(&key, &record, ErrorKind::InProgress, answer_by).await;
                outcome.map(Settled::Superseded)
            }
            End::Fenced(until) | End::Unresolved(until) => Err(in_progress(&key, until, engine.clock.now())),
            End::Unrecorded(refusal) | End::NotCommitted(refusal) => {
                let error = refusal_error(&key, refusal, None, engine.clock.now());
                observe::not_committed(&key, &error);
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InTransaction").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Engine {
    async fn look_in(
        &self,
        records: &PostgresTransaction<'_>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        idempotency: &Idempotency,
    ) -> Result<Result<(Owner, State), Replay>, Error> {
        let (owner, invocation, now) = ((self.owners)()?, idempotency.invocation(), self.clock.now());
        // There's no lease to extend: the transaction's lock holds the key.
        let timing = self.unextended(now, &invocation);
        let state = *self.plan(owner, fingerprint, &invocation, timing);
        let (state, _) = step(state, Input { now, event: Event::Look });
        let event = match self.in_time(now, timing.limits.ask_by, Box::pin(records.lock_and_read(key))).await
        {
            Ok(Looked::Busy) => return Err(in_progress(key, None, self.clock.now())),
            Ok(Looked::Free(record)) => Event::Found(record),
            Err(error) => {
                let refusal = refusal_for(error.kind());
                return Err(refusal_error(key, refusal, Some(error), self.clock.now()));
            }
        };
        match step(state, Input { now: self.clock.now(), event }) {
            (state, Action::Open) => Ok(Ok((owner, state))),
            (state, Action::Replay(record)) => {
                self.replay(key, &record, state.plan().limits.answer_by).await.map(Err)
            }
            (_, Action::Refused(refusal)) => Err(refusal_error(key, refusal, None, self.clock.now())),
            _ => Err(refusal_error(key, Refusal::Unavailable, None, self.clock.now())),
        }
    }

    /// Finds out whether a commit succeeded whose answer was lost. While the session that sent it holds the
    /// key's lock, it may still succeed; after that, the record shows the result.
    async fn find_out_whether_committed(
        &self,
        store: &PostgresStore,
        key: &StoredKey,
        owner: Owner,
        doubt: StoreError,
        until: Option<Timestamp>,
    ) -> Result<(), Error> {
        let mut is_free = false;
        for _ in 0..QUESTIONS {
            match self.in_time(self.clock.now(), until, Box::pin(store.look(key))).await {
                Ok(Looked::Free(Some(Record { owner: of, .. }))) if of == owner => return Ok(()),
                // The lock was free before this record was read.
                Ok(Looked::Free(_)) if is_free => return Err(not_committed(key, doubt)),
                // The lock may have become free after the record was read. The next answer is as new as the lock.
                Ok(Looked::Free(_)) => {
                    is_free = true;
                    continue;
                }
                Ok(Looked::Busy) => {}
                Err(error) if error.kind() == StoreErrorKind::Corrupt => break,
                Err(_) => {}
            }
            if until.is_some_and(|until| self.clock.now().saturating_add(BETWEEN_QUESTIONS) >= until) {
                break;
            }
            self.clock.sleep(BETWEEN_QUESTIONS).await;
        }
        observe::unresolved(key, Some(&doubt));
        Err(self.unresolved(key, None, Some(doubt)))
    }
}

fn not_begun(key: &StoredKey, error: StoreError) -> Error {
    refusal_error(key, Refusal::Unavailable, Some(error), Timestamp::default())
}

/// The error for a definite failure: neither the work nor its outcome was written.
fn not_committed(key: &StoredKey, cause: StoreError) -> Error {
    let kind = match cause.kind() {
        StoreErrorKind::Unavailable | StoreErrorKind::Conflict => ErrorKind::Unavailable,
        StoreErrorKind::Rejected | StoreErrorKind::Unstorable => ErrorKind::Invalid,
        StoreErrorKind::Corrupt => ErrorKind::Corrupt,
    };
    let error = Error::new(kind, format!("{key}: the transaction was not committed; nothing was written"));
    let error = error.with_source(cause);
    observe::not_committed(key, &error);
    error
}
