//! A memory store that breaks the contract in one way, its sabotage, or not at all. The tests check that the
//! conformance suite detects every sabotage.

mod handles;
mod pipeline;
mod sabotage;

pub use handles::{CachedPerHandle, LockedPerHandle};
pub use sabotage::{Act, Condition, Field, Sabotage};

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    settings::Execution,
    store::{
        BoxFuture, Generation, Mark, Outcome, Owner, Place, Put, PutOutcome, Record, ResponseChunks, State,
        Status, Store, StoreError, StoreErrorKind, StoredResponse,
    },
    time::{Clock as _, Timestamp, system_clock},
};

use pipeline::Pipeline;

/// A memory store with one sabotage, or with [`Sabotage::None`].
#[derive(Debug)]
pub struct Faulty {
    sabotage: Sabotage,
    inside: Mutex<Inside>,
    written: Pipeline<Result<PutOutcome, StoreError>>,
    read: Pipeline<Option<Record>>,
}

#[derive(Debug, Default)]
struct Inside {
    /// Every version of every record, newest last.
    records: HashMap<String, Vec<Record>>,
    /// The chunks, by key, owner and index.
    parts: HashMap<(String, Owner, u32), Bytes>,
}

const PART: usize = 100_000;

impl Faulty {
    /// An empty store with this sabotage.
    pub fn new(sabotage: Sabotage) -> Self {
        let (written, read) = (Pipeline::default(), Pipeline::default());
        Self { sabotage, inside: Mutex::default(), written, read }
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == sabotage
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no test panics while it holds the lock")
    }

    fn id(&self, key: &StoredKey) -> String {
        let id = key.as_str();
        match self.sabotage {
            Sabotage::KeysCut => id.chars().take(255).collect(),
            Sabotage::KeysFolded => id.to_lowercase(),
            Sabotage::KeysTrimmed => id.trim_end().to_owned(),
            _ => id.to_owned(),
        }
    }

    fn part_id(&self, key: &StoredKey, owner: Owner, index: u32) -> (String, Owner, u32) {
        let id = if self.is(Sabotage::PartsOfKeysMixed) { String::new() } else { self.id(key) };
        let owner = if self.is(Sabotage::PartsOfOwnersMixed) { Owner::from_bytes([0; 16]) } else { owner };
        (id, owner, index)
    }

    async fn put_now(&self, key: &StoredKey, put: &Put) -> Result<PutOutcome, StoreError> {
        let id = self.id(key);
        let (current, older) = {
            let inside = self.inside();
            let versions = inside.records.get(&id).map(Vec::as_slice).unwrap_or_default();
            (versions.last().cloned(), versions.iter().rev().nth(1).cloned())
        };
        let holds = self.holds(put, current.as_ref());
        if self.is(Sabotage::NotAtomic) {
            tokio::task::yield_now().await;
        }
        if holds || (self.is(Sabotage::RefusedIsMade) && current.is_some()) {
            let record = self.written(put, current.as_ref());
            let mut inside = self.inside();
            if self.is(Sabotage::PartsGoWithCompletion) && matches!(record.state, State::Completed(_)) {
                inside.parts.retain(|(of, ..), _| *of != id);
            }
            inside.records.entry(id).or_default().push(record.clone());
            if !holds || self.is(Sabotage::AppliedIsRefused) {
                return Ok(PutOutcome::Refused(current));
            }
            return Ok(PutOutcome::Applied);
        }
        if let (true, Some(current)) = (self.is(Sabotage::RefusedTouches), &current) {
            let touched = Record { request_id: put.record().request_id.clone(), ..current.clone() };
            self.inside().records.entry(id).or_default().push(touched);
        }
        match self.sabotage {
            Sabotage::RefusedShowsOld => Ok(PutOutcome::Refused(older.or(current))),
            Sabotage::RefusedShowsNothing => Ok(PutOutcome::Refused(None)),
            Sabotage::RefusedIsError => {
                Err(StoreError::new(StoreErrorKind::Rejected, "the condition failed"))
            }
            _ => Ok(PutOutcome::Refused(current)),
        }
    }

