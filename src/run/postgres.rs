//! Keeps the record in the handler's own transaction: the work and its outcome both commit, or neither does.
//!
//! There's no claim, as in an optimistic run: the machine reads the record, the work runs, and the machine stores the
//! finished record. An advisory lock holds the key until the transaction ends.

use std::{
    panic::resume_unwind,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    future::BoxFuture,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{Action, End, Event, Refusal, State},
    record::{Owner, Record},
    run::{
        claim::{Begun, Settled},
        context::refuse_within_itself,
        driver::{Driver, Opened, Requests, Way},
        lease::Timing,
        refusal::{
            Refused, RefusedBy, cut_off_unclaimed, not_committed, not_concluded, refusal_error, unresolved,
        },
        response::Verdict,
        unenforced::Unenforced,
        watch::{CutOff, Ended, watch},
    },
    store::{
        CommitOutcome, Put, PutOutcome, StoreError, StoreErrorKind,
        postgres::{PostgresStore, tokio_postgres::Transaction},
    },
    time::Timestamp,
};

/// If a commit's answer is lost, the library checks at most this many times whether the commit succeeded, because the
/// disconnected session may still be processing it.
const CHECKS: u32 = 20;
/// The pause between two checks.
const BETWEEN_CHECKS: Duration = Duration::from_millis(100);

/// An operation in your transaction. If you drop it, the transaction gets no record: roll the transaction back, or
/// commit your work without a record.
#[must_use = "if you don't store its outcome, the operation runs again"]
pub struct InTransaction<'t> {
    driver: Driver,
    key: StoredKey,
    state: Box<State>,
    records: Records<'t>,
    /// The right that's used instead of the record while idempotency isn't enforced.
    unenforced: Option<Box<Unenforced>>,
}

/// The store's records in the caller's transaction.
pub(crate) struct Records<'t> {
    store: &'t PostgresStore,
    transaction: &'t Transaction<'t>,
    /// When the transaction began, as the server says. Set when the key is locked.
    began: OnceLock<i64>,
    /// Whether the caller's code has ended the transaction itself.
    has_ended: AtomicBool,
}

impl<'t> Records<'t> {
    pub(crate) fn new(store: &'t PostgresStore, transaction: &'t Transaction<'t>) -> Self {
        Self { store, transaction, began: OnceLock::new(), has_ended: AtomicBool::new(false) }
    }
}

impl Requests for Records<'_> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            let since = self.began.get().copied();
            let written = self.store.put_since(self.transaction, key, put, since).await?;
            written.ok_or_else(|| {
                self.has_ended.store(true, Ordering::Relaxed);
                StoreError::new(StoreErrorKind::Rejected, "the operation's transaction has ended")
            })
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let (record, began) = self.store.lock_and_read_beginning(self.transaction, key).await?;
            let _ = self.began.set(began);
            Ok(record)
        })
    }

    fn commit<'a>(
        &'a self,
        _: &'a StoredKey,
        _: &'a Put,
        _: u32,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let error = StoreError::new(StoreErrorKind::Rejected, "the caller commits this transaction");
        Box::pin(std::future::ready(Err(error)))
    }

    /// The first error aborts a transaction, so no later statement in it can succeed.
    fn end_with_an_error(&self) -> bool {
        true
    }
}

impl<'t> InTransaction<'t> {
    /// Locks `key` in the transaction, or finds its outcome.
    pub(crate) async fn begin(
        driver: &Driver,
        records: Records<'t>,
        key: StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
    ) -> Result<Begun<Self>, Refused> {
        // There's no lease to extend: the transaction's lock holds the key.
        let timing = Timing::unextended(&driver.settings, driver.now(), invocation);
        let mut state = driver.machine(driver.owner()?, fingerprint, invocation, &timing);
        if !driver.settings.is_enforced() {
            // Shadow mode sends its requests outside the transaction, since a failed statement would abort the
            // transaction.
            let way = Way::Optimistic { reads_first: true };
            let beginning = Box::pin(Unenforced::begin(driver, &key, fingerprint, invocation, way));
            let (driver, unenforced) = (driver.clone(), Some(Box::new(beginning.await)));
            return Ok(Begun::Claimed(Self { driver, key, state, records, unenforced }));
        }
        // The lock can't refuse an operation that begins inside itself: a transaction may take its own lock again.
        refuse_within_itself(&key)?;
        match driver.open(&key, &mut state, Event::Look, &records).await? {
            Opened::Open | Opened::Claimed(_) => {
                let driver = driver.clone();
                Ok(Begun::Claimed(Self { driver, key, state, records, unenforced: None }))
            }
            Opened::Recorded(record) => {
                let refused = |error| Refused { error, by: RefusedBy::Outcome };
                let replay = driver.replay(&key, &record, timing.limits.answer_by).await;
                replay.map(Begun::Replay).map_err(refused)
            }
        }
    }

    /// The owner of the record that [`complete`](Self::complete) puts into the transaction.
    pub(crate) fn owner(&self) -> Owner {
        self.state.plan().owner
    }

    /// When the caller's answer is due.
    pub(crate) fn answer_by(&self) -> Option<Timestamp> {
        self.state.plan().limits.answer_by
    }

