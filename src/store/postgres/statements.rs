//! The store's SQL: one statement a transition.
//!
//! A writing statement answers with one row: whether the write was made; and if not, the record that is there, as the
//! statement's snapshot shows it. PostgreSQL waits for a transaction that has the row, and then looks at the row anew,
//! but the snapshot is from before the wait. So it can be that nothing was made, and that the snapshot still shows a
//! record (or none) which meets the condition: then the one that stood in the way came in between, and the statement is
//! to be sent again. In every other case the answer is that of the snapshot's moment, and final.
//!
//! Each statement waits no longer for a row than `$2` says, and puts the session's own `lock_timeout` back: it may run in
//! a transaction of somebody else's, or behind a pooler that gives each statement another session.

use tokio_postgres::types::Type;

use super::{codec::Column, table::TableName};

/// A statement's text, and the types of its parameters.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
}

/// All of a table's statements.
#[derive(Debug)]
pub(super) struct Statements {
    /// T1, and a conclusion where there is no record: puts a row.
    pub(super) insert: Statement,
    /// T2: puts the whole row, in place of one that is as seen but for the time of the lock.
    pub(super) reclaim: Statement,
    /// A conclusion: puts the whole row, in place of the very version that was seen.
    pub(super) conclude: Statement,
    /// T3.
    pub(super) take_over: Statement,
    /// T4 to T6.
    pub(super) settle: Statement,
    /// T7.
    pub(super) extend: Statement,
    /// An operator's write.
    pub(super) resolve: Statement,
    /// Reads a record, and whether a standby answers.
    pub(super) read: Statement,
    /// Takes a key's lock until the transaction ends, if it is free, and reads the record and the schema's version.
    pub(super) lock_and_read: Statement,
    /// The schema's version.
    pub(super) version: Statement,
    /// Deletes some expired records.
    pub(super) sweep: Statement,
    /// Some records, in the order of their keys.
    pub(super) scan: Statement,
}

/// In what a writing statement answers: whether the write was made.
pub(super) const MADE: &str = "made";
/// In every answer that may have a record: whether there is one.
pub(super) const FOUND: &str = "found";
/// In what `read` answers: whether the server is a standby.
pub(super) const STANDBY: &str = "standby";
/// In what `lock_and_read` answers: whether the key's lock was free.
pub(super) const FREE: &str = "free";
/// In what `lock_and_read` and `version` answer: the schema's version.
pub(super) const SCHEMA_VERSION: &str = "schema_version";

/// What T2 compares with what was seen.
pub(super) const RECLAIM: [Column; 5] =
    [Column::Status, Column::Owner, Column::Generation, Column::LeaseUntil, Column::ExpiresAt];
/// What T3 compares, beside the status.
pub(super) const TAKEOVER: [Column; 4] =
    [Column::Owner, Column::Generation, Column::LockAcquiredAt, Column::LeaseUntil];
/// All that tells a record's versions apart.
pub(super) const VERSION: [Column; 6] = [
    Column::Status,
    Column::Owner,
    Column::Generation,
    Column::LeaseUntil,
    Column::ExpiresAt,
    Column::LockAcquiredAt,
];
/// By what a claim's own writes know it, beside the status.
const HELD: [Column; 2] = [Column::Owner, Column::Generation];

const KEY: &str = "r.id = $1";
const STARTED: &str = "r.status = 'STARTED'";

/// A writing statement's parameters, in the order in which its values have to come.
struct Parameters(Vec<Type>);

impl Parameters {
    /// The key, and the time-out of a lock.
    fn new() -> Self {
        Self(vec![Type::TEXT, Type::TEXT])
    }

    /// One for a value of `column`.
    fn of(&mut self, column: Column) -> String {
        self.0.push(column.type_());
        format!("${}", self.0.len())
    }

    fn list(&mut self, columns: &[Column]) -> String {
        columns.iter().map(|column| self.of(*column)).collect::<Vec<_>>().join(", ")
    }

    fn set(&mut self, columns: &[Column]) -> String {
        let set = columns.iter().map(|column| format!("{} = {}", column.name(), self.of(*column)));
        set.collect::<Vec<_>>().join(", ")
    }

    /// The condition that each of `columns` is as it was seen.
    fn as_seen(&mut self, columns: &[Column]) -> String {
        let equal = columns.iter().map(|column| {
            let is = match column {
                Column::LeaseUntil | Column::ExpiresAt => "IS NOT DISTINCT FROM",
                _ => "=",
            };
            format!("r.{} {is} {}", column.name(), self.of(*column))
        });
        equal.collect::<Vec<_>>().join(" AND ")
    }

