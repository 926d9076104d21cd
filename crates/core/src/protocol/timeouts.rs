//! When each call to the store must end, and how long pauses between calls may take.

use std::time::Duration;

use crate::{
    protocol::{
        Phase, Refusal, State,
        acquire::{Claiming, Goal},
        alone,
        commit::Basis,
        limits::{LATE_CALL, SHORTEST_CALL},
        plan::Task,
    },
    time::Timestamp,
};

/// Only used if the deadline is unknown. A process that begins a settling call this long after the call's time limit
/// counts as having been frozen: a scheduler's delay is much shorter, and a freeze between two invocations longer.
const FROZEN: Duration = Duration::from_secs(1);

impl State {
    /// Returns the time limit of the machine's latest request. After that time, the driver doesn't wait for the answer.
    /// `None` means no limit.
    pub fn call_until(&self, now: Timestamp) -> Option<Timestamp> {
        let limits = &self.plan.limits;
        let task = match &self.phase {
            Phase::Claiming(Claiming { goal: Goal::Record(task), .. })
            | Phase::LookingForClaim(Claiming { goal: Goal::Record(task), .. })
            | Phase::Settling { task, .. }
            | Phase::LookingForSettlement { task, .. } => task,
            Phase::Putting(commit) | Phase::Committing(commit) | Phase::LookingForCommit(commit) => {
                &commit.task
            }
            Phase::Fresh | Phase::Claiming(_) | Phase::LookingForClaim(_) | Phase::Looking { .. } => {
                return limits.ask_by;
            }
            Phase::Releasing { why, .. } => return self.release_by(now, *why),
            // If this extension isn't answered, there's time for another before the lease ends.
            Phase::Extending { running, .. } => {
                let left = now.until(running.held.lock.lease_until);
                return Some(now.saturating_add((left / 4).max(SHORTEST_CALL)));
            }
            Phase::Alone(task) => return Some(alone::call_until(*limits, now, task)),
            // A person waits for an operator's write, for as long as the store takes.
            Phase::Resolving(_) | Phase::LookingForResolution(_) => return None,
            Phase::Held(_) | Phase::Open(_) | Phase::Over => return None,
        };
        let until = self.settling_until(now, task)?;
        // Once the deadline has passed, another delivery may have taken over. A brief call shows whether it has. Lambda no
        // longer waits for the answer, but a recorded outcome prevents a second run.
        let (last, wait) = match limits.answer_by {
            Some(answer_by) => (answer_by, limits.reserve),
            None => (until, FROZEN),
        };
        let is_late = until <= now && last.saturating_add(wait) <= now;
        Some(if is_late { now.saturating_add(LATE_CALL) } else { until })
    }

    /// Returns the time at which the release of an unused claim must be answered. The release is sent even if its limit
    /// has passed. Otherwise, the claim would keep the key although nothing ran, and under at-most-once, only an operator
    /// could free it. Lambda may end the invocation at its deadline, so the release must end before the deadline, unless
    /// the deadline has already passed.
    fn release_by(&self, now: Timestamp, why: Refusal) -> Option<Timestamp> {
        let limits = &self.plan.limits;
        let asked = limits.ask_by.filter(|_| why != Refusal::NoTimeLeft);
        let asked = asked.map(|ask_by| ask_by.saturating_add(limits.reserve));
        let by = asked.into_iter().chain(limits.answer_by).min()?;
        if now < by {
            return Some(by);
        }
        let late = now.saturating_add(limits.reserve.max(LATE_CALL));
        let last = limits.last_call().unwrap_or(self.plan.start_by().saturating_add(limits.reserve));
        Some(if now < last { late.min(last) } else { late })
    }

    /// Returns the time at which a settling call must be answered in a process that wasn't frozen.
    fn settling_until(&self, now: Timestamp, task: &Task) -> Option<Timestamp> {
        let limits = &self.plan.limits;
        let left = now.until(task.by);
        if task.retries == 0 && left <= limits.reserve {
            return limits.last_call();
        }
        // No single call gets all the time that's left, so that an unanswered call leaves time for another. No
        // call gets all the time until the lease's end either: once the lease ends, another executor can take
        // over and run the handler again.
        let lease = self.settled_lease().map(|lease_until| now.until(lease_until));
        let left = lease.filter(|lease| !lease.is_zero()).map_or(left, |lease| left.min(lease));
        Some(now.saturating_add((left / 2).max(SHORTEST_CALL)).min(task.by))
    }

    /// Returns the end of the lease under which the handler ran, if its outcome is being stored.
    fn settled_lease(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Settling { held, .. } | Phase::LookingForSettlement { held, .. } => {
                Some(held.lock.lease_until)
            }
            Phase::Committing(commit) | Phase::LookingForCommit(commit) => match &commit.basis {
                Basis::Claim(held) => Some(held.lock.lease_until),
                Basis::Open(_) => None,
            },
            _ => None,
        }
    }

    /// Returns how long an [`Action::Pause`](crate::protocol::Action::Pause) of `pause` takes: at most half of
    /// the time that's left, so that a store that recovers just before the end still gets a request.
    pub fn pause_for(&self, pause: Duration, now: Timestamp) -> Duration {
        self.call_until(now).map_or(pause, |until| pause.min(now.until(until) / 2))
    }
}
