//! Deliberately broken protocols, each wrong in one way. A test runs them all: if the model checker misses one,
//! the model checker has a gap.
//!
//! A mutant calls the shipping code instead of copying it, and intercepts it in one way: it changes the machine's
//! input, the machine's output, or the store's effect.

mod claiming;
mod extending;
mod inside;
mod operating;
mod reconciling;
mod remembering;
mod retrying;
mod settling;
mod store;
mod transacting;
mod unclaimed;

use std::time::Duration;

use lambda_idempotency::{
    protocol::{self, Action, End, Event, Held, Input, Intent, Plan, State},
    store::{Owner, Put, PutOutcome, Record},
    time::Timestamp,
};

use crate::{
    configuration::{self, Configuration},
    invariants::Invariant,
    under_test::{Effect, Protocol, Purpose},
};

/// A protocol that is wrong in one way.
#[derive(Clone, Copy)]
pub struct Mutant {
    /// The mutant's name.
    pub name: &'static str,
    /// The invariant that breaks first in breadth-first search. The test `every_mutant_breaks_its_invariant` checks
    /// this.
    pub caught_by: Invariant,
    /// The space in which the mutant is explored.
    pub space: fn() -> Configuration,
    /// Draws the owner for a delivery. The arguments are the number of the delivery and the number of its request.
    owner: fn(u8, u8) -> Owner,
    /// Changes the plan that the machine sees.
    plan: fn(Plan) -> Plan,
    /// Changes the event that the machine sees.
    hears: fn(&Moment<'_>, Event) -> Event,
    /// Changes the record that the machine sees.
    takes: fn(&Moment<'_>, Record) -> Record,
    /// Changes the result of the step.
    does: fn(&Moment<'_>, Outcome) -> Outcome,
    /// The store's effect for a put.
    applies: fn(&Put, Option<&Record>) -> Effect,
    /// Whether the sweeper may already remove a record.
    sweeps: fn(&Record, Timestamp) -> bool,
    /// For a transaction: its effect on the record, and whether the store applies the handler's own writes. The last
    /// argument is the effect that the record's put would have without a transaction.
    commits: fn(&Put, Option<&Record>, Effect) -> (Effect, bool),
}

/// A step, as a mutant sees it.
#[derive(Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) now: Timestamp,
    pub(crate) plan: &'a Plan,
    /// The machine before the step.
    pub(crate) before: &'a Mutated,
    /// The event that really happened.
    pub(crate) event: &'a Event,
}

/// The result of a step.
pub(crate) type Outcome = (State, Action);

/// A mutant's state: the machine's, and the facts that some mutants remember.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mutated {
    machine: State,
    /// The intent with which the handler ended; `None` if it hasn't ended.
    pub(crate) intent: Option<Intent>,
    /// The last write or transaction that was sent, with the machine's state right after that.
    pub(crate) sent: Option<Outcome>,
    /// Whether the last action was a read.
    pub(crate) is_asking: bool,
}

impl Mutated {
    /// The claim that the machine holds.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.machine.held()
    }
}

/// A mutant that changes nothing: the base of the others.
pub(crate) const NONE: Mutant = Mutant {
    name: "none",
    caught_by: Invariant::Terminates,
    space: small,
    owner: configuration::owner,
    plan: |plan| plan,
    hears: |_, event| event,
    takes: |_, record| record,
    does: |_, outcome| outcome,
    applies: store::shipping,
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
        operating::MUTANTS,
        remembering::MUTANTS,
        reconciling::MUTANTS,
        retrying::MUTANTS,
        transacting::MUTANTS,
        unclaimed::MUTANTS,
        inside::MUTANTS,
    ]
    .concat()
}

/// Returns the mutant that changes nothing, the base of the others.
pub fn none() -> Mutant {
    NONE
}

/// Harmless mutants: each omits a condition that the other conditions imply. `verification mutants` checks that
/// nothing breaks.
pub fn implied() -> Vec<Mutant> {
    store::IMPLIED.to_vec()
}

/// The spaces for the harmless mutants: one with clocks that agree, and some with clocks that don't.
pub fn spaces_of_implied() -> Vec<Configuration> {
    let [behind, far_behind, ahead, far_ahead] = store::DISTANT.map(|space| space());
    vec![small(), behind, far_behind, ahead, far_ahead]
}

