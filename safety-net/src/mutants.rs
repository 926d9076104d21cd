//! Protocols that are wrong on purpose, each in one way. If the net lets one of them pass, the net has a
//! hole; so all of them are run as a test.
//!
//! A mutant is the shipping protocol with something put in between: the machine is told, or says,
//! something else, or the store tests something else. The shipping code itself is not copied.

mod claiming;
mod extending;
mod remembering;
mod retrying;
mod settling;
mod store;
mod transacting;
mod unclaimed;

use lambda_idempotency::{
    Owner, Record, Timestamp,
    protocol::{self, Action, End, Event, Held, Input, Intent, Plan, State},
    store::{Seen, Write, Written},
};

use crate::{
    configuration::{self, Configuration},
    invariants::Invariant,
    under_test::{Effect, Protocol},
};

/// A protocol that is wrong in one way.
#[derive(Clone, Copy)]
pub struct Mutant {
    /// What it is called.
    pub name: &'static str,
    /// What breaks first, by breadth-first search; the test names it so that a change is noticed.
    pub caught_by: Invariant,
    /// Where it is looked for.
    pub space: fn() -> Configuration,
    /// The owner that a delivery draws.
    owner: fn(u8, u8) -> Owner,
    /// What the machine takes its plan to be.
    plan: fn(Plan) -> Plan,
    /// What the machine takes an event to be.
    hears: fn(&Moment<'_>, Event) -> Event,
    /// What the machine takes a record to be.
    takes: fn(&Moment<'_>, Record) -> Record,
    /// What comes of the step instead.
    does: fn(&Moment<'_>, Outcome) -> Outcome,
    /// What the store makes of a write.
    applies: fn(&Write, Option<&Record>) -> Effect,
    /// Whether the sweeper may remove a record by now.
    sweeps: fn(&Record, Timestamp) -> bool,
    /// What the store makes of a transaction, and whether it makes the handler's own writes; what it makes of the write
    /// alone is known by then.
    commits: fn(&Write, Option<&Record>, Effect) -> (Effect, bool),
}

/// A step, as a mutant sees it.
#[derive(Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) now: Timestamp,
    pub(crate) plan: &'a Plan,
    /// The machine before the step.
    pub(crate) before: &'a Mutated,
    /// What really happened.
    pub(crate) event: &'a Event,
}

/// What comes of a step.
pub(crate) type Outcome = (State, Action);

/// A mutant's state: the machine's, and what some mutants remember.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutated {
    machine: State,
    /// What the handler's end was to be recorded as, once it has ended.
    pub(crate) intent: Option<Intent>,
    /// What was sent last.
    pub(crate) sent: Option<Outcome>,
    /// Whether the record was asked for last.
    pub(crate) is_asking: bool,
}

impl Mutated {
    /// The claim that is held.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.machine.held()
    }
}

/// A mutant that mutates nothing: what the others are made from.
pub(crate) const NONE: Mutant = Mutant {
    name: "none",
    caught_by: Invariant::Terminates,
    space: small,
    owner: configuration::owner,
    plan: |plan| plan,
    hears: |_, event| event,
    takes: |_, record| record,
    does: |_, outcome| outcome,
    applies: |write, current| write.apply_to(current).into(),
    sweeps: |record, now| record.expires_at.is_some_and(|expires_at| expires_at <= now),
    commits: |_, _, effect| {
        let is_made = effect != Effect::Refused;
        (effect, is_made)
    },
};

/// Every mutant.
pub fn all() -> Vec<Mutant> {
    [
        store::MUTANTS,
        claiming::MUTANTS,
        settling::MUTANTS,
        extending::MUTANTS,
        remembering::MUTANTS,
        retrying::MUTANTS,
        transacting::MUTANTS,
        unclaimed::MUTANTS,
    ]
    .concat()
}

/// What the others are made from.
pub fn none() -> Mutant {
    NONE
}

/// Mutants that do no harm, since what each leaves out follows from what is left: see the test.
pub fn implied() -> Vec<Mutant> {
    store::IMPLIED.to_vec()
}

/// Where those that do no harm are looked at: clocks that agree, and clocks that do not.
pub fn spaces_of_implied() -> Vec<Configuration> {
    let [behind, far_behind, ahead, far_ahead] = store::DISTANT.map(|space| space());
    vec![small(), behind, far_behind, ahead, far_ahead]
}

