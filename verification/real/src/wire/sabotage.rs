//! Stores that break one rule each, to test that the check finds each broken rule.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, Lock, Owner, Record, ResponseChunks, Revision, Settlement, Status, Store, StoreError,
        StoreErrorKind, Write, WriteOutcome, dynamodb::DynamoDbStore,
    },
    time::Timestamp,
};

use super::{case::Case, proxy::lock, way::HttpWay};

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
    async fn apply_now(&self, key: &StoredKey, write: &Write) -> Result<WriteOutcome, StoreError> {
        if let Some(lock_written) = write.lock() {
            lock(&self.mine).push(lock_written.owner);
        }
        match (self.how, self.store.apply(key, write).await) {
            (Sabotage::TakesAmbiguousForDefinite, Err(error)) => Err(error.maybe_applied(false)),
            (Sabotage::TakesAmbiguousForDone, Err(error)) if error.is_maybe_applied() => {
                Ok(WriteOutcome::Applied)
            }
            (Sabotage::NeverKnowsItsOwnClaim, Ok(WriteOutcome::Refused(record))) => {
                Ok(WriteOutcome::Refused(self.estranged(record)))
            }
            (Sabotage::CompletesWhateverIsThere, Ok(WriteOutcome::Refused(Some(record)))) => {
                self.overwrite(key, write, record).await
            }
            (_, written) => written,
        }
    }

    /// Replaces the owner in the record if the record is the library's own claim.
    fn estranged(&self, record: Option<Record>) -> Option<Record> {
        record.map(|record| {
            let is_mine = record.status() == Status::Started && lock(&self.mine).contains(&record.owner);
            if is_mine { Record { owner: Owner::from_bytes([0; 16]), ..record } } else { record }
        })
    }

    async fn overwrite(
        &self,
        key: &StoredKey,
        write: &Write,
        record: Record,
    ) -> Result<WriteOutcome, StoreError> {
        let Write::Settle { owner, settlement: Settlement::Complete(..), .. } = write else {
            return Ok(WriteOutcome::Refused(Some(record)));
        };
        let lock =
            Lock { owner: *owner, ..record.lock_until(record.expires_at.unwrap_or(record.lock_acquired_at)) };
        let generation = lock.generation;
        let _ = self.store.apply(key, &Write::Reclaim { seen: Revision::of(&record), lock }).await?;
        let Write::Settle { settlement, .. } = write.clone() else { return Ok(WriteOutcome::Applied) };
        self.store.apply(key, &Write::Settle { owner: *owner, generation, settlement }).await
    }
}

impl Store for Sabotaged {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        Box::pin(self.apply_now(key, write))
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
