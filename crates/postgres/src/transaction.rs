//! Keeps the record in a transaction of the caller: work and outcome are either both committed, or both rolled
//! back.

use std::sync::Arc;

use tokio_postgres::{Client, Row, Transaction};

use super::{
    Choice, Inner, MAX_SENT, PostgresStore, Sends, advisory_key,
    fault::Fault,
    place::Place,
    puts,
    statements::{BEGAN, FREE, SCHEMA_VERSION, Statement},
    typed,
    values::Value,
};
use lambda_idempotency_core::{
    StoredKey,
    store::{BoxFuture, CallerTransactions, Put, PutOutcome, Record, StoreError, StoreErrorKind, toolkit},
};

/// Keeps the record in your own transaction. There's no claim: an advisory lock holds the key until the
/// transaction ends, so nothing can become stale.
///
/// The transaction must belong to the database of the table. It can come from a pool. Of the store's configuration,
/// only the table and the timeouts apply. If the table's name has no schema, the store looks the schema up once, over
/// one of its own connections. It never reads or changes the transaction's `search_path`.
///
/// In a transaction that reads from one snapshot (`REPEATABLE READ` and `SERIALIZABLE`), a concurrent change of the
/// record makes a put fail with [`Conflict`](StoreErrorKind::Conflict), instead of a refusal with the current record.
impl CallerTransactions for PostgresStore {
    type Connection = Client;

    type Transaction<'c> = Transaction<'c>;

    fn begin<'c>(&'c self, client: &'c mut Client) -> BoxFuture<'c, Result<Transaction<'c>, StoreError>> {
        Box::pin(async { client.transaction().await.map_err(|error| self.inner.error(Fault::sent(&error))) })
    }

    fn lock_and_read_in<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        key: &'a StoredKey,
    ) -> BoxFuture<'a, Result<(Option<Record>, i64), StoreError>> {
        Box::pin(async {
            let values = [Value::from(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
            let place = self.inner.place(&mut self.inner.patience()).await?;
            let rows =
                self.run_statement_in(transaction, &place, &place.statements.lock_and_read, &values).await;
            let rows = rows.map_err(|error| error.maybe_applied(false))?;
            Ok((self.inner.looked(key, &rows)?, self.inner.began(&rows)?))
        })
    }

    fn put_in<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        key: &'a StoredKey,
        put: &'a Put,
        since: Option<i64>,
    ) -> BoxFuture<'a, Result<Option<PutOutcome>, StoreError>> {
        Box::pin(async move {
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
        })
    }

    fn commit<'c>(
        &'c self,
        transaction: Transaction<'c>,
        after_put: bool,
    ) -> BoxFuture<'c, Result<(), StoreError>> {
        Box::pin(async move {
            // If a statement of the transaction has failed, COMMIT rolls the transaction back, and the client reports
            // that as success. So first send a statement that PostgreSQL rejects in a failed transaction. After a
            // failed statement, a put would have failed too.
            if !after_put {
                let asked = self.inner.ending(transaction.batch_execute("SELECT 1")).await;
                asked.map_err(|fault| self.inner.error(fault.of_question()))?;
            }
            let committed = self.inner.ending(transaction.commit()).await;
            committed.map_err(|fault| self.inner.error(fault.of_commit()))
        })
    }

    fn roll_back<'c>(&'c self, transaction: Transaction<'c>) -> BoxFuture<'c, Result<(), StoreError>> {
        Box::pin(async {
            self.inner.ending(transaction.rollback()).await.map_err(|fault| self.inner.error(fault))
        })
    }

    fn look<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async {
            let values = [Value::from(key.as_str()), Value::Integer(advisory_key(key.as_str()))];
            // The statement is its own transaction, so the lock ends with it.
            let statement: &Choice<'_> = &|statements| &statements.lock_and_read;
            let rows = self.inner.run(statement, &values, Sends::Question).await?;
            self.inner.looked(key, &rows)
        })
    }
}

impl PostgresStore {
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
        match toolkit::within(self.inner.statement_timeout, sent).await {
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
}

impl Inner {
    /// Awaits a call of the transaction's client, for at most the statement's timeout.
    async fn ending(
        &self,
        call: impl Future<Output = Result<(), tokio_postgres::Error>>,
    ) -> Result<(), Fault> {
        match toolkit::within(self.statement_timeout, call).await {
            Some(ended) => ended.map_err(|error| Fault::sent(&error)),
            None => Err(Fault::timed_out()),
        }
    }

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
