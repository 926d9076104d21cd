//! The pure state machine: all the rules about claiming, settling, and handling ambiguous answers.
//!
//! [`step`] takes a state and an input, changes the state, and returns the one action to perform. It does no I/O, reads
//! no clock and draws no randomness: every input carries the time, and the plan carries the owner. The driver
//! (`run::driver`) performs the actions and feeds the answers back. Tests do the same in any order, on the same code.
//!
//! ```text
//! Begin ─▶ Put(T1) ─ applied ───────────────▶ Claimed ── Settle ─▶ Put(T4-6│T9) ─ applied ─▶ Settled
//!            │  └ refused ─ judge the record ─▶ Replay │ Refused │ Put(T2│T3)               │
//!            └ doubtful ─▶ Read ─ judge the record                      doubtful ─▶ Read ─┘
//! ```
//!
//! While a claim is held, its lease can be extended (T7). If the handler has staged its own writes, the settlement is a
//! transaction ([`Action::Commit`], T8). If those writes are its only effect, the handler needs no claim: one
//! transaction stores its writes and the finished record (a conclusion), and a later duplicate writes nothing.
//!
//! ```text
//! Look ─▶ Read ─ key is claimable ────▶ Open ── Settle ─▶ Commit(conclusion) ─ applied ─▶ Settled
//!            └ judge the record ─▶ Replay │ Refused         │    └ declined ─▶ Declined ── Settle ─▶ …
//!                                                           └ refused ─ judge the record ─▶ Settled │ again
//! ```
//!
//! The finished record can also go into the caller's own transaction, whose lock holds the key. An operator settles a
//! record by one put. While idempotency isn't enforced, the handler's writes are committed alone, without a record.
//!
//! ```text
//! Lock ─▶ Read ─ key is claimable ─▶ Open ── Settle ─▶ Put ─ applied ─▶ Commit ─ applied ─▶ Settled
//!                                                                          └ doubtful ─▶ Read, until the lock is free
//! Resolve ─▶ Put(rule 10) ─ applied ───────────────▶ Resolved     CommitAlone ─▶ CommitAlone ─ applied ─▶ Settled
//!              └ refused, doubtful ─▶ judge, Read ─▶ Resolved │ again             └ declined ─▶ Declined │ in doubt
//! ```

mod acquire;
mod action;
mod alone;
mod commit;
mod extend;
mod input;
mod judge;
mod limits;
mod open;
mod operator;
mod plan;
mod settle;
mod settlement;
mod timeouts;

pub use action::refusal_for;
pub use action::{Action, Decline, End, Held, Refusal};
pub use alone::first_call_until;
pub use input::{Event, Fault, Input};
pub use judge::{NextDelivery, Outlook, outlook};
pub use judge::{Recalled, recall};
pub use limits::LATE_CALL;
pub use limits::Limits;
pub use operator::resolve;
pub use plan::{Intent, Plan, Reconcile, Rules};

use std::mem;

use crate::{record::Record, store::Put, time::Timestamp};

use acquire::{Claiming, Goal};
use commit::Commit;
use plan::Task;

/// The machine's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    plan: Plan,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Nothing was sent yet.
    Fresh,
    /// A claim was sent to the store, or will be sent again after a pause.
    Claiming(Claiming),
    /// The claim's answer was ambiguous; the record is being read.
    LookingForClaim(Claiming),
    /// The executor is releasing its own claim: it can't use the claim, or doesn't know whether the claim was applied.
    Releasing { held: Held, why: Refusal },
    /// The claim is held, and the handler may run.
    Held(Running),
    /// An extension of the lease to `until` was sent to the store; the handler runs.
    Extending { running: Running, until: Timestamp },
    /// Optimistic, or in the caller's transaction: the record is being read.
    Looking { is_inside: bool },
    /// Optimistic: the key is claimable but not claimed, and the handler may run.
    Open(open::Basis),
    /// The outcome was put into the caller's transaction.
    Putting(Box<Commit>),
    /// A transaction or a conclusion was sent to the store, or will be sent again after a pause.
    Committing(Box<Commit>),
    /// The result of the transaction or conclusion is in doubt; the record is being read.
    LookingForCommit(Box<Commit>),
    /// The settlement was sent to the store, or will be sent again after a pause.
    Settling { held: Held, task: Task },
    /// The settlement's answer was ambiguous; the record is being read.
    LookingForSettlement { held: Held, task: Task },
    /// An operator's write was sent to the store.
    Resolving(Box<operator::Resolving>),
    /// The answer to an operator's write was ambiguous; the record is being read.
    LookingForResolution(Box<operator::Resolving>),
    /// The handler's writes were sent without a record, or will be sent again after a pause.
    Alone(Task),
    /// The machine is done.
    Over,
}

/// A claim under which the handler may run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    held: Held,
    /// The number of the next transaction; see [`Action::Commit`].
    submissions: u32,
    /// Whether an earlier transaction got an ambiguous answer, so that it may still be applied; see
    /// [`Task::is_in_doubt`].
    is_in_doubt: bool,
    /// Whether the remote system is asked for the effect of an earlier attempt, and the handler hasn't begun.
    is_asking: bool,
}

impl State {
    /// Creates a machine that has sent nothing yet.
    pub fn new(plan: Plan) -> Self {
        Self { plan, phase: Phase::Fresh }
    }

