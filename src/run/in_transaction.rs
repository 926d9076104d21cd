//! Keeps the record in the caller's own transaction: the work and its outcome both commit, or neither does.
//!
//! There's no claim, as in an optimistic run: the machine reads the record, the work runs, and the machine stores the
//! finished record. The transaction's lock holds the key until the transaction ends.

use std::{
    borrow::Borrow,
    fmt,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;

use crate::{
    error::Error,
    fingerprint::Fingerprint,
    future::BoxFuture,
    internal::SettingsExt as _,
    invocation::Invocation,
    key::StoredKey,
    record::Record,
    run::{
        claim::{Begun, Settled},
        driver::{Driver, Inside, Requests, Way},
        optimistic::Optimistic,
        protect::{Finished, Protected, finish},
        refusal::{Refused, declined},
        replay::in_span,
        response::Verdict,
        right::Right,
        unenforced::Unenforced,
    },
    store::{CallerTransactions, CommitOutcome, Put, PutOutcome, StoreError, StoreErrorKind},
};

/// An operation in your transaction. If you drop it, the transaction gets no record: roll the transaction back, or
/// commit your work without a record.
#[must_use = "if you don't store its outcome, the operation runs again"]
pub struct InTransaction<'t, S: CallerTransactions> {
    driver: Driver,
    /// The right, without `records`.
    right: Right<'static>,
    records: Records<'t, S, &'t S::Transaction<'t>>,
}

/// The store's records in the caller's transaction. `H` points to the transaction: a reference or an `Arc`.
pub(crate) struct Records<'t, S: CallerTransactions, H> {
    store: &'t S,
    /// `None` once the transaction has ended.
    transaction: Mutex<Option<H>>,
    /// Takes the transaction, to end it. `None` if the caller ends it.
    take: Option<Take<'t, S, H>>,
    /// The transaction's number. Set when the key is locked.
    number: OnceLock<i64>,
    /// Whether the caller's code has ended the transaction itself.
    has_ended: AtomicBool,
}

type Take<'t, S, H> = fn(H) -> Option<<S as CallerTransactions>::Transaction<'t>>;

impl<'t, S: CallerTransactions, H: Clone> Records<'t, S, H> {
    pub(crate) fn new(store: &'t S, transaction: H, take: Option<Take<'t, S, H>>) -> Self {
        let (number, has_ended) = (OnceLock::new(), AtomicBool::new(false));
        Self { store, transaction: Mutex::new(Some(transaction)), take, number, has_ended }
    }

    fn slot(&self) -> MutexGuard<'_, Option<H>> {
        self.transaction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits the transaction, or rolls it back, if the library began it. The handler's future is gone by now, and
    /// with it the handler's pointer.
    async fn end(&self, commits: bool, after_put: bool) -> Result<(), StoreError> {
        let Some(take) = self.take else { return Ok(()) };
        let taken = self.slot().take();
        match taken.and_then(take) {
            Some(transaction) if commits => self.store.commit(transaction, after_put).await,
            Some(transaction) => self.store.roll_back(transaction).await,
            // A transaction that was handed over before: only a look can tell whether it was committed.
            None if commits => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "the transaction was sent before")
                    .maybe_applied(true))
            }
            None => Ok(()),
        }
    }
}

impl<'t, S, H> Requests for Records<'t, S, H>
where
    S: CallerTransactions,
    H: Borrow<S::Transaction<'t>> + Clone + Send + Sync,
{
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            let open = self.slot().clone();
            let written = match &open {
                Some(open) => self.store.put_in(open.borrow(), key, put, self.number.get().copied()).await?,
                None => None,
            };
            written.ok_or_else(|| {
                self.has_ended.store(true, Ordering::Relaxed);
                StoreError::new(StoreErrorKind::Rejected, "the operation's transaction has ended")
            })
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let open = self.slot().clone();
            let Some(open) = &open else { return self.store.look(key).await };
            let (record, number) = self.store.lock_and_read_in(open.borrow(), key).await?;
            let _ = self.number.set(number);
            Ok(record)
        })
    }

    fn commit<'a>(
        &'a self,
        _: &'a StoredKey,
        _: &'a Put,
        _: u32,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async {
            self.end(true, true).await?;
            Ok(CommitOutcome::Answered(PutOutcome::Applied))
        })
    }

    fn commits(&self) -> bool {
        self.take.is_some()
    }
}

