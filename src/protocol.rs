//! The pure state machine: all the rules about claiming, settling, and handling ambiguous answers.
//!
//! [`step`] takes a state and an input, and returns the next state and the one action to perform. It does no
//! I/O, reads no clock and draws no randomness: every input carries the time, and the plan carries the owner.
//! The engine performs the actions and feeds the answers back. Tests can do the same in any order, on the
//! code that ships.
//!
//! ```text
//! Begin ─▶ Apply(T1) ─ applied ───────────────▶ Claimed ── Settle ─▶ Apply(T4-6) ─ applied ─▶ Settled
//!            │  └ refused ─ judge the record ─▶ Replay │ Refused │ Apply(T2│T3)        │
//!            └ doubtful ─▶ Read ─ judge what is there                doubtful ─▶ Read ─┘
//! ```
//!
//! While a claim is held, its lease can be extended (T7). If the handler has staged its own writes, the
//! settlement is a transaction ([`Action::Commit`], T8). If those writes are the handler's only effect, it
//! needs no claim: the library puts the finished record together with them ([`Write::Conclude`]), and a
//! duplicate that comes second writes nothing.
//!
//! ```text
//! Look ─▶ Read ─ nothing that counts ─▶ Open ── Settle ─▶ Commit(conclusion) ─ applied ─▶ Settled
//!            └ judge the record ─▶ Replay │ Refused         │    └ declined ─▶ Declined ── Settle ─▶ …
//!                                                           └ refused ─ judge the record ─▶ Settled │ again
//! ```

mod acquire;
mod commit;
mod doubt;
mod extend;
mod judge;
mod open;
mod operator;
mod settle;

pub(crate) use judge::{Recalled, recall};
pub use operator::{NextDelivery, Outlook, is_same_claim, outlook, resolve};

use std::{sync::Arc, time::Duration};

use crate::{
    fingerprint::Fingerprint,
    outcome::Outcome,
    policy::Execution,
    record::{Generation, Lock, Owner, Record, Status},
    store::{StoreErrorKind, Write, WriteOutcome},
    time::Timestamp,
};

use acquire::{Claiming, Goal, RECORDING_LEASE};
use commit::Commit;
use doubt::Doubt;

/// A STARTED record outlives its lease by at least this much, so that the sweeper never removes a lock that
/// may still be live.
const MIN_LOCK_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The most retries of one settlement: more than fit into 30 seconds of pauses.
pub const MAX_RETRIES: u8 = 100;
/// A settlement isn't retried with less time than this left, since no store answers sooner.
const LAST_TRY: Duration = Duration::from_millis(10);
/// Each settling call gets at least this long, if there's time, before it's abandoned and retried.
const SHORTEST_CALL: Duration = Duration::from_millis(250);

/// The settings that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// The maximum difference between the executors' clocks.
    pub skew_margin: Duration,
    /// How long a settled record is replayed.
    pub retention: Duration,
    /// How stale claims are handled.
    pub execution: Execution,
}

impl Rules {
    /// Returns when a key becomes claimable, given its claim's `lease_until`. This is the only place that
    /// computes it.
    #[must_use]
    pub fn claimable_at(&self, lease_until: Timestamp) -> Timestamp {
        lease_until.saturating_add(self.skew_margin).saturating_add(Duration::from_millis(1))
    }

    /// Whether `time` has passed at `now` on every executor's clock.
    fn have_passed(&self, time: Timestamp, now: Timestamp) -> bool {
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
    /// When the claim's lease ends.
    pub lease_until: Timestamp,
    /// After this, it's too late to start the handler. It's before the lease's end, by the same reserve for
    /// every claim.
    pub usable_until: Timestamp,
    /// When calls to the store must end.
    pub limits: Limits,
    /// The invocation's request ID, for people who search the logs.
    pub request_id: Option<Arc<str>>,
}

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

impl Plan {
    fn reserve(&self) -> Duration {
        self.usable_until.until(self.lease_until)
    }

    fn has_time_left(&self, lease_until: Timestamp, now: Timestamp) -> bool {
        now < lease_until.saturating_sub(self.reserve())
    }

    /// When the retries of a settlement that begins at `now` end.
    fn settle_by(&self, now: Timestamp) -> Timestamp {
        let by = now.saturating_add(self.limits.settle_within);
        self.limits.answer_by.map_or(by, |answer_by| answer_by.min(by))
    }

