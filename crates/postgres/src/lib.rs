//! The PostgreSQL store.
//!
//! It keeps one row per record and runs one conditional statement per transition. If the condition fails, the
//! statement returns the row that made it fail. A first run costs two statements. A duplicate costs one. A takeover
//! costs two, and its completion costs one more. A response is stored in the row, whatever its size.
//!
//! # The table
//!
//! `schema.sql` creates the table. Run this file with [`create_table`](PostgresStore::create_table), with
//! `idempotency table create`, or in your own migrations ([`schema_sql`](PostgresStore::schema_sql)). The file also
//! creates a one-row table, the marker, which holds the schema's version. The library reads the marker on every new
//! connection, and refuses to work with an unknown version.
//!
//! | column | type | in | content |
//! |---|---|---|---|
//! | `id` | text | all | the primary key: the stored key, `<function>/<operation>#<64 hex digits>` |
//! | `version` | bigint | all | `3`, the version of this format |
//! | `status` | text | all | `STARTED`, `COMPLETED`, `FAILED` or `RELEASED` |
//! | `owner` | bytea | all | the claim's owner: 16 bytes |
//! | `generation` | numeric(20) | all | the claim's generation |
//! | `attempt` | bigint | all | how many claims the operation has had |
//! | `fingerprint` | bytea | all | the version of the fingerprint's rules, `1`, and the SHA-256: 33 bytes |
//! | `claimed_at` | numeric(20) | all | when the claim was made; ms since the Unix epoch |
//! | `lease_until` | numeric(20) | STARTED | when the lease ends; ms since the Unix epoch |
//! | `expires_at` | numeric(20) | all, except unsettled at-most-once claims | when the record expires; ms since the Unix epoch. NULL: never |
//! | `mark` | text | if an earlier attempt ended without an answer | `interrupted` |
//! | `execution` | text | at-most-once claims, settled or not | `at-most-once` |
//! | `request_id` | bytea | all, if known | the request id of the invocation that made the claim, in UTF-8 |
//! | `trace` | bytea | if traced | the trace of the run under the claim, in UTF-8 |
//! | `encoding` | text | COMPLETED, FAILED, if encoded | `deflate` (RFC 1951) or `identity`, then `;format=NAME` if the format isn't JSON, and `;key=ID` if a cipher encrypted it; `omitted`: the response isn't stored |
//! | `length` | numeric(20) | COMPLETED, FAILED, if it isn't that of `response` | the length in bytes before encoding |
//! | `sha256` | bytea | COMPLETED, FAILED, unless omitted | the SHA-256 before encoding |
//! | `response` | bytea | COMPLETED, FAILED, unless omitted | the response, encoded |
//! | `sweep_hour` | bigint | all with an expiry | generated: `expires_at` in hours since the epoch, rounded up |
//!
//! For an encrypted response, `length` is the length of the plaintext, and `sha256` is the digest of the ciphertext.
//!
//! A row counts as corrupt, never as absent, if it lacks a value that its status requires, or has one that belongs to
//! another status. A row with a `mark`, an `execution` or an `encoding` that this release doesn't know is corrupt too.
//!
//! # The sweep and its index
//!
//! Old rows stay until [`sweep`](PostgresStore::sweep) deletes them, so call it regularly. It never deletes a row
//! without an expiry. It finds expired rows by an index on `sweep_hour`. A settlement rarely changes that hour, so
//! PostgreSQL updates the row within its page, without changing an index (a HOT update). An index on `expires_at`
//! itself would change with every settlement.
//!
//! | index for the sweep | HOT, 8 in flight | HOT, 500 in flight | WAL per run | table and indexes | sweep of 10,000 |
//! |---|---|---|---|---|---|
//! | `expires_at` | 0 % | 0 % | 1,575 B | 42.9 MiB | 219 ms |
//! | `sweep_hour` | 92 % | 52 % | 1,328 B | 36.7 MiB | 286 ms |
//! | none: the sweep reads the table | 97 % | 51 % | 1,226 B | 34.8 MiB | 1,109 ms |
//! | `sweep_hour`, fillfactor 90 | 100 % | 59 % | 1,275 B | 53.0 MiB | not measured |
//! | BRIN on `expires_at` | 0 % | not measured | 1,405 B | 38.4 MiB | not measured |
//! | `expires_at`, partial: only settled rows | 0 % | not measured | 1,486 B | 39.6 MiB | not measured |
//!
//! Measured with PostgreSQL 15.18 on 2026-11-22: 48,000 claims, each completed with a response of 200 bytes, over 8
//! connections, with `synchronous_commit` off and the default autovacuum settings. With 8 in flight, each claim is
//! completed at once. With 500 in flight, 500 claims are made before they're completed. The sweep runs over 1,000,000
//! rows, of which 1 % has expired, in batches of 1,000. The sweep's last statement finds no more rows, which takes 4 ms
//! with an index and 387 ms without one. A page of 500 rows took 3 to 4 ms to list, with each index. The updates per
//! second differed by less than the machine's noise.
//!
//! An update isn't HOT if its page is full, or if the settlement moves the expiry into another hour. In a function with
//! a 30-second timeout, up to 1 % of settlements change the hour. With a retention below one day, nearly all
//! settlements do, because they bring the expiry forward. Under at-most-once, nearly all do, because they set the row's
//! first expiry. `ALTER TABLE … SET (fillfactor = 50)` leaves room in each page. With 500 in flight, this setting made
//! all updates HOT, and needed 32.3 MiB instead of 31.2 MiB. With few claims in flight, it wastes half of each page.
//!
//! # Server requirements
//!
//! PostgreSQL 12 or later. The store must connect to the primary: a standby rejects writes, and its reads may lag
//! behind. If a fail-over to an asynchronously replicated standby loses writes, this store loses them too. Don't turn
//! `synchronous_commit` off: a crash of the server would lose the most recent claims.
//!
//! # Connections
//!
//! Each sandbox of a function holds [two](PostgresBuilder::connections) connections, so a thousand
//! sandboxes hold 2,000. By default, PostgreSQL accepts 100 connections from all its clients together. Limit the
//! function's concurrency to half of the free connections, or put a pooler in between. If you pass in your own pool,
//! the store opens these two in addition to the pool's connections. It doesn't borrow the pool's, because handlers hold
//! them while they run, and a completion could time out while it waits for one.
//!
//! With several hosts in the URL (`postgres://app@one,two/shop`), the store finds the one that accepts writes,
//! unless `target_session_attrs` says otherwise. After a fail-over, the next call finds the promoted standby.
//! The hosts share the [time to connect](PostgresBuilder::connect_timeout) equally.
//! `channel_binding=require` is supported.
//!
//! # Time limits
//!
//! The store stops waiting for a statement after a [second](PostgresBuilder::statement_timeout), and
//! closes the connection. While the server waits for a lock, it doesn't notice that the connection is closed. Once it
//! gets the lock, it would apply a claim that the store no longer waits for. That claim would block the key until its
//! lease expires, though no handler runs. So the store sets `statement_timeout` and `lock_timeout` at the server.
//! `?timeouts=` and the builder's methods choose how it sets them. The store reads both limits back on each new
//! connection. It refuses to work without them, or if one is longer than three quarters of its own timeout. The limits
//! apply to locks on the whole table too.
//!
//! A claim that reaches the server late is still applied, if no other delivery has claimed the key by then.
//! Such a late claim never replaces another claim or outcome, and blocks the key only for its lease.
//!
//! # Poolers
//!
//! | pooler or proxy | URL | |
//! |---|---|---|
//! | none | (`?timeouts=startup`) | the default; `?prepared=true` saves the planning |
//! | PgBouncer, Supavisor, PgCat, Odyssey in transaction mode | `?timeouts=transaction` | tested with PgBouncer 1.18 |
//! | Amazon RDS Proxy | `?timeouts=role` | not tested |
//!
//! RDS Proxy pins a session when a statement changes a setting, according to its
//! [manual](https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/rds-proxy-pinning.html).
//!
//! Another client of a pooler may leave its own `search_path` in a session. It never counts: the store looks the table's
//! schema up once, under the default path of its user, and names the schema in every statement. That look-up sets the
//! path in its own transaction, so behind RDS Proxy, name the schema yourself (`?table=SCHEMA.TABLE`).
//!
//! With `role`, set the limits once: `ALTER ROLE app SET statement_timeout = '750ms'` and
//! `ALTER ROLE app SET lock_timeout = '250ms'`. Then the store's statements change no setting.
//! [`run_in`](https://docs.rs/lambda-idempotency/latest/lambda_idempotency/struct.Operation.html#method.run_in) takes an advisory lock, which may pin a proxy's session too.
//!
//! By default, statements are unnamed, because a pooler sends a named statement to any free session. Each process
//! numbers its names from the beginning (`s0`, `s1`, …), so the same name in that session can be another process's
//! statement. With named statements behind a pooler, one function's claims were written to another function's table,
//! and acknowledged. `?prepared=true` makes the store use named statements, so set it only for direct connections. With
//! it, the store refuses to work if the server process that answers isn't the one that accepted the connection, as
//! behind a pooler.
//!
//! PostgreSQL plans an unnamed statement each time, but that takes no extra round trip. This is the cost of a whole run
//! on loopback:
//!
//! | | first run: p50 | server CPU | duplicate: p50 | server CPU |
//! |---|---|---|---|---|
//! | default | 1.90 ms | 0.97 ms | 0.93 ms | 0.42 ms |
//! | `?prepared=true` | 1.13 ms | 0.36 ms | 0.56 ms | 0.12 ms |
//! | `?timeouts=transaction` | 2.35 ms | 1.20 ms | 1.30 ms | 0.51 ms |
//!
//! These are medians of five runs of `cargo run --example store_table --features postgres,redis`, in a build
//! without optimization, on two busy cores shared by the server, the caller and other work. Compare the rows
//! with each other: an idle machine is faster.
//!
//! # Permissions
//!
//! `SELECT`, `INSERT` and `UPDATE` on the table, `DELETE` on it for the sweep, and `SELECT` on its marker.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), lambda_idempotency::Error> {
//! use lambda_idempotency::store::postgres::PostgresStore;
//!
//! let store = PostgresStore::builder("postgres://app:secret@db.internal/shop").build()?;
//! # Ok(())
//! # }
//! ```

