//! The simulated store. It applies writes by the store's contract ([`Put::apply_to`]), behind a network that loses
//! and delays messages and makes results ambiguous.

use std::sync::Arc;

use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, Outcome, Owner, Place, Put, PutOutcome, Record, ResponseChunks, Status, Store, StoreError,
        StoreErrorKind, StoredResponse, Transactions,
    },
    time::Timestamp,
};

use super::{
    audit::Audit,
    config::Sabotage,
    table::{Effects, Request, Stored, Table},
    trouble::{Circumstance, Fault},
    world::World,
};
use crate::under_test::{Purpose, outcome};

mod outage;
mod transactions;

use outage::Call;
pub use transactions::SoldOut;

/// The most bytes of a response that are stored in the record.
const INLINE_LIMIT: usize = 120;
/// The most bytes of a response that fit into an item, if the store has no chunks. In DynamoDB it's 400 KB.
const ITEM_LIMIT: usize = 150;
/// How long a client waits for a missing response, in ms.
const TIMEOUT: u64 = 1000;

/// One executor's connection to the table.
#[derive(Clone, Debug)]
pub struct SimulatedStore {
    /// The state shared by the simulation.
    pub world: Arc<World>,
    /// The audit.
    pub audit: Arc<Audit>,
    /// The stored data.
    pub table: Arc<Table>,
}

/// Delivers everything still in flight, before the check that every key settles.
pub fn all_arrive(table: &Table, audit: &Audit, now: u64) {
    let mut stored = table.stored();
    for (_, key, request) in std::mem::take(&mut stored.late) {
        arrive(&mut stored, audit, now, &key, &request);
    }
}

/// Delivers a write that no executor waits for any more.
fn arrive(stored: &mut Stored, audit: &Audit, at: u64, key: &StoredKey, request: &Request) {
    match request {
        Request::Put(put) => {
            let _ = apply(stored, audit, at, key, put, None);
        }
        Request::Commit { put, effects, token } => {
            let _ = transactions::commit(stored, audit, at, key, (put, effects, token), false);
        }
    }
}

fn apply(
    stored: &mut Stored,
    audit: &Audit,
    at: u64,
    key: &StoredKey,
    put: &Put,
    effects: Option<&Effects>,
) -> PutOutcome {
    let before = stored.records.get(key);
    match sabotaged(audit.sabotage(), put, before) {
        Some(after) => {
            audit.wrote(at, key, before, put, &after, effects);
            stored.records.insert(key.clone(), after);
            PutOutcome::Applied
        }
        None => PutOutcome::Refused(before.cloned()),
    }
}

/// Applies the put by the store's contract, or as the schedule's deliberately broken store does: it applies some puts
/// to any record.
fn sabotaged(sabotage: Sabotage, put: &Put, before: Option<&Record>) -> Option<Record> {
    let is_unconditional = match (sabotage, Purpose::of(put)) {
        (Sabotage::SettleUnconditionally, Purpose::Settle)
        | (Sabotage::ExtendUnconditionally, Purpose::Extend) => true,
        (Sabotage::ReplaceUnconditionally, Purpose::Claim) => matches!(put, Put::Replace { .. }),
        (Sabotage::ClaimUnconditionally, Purpose::Claim) => matches!(put, Put::Create(_)),
        (Sabotage::ConcludeUnconditionally, Purpose::Conclude) => true,
        _ => false,
    };
    let is_any = is_unconditional && (before.is_some() || Purpose::of(put) == Purpose::Conclude);
    if is_any { Some(put.record().clone()) } else { put.apply_to(before) }
}

