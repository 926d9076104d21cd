//! The time limits of calls to the store.

use std::time::Duration;

use crate::{
    protocol::{
        Phase, Refusal, State,
        acquire::{Claiming, Goal},
        commit::Basis,
        plan::Task,
    },
    time::Timestamp,
};

/// The most retries of one settlement: more than fit into 30 seconds of pauses.
pub const MAX_RETRIES: u8 = 100;
/// Each settling call gets at least this long, if there's time, before it's abandoned and retried.
const SHORTEST_CALL: Duration = Duration::from_millis(250);
/// A process that reaches a settling call this long after the call's limit was frozen, and its deadline has passed.
const FROZEN: Duration = Duration::from_secs(1);
/// The limit of each call by which such a process records its outcome, or reads what happened to it. Lambda
/// no longer waits for its answer. But a recorded effect isn't repeated, and the log tells the truth.
const AFTER_A_FREEZE: Duration = Duration::from_millis(500);

/// When calls to the store must end, so that the resulting answer still reaches the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The limit of calls that claim, or that read before a claim. `None` means no limit.
    pub ask_by: Option<Timestamp>,
    /// The limit of all other calls: the deadline less the reserve, or the time when the front end stops waiting.
    pub answer_by: Option<Timestamp>,
    /// The limit of a first settlement call that has at most `reserve` left.
    pub last_call: Option<Timestamp>,
    /// How long before the deadline calls end.
    pub reserve: Duration,
    /// How long a settlement is retried while the store fails.
    pub settle_within: Duration,
    /// The most retries. Time runs out long before; this limits retries when the clock doesn't move.
    pub max_retries: u8,
}

impl Limits {
    /// The limits of an invocation whose deadline is unknown.
    pub const fn unknown(settle_within: Duration) -> Self {
        Self {
            ask_by: None,
            answer_by: None,
            last_call: None,
            reserve: Duration::ZERO,
            settle_within,
            max_retries: MAX_RETRIES,
        }
    }
}

impl State {
    /// When the last action must be answered. After that, it counts as unanswered. `None` means no limit.
    pub fn call_until(&self, now: Timestamp) -> Option<Timestamp> {
        let limits = &self.plan.limits;
        let task = match &self.phase {
            Phase::Claiming(Claiming { goal: Goal::Record(task), .. })
            | Phase::LookingForClaim(Claiming { goal: Goal::Record(task), .. })
            | Phase::Settling { task, .. }
            | Phase::LookingForSettlement { task, .. } => task,
            Phase::Committing(commit) | Phase::LookingForCommit(commit) => &commit.task,
            Phase::Fresh | Phase::Claiming(_) | Phase::LookingForClaim(_) | Phase::Looking => {
                return limits.ask_by;
            }
            Phase::Releasing { why: Refusal::NoTimeLeft, .. } => return limits.answer_by,
            Phase::Releasing { .. } => {
                let until = limits.ask_by.map(|ask_by| ask_by.saturating_add(limits.reserve));
                return until.into_iter().chain(limits.answer_by).min();
            }
            // An unanswered extension leaves time for another before the lease ends.
            Phase::Extending { running, .. } => {
                let left = now.until(running.held.lease_until);
                return Some(now.saturating_add((left / 4).max(SHORTEST_CALL)));
            }
            Phase::Held(_) | Phase::Open(_) | Phase::Over => return None,
        };
        let until = self.settling_until(now, task)?;
        let was_frozen = until.saturating_add(FROZEN) < now;
        Some(if was_frozen { now.saturating_add(AFTER_A_FREEZE) } else { until })
    }

    /// When a call that settles must be answered, of a process that wasn't frozen.
    fn settling_until(&self, now: Timestamp, task: &Task) -> Option<Timestamp> {
        let limits = &self.plan.limits;
        let left = now.until(task.by);
        if task.retries == 0 && left <= limits.reserve {
            return limits.last_call;
        }
        // No single call takes all the time that's left, so that an unanswered one leaves room for others. It
        // doesn't take all the time that the lease has left either: once the lease ends, another executor
        // takes over and runs again.
        let lease = self.settled_lease().map(|lease_until| now.until(lease_until));
        let left = lease.filter(|lease| !lease.is_zero()).map_or(left, |lease| left.min(lease));
        Some(now.saturating_add((left / 2).max(SHORTEST_CALL)).min(task.by))
    }

    /// When the lease ends under which the handler ran, while its outcome is being stored.
    fn settled_lease(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Settling { held, .. } | Phase::LookingForSettlement { held, .. } => Some(held.lease_until),
            Phase::Committing(commit) | Phase::LookingForCommit(commit) => match &commit.basis {
                Basis::Claim(held) => Some(held.lease_until),
                Basis::Open(_) => None,
            },
            _ => None,
        }
    }

    /// When the preparation of a settlement that begins at `now` must end, for example writing its chunks.
    /// The other half of the time is for the settlement itself.
    pub fn prepare_until(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(now.until(self.plan.settle_by(now)) / 2)
    }

    /// How long an [`Action::Pause`](crate::protocol::Action::Pause) of `pause` really takes. The less time is
    /// left, the shorter it is, so that a store that recovers just before the end still gets a request.
    pub fn pause_for(&self, pause: Duration, now: Timestamp) -> Duration {
        self.call_until(now).map_or(pause, |until| pause.min(now.until(until) / 2))
    }
}
