//! Keeps the record in a transaction of the caller: claim, work and outcome are either all committed, or all rolled
//! back.

use std::sync::Arc;

use deadpool_postgres::tokio_postgres::Transaction;
use tokio_postgres::Row;

use super::{
    Inner, MAX_SENT, PostgresStore, Sends, advisory_key,
    fault::Fault,
    place::Place,
    puts,
    statements::{BEGAN, FREE, SCHEMA_VERSION, Statement},
    typed,
    values::Value,
};
use crate::{
    key::StoredKey,
    record::Record,
    store::{Put, PutOutcome, StoreError, StoreErrorKind},
    time,
};

/// Reads and writes records in your own transaction. [`Operation::run_in`](crate::Operation::run_in) uses these
/// functions.
///
/// Other transactions don't see the claim. Instead, an advisory lock holds the key until the transaction is committed
/// or rolled back. So no claim can become stale.
///
/// The transaction must belong to the database of the table. It can come from a pool. Of the store's configuration,
/// only the table and the timeouts apply. If the table's name has no schema, the store looks the schema up once, over
/// one of its own connections. It never reads or changes the transaction's `search_path`.
///
/// After any error, roll the transaction back. The only exception is the error that another transaction holds the key.
impl PostgresStore {
    /// Commits `transaction`.
    ///
    /// # Errors
    ///
    /// As [`Store::put`](crate::store::Store::put). If the answer was lost, the error is marked as ambiguous.
    /// [`StoreErrorKind::Rejected`] if an earlier statement of the transaction failed: nothing was written.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transaction committed or rolled back.
    pub async fn commit(&self, transaction: Transaction<'_>) -> Result<(), StoreError> {
        // If a statement of the transaction has failed, COMMIT rolls the transaction back, and the client reports that
        // as success. So first send a statement that PostgreSQL rejects in a failed transaction.
        let asked = transaction.batch_execute("SELECT 1");
        let answered = time::within(self.inner.statement_timeout, asked).await;
        match answered {
            Some(Ok(())) => self.commit_after_write(transaction).await,
            Some(Err(error)) => Err(self.inner.error(Fault::sent(&error).of_question())),
            None => Err(self.inner.error(Fault::timed_out().of_question())),
        }
    }

