//! The basis of every decision about a claim: the rules, the claim's parameters, and how to settle it.

use std::{sync::Arc, time::Duration};

use crate::{
    fingerprint::Fingerprint,
    outcome::Outcome,
    protocol::{Limits, limits::SHORTEST_ANSWER},
    record::{Mark, Owner, Status},
    settings::Execution,
    store::toolkit::SWEEP_MARGIN,
    time::Timestamp,
};

/// A STARTED record outlives its lease by at least this much, so that the sweeper never removes a lock that
/// may still be live.
pub(super) const MIN_LOCK_RETENTION: Duration = SWEEP_MARGIN;
/// How long an interrupted claim keeps its key, unless a reconciler's `arrives_within` is longer. A request that the
/// handler's process sent just before its end may still be on its way, and another run should find its effect. Most
/// requests end or time out within seconds. A question that failed is asked again after the same time.
pub(super) const INTERRUPTED_LEASE: Duration = Duration::from_secs(10);

/// The settings that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The maximum difference between the executors' clocks.
    pub skew_margin: Duration,
    /// How long a settled record is replayed.
    pub retention: Duration,
    /// How stale claims are handled.
    pub execution: Execution,
    /// How an attempt that ended without an answer is reconciled. `None`: no question is asked, so the handler runs again if it may.
    pub reconcile: Option<Reconcile>,
}

/// How an operation asks the remote system for the effect of an attempt that ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reconcile {
    /// How long an effect can still be on its way after the attempt's lease. No question is asked before.
    pub arrives_within: Duration,
    /// Whether the handler may run again under at-most-once if the effect didn't happen.
    pub reruns_when_absent: bool,
}

impl Rules {
    /// Returns the time at which a key becomes claimable, given its claim's `lease_until`, if that claim's handler may run.
    /// This and [`unanswered_until`](Self::unanswered_until) are the only places that compute it.
    #[must_use]
    pub fn claimable_at(&self, lease_until: Timestamp) -> Timestamp {
        self.unanswered_until(lease_until.saturating_add(self.arrives_within()))
    }

    /// Returns the time at which a key becomes claimable whose claim's handler is known to have ended without an answer.
    #[must_use]
    pub fn unanswered_until(&self, lease_until: Timestamp) -> Timestamp {
        lease_until.saturating_add(self.skew_margin).saturating_add(Duration::from_millis(1))
    }

    fn arrives_within(&self) -> Duration {
        self.reconcile.map_or(Duration::ZERO, |reconcile| reconcile.arrives_within)
    }

    /// Returns when the wait for a STARTED record ends, without the skew margin: with its lease, and then the time in which
    /// its handler's effect may still arrive.
    pub(super) fn waits_until(&self, lease_until: Timestamp, mark: Mark) -> Timestamp {
        match mark {
            // The executor that wrote the mark has included that time.
            Mark::Unanswered => lease_until,
            _ => lease_until.saturating_add(self.arrives_within()),
        }
    }

    /// Whether a claim with this mark asks before its handler runs.
    pub(super) fn asks(&self, mark: Mark) -> bool {
        self.reconcile.is_some() && mark.is_interrupted()
    }

    /// Whether the handler may run if the question's answer is that the effect didn't happen.
    pub fn reruns_when_absent(&self) -> bool {
        let allows = self.reconcile.is_some_and(|reconcile| reconcile.reruns_when_absent);
        self.execution == Execution::AtLeastOnce || allows
    }

    /// Whether `time` has passed at `now` on every executor's clock.
    pub(super) fn have_passed(&self, time: Timestamp, now: Timestamp) -> bool {
        time.saturating_add(self.skew_margin) < now
    }
}

/// The parameters of one claim, fixed before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The rules to apply.
    pub rules: Rules,
    /// The owner drawn for this claim.
    pub owner: Owner,
    /// The request's fingerprint.
    pub fingerprint: Fingerprint,
    /// The claim's first lease, and the time limits.
    pub limits: Limits,
    /// The invocation's request ID, for people who search the logs.
    pub request_id: Option<Arc<str>>,
    /// The run's own trace, to which replays of its outcome link.
    pub trace: Option<Arc<String>>,
}

