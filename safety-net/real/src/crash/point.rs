//! The points of a run at which a process can be made to stand, to be killed or frozen there.
//!
//! A process that reaches its point writes a marker file and stands until the file is gone. What becomes of it is the
//! harness's doing alone: SIGKILL, or SIGSTOP until after the lease. The library has no such points in it: they are in
//! the function's own code, and in a decorator around its store.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use lambda_idempotency::{
    BoxFuture, Record, StoredKey,
    store::{
        Committed, OwnWrites, ResponseParts, Settlement, Store, StoreError, StoreErrorKind, Transactions,
        Write, Written,
    },
};

use super::form::Form;

/// How often a standing process looks whether it may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A write to the store, by what it is for.
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
    /// T5: the function under test records no failures, so no point is there.
    Fail,
    /// T6.
    Release,
    /// T7: the function under test knows its deadline, so no point is there.
    Extend,
    /// The finished record with its effect, without a claim.
    Conclude,
}

impl Call {
    fn of(write: &Write) -> Self {
        match write {
            Write::Claim(_) => Self::Claim,
            Write::Reclaim { .. } => Self::Reclaim,
            Write::TakeOver { .. } => Self::TakeOver,
            // Only an operator resolves; the functions under test settle.
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
    /// The event has come in; the library has not seen it.
    Entered,
    /// The library has decided on this write, and nothing has been sent.
    Before(Call),
    /// This write has been made; the library does not know it yet.
    After(Call),
    /// The handler runs, and its effect is still to come.
    BeforeEffect,
    /// The effect has happened.
    AfterEffect,
    /// The library has answered; the response has not been posted.
    Answered,
}

impl Point {
    /// Every point, in the order of a run. One that is added here is in the long and in the bounded form.
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

    /// Its name, as the environment and the table give it.
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
            // No point is there, and no failure's: the guide leaves them out.
            Self::Before(Call::Extend) => "before_extension_no_failure",
            Self::After(Call::Extend) => "after_extension_no_failure",
            Self::Before(Call::Conclude) => "before_conclusion_sent",
            Self::After(Call::Conclude) => "after_conclusion_applied",
            Self::Answered => "answered",
        }
    }

    /// The points of a run that has its effect without a claim.
    pub const CLAIM_FREE: [Self; 6] = [
        Self::Entered,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::Before(Call::Conclude),
        Self::After(Call::Conclude),
        Self::Answered,
    ];

    /// The points of a run whose effect and record are in a transaction of its own.
    pub const IN_TRANSACTION: [Self; 4] =
        [Self::Entered, Self::BeforeEffect, Self::AfterEffect, Self::Answered];

    /// The points of a run of this form.
    pub const fn of(form: Form) -> &'static [Self] {
        match form {
            Form::Ledger | Form::Transaction | Form::Postgres | Form::Redis => &Self::ALL,
            Form::ClaimFree => &Self::CLAIM_FREE,
            Form::PostgresTransaction => &Self::IN_TRANSACTION,
        }
    }

    /// The point of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::CLAIM_FREE).find(|point| point.name() == name)
    }

    /// Whether the effect has happened by then, and its completion is not stored: what no protocol can help, unless
    /// the effect is in the completion's own transaction.
    pub const fn is_in_the_gap(self) -> bool {
        matches!(self, Self::AfterEffect | Self::Before(Call::Complete))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The order that a process may have been given: to stand at a point, once.
#[derive(Debug)]
pub struct Orders {
    point: Option<Point>,
    marker: PathBuf,
    is_done: AtomicBool,
}

impl Orders {
    /// Stands at `point`, if there is one, and says so in the file `marker`.
    pub fn new(point: Option<Point>, marker: impl AsRef<Path>) -> Self {
        Self { point, marker: marker.as_ref().to_owned(), is_done: AtomicBool::new(false) }
    }

    /// Tells that the run has come to `point`. Blocks the thread where that is the one to stand at: nothing else in
    /// this process is to go on meanwhile.
    pub fn reached(&self, point: Point) {
        if self.point != Some(point) || self.is_done.swap(true, Ordering::SeqCst) {
            return;
        }
        // Without a marker the harness never hears of it, and says that the point was not reached.
        if std::fs::write(&self.marker, point.name()).is_ok() {
            while self.marker.exists() {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

/// A store that stands before a write is sent, and after it has been made.
#[derive(Debug)]
pub struct StandingStore<S> {
    inner: S,
    orders: &'static Orders,
}

impl<S> StandingStore<S> {
    /// Stands as it is ordered to.
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
    ) -> BoxFuture<'a, Result<Written, StoreError>> {
        Box::pin(async move {
            let call = Call::of(write);
            self.orders.reached(Point::Before(call));
            let written = self.inner.apply(key, write).await;
            if matches!(written, Ok(Written::Applied)) {
                self.orders.reached(Point::After(call));
            }
            written
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.inner.read(key)
    }

    fn parts(&self) -> Option<&dyn ResponseParts> {
        self.inner.parts()
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
    ) -> BoxFuture<'a, Result<Committed, StoreError>> {
        Box::pin(async move {
            let Some(transactions) = self.inner.transactions() else {
                return Err(StoreError::new(StoreErrorKind::Rejected, "no transactions"));
            };
            let call = Call::of(write);
            self.orders.reached(Point::Before(call));
            let committed = transactions.commit(key, write, writes, token).await;
            if matches!(committed, Ok(Committed::Answered(Written::Applied))) {
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
    fn every_point_has_a_name_of_its_own() {
        for point in Point::ALL {
            assert_eq!(Point::named(point.name()), Some(point));
        }
        assert_eq!(Point::named("nowhere"), None);
    }
}
