//! One process's connection to the test's store. It fails at the points that the test chose.

use std::{future::pending, sync::Arc, time::Duration};

use lambda_idempotency_core::{
    StoredKey,
    store::{BoxFuture, CommitOutcome, OwnWrites, Put, PutOutcome, Record, Store, StoreError, Transactions},
};

use super::{
    arrival::meet,
    dynamodb,
    fault::Fault,
    point::{Call, Point},
    request::{Own, Request},
    time::virtual_sleep,
    world::World,
};

/// How long a slow answer takes.
const SLOW: Duration = Duration::from_secs(3);

/// One process's connection to the records.
#[derive(Debug)]
pub(super) struct BenchStore {
    pub(super) world: Arc<World>,
    pub(super) process: usize,
}

/// Delays an answer as this fault does: the answer is slow, or never comes.
pub(super) async fn delay(fault: Fault) {
    match fault {
        Fault::Silence | Fault::SilenceAfter => pending().await,
        Fault::Slow => virtual_sleep(SLOW).await,
        _ => {}
    }
}

impl BenchStore {
    async fn request(&self, key: Option<&StoredKey>) -> Result<(), StoreError> {
        if self.world.is_dead(self.process) {
            pending::<()>().await;
        }
        match (self.world.request(self.process, key), Fault::Outage.error()) {
            (Err(()), Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends a request.
    async fn send(&self, request: Request<'_>) -> Result<CommitOutcome, StoreError> {
        let Request { key, put, .. } = request;
        self.request(Some(key)).await?;
        let call = Call::of(put);
        let before = self.world.pass(self.process, Point::Before(call), None).await;
        let before = before.filter(|fault| *fault != Fault::Unstorable || request.has_response());
        if matches!(before, Some(Fault::Late | Fault::RetryLate)) {
            self.world.keep(self.process, request);
        }
        self.struck(before, request).await?;
        meet(&self.world, key, Some(put))?;
        let mut outcome = self.apply(request);
        match &mut outcome {
            CommitOutcome::Answered(PutOutcome::Applied) => {
                self.world.applied(self.process, key, put);
                let after = self.world.pass(self.process, Point::After(call), None).await;
                if after == Some(Fault::Retry) {
                    outcome = self.apply(request);
                }
                self.struck(after, request).await?;
            }
            CommitOutcome::Answered(PutOutcome::Refused(record)) => {
                self.world.refused(self.process, key, call);
                if before == Some(Fault::HideRecord) {
                    *record = None;
                }
            }
            CommitOutcome::Declined(_) => {}
        }
        Ok(outcome)
    }

    /// Delays the sender, or returns the error that this fault causes.
    async fn struck(&self, fault: Option<Fault>, request: Request<'_>) -> Result<(), StoreError> {
        let Some(fault) = fault else { return Ok(()) };
        delay(fault).await;
        let Some(error) = fault.error() else { return Ok(()) };
        // The conflict may be with an earlier copy of the same transaction, which may still be applied.
        let may_be_own = fault == Fault::Conflict && self.world.is_on_its_way(request);
        Err(error.maybe_applied(fault.is_ambiguous() || may_be_own))
    }

    fn apply(&self, request: Request<'_>) -> CommitOutcome {
        let delivery = self.world.state().at_work(self.process);
        self.world.apply(delivery, request)
    }
}

impl Store for BenchStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            match self.send(Request { key, put, own: None }).await? {
                CommitOutcome::Answered(written) => Ok(written),
                // `Declined` means that a condition of the handler's own writes failed, but this request has no such
                // writes.
                CommitOutcome::Declined(_) => Ok(PutOutcome::Refused(None)),
            }
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            self.request(Some(key)).await?;
            self.world.reads(self.process);
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
        dynamodb::checked(key, writes).unwrap_or_else(|| self.world.records.check(key, writes))
    }

    fn commit<'a>(
        &'a self,
        key: &'a StoredKey,
        put: &'a Put,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            let own = Own::new(writes, token);
            self.send(Request { key, put, own: Some(&own) }).await
        })
    }

    fn commit_alone<'a>(
        &'a self,
        writes: &'a OwnWrites,
        token: &'a str,
    ) -> BoxFuture<'a, Result<CommitOutcome, StoreError>> {
        Box::pin(async move {
            self.request(None).await?;
            let delivery = self.world.state().at_work(self.process);
            Ok(self.world.commit(delivery, None, &Own::new(writes, token)))
        })
    }
}