    /// Checks the contract's conditions, one by one.
    fn holds(&self, put: &Put, current: Option<&Record>) -> bool {
        let now = system_clock().now();
        let Some(record) = current else {
            let taken = self.is(Sabotage::AbsentIsReplaced) && matches!(put, Put::Replace { .. });
            return put.apply_to(None).is_some() || taken;
        };
        let is_stale = record.lease_until().is_some_and(|lease| lease < now);
        match put {
            Put::Create(_) => {
                self.is(Sabotage::Untested(Condition::Absent))
                    || (self.is(Sabotage::ExpiredIsAbsent)
                        && record.expires_at.is_some_and(|expiry| expiry < now))
                    || (self.is(Sabotage::StaleIsAbsent) && is_stale)
            }
            Put::Replace { seen, new } => {
                use Field::{ExpiresAt, Generation, LeaseUntil, Owner, Status};
                let mut seen = seen.clone();
                if self.is(Sabotage::NamelessIsUnfenced) && new.request_id.is_none() && !is_settled(new) {
                    seen.state = record.state.clone();
                }
                if self.is(Sabotage::OmittedIsUnfenced) && is_omitted(new) {
                    seen.generation = record.generation;
                }
                let required = [Status, Owner, Generation, ExpiresAt, LeaseUntil];
                self.all_same(Condition::Replace, &required, &seen, record)
                    && !(self.is(Sabotage::LateExtensionRefused) && is_stale && new.is_claim_of(&seen))
            }
            Put::Mine { held, new } => {
                let mut seen = Record::from(held.clone());
                if self.is(Sabotage::OmittedIsUnfenced) && is_omitted(new) {
                    seen.generation = record.generation;
                }
                if self.is(Sabotage::PartsAreUnfenced) && is_in_parts(new) {
                    seen.owner = record.owner;
                }
                self.all_same(
                    Condition::Mine,
                    &[Field::Status, Field::Owner, Field::Generation],
                    &seen,
                    record,
                ) && !(self.is(Sabotage::LateSettlementRefused) && is_stale)
            }
        }
    }

    /// Whether two numbers of a version are equal.
    fn equal(&self, one: u64, other: u64) -> bool {
        let as_floats = self.is(Sabotage::VersionsAreFloats) && one as f64 == other as f64;
        one == other || as_floats
    }

    fn same_expiry(&self, seen: Option<Timestamp>, there: Option<Timestamp>) -> bool {
        match (seen, there) {
            (None, Some(_)) if self.is(Sabotage::NoExpiryMatchesAny) => true,
            (Some(_), None) if self.is(Sabotage::AnyExpiryMatchesNone) => true,
            (None, None) if self.is(Sabotage::NoExpiryMatchesNothing) => false,
            (seen, there) if self.is(Sabotage::NoExpiryIsZero) => {
                seen.unwrap_or_default() == there.unwrap_or_default()
            }
            (seen, there) => seen == there,
        }
    }

    fn all_same(
        &self,
        condition: fn(Field) -> Condition,
        required: &[Field],
        seen: &Record,
        there: &Record,
    ) -> bool {
        let (lease, there_lease) = (seen.lease_until(), there.lease_until());
        let every = [
            (Field::Status, seen.status() == there.status(), true),
            (Field::Owner, seen.owner == there.owner, true),
            (
                Field::Generation,
                self.equal(seen.generation.get(), there.generation.get()),
                seen.generation >= there.generation,
            ),
            (
                Field::LeaseUntil,
                lease == there_lease,
                lease.is_some() == there_lease.is_some() && lease >= there_lease,
            ),
            (
                Field::ExpiresAt,
                self.same_expiry(seen.expires_at, there.expires_at),
                seen.expires_at.is_some() == there.expires_at.is_some()
                    && seen.expires_at >= there.expires_at,
            ),
        ];
        every.into_iter().all(|(field, same, not_older)| {
            let condition = condition(field);
            if self.is(Sabotage::NotOlder(condition)) {
                return not_older;
            }
            let wanted = required.contains(&field) || self.is(Sabotage::Overtested(condition));
            !wanted || same || self.is(Sabotage::Untested(condition))
        })
    }

    /// The record after the put.
    fn written(&self, put: &Put, current: Option<&Record>) -> Record {
        let mut record = put.record().clone();
        if let Some(current) = current {
            match self.sabotage {
                Sabotage::Keeps(act, field) if act == Act::of(put) => keep(&mut record, current, field, true),
                Sabotage::KeepsIfUnset(act, field) if act == Act::of(put) => {
                    keep(&mut record, current, field, false);
                }
                Sabotage::ExtensionCounts if Act::of(put) == Act::Extend => record.attempt += 1,
                Sabotage::ExtensionLosesRequestId if Act::of(put) == Act::Extend => record.request_id = None,
                Sabotage::ExtensionForgetsInterrupted if Act::of(put) == Act::Extend => {
                    record.mark = Mark::None;
                }
                Sabotage::SettlementForgetsInterrupted
                    if is_settled(&record) && record.status() != Status::Released =>
                {
                    record.mark = Mark::None;
                }
                Sabotage::ExpiryOnlyGrows => record.expires_at = record.expires_at.max(current.expires_at),
                _ => {}
            }
        }
        record.state = match record.state {
            State::Completed(outcome) => State::Completed(self.kept(outcome)),
            State::Failed(outcome) if self.is(Sabotage::FailureIsCompletion) => {
                State::Completed(self.kept(outcome))
            }
            State::Failed(outcome) => State::Failed(self.kept(outcome)),
            other => other,
        };
        self.stored(record)
    }

