//! Checks the table, for operators.

use tokio_postgres::types::Type;

use super::{NEEDED, found_within, within};
use crate::{PostgresStore, values::Value};
use lambda_idempotency_core::store::{StoreError, TableProblem};

/// Finds all problems of the table, except a wrong version of its schema.
const CHECK: &str = "SELECT pg_is_in_recovery() AS standby, \
    current_setting('synchronous_commit') = 'off' AS asynchronous, c.relpersistence = 'u' AS unlogged, \
    EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0] \
        WHERE i.indrelid = c.oid AND i.indisvalid AND a.attname = 'sweep_hour') AS indexed, \
    ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p \
        WHERE NOT has_table_privilege(c.oid, p)) AS missing \
    FROM pg_class c WHERE c.oid = to_regclass($1)";

impl PostgresStore {
    /// Lists the table's problems. The table is OK if the list is empty or has only
    /// [notes](TableProblem::is_note).
    ///
    /// # Errors
    ///
    /// If PostgreSQL can't be reached, or rejects the query.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn check_table(&self) -> Result<Vec<TableProblem>, StoreError> {
        let inner = &*self.inner;
        let connection = inner.lend().await?;
        let Some(place) = found_within(inner, &connection).await?.place else {
            connection.release();
            return Ok(vec![TableProblem::Missing]);
        };
        let name = place.table.to_string();
        let name = Value::from(name.as_str());
        let rows = within(inner, connection.query_typed(CHECK, &[(&name, Type::TEXT)])).await?;
        let version = inner.version_within(&connection, &place).await?;
        connection.release();
        let (row, found) = match (rows.first(), version) {
            (Some(row), Some(found)) => (row, found),
            (Some(_), None) => return Ok(vec![TableProblem::Unmarked]),
            (None, _) => return Ok(vec![TableProblem::Missing]),
        };
        let mut problems = Vec::new();
        if found != NEEDED {
            problems.push(TableProblem::Schema { found, needed: NEEDED });
        }
        let flag = |column: &str| row.try_get::<_, bool>(column).unwrap_or(false);
        let missing: Vec<String> = row.try_get("missing").unwrap_or_default();
        if !missing.is_empty() {
            problems.push(TableProblem::Privileges { missing });
        }
        for (is_so, problem) in [
            (flag("standby"), TableProblem::Standby),
            (flag("unlogged"), TableProblem::Unlogged),
            (!flag("indexed"), TableProblem::NoIndex),
            (flag("asynchronous"), TableProblem::AsynchronousCommit),
        ] {
            if is_so {
                problems.push(problem);
            }
        }
        Ok(problems)
    }
}
