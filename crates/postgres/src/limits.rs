//! Limits how long a statement may run at the server, and how long it may wait for locks.
//!
//! The store stops waiting for an answer after its timeout, and closes the connection. The server doesn't
//! notice. If a claim waits for a lock, a server without its own limit applies the claim when the lock is free, perhaps
//! minutes after the caller got an error. A cancel request doesn't help: it can be lost, or arrive before the statement
//! does.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use futures_util::future::join3;
use tokio_postgres::Row;

use super::fault::Fault;

/// How the store limits its statements at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeouts {
    /// It sends the limits as startup options, at no cost. Poolers reject or ignore startup options.
    Startup,
    /// It sets the limits in a transaction around each statement, in the same round trip.
    Transaction,
    /// It sets nothing, because the role or the database has the limits.
    Role,
}

impl Timeouts {
    /// Parses the value from a URL.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "startup" => Some(Self::Startup),
            "transaction" => Some(Self::Transaction),
            "role" => Some(Self::Role),
            _ => None,
        }
    }
}

/// The limits, and how they are set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) timeouts: Timeouts,
    /// How long the store waits for a statement.
    patience: Duration,
    lock: Duration,
}

impl Limits {
    pub(super) const fn new(timeouts: Timeouts, patience: Duration, lock: Duration) -> Self {
        Self { timeouts, patience, lock }
    }

    /// Returns the server's limit for a statement. It's three quarters of the store's limit, so that the server stops
    /// first. If the first attempt takes at most a quarter of the store's limit, for example because it waits for a
    /// lock, the time that's left is enough for a second attempt.
    pub(super) fn statement(&self) -> Duration {
        self.patience * 3 / 4
    }

    fn millis(&self) -> (u128, u128) {
        let statement = self.statement().as_millis().max(1);
        // If both limits were equal, a timeout wouldn't show whether a lock or a slow server caused it.
        (statement, self.lock.as_millis().min(statement * 9 / 10).max(1))
    }

    /// Writes the limits as startup options, after the existing ones in `before`.
    pub(super) fn options(&self, before: Option<&str>) -> String {
        let (statement, lock) = self.millis();
        let options = format!("-c statement_timeout={statement} -c lock_timeout={lock}");
        before.map_or(options.clone(), |before| format!("{before} {options}"))
    }

    /// Checks that the server has both limits (in milliseconds; 0 means none), and that neither is longer than the
    /// [limit for a statement](Self::statement). With a longer limit, the server could still run a statement that the
    /// store no longer waits for.
    pub(super) fn judge(&self, statement: i64, lock: i64) -> Result<(), Fault> {
        let most = i64::try_from(self.millis().0).unwrap_or(i64::MAX);
        let is_low = |limit: i64| (1..=most).contains(&limit);
        if is_low(statement) && is_low(lock) {
            return Ok(());
        }
        Err(Fault::unlimited(&format!(
            "statement_timeout is {statement} ms and lock_timeout {lock} ms (0 means no limit); set both to at most \
             {most} ms, three quarters of the store's statement timeout"
        )))
    }

    /// Sends one statement under the limits, and waits for its answer. With [`Timeouts::Transaction`], `BEGIN`, the
    /// statement and `COMMIT` go out at once, in the order in which `join3` polls them.
    pub(super) async fn hold(
        &self,
        client: &ClientWrapper,
        statement: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
    ) -> Result<Vec<Row>, Fault> {
        if self.timeouts != Timeouts::Transaction {
            return statement.await.map_err(|error| Fault::sent(&error));
        }
        let (of_statement, of_lock) = self.millis();
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = {of_statement}; SET LOCAL lock_timeout = {of_lock}"
        );
        let sent = join3(client.batch_execute(&begin), statement, client.batch_execute("COMMIT"));
        let (begun, rows, committed) = sent.await;
        // If BEGIN failed, the statement may have been applied without a transaction.
        begun.map_err(|error| Fault::sent(&error).in_doubt())?;
        let rows = rows.map_err(|error| Fault::sent(&error))?;
        committed.map_err(|error| Fault::sent(&error))?;
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(patience: u64, lock: u64) -> Limits {
        let (patience, lock) = (Duration::from_millis(patience), Duration::from_millis(lock));
        Limits::new(Timeouts::Startup, patience, lock)
    }

    #[test]
    fn server_timeouts_are_shorter_than_the_clients() {
        assert_eq!(limits(1000, 250).options(None), "-c statement_timeout=750 -c lock_timeout=250");
        let options = limits(1000, 900).options(Some("-c search_path=a"));
        assert_eq!(options, "-c search_path=a -c statement_timeout=750 -c lock_timeout=675");
    }

    #[test]
    fn missing_or_high_limits_are_refused() {
        for (statement, lock, is_enough) in
            [(750, 250, true), (750, 750, true), (751, 250, false), (0, 250, false), (750, 0, false)]
        {
            assert_eq!(limits(1000, 250).judge(statement, lock).is_ok(), is_enough, "{statement} {lock}");
        }
    }
}
