//! The rights under which a handler runs: a claim, an optimistic run, and the right of a run that isn't enforced.

use std::future::{Future, pending};

use crate::{
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    record::Generation,
    run::{
        begin::begin,
        claim::{Begun, Claim},
        driver::{Declined, Driver, Ending, Way},
        extension::keep,
        handle::ClaimHandle,
        optimistic::Optimistic,
        refusal::Refused,
        response::Verdict,
        unenforced::Unenforced,
        watch::{CutOff, Ended, watch},
    },
    store::OwnWrites,
    time::{Clock, Timestamp},
};

/// The right that a handler runs under.
pub(super) enum Right {
    Claim(Claim),
    Optimistic(Optimistic),
    Unenforced(Box<Unenforced>),
}

impl Right {
    /// Returns the right to run, or the recorded outcome.
    pub(super) async fn begin(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
    ) -> Result<Begun<Self>, Refused> {
        if !driver.settings.is_enforced() {
            let right = Unenforced::new(driver, key, fingerprint, invocation, way);
            return Ok(Begun::Claimed(Self::Unenforced(Box::new(right))));
        }
        Ok(match way {
            Way::Claimed => begin(driver, key, fingerprint, invocation).await?.map(Self::Claim),
            Way::Optimistic { reads_first } => {
                Optimistic::begin(driver, key, fingerprint, invocation, reads_first)
                    .await?
                    .map(Self::Optimistic)
            }
        })
    }

    /// What the handler sees of its claim.
    pub(super) fn handle(&self, way: Way) -> Option<ClaimHandle> {
        match self {
            Self::Claim(claim) => Some(claim.handle()),
            Self::Optimistic(_) => None,
            Self::Unenforced(it) => (way == Way::Claimed).then(|| it.handle()),
        }
    }

    pub(super) fn answer_by(&self) -> Option<Timestamp> {
        match self {
            Self::Claim(claim) => claim.answer_by(),
            Self::Optimistic(it) => it.answer_by(),
            Self::Unenforced(it) => it.timing().limits.answer_by,
        }
    }

    pub(super) fn key(&self) -> &StoredKey {
        match self {
            Self::Claim(claim) => claim.key(),
            Self::Optimistic(it) => it.key(),
            Self::Unenforced(it) => it.key(),
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
    pub(super) async fn watch<T>(
        &mut self,
        clock: &dyn Clock,
        latest: Option<Timestamp>,
        running: impl Future<Output = T>,
    ) -> Ended<T> {
        let at = match self {
            Self::Claim(claim) => claim.timing().cut_off_under(claim.held().lock.lease_until),
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
        let at = latest.map_or(at, |latest| latest.min(at));
        let cut_off = match self {
            Self::Claim(claim) if !claim.driver().settings.cut_off => CutOff::before_start(at),
            _ => CutOff::at(Some(at)),
        };
        match self {
            Self::Claim(claim) if claim.timing().is_extended() => {
                let keeping = Box::pin(keep(claim, &cut_off, latest));
                watch(running, clock, &cut_off, Some(keeping)).await
            }
            _ => watch(running, clock, &cut_off, None).await,
        }
    }

    /// Reports a run without a claim. A run under a claim was reported when the key was claimed.
    pub(super) fn report_run<T>(&self, ended: &Ended<T>) {
        if let (Self::Optimistic(it), Ended::Returned(_) | Ended::Panicked(_)) = (self, ended) {
            observe::ran_optimistically(it.key());
        }
    }

    pub(super) async fn settle_with(
        &mut self,
        verdict: Verdict,
        writes: Option<&OwnWrites>,
    ) -> Result<Ending, Declined> {
        match self {
            Self::Claim(claim) => claim.settle_with(verdict, writes).await,
            Self::Optimistic(it) => it.settle_with(verdict, writes).await,
            Self::Unenforced(it) => it.settle_with(verdict, writes).await,
        }
    }
}
