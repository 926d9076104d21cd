//! Leases: their length, and when a handler is cut off.

use std::time::Duration;

use crate::{invocation::Invocation, protocol::Limits, settings::Settings, time::Timestamp};

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
    /// How the lease is extended while the handler runs, if it is.
    pub(super) extension: Option<Extension>,
}

/// How a lease is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extension {
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
    pub(super) fn lease_from(&self, now: Timestamp) -> Timestamp {
        let until = now.saturating_add(self.length);
        self.bounds.map_or(until, |bounds| until.min(bounds.lease_until))
    }

    pub(super) fn cut_off(&self, lease_until: Timestamp) -> Timestamp {
        let before = lease_until.saturating_sub(self.grace);
        self.bounds.map_or(before, |bounds| before.min(bounds.cut_off))
    }
}

impl Timing {
    /// The timing of a claim that's made at `now`.
    pub(crate) fn of(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Self {
        let deadline = invocation.deadline();
        let grace = settings.lease_grace;
        let Some(length) = settings.lease_extension.or(invocation.short_lease()) else {
            return Self::unextended(settings, now, invocation);
        };
        let bounds = deadline
            .map(|deadline| Bounds { lease_until: deadline.saturating_add(grace), cut_off: deadline });
        let extension = Extension { length, grace, bounds };
        let lease_until = extension.lease_from(now);
        let cut_off = extension.cut_off(lease_until);
        let latest_start = deadline.map(|deadline| deadline.saturating_sub(settings.answer_reserve));
        Self {
            lease_until,
            usable_until: latest_start.map_or(cut_off, |latest| latest.min(cut_off)),
            cut_off,
            limits: limits(settings, now, invocation),
            extension: Some(extension),
        }
    }

    /// The timing without extensions, or without a claim to extend.
    pub(super) fn unextended(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Self {
        let grace = settings.lease_grace;
        let (lease_until, usable_until, cut_off) = match invocation.deadline() {
            Some(deadline) => {
                let latest_start = deadline.saturating_sub(settings.answer_reserve);
                (deadline.saturating_add(grace), latest_start, deadline)
            }
            None => {
                let lease_until = now.saturating_add(settings.lease_fallback);
                let usable_until = lease_until.saturating_sub(grace);
                (lease_until, usable_until, usable_until)
            }
        };
        let limits = limits(settings, now, invocation);
        Self { lease_until, usable_until, cut_off, limits, extension: None }
    }

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

impl Extension {
    /// When the first extension is due, of a lease that ends at `lease_until`.
    pub(super) fn due(&self, lease_until: Timestamp) -> Timestamp {
        lease_until.saturating_sub(self.length - self.interval())
    }

    /// How long after an extension the next one is due.
    pub(super) fn interval(&self) -> Duration {
        self.length / 3
    }

    /// How long after a failure it's tried again.
    pub(super) fn retry(&self) -> Duration {
        self.length / 12
    }
}

/// When calls to the store must end in this invocation.
fn limits(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Limits {
    let Settings { answer_reserve: reserve, settle_within, fail_open, .. } = *settings;
    let before_deadline = |reserve| invocation.deadline().map(|deadline| deadline.saturating_sub(reserve));
    let answer_by = before_deadline(reserve).into_iter().chain(invocation.caller_waits_until()).min();
    let ask_by = answer_by.map(|answer_by| {
        let left = now.until(answer_by);
        if fail_open {
            // The rest of the time belongs to the handler.
            now.saturating_add(left / 2)
        } else {
            // Leaves time to release a claim that's given up.
            answer_by.saturating_sub(reserve.min(left / 4))
        }
    });
    Limits {
        ask_by,
        answer_by,
        // A result of work that isn't cut off may be late. It's recorded then too.
        last_call: before_deadline(reserve / HARD_FLOOR).filter(|_| settings.cut_off),
        reserve,
        ..Limits::unknown(settle_within)
    }
}
