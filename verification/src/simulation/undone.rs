//! Removes the library's precautions, one at a time. Each removal must make a campaign or the simulation fail.

use lambda_idempotency::{
    StoredKey,
    settings::Execution,
    store::{
        BoxFuture, Mark as RecordMark, Put, PutOutcome, Record, ResponseChunks, Store, StoreError,
        StoreErrorKind, Transactions,
    },
};

use super::{
    config::Undone,
    network::{SimulatedStore, is_release},
};

/// A time that's longer than any schedule.
const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

/// The simulated store, changed so that one of the library's precautions has no effect. Settings and the clock remove
/// the precautions that the store can't.
#[derive(Debug)]
pub struct Undoing {
    /// The store.
    pub store: SimulatedStore,
    /// The precaution that's removed.
    pub undone: Undone,
}

impl Undoing {
    /// Returns the put as it's sent.
    fn changed(&self, key: &StoredKey, put: &Put) -> Put {
        let mut put = put.clone();
        let releases = is_release(&put);
        // The executor saw an expiry that isn't in the table.
        let is_endless = || self.store.table.record(key).is_some_and(|record| record.is_at_most_once_claim());
        if let (Undone::OthersClaims, Put::Replace { seen, .. }) = (self.undone, &mut put)
            && is_endless()
        {
            seen.expires_at = None;
        }
        let (Put::Create(new) | Put::Replace { new, .. } | Put::Mine { new, .. }) = &mut put;
        let lease = new.lease_until();
        match self.undone {
            Undone::Interruptions if lease.is_some() || releases => new.mark = RecordMark::None,
            Undone::EndlessClaims if lease.is_some() => {
                new.expires_at = lease.map(|lease| lease.saturating_add(std::time::Duration::from_secs(5)));
            }
            _ => {}
        }
        put
    }

    /// Returns the record as the executor sees it.
    fn seen(&self, record: Option<Record>) -> Option<Record> {
        let is_undone = self.undone == Undone::OthersClaims;
        record.map(|record| match record.lease_until().filter(|_| is_undone) {
            Some(lease) if record.is_at_most_once_claim() => {
                let expires_at = Some(lease.saturating_add(DAY));
                Record { execution: Execution::AtLeastOnce, expires_at, ..record }
            }
            _ => record,
        })
    }

    fn error(&self, error: StoreError) -> StoreError {
        match (self.undone, error.kind()) {
            (Undone::Refusals, StoreErrorKind::Rejected) => {
                StoreError::new(StoreErrorKind::Unstorable, "treated as too large").with_source(error)
            }
            (Undone::Doubts, kind) => StoreError::new(kind, "treated as definite").with_source(error),
            _ => error,
        }
    }
}

impl Store for Undoing {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        if is_release(put) && self.undone == Undone::GivingBack {
            return Box::pin(async { Ok(PutOutcome::Applied) });
        }
        let put = self.changed(key, put);
        Box::pin(async move {
            match self.store.put(key, &put).await {
                Ok(PutOutcome::Refused(record)) => Ok(PutOutcome::Refused(self.seen(record))),
                answer => answer.map_err(|error| self.error(error)),
            }
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let read = self.store.read(key).await.map_err(|error| self.error(error))?;
            Ok(self.seen(read))
        })
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        self.store.transactions()
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        self.store.chunks()
    }
}
