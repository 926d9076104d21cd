//! The connections: few, looked at again when they may have gone unnoticed, and replaced when they have.
//!
//! Between two invocations, the sandbox is frozen. What the server or a network device in between closes meanwhile is
//! found out only by a statement that gets no answer, and then nobody knows whether it was made. So a connection that has
//! not answered for a while is asked something harmless first.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_postgres::ObjectId;
use tokio_postgres::Row;

use super::{
    Inner,
    direct::process_at_connect,
    fault::Fault,
    source::{Object, Pool},
    statements::{LOCK_LIMIT, PROCESS, SCHEMA_VERSION, STATEMENT_LIMIT},
};
use crate::{
    store::StoreError,
    time::{self, LastAnswer, Stopwatch},
};

/// How long an old connection may take to answer the question whether it is alive. One that a network device has
/// forgotten never does.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often another connection is tried where one turns out to be dead. After the first, there are no old ones left.
const ATTEMPTS: usize = 3;

pub(super) struct Connections {
    pub(super) pool: Pool,
    pub(super) check_after: Duration,
    /// When each connection has answered last. What is not here is to be checked.
    answered: Mutex<HashMap<ObjectId, LastAnswer>>,
}

/// A connection in use. Dropping it closes it; only [`release`](Self::release) gives it back to the pool. So a call that
/// is dropped in the middle never leaves a connection behind that still owes an answer, or never gives one.
pub(super) struct Lent(Option<Object>);

impl Lent {
    /// Gives the connection back to the pool. Its next user checks it first.
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
            None => unreachable!("giving the connection back ends the loan"),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Frees the place in the pool for a new connection.
        drop(self.0.take().map(Object::take));
    }
}

/// What a call has left of its time.
pub(super) struct Patience {
    /// For the connection: waiting for a free one, making one, checking one.
    pub(super) connecting: Allowance,
    /// For the statement: preparing, sending and repeating it.
    pub(super) stating: Allowance,
}

/// A budget of time. Each wait uses some of it up.
pub(super) struct Allowance(Duration);

impl Allowance {
    /// Waits for `future`, but no longer than `limit`, and no longer than what is left.
    pub(super) async fn within<T>(&mut self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let watch = Stopwatch::start();
        let answer = time::within(limit.min(self.0), future).await;
        self.0 = self.0.saturating_sub(watch.read());
        answer
    }

    /// Whether so much is left.
    pub(super) fn has(&self, time: Duration) -> bool {
        self.0 >= time
    }

    /// Waits for `future`, but no longer than what is left.
    pub(super) async fn spend<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        self.within(Duration::MAX, future).await
    }
}

impl Connections {
    pub(super) fn new(pool: Pool, check_after: Duration) -> Self {
        Self { pool, check_after, answered: Mutex::default() }
    }

    /// The connection has answered, and goes back to the pool.
    pub(super) fn keep(&self, connection: Lent) {
        let mut answered = self.answered();
        answered.retain(|_, answer| answer.idle_for() < self.check_after);
        answered.insert(Object::id(&connection), LastAnswer::now());
        // Before the connection, which its next user may find at once.
        drop(answered);
        connection.release();
    }

    /// Whether the connection needs no check. Until it answers again, it does.
    fn has_answered_lately(&self, connection: &Object) -> bool {
        let answer = self.answered().remove(&Object::id(connection));
        answer.is_some_and(|answer| answer.idle_for() < self.check_after)
    }

    fn answered(&self) -> MutexGuard<'_, HashMap<ObjectId, LastAnswer>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The time of a whole call.
    pub(super) const fn patience(&self) -> Patience {
        Patience { connecting: Allowance(self.connect_timeout), stating: Allowance(self.statement_timeout) }
    }

    /// A connection that answers, to a server that limits statements, with a table of the right version.
    pub(super) async fn connection(&self, patience: &mut Patience) -> Result<Lent, StoreError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let connection = self.any_connection(patience).await.map_err(|fault| self.error(fault))?;
            if self.connections.has_answered_lately(&connection) {
                // The connection's own task gets its turn first, so that it can find out what the operating system has known
                // since the sandbox slept: that the server has closed it. One turn asks the operating system, and one tells
                // the task.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if !connection.is_closed() {
                    return Ok(connection);
                }
                continue;
            }
            match self.check(&connection, patience).await {
                Ok(Some(version)) => {
                    if let Err(error) = self.judge_version(version) {
                        connection.release();
                        return Err(error);
                    }
                    return Ok(connection);
                }
                Ok(None) => {
                    connection.release();
                    return Err(self.error(Fault::missing_table()));
                }
                Err(fault) => {
                    let (is_old, is_dead) = (connection.is_old(), fault.ends_connection);
                    // Nothing was sent but a question.
                    let error = self.error(fault).maybe_applied(false);
                    if !is_dead {
                        connection.release();
                        return Err(error);
                    }
                    if !is_old {
                        return Err(error);
                    }
                    // The others have been idle for as long.
                    let _removed = self.connections.pool.retain(|_, _| false);
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or_else(|| self.error(Fault::none_free())))
    }

    /// A connection as the pool gives it.
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

    /// Asks for the schema's version, and looks at the session that answers. `None` if there is no table.
    async fn check(&self, connection: &Lent, patience: &mut Patience) -> Result<Option<i64>, Fault> {
        let limit = if connection.is_old() { CHECK_TIMEOUT } else { Duration::MAX };
        let question = connection.query_typed(&self.statements.session.sql, &[]);
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