mod binding;
mod builder;
mod codec;
mod connections;
mod direct;
mod fault;
mod limits;
mod place;
mod puts;
#[cfg(feature = "admin")]
mod scan;
mod schema;
mod source;
mod statements;
mod sweep;
mod table;
mod tls;
mod transaction;
mod values;

pub use builder::PostgresBuilder;

/// The client and the pool, in the versions that this store accepts.
pub use deadpool_postgres::{self, tokio_postgres};

use std::{fmt, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use sha2::{Digest as _, Sha256};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use self::{
    connections::{Connections, Lent, Patience},
    fault::Fault,
    limits::Limits,
    place::{Place, Places},
    schema::TableName,
    statements::{FOUND, MADE, STANDBY, Statement, Statements},
    values::Value,
};
use lambda_idempotency_core::{
    Error, StoredKey,
    store::{BoxFuture, Put, PutOutcome, Record, Store, StoreError, StoreErrorKind, toolkit::Unreadable},
};

/// The maximum number of times that the store sends one write. It sends a write again if PostgreSQL didn't apply it,
/// although the returned record meets the write's condition.
const MAX_SENT: u8 = 4;

/// The maximum number of times that the store repeats a read whose session ended. If the server ends all sessions at once, the
/// first repetition may get one that's just ending.
const MAX_REPEATED: u8 = 2;

/// Stores records in a PostgreSQL table; see the [module's documentation](self) for its columns.
///
/// Cloning is cheap, and clones share the connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    /// The table's name, as the user wrote it.
    table: TableName,
    places: Places,
    connect_timeout: Duration,
    statement_timeout: Duration,
    limits: Limits,
    /// How long a statement in a user's transaction waits for a row, in PostgreSQL's notation; `None` if it sets no
    /// limit.
    lock_timeout: Option<String>,
    /// Whether statements are prepared.
    prepared: bool,
    /// The location of the database, for errors: empty, or ` in database … at …`.
    place: String,
}

