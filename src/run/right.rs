//! The rights under which a handler runs: a claim, an optimistic run, which may be in the caller's own transaction, and
//! the right of a run that isn't enforced.

use std::{
    future::{Future, pending},
    time::Duration,
};

use crate::{
    error::Error,
    fingerprint::Fingerprint,
    internal::SettingsExt as _,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{End, LATE_CALL, Limits},
    record::{Generation, Record, Status},
    run::{
        begin::begin,
        claim::{Begun, Claim},
        driver::{Declined, Driver, Ending, Inside, Way},
        extension::keep,
        handle::ClaimHandle,
        optimistic::Optimistic,
        refusal::{self, Refused, concluded, not_committed, unresolved},
        response::Verdict,
        unenforced::Unenforced,
        watch::{CutOff, Ended, watch},
    },
    settings::Execution,
    store::{OwnWrites, StoreError},
    time::{Clock, Timestamp},
};

/// The right that a handler runs under.
pub(super) enum Right<'t> {
    Claim(Claim),
    Optimistic(Optimistic<'t>),
    Unenforced(Box<Unenforced<'t>>),
}

impl<'t> Right<'t> {
    /// Returns the right to run, or the recorded outcome. `inside` is the caller's transaction, if the library began
    /// one.
    pub(super) async fn begin(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
        inside: Option<&'t dyn Inside>,
    ) -> Result<Begun<Self>, Refused> {
        if !driver.settings.is_enforced() {
            let right = Unenforced::new(driver, key, fingerprint, invocation, way, inside);
            return Ok(Begun::Claimed(Self::Unenforced(Box::new(right))));
        }
        Ok(match way {
            Way::Claimed => begin(driver, key, fingerprint, invocation).await?.map(Self::Claim),
            Way::Optimistic { reads_first } => {
                Optimistic::begin(driver, key, fingerprint, invocation, reads_first, inside)
                    .await?
                    .map(Self::Optimistic)
            }
        })
    }

    /// The handler's view of its claim.
    pub(super) fn handle(&self, way: Way) -> Option<ClaimHandle> {
        match self {
            Self::Claim(claim) => Some(claim.handle()),
            Self::Optimistic(_) => None,
            Self::Unenforced(it) => (way == Way::Claimed).then(|| it.handle()),
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        match self {
            Self::Claim(claim) => claim.limits(),
            Self::Optimistic(it) => it.limits(),
            Self::Unenforced(it) => it.limits(),
        }
    }

    pub(super) fn key(&self) -> &StoredKey {
        match self {
            Self::Claim(claim) => claim.key(),
            Self::Optimistic(it) => it.key(),
            Self::Unenforced(it) => it.key(),
        }
    }

    /// Whether the remote system must be asked for an earlier attempt's effect before the handler runs.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self, Self::Claim(claim) if claim.is_asking())
    }

    /// Continues after a question whose answer is that the earlier attempt had no effect.
    ///
    /// # Errors
    ///
    /// The handler may not run, or no time is left for it.
    pub(super) async fn did_not_happen(&mut self) -> Result<(), Refused> {
        match self {
            Self::Claim(claim) => claim.did_not_happen().await,
            Self::Optimistic(_) | Self::Unenforced(_) => Ok(()),
        }
    }

    /// When the lease ends that's left to the next attempt; see [`State::unanswered`](crate::protocol::State::unanswered).
    pub(super) fn unanswered_until(&self, now: Timestamp, ask_again_after: Option<Duration>) -> Timestamp {
        match self {
            Self::Claim(claim) => claim.unanswered_until(now, ask_again_after),
            Self::Optimistic(_) | Self::Unenforced(_) => now,
        }
    }

    /// When the claim's lease ends, if there's a claim.
    pub(super) fn lease_until(&self) -> Option<Timestamp> {
        match self {
            Self::Claim(claim) => Some(claim.held().lock.lease_until),
            Self::Optimistic(_) | Self::Unenforced(_) => None,
        }
    }

    /// The claim's generation, if there's a claim.
    pub(super) fn generation(&self) -> Option<Generation> {
        match self {
            Self::Claim(claim) => Some(claim.held().lock.generation),
            Self::Optimistic(_) | Self::Unenforced(_) => None,
        }
    }

    /// Polls the handler until its time is over, and extends the claim's lease while the handler runs.
    pub(super) async fn watch<T>(&mut self, clock: &dyn Clock, running: impl Future<Output = T>) -> Ended<T> {
        let at = match self {
            Self::Claim(claim) => Some(claim.limits().cut_off(claim.held().lock.lease_until)),
            Self::Optimistic(it) => it.cut_off(),
            Self::Unenforced(it) => {
                let company = Box::pin(async {
                    it.wait().await;
                    // If this future ended, `watch` would cut the handler off.
                    pending().await
                });
                return watch(running, clock, &CutOff::at(None), Some(company)).await;
            }
        };
        let may_run_on = match self {
            Self::Claim(claim) => !claim.limits().cuts_off,
            Self::Optimistic(it) => it.may_run_on(),
            Self::Unenforced(_) => true,
        };
        let cut_off = match at {
            Some(at) if may_run_on => CutOff::before_start(at),
            at => CutOff::at(at),
        };
        match self {
            Self::Claim(claim) if claim.limits().lease_extension.is_some() => {
                let keeping = Box::pin(keep(claim, &cut_off));
                watch(running, clock, &cut_off, Some(keeping)).await
            }
            _ => watch(running, clock, &cut_off, None).await,
        }
    }

    /// Reports a run without a claim. A run under a claim was reported when the key was claimed.
    pub(super) fn report_run<T>(&self, ended: &Ended<T>) {
        match (self, ended) {
            (Self::Optimistic(it), Ended::Returned(_) | Ended::Panicked(_)) if !it.is_inside() => {
                observe::ran_optimistically(it.key());
            }
            _ => {}
        }
    }

    pub(super) async fn settle(&mut self, verdict: Verdict) -> Ending {
        match self {
            Self::Claim(claim) => claim.settle(verdict).await,
            Self::Optimistic(it) => it.settle(verdict).await,
            Self::Unenforced(it) => it.settle(verdict).await,
        }
    }

    /// Settles together with the handler's own `writes`.
    ///
    /// # Errors
    ///
    /// The transaction's last attempt wasn't applied.
    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: &OwnWrites,
    ) -> Result<Ending, Declined> {
        match self {
            Self::Claim(claim) => claim.settle_with(verdict, writes).await,
            Self::Optimistic(it) => it.settle_with(verdict, writes).await,
            Self::Unenforced(it) => it.settle_with(verdict, writes).await,
        }
    }

    /// Whether a run under at-most-once lost its claim because an operator settled or released the record. Returns `false`
    /// if the record can't be read within [`LATE_CALL`].
    async fn is_replaced(&self, driver: &Driver) -> bool {
        let Self::Claim(claim) = self else { return false };
        if driver.settings.execution != Execution::AtMostOnce || !claim.is_lost() {
            return false;
        }
        let now = driver.now();
        let soon = now.saturating_add(LATE_CALL);
        let until = claim.limits().last_call().map_or(soon, |last| last.min(soon));
        let found = driver.in_time(now, Some(until), driver.store().read(claim.key())).await;
        let held = claim.held();
        matches!(found, Ok(Some(record)) if record.status() != Status::Started
            || (record.owner, record.generation) != (held.lock.owner, held.lock.generation))
    }

    /// Reports a handler that was cut off, and returns the caller's error.
    ///
    /// The claim isn't settled, since the interrupted handler may still have an effect. Under at-least-once, the end of
    /// the claim's lease frees the key. Without a claim, nothing was written, unless a declined transaction is in doubt.
    pub(super) async fn cut_off(&self, driver: &Driver) -> Error {
        let is_replaced = self.is_replaced(driver).await;
        let (key, now) = (self.key(), driver.now());
        observe::cut_off(key, self.generation(), now);
        match self {
            Self::Claim(claim) => {
                let until = driver.rules().claimable_at(claim.held().lock.lease_until);
                refusal::cut_off(key, &driver.rules(), until, is_replaced, now)
            }
            Self::Optimistic(it) if it.is_in_doubt() => unresolved(key, None, None, now),
            Self::Optimistic(_) | Self::Unenforced(_) => refusal::cut_off_unclaimed(key),
        }
    }

    /// Gives the right up after its handler was cut off. Rolls the caller's transaction back, if there's one. Nothing
    /// else is settled.
    pub(super) async fn give_up(&self) {
        if let Self::Optimistic(it) = self {
            it.roll_back().await;
        }
    }

    /// As [`concluded`]. `cause` is the store's last error.
    pub(super) fn concluded(
        &self,
        driver: &Driver,
        end: End,
        cause: Option<StoreError>,
    ) -> Result<Option<Record>, Error> {
        match (self, &end, cause) {
            (Self::Optimistic(it), _, cause) => it.concluded(end, cause),
            // The caller's transaction wasn't committed.
            (Self::Unenforced(it), End::NotCommitted(_), Some(cause)) => Err(not_committed(it.key(), cause)),
            (_, _, cause) => concluded(self.key(), end, cause, driver.now()),
        }
    }
}