    fn lock(
        &self,
        now: Timestamp,
        generation: Generation,
        attempt: u32,
        interrupted: bool,
        goal: &Goal,
    ) -> Lock {
        let lease_until = match goal {
            Goal::Run => self.lease_until,
            Goal::Record(_) => self.lease_until.max(now.saturating_add(RECORDING_LEASE)),
        };
        Lock {
            owner: self.owner,
            generation,
            attempt,
            fingerprint: self.fingerprint,
            lock_acquired_at: now,
            lease_until,
            expires_at: self.lock_expiry(lease_until),
            interrupted,
            request_id: self.request_id.clone(),
        }
    }

    /// When a STARTED record under this lease expires. At most once, it never does: the outcome of that run
    /// stays unknown.
    fn lock_expiry(&self, lease_until: Timestamp) -> Option<Timestamp> {
        match self.rules.execution {
            Execution::AtLeastOnce => Some(self.release_expiry(lease_until)),
            Execution::AtMostOnce => None,
        }
    }

    /// When a record that's released under this lease expires.
    fn release_expiry(&self, lease_until: Timestamp) -> Timestamp {
        let retention = self.rules.retention.max(MIN_LOCK_RETENTION);
        lease_until.saturating_add(retention).rounded_up_to_second()
    }
}

/// A claim that this executor holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The claim's owner.
    pub owner: Owner,
    /// The claim's generation.
    pub generation: Generation,
    /// How many claims the operation has had, this one included.
    pub attempt: u32,
    /// When the claim's lease ends, as the record says.
    pub lease_until: Timestamp,
    /// Whether an earlier attempt ended without an answer, so that its handler may have had an effect; see
    /// [`Record::interrupted`].
    pub is_takeover: bool,
    /// Whether the answer to the claim was lost, and the owner in the record identified the claim.
    pub is_recovered: bool,
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
}

impl Intent {
    /// The status that the record gets.
    pub const fn status(&self) -> Status {
        match self {
            Self::Complete(_) | Self::Commit(_) => Status::Completed,
            Self::Fail(_) => Status::Failed,
            Self::Release { .. } => Status::Released,
        }
    }

    /// Adds the handler's own writes to a success. Any other intent stays as it is.
    pub(crate) fn committed(self) -> Self {
        match self {
            Self::Complete(outcome) => Self::Commit(outcome),
            other => other,
        }
    }
}

/// A settlement: its intent, until when it's retried, and how many retries it has had.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Task {
    intent: Intent,
    by: Timestamp,
    retries: u8,
}

impl Task {
    fn new(plan: &Plan, now: Timestamp, intent: Intent) -> Self {
        Self { intent, by: plan.settle_by(now), retries: 0 }
    }

    /// Counts one more retry and returns its number. Returns the task as the error if there's no time for another.
    fn again(self, plan: &Plan, now: Timestamp) -> Result<(Self, u8), Self> {
        let nth = self.retries;
        if nth >= plan.limits.max_retries || now.until(self.by) < LAST_TRY {
            return Err(self);
        }
        Ok((Self { retries: nth + 1, ..self }, nth))
    }
}

/// The machine's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    plan: Plan,
    phase: Phase,
    /// Whether a declined transaction had an ambiguous answer before. Then it may still be applied, as long
    /// as nothing fences it.
    is_in_doubt: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing was sent yet.
    Fresh,
    /// A claim was sent to the store, or is sent again after a pause.
    Claiming(Claiming),
    /// The claim's answer was ambiguous; the record is being read.
    LookingForClaim(Claiming),
    /// This executor's own claim, which it can't use or which may have been applied, is being released.
    GivingBack { held: Held, why: Refusal },
    /// The claim is held, and the handler may run. `submissions` transactions were definitely not applied.
    Held { held: Held, submissions: u32 },
    /// An extension of the lease to `until` was sent to the store; the handler runs.
    Extending { held: Held, submissions: u32, until: Timestamp },
    /// Optimistic: the record is being read.
    Looking,
    /// Optimistic: there's no live record, and the handler may run.
    Open(open::Basis),
    /// A transaction or a conclusion was sent to the store, or is sent again after a pause.
    Committing(Box<Commit>),
    /// Its answer was ambiguous, and so was the answer to its repetition; the record is being read.
    LookingForCommit(Box<Commit>),
    /// The settlement was sent to the store, or is sent again after a pause.
    Settling { held: Held, task: Task },
    /// The settlement's answer was ambiguous; the record is being read.
    LookingForSettlement { held: Held, task: Task },
    /// The machine is done.
    Over,
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// The time, read after the event.
    pub now: Timestamp,
    /// The event.
    pub event: Event,
}

