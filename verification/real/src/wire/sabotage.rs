//! Stores that break one rule each, to test that the check finds each broken rule.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, Owner, Put, PutOutcome, Record, ResponseChunks, Status, Store, StoreError, StoreErrorKind,
        dynamodb::DynamoDbStore,
    },
    time::Timestamp,
};

use lambda_idempotency_rehearsal::wire::HttpWay;

use super::{case::Case, lock};

/// How the store breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Reports every ambiguous error of a write as definite.
    TakesAmbiguousForDefinite,
    /// Returns the library's own claim as another owner's.
    NeverKnowsItsOwnClaim,
    /// Sets no timeouts on the SDK's client.
    NeverTimesOut,
    /// Reports an ambiguous error of a write as success.
    TakesAmbiguousForDone,
    /// Overwrites the current record when a completion is rejected.
    CompletesWhateverIsThere,
    /// Reports a response's chunks as stored, even if the store was unavailable.
    ForgetsToCheckParts,
}

impl Sabotage {
    /// Every sabotage.
    pub const ALL: [Self; 6] = [
        Self::TakesAmbiguousForDefinite,
        Self::NeverKnowsItsOwnClaim,
        Self::NeverTimesOut,
        Self::TakesAmbiguousForDone,
        Self::CompletesWhateverIsThere,
        Self::ForgetsToCheckParts,
    ];

    /// Whether this case reveals the sabotage.
    pub(super) fn shows_in(self, case: &Case) -> bool {
        let (scenario, fault) = match self {
            Self::TakesAmbiguousForDefinite | Self::NeverKnowsItsOwnClaim => {
                ("first run", Some(HttpWay::CutAfter))
            }
            Self::NeverTimesOut => ("first run", Some(HttpWay::HangBefore)),
            Self::TakesAmbiguousForDone => ("first run", Some(HttpWay::CutBefore)),
            Self::CompletesWhateverIsThere => ("fenced by a successor that completed", None),
            Self::ForgetsToCheckParts => ("a response in a chunk", Some(HttpWay::CutBefore)),
        };
        case.scenario.name == scenario && case.faults.values().next().copied() == fault
    }
}

/// Returns the store, broken in the way `how` if there is one. `NeverTimesOut` changes only the timeouts
/// with which the store was built.
pub(super) fn sabotaged(store: DynamoDbStore, how: Option<Sabotage>) -> Arc<dyn Store> {
    match how {
        None | Some(Sabotage::NeverTimesOut) => Arc::new(store),
        Some(how) => Arc::new(Sabotaged { store, how, mine: Mutex::default() }),
    }
}

#[derive(Debug)]
struct Sabotaged {
    store: DynamoDbStore,
    how: Sabotage,
    mine: Mutex<Vec<Owner>>,
}

impl Sabotaged {
    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        if put.record().status() == Status::Started {
            lock(&self.mine).push(put.record().owner);
        }
        match (self.how, self.store.put(key, put).await) {
            (Sabotage::TakesAmbiguousForDefinite, Err(error)) => Err(error.maybe_applied(false)),
            (Sabotage::TakesAmbiguousForDone, Err(error)) if error.is_maybe_applied() => {
                Ok(PutOutcome::Applied)
            }
            (Sabotage::NeverKnowsItsOwnClaim, Ok(PutOutcome::Refused(record))) => {
                Ok(PutOutcome::Refused(self.estranged(record)))
            }
            (Sabotage::CompletesWhateverIsThere, Ok(PutOutcome::Refused(Some(record)))) => {
                self.overwrite(key, put, record).await
            }
            (_, answer) => answer,
        }
    }

    /// Replaces the owner in the record if the record is the library's own claim.
    fn estranged(&self, record: Option<Record>) -> Option<Record> {
        record.map(|record| {
            let is_mine = record.status() == Status::Started && lock(&self.mine).contains(&record.owner);
            if is_mine { Record { owner: Owner::from_bytes([0; 16]), ..record } } else { record }
        })
    }

    async fn overwrite(&self, key: &StoredKey, put: &Put, seen: Record) -> Result<PutOutcome, StoreError> {
        match put {
            Put::Mine { new, .. } if new.status() == Status::Completed => {
                let new = Record { generation: seen.generation, ..new.clone() };
                self.store.put(key, &Put::Replace { seen, new }).await
            }
            _ => Ok(PutOutcome::Refused(Some(seen))),
        }
    }
}

impl Store for Sabotaged {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.put_now(key, put))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let record = self.store.read(key).await?;
            Ok(match self.how {
                Sabotage::NeverKnowsItsOwnClaim => self.estranged(record),
                _ => record,
            })
        })
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        Some(self)
    }
}

impl ResponseChunks for Sabotaged {
    fn inline_limit(&self) -> usize {
        ResponseChunks::inline_limit(&self.store)
    }

    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            match self.store.write_chunks(key, owner, bytes, expires_at).await {
                Err(error) if error.kind() == StoreErrorKind::Unavailable && self.forgets() => Ok(1),
                written => written,
            }
        })
    }

    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.store.read_chunks(key, owner, count, limit)
    }
}

impl Sabotaged {
    fn forgets(&self) -> bool {
        self.how == Sabotage::ForgetsToCheckParts
    }
}
