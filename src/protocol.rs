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

mod commit;
mod doubt;
mod extend;
mod judge;
mod open;
mod operator;
mod settle;

pub(crate) use judge::{Recalled, recall};
pub use operator::{NextDelivery, Outlook, outlook, resolve};

use std::{sync::Arc, time::Duration};

use crate::{
    fingerprint::Fingerprint,
    outcome::Outcome,
    policy::Execution,
    record::{Generation, Lock, Owner, Record, Status},
    store::{Seen, Settlement, StoreErrorKind, Write, Written},
    time::Timestamp,
};

use commit::Commit;
use doubt::Doubt;
use judge::{Judgement, judge};

/// How often one claim may lose before it answers "in progress": the first `PutItem`, and three
/// compare-and-sets after it.
const MAX_LOSSES: u8 = 4;
/// How often one settlement's write is tried again after a doubtful answer. The store retries by itself
/// too, and the caller is waiting for a response that is already there.
const MAX_RETRIES: u8 = 1;
/// A STARTED record outlives its lease by at least this much, so that the sweeper never removes a
/// lock that may still be live.
const MIN_LOCK_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// The lease of a claim that is made only to record an outcome that is already in hand.
const RECORDING_LEASE: Duration = Duration::from_secs(10);

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
    /// The invocation, for people who search the logs.
    pub request_id: Option<Arc<str>>,
}

impl Plan {
    fn reserve(&self) -> Duration {
        self.usable_until.until(self.lease_until)
    }

    fn has_time_left(&self, lease_until: Timestamp, now: Timestamp) -> bool {
        now < lease_until.saturating_sub(self.reserve())
    }

    fn lock(&self, now: Timestamp, generation: Generation, attempt: u32, goal: &Goal) -> Lock {
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
            request_id: self.request_id.clone(),
        }
    }

    /// Until when a STARTED record under this lease counts.
    fn lock_expiry(&self, lease_until: Timestamp) -> Timestamp {
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
    /// Whether an earlier claim was left standing, so that its handler may have had an effect.
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
    Release,
}

