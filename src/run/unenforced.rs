//! The right to run while idempotency isn't enforced ([`Mode`](crate::settings::Mode)): it holds nothing, and the handler's
//! answer always counts.

use crate::{
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    protocol::{End, Held},
    record::{Generation, Lock, Owner},
    run::{
        alone::commit_alone,
        driver::{Declined, Driver, Ending, Way},
        handle::ClaimHandle,
        lease::Timing,
        response::Verdict,
        shadow::Beside,
    },
    settings::Execution,
    store::OwnWrites,
    time::Timestamp,
};

/// The right to run one operation that isn't enforced. In shadow mode, the library claims the key and records the
/// outcome beside it, in the shadow's namespace.
pub(crate) struct Unenforced {
    driver: Driver,
    key: StoredKey,
    timing: Timing,
    beside: Beside,
}

impl Unenforced {
    /// Begins a delivery of `key`. Sends no request until it's polled.
    pub(super) fn new(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
    ) -> Self {
        Self {
            driver: driver.clone(),
            key: key.clone(),
            timing: Timing::of(&driver.settings, driver.now(), invocation),
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
        let mut begun = Self::new(driver, key, fingerprint, invocation, way);
        begun.beside.wait_in_time().await;
        begun
    }

    pub(super) fn key(&self) -> &StoredKey {
        &self.key
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.timing
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
            lease_until: self.timing.lease_until,
            execution: Execution::AtLeastOnce,
            expires_at: Some(self.timing.lease_until),
            interrupted: false,
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

    /// Settles the shadow's record as `verdict` says.
    pub(crate) async fn conclude(&mut self, verdict: Verdict) {
        self.beside.conclude(verdict).await;
    }

    /// Commits `writes` without a record, if there are any. Then settles the shadow's record as `verdict` says.
    ///
    /// # Errors
    ///
    /// The last attempt to commit the writes wasn't applied, and nothing is settled.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: Option<&OwnWrites>,
    ) -> Result<Ending, Declined> {
        if let Some(writes) = writes {
            Box::pin(commit_alone(&self.driver, &self.key, self.timing.limits, writes)).await?;
        }
        self.conclude(verdict).await;
        Ok(Ending { end: End::Recorded, store_error: None, applied: None })
    }
}