    /// Like `commit`, for a transaction whose last statement was a successful write of this store. That write would
    /// have failed if an earlier statement had failed, so this function needs no round trip to check the transaction.
    pub(crate) async fn commit_after_write(&self, transaction: Transaction<'_>) -> Result<(), StoreError> {
        match time::within(self.inner.statement_timeout, transaction.commit()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.inner.error(Fault::sent(&error).of_commit())),
            None => Err(self.inner.error(Fault::timed_out())),
        }
    }

    /// Reads the record of `key`, if no transaction holds the key's lock. Uses one of the store's connections.
    ///
    /// # Errors
    ///
    /// As [`lock_and_read_in`](Self::lock_and_read_in).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn look(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let inner = &*self.inner;
        let values = [Value::from(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
        // The statement is its own transaction, so the lock ends with it.
        let rows = inner.run(&|statements| &statements.lock_and_read, &values, Sends::Question).await?;
        inner.looked(key, &rows)
    }

    /// Takes the lock of `key` until the transaction ends, if the lock is free, and reads the record in the same
    /// statement. It never waits.
    ///
    /// The record is as it was when the statement began. If another transaction commits after that moment, but before
    /// this one takes the lock, the record doesn't show the other transaction's changes. In that case, a
    /// put based on the older record is refused, and returns the current one.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Conflict`] if another transaction holds the lock: the operation is in progress there. This
    /// transaction can continue. The other errors are those of [`Store::read`](crate::store::Store::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the lock taken until the transaction ends.
    pub async fn lock_and_read_in(
        &self,
        transaction: &Transaction<'_>,
        key: &StoredKey,
    ) -> Result<Option<Record>, StoreError> {
        Ok(self.lock_and_read_beginning(transaction, key).await?.0)
    }

    /// Like `lock_and_read_in`, and returns when the transaction began, for `put_since`.
    pub(crate) async fn lock_and_read_beginning(
        &self,
        transaction: &Transaction<'_>,
        key: &StoredKey,
    ) -> Result<(Option<Record>, i64), StoreError> {
        let values = [Value::from(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
        let place = self.inner.place(&mut self.inner.patience()).await?;
        let rows = self.run_statement_in(transaction, &place, &place.statements.lock_and_read, &values).await;
        let rows = rows.map_err(|error| error.maybe_applied(false))?;
        let record = self.inner.looked(key, &rows)?;
        Ok((record, self.inner.began(&rows)?))
    }

    /// Stores `put`'s record under `key` if its condition holds. Other transactions see the write once `transaction` is
    /// committed.
    ///
    /// # Errors
    ///
    /// As [`Store::put`](crate::store::Store::put). In a transaction that reads from one snapshot
    /// (`REPEATABLE READ` and `SERIALIZABLE`), a concurrent change of the record results in
    /// [`Conflict`](crate::store::StoreErrorKind::Conflict) instead of a refusal with the current record.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the write may have been applied in the transaction, may be applied later, or may
    /// never be applied.
    pub async fn put_in(
        &self,
        transaction: &Transaction<'_>,
        key: &StoredKey,
        put: &Put,
    ) -> Result<PutOutcome, StoreError> {
        let written = self.put_since(transaction, key, put, None).await?;
        written.ok_or_else(|| self.inner.odd_answer())
    }

    /// Like `put_in`, if the transaction is still the one that began at `since`. `None` if it isn't, so that nothing
    /// was written: the user's code has ended the transaction with an SQL statement.
    pub(crate) async fn put_since(
        &self,
        transaction: &Transaction<'_>,
        key: &StoredKey,
        put: &Put,
        since: Option<i64>,
    ) -> Result<Option<PutOutcome>, StoreError> {
        let inner = &*self.inner;
        let place = inner.place(&mut inner.patience()).await?;
        let statement = place.in_transaction.of(put);
        let values = puts::values(put, key, inner.lock_timeout.as_deref());
        let mut values = values.map_err(|fault| inner.error(fault))?;
        values.push(since.map_or(Value::Null, Value::Integer));
        for _ in 0..MAX_SENT {
            let rows = self.run_statement_in(transaction, &place, statement, &values).await?;
            if since.is_some() && since != Some(inner.began(&rows)?) {
                return Ok(None);
            }
            if let Some(written) = inner.written(key, put, &rows)? {
                return Ok(Some(written));
            }
        }
        Err(inner.error(Fault::contended()))
    }

    /// Runs the statement without preparing it, since a transaction rarely runs the same statement twice.
    async fn run_statement_in(
        &self,
        transaction: &Transaction<'_>,
        place: &Arc<Place>,
        statement: &Statement,
        values: &[Value<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let values = typed(statement, values);
        let sent = transaction.query_typed(&statement.sql, &values);
        match time::within(self.inner.statement_timeout, sent).await {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => {
                let fault = Fault::sent(&error).in_users_transaction();
                if fault.is_missing_table() {
                    // The error aborts the transaction. The next one looks the table up again.
                    self.inner.places.forget(place);
                }
                Err(self.inner.error(fault))
            }
            None => Err(self.inner.error(Fault::timed_out())),
        }
    }

    pub(crate) fn fault_of(&self, error: &tokio_postgres::Error) -> StoreError {
        self.inner.error(Fault::sent(error))
    }
}

impl Inner {
    fn looked(&self, key: &StoredKey, rows: &[Row]) -> Result<Option<Record>, StoreError> {
        let row = self.only(rows)?;
        self.refuse_standby(row)?;
        match row.try_get(SCHEMA_VERSION).map_err(|_| self.odd_answer())? {
            Some(version) => self.judge_version(version)?,
            None => return Err(self.error(Fault::missing_table())),
        }
        if !row.try_get(FREE).map_err(|_| self.odd_answer())? {
            return Err(StoreError::new(StoreErrorKind::Conflict, "another transaction holds the key"));
        }
        self.record_in(key, row)
    }

    /// Returns when the transaction that gave this answer began.
    fn began(&self, rows: &[Row]) -> Result<i64, StoreError> {
        self.only(rows)?.try_get(BEGAN).map_err(|_| self.odd_answer())
    }
}
