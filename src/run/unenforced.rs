//! The right to run while idempotency isn't enforced ([`Mode`](crate::settings::Mode)): it holds nothing, and the handler's
//! answer always counts.

use crate::{
    fingerprint::Fingerprint,
    internal::GenerationExt as _,
    invocation::Invocation,
    key::StoredKey,
    protocol::{Decline, End, Event, Held, Limits, first_call_until, refusal_for},
    record::{Generation, Lock, Mark, Owner},
    run::{
        driver::{Declined, Driver, Ending, Inside, Way},
        handle::ClaimHandle,
        limits,
        response::Verdict,
        shadow::Beside,
    },
    settings::Execution,
    store::{OwnWrites, StoreError, StoreErrorKind},
    time::Timestamp,
};

/// The right to run one operation that isn't enforced. In shadow mode, the library claims the key and records the
/// outcome beside it, in the shadow's namespace.
pub(crate) struct Unenforced<'t> {
    driver: Driver,
    key: StoredKey,
    limits: Limits,
    beside: Beside,
    /// The caller's transaction, if the library began it.
    inside: Option<&'t dyn Inside>,
}

impl<'t> Unenforced<'t> {
    /// Begins a delivery of `key`. Sends no request until it's polled.
    pub(super) fn new(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
        inside: Option<&'t dyn Inside>,
    ) -> Self {
        Self {
            inside,
            driver: driver.clone(),
            key: key.clone(),
            limits: limits::of(&driver.settings, driver.now(), invocation),
            beside: Beside::new(driver, key, fingerprint, invocation, way),
        }
    }

    /// Begins a delivery of `key`, for code that settles its operation itself. In shadow mode, it waits a moment for the
    /// store's answer before that code runs.
    pub(super) async fn begin(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
    ) -> Self {
        let mut begun = Self::new(driver, key, fingerprint, invocation, way, None);
        begun.beside.wait_in_time().await;
        begun
    }

    pub(super) fn key(&self) -> &StoredKey {
        &self.key
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the handle of a first attempt. It derives the same keys as a real claim's handle.
    pub(super) fn handle(&self) -> ClaimHandle {
        let now = self.driver.now();
        let lock = Lock {
            owner: Owner::from_bytes([0; 16]),
            generation: Generation::first(now),
            attempt: 1,
            fingerprint: Fingerprint::from_digest([0; 32]),
            lock_acquired_at: now,
            lease_until: self.limits.lease_until,
            execution: Execution::AtLeastOnce,
            expires_at: Some(self.limits.lease_until),
            mark: Mark::None,
            request_id: None,
            trace: None,
        };
        ClaimHandle::new(self.key.clone(), Held { lock, is_recovered: false })
    }

    /// Waits for the answer to shadow mode's request, while the handler runs.
    pub(super) async fn wait(&mut self) {
        self.beside.wait().await;
    }

    /// Extends the shadow's lease, if there's one.
    pub(super) async fn extend(&mut self, until: Timestamp) {
        self.beside.extend(until).await;
    }

    /// Ends the caller's transaction, if the library began one. Then settles the shadow's record as `verdict` says, or as
    /// an interrupted run's if the transaction isn't known to be committed.
    pub(super) async fn settle(&mut self, verdict: Verdict) -> Ending {
        let ending = self.end(verdict.is_success()).await;
        self.conclude(&ending, verdict).await;
        ending
    }

    async fn end(&self, commits: bool) -> Ending {
        let ended = match self.inside {
            Some(inside) => end(&self.driver, inside, self.limits, commits).await,
            None => Ok(()),
        };
        let (end, store_error) = match ended {
            Err(error) if commits && error.is_maybe_applied() => (End::Unresolved(None), Some(error)),
            Err(error) if commits => (End::NotCommitted(refusal_for(error.kind())), Some(error)),
            // An unanswered rollback happens later.
            Ok(()) | Err(_) => (End::Recorded, None),
        };
        Ending { end, store_error }
    }

    /// Commits `writes` without a record. Then settles the shadow's record as `verdict` says, or as an interrupted run's
    /// if the writes are in doubt.
    ///
    /// # Errors
    ///
    /// The last attempt to commit wasn't applied, and nothing is settled.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: &OwnWrites,
    ) -> Result<Ending, Declined> {
        let ending = Box::pin(self.commit(writes)).await?;
        self.conclude(&ending, verdict).await;
        Ok(ending)
    }

    async fn conclude(&mut self, ending: &Ending, verdict: Verdict) {
        let verdict =
            if ending.end == End::Recorded { verdict } else { Verdict::Release { interrupted: true } };
        self.beside.conclude(verdict).await;
    }

    async fn commit(&self, writes: &OwnWrites) -> Result<Ending, Declined> {
        let driver = &self.driver;
        let kind = StoreErrorKind::Unavailable;
        let owner = driver.owner().map_err(|_| Declined {
            why: Decline::Store(kind),
            details: None,
            store_error: Some(StoreError::new(kind, "the operating system returned no random bits")),
            is_in_doubt: false,
        })?;
        let fingerprint = Fingerprint::from_digest([0; 32]);
        let mut state = driver.machine(owner, fingerprint, &Invocation::unknown(), self.limits);
        let requests = driver.to_store(Some(writes));
        driver.drive(&self.key, &mut state, Event::CommitAlone, &requests).await.committed(&state)
    }
}

/// Ends the caller's transaction, and waits for the answer in the time that's left. If a rollback isn't answered, the
/// database rolls back as soon as the current statement ends, since the connection has sent the request.
///
/// # Errors
///
/// The database's, or the answer isn't there in time.
pub(super) async fn end(
    driver: &Driver,
    inside: &dyn Inside,
    limits: Limits,
    commits: bool,
) -> Result<(), StoreError> {
    let now = driver.now();
    driver.in_time(now, first_call_until(limits, now), inside.end(commits)).await
}