/// The space in which most mutants are explored.
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
        let mut machine = state.machine.clone();
        let action = protocol::step(&mut machine, Input { now, event: heard });
        let (machine, action) = (self.does)(&moment, (machine, put_back(action, swapped)));
        let intent = match &event {
            Event::Settle(intent) => Some(intent.clone()),
            _ => state.intent.clone(),
        };
        let sent = match &action {
            Action::Put(_) | Action::Commit { .. } => Some((machine.clone(), action.clone())),
            _ => state.sent.clone(),
        };
        let is_asking = action == Action::Read;
        (Mutated { machine, intent, sent, is_asking }, action)
    }

    fn held(&self, state: &Mutated) -> Option<Held> {
        state.machine.held().cloned()
    }

    fn unanswered(&self, state: &Mutated, now: Timestamp, ask_again_after: Option<Duration>) -> Intent {
        state.machine.unanswered(now, ask_again_after)
    }

    fn put(&self, put: &Put, current: Option<&Record>) -> Effect {
        (self.applies)(put, current)
    }

    fn may_sweep(&self, record: &Record, now: Timestamp) -> bool {
        (self.sweeps)(record, now)
    }

    fn commit(&self, put: &Put, current: Option<&Record>) -> (Effect, bool) {
        (self.commits)(put, current, (self.applies)(put, current))
    }
}

/// The record that the machine was shown instead of the real one, and the real one. `None` if the event has no record.
type Swapped = Option<(Record, Record)>;

impl Mutant {
    /// Returns the event that the machine sees, and the record that was swapped in it.
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
            Event::Answered(PutOutcome::Refused(record)) => {
                Event::Answered(PutOutcome::Refused(shown(record)))
            }
            Event::Found(record) => Event::Found(shown(record)),
            event => event,
        };
        (event, swapped)
    }
}

/// Puts the real record back into the machine's action, in place of the one that the machine was shown. So the mutant
/// misjudges the record, but its write's condition refers to the real record, and it replays the real record.
fn put_back(mut action: Action, swapped: Swapped) -> Action {
    let Some((shown, real)) = swapped else { return action };
    match &mut action {
        Action::Put(Put::Replace { seen: record, .. })
        | Action::Commit { put: Put::Replace { seen: record, .. }, .. }
        | Action::Replay(record)
        | Action::Settled(End::Superseded(record))
            if *record == shown =>
        {
            *record = real;
        }
        _ => {}
    }
    action
}

/// The put that an action sends.
pub(crate) const fn sent_by(action: &Action) -> Option<&Put> {
    match action {
        Action::Put(put) | Action::Commit { put, .. } => Some(put),
        _ => None,
    }
}

/// Changes the record in the put that an action sends, if the put has this purpose.
pub(crate) fn with_new(outcome: Outcome, purpose: Purpose, change: impl FnOnce(&mut Record)) -> Outcome {
    let (state, mut action) = outcome;
    if let Action::Put(put) | Action::Commit { put, .. } = &mut action
        && Purpose::of(put) == purpose
    {
        let (Put::Create(new) | Put::Replace { new, .. } | Put::Mine { new, .. }) = put;
        change(new);
    }
    (state, action)
}

impl Moment<'_> {
    /// Whether the handler has ended.
    pub(crate) fn is_settling(&self) -> bool {
        self.before.intent.is_some()
    }

    /// The last action that sent a write, if any.
    pub(crate) fn sent(&self) -> Option<&Action> {
        self.before.sent.as_ref().map(|(_, action)| action)
    }

    /// Whether the last put that was sent had this purpose.
    pub(crate) fn was(&self, purpose: Purpose) -> bool {
        self.sent().and_then(sent_by).map(Purpose::of) == Some(purpose)
    }

    /// The record that the event shows.
    pub(crate) fn shown(&self) -> Option<&Record> {
        match self.event {
            Event::Answered(PutOutcome::Refused(record)) | Event::Found(record) => record.as_ref(),
            _ => None,
        }
    }

    /// Whether the event is a failure with an ambiguous result.
    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self.event, Event::Failed(fault) if fault.maybe_applied)
    }
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutant").field("name", &self.name).finish_non_exhaustive()
    }
}
