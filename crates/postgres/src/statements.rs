//! The store's SQL: one statement per transition.
//!
//! A writing statement's answer says whether the write was applied. If it wasn't, the answer contains the record as the
//! statement's snapshot shows it. If another transaction has locked the record's row, PostgreSQL waits for that
//! transaction, and then reads the row again, but the snapshot is from before the wait. So the snapshot may show a
//! record (or none) that meets the condition, although the write wasn't applied. In that case, another transaction
//! changed the record after the snapshot, and the store sends the statement again. In every other case, the answer is
//! final, and describes the moment of the snapshot.
//!
//! The server limits how long a statement runs and waits for locks; see `limits`. A user's transaction has its own
//! settings. There, a statement sets `lock_timeout` to `$2` while it waits for a row, and then restores the old value.
//! With `?timeouts=role`, the statement leaves `lock_timeout` unchanged, because a proxy may treat any `set_config` as
//! a change of the session.

use tokio_postgres::types::Type;

use super::{codec::type_of, schema::TableName};
use lambda_idempotency_core::store::toolkit::Field;

/// A statement's text, and the types of its parameters.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
}

/// All of a table's statements.
#[derive(Debug)]
pub(super) struct Statements {
    /// Inserts a row, if there's none.
    pub(super) insert: Statement,
    /// Replaces the whole row, if its columns of [`Field::VERSION`] are as seen.
    pub(super) replace: Statement,
    /// Sets the columns that can change under one claim, if the columns of [`Field::VERSION`] are as seen.
    pub(super) renew: Statement,
    /// Sets the same columns, if the row is STARTED and has the claim's owner and generation.
    pub(super) settle: Statement,
    /// Reads a record, and whether a standby answers.
    pub(super) read: Statement,
    /// Takes a key's lock until the transaction ends, if the lock is free. Reads the record, the schema's version, and
    /// whether a standby answers.
    pub(super) lock_and_read: Statement,
    /// Reads the schema's version, and the session's process and limits.
    pub(super) session: Statement,
    /// Deletes some expired records.
    pub(super) sweep: Statement,
    /// Reads some records, ordered by key.
    #[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "only `scan` uses it"))]
    pub(super) scan: Statement,
}

/// The column of a writing statement's answer that says whether the write was applied.
pub(super) const MADE: &str = "made";
/// The column that says whether the answer contains a record.
pub(super) const FOUND: &str = "found";
/// The column of `read` and `lock_and_read` that says whether the server is a standby.
pub(super) const STANDBY: &str = "standby";
/// The column of `lock_and_read` that says whether the key's lock was free.
pub(super) const FREE: &str = "free";
/// The column of `lock_and_read`, and of the writes in a user's transaction, that identifies the transaction.
pub(super) const BEGAN: &str = "began";
/// The time when the current transaction began, in microseconds. A later transaction of the session began at another
/// time, and so did a statement outside any transaction. A savepoint changes nothing.
const BEGAN_AT: &str = "(extract(epoch FROM now()) * 1000000)::bigint";
/// The column of `sweep` with the number of deleted records.
pub(super) const SWEPT: &str = "swept";
/// The column of `scan` with the record's key.
pub(super) const SCANNED_KEY: &str = "id";
/// The columns of `session`: the server's process, and its limits in milliseconds.
pub(super) const PROCESS: &str = "process";
pub(super) const STATEMENT_LIMIT: &str = "statement_limit";
pub(super) const LOCK_LIMIT: &str = "lock_limit";
/// The column of `lock_and_read` and `session` with the schema's version.
pub(super) const SCHEMA_VERSION: &str = "schema_version";

const KEY: &str = "r.id = $1";

/// Where the lock timeout of a writing statement comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockWait {
    /// The session: its `lock_timeout` applies.
    OfSession,
    /// The statement: its second value is the timeout.
    OfStatement,
}

/// In which transaction a writing statement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    /// Its own.
    Own,
    /// The user's. The statement's last value is the time when the operation's transaction began, or NULL if it's
    /// unknown. In any other transaction, the statement writes nothing.
    Users,
}

/// The parameters of a writing statement, in the order of its values.
struct Parameters(Vec<Type>);

impl Parameters {
    /// Starts with the key, and the lock timeout if the statement has one.
    fn new(wait: LockWait) -> Self {
        Self(match wait {
            LockWait::OfSession => vec![Type::TEXT],
            LockWait::OfStatement => vec![Type::TEXT, Type::TEXT],
        })
    }

    /// Adds a parameter for a value of `field`.
    fn of(&mut self, field: Field) -> String {
        self.0.push(type_of(field));
        format!("${}", self.0.len())
    }

    fn list(&mut self, fields: &[Field]) -> String {
        fields.iter().map(|field| self.of(*field)).collect::<Vec<_>>().join(", ")
    }

    /// Builds the assignments of the columns that can change under one claim.
    fn set_state(&mut self) -> String {
        Field::STATE.map(|field| format!("{} = {}", field.name(), self.of(field))).join(", ")
    }

