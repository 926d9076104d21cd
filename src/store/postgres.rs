//! The PostgreSQL store.
//!
//! One row per record, one conditional statement per transition, which answers with the row that stood in the way: a
//! first run costs two statements, a duplicate one, a takeover two and its completion. A response is kept in the row,
//! whatever its size.
//!
//! # The table
//!
//! `schema.sql` makes it: by [`create_table`](PostgresStore::create_table), by `idempotency table create`, or in migrations
//! of your own ([`schema_sql`](PostgresStore::schema_sql)). Beside it stands a table of one row, the marker, which says of
//! what version the schema is. The library reads it on every new connection, and refuses to work with a version that it
//! does not know.
//!
//! | column | type | in | what it has |
//! |---|---|---|---|
//! | `id` | text | all | the primary key: the stored key, `<function>/<operation>#<64 hex digits>` |
//! | `version` | bigint | all | `2`, the version of this format |
//! | `status` | text | all | `STARTED`, `COMPLETED`, `FAILED` or `RELEASED` |
//! | `owner` | bytea | all | the claim's owner: 16 bytes |
//! | `generation` | numeric(20) | all | the claim's generation |
//! | `attempt` | bigint | all | how many claims the operation has had |
//! | `fingerprint` | text | all | `1:` and 64 lower-case hex digits |
//! | `lock_acquired_at` | numeric(20) | all | when the claim was made; ms since the Unix epoch |
//! | `lease_until` | numeric(20) | STARTED | until when the claim stands; ms since the Unix epoch |
//! | `expires_at` | numeric(20) | all, but for a STARTED one that may run at most once | until when the record counts; ms since the Unix epoch. NULL is forever |
//! | `interrupted` | boolean | all | whether an earlier attempt of this operation ended without an answer |
//! | `request_id` | bytea | all, if known | the invocation that made the claim, in UTF-8 |
//! | `response_encoding` | text | COMPLETED, FAILED | `identity` or `deflate` (RFC 1951); `omitted`: not kept |
//! | `response_length` | numeric(20) | COMPLETED, FAILED, unless omitted | the response's length in bytes, before it was encoded |
//! | `response_sha256` | bytea | COMPLETED, FAILED, unless omitted | the response's SHA-256, before it was encoded |
//! | `response` | bytea | COMPLETED, FAILED, unless omitted | the response, encoded |
//! | `trace_id`, `response_codec`, `response_key_id` | text | none | reserved for a later version |
//!
//! A row that lacks one of its columns' values, or has one of another state, cannot be read: it is corrupt, never absent.
//! So is one with a `response_codec` or a `response_key_id`: it takes a newer version of the library.
//!
//! # What the server has to be
//!
//! PostgreSQL 12 or later, and its primary: a standby takes no writes, and its reads may lag behind. What a fail-over to a
//! standby that is replicated to asynchronously loses, this store loses too. `synchronous_commit` must not be off, or a
//! crash of the server takes back the last moments' claims.
//!
//! Old rows stay until [`sweep`](PostgresStore::sweep) deletes them: call it once in a while. It never deletes a row
//! without an expiry.
//!
//! # Connections
//!
//! Each sandbox of a function holds [two](PostgresStoreBuilder::connections), so that a thousand sandboxes hold 2,000, and
//! PostgreSQL takes 100 by default, of all its clients together. Limit the function's concurrency to half of the free
//! connections, or put a pooler in between. On a pool of yours, the store has these two besides the pool's: handlers hold the
//! pool's while they work, and a completion that waits behind them comes too late.
//!
//! With several hosts in the URL (`postgres://app@one,two/shop`), the store finds the one that takes writes, unless
//! `target_session_attrs` says otherwise. After a fail-over, the next call finds the standby that was promoted. Each host has
//! its share of the [time to connect](PostgresStoreBuilder::connect_timeout). `channel_binding=require` is supported.
//!
//! # Time limits
//!
//! The store stops waiting for a statement after a [second](PostgresStoreBuilder::statement_timeout), and closes the
//! connection. The server doesn't notice while it waits for a lock, and would apply a claim that was given up when the lock
//! is free: the key is then blocked until the claim's lease ends, though no handler runs. So `statement_timeout` and
//! `lock_timeout` are set at the server, as [`Timeouts`] or `?timeouts=` says. The store reads them back on each new
//! connection, and refuses to work without them. They cover locks on the whole table too.
//!
//! A claim that the network delivers late is applied all the same, if no other delivery has claimed the key by then. It never
//! replaces another's claim or outcome, and it blocks the key for its lease at most.
//!
//! # Poolers
//!
//! | between | URL | |
//! |---|---|---|
//! | nothing | (`?timeouts=startup`) | the default; `?prepared=true` saves the planning |
//! | PgBouncer, Supavisor, PgCat, Odyssey in transaction mode | `?timeouts=transaction` | tested with PgBouncer 1.18 |
//! | Amazon RDS Proxy | `?timeouts=role` | its [documentation](https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/rds-proxy-pinning.html) was read, nothing was run: a statement that sets something pins its session |
//!
//! With `role`, set the limits once: `ALTER ROLE app SET statement_timeout = '750ms'` and
//! `ALTER ROLE app SET lock_timeout = '250ms'`. No statement of the store sets anything then.
//! [`run_in`](crate::Operation::run_in) takes an advisory lock, which may pin a proxy's session too.
//!
//! Statements have no names, since a pooler sends a name to any session that is free. Each process counts its names from the
//! beginning, so that one function's claims went into another's table and were acknowledged. `?prepared=true` is for direct
//! connections, and refused where another server process answers than the one that took the connection.
//!
//! An unnamed statement is planned each time, still in one round trip. The price, for a whole run on loopback:
//!
//! | | first run: p50 | server CPU | duplicate: p50 | server CPU |
//! |---|---|---|---|---|
//! | default | 1.90 ms | 0.97 ms | 0.93 ms | 0.42 ms |
//! | `?prepared=true` | 1.13 ms | 0.36 ms | 0.56 ms | 0.12 ms |
//! | `?timeouts=transaction` | 2.35 ms | 1.20 ms | 1.30 ms | 0.51 ms |
//!
//! Medians of five runs of `cargo run --example store_table --features postgres,redis`, in a build without optimization, on
//! two busy cores that the server, the caller and other work shared. Compare the rows with each other: an idle machine is
//! faster.
//!
//! # Permissions
//!
//! `SELECT`, `INSERT`, `UPDATE` and, for the sweep, `DELETE` on the table, `SELECT` on its marker.
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
mod scan;
mod source;
mod statements;
mod sweep;
mod table;
mod tls;
mod transaction;
mod values;
mod writes;

