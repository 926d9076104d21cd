//! The net must be able to fail: stores that break one rule each, which a run has to find.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lambda_idempotency::{
    BoxFuture, Lock, Owner, Record, Status, StoredKey, Timestamp,
    store::{
        ResponseParts, Seen, Settlement, Store, StoreError, StoreErrorKind, Write, Written,
        dynamodb::DynamoDbStore,
    },
};

use super::{case::Case, fault::Fault, proxy::lock};

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Every ambiguous error is reported as one that is definite.
    TakesAmbiguousForDefinite,
    /// The owner's own claim comes back as a stranger's.
    NeverKnowsItsOwnClaim,
    /// The SDK's client has no time-outs.
    NeverTimesOut,
    /// An ambiguous error of a write is reported as done.
    TakesAmbiguousForDone,
    /// A completion that is refused overwrites what stands in its way.
    CompletesWhateverIsThere,
    /// A response is said to be kept in siblings, whether that succeeded or not.
    ForgetsToCheckParts,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TakesAmbiguousForDefinite,
        Self::NeverKnowsItsOwnClaim,
        Self::NeverTimesOut,
        Self::TakesAmbiguousForDone,
        Self::CompletesWhateverIsThere,
        Self::ForgetsToCheckParts,
    ];

    /// Whether this case shows it.
    pub(super) fn shows_in(self, case: &Case) -> bool {
        let (scenario, fault) = match self {
            Self::TakesAmbiguousForDefinite | Self::NeverKnowsItsOwnClaim => {
                ("first run", Some(Fault::CutAfter))
            }
            Self::NeverTimesOut => ("first run", Some(Fault::HangBefore)),
            Self::TakesAmbiguousForDone => ("first run", Some(Fault::CutBefore)),
            Self::CompletesWhateverIsThere => ("fenced by one who completed", None),
            Self::ForgetsToCheckParts => ("a response in a sibling", Some(Fault::CutBefore)),
        };
        case.scenario.name == scenario && case.faults.values().next().copied() == fault
    }
}

/// The store, broken so.
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
    async fn apply_now(&self, key: &StoredKey, write: &Write) -> Result<Written, StoreError> {
        if let Some(lock_written) = write.lock() {
            lock(&self.mine).push(lock_written.owner);
        }
        match (self.how, self.store.apply(key, write).await) {
            (Sabotage::TakesAmbiguousForDefinite, Err(error)) => Err(error.maybe_applied(false)),
            (Sabotage::TakesAmbiguousForDone, Err(error)) if error.is_maybe_applied() => Ok(Written::Applied),
            (Sabotage::NeverKnowsItsOwnClaim, Ok(Written::Refused(record))) => {
                Ok(Written::Refused(self.estranged(record)))
            }
            (Sabotage::CompletesWhateverIsThere, Ok(Written::Refused(Some(record)))) => {
                self.overwrite(key, write, record).await
            }
            (_, written) => written,
        }
    }

    /// Our own claim, with another's name on it.
    fn estranged(&self, record: Option<Record>) -> Option<Record> {
        record.map(|record| {
            let is_mine = record.status() == Status::Started && lock(&self.mine).contains(&record.owner);
            if is_mine { Record { owner: Owner::from_bytes([0; 16]), ..record } } else { record }
        })
    }

    async fn overwrite(&self, key: &StoredKey, write: &Write, record: Record) -> Result<Written, StoreError> {
        let Write::Settle { owner, settlement: Settlement::Complete(..), .. } = write else {
            return Ok(Written::Refused(Some(record)));
        };
        let lock =
            Lock { owner: *owner, ..record.lock_until(record.expires_at.unwrap_or(record.lock_acquired_at)) };
        let generation = lock.generation;
        let _ = self.store.apply(key, &Write::Reclaim { seen: Seen::of(&record), lock }).await?;
        let Write::Settle { settlement, .. } = write.clone() else { return Ok(Written::Applied) };
        self.store.apply(key, &Write::Settle { owner: *owner, generation, settlement }).await
    }
}

impl Store for Sabotaged {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<Written, StoreError>> {
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

    fn parts(&self) -> Option<&dyn ResponseParts> {
        Some(self)
    }
}

impl ResponseParts for Sabotaged {
    fn inline_limit(&self) -> usize {
        ResponseParts::inline_limit(&self.store)
    }

    fn write_parts<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            match self.store.write_parts(key, owner, bytes, expires_at).await {
                Err(error) if error.kind() == StoreErrorKind::Unavailable && self.forgets() => Ok(1),
                written => written,
            }
        })
    }

    fn read_parts<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.store.read_parts(key, owner, count, limit)
    }
}

impl Sabotaged {
    fn forgets(&self) -> bool {
        self.how == Sabotage::ForgetsToCheckParts
    }
}
