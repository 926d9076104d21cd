//! Leases: their length, and when a handler is cut off.

use std::time::Duration;

use crate::{invocation::Invocation, protocol::Limits, settings::Settings, time::Timestamp};

/// A settlement's last call ends at least `answer_reserve / HARD_FLOOR` before the deadline; see
/// [`Settings::answer_reserve`].
const HARD_FLOOR: u32 = 5;

/// When a claim's lease ends, and when its handler is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) lease_until: Timestamp,
    /// From this time on, it's too late to start the handler.
    pub(crate) usable_until: Timestamp,
    pub(crate) cut_off: Timestamp,
    /// When calls to the store must end.
    pub(crate) limits: Limits,
    /// How the lease is extended while the handler runs. `None` if it isn't extended.
    pub(super) extension: Option<Extension>,
}

/// How a lease is extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extension {
    length: Duration,
    /// The time between a handler's cut-off and its lease's end.
    grace: Duration,
    /// The latest end of the lease, and the latest cut-off of the handler. `None` if the deadline is unknown.
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
    /// Returns the timing of a claim that's made at `now`.
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

    /// Returns the timing for a lease that isn't extended, or for a run without a claim.
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

    /// Returns the time at which the handler is cut off under a lease that ends at `lease_until`.
    pub(super) fn cut_off_under(&self, lease_until: Timestamp) -> Timestamp {
        match self.extension {
            Some(extension) => extension.cut_off(lease_until),
            None => self.cut_off,
        }
    }
}

impl Extension {
    /// Returns the time at which the first extension is due for a lease that ends at `lease_until`.
    pub(super) fn due(&self, lease_until: Timestamp) -> Timestamp {
        lease_until.saturating_sub(self.length - self.interval())
    }

    /// The time from one extension to the next.
    pub(super) fn interval(&self) -> Duration {
        self.length / 3
    }

    /// The time from a failed extension to its retry.
    pub(super) fn retry(&self) -> Duration {
        self.length / 12
    }
}

/// Returns the time at which the caller of an operation that begins at `now` needs its answer: before the deadline, or
/// before the front end stops waiting if that's earlier. If the front end has stopped waiting, or is about to, only the
/// deadline counts: the handler runs until then, and the client's retry needs the record.
fn answer_by(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Option<Timestamp> {
    let reserve = settings.answer_reserve;
    let deadline = invocation.deadline().map(|deadline| deadline.saturating_sub(reserve));
    deadline.into_iter().chain(invocation.caller_waits_at(now.saturating_add(reserve))).min()
}

/// Returns the time at which calls to the store must end in this invocation.
fn limits(settings: &Settings, now: Timestamp, invocation: &Invocation) -> Limits {
    let Settings { answer_reserve: reserve, settle_within, fail_open, .. } = *settings;
    let before_deadline = |reserve| invocation.deadline().map(|deadline| deadline.saturating_sub(reserve));
    let answer_by = answer_by(settings, now, invocation);
    let ask_by = answer_by.map(|answer_by| {
        let left = now.until(answer_by);
        if fail_open {
            // If the store fails, the handler gets the other half of the time.
            now.saturating_add(left / 2)
        } else {
            // Leaves time to release a claim that the library gives up on.
            answer_by.saturating_sub(reserve.min(left / 4))
        }
    });
    Limits {
        ask_by,
        answer_by,
        // This limit doesn't apply if handlers aren't cut off: a handler may return after the deadline, and its result
        // is recorded too.
        last_call: before_deadline(reserve / HARD_FLOOR).filter(|_| settings.cut_off),
        reserve,
        ..Limits::unknown(settle_within)
    }
}
