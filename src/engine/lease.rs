//! Leases: how long one is, when its handler is cut off, and how it is extended while the handler runs.

use std::{future::pending, time::Duration};

use crate::{
    claim::{Claim, Extended},
    engine::{Engine, guard::CutOff},
    time::Timestamp,
};

/// Until when a claim stands, and when its handler is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) lease_until: Timestamp,
    pub(crate) usable_until: Timestamp,
    pub(crate) cut_off: Option<Timestamp>,
    extension: Option<Extension>,
}

/// How a lease is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extension {
    length: Duration,
    /// How long before its lease ends a handler is cut off.
    grace: Duration,
    /// No lease is longer than this, and no handler is polled after that, where the platform says so.
    limits: Option<Limits>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    lease_until: Timestamp,
    cut_off: Timestamp,
}

impl Extension {
    fn lease_from(&self, now: Timestamp) -> Timestamp {
        let until = now.saturating_add(self.length);
        self.limits.map_or(until, |limits| until.min(limits.lease_until))
    }

    fn cut_off(&self, lease_until: Timestamp) -> Timestamp {
        let before = lease_until.saturating_sub(self.grace);
        self.limits.map_or(before, |limits| before.min(limits.cut_off))
    }
}

impl Engine {
    pub(crate) fn timing(&self, now: Timestamp, deadline: Option<Timestamp>) -> Timing {
        let grace = self.settings.lease_grace;
        let Some(length) = self.settings.lease_extension else { return self.unextended(now, deadline) };
        let limits = deadline
            .map(|deadline| Limits { lease_until: deadline.saturating_add(grace), cut_off: deadline });
        let extension = Extension { length, grace, limits };
        let lease_until = extension.lease_from(now);
        let cut_off = extension.cut_off(lease_until);
        Timing { lease_until, usable_until: cut_off, cut_off: Some(cut_off), extension: Some(extension) }
    }

    /// The same where nothing is extended, or where nothing is claimed that could be.
    pub(super) fn unextended(&self, now: Timestamp, deadline: Option<Timestamp>) -> Timing {
        let grace = self.settings.lease_grace;
        let (lease_until, usable_until, cut_off) = match deadline {
            Some(deadline) => {
                let cut_off = (!self.settings.is_killed_at_deadline()).then_some(deadline);
                (deadline.saturating_add(grace), deadline, cut_off)
            }
            None => {
                let lease_until = now.saturating_add(self.settings.lease_fallback);
                let usable_until = lease_until.saturating_sub(grace);
                (lease_until, usable_until, Some(usable_until))
            }
        };
        Timing { lease_until, usable_until, cut_off, extension: None }
    }
}

impl Timing {
    /// Whether the lease is extended while the handler runs.
    pub(super) fn is_extended(&self) -> bool {
        self.extension.is_some()
    }

    /// When the handler is cut off, under a lease that ends then.
    pub(super) fn cut_off_under(&self, lease_until: Timestamp) -> Option<Timestamp> {
        match self.extension {
            Some(extension) => Some(extension.cut_off(lease_until)),
            None => self.cut_off,
        }
    }
}

/// Extends the claim's lease, a third of its length after it was made or extended last, for as long as it is polled.
/// Where that fails, it tries again after a twelfth: so there are five tries before the handler is cut off.
///
/// It ends when the claim is lost.
pub(super) async fn keep(claim: &mut Claim, cut_off: &CutOff, latest: Option<Timestamp>) {
    let Some(extension) = claim.timing().extension else { return pending().await };
    let third = extension.length / 3;
    // The lease may have run for a while: the claim took its time, or an earlier word of the handler's did.
    let due = claim.held().lease_until.saturating_sub(extension.length - third);
    let mut wait = claim.engine().clock.now().until(due);
    loop {
        let clock = &claim.engine().clock;
        clock.sleep(wait).await;
        let until = extension.lease_from(clock.now());
        if until <= claim.held().lease_until {
            // The platform's own deadline: nothing more is to be had.
            return pending().await;
        }
        wait = match claim.extend_until(until).await {
            Extended::Until(lease_until) => {
                let at = extension.cut_off(lease_until);
                cut_off.move_to(latest.map_or(at, |latest| latest.min(at)));
                third
            }
            Extended::NotNow => extension.length / 12,
            Extended::Lost => return,
        };
    }
}