/// An event that the engine reports to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Start claiming.
    Begin,
    /// The store answered an [`Action::Apply`].
    Answered(WriteOutcome),
    /// The store answered an [`Action::Read`].
    Found(Option<Record>),
    /// The store failed at either.
    Failed(Fault),
    /// An [`Action::Pause`] is over.
    Resumed,
    /// Settle the claim that's held, or conclude an optimistic run.
    Settle(Intent),
    /// Read the record without claiming.
    Look,
    /// Extend the held claim's lease to this time.
    Extend(Timestamp),
    /// The store answered an [`Action::Commit`]: the record's condition held, but a condition of the
    /// handler's writes failed. Nothing was written.
    Declined,
}

/// The facts about a store's error that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The category of the store's error.
    pub kind: StoreErrorKind,
    /// Whether the write may have been applied despite the error.
    pub maybe_applied: bool,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this write to the store, and feed back [`Event::Answered`] or [`Event::Failed`].
    Apply(Write),
    /// Send this write to the store together with the handler's own writes, in one transaction whose token
    /// names this submission. Feed back [`Event::Answered`], [`Event::Declined`] or [`Event::Failed`].
    Commit {
        /// The write.
        write: Write,
        /// The submission's number. Sending the same number again sends the same request.
        submission: u32,
    },
    /// Read the record, and feed back [`Event::Found`] or [`Event::Failed`].
    Read,
    /// Wait a little, longer each time, and feed back [`Event::Resumed`].
    Pause(u8),
    /// The claim is held: run the handler, then feed back [`Event::Settle`].
    Claimed(Held),
    /// There's an outcome: answer with it. The machine is done.
    Replay(Record),
    /// The claim failed, and the handler must not run. The machine is done.
    Refused(Refusal),
    /// There's no live record, and nothing is claimed: run the handler, then feed back [`Event::Settle`].
    Open,
    /// The lease was extended: the claim is now held like this.
    Extended(Held),
    /// The lease couldn't be extended now: the claim is held as before.
    NotExtended,
    /// The claim has been taken over, or its record is gone or unreadable: stop the handler.
    Lost,
    /// The transaction was definitely not applied. If there's a claim, it's held as before: feed back
    /// [`Event::Settle`].
    Declined(Decline),
    /// The settlement ended. The machine is done.
    Settled(End),
    /// The input doesn't belong to the state; nothing changes.
    Nothing,
}

/// Why a claim failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The key is in use with another fingerprint.
    Mismatch,
    /// Another claim is live. The key becomes claimable at this time, if it's known.
    InProgress(Option<Timestamp>),
    /// An earlier claim ended without an outcome, and only one run is allowed.
    OutcomeUnknown,
    /// The store couldn't be reached.
    Unavailable,
    /// The store answered neither the claim nor its release, so the claim may hold the key. The key becomes
    /// claimable at this time. Nothing ran.
    Abandoned(Timestamp),
    /// The store rejects the request itself.
    Rejected,
    /// The record is unreadable.
    Corrupt,
    /// There's no time left to run the handler.
    NoTimeLeft,
}

/// Why a transaction wasn't applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decline {
    /// A condition of the handler's writes failed.
    Condition,
    /// The store couldn't apply it, or rejected it.
    Store(StoreErrorKind),
}

/// How a settlement ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The settlement is stored.
    Recorded,
    /// The claim had been taken over, and this is the successor's outcome.
    Superseded(Record),
    /// The claim had been taken over, and the successor is still running. The key becomes claimable at this
    /// time, if it's known.
    Fenced(Option<Timestamp>),
    /// The settlement isn't known to be stored, for this reason.
    Unrecorded(Refusal),
    /// Neither the outcome nor the handler's writes are stored, no claim is held, and this is why.
    NotCommitted(Refusal),
    /// The outcome and the handler's own writes may be stored, now or later, or neither may be. If there's a
    /// claim, the key becomes claimable at this time.
    Unresolved(Option<Timestamp>),
}