/// Whether a statement may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    /// It may write.
    Write,
    /// It writes nothing.
    Question,
}

/// Shows the configuration, without user and password.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("table", &self.inner.table.plain())
            .field("place", &self.inner.place.trim_start())
            .field("connections", &self.inner.connections.pool.status().max_size)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Creates a store on the table `idempotency`, with default settings. It's for functions that have a pool
    /// already. The store opens its own connections with `pool`'s settings; see [`pool_builder`](Self::pool_builder).
    ///
    /// # Errors
    ///
    /// None with these defaults; [`PostgresBuilder::build`] lists the errors of other settings.
    pub fn new(pool: Pool) -> Result<Self, Error> {
        Self::pool_builder(pool).build()
    }

    /// Configures a store in the database at `url`: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
    ///
    /// Percent-encode all characters in the URL's parts except letters and digits. The main parameters after
    /// the `?` are:
    ///
    /// - `table`: as [`table`](PostgresBuilder::table).
    /// - `sslmode`: `require` (the default, except for loopback and Unix sockets), `prefer` or `disable`.
    /// - `sslrootcert`: a file with the root certificates to trust instead of the system's, such as Amazon
    ///   RDS's.
    /// - `timeouts`: `startup` (the default), [`transaction`](PostgresBuilder::timeouts_per_transaction) or
    ///   [`role`](PostgresBuilder::timeouts_of_role).
    /// - `prepared`: `true` or `false`, as [`prepared_statements`](PostgresBuilder::prepared_statements).
    ///
    /// If TLS is used, the certificate and the host's name are always verified.
    pub fn builder(url: impl Into<String>) -> PostgresBuilder {
        PostgresBuilder::of_url(url.into())
    }

    /// Configures a store that opens its own connections with `pool`'s server, TLS and credentials.
    ///
    /// These [`connections`](PostgresBuilder::connections) come in addition to the pool's, and the pool's hooks don't run
    /// for them. The store doesn't borrow the pool's connections, because handlers hold them while they run. A
    /// completion would time out while it waits for one.
    pub fn pool_builder(pool: Pool) -> PostgresBuilder {
        PostgresBuilder::of_pool(pool)
    }

    /// The table's name.
    pub fn table(&self) -> String {
        self.inner.table.plain()
    }

    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let inner = &*self.inner;
        let values = puts::values(put, key, None).map_err(|fault| inner.error(fault))?;
        let statement: &Choice<'_> = &|statements| statements.of(put);
        let mut patience = inner.patience();
        for _ in 0..MAX_SENT {
            // Don't send a statement if the store would stop waiting for it before the server's limit ends it.
            if !patience.stating.has(inner.limits.statement()) {
                break;
            }
            let rows = inner.run_within(statement, &values, Sends::Write, &mut patience).await?;
            if let Some(written) = inner.written(key, put, &rows)? {
                return Ok(written);
            }
        }
        Err(inner.error(Fault::contended()))
    }

    async fn get(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let inner = &*self.inner;
        let values = [Value::from(key.as_str())];
        let rows = inner.run(&|statements| &statements.read, &values, Sends::Question).await?;
        let row = inner.only(&rows)?;
        inner.refuse_standby(row)?;
        inner.record_in(key, row)
    }
}