    /// The plan that the machine was created with.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The claim, while it is held.
    pub fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Held(running) | Phase::Extending { running, .. } => Some(&running.held),
            _ => None,
        }
    }

    /// Whether a declined transaction may still be applied, because an earlier attempt at it got no
    /// answer. If so, don't report that nothing was written, unless a later write has fenced the transaction.
    pub fn is_in_doubt(&self) -> bool {
        match &self.phase {
            Phase::Held(running) | Phase::Extending { running, .. } => running.is_in_doubt,
            Phase::Open(basis) => basis.is_in_doubt,
            _ => false,
        }
    }
}

/// Performs one step of the protocol: changes the state, and returns the next action.
pub fn step(state: &mut State, input: Input) -> Action {
    let Input { now, event } = input;
    let plan = &state.plan;
    let mut next = handle(plan, now, mem::replace(&mut state.phase, Phase::Over), event);
    loop {
        next = match next {
            Next::Act(phase, action) => {
                state.phase = phase;
                return action;
            }
            Next::Settle { held, task, submissions } => match task.intent {
                Intent::Commit(_) => commit::send(plan, now, held, task, submissions),
                _ => settle::send(plan, now, held, task),
            },
            Next::RecordAnew { lost, task, record } => acquire::to_record(plan, now, &lost, task, record),
            Next::Conclude { basis, task, put, submission } => {
                commit::begin(commit::Basis::Open(basis), task, put, submission)
            }
        };
    }
}

/// Handles an event in the phase that waits for it. In any other phase, the event changes nothing.
fn handle(plan: &Plan, now: Timestamp, phase: Phase, event: Event) -> Next {
    match (phase, event) {
        (Phase::Fresh, Event::Begin) => acquire::claim_absent(plan, now, Goal::Run, 0),
        (Phase::Claiming(claiming), event) => acquire::claiming(plan, now, claiming, event),
        (Phase::LookingForClaim(claiming), event) => acquire::looking_for_claim(plan, now, claiming, event),
        (Phase::Releasing { held, why }, event @ (Event::Answered(_) | Event::Failed(_))) => {
            acquire::releasing(plan, &held, why, &event)
        }
        // The settlement doesn't wait for an extension's answer: only the lease's end depends on that answer.
        (Phase::Held(running) | Phase::Extending { running, .. }, Event::Settle(intent)) => {
            let is_reconciled = running.is_asking;
            let task = Task { is_reconciled, ..Task::new(plan, now, intent, running.is_in_doubt) };
            Next::Settle { held: running.held, task, submissions: running.submissions }
        }
        (Phase::Held(running) | Phase::Extending { running, .. }, Event::DidNotHappen)
            if running.is_asking =>
        {
            acquire::absent(plan, now, running)
        }
        // The machine stops waiting for an earlier extension. If that extension is applied late, it does no harm,
        // since an extension never shortens a lease.
        (Phase::Held(running) | Phase::Extending { running, .. }, Event::Extend(until)) => {
            extend::send(plan, running, until)
        }
        (Phase::Extending { running, until }, event) => extend::extending(plan, running, until, event),
        (Phase::Fresh, event @ (Event::Look | Event::Lock)) => {
            Next::Act(Phase::Looking { is_inside: event == Event::Lock }, Action::Read)
        }
        (Phase::Looking { is_inside }, event) => open::looking(plan, now, is_inside, event),
        (Phase::Fresh, Event::Settle(intent)) => {
            open::conclude(plan, now, open::Basis::default(), Task::new(plan, now, intent, false))
        }
        (Phase::Open(basis), Event::Settle(intent)) => {
            let task = Task::new(plan, now, intent, basis.is_in_doubt);
            open::conclude(plan, now, basis, task)
        }
        (Phase::Putting(commit), event) => commit::putting(plan, now, *commit, event),
        (Phase::Committing(commit), event) => commit::committing(plan, now, *commit, event),
        (Phase::LookingForCommit(commit), event) => commit::looking(plan, now, *commit, event),
        (Phase::Settling { held, task }, event) => settle::settling(plan, now, held, task, event),
        (Phase::LookingForSettlement { held, task }, event) => settle::looking(plan, now, held, task, event),
        (Phase::Fresh, Event::Resolve { seen, intent }) => operator::begin(plan, now, *seen, intent),
        (Phase::Resolving(it), event) => operator::resolving(plan, now, *it, event),
        (Phase::LookingForResolution(it), event) => operator::looking(plan, now, *it, event),
        (Phase::Fresh, Event::CommitAlone) => alone::begin(plan, now),
        (Phase::Alone(task), event) => alone::committing(plan, now, task, event),
        (phase, _) => Next::Act(phase, Action::Nothing),
    }
}

/// A phase's decision after an event: the next action, or the start of another phase. A phase returns this value
/// instead of calling the other phase's module: such calls would make the modules depend on each other in a cycle.
enum Next {
    /// Perform the action, and wait for its result in this phase.
    Act(Phase, Action),
    /// Settle a claim that's held.
    Settle {
        held: Held,
        task: Task,
        /// The number of the claim's next transaction; see [`Action::Commit`].
        submissions: u32,
    },
    /// The claim was lost while its handler ran. Claim the key again, if it's free, only to record the outcome.
    RecordAnew {
        lost: Held,
        task: Task,
        /// The record that replaced the claim's, or `None` if there's none.
        record: Option<Record>,
    },
    /// Send the finished record of an optimistic run.
    Conclude { basis: open::Basis, task: Task, put: Put, submission: u32 },
}

/// The machine is done, and the settlement ended like this.
fn over(end: End) -> Next {
    Next::Act(Phase::Over, Action::Settled(end))
}

#[cfg(test)]
mod tests;
