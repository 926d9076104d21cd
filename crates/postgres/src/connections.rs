//! Keeps a few connections. It checks those that may have died unnoticed, and replaces the dead ones.
//!
//! Lambda freezes the sandbox between two invocations. If the server or a network device closes a connection during the
//! freeze, the store notices only when a statement gets no answer. Then the store can't know whether the statement was
//! applied. So a connection that hasn't answered for a while first gets a harmless query.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_postgres::ObjectId;
use tokio_postgres::Row;

use super::{
    Inner, MAX_REPEATED,
    direct::process_at_connect,
    fault::Fault,
    limits::Timeouts,
    place::Place,
    source::{Object, Pool},
    statements::{LOCK_LIMIT, PROCESS, SCHEMA_VERSION, STATEMENT_LIMIT},
};
use lambda_idempotency_core::store::{
    StoreError,
    toolkit::{self, LastAnswer, Stopwatch, TOO_IDLE},
};

/// The timeout for the check of an old connection. A connection that a network device has forgotten never answers. A
/// third of the time for connecting: a new connection still has the rest.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// How many connections a call tries before it gives up, if each turns out to be dead or closed. After the first dead
/// one, the store drops all other connections that aren't in use.
const ATTEMPTS: usize = 3;

pub(super) struct Connections {
    pub(super) pool: Pool,
    pub(super) check_after: Duration,
    /// When each connection last answered. A connection that's missing here needs a check.
    answered: Mutex<HashMap<ObjectId, LastAnswer>>,
}

/// A connection in use. Dropping this value closes the connection; only [`release`](Self::release) returns it to the
/// pool. So if a call is dropped midway, its connection, which may never answer, doesn't return to the pool.
pub(super) struct Lent(Option<Object>);

impl Lent {
    /// Returns the connection to the pool. The next call that gets the connection checks it first, unless `keep` has
    /// recorded an answer.
    pub(super) fn release(mut self) {
        drop(self.0.take());
    }

    /// Whether the connection has been used before.
    fn is_old(&self) -> bool {
        Object::metrics(self).recycle_count > 0
    }
}

impl Deref for Lent {
    type Target = Object;

    fn deref(&self) -> &Object {
        match &self.0 {
            Some(connection) => connection,
            None => unreachable!("`release` consumes the value, so it always has a connection"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Takes the connection out of the pool, which makes room for a new one.
        drop(self.0.take().map(Object::take));
    }
}

/// The time that a call has left.
pub(super) struct Patience {
    /// The time to get a connection: to wait for a free one, to connect, and to check.
    pub(super) connecting: Allowance,
    /// The time for the statement: to prepare, send and repeat it.
    pub(super) stating: Allowance,
}

/// A time budget. Each wait uses some of it.
pub(super) struct Allowance(Duration);

impl Allowance {
    /// Waits for `future`, but no longer than `limit` or the rest of the budget.
    pub(super) async fn within<T>(&mut self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let watch = Stopwatch::start();
        let answer = toolkit::within(limit.min(self.0), future).await;
        self.0 = self.0.saturating_sub(watch.read());
        answer
    }

    /// Whether at least `time` is left.
    pub(super) fn has(&self, time: Duration) -> bool {
        self.0 >= time
    }

    /// Waits for `future`, but no longer than the rest of the budget.
    pub(super) async fn spend<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        self.within(Duration::MAX, future).await
    }
}

impl Connections {
    pub(super) fn new(pool: Pool, check_after: Duration) -> Self {
        Self { pool, check_after, answered: Mutex::default() }
    }

    /// Records that the connection has just answered a statement, and returns it to the pool.
    pub(super) fn keep(&self, connection: Lent) {
        let mut answered = self.answered();
        // Entries of connections that the pool has closed.
        if answered.len() > 2 * self.pool.status().max_size {
            answered.retain(|_, answer| answer.idle_for() <= TOO_IDLE);
        }
        answered.insert(Object::id(&connection), LastAnswer::now());
        // Release only now: another call may take the connection at once, and asks when it last answered.
        drop(answered);
        connection.release();
    }

    /// Returns for how long the connection has been idle; `None` if it hasn't answered yet. After this call, it counts
    /// as unchecked until it answers again.
    fn idle_for(&self, connection: &Object) -> Option<Duration> {
        self.answered().remove(&Object::id(connection)).map(LastAnswer::idle_for)
    }

    /// Drops all connections that aren't in use.
    pub(super) fn drop_idle(&self) {
        let _removed = self.pool.retain(|_, _| false);
        self.answered().clear();
    }

    fn answered(&self) -> MutexGuard<'_, HashMap<ObjectId, LastAnswer>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns the time for a whole call.
    pub(super) const fn patience(&self) -> Patience {
        Patience { connecting: Allowance(self.connect_timeout), stating: Allowance(self.statement_timeout) }
    }

    /// Returns the table's place. The first call looks the table's schema up, over one of the store's connections.
    pub(super) async fn place(&self, patience: &mut Patience) -> Result<Arc<Place>, StoreError> {
        if let Some(place) = self.places.known() {
            return Ok(place);
        }
        // Boxed, because only the first call needs it.
        Box::pin(self.looked_up(patience)).await
    }

