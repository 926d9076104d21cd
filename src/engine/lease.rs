//! Leases: their length, when a handler is cut off, and how they're extended while it runs.

use std::{future::pending, time::Duration};

use crate::{
    claim::{Claim, Extended},
    engine::{Engine, guard::CutOff},
    invocation::Invocation,
    policy::{OnStoreFailure, Settings},
    protocol::Limits,
    time::Timestamp,
};

/// The part of [`Settings::answer_reserve`] that a last settlement leaves before the deadline.
const HARD_FLOOR: u32 = 5;

/// When a claim's lease ends, and when its handler is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) lease_until: Timestamp,
    pub(crate) usable_until: Timestamp,
    pub(crate) cut_off: Timestamp,
    /// When calls to the store must end.
    pub(crate) limits: Limits,
    extension: Option<Extension>,
}

/// How a lease is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extension {
    length: Duration,
    /// How long before its lease ends a handler is cut off.
    grace: Duration,
    /// No lease ends after these bounds, and no handler is polled after them.
    bounds: Option<Bounds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    lease_until: Timestamp,
    cut_off: Timestamp,
}

impl Extension {
    fn lease_from(&self, now: Timestamp) -> Timestamp {
        let until = now.saturating_add(self.length);
        self.bounds.map_or(until, |bounds| until.min(bounds.lease_until))
    }

    fn cut_off(&self, lease_until: Timestamp) -> Timestamp {
        let before = lease_until.saturating_sub(self.grace);
        self.bounds.map_or(before, |bounds| before.min(bounds.cut_off))
    }
}

impl Engine {
    pub(crate) fn timing(&self, now: Timestamp, invocation: &Invocation) -> Timing {
        let deadline = invocation.deadline();
        let grace = self.settings.lease_grace;
        let Some(length) = self.settings.lease_extension.or(invocation.short_lease()) else {
            return self.unextended(now, invocation);
        };
        let bounds = deadline
            .map(|deadline| Bounds { lease_until: deadline.saturating_add(grace), cut_off: deadline });
        let extension = Extension { length, grace, bounds };
        let lease_until = extension.lease_from(now);
        let cut_off = extension.cut_off(lease_until);
        let latest_start = deadline.map(|deadline| deadline.saturating_sub(self.settings.answer_reserve));
        Timing {
            lease_until,
            usable_until: latest_start.map_or(cut_off, |latest| latest.min(cut_off)),
            cut_off,
            limits: self.limits(now, invocation),
            extension: Some(extension),
        }
    }

    /// The timing without extensions, or without a claim to extend.
    pub(crate) fn unextended(&self, now: Timestamp, invocation: &Invocation) -> Timing {
        let grace = self.settings.lease_grace;
        let (lease_until, usable_until, cut_off) = match invocation.deadline() {
            Some(deadline) => {
                let latest_start = deadline.saturating_sub(self.settings.answer_reserve);
                (deadline.saturating_add(grace), latest_start, deadline)
            }
            None => {
                let lease_until = now.saturating_add(self.settings.lease_fallback);
                let usable_until = lease_until.saturating_sub(grace);
                (lease_until, usable_until, usable_until)
            }
        };
        let limits = self.limits(now, invocation);
        Timing { lease_until, usable_until, cut_off, limits, extension: None }
    }

    /// When calls to the store must end in this invocation.
    fn limits(&self, now: Timestamp, invocation: &Invocation) -> Limits {
        let Settings { answer_reserve: reserve, settle_within, on_store_failure, .. } = self.settings;
        let before_deadline =
            |reserve| invocation.deadline().map(|deadline| deadline.saturating_sub(reserve));
        let answer_by = before_deadline(reserve).into_iter().chain(invocation.caller_waits_until()).min();
        let ask_by = answer_by.map(|answer_by| {
            let left = now.until(answer_by);
            match on_store_failure {
                // The rest of the time belongs to the handler.
                OnStoreFailure::RunUnprotected => now.saturating_add(left / 2),
                // Leaves time to release a claim that's given up.
                OnStoreFailure::Refuse => answer_by.saturating_sub(reserve.min(left / 4)),
            }
        });
        Limits {
            ask_by,
            answer_by,
            last_call: before_deadline(reserve / HARD_FLOOR),
            reserve,
            ..Limits::unknown(settle_within)
        }
    }
}

impl Timing {
    /// Whether the lease is extended while the handler runs.
    pub(super) fn is_extended(&self) -> bool {
        self.extension.is_some()
    }

    /// When the handler is cut off, under a lease that ends at `lease_until`.
    pub(super) fn cut_off_under(&self, lease_until: Timestamp) -> Timestamp {
        match self.extension {
            Some(extension) => extension.cut_off(lease_until),
            None => self.cut_off,
        }
    }
}

/// Extends the claim's lease while it's polled, whenever a third of its length has passed. After a failure,
/// it retries after a twelfth of the length. So there are five attempts before the handler is cut off.
///
/// It ends when the claim is lost.
pub(super) async fn keep(claim: &mut Claim, cut_off: &CutOff, latest: Option<Timestamp>) {
    let Some(extension) = claim.timing().extension else { return pending().await };
    let third = extension.length / 3;
    // Part of the lease may have passed: acquiring the claim took time, or the handler ran before its
    // `on_declined` closure.
    let due = claim.held().lease_until.saturating_sub(extension.length - third);
    let mut wait = claim.engine().clock.now().until(due);
    loop {
        let clock = &claim.engine().clock;
        clock.sleep(wait).await;
        let until = extension.lease_from(clock.now());
        if until <= claim.held().lease_until {
            // The deadline is reached, or the clock was set back: a longer lease isn't possible.
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
