//! Requests to the test's records: applied at once, or after their sender has given up.

use std::any::Any;

use crate::{
    key::StoredKey,
    outcome::Outcome,
    record::{Record, State},
    store::{OwnWrites, Settlement, Write, memory::transaction::Transaction},
};

/// A handler's own writes.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Empty for writes of DynamoDB's type: the bench can't check their conditions, so it treats them as met.
    pub(super) writes: Transaction,
    pub(super) effects: Vec<(String, String)>,
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
    pub(super) write: &'a Write,
    pub(super) own: Option<&'a Own>,
}

/// A request whose sender has given up on it.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) delivery: usize,
    pub(super) key: StoredKey,
    pub(super) write: Write,
    pub(super) own: Option<Own>,
}

impl Request<'_> {
    /// Whether the request has a response to store.
    pub(super) fn has_response(self) -> bool {
        let outcome = match self.write {
            Write::Settle {
                settlement: Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _),
                ..
            }
            | Write::Conclude {
                record: Record { state: State::Completed(outcome) | State::Failed(outcome), .. },
                ..
            } => outcome,
            _ => return false,
        };
        matches!(outcome, Outcome::Retained(_))
    }
}

/// Returns a handler's writes as effects: name and detail. `None` if the test's store doesn't know their type.
pub(super) fn described(writes: &OwnWrites) -> Option<Vec<(String, String)>> {
    let writes: &dyn Any = writes;
    if let Some(own) = writes.downcast_ref::<Transaction>() {
        return Some(own.described());
    }
    #[cfg(feature = "dynamodb")]
    if let Some(own) = writes.downcast_ref::<crate::store::dynamodb::Transaction>() {
        return Some(own.described());
    }
    None
}
