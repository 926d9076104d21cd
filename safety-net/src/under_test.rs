//! What is put under test: a [`Protocol`]. The one that ships is [`Shipping`]; a mutant and a peer's
//! protocol are others, and go through the very same net.

use std::{fmt::Debug, hash::Hash};

use lambda_idempotency::{
    Owner, Record,
    protocol::{self, Action, Input, Plan, State},
    store::Write,
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

    fn apply(&self, write: &Write, current: Option<&Record>) -> Effect {
        write.apply_to(current).into()
    }
}
