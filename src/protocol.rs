//! The pure machine: every rule about claiming, settling, and what to make of a doubtful answer.
//!
//! [`step`] takes a state and an input and gives back the next state and the one action to perform.
//! It does no I/O, reads no clock and draws no randomness: the time comes with every input, the owner
//! with the plan. The engine performs the actions and feeds the answers back; a test can do the same
//! in any order it likes, on the code that ships.
//!
//! ```text
//! Begin ─▶ Apply(T1) ─ applied ───────────────▶ Claimed ── Settle ─▶ Apply(T4-6) ─ applied ─▶ Settled
//!            │  └ refused ─ judge the record ─▶ Replay │ Refused │ Apply(T2│T3)        │
//!            └ doubtful ─▶ Read ─ judge what is there                doubtful ─▶ Read ─┘
//! ```
//!
//! While a claim is held, its lease may be extended (T7). Where the handler's own writes go along, the settlement is a
//! transaction ([`Action::Commit`], T8). Where those writes are all that the handler does, no claim is needed: the
//! finished record is put with them ([`Write::Conclude`]), and who comes too late has done nothing.
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
    store::{StoreErrorKind, Write, Written},
    time::Timestamp,
};

use acquire::{Claiming, Goal, RECORDING_LEASE};
use commit::Commit;
use doubt::Doubt;

/// A STARTED record outlives its lease by at least this much, so that the sweeper never removes a
/// lock that may still be live.
const MIN_LOCK_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How often a settlement is retried at most: more often than 30 seconds of pauses allow.
pub const MAX_RETRIES: u8 = 100;
/// With less time than this left, a settlement isn't tried again: no store answers sooner.
const LAST_TRY: Duration = Duration::from_millis(10);
/// A call that settles gets at least this long, where the time allows it, before it is given up for another.
const SHORTEST_CALL: Duration = Duration::from_millis(250);

/// The settings that the rules depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// How far apart the executors' clocks may be.
    pub skew_margin: Duration,
    /// How long a settled record counts.
    pub retention: Duration,
    /// What becomes of a stale claim.
    pub execution: Execution,
}

impl Rules {
    /// From when on a key can be claimed whose claim has a lease until then: the one sum for it.
    #[must_use]
    pub fn claimable_at(&self, lease_until: Timestamp) -> Timestamp {
        lease_until.saturating_add(self.skew_margin).saturating_add(Duration::from_millis(1))
    }

    /// Whether `time` has passed at `now`, by every clock that may be asked.
    fn have_passed(&self, time: Timestamp, now: Timestamp) -> bool {
        time.saturating_add(self.skew_margin) < now
    }
}

/// What one claim is to be, fixed before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The rules to go by.
    pub rules: Rules,
    /// The owner drawn for this claim.
    pub owner: Owner,
    /// The request's fingerprint.
    pub fingerprint: Fingerprint,
    /// Until when the claim is to stand.
    pub lease_until: Timestamp,
    /// From when on it is too late to start the handler: before the lease ends, by the same reserve
    /// for every claim.
    pub usable_until: Timestamp,
    /// By when calls to the store end.
    pub limits: Limits,
    /// The invocation, for people who search the logs.
    pub request_id: Option<Arc<str>>,
}

/// By when calls to the store end, so that the answer that is true by then still reaches the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Calls that claim, or look before one, end by then. `None` where nothing limits them.
    pub ask_by: Option<Timestamp>,
    /// All other calls end by then: the deadline less the reserve, or when the front end stops waiting.
    pub answer_by: Option<Timestamp>,
    /// A first settlement that has less than `reserve` left, or nothing, ends by then.
    pub last_call: Option<Timestamp>,
    /// How long before the deadline calls end.
    pub reserve: Duration,
    /// How long a settlement is retried at most while the store fails.
    pub settle_within: Duration,
    /// How often it is retried at most. The time ends it long before that: this bounds it where the clock
    /// doesn't move.
    pub max_retries: u8,
}

impl Limits {
    /// Those of an invocation whose deadline isn't known.
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

    /// Until when a settlement that begins at `now` is retried.
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

    /// Until when a STARTED record under this lease counts. At most once, for ever: what ran under it stays unknown.
    fn lock_expiry(&self, lease_until: Timestamp) -> Option<Timestamp> {
        match self.rules.execution {
            Execution::AtLeastOnce => Some(self.release_expiry(lease_until)),
            Execution::AtMostOnce => None,
        }
    }

    /// Until when a record counts that was released under this lease.
    fn release_expiry(&self, lease_until: Timestamp) -> Timestamp {
        let retention = self.rules.retention.max(MIN_LOCK_RETENTION);
        lease_until.saturating_add(retention).rounded_up_to_second()
    }
}

