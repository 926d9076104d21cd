//! The trait [`Protocol`]: the model checker tests any implementation of it. [`Shipping`] is the protocol that
//! ships. The mutants and Powertools' protocol are other implementations.

use std::{fmt::Debug, hash::Hash, time::Duration};

use lambda_idempotency::{
    protocol::{self, Action, Held, Input, Intent, Plan, State},
    store::{Generation, Outcome, Owner, Put, Record, State as RecordState, Status},
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

    /// The store's effect for `put` on `current`.
    fn put(&self, put: &Put, current: Option<&Record>) -> Effect;

    /// Returns the store's effect for a transaction of `put` and the handler's own writes, and whether the
    /// store applies those writes. It assumes that the conditions on the handler's writes hold.
    fn commit(&self, put: &Put, current: Option<&Record>) -> (Effect, bool) {
        let effect = self.put(put, current);
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

    /// The intent for a claim that ended at `now` without an answer.
    fn unanswered(&self, _: &Self::State, _now: Timestamp, _ask_again_after: Option<Duration>) -> Intent {
        Intent::Release { interrupted: true }
    }

    /// The token by which the store recognises a transaction. `None` if the store never recognises it.
    fn token(&self, sent: &Sent) -> Option<Token> {
        sent.token()
    }
}

/// The purpose of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// T1 to T3: a claim.
    Claim,
    /// T7: an extension of a claim's lease.
    Extend,
    /// T4 to T6 and T8: the settlement of a claim.
    Settle,
    /// T9: the end of an interrupted claim's lease.
    Interrupt,
    /// The outcome of a run without a claim.
    Conclude,
    /// An operator's decision.
    Resolve,
}

impl Purpose {
    /// The purpose of `put`.
    pub fn of(put: &Put) -> Self {
        match (put, put.record().status()) {
            (Put::Replace { seen, new }, Status::Started) if new.is_claim_of(seen) => Self::Extend,
            (Put::Create(_) | Put::Replace { .. }, Status::Started) => Self::Claim,
            (Put::Mine { .. }, Status::Started) => Self::Interrupt,
            (Put::Mine { .. }, _) => Self::Settle,
            (Put::Replace { seen, new }, _) if is_same_run(seen, new) => Self::Resolve,
            _ => Self::Conclude,
        }
    }
}

/// Whether both records belong to the same run: the attempt, the fingerprint, the lock time, the request id
/// and the trace are the same.
/// Settlements, extensions and operators keep these.
pub fn is_same_run(seen: &Record, new: &Record) -> bool {
    let run = |record: &Record| (record.attempt, record.fingerprint, record.lock_acquired_at);
    run(seen) == run(new) && (&seen.request_id, &seen.trace) == (&new.request_id, &new.trace)
}

/// Whether the condition of `put` holds on `current`. The contract in other words, to compare a store with.
pub fn fits(put: &Put, current: Option<&Record>) -> bool {
    match (put, current) {
        (Put::Create(_), None) => true,
        (Put::Replace { seen, .. }, Some(current)) => version(seen) == version(current),
        (Put::Mine { held, .. }, Some(current)) => {
            let (status, owner, generation, ..) = version(current);
            (status, owner, generation) == (Status::Started, held.owner, held.generation)
        }
        _ => false,
    }
}

/// The fields that a replacement compares: the status, the owner, the generation, the lease and the expiry.
pub fn version(record: &Record) -> (Status, Owner, Generation, Option<Timestamp>, Option<Timestamp>) {
    (record.status(), record.owner, record.generation, record.lease_until(), record.expires_at)
}

/// The outcome in a record.
pub fn outcome(record: &Record) -> Option<&Outcome> {
    match &record.state {
        RecordState::Completed(outcome) | RecordState::Failed(outcome) => Some(outcome),
        RecordState::Started { .. } | RecordState::Released => None,
    }
}

/// A request from an executor to the store: a put, and the submission's number if it's a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    /// The put.
    pub put: Put,
    /// The submission's number, if the request is a transaction with the handler's own writes.
    pub submission: Option<u32>,
}

/// The identity of a transaction: owner, generation and submission. The model has one key, so the key isn't part of
/// the identity.
pub type Token = (Owner, Generation, u32);

impl Sent {
    /// Whether `record` holds what this put stores: the settlement's outcome, or a conclusion's whole record. False for
    /// a put that stores neither.
    pub fn is_in(&self, record: &Record) -> bool {
        let new = self.put.record();
        match Purpose::of(&self.put) {
            Purpose::Settle => outcome(new).is_some() && new.state == record.state,
            Purpose::Conclude => new == record,
            Purpose::Claim | Purpose::Extend | Purpose::Interrupt | Purpose::Resolve => false,
        }
    }

    /// The token of a transaction.
    pub fn token(&self) -> Option<Token> {
        let new = self.put.record();
        Some((new.owner, new.generation, self.submission?))
    }
}

/// The effect of a put on a record.
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

/// The protocol that ships: [`protocol::step`] and [`Put::apply_to`], unchanged.
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

    fn unanswered(&self, state: &State, now: Timestamp, ask_again_after: Option<Duration>) -> Intent {
        state.unanswered(now, ask_again_after)
    }

    fn put(&self, put: &Put, current: Option<&Record>) -> Effect {
        put.apply_to(current).into()
    }
}
