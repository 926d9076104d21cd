//! Requests to the test's records: applied at once, or after their sender has given up.

use std::any::Any;

use super::{
    point::Call,
    world::{Told, World},
};
use crate::{
    key::StoredKey,
    outcome::Outcome,
    record::{Record, State},
    store::{CommitOutcome, OwnWrites, Settlement, Write, WriteOutcome, memory::transaction::Transaction},
};

/// A handler's own writes.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Empty for writes of DynamoDB's type: the bench can't check their conditions, so it treats them as met.
    writes: Transaction,
    effects: Vec<(String, String)>,
    token: String,
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
    delivery: usize,
    key: StoredKey,
    write: Write,
    own: Option<Own>,
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

impl World {
    /// Applies a request of this delivery, if its condition holds.
    pub(super) fn apply(&self, delivery: Option<usize>, request: Request<'_>) -> CommitOutcome {
        match request.own {
            Some(own) => self.commit(delivery, Some((request.key, request.write)), own),
            None => CommitOutcome::Answered(self.records.apply_now(request.key, request.write)),
        }
    }

    /// Applies a handler's own writes, with the record or alone, and notes them as effects unless their token was
    /// applied before.
    pub(super) fn commit(
        &self,
        delivery: Option<usize>,
        record: Option<(&StoredKey, &Write)>,
        own: &Own,
    ) -> CommitOutcome {
        let is_new = !self.records.has_committed(&own.token);
        let outcome = self.records.commit_now(record, &own.writes, &own.token);
        if is_new && matches!(outcome, CommitOutcome::Answered(WriteOutcome::Applied)) {
            let mut state = self.state();
            if let Some(at) = delivery {
                for (name, detail) in &own.effects {
                    state.happen(at, name, detail.clone(), None, record.is_some());
                }
                // Only a handler stages writes, so the handler ran.
                state.deliveries[at].has_run = true;
            }
        }
        outcome
    }

    /// Keeps a request that arrives only after its sender has given up on it.
    pub(super) fn keep(&self, process: usize, request: Request<'_>) {
        let mut state = self.state();
        let Some(delivery) = state.at_work(process) else { return };
        let Request { key, write, own } = request;
        state.late.push(Late { delivery, key: key.clone(), write: write.clone(), own: own.cloned() });
    }

    /// Whether this request was sent before, and hasn't arrived yet.
    pub(super) fn is_on_its_way(&self, request: Request<'_>) -> bool {
        self.state().late.iter().any(|late| (&late.key, &late.write) == (request.key, request.write))
    }

    /// Applies the late requests: they arrive now.
    pub(super) fn arrive(&self) {
        let late = std::mem::take(&mut self.state().late);
        for Late { delivery, key, write, own } in late {
            let call = Call::of(&write);
            let outcome = self.apply(Some(delivery), Request { key: &key, write: &write, own: own.as_ref() });
            let is_applied = matches!(outcome, CommitOutcome::Answered(WriteOutcome::Applied));
            let mut state = self.state();
            if is_applied {
                let is_for_ever = write.lock().is_some_and(|lock| lock.expires_at.is_none());
                state.deliveries[delivery].noted(&key, call, is_for_ever, true);
            }
            state.trace.push(Told::Arrived { delivery, call, is_applied });
        }
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
