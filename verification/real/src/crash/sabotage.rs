//! Breaks the function under test on purpose, in one of several ways. Tests show that the check finds each of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lambda_idempotency::{
    Fingerprint, StoredKey,
    settings::Execution,
    store::{
        BoxFuture, CommitOutcome, Lock, Mark, OwnWrites, Put, PutOutcome, Record, ResponseChunks, State,
        Store, StoreError, Transactions,
    },
    time::Timestamp,
};

/// One way to break a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Treats a fenced settlement as applied, so the late run answers with an outcome that was never recorded.
    Unfenced,
    /// Applies a fenced settlement over the successor's record.
    Overwriting,
    /// Never sends a settlement, and treats it as applied.
    Unsettled,
    /// Treats a rejected claim as applied, so every delivery runs.
    Unclaimed,
    /// Treats every claim as stale.
    Impatient,
    /// Makes the function have its effect before the claim.
    EffectFirst,
    /// Applies only the record's write of each transaction, and drops the handler's own writes.
    Torn,
    /// Applies the handler's own writes twice: once with a decoy record, then in the real transaction.
    Repeated,
    /// Makes the reconciler ask by another key.
    AsksOtherKey,
    /// Makes the reconciler answer "did not happen" if the gateway doesn't know yet, or doesn't answer.
    TakesUnknownForAbsent,
    /// Sets `effects_arrive_within` to zero.
    AsksTooSoon,
}

impl Sabotage {
    /// Every sabotage.
    pub const ALL: [Self; 11] = [
        Self::Unfenced,
        Self::Overwriting,
        Self::Unsettled,
        Self::Unclaimed,
        Self::Impatient,
        Self::EffectFirst,
        Self::Torn,
        Self::Repeated,
        Self::AsksOtherKey,
        Self::TakesUnknownForAbsent,
        Self::AsksTooSoon,
    ];

    /// Returns the sabotage's name in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unfenced => "unfenced",
            Self::Overwriting => "overwriting",
            Self::Unsettled => "unsettled",
            Self::Unclaimed => "unclaimed",
            Self::Impatient => "impatient",
            Self::EffectFirst => "effect-first",
            Self::Torn => "torn",
            Self::Repeated => "repeated",
            Self::AsksOtherKey => "asks-other-key",
            Self::TakesUnknownForAbsent => "takes-unknown-for-absent",
            Self::AsksTooSoon => "asks-too-soon",
        }
    }

    /// Returns the sabotage with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sabotage| sabotage.name() == name)
    }
}

/// A store that behaves as `inner` does, or is broken on purpose.
#[derive(Debug)]
pub struct SabotagedStore<S> {
    inner: Arc<S>,
    sabotage: Option<Sabotage>,
    /// `Impatient` returns records with a lease that ended long ago. These are their real leases.
    leases: Mutex<HashMap<StoredKey, Timestamp>>,
}

impl<S: Store> SabotagedStore<S> {
    /// Creates the store. Without a sabotage, it behaves as `inner` does.
    pub fn new(inner: S, sabotage: Option<Sabotage>) -> Self {
        Self { inner: Arc::new(inner), sabotage, leases: Mutex::default() }
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<StoredKey, Timestamp>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn broken(&self, sabotage: Sabotage, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let is_settlement = matches!(put, Put::Mine { .. });
        if sabotage == Sabotage::Unsettled && is_settlement {
            return Ok(PutOutcome::Applied);
        }
        let put = self.with_real_lease(key, put);
        if sabotage == Sabotage::Overwriting && is_settlement {
            // A separate task, since the library drops a call whose time is over.
            let (inner, key) = (Arc::clone(&self.inner), key.clone());
            let overwriting = tokio::spawn(async move {
                match inner.put(&key, &put).await? {
                    PutOutcome::Refused(Some(record)) => inner.put(&key, &over(record, put)).await,
                    answer => Ok(answer),
                }
            });
            return overwriting.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        }
        match (self.inner.put(key, &put).await?, sabotage) {
            (PutOutcome::Refused(_), Sabotage::Unfenced) if is_settlement => Ok(PutOutcome::Applied),
            (PutOutcome::Refused(_), Sabotage::Unclaimed) if !is_settlement => Ok(PutOutcome::Applied),
            (PutOutcome::Refused(Some(record)), Sabotage::Impatient) => {
                Ok(PutOutcome::Refused(Some(self.without_lease(key, record))))
            }
            (answer, _) => Ok(answer),
        }
    }

    /// Returns the record with a lease that ended long ago. Keeps the real lease for the takeover's condition.
    fn without_lease(&self, key: &StoredKey, mut record: Record) -> Record {
        if let State::Started { lease_until } = &mut record.state {
            self.leases().insert(key.clone(), *lease_until);
            *lease_until = Timestamp::from_millis(0);
        }
        record
    }

    fn with_real_lease(&self, key: &StoredKey, put: &Put) -> Put {
        let mut put = put.clone();
        if let Put::Replace { seen, .. } = &mut put
            && let State::Started { lease_until } = &mut seen.state
        {
            *lease_until = self.leases().remove(key).unwrap_or(*lease_until);
        }
        put
    }
}

/// Builds a put that replaces the record's state with the settlement's.
fn over(seen: Record, settlement: Put) -> Put {
    let Record { state, expires_at, .. } = settlement.into_record();
    let new = Record { state, expires_at, ..seen.clone() };
    Put::Replace { seen, new }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for SabotagedStore<S> {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        match self.sabotage {
            Some(sabotage) => Box::pin(self.broken(sabotage, key, put)),
            None => self.inner.put(key, put),
        }
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.inner.read(key)
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.inner.chunks()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        match self.sabotage {
            Some(Sabotage::Torn | Sabotage::Repeated) => Some(self),
            _ => self.inner.transactions(),
        }
    }

    fn compress_from(&self, key: &StoredKey) -> usize {
        self.inner.compress_from(key)
    }

    fn close_connections(&self) {
        self.inner.close_connections();
    }
}

impl<S: Store> SabotagedStore<S> {
    async fn commit_broken(
        &self,
        key: &StoredKey,
        put: &Put,
        writes: &OwnWrites,
        token: &str,
    ) -> Result<CommitOutcome, StoreError> {
        let Some(transactions) = self.inner.transactions().filter(|_| self.sabotage != Some(Sabotage::Torn))
        else {
            return self.inner.put(key, put).await.map(CommitOutcome::Answered);
        };
        if let Put::Mine { held, .. } = put {
            let owner = held.owner;
            let lock = Lock {
                owner,
                generation: held.generation,
                attempt: 1,
                fingerprint: Fingerprint::of_bytes(b"decoy"),
                lock_acquired_at: Timestamp::from_millis(0),
                lease_until: Timestamp::from_millis(0),
                execution: Execution::AtLeastOnce,
                expires_at: Some(Timestamp::from_millis(0)),
                mark: Mark::None,
                request_id: None,
                trace: None,
            };
            let released = Put::Create(Record { state: State::Released, ..lock.into() });
            let decoy = StoredKey::from_stored(format!("{key}-decoy-{owner}"));
            let token = token.chars().rev().collect::<String>();
            let _ = transactions.commit(&decoy, &released, writes, &token).await?;
        }
        transactions.commit(key, put, writes, token).await
    }
}

impl<S: Store> Transactions for SabotagedStore<S> {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        self.inner.transactions().map_or(Ok(()), |transactions| transactions.check(key, writes))
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(self.commit_broken(key, put, writes, token))
    }
}
