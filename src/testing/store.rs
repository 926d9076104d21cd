//! One process's connection to the test's store, which fails where the test says so.

use std::{any::Any, future::pending, sync::Arc};

use super::{
    fault::Fault,
    given::meet,
    point::{Call, Point},
    world::World,
};
use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::Record,
    store::{
        CommitOutcome, OwnWrites, Store, StoreError, StoreErrorKind, Transactions, Write, WriteOutcome,
        memory::Transaction,
    },
};

/// One process's connection to the records.
#[derive(Debug)]
pub(super) struct BenchStore {
    pub(super) world: Arc<World>,
    pub(super) process: usize,
}

impl BenchStore {
    async fn request(&self, key: Option<&StoredKey>) -> Result<(), StoreError> {
        if self.world.is_dead(self.process) {
            pending::<()>().await;
        }
        match self.world.request(self.process, key) {
            Ok(_) => Ok(()),
            Err(()) => Err(StoreError::new(StoreErrorKind::Unavailable, "the test's store is down")),
        }
    }

    /// Sends a write, which `apply` applies.
    async fn send<T>(
        &self,
        key: &StoredKey,
        write: &Write,
        apply: impl FnOnce() -> Result<T, StoreError>,
        written: impl Fn(&T) -> Option<bool>,
    ) -> Result<T, StoreError> {
        self.request(Some(key)).await?;
        let (call, unavailable) = (Call::of(write), StoreErrorKind::Unavailable);
        let failed = |kind, what: &'static str| Err(StoreError::new(kind, what));
        match self.world.pass(self.process, Point::Before(call), None).await {
            None => {}
            Some(Fault::Conflict) => {
                return failed(StoreErrorKind::Conflict, "another transaction conflicts");
            }
            Some(Fault::Refuse) => return failed(StoreErrorKind::Rejected, "the credentials have expired"),
            Some(Fault::LoseRequest | Fault::InternalError) => {
                return failed(unavailable, "no answer").map_err(|error| error.maybe_applied(true));
            }
            Some(Fault::Silence) => pending().await,
            Some(_) => return failed(unavailable, "throttled"),
        }
        meet(&self.world, key, Some(write))?;
        let outcome = apply()?;
        match written(&outcome) {
            Some(true) => {
                let is_for_ever = write.lock().is_some_and(|lock| lock.expires_at.is_none());
                self.world.applied(self.process, key, call, is_for_ever);
                match self.world.pass(self.process, Point::After(call), None).await {
                    None => {}
                    Some(Fault::SilenceAfter) => pending().await,
                    Some(_) => {
                        return failed(unavailable, "the answer was lost")
                            .map_err(|error| error.maybe_applied(true));
                    }
                }
            }
            Some(false) if call.is_claim() => self.world.refused(self.process, key),
            _ => {}
        }
        Ok(outcome)
    }
}

impl BenchStore {
    /// Applies a handler's `writes` by `commit`, with the record or alone, and notes them as effects unless `token` was
    /// applied before.
    fn commit_own(
        &self,
        writes: &OwnWrites,
        token: &str,
        has_record: bool,
        commit: impl FnOnce(&Transaction) -> CommitOutcome,
    ) -> CommitOutcome {
        let is_new = !self.world.records.has_committed(token);
        let own: &dyn Any = writes;
        let outcome = match own.downcast_ref::<Transaction>() {
            Some(own) => commit(own),
            // The conditions of another store's writes can't be tested here: they hold.
            None => commit(&Transaction::new()),
        };
        if is_new && matches!(outcome, CommitOutcome::Answered(WriteOutcome::Applied)) {
            let mut state = self.world.state();
            if let Some(at) = state.at_work(self.process) {
                for (name, detail) in described(writes).unwrap_or_default() {
                    state.happen(at, &name, detail, None, has_record);
                }
                // Only a handler stages writes.
                state.deliveries[at].has_run = true;
            }
        }
        outcome
    }
}

impl Store for BenchStore {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        let apply = || Ok(self.world.records.apply_now(key, write));
        Box::pin(self.send(key, write, apply, |outcome| Some(*outcome == WriteOutcome::Applied)))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            self.request(Some(key)).await?;
            meet(&self.world, key, None)?;
            Ok(self.world.records.get(key))
        })
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }
}

impl Transactions for BenchStore {
    fn check(&self, key: &StoredKey, writes: &OwnWrites) -> Result<(), StoreError> {
        match described(writes) {
            Some(_) => Ok(()),
            None => self.world.records.check(key, writes),
        }
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        let apply = move || {
            Ok(self
                .commit_own(writes, token, true, |own| self.world.records.commit_now(key, write, own, token)))
        };
        Box::pin(self.send(key, write, apply, |outcome| match outcome {
            CommitOutcome::Answered(written) => Some(*written == WriteOutcome::Applied),
            CommitOutcome::Declined(_) => None,
        }))
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            self.request(None).await?;
            Ok(self.commit_own(writes, token, false, |own| self.world.records.commit_alone_now(own, token)))
        })
    }
}

/// The writes that this store understands, as effects: name and detail.
fn described(writes: &OwnWrites) -> Option<Vec<(String, String)>> {
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