impl State {
    /// Starts one claim.
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: Phase::Fresh, is_in_doubt: false }
    }

    /// The plan that the machine was created with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The claim, while it is held.
    pub fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Held { held, .. } | Phase::Extending { held, .. } => Some(held),
            _ => None,
        }
    }

    /// Whether a declined transaction may still be applied, because an earlier attempt of it was never
    /// answered. Then don't report that nothing happened, unless a later write fences it.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

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
            Phase::GivingBack { why: Refusal::NoTimeLeft, .. } => return limits.answer_by,
            Phase::GivingBack { .. } => {
                let until = limits.ask_by.map(|ask_by| ask_by.saturating_add(limits.reserve));
                return until.into_iter().chain(limits.answer_by).min();
            }
            // An unanswered extension leaves time for another before the lease ends.
            Phase::Extending { held, .. } => {
                return Some(now.saturating_add((now.until(held.lease_until) / 4).max(SHORTEST_CALL)));
            }
            Phase::Held { .. } | Phase::Open(_) | Phase::Over => return None,
        };
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
                commit::Basis::Claim(held) => Some(held.lease_until),
                commit::Basis::Open(_) => None,
            },
            _ => None,
        }
    }

    /// When the preparation of a settlement that begins at `now` must end, for example writing its chunks.
    /// The other half of the time is for the settlement itself.
    pub fn prepare_until(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(now.until(self.plan.settle_by(now)) / 2)
    }

    /// How long an [`Action::Pause`] of `pause` really takes. The less time is left, the shorter it is, so
    /// that a store that recovers just before the end still gets a request.
    pub fn pause_for(&self, pause: Duration, now: Timestamp) -> Duration {
        self.call_until(now).map_or(pause, |until| pause.min(now.until(until) / 2))
    }
}

/// Performs one step of the protocol, and returns the new state and the next action.
pub fn step(state: State, input: Input) -> (State, Action) {
    let State { plan, phase, is_in_doubt } = state;
    let Input { now, event } = input;
    let doubt = Doubt::of(&plan.rules, &phase, is_in_doubt);
    let (phase, action) = match (phase, event) {
        (Phase::Fresh, Event::Begin) => acquire::claim_absent(&plan, now, Goal::Run, 0),
        (Phase::Claiming(claiming), event) => acquire::claiming(&plan, now, claiming, event),
        (Phase::LookingForClaim(claiming), event) => acquire::looking_for_claim(&plan, now, claiming, event),
        (Phase::GivingBack { held, why }, event @ (Event::Answered(_) | Event::Failed(_))) => {
            acquire::giving_back(&plan, &held, why, &event)
        }
        // A missing answer to an extension makes no difference: only the lease's end depends on it.
        (
            Phase::Held { held, submissions } | Phase::Extending { held, submissions, .. },
            Event::Settle(intent),
        ) => settle::begin(&plan, now, held, Task::new(&plan, now, intent), submissions),
        // A new request abandons the earlier extension, which does no harm if it's applied late.
        (
            Phase::Held { held, submissions } | Phase::Extending { held, submissions, .. },
            Event::Extend(until),
        ) => extend::send(&plan, held, submissions, until, is_in_doubt),
        (Phase::Extending { held, submissions, until }, event) => {
            extend::extending(held, submissions, until, event)
        }
        (Phase::Fresh, Event::Look) => (Phase::Looking, Action::Read),
        (Phase::Looking, event) => open::looking(&plan, now, event),
        (Phase::Fresh, Event::Settle(intent)) => {
            open::conclude(&plan, now, open::Basis::default(), Task::new(&plan, now, intent))
        }
        (Phase::Open(basis), Event::Settle(intent)) => {
            open::conclude(&plan, now, basis, Task::new(&plan, now, intent))
        }
        (Phase::Committing(commit), event) => commit::committing(&plan, now, *commit, event),
        (Phase::LookingForCommit(commit), event) => commit::looking(&plan, now, *commit, event),
        (Phase::Settling { held, task }, event) => settle::settling(&plan, now, held, task, event),
        (Phase::LookingForSettlement { held, task }, event) => settle::looking(&plan, now, held, task, event),
        (phase, _) => (phase, Action::Nothing),
    };
    let (is_in_doubt, action) = doubt.told(action);
    (State { plan, phase, is_in_doubt }, action)
}

type Next = (Phase, Action);

/// Maps a store's error to the refusal of a claim.
pub(crate) fn refusal_for(kind: StoreErrorKind) -> Refusal {
    match kind {
        StoreErrorKind::Unavailable => Refusal::Unavailable,
        StoreErrorKind::Conflict => Refusal::InProgress(None),
        StoreErrorKind::Rejected | StoreErrorKind::Unstorable => Refusal::Rejected,
        StoreErrorKind::Corrupt => Refusal::Corrupt,
    }
}

#[cfg(test)]
mod tests;