/// A claim that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The claim's owner.
    pub owner: Owner,
    /// The claim's generation.
    pub generation: Generation,
    /// How many claims the operation has had, this one included.
    pub attempt: u32,
    /// Until when the claim stands, as the record says.
    pub lease_until: Timestamp,
    /// Whether an earlier attempt ended without an answer, so that its handler may have had an effect; see
    /// [`Record::interrupted`].
    pub is_takeover: bool,
    /// Whether the answer to the claim was lost, and the claim known again by its owner.
    pub is_recovered: bool,
}

/// How a claim is to be settled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Store this outcome.
    Complete(Outcome),
    /// Store this outcome together with the handler's own writes, or neither.
    Commit(Outcome),
    /// Store this final failure.
    Fail(Outcome),
    /// Give the key back.
    Release {
        /// Whether this attempt ended without an answer, as by a panic.
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

    /// The same, together with the handler's own writes: they go along with a success alone.
    pub(crate) fn committed(self) -> Self {
        match self {
            Self::Complete(outcome) => Self::Commit(outcome),
            other => other,
        }
    }
}

/// A settlement: its intent, until when it's retried, and how often it was.
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

    /// Counts one more retry, and says which one it is; gives the task back once there is no time for another.
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
    /// Whether a transaction that was declined had been answered doubtfully before: then it may be made all the same,
    /// as long as nothing fences it.
    is_in_doubt: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing was sent yet.
    Fresh,
    /// A claim is with the store, or about to be sent again after a pause.
    Claiming(Claiming),
    /// It was answered doubtfully; the record is being read.
    LookingForClaim(Claiming),
    /// An own claim that can't be used, or may have been applied, is being released.
    GivingBack { held: Held, why: Refusal },
    /// The claim is held, and the handler may run. So many of its transactions were definitely not made.
    Held { held: Held, submissions: u32 },
    /// The lease's extension to then is with the store; the handler runs.
    Extending { held: Held, submissions: u32, until: Timestamp },
    /// Without a claim: the record is being read.
    Looking,
    /// Without a claim: what was there does not count, and the handler may run.
    Open(open::Basis),
    /// A transaction is with the store, or a conclusion is; or it is about to be sent again after a pause.
    Committing(Box<Commit>),
    /// It was answered doubtfully, and so was its repetition; the record is being read.
    LookingForCommit(Box<Commit>),
    /// The settlement is with the store, or about to be sent again after a pause.
    Settling { held: Held, task: Task },
    /// The settlement was answered doubtfully; the record is being read.
    LookingForSettlement { held: Held, task: Task },
    /// Nothing more will be done.
    Over,
}

/// What happened, and when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// The time, read after what happened.
    pub now: Timestamp,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The claim is asked for.
    Begin,
    /// The store answered an [`Action::Apply`].
    Answered(Written),
    /// The store answered an [`Action::Read`].
    Found(Option<Record>),
    /// The store failed at either.
    Failed(Fault),
    /// An [`Action::Pause`] is over.
    Resumed,
    /// The claim that is held is to be settled; or what runs without one is to be concluded.
    Settle(Intent),
    /// Nothing is to be claimed: what is there?
    Look,
    /// The claim that is held is to stand until then.
    Extend(Timestamp),
    /// The store answered an [`Action::Commit`]: the record's condition held, and one of the handler's own failed.
    /// Nothing was written.
    Declined,
}

/// What a store's error means to the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// What kind of trouble the store is in.
    pub kind: StoreErrorKind,
    /// Whether the write may have been made all the same.
    pub maybe_applied: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this write to the store, and feed back [`Event::Answered`] or [`Event::Failed`].
    Apply(Write),
    /// Send this write to the store, and the handler's own with it, in one transaction whose token names this
    /// submission. Feed back [`Event::Answered`], [`Event::Declined`] or [`Event::Failed`].
    Commit {
        /// The write.
        write: Write,
        /// The submission: the same one is the same request, whenever it is sent.
        submission: u32,
    },
    /// Read the record, and feed back [`Event::Found`] or [`Event::Failed`].
    Read,
    /// Wait a little, longer each time, and feed back [`Event::Resumed`].
    Pause(u8),
    /// The claim is held: run the handler, then feed back [`Event::Settle`].
    Claimed(Held),
    /// There is an outcome: answer with it. The machine is done.
    Replay(Record),
    /// The claim was not got, and the handler must not run. The machine is done.
    Refused(Refusal),
    /// Nothing that counts is there, and nothing is claimed: run the handler, then feed back [`Event::Settle`].
    Open,
    /// The lease was extended: the claim is held as this says.
    Extended(Held),
    /// The lease could not be extended now: the claim stands as before.
    NotExtended,
    /// The claim has been taken over, or its record is gone or cannot be read: stop the handler.
    Lost,
    /// The transaction was definitely not made. The claim is held as before, where there is one: feed back
    /// [`Event::Settle`].
    Declined(Decline),
    /// The claim was settled, or not. The machine is done.
    Settled(End),
    /// The input does not belong to the state; nothing changes.
    Nothing,
}