impl SimulatedStore {
    /// Performs the table's own events before a request: late writes arrive, and the sweeper may remove the record.
    fn settle_down(&self, stored: &mut Stored, key: &StoredKey) {
        let now = self.world.now();
        let (mut due, still) =
            std::mem::take(&mut stored.late).into_iter().partition::<Vec<_>, _>(|(at, ..)| *at <= now);
        stored.late = still;
        due.sort_by_key(|(at, ..)| *at);
        for (at, key, request) in due {
            arrive(stored, &self.audit, at, &key, &request);
        }
        let has_expired = stored
            .records
            .get(key)
            .and_then(|record| record.expires_at)
            .is_some_and(|expires_at| expires_at.as_millis() < now);
        if has_expired && self.world.strikes(Circumstance::Sweep, 300) {
            stored.records.remove(key);
            // In reality, no transaction is in flight for so long that the sweeper first removes the record that
            // would refuse it. So the key's late transactions are dropped.
            stored.late.retain(|(_, of, request)| of != key || !matches!(request, Request::Commit { .. }));
            self.audit.swept(now, key);
        }
    }

    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let call = Call::begin(self);
        let answer = self.put_once(key, put).await;
        call.end(answer)
    }

    async fn put_once(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let world = &self.world;
        world.count(|figures| figures.calls += 1);
        if is_release(put) {
            self.audit.releases(put.record().owner);
        }
        self.travel().await;
        if let Some(failed) = self.in_outage(|| drop(self.at_the_table(key, put)), true).await {
            return Err(failed);
        }
        if response_bytes(put) > ITEM_LIMIT && world.strikes(Fault::Unstorable, 1000) {
            return failed(Fault::Unstorable);
        }
        if world.strikes(Fault::Throttle, 30) {
            return failed(Fault::Throttle);
        }
        if world.strikes(Fault::Conflict, 30) {
            return failed(Fault::Conflict);
        }
        if world.strikes(Fault::LoseRequest, 30) {
            return self.no_answer(Fault::LoseRequest).await;
        }
        if world.strikes(Fault::Late, 30) {
            let at = world.now() + world.random(|random| random.between(1, 100_000));
            self.table.stored().late.push((at, key.clone(), Request::Put(put.clone())));
            return self.no_answer(Fault::Late).await;
        }
        let mut written = self.at_the_table(key, put);
        if world.strikes(Fault::Retry, 40) {
            self.travel().await;
            written = self.at_the_table(key, put);
        }
        if world.strikes(Fault::LoseAnswer, 40) {
            return self.no_answer(Fault::LoseAnswer).await;
        }
        if matches!(put, Put::Mine { .. }) && world.strikes(Fault::Slow, 150) {
            let ms = world.random(|random| random.between(500, 5000));
            world.sleep(ms).await;
        }
        self.travel().await;
        Ok(written)
    }

    fn at_the_table(&self, key: &StoredKey, put: &Put) -> PutOutcome {
        let mut stored = self.table.stored();
        self.settle_down(&mut stored, key);
        apply(&mut stored, &self.audit, self.world.now(), key, put, None)
    }

    async fn read_now(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        let call = Call::begin(self);
        let answer = self.read_once(key).await;
        call.end(answer)
    }

    async fn read_once(&self, key: &StoredKey) -> Result<Option<Record>, StoreError> {
        self.world.count(|figures| figures.calls += 1);
        self.travel().await;
        if let Some(failed) = self.in_outage(|| (), false).await {
            return Err(failed);
        }
        if self.world.strikes(Fault::LoseRequest, 60) {
            return self.no_answer(Fault::LoseRequest).await;
        }
        let mut stored = self.table.stored();
        self.settle_down(&mut stored, key);
        Ok(stored.records.get(key).cloned())
    }

    async fn travel(&self) {
        // In a campaign, no request is slow: a slow request could time out, and only the outages may cause failures.
        let slow = if self.world.config.outage.is_none() { 50 } else { 0 };
        let ms =
            self.world.random(|random| if random.chance(slow) { random.below(800) } else { random.below(8) });
        self.world.sleep(ms).await;
    }

    /// Waits for an answer that doesn't come, until the client gives up.
    async fn no_answer<T>(&self, fault: Fault) -> Result<T, StoreError> {
        self.world.sleep(TIMEOUT).await;
        failed(fault)
    }
}

/// The client's error for this fault.
fn failed<T>(fault: Fault) -> Result<T, StoreError> {
    Err(fault.error().unwrap_or_else(|| StoreError::new(StoreErrorKind::Unavailable, "no answer")))
}

impl Store for SimulatedStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(self.put_now(key, put))
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.read_now(key))
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        (!self.world.config.has(Fault::Unstorable)).then_some(self)
    }
}

/// How many bytes of the put's response are in the item itself.
fn response_bytes(put: &Put) -> usize {
    match outcome(put.record()) {
        Some(Outcome::Retained(StoredResponse { place: Place::Inline(bytes), .. })) => bytes.len(),
        _ => 0,
    }
}

/// Whether the put releases a claim.
pub(super) fn is_release(put: &Put) -> bool {
    matches!(put, Put::Mine { new, .. } if new.status() == Status::Released)
}

impl ResponseChunks for SimulatedStore {
    fn inline_limit(&self) -> usize {
        INLINE_LIMIT
    }

    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a bytes::Bytes,
        _: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            self.travel().await;
            if self.world.strikes(Circumstance::Parts, 200) {
                return self.no_answer(Fault::LoseRequest).await;
            }
            self.table.stored().parts.insert((key.clone(), *owner.as_bytes()), bytes.to_vec());
            Ok(1)
        })
    }

    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        _: u32,
        _: u64,
    ) -> BoxFuture<'a, Result<bytes::Bytes, StoreError>> {
        Box::pin(async move {
            self.travel().await;
            let stored = self.table.stored();
            let parts = stored.parts.get(&(key.clone(), *owner.as_bytes()));
            parts
                .map(|bytes| bytes.clone().into())
                .ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "a chunk is missing"))
        })
    }
}
