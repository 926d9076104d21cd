//! The table: its creation and checks.

#[cfg(feature = "admin")]
mod check;

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;
use tokio_postgres::{Client, types::Type};

use super::{
    Inner, PostgresStore, advisory_key,
    connections::Lent,
    fault::Fault,
    place::{Found, Place},
    statements::SCHEMA_VERSION,
    values::Value,
};
use lambda_idempotency_core::store::{StoreError, StoreErrorKind, TableProblem, toolkit};

/// The version of the schema that this library works with.
const NEEDED: i64 = 3;
/// Whether the table and its marker exist.
const IS_THERE: &str = "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL AS is_there";

impl PostgresStore {
    /// The SQL that creates the table, its index and the marker of its schema's version, for your own
    /// migrations.
    ///
    /// ```
    /// use lambda_idempotency::store::postgres::PostgresStore;
    ///
    /// # fn main() -> Result<(), lambda_idempotency::Error> {
    /// let store = PostgresStore::builder("postgres://app@db.internal/shop").table("shop.idempotency").build()?;
    /// assert!(store.schema_sql().contains(r#"CREATE TABLE IF NOT EXISTS "shop"."idempotency" ("#));
    /// # Ok(())
    /// # }
    /// ```
    pub fn schema_sql(&self) -> String {
        self.inner.table.schema_sql()
    }

    /// Creates the table, if it doesn't exist, with its index and the marker of its schema's version. It leaves
    /// an existing table unchanged.
    ///
    /// Returns whether this call created the table. If not, an earlier call that got no answer may have created it.
    ///
    /// Needs the right to create tables in the schema.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Rejected`] if there's a table of another version; and any error of the server. After a
    /// timeout or a lost connection the table may have been created, and the error
    /// [says so](StoreError::is_maybe_applied). Repeat the call.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the table may have been created or not, but never in part.
    pub async fn create_table(&self) -> Result<bool, StoreError> {
        let inner = &*self.inner;
        let connection = inner.lend().await?;
        let found = found_within(inner, &connection).await?;
        let table = match (&found.place, found.home) {
            (Some(place), _) => place.table.clone(),
            // Without a schema in the path, PostgreSQL rejects the creation and says why.
            (None, home) => home.unwrap_or_else(|| inner.table.clone()),
        };
        let names = [table.to_string(), table.marker()];
        let [name, marker] = names.each_ref().map(|name| Value::from(name.as_str()));
        let names = [(&name as _, Type::TEXT), (&marker as _, Type::TEXT)];
        let is_there = within(inner, connection.query_typed(IS_THERE, &names)).await?;
        let is_new = !is_there.first().is_some_and(|row| row.try_get("is_there").unwrap_or(false));
        if is_new {
            // Wait for a concurrent creation, since two CREATE TABLE IF NOT EXISTS statements can conflict. The lock
            // and the creation are sent together, so they're one transaction, which holds the lock until it ends.
            let lock = advisory_key(&inner.table.plain());
            let sql = format!(
                "SELECT set_config('lock_timeout', '0', true), pg_advisory_xact_lock({lock}); {}",
                table.schema_sql()
            );
            created(inner, connection.batch_execute(&sql)).await?;
        }
        let place = found.place.unwrap_or_else(|| inner.created_at(table));
        let version = inner.version_within(&connection, &place).await?;
        connection.release();
        match version {
            Some(version) => inner.judge_version(version)?,
            None => return Err(inner.error(Fault::missing_table())),
        }
        Ok(is_new)
    }
}

/// Within the statement timeout, runs a query about the table.
async fn within<T>(
    inner: &Inner,
    question: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    sent_within(inner, question).await.map_err(|fault| inner.error(fault.of_question()))
}

/// Within the statement timeout, looks for the table.
async fn found_within(inner: &Inner, client: &ClientWrapper) -> Result<Found, StoreError> {
    let found = toolkit::within(inner.statement_timeout, inner.find(client)).await;
    found.unwrap_or_else(|| Err(Fault::timed_out().of_question())).map_err(|fault| inner.error(fault))
}

/// Within the statement timeout, runs the SQL that creates the table. Without an answer, the table may have been
/// created.
async fn created(
    inner: &Inner,
    creation: impl Future<Output = Result<(), tokio_postgres::Error>>,
) -> Result<(), StoreError> {
    sent_within(inner, creation).await.map_err(|fault| {
        let error = inner.error(fault);
        if !error.is_maybe_applied() {
            return error;
        }
        let message = format!("{error}; the table may have been created, so repeat the creation");
        StoreError::new(error.kind(), message).maybe_applied(true).with_source(error)
    })
}

async fn sent_within<T>(
    inner: &Inner,
    sent: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Fault> {
    match toolkit::within(inner.statement_timeout, sent).await {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) => Err(Fault::sent(&error)),
        None => Err(Fault::timed_out()),
    }
}

impl Inner {
    /// Gets a connection for queries about the table, without checking the table's version.
    async fn lend(&self) -> Result<Lent, StoreError> {
        let connection = self.any_connection(&mut self.patience()).await;
        connection.map_err(|fault| self.error(fault))
    }

    async fn version_within(&self, client: &Client, place: &Arc<Place>) -> Result<Option<i64>, StoreError> {
        let version = toolkit::within(self.statement_timeout, self.version(client, place)).await;
        version.unwrap_or_else(|| Err(Fault::timed_out().of_question())).map_err(|fault| self.error(fault))
    }

    /// Reads the version in the marker; `None` if there's no marker.
    async fn version(&self, client: &Client, place: &Arc<Place>) -> Result<Option<i64>, Fault> {
        match client.query_typed(&place.statements.session.sql, &[]).await {
            Ok(rows) => Ok(rows.first().and_then(|row| row.try_get(SCHEMA_VERSION).ok().flatten())),
            Err(error) => {
                let fault = Fault::sent(&error).of_question();
                if !fault.is_missing_table() {
                    return Err(fault);
                }
                self.places.forget(place);
                Ok(None)
            }
        }
    }

    /// Checks that this library supports a table whose schema has the version `found`.
    pub(super) fn judge_version(&self, found: i64) -> Result<(), StoreError> {
        if found == NEEDED {
            return Ok(());
        }
        let (table, place) = (self.table.plain(), &self.place);
        let why = TableProblem::Schema { found, needed: NEEDED };
        Err(StoreError::new(StoreErrorKind::Rejected, format!("table `{table}`{place} can't be used: {why}")))
    }
}
