//! Applies requests to the test's records: at once, or after their sender has given up. If the test planned a record
//! with `Bench::given`, the next delivery's first write finds that record.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lambda_idempotency_core::{
    StoredKey,
    internal::testing::MemoryStoreExt as _,
    settings::Execution,
    store::{
        CommitOutcome, Generation, Mark, Outcome, Owner, Put, PutOutcome, Record, State, StoreError,
        StoreErrorKind, StoredResponse,
    },
    time::Timestamp,
};

use super::{
    fault::Fault,
    given::Given,
    point::Call,
    request::{Late, Own, Request},
    told::Told,
    world::{Meets, World},
};

/// How long ago a planned record was claimed, and how long ago its lease or the record expired, if it has. An hour is
/// longer than any skew margin in use.
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl World {
    /// Applies a request of this delivery, if its condition holds.
    pub(super) fn apply(&self, delivery: Option<usize>, request: Request<'_>) -> CommitOutcome {
        match request.own {
            Some(own) => self.commit(delivery, Some((request.key, request.put)), own),
            None => CommitOutcome::Answered(self.records.put_now(request.key, request.put)),
        }
    }

    /// Applies a handler's own writes, with the record or alone, and notes them as effects. Does neither if writes with
    /// the same token were applied before.
    pub(super) fn commit(
        &self,
        delivery: Option<usize>,
        record: Option<(&StoredKey, &Put)>,
        own: &Own,
    ) -> CommitOutcome {
        let is_new = !self.records.has_committed(&own.token);
        let outcome = self.records.commit_now(record, &own.writes, &own.token);
        if is_new && matches!(outcome, CommitOutcome::Answered(PutOutcome::Applied)) {
            let mut state = self.state();
            if let Some(at) = delivery {
                for (name, detail, origin) in &own.effects {
                    state.happen(at, name, detail.clone(), None, origin.clone());
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
        let Request { key, put, own } = request;
        state.late.push(Late { delivery, key: key.clone(), put: put.clone(), own: own.cloned() });
    }

    /// Whether this request was sent before, and hasn't arrived yet.
    pub(super) fn is_on_its_way(&self, request: Request<'_>) -> bool {
        self.state().late.iter().any(|late| (&late.key, &late.put) == (request.key, request.put))
    }

    /// Applies the late requests: they arrive now.
    pub(super) fn arrive(&self) {
        let late = std::mem::take(&mut self.state().late);
        for Late { delivery, key, put, own } in late {
            let call = Call::of(&put);
            let outcome = self.apply(Some(delivery), Request { key: &key, put: &put, own: own.as_ref() });
            let is_applied = matches!(outcome, CommitOutcome::Answered(PutOutcome::Applied));
            let mut state = self.state();
            if is_applied {
                state.deliveries[delivery].noted(&key, &put, true);
            }
            state.trace.push(Told::Arrived { delivery, call, is_applied });
        }
    }
}

/// Puts the test's planned record under `key`, if there is one and `put` expects no record. A delivery's first write
/// expects none.
///
/// # Errors
///
/// If the record can't be read.
pub(super) fn meet(world: &Arc<World>, key: &StoredKey, put: Option<&Put>) -> Result<(), StoreError> {
    let now = world.now();
    let mut state = world.state();
    let fingerprint = match put {
        Some(Put::Create(record)) => Some(record.fingerprint),
        _ => None,
    };
    if let (Some(fingerprint), Some(given)) = (fingerprint, state.given.take()) {
        match given {
            Given::Corrupt => drop(state.unreadable.insert(key.clone(), Meets::Corrupt)),
            Given::OfAFutureVersion => drop(state.unreadable.insert(key.clone(), Meets::FutureVersion)),
            given => {
                let (record, expires_at) = described(given, now);
                let record = Record {
                    owner: Owner::from_bytes([0xee; 16]),
                    generation: Generation::new(now.saturating_sub(HOUR).as_millis()),
                    attempt: 1,
                    fingerprint,
                    lock_acquired_at: now.saturating_sub(HOUR),
                    execution: Execution::AtLeastOnce,
                    expires_at: Some(expires_at.rounded_up_to_second()),
                    mark: Mark::None,
                    request_id: Some("an-earlier-request".into()),
                    trace: None,
                    state: record,
                };
                world.records.set(key, Some(record));
            }
        }
    }
    let error = match state.unreadable.get(key) {
        None => None,
        Some(Meets::Corrupt) => Fault::Unreadable.error(),
        Some(Meets::FutureVersion) => {
            let text = "the record has a version that this library doesn't know";
            Some(StoreError::new(StoreErrorKind::Corrupt, text))
        }
    };
    error.map_or(Ok(()), Err)
}

/// Returns the planned record's state, and the time when the record expires.
fn described(given: Given, now: Timestamp) -> (State, Timestamp) {
    let (before, after) = (now.saturating_sub(HOUR), now.saturating_add(DAY));
    let retained = |bytes| Outcome::Retained(StoredResponse::new(bytes));
    match given {
        Given::InProgress(left) => (State::Started { lease_until: now.saturating_add(left) }, after),
        Given::Completed(response) => (State::Completed(retained(response)), after),
        Given::Failed(failure) => (State::Failed(retained(failure)), after),
        Given::Expired => (State::Completed(retained(Bytes::from_static(b"null"))), before),
        Given::Stale | Given::Corrupt | Given::OfAFutureVersion => {
            (State::Started { lease_until: before }, after)
        }
    }
}