impl<'t, S, H> Inside for Records<'t, S, H>
where
    S: CallerTransactions,
    H: Borrow<S::Transaction<'t>> + Clone + Send + Sync,
{
    fn end(&self, commits: bool) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.end(commits, false))
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

impl<'t, S: CallerTransactions> InTransaction<'t, S> {
    /// Locks `key` in the transaction, or finds its outcome.
    pub(crate) async fn begin(
        driver: &Driver,
        records: Records<'t, S, &'t S::Transaction<'t>>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
    ) -> Result<Begun<Self>, Refused> {
        let begun = if driver.settings.is_enforced() {
            let begun = Optimistic::begin(driver, key, fingerprint, invocation, true, Some(&records)).await;
            begun?.map(|right| Right::Optimistic(right.outside()))
        } else {
            // Shadow mode sends its requests outside the transaction, since a failed statement would abort the
            // transaction.
            let way = Way::Optimistic { reads_first: true };
            let right = Unenforced::begin(driver, key, fingerprint, invocation, way).await;
            Begun::Claimed(Right::Unenforced(Box::new(right)))
        };
        Ok(begun.map(|right| Self { driver: driver.clone(), right, records }))
    }

    /// Puts `response` into the transaction as the operation's outcome. It takes effect when the transaction
    /// commits, together with your own writes.
    ///
    /// # Errors
    ///
    /// The outcome isn't in the transaction; roll the transaction back. `InProgress`, `Mismatch` or
    /// `OutcomeUnknown` if another delivery has used the key since this operation began; `Unavailable`, `Invalid` or
    /// `Corrupt` if the database couldn't write the outcome: see [`ErrorKind`](crate::ErrorKind).
    ///
    /// # Cancel safety
    ///
    /// If you drop the future, the outcome may or may not be in the transaction: roll the transaction back.
    pub async fn complete(self, response: impl Into<Bytes>) -> Result<Settled, Error> {
        self.settle(Verdict::complete(response)).await
    }

    /// Puts `failure` into the transaction as the operation's outcome: it failed permanently, and won't run again.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// As [`complete`](Self::complete).
    pub async fn fail(self, failure: impl Into<Bytes>) -> Result<Settled, Error> {
        self.settle(Verdict::Fail(Some(failure.into()))).await
    }

    async fn settle(self, verdict: Verdict) -> Result<Settled, Error> {
        let span = self.driver.span.clone();
        in_span(&span, self.settle_within_span(verdict), Settled::superseding).await
    }

    async fn settle_within_span(self, verdict: Verdict) -> Result<Settled, Error> {
        let Self { driver, right, records } = self;
        // A right that lives as long as `records`.
        let mut right: Right<'_> = right;
        if let Right::Optimistic(it) = &mut right {
            it.inside(&records);
        }
        match finish(&driver, &mut right, verdict, None).await? {
            Finished::Settled(Protected::Replayed(replay)) => Ok(Settled::Superseded(replay)),
            Finished::Settled(Protected::Ran(()) | Protected::RanUnrecorded(())) => Ok(Settled::Recorded),
            Finished::NotCommitted(why) => {
                Err(declined(right.key(), why.why, why.store_error, why.is_in_doubt))
            }
        }
    }
}

impl<S: CallerTransactions> fmt::Debug for InTransaction<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("key", self.right.key()).finish_non_exhaustive()
    }
}