    /// Builds the condition that the column of each of `fields` has the value that was seen.
    fn as_seen(&mut self, fields: &[Field]) -> String {
        let equal = fields.iter().map(|field| {
            let is = match field {
                Field::LeaseUntil | Field::ExpiresAt => "IS NOT DISTINCT FROM",
                _ => "=",
            };
            format!("r.{} {is} {}", field.name(), self.of(*field))
        });
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// Builds the condition that the transaction is the operation's, if it's a user's transaction.
    fn still(&mut self, within: Within) -> String {
        if within == Within::Own {
            return String::new();
        }
        self.0.push(Type::INT8);
        format!(" AND COALESCE(${} = {BEGAN_AT}, true)", self.0.len())
    }
}

impl Statements {
    pub(super) fn new(table: &TableName, wait: LockWait, within: Within) -> Self {
        let columns = Field::RECORD.map(Field::name).join(", ");
        let from = if wait == LockWait::OfStatement { "FROM s" } else { "" };
        let writing = |table: &TableName, write: &dyn Fn(&mut Parameters) -> String| match wait {
            LockWait::OfSession => writing(table, within, write),
            LockWait::OfStatement => waiting(table, within, write),
        };
        // Check for a record in the snapshot first: the insert alone would wait for a transaction that has
        // changed the record.
        let insert = |with: &mut Parameters| {
            format!(
                "INSERT INTO {table} (id, {columns}) SELECT $1, {} {from} \
                 WHERE NOT EXISTS (SELECT FROM {table} AS r WHERE {KEY}){} ON CONFLICT (id) DO NOTHING",
                with.list(&Field::RECORD),
                with.still(within)
            )
        };
        // The values to set come before the values to compare, in the statement and in its parameters.
        let update = |set: &dyn Fn(&mut Parameters) -> String,
                      condition: &dyn Fn(&mut Parameters) -> String| {
            writing(table, &|with| {
                let set = set(with);
                let condition = condition(with);
                format!(
                    "UPDATE {table} AS r SET {set} {from} WHERE {KEY} AND {condition}{}",
                    with.still(within)
                )
            })
        };
        let put = |with: &mut Parameters| {
            let values = with.list(&Field::RECORD);
            format!("({columns}) = ROW({values})")
        };
        let standby = format!("pg_is_in_recovery() AS {STANDBY}");
        Self {
            insert: writing(table, &insert),
            replace: update(&put, &|with| with.as_seen(&Field::VERSION)),
            renew: update(&Parameters::set_state, &|with| with.as_seen(&Field::VERSION)),
            settle: update(&Parameters::set_state, &|with| {
                with.as_seen(&[Field::Status, Field::Owner, Field::Generation])
            }),
            read: reading(table, &standby, vec![Type::TEXT]),
            lock_and_read: reading(
                table,
                // The lock's number depends on the key and on the table's oid. So one key has different locks in two
                // tables, but the same lock under any name of a table.
                &format!(
                    "pg_try_advisory_xact_lock($2 # ({}::regclass::oid::bigint << 32)) AS {FREE}, \
                     ({}) AS {SCHEMA_VERSION}, {standby}, {BEGAN_AT} AS {BEGAN}",
                    table.literal(),
                    version(table)
                ),
                vec![Type::TEXT, Type::INT8],
            ),
            session: Statement {
                sql: format!(
                    "SELECT ({}) AS {SCHEMA_VERSION}, pg_backend_pid() AS {PROCESS}, {} AS {STATEMENT_LIMIT}, \
                     {} AS {LOCK_LIMIT}",
                    version(table),
                    millis_of("statement_timeout"),
                    millis_of("lock_timeout")
                ),
                types: vec![],
            },
            // The first condition follows from the second one. It's there for the index on `sweep_hour`.
            sweep: sweeping(
                table,
                "sweep_hour <= ceil($1 / 3600000)::bigint AND expires_at < $1",
                "sweep_hour",
            ),
            scan: Statement {
                sql: format!(
                    "SELECT r.id AS {SCANNED_KEY}, {} FROM {table} AS r WHERE r.id > $1 ORDER BY r.id LIMIT $2",
                    of_row_unread()
                ),
                types: vec![Type::TEXT, Type::INT8],
            },
        }
    }
}

/// Builds a statement that applies the write and answers as the module's documentation says. If the write was
/// applied, the answer has no record.
fn writing(table: &TableName, within: Within, write: &dyn Fn(&mut Parameters) -> String) -> Statement {
    let mut parameters = Parameters::new(LockWait::OfSession);
    let (write, columns) = (write(&mut parameters), answered(within));
    let sql = format!(
        "WITH w AS ({write} RETURNING 1) \
         SELECT m.{MADE}, r.id IS NOT NULL AS {FOUND}, {columns} \
         FROM (SELECT EXISTS (SELECT FROM w) AS {MADE}) AS m LEFT JOIN {table} AS r ON {KEY} AND NOT m.{MADE}"
    );
    Statement { sql, types: parameters.0 }
}

/// Like `writing`, but the statement limits its own wait for the row: its CTE `s` sets `lock_timeout`. PostgreSQL
/// evaluates `s` before the wait, because the write reads `s`. It restores the old `lock_timeout` after the wait,
/// because it evaluates `made` first.
fn waiting(table: &TableName, within: Within, write: &dyn Fn(&mut Parameters) -> String) -> Statement {
    let mut parameters = Parameters::new(LockWait::OfStatement);
    let (write, columns) = (write(&mut parameters), answered(within));
    let sql = format!(
        "WITH s AS MATERIALIZED (\
         SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', $2, true)), \
         w AS ({write} RETURNING 1) \
         SELECT m.{MADE}, set_config('lock_timeout', s.before, true), r.id IS NOT NULL AS {FOUND}, {columns} \
         FROM s CROSS JOIN (SELECT EXISTS (SELECT FROM w) AS {MADE}) AS m \
         LEFT JOIN {table} AS r ON {KEY} AND NOT m.{MADE}"
    );
    Statement { sql, types: parameters.0 }
}

/// Builds a statement that reads the record, preceded by the columns in `before`.
fn reading(table: &TableName, before: &str, types: Vec<Type>) -> Statement {
    let columns = of_row();
    let sql = format!(
        "SELECT {before}, r.id IS NOT NULL AS {FOUND}, {columns} \
         FROM (SELECT) AS one LEFT JOIN {table} AS r ON {KEY}"
    );
    Statement { sql, types }
}

/// Builds a statement that deletes up to `$2` records that expired before `$1`, in the order of the column `order`.
/// `NULL < $1` is never true, so a record without an expiry stays. PostgreSQL reads a row again when it locks the
/// row, so a row whose expiry has moved stays too.
fn sweeping(table: &TableName, condition: &str, order: &str) -> Statement {
    let sql = format!(
        "WITH old AS MATERIALIZED (SELECT id FROM {table} WHERE {condition} \
         ORDER BY {order} LIMIT $2 FOR UPDATE SKIP LOCKED), \
         gone AS (DELETE FROM {table} AS r USING old WHERE r.id = old.id RETURNING 1) \
         SELECT count(*) AS {SWEPT} FROM gone"
    );
    Statement { sql, types: vec![Type::NUMERIC, Type::INT8] }
}

fn version(table: &TableName) -> String {
    format!("SELECT max(version)::bigint AS {SCHEMA_VERSION} FROM {}", table.marker())
}

/// Reads a time setting in milliseconds; 0 means no limit.
fn millis_of(setting: &str) -> String {
    format!("(extract(epoch FROM current_setting('{setting}')::interval) * 1000)::bigint")
}

/// The columns of a writing statement's answer, besides those that say how the write ended.
fn answered(within: Within) -> String {
    match within {
        Within::Own => of_row(),
        Within::Users => format!("{BEGAN_AT} AS {BEGAN}, {}", of_row()),
    }
}

/// All columns that a statement reads from a row.
fn of_row() -> String {
    Field::RECORD.map(|field| format!("r.{}", field.name())).join(", ")
}

/// Like `of_row`, with an empty response instead of the stored one, so that the server doesn't need to fetch the
/// response. Its length takes the place of the one that isn't stored.
fn of_row_unread() -> String {
    let column = |field: Field| match field {
        Field::Response => "CASE WHEN r.response IS NOT NULL THEN ''::bytea END AS response".to_owned(),
        Field::Length => "coalesce(r.length, nullif(octet_length(r.response), 0)) AS length".to_owned(),
        _ => format!("r.{}", field.name()),
    };
    Field::RECORD.map(column).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every parameter up to the last is used, and has a type.
    #[test]
    fn every_parameter_has_a_type() {
        let table = TableName::new("idempotency").unwrap();
        for wait in [LockWait::OfSession, LockWait::OfStatement] {
            assert_typed(Statements::new(&table, wait, Within::Own));
            assert_typed(Statements::new(&table, wait, Within::Users));
        }
    }

    /// A proxy may treat any call of `set_config` as a change of the session.
    #[test]
    fn set_config_needs_a_lock_timeout_parameter() {
        let table = TableName::new("idempotency").unwrap();
        let sets =
            |wait| format!("{:?}", Statements::new(&table, wait, Within::Users)).contains("set_config");
        assert!(!sets(LockWait::OfSession) && sets(LockWait::OfStatement));
    }

    fn assert_typed(statements: Statements) {
        let Statements { insert, replace, renew, settle, read, lock_and_read, session, sweep, scan } =
            statements;
        for Statement { sql, types } in
            [insert, replace, renew, settle, read, lock_and_read, session, sweep, scan]
        {
            let number = |text: &str| {
                let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
                digits.parse::<usize>().unwrap()
            };
            let mut named: Vec<usize> = sql.split('$').skip(1).map(number).collect();
            named.sort_unstable();
            named.dedup();
            assert_eq!(named, (1..=types.len()).collect::<Vec<_>>(), "{sql}");
        }
    }

    #[test]
    fn listed_rows_leave_out_only_the_response() {
        let (whole, unread) = (of_row(), of_row_unread());
        assert!(!whole.contains("CASE"));
        assert_eq!(unread.matches("CASE").count(), 1);
        for field in Field::RECORD {
            assert!(unread.contains(&format!("r.{}", field.name())), "{unread}");
        }
    }
}