/// Where most mutants are looked for.
pub(crate) fn small() -> Configuration {
    Configuration { name: "clocks M apart", ..Configuration::default() }
}

impl Protocol for Mutant {
    type State = Mutated;

    fn owner(&self, delivery: u8, request: u8) -> Owner {
        (self.owner)(delivery, request)
    }

    fn begin(&self, plan: &Plan) -> Mutated {
        Mutated { machine: State::new((self.plan)(plan.clone())), intent: None, sent: None, is_asking: false }
    }

    fn step(&self, state: Mutated, input: Input) -> (Mutated, Action) {
        let Input { now, event } = input;
        let plan = state.machine.plan().clone();
        let moment = Moment { now, plan: &plan, before: &state, event: &event };
        let (heard, swapped) = self.told(&moment);
        let (machine, action) = protocol::step(state.machine.clone(), Input { now, event: heard });
        let (machine, action) = (self.does)(&moment, (machine, put_back(action, swapped)));
        let intent = match &event {
            Event::Settle(intent) => Some(intent.clone()),
            _ => state.intent.clone(),
        };
        let sent = match &action {
            Action::Apply(_) | Action::Commit { .. } => Some((machine.clone(), action.clone())),
            _ => state.sent.clone(),
        };
        let is_asking = action == Action::Read;
        (Mutated { machine, intent, sent, is_asking }, action)
    }

    fn held(&self, state: &Mutated) -> Option<Held> {
        state.machine.held().cloned()
    }

    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect {
        (self.applies)(write, current)
    }

    fn may_sweep(&self, record: &Record, now: Timestamp) -> bool {
        (self.sweeps)(record, now)
    }

    fn commit(&self, write: &Write, current: Option<&Record>) -> (Effect, bool) {
        (self.commits)(write, current, (self.applies)(write, current))
    }
}

/// A record that stands for another: the one that the machine was shown, and the real one.
type Swapped = Option<(Record, Record)>;

impl Mutant {
    /// What the machine is told.
    fn told(&self, moment: &Moment<'_>) -> (Event, Swapped) {
        let mut swapped = None;
        let mut shown = |record: Option<Record>| {
            record.map(|real| {
                let shown = (self.takes)(moment, real.clone());
                swapped = Some((shown.clone(), real));
                shown
            })
        };
        let event = match (self.hears)(moment, moment.event.clone()) {
            Event::Answered(Written::Refused(record)) => Event::Answered(Written::Refused(shown(record))),
            Event::Found(record) => Event::Found(shown(record)),
            event => event,
        };
        (event, swapped)
    }
}

/// Undoes a swap in what the machine does: it is to misjudge the record, not to forge it.
fn put_back(action: Action, swapped: Swapped) -> Action {
    let Some((shown, real)) = swapped else { return action };
    let seen = |seen: Seen| if seen == Seen::of(&shown) { Seen::of(&real) } else { seen };
    let replayed = |record: Record| if record == shown { real.clone() } else { record };
    match action {
        Action::Apply(Write::Reclaim { seen: s, lock }) => {
            Action::Apply(Write::Reclaim { seen: seen(s), lock })
        }
        Action::Apply(Write::TakeOver { seen: s, lock }) => {
            Action::Apply(Write::TakeOver { seen: seen(s), lock })
        }
        Action::Apply(Write::Conclude { seen: s, record }) => {
            Action::Apply(Write::Conclude { seen: s.map(seen), record })
        }
        Action::Commit { write: Write::Conclude { seen: s, record }, submission } => {
            Action::Commit { write: Write::Conclude { seen: s.map(seen), record }, submission }
        }
        Action::Replay(record) => Action::Replay(replayed(record)),
        Action::Settled(End::Superseded(record)) => Action::Settled(End::Superseded(replayed(record))),
        action => action,
    }
}

impl Moment<'_> {
    /// Whether the handler has ended.
    pub(crate) fn is_settling(&self) -> bool {
        self.before.intent.is_some()
    }

    /// What was sent last, if anything was.
    pub(crate) fn sent(&self) -> Option<&Action> {
        self.before.sent.as_ref().map(|(_, action)| action)
    }

    /// Whether an answer was doubtful.
    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self.event, Event::Failed(fault) if fault.maybe_applied)
    }
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutant").field("name", &self.name).finish_non_exhaustive()
    }
}