/// Chooses one of a table's statements.
type Choice<'c> = dyn Fn(&Statements) -> &Statement + Send + Sync + 'c;

impl Inner {
    /// Sends a statement over a pooled connection.
    async fn run(
        &self,
        statement: &Choice<'_>,
        values: &[Value<'_>],
        sends: Sends,
    ) -> Result<Vec<Row>, StoreError> {
        self.run_within(statement, values, sends, &mut self.patience()).await
    }

    /// Like `run`, within the rest of a call's time.
    async fn run_within(
        &self,
        statement: &Choice<'_>,
        values: &[Value<'_>],
        sends: Sends,
        patience: &mut Patience,
    ) -> Result<Vec<Row>, StoreError> {
        let mut repeats = if sends == Sends::Question { MAX_REPEATED } else { 0 };
        let mut may_look_again = true;
        loop {
            let place = self.place(patience).await?;
            let connection = match self.connection(&place, patience).await {
                Ok(connection) => connection,
                // The table isn't where it was. Look it up again, once.
                Err(_) if may_look_again && self.has_moved(&place) => {
                    may_look_again = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let statement = statement(&place.statements);
            let fault = match self.send(&connection, statement, values, sends, patience).await {
                Ok(rows) => {
                    self.connections.keep(connection);
                    return Ok(rows);
                }
                Err(fault) => fault,
            };
            if fault.ends_connection {
                drop(connection);
            } else {
                self.connections.keep(connection);
            }
            if fault.others_may_have_ended() {
                // The other connections have been idle about as long as this one. They're probably dead too.
                self.connections.drop_idle();
            }
            if fault.is_missing_table() && self.places.forget(&place) && may_look_again {
                may_look_again = false;
                continue;
            }
            // Only a read whose session ended is repeated, over another connection.
            if repeats == 0 || !fault.is_lost() {
                let error = self.error(fault);
                return Err(if sends == Sends::Question { error.maybe_applied(false) } else { error });
            }
            repeats -= 1;
        }
    }

    /// Whether the check of a connection found no table at `place`, so that the table may be in another schema now.
    fn has_moved(&self, place: &Arc<Place>) -> bool {
        !self.places.is_known(place)
    }

    async fn send(
        &self,
        connection: &Lent,
        statement: &Statement,
        values: &[Value<'_>],
        sends: Sends,
        patience: &mut Patience,
    ) -> Result<Vec<Row>, Fault> {
        let stating = &mut patience.stating;
        let values = typed(statement, values);
        let sent = if self.prepared {
            let preparation = connection.prepare_typed_cached(&statement.sql, &statement.types);
            let prepared = match stating.spend(preparation).await {
                Some(Ok(prepared)) => prepared,
                Some(Err(error)) => return Err(Fault::sent(&error).of_question()),
                None => return Err(Fault::timed_out().of_question()),
            };
            // Don't send a write if a slow preparation left too little time: the store would stop waiting for the write
            // before the server's limit ends it.
            if sends == Sends::Write && !stating.has(self.limits.statement()) {
                return Err(Fault::prepared_too_late());
            }
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
            let sent = async { connection.query(&prepared, &values).await };
            stating.spend(self.limits.hold(connection, sent)).await
        } else {
            let sent = connection.query_typed(&statement.sql, &values);
            stating.spend(self.limits.hold(connection, sent)).await
        };
        sent.unwrap_or_else(|| Err(Fault::timed_out()))
    }

    /// Returns the result of `put` from its statement's answer; `None` means to send the write again.
    fn written(&self, key: &StoredKey, put: &Put, rows: &[Row]) -> Result<Option<PutOutcome>, StoreError> {
        let row = self.only(rows)?;
        if row.try_get(MADE).map_err(|_| self.odd_answer())? {
            return Ok(Some(PutOutcome::Applied));
        }
        let record = self.record_in(key, row)?;
        // The write wasn't applied. If the record in the statement's snapshot meets the write's condition, another
        // transaction changed the record after the snapshot.
        let stands_in_the_way = put.apply_to(record.as_ref()).is_none();
        Ok(stands_in_the_way.then_some(PutOutcome::Refused(record)))
    }

    /// Refuses the answer of a standby: a standby's records may be old, and it doesn't have the primary's locks.
    fn refuse_standby(&self, row: &Row) -> Result<(), StoreError> {
        if row.try_get(STANDBY).unwrap_or(true) {
            // After a fail-over, the address leads to another server, so drop the old connections.
            self.connections.drop_idle();
            return Err(self.error(Fault::standby()));
        }
        Ok(())
    }

    fn record_in(&self, key: &StoredKey, row: &Row) -> Result<Option<Record>, StoreError> {
        if !row.try_get(FOUND).map_err(|_| self.odd_answer())? {
            return Ok(None);
        }
        self.decode(key, row).map(Some)
    }

    fn decode(&self, key: &StoredKey, row: &Row) -> Result<Record, StoreError> {
        codec::decode(row).map_err(|Unreadable { field, why }| {
            let (table, place) = (self.table.plain(), &self.place);
            StoreError::new(
                StoreErrorKind::Corrupt,
                format!(
                    "the record `{key}` in table `{table}`{place} can't be read: `{}` {why}",
                    field.name()
                ),
            )
        })
    }

    fn only<'r>(&self, rows: &'r [Row]) -> Result<&'r Row, StoreError> {
        match rows {
            [row] => Ok(row),
            _ => Err(self.odd_answer()),
        }
    }

    /// The error for an answer that doesn't match the statement. Only a server that isn't PostgreSQL gives such an
    /// answer.
    fn odd_answer(&self) -> StoreError {
        let (table, place) = (self.table.plain(), &self.place);
        let message = format!("the response about table `{table}`{place} isn't from PostgreSQL");
        StoreError::new(StoreErrorKind::Unavailable, message).maybe_applied(true)
    }

    fn error(&self, fault: Fault) -> StoreError {
        fault.into_error(&self.table.plain(), &self.place)
    }
}

/// Pairs `values` with the types of the statement's parameters.
fn typed<'v>(statement: &Statement, values: &'v [Value<'v>]) -> Vec<(&'v (dyn ToSql + Sync), Type)> {
    values.iter().map(|value| value as _).zip(statement.types.iter().cloned()).collect()
}

/// Returns the number of the advisory lock for `name`.
fn advisory_key(name: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(b"lambda-idempotency\0");
    hash.update(name.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest[..8].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

impl Store for PostgresStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.put_now(key, put))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get(key))
    }

    fn close_connections(&self) {
        self.inner.connections.drop_idle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes that run an older version of the library must take the same locks, so these numbers must never change.
    /// A separate program computed them: they're the first 8 bytes of SHA-256 digests.
    #[test]
    fn advisory_locks_keep_their_numbers() {
        assert_eq!(advisory_key("idempotency"), 2_775_254_125_054_146_057);
        assert_eq!(advisory_key("orders.records"), 3_795_613_056_718_104_245);
    }
}