impl Intent {
    /// The status that the record gets.
    pub const fn status(&self) -> Status {
        match self {
            Self::Complete(_) | Self::Commit(_) => Status::Completed,
            Self::Fail(_) => Status::Failed,
            Self::Release => Status::Released,
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

/// What a claim is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Goal {
    /// To run the handler.
    Run,
    /// To record what is already in hand, after the claim that ran the handler was lost.
    Record(Intent),
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
    /// `write` is with the store, or about to be sent again after a pause.
    Claiming { goal: Goal, write: Write, losses: u8 },
    /// `write` was answered doubtfully; the record is being read.
    LookingForClaim { goal: Goal, write: Write, losses: u8 },
    /// An own claim came back with no time left; it is being released.
    GivingBack,
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
    Settling { held: Held, intent: Intent, retries: u8 },
    /// The settlement was answered doubtfully; the record is being read.
    LookingForSettlement { held: Held, intent: Intent, retries: u8 },
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
    /// Another claim stands, until then where that is known.
    InProgress(Option<Timestamp>),
    /// An earlier claim ended without an outcome, and at most one may run.
    OutcomeUnknown,
    /// The store could not be asked.
    Unavailable,
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
    /// The claim had been taken over, and the successor is still at work, until then if that is known.
    Fenced(Option<Timestamp>),
    /// It is not known to be stored, and this is why.
    Unrecorded(Refusal),
    /// Neither it nor any of the handler's own writes is stored, no claim is held, and this is why.
    NotCommitted(Refusal),
    /// It may be stored together with the handler's own writes, now or later, or nothing may be. The claim stands
    /// until then, where there is one.
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
}

/// One step of the protocol: what the state becomes, and what to do next.
pub fn step(state: State, input: Input) -> (State, Action) {
    let State { plan, phase, is_in_doubt } = state;
    let Input { now, event } = input;
    let doubt = Doubt::of(&phase, is_in_doubt);
    let (phase, action) = match (phase, event) {
        (Phase::Fresh, Event::Begin) => claim_absent(&plan, now, Goal::Run, 0),
        (Phase::Claiming { goal, write, losses }, event) => claiming(&plan, now, goal, write, losses, event),
        (Phase::LookingForClaim { goal, write, losses }, event) => {
            looking_for_claim(&plan, now, goal, write, losses, event)
        }
        (Phase::GivingBack, Event::Answered(_) | Event::Failed(_)) => refuse(Goal::Run, Refusal::NoTimeLeft),
        // An extension whose answer is still to come makes no difference: nothing but the lease's end depends on it.
        (
            Phase::Held { held, submissions } | Phase::Extending { held, submissions, .. },
            Event::Settle(intent),
        ) => settle::begin(&plan, now, held, intent, submissions),
        // Who asks again has given an earlier extension up; it does no harm if it comes late.
        (
            Phase::Held { held, submissions } | Phase::Extending { held, submissions, .. },
            Event::Extend(until),
        ) => extend::send(&plan, held, submissions, until),
        (Phase::Extending { held, submissions, until }, event) => {
            extend::extending(held, submissions, until, event)
        }
        (Phase::Fresh, Event::Look) => (Phase::Looking, Action::Read),
        (Phase::Looking, event) => open::looking(&plan, now, event),
        (Phase::Fresh, Event::Settle(intent)) => open::conclude(&plan, now, open::Basis::default(), intent),
        (Phase::Open(basis), Event::Settle(intent)) => open::conclude(&plan, now, basis, intent),
        (Phase::Committing(commit), event) => commit::committing(&plan, now, *commit, event),
        (Phase::LookingForCommit(commit), event) => commit::looking(&plan, now, *commit, event),
        (Phase::Settling { held, intent, retries }, event) => {
            settle::settling(&plan, now, held, intent, retries, event)
        }
        (Phase::LookingForSettlement { held, intent, retries }, event) => {
            settle::looking(&plan, now, held, intent, retries, event)
        }
        (phase, _) => (phase, Action::Nothing),
    };
    let (is_in_doubt, action) = doubt.told(action);
    (State { plan, phase, is_in_doubt }, action)
}

type Next = (Phase, Action);

/// T1: claims a key that has no record.
fn claim_absent(plan: &Plan, now: Timestamp, goal: Goal, losses: u8) -> Next {
    let lock = plan.lock(now, Generation::first(now), 1, &goal);
    send_claim(plan, now, goal, losses, Write::Claim(lock))
}

/// Sends a claim, unless it is too late to run anything under it.
fn send_claim(plan: &Plan, now: Timestamp, goal: Goal, losses: u8, write: Write) -> Next {
    if goal == Goal::Run && now >= plan.usable_until {
        return refuse(goal, Refusal::NoTimeLeft);
    }
    (Phase::Claiming { goal, write: write.clone(), losses }, Action::Apply(write))
}

fn claiming(plan: &Plan, now: Timestamp, goal: Goal, write: Write, losses: u8, event: Event) -> Next {
    match event {
        Event::Answered(Written::Applied) => match write.lock() {
            Some(lock) => hold(plan, now, goal, held(lock, &write, false)),
            None => (Phase::Over, Action::Nothing),
        },
        Event::Answered(Written::Refused(record)) => {
            lost(plan, now, goal, write, losses + 1, record, Refusal::InProgress(None))
        }
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => refuse(goal, Refusal::Corrupt),
        Event::Failed(Fault { maybe_applied: true, .. }) => {
            (Phase::LookingForClaim { goal, write, losses }, Action::Read)
        }
        // Another transaction had the record; this write was not made.
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, .. }) if losses + 1 < MAX_LOSSES => {
            (Phase::Claiming { goal, write, losses: losses + 1 }, Action::Pause(losses))
        }
        Event::Failed(Fault { kind, .. }) => refuse(goal, refusal_for(kind)),
        Event::Resumed => send_claim(plan, now, goal, losses, write),
        _ => (Phase::Claiming { goal, write, losses }, Action::Nothing),
    }
}

fn looking_for_claim(
    plan: &Plan,
    now: Timestamp,
    goal: Goal,
    write: Write,
    losses: u8,
    event: Event,
) -> Next {
    match event {
        Event::Found(record) => lost(plan, now, goal, write, losses + 1, record, Refusal::Unavailable),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => refuse(goal, Refusal::Corrupt),
        Event::Failed(_) => refuse(goal, Refusal::Unavailable),
        _ => (Phase::LookingForClaim { goal, write, losses }, Action::Nothing),
    }
}

