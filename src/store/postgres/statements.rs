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

use super::{codec::COLUMNS, table::TableName};

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

/// The place of the first of a record's columns in the answer of a writing statement, and in that of `read`.
pub(super) const RECORD_AT: usize = 3;

/// In what a writing statement answers: whether the write was made.
pub(super) const MADE_AT: usize = 0;
/// In every answer with a record: whether there is one.
pub(super) const FOUND_AT: usize = 2;

const KEY: &str = "r.id = $1";
/// The types of a record's columns.
const RECORD: [Type; 14] = [
    Type::INT8,
    Type::TEXT,
    Type::BYTEA,
    Type::NUMERIC,
    Type::INT8,
    Type::TEXT,
    Type::NUMERIC,
    Type::NUMERIC,
    Type::NUMERIC,
    Type::BYTEA,
    Type::TEXT,
    Type::NUMERIC,
    Type::BYTEA,
    Type::BYTEA,
];
/// Status, owner, generation, lease, expiry, time of the lock.
const SEEN: [Type; 6] = [Type::TEXT, Type::BYTEA, Type::NUMERIC, Type::NUMERIC, Type::NUMERIC, Type::NUMERIC];
/// Status, expiry, and the response's four columns.
const SETTLEMENT: [Type; 6] =
    [Type::TEXT, Type::NUMERIC, Type::TEXT, Type::NUMERIC, Type::BYTEA, Type::BYTEA];

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let columns = COLUMNS.join(", ");
        let put = format!("({columns}) = ROW({})", parameters(3, 14));
        // From here on, the row's values are $3 to $16.
        let seen = |first: usize, and_lock: bool| {
            let [status, owner, generation, lease, expiry, lock] =
                std::array::from_fn(|at| format!("${}", first + at));
            let lock = if and_lock { format!(" AND r.lock_acquired_at = {lock}") } else { String::new() };
            format!(
                "r.status = {status} AND r.owner = {owner} AND r.generation = {generation} \
                 AND r.lease_until IS NOT DISTINCT FROM {lease} AND r.expires_at = {expiry}{lock}"
            )
        };
        // $3 to $8.
        let settle = "status = $3, lease_until = NULL, expires_at = COALESCE($4, r.expires_at), \
                      response_encoding = $5, response_length = $6, response_sha256 = $7, response = $8";
        let update = |set: &str, condition: &str, types: &[&[Type]]| {
            let write = format!("UPDATE {table} AS r SET {set} FROM s WHERE {KEY} AND {condition}");
            writing(table, &write, types)
        };
        // A record that the snapshot shows is asked for first: the insertion by itself would wait for a transaction that
        // has changed it.
        let insert = format!(
            "INSERT INTO {table} (id, {columns}) SELECT $1, {} FROM s \
             WHERE NOT EXISTS (SELECT FROM {table} AS r WHERE {KEY}) ON CONFLICT (id) DO NOTHING",
            parameters(3, 14)
        );
        Self {
            insert: writing(table, &insert, &[&RECORD]),
            reclaim: update(&put, &seen(17, false), &[&RECORD, &SEEN[..5]]),
            conclude: update(&put, &seen(17, true), &[&RECORD, &SEEN]),
            take_over: update(
                "version = $3, owner = $4, generation = $5, attempt = $6, lock_acquired_at = $7, \
                 lease_until = $8, expires_at = $9, request_id = $10",
                "r.status = 'STARTED' AND r.owner = $11 AND r.generation = $12 AND r.lock_acquired_at = $13 \
                 AND r.lease_until = $14",
                &[
                    &[Type::INT8, Type::BYTEA, Type::NUMERIC, Type::INT8],
                    &[Type::NUMERIC, Type::NUMERIC, Type::NUMERIC, Type::BYTEA],
                    &[Type::BYTEA, Type::NUMERIC, Type::NUMERIC, Type::NUMERIC],
                ],
            ),
            settle: update(
                settle,
                "r.status = 'STARTED' AND r.owner = $9 AND r.generation = $10",
                &[&SETTLEMENT, &[Type::BYTEA, Type::NUMERIC]],
            ),
            extend: update(
                "lease_until = $3, expires_at = $4",
                "r.status = 'STARTED' AND r.owner = $5 AND r.generation = $6 AND r.lease_until < $3",
                &[&[Type::NUMERIC, Type::NUMERIC, Type::BYTEA, Type::NUMERIC]],
            ),
            resolve: update(
                &format!("{settle}, owner = $9, generation = $10"),
                &seen(11, true),
                &[&SETTLEMENT, &[Type::BYTEA, Type::NUMERIC], &SEEN],
            ),
            read: reading(table, "pg_is_in_recovery(), NULL", vec![Type::TEXT]),
            lock_and_read: reading(
                table,
                &format!("pg_try_advisory_xact_lock($2), ({})", version(table)),
                vec![Type::TEXT, Type::INT8],
            ),
            version: Statement { sql: version(table), types: vec![] },
            sweep: Statement {
                // The lock that is taken looks at the row anew: one whose expiry has been moved is left alone.
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

/// A statement that makes `write` and answers as the module says. `s` is evaluated before the row is waited for, since
/// the write reads it; whether the write was made is asked before the old `lock_timeout` is put back, and before the
/// record is read, which is left out where it was.
fn writing(table: &TableName, write: &str, types: &[&[Type]]) -> Statement {
    let columns = of_row();
    let sql = format!(
        "WITH s AS MATERIALIZED (\
         SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', $2, true)), \
         w AS ({write} RETURNING 1) \
         SELECT m.made, set_config('lock_timeout', s.before, true), r.id IS NOT NULL, {columns} \
         FROM s CROSS JOIN (SELECT EXISTS (SELECT FROM w) AS made) AS m \
         LEFT JOIN {table} AS r ON {KEY} AND NOT m.made"
    );
    let own = [Type::TEXT, Type::TEXT];
    Statement { sql, types: own.into_iter().chain(types.concat()).collect() }
}

/// A statement that reads the record, and two more values before it.
fn reading(table: &TableName, before: &str, types: Vec<Type>) -> Statement {
    let columns = of_row();
    let sql = format!(
        "SELECT {before}, r.id IS NOT NULL, {columns} FROM (SELECT) AS one LEFT JOIN {table} AS r ON {KEY}"
    );
    Statement { sql, types }
}

fn version(table: &TableName) -> String {
    format!("SELECT max(version)::bigint FROM {}", table.marker())
}

fn of_row() -> String {
    COLUMNS.map(|column| format!("r.{column}")).join(", ")
}

/// `$first` and the next ones, `count` in all.
fn parameters(first: usize, count: usize) -> String {
    (first..first + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
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