impl Plan {
    /// From this time on, it's too late to start the handler. A claim that's recovered from its record has the record's
    /// lease, which may end earlier.
    pub fn start_by(&self) -> Timestamp {
        self.limits.start_by(self.limits.lease_until)
    }

    /// Returns the time at which a STARTED record under this lease expires. Under at-most-once it never expires: if the
    /// record of a dead run were deleted, another delivery could run the handler again.
    pub(super) fn lock_expiry(&self, lease_until: Timestamp) -> Option<Timestamp> {
        match self.rules.execution {
            Execution::AtLeastOnce => Some(self.release_expiry(lease_until)),
            Execution::AtMostOnce => None,
        }
    }

    /// Returns the time at which a record that's released under this lease expires.
    pub(super) fn release_expiry(&self, lease_until: Timestamp) -> Timestamp {
        let retention = self.rules.retention.max(MIN_LOCK_RETENTION);
        lease_until.saturating_add(retention).rounded_up_to_second()
    }
}

/// How to settle a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Store this outcome.
    Complete(Outcome),
    /// Store this outcome together with the handler's own writes, atomically.
    Commit(Outcome),
    /// Store this permanent failure.
    Fail(Outcome),
    /// Release the key.
    Release {
        /// Whether this attempt ended without an answer, for example by a panic.
        interrupted: bool,
    },
    /// Leave the claim unsettled and mark it: it ended without an answer, and nothing runs under it any more. Its lease
    /// ends at this time, when the next delivery takes over, and learns of the interruption. Under at-most-once, nothing
    /// changes, unless the operation has a reconciler.
    Unanswered {
        /// When the lease ends; see [`State::unanswered`](crate::protocol::State::unanswered).
        until: Timestamp,
    },
}

impl Intent {
    /// The status that the record gets.
    pub const fn status(&self) -> Status {
        match self {
            Self::Complete(_) | Self::Commit(_) => Status::Completed,
            Self::Fail(_) => Status::Failed,
            Self::Release { .. } => Status::Released,
            Self::Unanswered { .. } => Status::Started,
        }
    }

    /// Turns a success into a commit together with the handler's own writes. Any other intent stays as it is.
    pub fn committed(self) -> Self {
        match self {
            Self::Complete(outcome) => Self::Commit(outcome),
            other => other,
        }
    }
}

/// A settlement: its intent, until when it's retried, and how many retries it has had.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Task {
    pub(super) intent: Intent,
    pub(super) by: Timestamp,
    pub(super) retries: u8,
    /// Whether a transaction of this run was declined after an ambiguous answer. Such a transaction may still be
    /// applied, as long as nothing fences it.
    pub(super) is_in_doubt: bool,
    /// Whether the outcome was found by asking the remote system.
    pub(super) is_reconciled: bool,
}

impl Task {
    pub(super) fn new(plan: &Plan, now: Timestamp, intent: Intent, is_in_doubt: bool) -> Self {
        let by = match intent {
            // The caller gets no answer, so it doesn't matter how long the front end waits.
            Intent::Unanswered { .. } => now.saturating_add(plan.limits.settle_within),
            _ => plan.limits.settle_by(now),
        };
        Self { intent, by, retries: 0, is_in_doubt, is_reconciled: false }
    }

    /// Counts one more retry and returns its number. If there's no time for another retry, or the limits' maximum
    /// number is reached, the error is the unchanged task.
    pub(super) fn again(self, plan: &Plan, now: Timestamp) -> Result<(Self, u8), Self> {
        let nth = self.retries;
        if plan.limits.max_retries.is_some_and(|most| nth >= most) || now.until(self.by) < SHORTEST_ANSWER {
            return Err(self);
        }
        Ok((Self { retries: nth.saturating_add(1), ..self }, nth))
    }
}
