//! The trait [`Protocol`]: the model checker tests any implementation of it. [`Shipping`] is the protocol that
//! ships. The mutants and Powertools' protocol are other implementations.

use std::{fmt::Debug, hash::Hash};

use lambda_idempotency::{
    protocol::{self, Action, Held, Input, Plan, State},
    store::{Generation, Owner, Record, Settlement, State as RecordState, Write},
    time::Timestamp,
};

use crate::{configuration, invariants::Invariant};

/// A protocol: an executor's step, and the store's effect.
///
/// Both are pure functions, so an explorer may compute each result once and memoize it.
pub trait Protocol {
    /// An executor's state.
    type State: Clone + Eq + Hash + Debug;

    /// Draws the owner for a delivery of a request. No two deliveries have the same owner.
    fn owner(&self, delivery: u8, request: u8) -> Owner {
        configuration::owner(delivery, request)
    }

    /// The invariants that the protocol doesn't claim to keep, or keeps in another form. They aren't checked.
    fn exempt(&self) -> &'static [Invariant] {
        &[]
    }

    /// The state of an executor that has this plan and has done nothing yet.
    fn begin(&self, plan: &Plan) -> Self::State;

    /// Returns the next state, and the action to take.
    fn step(&self, state: Self::State, input: Input) -> (Self::State, Action);

    /// The store's effect for `write` on `current`.
    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect;

    /// Returns the store's effect for a transaction of `write` and the handler's own writes, and whether the
    /// store applies those writes. It assumes that the conditions on the handler's writes hold.
    fn commit(&self, write: &Write, current: Option<&Record>) -> (Effect, bool) {
        let effect = self.apply(write, current);
        let is_made = effect != Effect::Refused;
        (effect, is_made)
    }

    /// Whether the sweeper may already remove `record`.
    fn may_sweep(&self, record: &Record, now: Timestamp) -> bool {
        record.expires_at.is_some_and(|expires_at| expires_at <= now)
    }

    /// The claim that an executor in this state holds.
    fn held(&self, _: &Self::State) -> Option<Held> {
        None
    }

    /// The token by which the store recognises a transaction. `None` if the store never recognises it.
    fn token(&self, sent: &Sent) -> Option<Token> {
        sent.token()
    }
}

/// A request from an executor to the store: a write, and the submission's number if it's a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    /// The write.
    pub write: Write,
    /// The submission's number, if the request is a transaction with the handler's own writes.
    pub submission: Option<u32>,
}

/// The identity of a transaction: owner, generation and submission. The model has one key, so the key isn't part of
/// the identity.
pub type Token = (Owner, Generation, u32);

impl Sent {
    /// Whether `record` holds what this write stores: an outcome, or a conclusion's whole record. False for a write
    /// that stores neither.
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

/// The effect of a write on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The store holds this record afterwards.
    Put(Record),
    /// The record is removed. The shipping protocol never removes a record.
    Removed,
    /// The condition failed; nothing changed.
    Refused,
}

impl From<Option<Record>> for Effect {
    fn from(record: Option<Record>) -> Self {
        record.map_or(Self::Refused, Self::Put)
    }
}

/// The protocol that ships: [`protocol::step`] and [`Write::apply_to`], unchanged.
#[derive(Clone, Copy, Debug)]
pub struct Shipping;

impl Protocol for Shipping {
    type State = State;

    fn begin(&self, plan: &Plan) -> State {
        State::new(plan.clone())
    }

    fn step(&self, mut state: State, input: Input) -> (State, Action) {
        let action = protocol::step(&mut state, input);
        (state, action)
    }

    fn held(&self, state: &State) -> Option<Held> {
        state.held().cloned()
    }

    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect {
        write.apply_to(current).into()
    }
}
