//! The points of a run at which a process can pause, so that the harness can kill or freeze it there.
//!
//! A process that reaches its point writes a marker file and pauses until the file is gone. Only the harness
//! decides what happens next: SIGKILL, or SIGSTOP until after the lease. The library names the points, but never
//! pauses: the pauses are in the function's own code, and in a decorator around its store.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, CommitOutcome, OwnWrites, Put, PutOutcome, Record, ResponseChunks, Store, StoreError,
        StoreErrorKind, Transactions,
    },
};

pub use lambda_idempotency_testing::{Call, Point};

use super::form::Form;

/// How often a paused process checks whether it may continue.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Returns the points at which a run of this form can pause.
pub const fn of_form(form: Form) -> &'static [Point] {
    match form {
        Form::Ledger | Form::Transaction | Form::Postgres | Form::Redis => &Point::ALL,
        Form::Reconciled | Form::ReconciledPostgres | Form::ReconciledRedis => &Point::ALL,
        Form::Optimistic => &Point::CLAIM_FREE,
        // Neither the layer nor the function behind it can pause. Only random kills test this form.
        Form::Layer => &[],
        // Chance decides how many effects there are.
        Form::ReconciledLate | Form::Unreconciled => &[],
        Form::PostgresTransaction => &Point::IN_TRANSACTION,
    }
}

/// Tells a process at which point to pause. The process pauses there only once.
#[derive(Debug)]
pub struct Orders {
    point: Option<Point>,
    marker: PathBuf,
    is_done: AtomicBool,
}

impl Orders {
    /// Creates the order to write the file `marker` and pause at `point`. Without a point, the process never pauses.
    pub fn new(point: Option<Point>, marker: impl AsRef<Path>) -> Self {
        Self { point, marker: marker.as_ref().to_owned(), is_done: AtomicBool::new(false) }
    }

    /// Reports that the run has reached `point`. If that's the point to pause at, blocks the run's thread until the
    /// marker is gone.
    pub fn reached(&self, point: Point) {
        if self.point != Some(point) || self.is_done.swap(true, Ordering::SeqCst) {
            return;
        }
        // If the marker can't be written, the run continues, and the harness reports that no process reached the point.
        if std::fs::write(&self.marker, point.name()).is_ok() {
            while self.marker.exists() {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

/// A store that can pause before it sends a write, and after the write has been applied.
#[derive(Debug)]
pub struct StandingStore<S> {
    inner: S,
    orders: &'static Orders,
}

impl<S> StandingStore<S> {
    /// Creates a store that pauses as `orders` say.
    pub const fn new(inner: S, orders: &'static Orders) -> Self {
        Self { inner, orders }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for StandingStore<S> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            let call = Call::of(put);
            self.orders.reached(Point::Before(call));
            let written = self.inner.put(key, put).await;
            if matches!(written, Ok(PutOutcome::Applied)) {
                self.orders.reached(Point::After(call));
            }
            written
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.inner.read(key)
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.inner.chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        self.inner.transactions().is_some().then_some(self)
    }

    fn compress_from(&self, key: &StoredKey) -> usize {
        self.inner.compress_from(key)
    }

    fn close_connections(&self) {
        self.inner.close_connections();
    }
}

impl<S: Store> Transactions for StandingStore<S> {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        self.inner.transactions().map_or(Ok(()), |transactions| transactions.check(key, writes))
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let Some(transactions) = self.inner.transactions() else {
                return Err(StoreError::new(StoreErrorKind::Rejected, "the inner store has no transactions"));
            };
            let call = Call::of(put);
            self.orders.reached(Point::Before(call));
            let committed = transactions.commit(key, put, writes, token).await;
            if matches!(committed, Ok(CommitOutcome::Answered(PutOutcome::Applied))) {
                self.orders.reached(Point::After(call));
            }
            committed
        })
    }
}