pub use builder::PostgresStoreBuilder;
pub use limits::Timeouts;
pub use scan::{ScanPage, ScanPosition};
pub use table::{TableCreation, TableProblem};
pub use transaction::{Looked, PostgresTransaction};

/// The client and the pool, in the versions that this store takes them in.
pub use deadpool_postgres::{self, tokio_postgres};

use std::{fmt, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use sha2::{Digest as _, Sha256};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use self::{
    codec::Unreadable,
    connections::{Connections, Lent, Patience},
    fault::Fault,
    limits::Limits,
    statements::{FOUND, MADE, STANDBY, Statement, Statements},
    table::TableName,
    values::Value,
    writes::Draft,
};
use crate::{
    error::Error,
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{Store, StoreError, StoreErrorKind, Write, Written},
};

/// How often a write is sent again that was not made, though the record that it was shown did not stand in its way.
const MAX_SENT: u8 = 4;

/// Records in a PostgreSQL table; see the [module's documentation](self) for its columns.
///
/// Cloning is cheap, and clones share the connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    connections: Connections,
    table: TableName,
    statements: Statements,
    connect_timeout: Duration,
    statement_timeout: Duration,
    limits: Limits,
    /// The statements for a transaction of the user's, and their wait for a row as PostgreSQL reads it, if they limit it.
    in_transaction: Statements,
    lock_timeout: Option<String>,
    /// Whether statements are prepared.
    prepared: bool,
    /// Where the database is, for errors: empty, or ` in database … at …`.
    place: String,
}

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    /// It may write.
    Write,
    /// It writes nothing.
    Question,
}

/// Shows the configuration, without the user and the password.
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
    /// A store on the table `idempotency`, with its own connections of the kind that `pool` makes, and defaults for the rest:
    /// for functions that have a pool already. See [`PostgresStoreBuilder::of_pool`].
    ///
    /// # Errors
    ///
    /// None that the defaults could cause; see [`PostgresStoreBuilder::build`].
    pub fn new(pool: Pool) -> Result<Self, Error> {
        PostgresStoreBuilder::of_pool(pool).build()
    }

    /// A store in the database at `url`, to be configured: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
    ///
    /// What stands in a URL must be percent-encoded where it is not of letters and digits. Of the parameters behind a `?`,
    /// these matter most: `table`, as [`table`](PostgresStoreBuilder::table); `sslmode`, `require` (the default, but for
    /// loopback and Unix sockets), `prefer` or `disable`; `sslrootcert`, a file with the root certificates to trust in
    /// place of the system's, such as Amazon RDS's; `timeouts`, `startup`, `transaction` or `role`, as [`Timeouts`] says;
    /// `prepared`, `true` or `false`, as [`prepared_statements`](PostgresStoreBuilder::prepared_statements). The certificate
    /// and the host's name are verified in every mode.
    pub fn builder(url: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder::of_url(url.into())
    }

    /// The table's name.
    pub fn table(&self) -> String {
        self.inner.table.plain()
    }

    async fn apply_now(&self, key: &StoredKey, write: &Write) -> Result<Written, StoreError> {
        let inner = &*self.inner;
        let draft = Draft::of(write).map_err(|fault| inner.error(fault))?;
        let (statement, values) = (inner.statements.of(write), draft.values(key, None, write));
        let mut patience = inner.patience();
        for _ in 0..MAX_SENT {
            // The server has to end the statement before the store gives it up.
            if !patience.stating.has(inner.limits.statement()) {
                break;
            }
            let rows = inner.run_within(statement, &values, Sends::Write, &mut patience).await?;
            if let Some(written) = inner.written(key, write, &rows)? {
                return Ok(written);
            }
        }
        Err(inner.error(Fault::contended()))
    }

    async fn get(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let inner = &*self.inner;
        let values = [Value::Text(key.as_str())];
        let rows = inner.run(&inner.statements.read, &values, Sends::Question).await?;
        let row = inner.only(&rows)?;
        if row.try_get(STANDBY).unwrap_or(true) {
            // The address leads to another server by now, or will.
            let _removed = inner.connections.pool.retain(|_, _| false);
            return Err(inner.error(Fault::standby()));
        }
        inner.record_in(key, row)
    }
}

