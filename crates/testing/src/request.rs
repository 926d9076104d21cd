//! Requests to the test's records: applied at once, or after their sender has given up.

use std::any::Any;

use lambda_idempotency_core::{
    StoredKey,
    internal::testing::{Transaction, TransactionExt as _},
    store::{Outcome, OwnWrites, Put, State},
};

use super::{
    dynamodb,
    effect::{Guard, Origin, StagedEffect},
};

/// A handler's own writes.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Empty for writes of DynamoDB's type: the bench can't check their conditions, so it treats them as met.
    pub(super) writes: Transaction,
    pub(super) effects: Vec<StagedEffect>,
    pub(super) token: String,
}

impl Own {
    pub(super) fn new(writes: &OwnWrites, token: &str) -> Self {
        let any: &dyn Any = writes;
        Self {
            writes: any.downcast_ref().cloned().unwrap_or_default(),
            effects: described(writes).unwrap_or_default(),
            token: token.to_owned(),
        }
    }
}

/// A write of the protocol, alone or in one transaction with the handler's own writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) key: &'a StoredKey,
    pub(super) put: &'a Put,
    pub(super) own: Option<&'a Own>,
}

/// A request whose sender has given up on it.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) delivery: usize,
    pub(super) key: StoredKey,
    pub(super) put: Put,
    pub(super) own: Option<Own>,
}

impl Request<'_> {
    /// Whether the request has a response to store.
    pub(super) fn has_response(self) -> bool {
        let (State::Completed(outcome) | State::Failed(outcome)) = &self.put.record().state else {
            return false;
        };
        matches!(outcome, Outcome::Retained(_))
    }
}

/// Returns a handler's writes as effects. `None` if the test's store doesn't know their type.
pub(super) fn described(writes: &OwnWrites) -> Option<Vec<StagedEffect>> {
    let any: &dyn Any = writes;
    if let Some(own) = any.downcast_ref::<Transaction>() {
        let effect = |(name, item, detail): (_, _, _)| (name, detail, Origin::Staged(item, Guard::None));
        return Some(own.described().into_iter().map(effect).collect());
    }
    dynamodb::described(writes)
}
