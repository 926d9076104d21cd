//! Operations in a transaction of the caller's own.

use std::{future::Ready, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, RunError},
    fingerprint::Fingerprint,
    format::Format,
    idempotency::Operation,
    internal::SettingsExt as _,
    key::Key,
    protocol::Refusal,
    run::{
        claim::Begun,
        context::{attempting, refused_within},
        driver::{Driver, Way},
        in_transaction::{InTransaction, Records},
        limits,
        protect::{Protected, Target, protect},
        refusal::refusal_error,
        replay::in_span,
        response::Verdict,
    },
    span::OperationSpan,
    store::CallerTransactions,
};

const INSIDE: &str = "an operation in the caller's transaction";

impl<F: Format> Operation<F> {
    /// Locks `key` in your transaction, or finds its outcome.
    ///
    /// While the transaction is open, every other delivery of the key is refused as in progress, without waiting: a
    /// lock of the transaction holds the key (in PostgreSQL, an advisory lock). The lock ends with the transaction, so
    /// there's no lease and no takeover. A crash rolls back the work and the record. If a process freezes or hangs in
    /// the middle, the key stays locked until its session ends. By default, PostgreSQL never ends an idle session: set
    /// `idle_in_transaction_session_timeout` for the role or the connection, to a little more than the work takes
    /// between two statements.
    ///
    /// Leave the transaction open until the operation is settled: after a `COMMIT` or `ROLLBACK` that your code runs as
    /// SQL, the operation records nothing, and fails with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
    ///
    /// Pass the `store` that the [`Idempotency`](crate::Idempotency) is built over: PostgreSQL, or any other store with
    /// [`CallerTransactions`]. Its table must be in the transaction's database. [`run_in`](Self::run_in) begins the
    /// transaction, runs your work, and commits, all in one call.
    ///
    /// ```
    /// # use lambda_idempotency::{Begun, Fingerprint, Key, Operation, Settled};
    /// # use lambda_idempotency::store::postgres::{PostgresStore, tokio_postgres::Client};
    /// # async fn example(
    /// #     place: Operation, store: PostgresStore, client: &mut Client,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let transaction = client.transaction().await?;
    /// let key = Key::new("order-17")?;
    /// match place.begin_in(&store, &transaction, &key, Fingerprint::of(&12)?).await? {
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
    /// Same as [`begin`](Self::begin), and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for at-most-once
    /// execution: a rollback leaves no record, so the work could run again. After any error, nothing was written; roll
    /// the transaction back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the key locked until the transaction ends.
    pub async fn begin_in<'t, S: CallerTransactions>(
        &self,
        store: &'t S,
        transaction: &'t S::Transaction<'t>,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> Result<Begun<InTransaction<'t, S>>, Error> {
        let (key, invocation) = (self.stored_key(key), self.idempotency().invocation());
        let span = &OperationSpan::new(&key, || None);
        let driver = &Driver { span: span.clone(), ..self.idempotency().driver().begun(&invocation) };
        let beginning = async {
            driver.settings.refuse_at_most_once(INSIDE)?;
            attempting(&invocation, &key);
            let records = Records::new(store, transaction, None);
            InTransaction::begin(driver, records, &key, fingerprint, &invocation)
                .await
                .inspect(|_| driver.knows(&key))
                .map_err(|refused| refused_within(&invocation, &key, refused.error))
        };
        in_span(span, beginning, Begun::replay).await
    }

    /// Runs `operation` once for `key` in a transaction on `connection`, and records its result in the same
    /// transaction. `store` is PostgreSQL, or any other store with [`CallerTransactions`]. Every later call gets the
    /// recorded result. So the operation's effects in the transaction happen exactly once.
    ///
    /// An error of the operation rolls everything back, and the next call runs it again. If the commit's
    /// answer is lost, the library reads the record over another connection, again and again until the disconnected
    /// session has ended. The record then shows whether the commit succeeded.
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
    /// [`RunError::Handler`] with the operation's own error, or [`RunError::Idempotency`] as in [`begin`](Self::begin).
    /// Nothing was written, with two exceptions. [`ErrorKind::InProgress`](crate::ErrorKind::InProgress) can also mean
    /// that it's unknown whether the commit succeeded: a retry finds out. If idempotency isn't enforced,
    /// [`ErrorKind::Unrecorded`](crate::ErrorKind::Unrecorded) means the same, and a retry may repeat the writes.
    ///
    /// If the invocation's deadline comes while `operation` runs, the library drops `operation`'s future, unless
    /// [`Settings::cut_off`](crate::settings::Settings::cut_off) is false, and rolls back:
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable). It does so half of
    /// [`Settings::answer_reserve`](crate::settings::Settings::answer_reserve) before the deadline, so that no open
    /// transaction keeps its locks in a frozen sandbox.
    ///
    /// `operation` must leave the transaction open. If it runs `COMMIT` or `ROLLBACK` as SQL, also if it begins another
    /// transaction after that, `run_in` records nothing and fails with
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid). Savepoints are fine.
    ///
    /// After a failed statement, PostgreSQL commits nothing of its transaction. If `operation` returns `Ok` even so,
    /// `run_in` fails with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid). Return the statement's error, or run the
    /// statement in a savepoint.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls everything back, or leaves everything committed.
    pub async fn run_in<T, E, P, S>(
        &self,
        store: &S,
        connection: &mut S::Connection,
        key: &Key,
        payload: &P,
        operation: impl AsyncFnOnce(&S::Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        P: Serialize + ?Sized,
        S: CallerTransactions,
    {
        let driver = self.idempotency().driver();
        driver.settings.refuse_at_most_once(INSIDE)?;
        let fingerprint = self.fingerprint_of(payload)?;
        let (key, invocation) = (self.stored_key(key), self.idempotency().invocation());
        attempting(&invocation, &key);
        let refused = |error| refused_within(&invocation, &key, error);
        let begun = driver.begun(&invocation);
        let now = begun.now();
        let limits = limits::of(&driver.settings, now, &invocation);
        let ask_by = limits.ask_by.filter(|_| driver.settings.is_enforced());
        let refusal = match ask_by {
            Some(ask_by) if ask_by <= now => Refusal::NoTimeLeft,
            _ => Refusal::Unavailable,
        };
        let transaction = begun
            .in_time(now, ask_by, store.begin(connection))
            .await
            .map_err(|error| refused(refusal_error(&key, refusal, Some(error), now)))?;
        let transaction = Arc::new(transaction);
        let records = Records::new(store, Arc::clone(&transaction), Some(Arc::into_inner));
        let target = Target {
            span: OperationSpan::new(&key, || None),
            key: key.clone(),
            fingerprint,
            invocation: invocation.clone(),
            cut_off: None,
            way: Way::Optimistic { reads_first: true },
            inside: Some(&records),
        };
        let handler = move || async move { operation(&transaction).await };
        let judge = |result, _| match result {
            Ok(value) => (Verdict::result::<T, F>(&key, &value), Ok(value)),
            Err(error) => (Verdict::Release { interrupted: false }, Err(error)),
        };
        let protected = protect(driver, target, handler, judge, |_| None::<Ready<Result<T, E>>>).await;
        match protected.map_err(refused)? {
            Protected::Ran(answer) | Protected::RanUnrecorded(answer) => answer.map_err(RunError::Handler),
            Protected::Replayed(replay) => replay.result_of::<T, F, E>(&key),
        }
    }
}
