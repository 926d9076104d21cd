//! The connections: few, looked at again when they may have gone unnoticed, and replaced when they have.
//!
//! Between two invocations, the sandbox is frozen. What the server or a network device in between closes meanwhile is
//! found out only by a statement that gets no answer, and then nobody knows whether it was made. So a connection that has
//! not answered for a while is asked something harmless first.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_postgres::{Object, ObjectId, Pool};

use super::{Inner, fault::Fault, statements::Statement};
use crate::{
    store::StoreError,
    time::{self, Clock as _, SystemClock, Timestamp},
};

/// How long an old connection may take to answer the question whether it is alive. One that a network device has
/// forgotten never does.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often another connection is tried where one turns out to be dead. After the first, there are no old ones left.
const ATTEMPTS: usize = 3;

pub(super) struct Connections {
    pub(super) pool: Pool,
    pub(super) check_after: Duration,
    /// When each connection has answered last, by the clock on the wall: a monotonic one need not go on in a sandbox that
    /// is frozen. What is not here is to be checked.
    answered: Mutex<HashMap<ObjectId, Timestamp>>,
}

impl Connections {
    pub(super) fn new(pool: Pool, check_after: Duration) -> Self {
        Self { pool, check_after, answered: Mutex::default() }
    }

    /// The connection has answered, and goes back to the pool.
    pub(super) fn keep(&self, connection: Object) {
        let now = SystemClock.now();
        let mut answered = self.answered();
        answered.retain(|_, at| at.until(now) < self.check_after);
        answered.insert(Object::id(&connection), now);
        // Before the connection, which its next user may find at once.
        drop(answered);
        drop(connection);
    }

    /// The connection is closed.
    pub(super) fn discard(connection: Object) {
        drop(Object::take(connection));
    }

    /// Whether the connection needs no check. Until it answers again, it does: if the statement that it is taken for is
    /// given up, it may be at work on that one for good.
    fn has_answered_lately(&self, connection: &Object) -> bool {
        let now = SystemClock.now();
        let at = self.answered().remove(&Object::id(connection));
        at.is_some_and(|at| at.until(now) < self.check_after)
    }

    fn answered(&self) -> MutexGuard<'_, HashMap<ObjectId, Timestamp>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A connection that answers, to a server with a table of the right version. If `next` is given, and statements are
    /// prepared, it is prepared on the way.
    pub(super) async fn connection(&self, next: Option<&Statement>) -> Result<Object, StoreError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let connection = self.any_connection().await.map_err(|fault| self.error(fault))?;
            if self.connections.has_answered_lately(&connection) {
                // The connection's own task gets its turn first, so that it can find out what the operating system has known
                // since the sandbox slept: that the server has closed it. One turn asks the operating system, and one tells
                // the task.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                if !connection.is_closed() {
                    return Ok(connection);
                }
                Connections::discard(connection);
                continue;
            }
            match self.check(&connection, next).await {
                Ok(Some(version)) => {
                    self.judge_version(version)?;
                    return Ok(connection);
                }
                Ok(None) => return Err(self.error(Fault::missing_table())),
                Err(fault) => {
                    let is_old = is_old(&connection);
                    let is_dead = fault.ends_connection;
                    if is_dead {
                        Connections::discard(connection);
                    }
                    // Nothing was sent but a question.
                    let error = self.error(fault).maybe_applied(false);
                    if !(is_dead && is_old) {
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
    pub(super) async fn any_connection(&self) -> Result<Object, Fault> {
        let pool = &self.connections.pool;
        match time::within(self.connect_timeout, pool.get()).await {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(error)) => Err(Fault::connecting(&error)),
            None => {
                let status = pool.status();
                Err(if status.size >= status.max_size { Fault::none_free() } else { Fault::not_reached() })
            }
        }
    }

    /// Asks for the schema's version, in one round trip with the preparation of `next`, whose own use finds whatever is
    /// wrong with it.
    async fn check(&self, connection: &Object, next: Option<&Statement>) -> Result<Option<i64>, Fault> {
        let patience = self.connect_timeout;
        let limit = if is_old(connection) { CHECK_TIMEOUT.min(patience) } else { patience };
        let preparation = async {
            if let Some(next) = next.filter(|_| self.prepared) {
                let _found_later = connection.prepare_typed_cached(&next.sql, &next.types).await;
            }
        };
        let both = futures_util::future::join(self.version(connection), preparation);
        match time::within(limit, both).await {
            Some((version, ())) => version,
            None => Err(Fault::timed_out()),
        }
    }
}

/// Whether the connection has been used before.
fn is_old(connection: &Object) -> bool {
    Object::metrics(connection).recycle_count > 0
}