/// Why a claim was not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The key is in use with another fingerprint.
    Mismatch,
    /// Another claim stands. The key can be claimed from then on, where that is known.
    InProgress(Option<Timestamp>),
    /// An earlier claim ended without an outcome, and at most one may run.
    OutcomeUnknown,
    /// The store could not be asked.
    Unavailable,
    /// The store answered neither the claim nor its release, so the claim may hold the key. The key can be claimed from
    /// then on. Nothing ran.
    Abandoned(Timestamp),
    /// The store refuses the request as such.
    Rejected,
    /// The record cannot be understood.
    Corrupt,
    /// There is no time left to run the handler in.
    NoTimeLeft,
}

/// Why a transaction was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decline {
    /// One of the handler's own conditions failed.
    Condition,
    /// The store could not make it, or would not.
    Store(StoreErrorKind),
}

/// How a settlement ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// It is stored.
    Recorded,
    /// The claim had been taken over, and this is the successor's outcome.
    Superseded(Record),
    /// The claim had been taken over, and the successor is still at work. The key can be claimed from then on, if that
    /// is known.
    Fenced(Option<Timestamp>),
    /// It is not known to be stored, and this is why.
    Unrecorded(Refusal),
    /// Neither it nor any of the handler's own writes is stored, no claim is held, and this is why.
    NotCommitted(Refusal),
    /// It may be stored together with the handler's own writes, now or later, or nothing may be. Where there
    /// is a claim, the key can be claimed from then on.
    Unresolved(Option<Timestamp>),
}

impl State {
    /// The beginning of one claim.
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: Phase::Fresh, is_in_doubt: false }
    }

    /// The plan that the machine was made with.
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

    /// Whether a transaction that was declined may be made all the same, because an earlier attempt of it was never
    /// answered. Nobody may be told then that nothing happened, unless something that was stored since fences it.
    pub fn is_in_doubt(&self) -> bool {
        self.is_in_doubt
    }

    /// By when the action that was given last has to be answered; after that, it counts as unanswered. `None` where
    /// nothing limits it.
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
            // One that isn't answered leaves time for others before the lease ends.
            Phase::Extending { held, .. } => {
                return Some(now.saturating_add((now.until(held.lease_until) / 4).max(SHORTEST_CALL)));
            }
            Phase::Held { .. } | Phase::Open(_) | Phase::Over => return None,
        };
        let left = now.until(task.by);
        if task.retries == 0 && left <= limits.reserve {
            return limits.last_call;
        }
        // No single call takes all the time that is left: one that isn't answered leaves room for others. Nor does it take
        // all that the lease has left: once that has ended, another executor takes over and runs again.
        let lease = self.settled_lease().map(|lease_until| now.until(lease_until));
        let left = lease.filter(|lease| !lease.is_zero()).map_or(left, |lease| left.min(lease));
        Some(now.saturating_add((left / 2).max(SHORTEST_CALL)).min(task.by))
    }

    /// Until when the lease stands under which the handler ran, while its outcome is being stored.
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

    /// Until when what is settled at `now` may be prepared, such as by writing its chunks: the other half of the time is
    /// the settlement's own.
    pub fn prepare_until(&self, now: Timestamp) -> Timestamp {
        now.saturating_add(now.until(self.plan.settle_by(now)) / 2)
    }

    /// How long an [`Action::Pause`] of `pause` really takes: the less time is left, the shorter it is, so that a store
    /// that comes back just before the end is still asked.
    pub fn pause_for(&self, pause: Duration, now: Timestamp) -> Duration {
        self.call_until(now).map_or(pause, |until| pause.min(now.until(until) / 2))
    }
}

/// One step of the protocol: what the state becomes, and what to do next.
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
        // An extension whose answer is still to come makes no difference: nothing but the lease's end depends on it.
        (
            Phase::Held { held, submissions } | Phase::Extending { held, submissions, .. },
            Event::Settle(intent),
        ) => settle::begin(&plan, now, held, Task::new(&plan, now, intent), submissions),
        // Who asks again has given an earlier extension up; it does no harm if it comes late.
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