    fn kept(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Omitted if self.is(Sabotage::OldOutcomeShows) => {
                // Acts as if the attributes of an older outcome were still in the record.
                let old = self.inside().records.values().flatten().find_map(|record| match &record.state {
                    State::Completed(outcome @ Outcome::Retained(_)) => Some(outcome.clone()),
                    _ => None,
                });
                old.unwrap_or(Outcome::Omitted)
            }
            Outcome::Retained(response) => {
                let Place::Inline(bytes) = &response.place else { return Outcome::Retained(response) };
                if self.is(Sabotage::EmptyIsOmitted) && bytes.is_empty() {
                    return Outcome::Omitted;
                }
                let limit = match self.sabotage {
                    Sabotage::OutcomeCut => 16_384,
                    Sabotage::LargeOutcomeCut => LARGE,
                    _ => usize::MAX,
                };
                let place = Place::Inline(bytes.slice(..bytes.len().min(limit)));
                Outcome::Retained(StoredResponse { place, ..response })
            }
            other => other,
        }
    }

    /// The record as the store returns it.
    fn stored(&self, mut record: Record) -> Record {
        let number = |number: u64| match self.sabotage {
            Sabotage::Floats => number as f64 as u64,
            Sabotage::Signed => number.min(i64::MAX as u64),
            _ => number,
        };
        record.generation = Generation::new(number(record.generation.get()));
        record.lock_acquired_at = Timestamp::from_millis(number(record.lock_acquired_at.as_millis()));
        match self.sabotage {
            Sabotage::Lost(Field::Attempt) => record.attempt = 1,
            Sabotage::Lost(Field::Fingerprint) => {
                record.fingerprint = lambda_idempotency::Fingerprint::from_digest([1; 32]);
            }
            Sabotage::Lost(Field::LockAcquiredAt) => record.lock_acquired_at = Timestamp::from_millis(0),
            Sabotage::Lost(Field::RequestId) => record.request_id = None,
            Sabotage::Lost(Field::Trace) => record.trace = None,
            Sabotage::Lost(Field::Execution) => record.execution = Execution::AtLeastOnce,
            Sabotage::Lost(Field::Interrupted) => record.mark = Mark::None,
            Sabotage::Lost(Field::ExpiresAt) => {
                record.expires_at = record.expires_at.or(Some(Timestamp::default()))
            }
            Sabotage::NoExpiryIsTheLast => {
                record.expires_at = record.expires_at.or(Some(Timestamp::from_secs(u64::MAX / 1000)));
            }
            Sabotage::EmptyRequestIdLost => record.request_id = record.request_id.filter(|id| !id.is_empty()),
            Sabotage::LeaseInSeconds => {
                if let State::Started { lease_until } = &mut record.state {
                    *lease_until = lease_until.rounded_up_to_second();
                }
            }
            _ => {}
        }
        record
    }

    fn read_now(&self, key: &StoredKey) -> Option<Record> {
        let inside = self.inside();
        let versions = inside.records.get(&self.id(key))?;
        let back = usize::from(self.is(Sabotage::ReadsLag) && versions.len() > 1);
        let record = versions.iter().rev().nth(back).cloned()?;
        let expired = match record.expires_at {
            Some(expires_at) => self.is(Sabotage::ExpiredReadsAbsent) && expires_at < system_clock().now(),
            None => self.is(Sabotage::NoExpiryReadsAbsent),
        };
        (!expired).then_some(record)
    }

    fn write_parts_now(&self, key: &StoredKey, owner: Owner, bytes: &Bytes) -> Result<u32, StoreError> {
        if self.is(Sabotage::PartsSmall) && bytes.len() > 4 << 20 {
            return Err(StoreError::new(StoreErrorKind::Rejected, "too large"));
        }
        let bytes = match bytes.len() {
            length if length > 0 && self.is(Sabotage::PartsCut) => bytes.slice(..length - 1),
            _ => bytes.clone(),
        };
        let mut count = 0;
        for chunk in bytes.chunks(PART) {
            let id = self.part_id(key, owner, count);
            self.inside().parts.insert(id, Bytes::copy_from_slice(chunk));
            count += 1;
        }
        if self.is(Sabotage::PartsAreRecords) {
            let outcome = Outcome::Retained(StoredResponse {
                deflated: false,
                length: 0,
                sha256: [0; 32],
                labels: None,
                place: Place::Chunks(count),
            });
            let record = Record {
                owner,
                generation: Generation::new(0),
                attempt: 0,
                fingerprint: lambda_idempotency::Fingerprint::from_digest([0; 32]),
                lock_acquired_at: Timestamp::default(),
                execution: Execution::AtLeastOnce,
                expires_at: Some(Timestamp::default()),
                mark: Mark::None,
                request_id: None,
                trace: None,
                state: State::Completed(outcome),
            };
            self.inside().records.entry(self.id(key)).or_default().push(record);
        }
        Ok(count)
    }

    fn read_parts_now(
        &self,
        key: &StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> Result<Bytes, StoreError> {
        let corrupt = |what| Err(StoreError::new(StoreErrorKind::Corrupt, what));
        let mut bytes = Vec::new();
        for index in 0..count {
            match self.inside().parts.get(&self.part_id(key, owner, index)) {
                Some(part) => bytes.extend_from_slice(part),
                None if self.is(Sabotage::PartsMissingLeftOut) => {}
                None => return corrupt("a chunk is missing"),
            }
        }
        if bytes.len() as u64 > limit && !self.is(Sabotage::PartsUnlimited) {
            return corrupt("the chunks exceed the limit");
        }
        Ok(bytes.into())
    }
}

