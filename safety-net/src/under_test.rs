//! What is put under test: a [`Protocol`]. The one that ships is [`Shipping`]; a mutant and a peer's
//! protocol are others, and go through the very same net.

use std::{fmt::Debug, hash::Hash};

use lambda_idempotency::{
    Generation, Owner, Record, State as RecordState, Timestamp,
    protocol::{self, Action, Held, Input, Plan, State},
    store::{Settlement, Write},
};

use crate::{configuration, invariants::Invariant};

/// A protocol: what an executor does, and what the store does with it.
///
/// Both halves are pure, so an explorer may ask for one answer once and remember it.
pub trait Protocol {
    /// An executor's state.
    type State: Clone + Eq + Hash + Debug;

    /// The owner that is drawn for a delivery of a request: another for every delivery.
    fn owner(&self, delivery: u8, request: u8) -> Owner {
        configuration::owner(delivery, request)
    }

    /// What it does not claim to keep, or keeps in another form: not checked.
    fn exempt(&self) -> &'static [Invariant] {
        &[]
    }

    /// The state of an executor that was given this plan and has done nothing yet.
    fn begin(&self, plan: &Plan) -> Self::State;

    /// What the state becomes, and what to do next.
    fn step(&self, state: Self::State, input: Input) -> (Self::State, Action);

    /// What the store makes of `write` when it meets `current`.
    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect;

    /// What the store makes of a transaction of `write` and writes of the handler's own, whose conditions hold; and
    /// whether it makes those.
    fn commit(&self, write: &Write, current: Option<&Record>) -> (Effect, bool) {
        let effect = self.apply(write, current);
        let is_made = effect != Effect::Refused;
        (effect, is_made)
    }

    /// Whether the sweeper may remove `record` by now.
    fn may_sweep(&self, record: &Record, now: Timestamp) -> bool {
        record.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// The claim that an executor in this state holds.
    fn held(&self, _: &Self::State) -> Option<Held> {
        None
    }

    /// By what the store knows a transaction again. None, if it never does.
    fn token(&self, sent: &Sent) -> Option<Token> {
        sent.token()
    }
}

/// What an executor sends to the store: a write, and the number of its submission where it is a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    /// The write.
    pub write: Write,
    /// The submission, if writes of the handler's own go along.
    pub submission: Option<u32>,
}

/// What names a transaction: owner, generation and submission. The key is always the same here.
pub type Token = (Owner, Generation, u32);

impl Sent {
    /// Whether `record` is what it makes, as far as it says what that is.
    pub fn is_in(&self, record: &Record) -> bool {
        match (&self.write, &record.state) {
            (
                Write::Settle { settlement: Settlement::Complete(outcome, _), .. },
                RecordState::Completed(stored),
            )
            | (Write::Settle { settlement: Settlement::Fail(outcome, _), .. }, RecordState::Failed(stored)) => {
                outcome == stored
            }
            (Write::Conclude { record: concluded, .. }, _) => concluded == record,
            _ => false,
        }
    }

    /// The token of a transaction.
    pub fn token(&self) -> Option<Token> {
        let (owner, generation) = match &self.write {
            Write::Settle { owner, generation, .. } => (*owner, *generation),
            Write::Conclude { record, .. } => (record.owner, record.generation),
            _ => return None,
        };
        Some((owner, generation, self.submission?))
    }
}

/// What a write does to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The record is this now.
    Put(Record),
    /// The record is gone. The shipping protocol never removes one.
    Removed,
    /// The condition failed; nothing changed.
    Refused,
}

impl From<Option<Record>> for Effect {
    fn from(record: Option<Record>) -> Self {
        record.map_or(Self::Refused, Self::Put)
    }
}

/// The protocol that ships: [`protocol::step`] and [`Write::apply_to`], with nothing in between.
#[derive(Clone, Copy, Debug)]
pub struct Shipping;

impl Protocol for Shipping {
    type State = State;

    fn begin(&self, plan: &Plan) -> State {
        State::new(plan.clone())
    }

    fn step(&self, state: State, input: Input) -> (State, Action) {
        protocol::step(state, input)
    }

    fn held(&self, state: &State) -> Option<Held> {
        state.held().cloned()
    }

    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect {
        write.apply_to(current).into()
    }
}