    async fn looked_up(&self, patience: &mut Patience) -> Result<Arc<Place>, StoreError> {
        let mut repeats = MAX_REPEATED;
        loop {
            let connection = self.any_connection(patience).await.map_err(|fault| self.error(fault))?;
            let found = patience.connecting.spend(self.find(&connection)).await;
            match found.unwrap_or_else(|| Err(Fault::not_reached())) {
                Ok(found) => {
                    // The look-up changes a setting, so a proxy may have pinned the session. Closing it ends that.
                    if self.limits.timeouts != Timeouts::Role {
                        connection.release();
                    }
                    return found.place.ok_or_else(|| self.error(Fault::missing_table()));
                }
                // A connection that died while it was idle. The look-up only reads.
                Err(fault) if fault.is_lost() && repeats > 0 => {
                    repeats -= 1;
                    self.connections.drop_idle();
                }
                Err(fault) => return Err(self.error(fault.of_question())),
            }
        }
    }

    /// Gets a live connection to a server that limits statements and has the right version of the table at `place`.
    pub(super) async fn connection(
        &self,
        place: &Arc<Place>,
        patience: &mut Patience,
    ) -> Result<Lent, StoreError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let (connection, idle_for) =
                self.used_connection(patience).await.map_err(|fault| self.error(fault))?;
            if idle_for.is_some_and(|idle_for| idle_for < self.connections.check_after) {
                // The server may have closed the connection while the sandbox was frozen, which only the operating
                // system knows so far. So yield twice, to let the connection's own task find out. During the first
                // yield, the runtime asks the operating system. During the second, the task runs.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if !connection.is_closed() {
                    return Ok(connection);
                }
                // If the server restarted, the other idle connections are closed too, and the store may not have
                // noticed that yet.
                self.connections.drop_idle();
                continue;
            }
            match self.check(&connection, place, patience).await {
                Ok(Some(version)) => {
                    if let Err(error) = self.judge_version(version) {
                        connection.release();
                        return Err(error);
                    }
                    return Ok(connection);
                }
                Ok(None) => {
                    connection.release();
                    self.places.forget(place);
                    return Err(self.error(Fault::missing_table()));
                }
                Err(fault) => {
                    // A new session can end too, if the server ends all at once.
                    let may_try_another = connection.is_old() || fault.has_ended();
                    let is_dead = fault.ends_connection;
                    // The check only reads, so its failure is definite.
                    let error = self.error(fault).maybe_applied(false);
                    if !is_dead {
                        connection.release();
                        return Err(error);
                    }
                    if !may_try_another {
                        return Err(error);
                    }
                    // The other connections have been idle about as long as this one. They're probably dead too, so
                    // drop them.
                    self.connections.drop_idle();
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| self.error(Fault::closed())))
    }

    /// Gets a connection from the pool, and for how long it has been idle: `None` if it hasn't answered yet. Closes the
    /// connections that were idle for too long.
    async fn used_connection(&self, patience: &mut Patience) -> Result<(Lent, Option<Duration>), Fault> {
        loop {
            let connection = self.any_connection(patience).await?;
            let idle_for = self.connections.idle_for(&connection);
            if idle_for.is_none_or(|idle_for| idle_for <= TOO_IDLE) {
                return Ok((connection, idle_for));
            }
        }
    }

    /// Gets a connection from the pool, without checking it.
    pub(super) async fn any_connection(&self, patience: &mut Patience) -> Result<Lent, Fault> {
        let pool = &self.connections.pool;
        match patience.connecting.spend(pool.get()).await {
            Some(Ok(connection)) => Ok(Lent(Some(connection))),
            Some(Err(error)) => Err(Fault::connecting(&error)),
            None => {
                let status = pool.status();
                Err(if status.size >= status.max_size { Fault::none_free() } else { Fault::not_reached() })
            }
        }
    }

    /// Queries the schema's version, and checks the session. Returns `None` if there's no table.
    async fn check(
        &self,
        connection: &Lent,
        place: &Place,
        patience: &mut Patience,
    ) -> Result<Option<i64>, Fault> {
        let limit = if connection.is_old() { CHECK_TIMEOUT } else { Duration::MAX };
        let question = connection.query_typed(&place.statements.session.sql, &[]);
        let sent = patience.connecting.within(limit, self.limits.hold(connection, question)).await;
        match sent.unwrap_or_else(|| Err(Fault::timed_out())) {
            Ok(rows) => self.judge_session(connection, &rows).await,
            Err(fault) if fault.is_missing_table() => Ok(None),
            Err(fault) => Err(fault.of_question()),
        }
    }

    async fn judge_session(&self, connection: &Lent, rows: &[Row]) -> Result<Option<i64>, Fault> {
        let Some(row) = rows.first() else { return Ok(None) };
        let number = |column| row.try_get::<_, i64>(column).unwrap_or_default();
        self.limits.judge(number(STATEMENT_LIMIT), number(LOCK_LIMIT))?;
        if self.prepared {
            let process = process_at_connect(connection).await;
            if process.is_none() || row.try_get(PROCESS).ok() != process {
                return Err(Fault::not_direct());
            }
        }
        Ok(row.try_get(SCHEMA_VERSION).ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_budgets_allow_exactly_their_remaining_time() {
        let second = Duration::from_secs(1);
        let budget = Allowance(second);
        assert!(budget.has(Duration::ZERO) && budget.has(second));
        assert!(!budget.has(second + Duration::from_nanos(1)));
    }
}