    /// What a settlement sets.
    fn settle(&mut self) -> String {
        let set = Column::SETTLEMENT.map(|column| {
            let (name, value) = (column.name(), self.of(column));
            match column {
                // Only a release has one.
                Column::Interrupted => format!("{name} = COALESCE({value}, r.{name})"),
                _ => format!("{name} = {value}"),
            }
        });
        format!(
            "{}, {} = NULL, {}",
            set.join(", "),
            Column::LeaseUntil.name(),
            nothing(&Column::LATER_RESPONSE)
        )
    }
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let columns = names(&Column::RECORD);
        // A record that the snapshot shows is asked for first: the insertion by itself would wait for a transaction that
        // has changed it.
        let insert = |with: &mut Parameters| {
            format!(
                "INSERT INTO {table} (id, {columns}) SELECT $1, {} FROM s \
                 WHERE NOT EXISTS (SELECT FROM {table} AS r WHERE {KEY}) ON CONFLICT (id) DO NOTHING",
                with.list(&Column::RECORD)
            )
        };
        // What is set comes before what is compared, in the statement and in its parameters.
        let update = |set: &dyn Fn(&mut Parameters) -> String,
                      condition: &dyn Fn(&mut Parameters) -> String| {
            writing(table, |with| {
                let set = set(with);
                format!("UPDATE {table} AS r SET {set} FROM s WHERE {KEY} AND {}", condition(with))
            })
        };
        let put = |with: &mut Parameters| {
            let values = with.list(&Column::RECORD);
            format!("({columns}) = ROW({values}), {}", nothing(&Column::RESERVED))
        };
        let held = |with: &mut Parameters| format!("{STARTED} AND {}", with.as_seen(&HELD));
        Self {
            insert: writing(table, insert),
            reclaim: update(&put, &|with| with.as_seen(&RECLAIM)),
            conclude: update(&put, &|with| with.as_seen(&VERSION)),
            take_over: update(&|with| with.set(&Column::TAKEOVER), &|with| {
                format!("{STARTED} AND {}", with.as_seen(&TAKEOVER))
            }),
            settle: update(&Parameters::settle, &held),
            extend: writing(table, |with| {
                let (lease, expiry) = (with.of(Column::LeaseUntil), with.of(Column::ExpiresAt));
                format!(
                    "UPDATE {table} AS r SET lease_until = {lease}, expires_at = {expiry} FROM s \
                     WHERE {KEY} AND {} AND r.lease_until < {lease}",
                    held(with)
                )
            }),
            resolve: update(&|with| format!("{}, {}", with.settle(), with.set(&HELD)), &|with| {
                with.as_seen(&VERSION)
            }),
            read: reading(table, &format!("pg_is_in_recovery() AS {STANDBY}"), vec![Type::TEXT]),
            lock_and_read: reading(
                table,
                &format!("pg_try_advisory_xact_lock($2) AS {FREE}, ({}) AS {SCHEMA_VERSION}", version(table)),
                vec![Type::TEXT, Type::INT8],
            ),
            version: Statement { sql: version(table), types: vec![] },
            sweep: Statement {
                // A record without an expiry is never less. The lock that is taken looks at the row anew: one whose expiry
                // has been moved is left alone.
                sql: format!(
                    "WITH old AS MATERIALIZED (SELECT id FROM {table} WHERE expires_at < $1 \
                     ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED), \
                     gone AS (DELETE FROM {table} AS r USING old WHERE r.id = old.id RETURNING 1) \
                     SELECT count(*) FROM gone"
                ),
                types: vec![Type::NUMERIC, Type::INT8],
            },
            scan: Statement {
                sql: format!(
                    "SELECT r.id, {} FROM {table} AS r WHERE r.id > $1 ORDER BY r.id LIMIT $2",
                    of_row()
                ),
                types: vec![Type::TEXT, Type::INT8],
            },
        }
    }
}

/// A statement that makes the write and answers as the module says. `s` is evaluated before the row is waited for, since
/// the write reads it; whether the write was made is asked before the old `lock_timeout` is put back, and before the
/// record is read, which is left out where it was.
fn writing(table: &TableName, write: impl Fn(&mut Parameters) -> String) -> Statement {
    let mut parameters = Parameters::new();
    let (write, columns) = (write(&mut parameters), of_row());
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

/// A statement that reads the record, and more before it.
fn reading(table: &TableName, before: &str, types: Vec<Type>) -> Statement {
    let columns = of_row();
    let sql = format!(
        "SELECT {before}, r.id IS NOT NULL AS {FOUND}, {columns} \
         FROM (SELECT) AS one LEFT JOIN {table} AS r ON {KEY}"
    );
    Statement { sql, types }
}

fn version(table: &TableName) -> String {
    format!("SELECT max(version)::bigint AS {SCHEMA_VERSION} FROM {}", table.marker())
}

fn names(columns: &[Column]) -> String {
    columns.iter().map(|column| column.name()).collect::<Vec<_>>().join(", ")
}

/// Sets `columns` to nothing.
fn nothing(columns: &[Column]) -> String {
    columns.iter().map(|column| format!("{} = NULL", column.name())).collect::<Vec<_>>().join(", ")
}

/// All that is read of a row.
fn of_row() -> String {
    let columns = Column::RECORD.into_iter().chain(Column::LATER_RESPONSE);
    columns.map(|column| format!("r.{}", column.name())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every parameter up to the last is there, and has a type.
    #[test]
    fn every_parameter_has_a_type() {
        let table = TableName::new("idempotency").unwrap();
        let Statements {
            insert,
            reclaim,
            conclude,
            take_over,
            settle,
            extend,
            resolve,
            read,
            lock_and_read,
            version,
            sweep,
            scan,
        } = Statements::new(&table);
        for Statement { sql, types } in [
            insert,
            reclaim,
            conclude,
            take_over,
            settle,
            extend,
            resolve,
            read,
            lock_and_read,
            version,
            sweep,
            scan,
        ] {
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
}
