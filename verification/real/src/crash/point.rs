//! The points of a run at which a process can pause, so that the harness can kill or freeze it there.
//!
//! A process that reaches its point writes a marker file and pauses until the file is gone. Only the harness
//! decides what happens next: SIGKILL, or SIGSTOP until after the lease. The library contains no such points.
//! They're in the function's own code, and in a decorator around its store.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, CommitOutcome, OwnWrites, Record, ResponseChunks, Settlement, Store, StoreError,
        StoreErrorKind, Transactions, Write, WriteOutcome,
    },
};

use super::form::Form;

/// How often a paused process checks whether it may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A write to the store, by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// T1.
    Claim,
    /// T2.
    Reclaim,
    /// T3.
    TakeOver,
    /// T4.
    Complete,
    /// T5. The function under test records no failures, so it has no point there.
    Fail,
    /// T6.
    Release,
    /// T7. The function under test knows its deadline, so it has no point there.
    Extend,
    /// The finished record with its effect, written without a claim.
    Conclude,
}

impl Call {
    fn of(write: &Write) -> Self {
        match write {
            Write::Claim(_) => Self::Claim,
            Write::Reclaim { .. } => Self::Reclaim,
            Write::TakeOver { .. } => Self::TakeOver,
            // Only an operator resolves. The functions under test settle.
            Write::Extend { .. } => Self::Extend,
            Write::Conclude { .. } => Self::Conclude,
            Write::Settle { settlement, .. } | Write::Resolve { settlement, .. } => match settlement {
                Settlement::Complete(..) => Self::Complete,
                Settlement::Fail(..) => Self::Fail,
                Settlement::Release { .. } => Self::Release,
            },
        }
    }
}

/// A point of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The event has arrived. The library hasn't seen it.
    Entered,
    /// The library has decided on this write, and has sent nothing.
    Before(Call),
    /// This write has been applied. The library doesn't know it yet.
    After(Call),
    /// The handler runs, and its effect hasn't happened.
    BeforeEffect,
    /// The effect has happened.
    AfterEffect,
    /// The library has answered, and the response hasn't been posted.
    Answered,
}

impl Point {
    /// Every point, in the order of a run. The long and the bounded test run use all of them.
    pub const ALL: [Self; 14] = [
        Self::Entered,
        Self::Before(Call::Claim),
        Self::After(Call::Claim),
        Self::Before(Call::Reclaim),
        Self::After(Call::Reclaim),
        Self::Before(Call::TakeOver),
        Self::After(Call::TakeOver),
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::Before(Call::Complete),
        Self::After(Call::Complete),
        Self::Before(Call::Release),
        Self::After(Call::Release),
        Self::Answered,
    ];

    /// Its name in the environment and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entered => "entered",
            Self::Before(Call::Claim) => "before_claim_sent",
            Self::After(Call::Claim) => "after_claim_applied",
            Self::Before(Call::Reclaim) => "before_reclaim_sent",
            Self::After(Call::Reclaim) => "after_reclaim_applied",
            Self::Before(Call::TakeOver) => "before_takeover_sent",
            Self::After(Call::TakeOver) => "after_takeover_applied",
            Self::BeforeEffect => "before_effect",
            Self::AfterEffect => "after_effect",
            Self::Before(Call::Complete) => "before_completion_sent",
            Self::After(Call::Complete) => "after_completion_applied",
            Self::Before(Call::Fail) => "before_failure_sent",
            Self::After(Call::Fail) => "after_failure_applied",
            Self::Before(Call::Release) => "before_release_sent",
            Self::After(Call::Release) => "after_release_applied",
            // The function under test has no point there, nor at a failure's write. The guide leaves them out.
            Self::Before(Call::Extend) => "before_extension_no_failure",
            Self::After(Call::Extend) => "after_extension_no_failure",
            Self::Before(Call::Conclude) => "before_conclusion_sent",
            Self::After(Call::Conclude) => "after_conclusion_applied",
            Self::Answered => "answered",
        }
    }

    /// The points of a run with an effect but no claim.
    pub const CLAIM_FREE: [Self; 6] = [
        Self::Entered,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::Before(Call::Conclude),
        Self::After(Call::Conclude),
        Self::Answered,
    ];

    /// The points of a run that commits its effect and its record in its own transaction.
    pub const IN_TRANSACTION: [Self; 4] =
        [Self::Entered, Self::BeforeEffect, Self::AfterEffect, Self::Answered];

    /// The points of a run of this form.
    pub const fn of(form: Form) -> &'static [Self] {
        match form {
            Form::Ledger | Form::Transaction | Form::Postgres | Form::Redis => &Self::ALL,
            Form::Optimistic => &Self::CLAIM_FREE,
            Form::PostgresTransaction => &Self::IN_TRANSACTION,
        }
    }

    /// The point of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::CLAIM_FREE).find(|point| point.name() == name)
    }

    /// Whether the effect has happened by then and its completion isn't stored. No protocol can prevent a
    /// second effect there, unless the effect is in the completion's own transaction.
    pub const fn is_in_the_gap(self) -> bool {
        matches!(self, Self::AfterEffect | Self::Before(Call::Complete))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A process's order to pause at a point, once.
#[derive(Debug)]
pub struct Orders {
    point: Option<Point>,
    marker: PathBuf,
    is_done: AtomicBool,
}

impl Orders {
    /// Creates the order to pause at `point`, if there is one, and to say so in the file `marker`.
    pub fn new(point: Option<Point>, marker: impl AsRef<Path>) -> Self {
        Self { point, marker: marker.as_ref().to_owned(), is_done: AtomicBool::new(false) }
    }

    /// Reports that the run has reached `point`. If that's the point to pause at, blocks the thread, so that
    /// nothing else in this process continues.
    pub fn reached(&self, point: Point) {
        if self.point != Some(point) || self.is_done.swap(true, Ordering::SeqCst) {
            return;
        }
        // Without a marker the harness never learns of it, and reports that the process didn't reach the point.
        if std::fs::write(&self.marker, point.name()).is_ok() {
            while self.marker.exists() {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

/// A store that pauses before it sends a write, and after the write has been applied.
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
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        Box::pin(async move {
            let call = Call::of(write);
            self.orders.reached(Point::Before(call));
            let written = self.inner.apply(key, write).await;
            if matches!(written, Ok(WriteOutcome::Applied)) {
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
}

impl<S: Store> Transactions for StandingStore<S> {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        self.inner.transactions().map_or(Ok(()), |transactions| transactions.check(key, writes))
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let Some(transactions) = self.inner.transactions() else {
                return Err(StoreError::new(StoreErrorKind::Rejected, "no transactions"));
            };
            let call = Call::of(write);
            self.orders.reached(Point::Before(call));
            let committed = transactions.commit(key, write, writes, token).await;
            if matches!(committed, Ok(CommitOutcome::Answered(WriteOutcome::Applied))) {
                self.orders.reached(Point::After(call));
            }
            committed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_names_are_unique() {
        for point in Point::ALL {
            assert_eq!(Point::named(point.name()), Some(point));
        }
        assert_eq!(Point::named("nowhere"), None);
    }
}