    /// Puts `response` into the transaction as the operation's outcome. It takes effect when the transaction
    /// commits.
    ///
    /// # Errors
    ///
    /// The outcome isn't in the transaction; roll the transaction back. [`ErrorKind::InProgress`],
    /// [`ErrorKind::Mismatch`] or [`ErrorKind::OutcomeUnknown`] if another delivery has used the key since
    /// this operation began; [`ErrorKind::Unavailable`], [`ErrorKind::Invalid`] or [`ErrorKind::Corrupt`] if the
    /// database couldn't write the outcome.
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

    /// Takes the right that's used instead of the record while idempotency isn't enforced. The caller settles it once the
    /// transaction has ended.
    pub(crate) fn take_unenforced(&mut self) -> Option<Box<Unenforced>> {
        self.unenforced.take()
    }

    pub(crate) async fn settle(mut self, verdict: Verdict) -> Result<Settled, Error> {
        if let Some(mut right) = self.unenforced.take() {
            right.conclude(verdict).await;
            return Ok(Settled::Recorded);
        }
        let (driver, key) = (&self.driver, &self.key);
        let answer_by = self.state.plan().limits.answer_by;
        let until = driver.prepare_until(&self.state);
        let intent = driver.intent(key, &self.state, verdict, until).await;
        let driven = driver.drive(key, &mut self.state, Event::Settle(intent), &self.records).await;
        let end = match (driven.action, driven.store_error) {
            (_, Some(_)) if self.records.has_ended.load(Ordering::Relaxed) => return Err(ended_early(key)),
            (_, Some(error)) => return Err(not_committed(key, error)),
            (Action::Settled(end), None) => end,
            _ => End::NotCommitted(Refusal::Unavailable),
        };
        match end {
            End::Recorded => Ok(Settled::Recorded),
            End::Superseded(record) => {
                observe::outrun(key);
                let outcome = driver.successors_outcome(key, &record, ErrorKind::InProgress, answer_by).await;
                outcome.map(Settled::Superseded)
            }
            end => Err(not_concluded(key, &end, None, driver.now())),
        }
    }
}

impl std::fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InTransaction").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Runs `work` in the transaction of an operation. It's cut off a little before the deadline, so that the transaction can
/// be rolled back in time: an open transaction would keep its locks in a frozen sandbox.
///
/// An invocation without a known deadline has no cut-off, since no claim's lease can end.
///
/// # Errors
///
/// The work was cut off: roll the transaction back.
pub(crate) async fn work_in_time<T>(
    driver: &Driver,
    key: &StoredKey,
    invocation: &Invocation,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    let settings = &driver.settings;
    let deadline = invocation.deadline().filter(|_| settings.is_enforced());
    let at = deadline.map(|deadline| deadline.saturating_sub(settings.answer_reserve / 2));
    let cut_off = match at {
        Some(at) if !settings.cut_off => CutOff::before_start(at),
        at => CutOff::at(at),
    };
    match watch(work, driver.clock(), &cut_off, None).await {
        Ended::Returned(value) => Ok(value),
        Ended::Panicked(payload) => resume_unwind(payload),
        Ended::NotBegun => Err(refusal_error(key, Refusal::NoTimeLeft, None, driver.now())),
        Ended::CutOff => Err(cut_off_late(key, driver.now())),
    }
}

/// Reports an operation that was cut off before its COMMIT, and returns its error.
pub(crate) fn cut_off_late(key: &StoredKey, now: Timestamp) -> Error {
    observe::cut_off(key, None, now);
    cut_off_unclaimed(key)
}

/// Returns the error for an operation whose code has ended the transaction with an SQL statement, and reports the error.
fn ended_early(key: &StoredKey) -> Error {
    let error = Error::new(
        ErrorKind::Invalid,
        format!(
            "{key}: the operation's transaction has ended before its outcome was recorded: its code ran COMMIT or \
             ROLLBACK as SQL. So nothing is recorded, what the code committed stays, and a retry runs it again. Leave \
             out the statement; for a partial rollback, use a savepoint"
        ),
    );
    observe::not_committed(key, &error, false);
    error
}

/// Finds out whether a commit succeeded after its answer was lost.
///
/// While the session that sent the commit holds the key's lock, the commit may still succeed. After that, the
/// record shows the result.
pub(crate) async fn find_out_whether_committed(
    driver: &Driver,
    store: &PostgresStore,
    key: &StoredKey,
    owner: Owner,
    doubt: StoreError,
    until: Option<Timestamp>,
) -> Result<(), Error> {
    let mut is_free = false;
    for _ in 0..CHECKS {
        match driver.in_time(driver.now(), until, Box::pin(store.look(key))).await {
            Ok(Some(Record { owner: of, .. })) if of == owner => return Ok(()),
            // The lock was already free before this read, so the commit failed.
            Ok(_) if is_free => return Err(not_committed(key, doubt)),
            // The lock is free now, but may have been held when the record was read. So the record is read once more.
            Ok(_) => {
                is_free = true;
                continue;
            }
            Err(error) if error.kind() == StoreErrorKind::Corrupt => break,
            // The lock isn't free, or the database can't be reached.
            Err(_) => {}
        }
        if until.is_some_and(|until| driver.now().saturating_add(BETWEEN_CHECKS) >= until) {
            break;
        }
        driver.clock().sleep(BETWEEN_CHECKS).await;
    }
    observe::unresolved(key, Some(&doubt));
    Err(unresolved(key, None, Some(doubt), driver.now()))
}
