//! Operations in the caller's PostgreSQL transaction.

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, ErrorKind, RunError},
    fingerprint::Fingerprint,
    format::Format,
    idempotency::Operation,
    invocation::Invocation,
    key::{Key, StoredKey},
    observe,
    protocol::{Limits, Refusal},
    run::{
        alone::first_call_until,
        claim::{Begun, Settled},
        context::{OperationContext, Running, attempting, refused_within, within},
        driver::Driver,
        lease::Timing,
        postgres::{InTransaction, Records, cut_off_late, find_out_whether_committed, work_in_time},
        refusal::{not_committed, refusal_error},
        response::Verdict,
    },
    store::{
        StoreError,
        postgres::{PostgresStore, tokio_postgres},
    },
    time::Timestamp,
};

impl<F: Format> Operation<F> {
    /// Locks `key` in your transaction, or finds its outcome.
    ///
    /// While the transaction is open, every other delivery of the key is refused as in progress, without
    /// waiting: an advisory lock holds the key. The lock ends with the transaction, so there's no lease and
    /// no takeover. A crash rolls back the work and the record. If a process freezes or hangs in the middle, the key
    /// stays locked until its session ends. By default, PostgreSQL never ends an idle session: set
    /// `idle_in_transaction_session_timeout` for the role or the connection, to a little more than the work takes
    /// between two statements.
    ///
    /// Leave the transaction open until the operation is settled: after a `COMMIT` or `ROLLBACK` that your code runs as
    /// SQL, the operation records nothing, and fails with [`ErrorKind::Invalid`].
    ///
    /// Pass the `store` that the [`Idempotency`](crate::Idempotency) is built over. Its table must be in the
    /// transaction's database. [`run_in`](Self::run_in) begins the transaction, runs your work, and commits, all in one
    /// call.
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
    /// Same as [`begin`](Self::begin), and [`ErrorKind::Invalid`] for at-most-once execution: a rollback removes the
    /// claim, so the work could run again. After any error, nothing was written; roll the transaction back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the key locked until the transaction ends.
    pub async fn begin_in<'t>(
        &self,
        store: &'t PostgresStore,
        transaction: &'t tokio_postgres::Transaction<'t>,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> Result<Begun<InTransaction<'t>>, Error> {
        let invocation = self.idempotency().invocation();
        let driver = self.idempotency().driver().begun(&invocation);
        self.lock_in(&driver, &invocation, Records::new(store, transaction), key, fingerprint).await
    }

    async fn lock_in<'t>(
        &self,
        driver: &Driver,
        invocation: &Invocation,
        records: Records<'t>,
        key: &Key,
        fingerprint: Fingerprint,
    ) -> Result<Begun<InTransaction<'t>>, Error> {
        driver.settings.refuse_at_most_once("an operation in the caller's transaction")?;
        let key = self.stored_key(key);
        attempting(invocation, &key);
        InTransaction::begin(driver, records, key.clone(), fingerprint, invocation)
            .await
            .inspect(|_| driver.knows(&key))
            .map_err(|refused| refused_within(invocation, &key, refused.reported(&key).error))
    }

    /// Runs `operation` once for `key` in a transaction on `client`, and records its result in the same transaction.
    /// Every later call gets the recorded result. So the operation's effects in the transaction happen exactly once.
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
    /// [`RunError::Handler`] with the operation's own error, or [`RunError::Idempotency`] as in
    /// [`begin`](Self::begin). Nothing was written, with two exceptions. [`ErrorKind::InProgress`] can also mean that
    /// it's unknown whether the commit succeeded: a retry finds out. If idempotency isn't enforced,
    /// [`ErrorKind::Unrecorded`] means the same, and a retry may repeat the writes.
    ///
    /// If the invocation's deadline comes while `operation` runs, the library drops `operation`'s future, unless
    /// [`Settings::cut_off`](crate::settings::Settings::cut_off) is false, and rolls back:
    /// [`ErrorKind::Unavailable`]. It does so half of
    /// [`Settings::answer_reserve`](crate::settings::Settings::answer_reserve) before the deadline, so that no open
    /// transaction keeps its locks in a frozen sandbox.
    ///
    /// `operation` must leave the transaction open. If it runs `COMMIT` or `ROLLBACK` as SQL, also if it begins another
    /// transaction after that, `run_in` records nothing and fails with [`ErrorKind::Invalid`]. Savepoints are fine.
    ///
    /// After a failed statement, PostgreSQL commits nothing of its transaction. If `operation` returns `Ok` even so,
    /// `run_in` fails with [`ErrorKind::Invalid`]. Return the statement's error, or run the statement in a savepoint.
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
        let fingerprint = self.fingerprint_of(payload)?;
        let (shown, invocation) = (self.stored_key(key), self.idempotency().invocation());
        let driver = &self.idempotency().driver().begun(&invocation);
        let now = driver.now();
        let refused = |error| refused_within(&invocation, &shown, error);
        let limits = Timing::of(&driver.settings, now, &invocation).limits;
        let ask_by = limits.ask_by.filter(|_| driver.settings.is_enforced());
        let beginning =
            Box::pin(async { client.transaction().await.map_err(|error| store.fault_of(&error)) });
        let refusal = match ask_by {
            Some(ask_by) if ask_by <= now => Refusal::NoTimeLeft,
            _ => Refusal::Unavailable,
        };
        let transaction = driver
            .in_time(now, ask_by, beginning)
            .await
            .map_err(|error| refused(refusal_error(&shown, refusal, Some(error), now)))?;
        let records = Records::new(store, &transaction);
        let mut open = match self.lock_in(driver, &invocation, records, key, fingerprint).await? {
            Begun::Claimed(open) => open,
            Begun::Replay(replay) => return replay.result_of::<T, F, E>(&shown),
        };
        let context = OperationContext {
            running: Some(Running::inside(shown.clone())),
            ..OperationContext::unprotected(invocation.clone())
        };
        let refusals = context.refusals.clone();
        let work = Box::pin(within(context, async { operation(&transaction).await }));
        let result = match work_in_time(driver, &shown, &invocation, work).await {
            Ok(result) => result,
            Err(error) => {
                drop(open);
                roll_back(driver, store, transaction, limits).await;
                return Err(refused(error).into());
            }
        };
        if result.is_err() {
            refusals.pass_on(&shown);
        }
        let (owner, answer_by) = (open.owner(), open.answer_by());
        if let Some(mut right) = open.take_unenforced() {
            let (verdict, done) = match result {
                Err(error) => (Verdict::Release, Err(RunError::Handler(error))),
                Ok(value) => {
                    let now = driver.now();
                    let until = first_call_until(limits, now);
                    match driver.in_time(now, until, Box::pin(store.commit(transaction))).await {
                        Ok(()) => (Verdict::result::<T, F>(&shown, &value), Ok(value)),
                        Err(error) => {
                            (Verdict::Interrupted, Err(not_known_to_be_committed(&shown, error).into()))
                        }
                    }
                }
            };
            right.conclude(verdict).await;
            return done;
        }
        let value = result.map_err(RunError::Handler)?;
        match open.settle(Verdict::result::<T, F>(&shown, &value)).await.map_err(refused)? {
            Settled::Recorded => {}
            Settled::Superseded(replay) => return replay.result_of::<T, F, E>(&shown),
        }
        let now = driver.now();
        if driver.settings.cut_off && invocation.deadline().is_some_and(|deadline| now >= deadline) {
            // The process was frozen since its work ended.
            roll_back(driver, store, transaction, limits).await;
            return Err(refused(cut_off_late(&shown, now)).into());
        }
        // If less than the reserve is left until the answer is due, the commit may use the reserve too, like the first
        // attempt of every settlement.
        let is_ample = |answer_by: &Timestamp| now.until(*answer_by) > limits.reserve;
        let until = answer_by.filter(is_ample).or_else(|| first_call_until(limits, now));
        match driver.in_time(now, until, Box::pin(store.commit_after_write(transaction))).await {
            Ok(()) => {}
            Err(error) if error.is_maybe_applied() => {
                let found = find_out_whether_committed(driver, store, &shown, owner, error, until).await;
                found.map_err(refused)?;
            }
            Err(error) => return Err(refused(not_committed(&shown, error)).into()),
        }
        observe::concluded(&shown);
        Ok(value)
    }
}

/// Rolls `transaction` back, and waits for the answer in the time that's left. If it isn't answered, the server rolls
/// back as soon as the current statement ends, since the connection has sent the request.
async fn roll_back(
    driver: &Driver,
    store: &PostgresStore,
    transaction: tokio_postgres::Transaction<'_>,
    limits: Limits,
) {
    let now = driver.now();
    let rolling_back =
        Box::pin(async { transaction.rollback().await.map_err(|error| store.fault_of(&error)) });
    let _ = driver.in_time(now, first_call_until(limits, now), rolling_back).await;
}

/// Reports a commit that failed in a mode that doesn't enforce idempotency, and returns its error. There's no record
/// that shows whether the commit was applied.
fn not_known_to_be_committed(key: &StoredKey, error: StoreError) -> Error {
    if !error.is_maybe_applied() {
        return not_committed(key, error);
    }
    let why = format!(
        "{key}: it's unknown whether the transaction was committed, and idempotency isn't enforced: a retry may \
         repeat its writes"
    );
    let error = Error::new(ErrorKind::Unrecorded, why).with_source(error);
    observe::not_committed(key, &error, false);
    error
}
