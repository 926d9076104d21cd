//! The record in a transaction that somebody else has opened: claim, work and outcome are committed together, or nothing
//! is.

use std::fmt;

use deadpool_postgres::tokio_postgres::Transaction;
use tokio_postgres::Row;

use super::{
    Inner, MAX_SENT, PostgresStore, Sends, advisory_key,
    fault::Fault,
    statements::{FREE, SCHEMA_VERSION, Statement},
    typed,
    values::Value,
    writes::Draft,
};
use crate::{
    key::StoredKey,
    record::Record,
    store::{StoreError, Write, Written},
    time,
};

/// The records of a [`PostgresStore`], read and written in a transaction of yours, which stays yours to commit.
///
/// There is no claim that others see: a key is held by an advisory lock, which ends with the transaction however that
/// ends, so that nothing can go stale.
///
/// After any error, roll the transaction back.
pub struct PostgresTransaction<'t> {
    inner: &'t Inner,
    transaction: &'t Transaction<'t>,
}

/// What [`PostgresTransaction::lock_and_read`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Another transaction has the key's lock: it is in progress there.
    Busy,
    /// The key's lock is this transaction's, until that ends. This is the record, if there is one.
    Free(Option<Record>),
}

impl PostgresStore {
    /// The store's records, in `transaction`.
    ///
    /// The transaction is of the database that the table is in; a pool's own transaction can be given as it is. Of the
    /// store's configuration, the table and the time-outs count, and the store's own connections are not used.
    pub fn in_transaction<'t>(&'t self, transaction: &'t Transaction<'t>) -> PostgresTransaction<'t> {
        PostgresTransaction { inner: &self.inner, transaction }
    }

    /// Commits `transaction`.
    ///
    /// # Errors
    ///
    /// As [`Store::apply`](crate::Store::apply): marked as perhaps applied, if the answer was lost on the way.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the transaction committed, or rolled back.
    pub async fn commit(&self, transaction: Transaction<'_>) -> Result<(), StoreError> {
        match time::within(self.inner.statement_timeout, transaction.commit()).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.fault_of(&error)),
            None => Err(self.inner.error(Fault::timed_out())),
        }
    }

    /// Whether a transaction has the lock of `key`, and if none has, what its record is: over a connection of the store's own.
    ///
    /// # Errors
    ///
    /// As [`Store::read`](crate::Store::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn look(&self, key: &StoredKey) -> Result<Looked, StoreError> {
        let inner = &*self.inner;
        let values = [Value::Text(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
        // A transaction of its own, which ends with the statement, and the lock with it.
        let rows = inner.run(&inner.statements.lock_and_read, &values, Sends::Question).await?;
        inner.looked(key, &rows)
    }

    pub(crate) fn fault_of(&self, error: &tokio_postgres::Error) -> StoreError {
        self.inner.error(Fault::sent(error))
    }
}

impl Inner {
    fn looked(&self, key: &StoredKey, rows: &[Row]) -> Result<Looked, StoreError> {
        let row = self.only(rows)?;
        match row.try_get(SCHEMA_VERSION).map_err(|_| self.odd_answer())? {
            Some(version) => self.judge_version(version)?,
            None => return Err(self.error(Fault::missing_table())),
        }
        if !row.try_get(FREE).map_err(|_| self.odd_answer())? {
            return Ok(Looked::Busy);
        }
        self.record_in(key, row).map(Looked::Free)
    }
}

impl PostgresTransaction<'_> {
    /// Takes the lock of `key` until the transaction ends, if no other transaction has it, and reads the record; in one
    /// statement. It never waits.
    ///
    /// The record is that of the statement's beginning. If another transaction has ended in that very moment, it may be
    /// older than the lock; then a [`Write::Conclude`] that was decided on it is refused, with the record that is there.
    ///
    /// # Errors
    ///
    /// As [`Store::read`](crate::Store::read).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the lock taken, until the transaction ends.
    pub async fn lock_and_read(&self, key: &StoredKey) -> Result<Looked, StoreError> {
        let values = [Value::Text(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
        let rows = self.run(&self.inner.statements.lock_and_read, &values).await;
        let rows = rows.map_err(|error| error.maybe_applied(false))?;
        self.inner.looked(key, &rows)
    }

    /// Makes `write` on `key` if its condition holds; others see it when the transaction is committed.
    ///
    /// # Errors
    ///
    /// As [`Store::apply`](crate::Store::apply). A transaction that reads from one snapshot (`REPEATABLE READ` and
    /// `SERIALIZABLE`) ends with [`Conflict`](crate::store::StoreErrorKind::Conflict) where another is told what stands in
    /// its way.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the write made in the transaction, not made, or still to come.
    pub async fn apply(&self, key: &StoredKey, write: &Write) -> Result<Written, StoreError> {
        let inner = self.inner;
        let draft = Draft::of(write).map_err(|fault| inner.error(fault))?;
        let statement = inner.in_transaction.of(write);
        let values = draft.values(key, inner.lock_timeout.as_deref(), write);
        for _ in 0..MAX_SENT {
            let rows = self.run(statement, &values).await?;
            if let Some(written) = inner.written(key, write, &rows)? {
                return Ok(written);
            }
        }
        Err(inner.error(Fault::contended()))
    }

    /// Not prepared: a transaction meets each of its statements once.
    async fn run(&self, statement: &Statement, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        let values = typed(statement, values);
        let sent = self.transaction.query_typed(&statement.sql, &values);
        match time::within(self.inner.statement_timeout, sent).await {
            Some(Ok(rows)) => Ok(rows),
            Some(Err(error)) => Err(self.inner.error(Fault::sent(&error))),
            None => Err(self.inner.error(Fault::timed_out())),
        }
    }
}

impl fmt::Debug for PostgresTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction")
            .field("table", &self.inner.table.plain())
            .finish_non_exhaustive()
    }
}