/// The claim was not made, or not known to be: decide on what is there now.
fn lost(
    plan: &Plan,
    now: Timestamp,
    goal: Goal,
    write: Write,
    losses: u8,
    record: Option<Record>,
    when_exhausted: Refusal,
) -> Next {
    let Some(record) = record else {
        if losses >= MAX_LOSSES {
            return refuse(goal, when_exhausted);
        }
        // Gone between the two: claim again. Never run unclaimed.
        return claim_absent(plan, now, goal, losses);
    };
    match judge(&plan.rules, plan.owner, plan.fingerprint, &record, now) {
        // The answer to it was lost: it is ours, with the lease and generation that the record says.
        Judgement::Own(lock) => hold(plan, now, goal, held(&lock, &write, true)),
        Judgement::Replay => replay(plan, goal, record),
        Judgement::Mismatch => refuse(goal, Refusal::Mismatch),
        Judgement::InProgress(until) => refuse(goal, Refusal::InProgress(Some(until))),
        Judgement::OutcomeUnknown => refuse(goal, Refusal::OutcomeUnknown),
        Judgement::Reclaim | Judgement::TakeOver if losses >= MAX_LOSSES => refuse(goal, when_exhausted),
        Judgement::Reclaim => {
            let attempt = judge::attempt_after_reclaim(plan.fingerprint, &record);
            let lock = plan.lock(now, record.generation.next(now), attempt, &goal);
            send_claim(plan, now, goal, losses, Write::Reclaim { seen: Seen::of(&record), lock })
        }
        // Who has only an outcome to record takes over nobody: the successor may yet finish.
        Judgement::TakeOver if goal != Goal::Run => refuse(goal, Refusal::InProgress(record.lease_until())),
        Judgement::TakeOver => {
            let attempt = record.attempt.saturating_add(1);
            let lock = plan.lock(now, record.generation.next(now), attempt, &goal);
            send_claim(plan, now, goal, losses, Write::TakeOver { seen: Seen::of(&record), lock })
        }
    }
}

/// The claim is ours: run under it, record under it, or give it back if no time is left.
fn hold(plan: &Plan, now: Timestamp, goal: Goal, held: Held) -> Next {
    match goal {
        Goal::Record(intent) => settle::begin(plan, now, held, intent, 0),
        Goal::Run if plan.has_time_left(held.lease_until, now) => {
            (Phase::Held { held: held.clone(), submissions: 0 }, Action::Claimed(held))
        }
        Goal::Run => {
            let (owner, generation) = (held.owner, held.generation);
            let release = Write::Settle { owner, generation, settlement: Settlement::Release };
            (Phase::GivingBack, Action::Apply(release))
        }
    }
}

/// The claim that `lock` says, made by `write`.
fn held(lock: &Lock, write: &Write, is_recovered: bool) -> Held {
    Held {
        owner: lock.owner,
        generation: lock.generation,
        attempt: lock.attempt,
        lease_until: lock.lease_until,
        is_takeover: took_over(write),
        is_recovered,
    }
}

/// Whether an earlier claim was left standing when `write` replaced it.
fn took_over(write: &Write) -> bool {
    match write {
        Write::TakeOver { .. } => true,
        Write::Reclaim { seen, .. } => seen.lease_until.is_some(),
        Write::Claim(_)
        | Write::Settle { .. }
        | Write::Extend { .. }
        | Write::Conclude { .. }
        | Write::Resolve { .. } => false,
    }
}

fn replay(plan: &Plan, goal: Goal, record: Record) -> Next {
    let action = match goal {
        Goal::Run => Action::Replay(record),
        // Our own, whose answer was lost, and whose record an endpoint did not send along when it refused the second
        // attempt: no other has our owner.
        Goal::Record(intent) if settle::is_outcome_of(plan.owner, &intent, &record) => {
            Action::Settled(End::Recorded)
        }
        Goal::Record(_) => Action::Settled(End::Superseded(record)),
    };
    (Phase::Over, action)
}

fn refuse(goal: Goal, refusal: Refusal) -> Next {
    let action = match (goal, refusal) {
        (Goal::Run, refusal) => Action::Refused(refusal),
        (Goal::Record(_), Refusal::InProgress(until)) => Action::Settled(End::Fenced(until)),
        (Goal::Record(_), Refusal::OutcomeUnknown) => Action::Settled(End::Fenced(None)),
        // Its writes were to go along with the record, and neither is there.
        (Goal::Record(Intent::Commit(_)), refusal) => Action::Settled(End::NotCommitted(refusal)),
        (Goal::Record(_), refusal) => Action::Settled(End::Unrecorded(refusal)),
    };
    (Phase::Over, action)
}

fn refusal_for(kind: StoreErrorKind) -> Refusal {
    match kind {
        StoreErrorKind::Unavailable => Refusal::Unavailable,
        StoreErrorKind::Conflict => Refusal::InProgress(None),
        StoreErrorKind::Rejected => Refusal::Rejected,
        StoreErrorKind::Corrupt => Refusal::Corrupt,
    }
}

#[cfg(test)]
mod tests;