/// Keeps `current`'s value of `field` in `record`: always, or only where `record` has none.
fn keep(record: &mut Record, current: &Record, field: Field, always: bool) {
    match field {
        Field::Status | Field::LeaseUntil if always || record.lease_until().is_none() => {
            record.state = current.state.clone();
        }
        Field::Owner => record.owner = current.owner,
        Field::Generation => record.generation = current.generation,
        Field::Attempt => record.attempt = current.attempt,
        Field::Fingerprint => record.fingerprint = current.fingerprint,
        Field::LockAcquiredAt => record.lock_acquired_at = current.lock_acquired_at,
        Field::ExpiresAt if always || record.expires_at.is_none() => record.expires_at = current.expires_at,
        Field::Interrupted if always || !record.mark.is_interrupted() => record.mark = current.mark,
        Field::Execution if always || record.execution == Execution::AtLeastOnce => {
            record.execution = current.execution;
        }
        Field::Trace if always || record.trace.is_none() => record.trace.clone_from(&current.trace),
        Field::RequestId if always || record.request_id.is_none() => {
            record.request_id.clone_from(&current.request_id);
        }
        Field::Outcome => match (&mut record.state, &current.state) {
            (
                State::Completed(new) | State::Failed(new),
                State::Completed(outcome) | State::Failed(outcome),
            ) if always || *new == Outcome::Omitted => new.clone_from(outcome),
            (new @ (State::Released | State::Started { .. }), State::Completed(_) | State::Failed(_)) => {
                new.clone_from(&current.state);
            }
            _ => {}
        },
        _ => {}
    }
}

const fn outcome_of(record: &Record) -> Option<&Outcome> {
    match &record.state {
        State::Completed(outcome) | State::Failed(outcome) => Some(outcome),
        State::Started { .. } | State::Released => None,
    }
}

fn is_settled(record: &Record) -> bool {
    record.status() != Status::Started
}

fn is_omitted(record: &Record) -> bool {
    matches!(outcome_of(record), Some(Outcome::Omitted))
}

const fn is_in_parts(record: &Record) -> bool {
    matches!(outcome_of(record), Some(Outcome::Retained(StoredResponse { place: Place::Chunks(_), .. })))
}

const LARGE: usize = 1 << 20;

/// Whether a put has a response over 1 MiB.
fn is_large(put: &Put) -> bool {
    match outcome_of(put.record()) {
        Some(Outcome::Retained(StoredResponse { place: Place::Inline(bytes), .. })) => bytes.len() > LARGE,
        _ => false,
    }
}

impl Store for Faulty {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        Box::pin(async move {
            if self.is(Sabotage::LargeOutcomeRejected) && is_large(put) {
                return Err(StoreError::new(StoreErrorKind::Rejected, "too large"));
            }
            let answer = self.put_now(key, put).await;
            if self.is(Sabotage::DroppedAnswersStay) { self.written.call(answer).await } else { answer }
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let answer = self.read_now(key);
            Ok(if self.is(Sabotage::DroppedAnswersStay) { self.read.call(answer).await } else { answer })
        })
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        let without = [Sabotage::LargeOutcomeCut, Sabotage::LargeOutcomeRejected];
        if without.contains(&self.sabotage) { None } else { Some(self) }
    }
}

impl ResponseChunks for Faulty {
    fn inline_limit(&self) -> usize {
        32 * 1024
    }

    fn write_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        bytes: &'a Bytes,
        _expires_at: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move { self.write_parts_now(key, owner, bytes) })
    }

    fn read_chunks<'a>(
        &'a self,
        key: &'a StoredKey,
        owner: Owner,
        count: u32,
        limit: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move { self.read_parts_now(key, owner, count, limit) })
    }
}