impl Inner {
    /// Sends `statement` over a connection of the pool.
    async fn run(
        &self,
        statement: &Statement,
        values: &[Value<'_>],
        sends: Sends,
    ) -> Result<Vec<Row>, StoreError> {
        self.run_within(statement, values, sends, &mut self.patience()).await
    }

    /// The same, as part of a call that has this much time left.
    async fn run_within(
        &self,
        statement: &Statement,
        values: &[Value<'_>],
        sends: Sends,
        patience: &mut Patience,
    ) -> Result<Vec<Row>, StoreError> {
        let mut may_repeat = sends == Sends::Question;
        loop {
            let connection = self.connection(patience).await?;
            let fault = match self.send(&connection, statement, values, patience).await {
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
            // A question that was lost on the way is put again, over another connection.
            if !(may_repeat && fault.is_lost()) {
                let error = self.error(fault);
                return Err(if sends == Sends::Question { error.maybe_applied(false) } else { error });
            }
            may_repeat = false;
        }
    }

    async fn send(
        &self,
        connection: &Lent,
        statement: &Statement,
        values: &[Value<'_>],
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
            let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|(value, _)| *value).collect();
            let sent = async { connection.query(&prepared, &values).await };
            stating.spend(self.limits.hold(connection, sent)).await
        } else {
            let sent = connection.query_typed(&statement.sql, &values);
            stating.spend(self.limits.hold(connection, sent)).await
        };
        sent.unwrap_or_else(|| Err(Fault::timed_out()))
    }

    /// What became of `write`, as its statement answered; `None` if it is to be sent again.
    fn written(&self, key: &StoredKey, write: &Write, rows: &[Row]) -> Result<Option<Written>, StoreError> {
        let row = self.only(rows)?;
        if row.try_get(MADE).map_err(|_| self.odd_answer())? {
            return Ok(Some(Written::Applied));
        }
        let record = self.record_in(key, row)?;
        // If what the snapshot shows does not stand in the way, what does has come since.
        let stands_in_the_way = write.apply_to(record.as_ref()).is_none();
        Ok(stands_in_the_way.then_some(Written::Refused(record)))
    }

    fn record_in(&self, key: &StoredKey, row: &Row) -> Result<Option<Record>, StoreError> {
        if !row.try_get(FOUND).map_err(|_| self.odd_answer())? {
            return Ok(None);
        }
        self.decode(key, row).map(Some)
    }

    fn decode(&self, key: &StoredKey, row: &Row) -> Result<Record, StoreError> {
        codec::decode(row).map_err(|Unreadable { column, why }| {
            let (table, place) = (self.table.plain(), &self.place);
            StoreError::new(
                StoreErrorKind::Corrupt,
                format!("the record `{key}` in table `{table}`{place} cannot be read: `{column}` {why}"),
            )
        })
    }

    fn only<'r>(&self, rows: &'r [Row]) -> Result<&'r Row, StoreError> {
        match rows {
            [row] => Ok(row),
            _ => Err(self.odd_answer()),
        }
    }

    /// An answer in another form than the statement's: what sent it is no PostgreSQL.
    fn odd_answer(&self) -> StoreError {
        let (table, place) = (self.table.plain(), &self.place);
        let message = format!("the answer about table `{table}`{place} is not one of PostgreSQL");
        StoreError::new(StoreErrorKind::Unavailable, message).maybe_applied(true)
    }

    fn error(&self, fault: Fault) -> StoreError {
        fault.into_error(&self.table.plain(), &self.place)
    }
}

/// `values` with the types that `statement` gives them.
fn typed<'v>(statement: &Statement, values: &'v [Value<'v>]) -> Vec<(&'v (dyn ToSql + Sync), Type)> {
    values.iter().map(|value| value as _).zip(statement.types.iter().cloned()).collect()
}

/// The number of the advisory lock on `name`.
fn advisory_key(name: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(b"lambda-idempotency\0");
    hash.update(name.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest[..8].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

impl Store for PostgresStore {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<Written, StoreError>> {
        Box::pin(self.apply_now(key, write))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get(key))
    }
}
