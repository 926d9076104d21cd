//! A memory store that breaks the contract in one way, its sabotage, or not at all. The tests check that the
//! conformance suite detects every sabotage.

mod handles;
mod large;
mod pipeline;
mod sabotage;

pub use handles::{CachedPerHandle, LockedPerHandle};
pub use sabotage::{Condition, Field, Sabotage};

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use lambda_idempotency::{
    StoredKey,
    store::{
        BoxFuture, Generation, Outcome, Owner, Place, Record, ResponseChunks, Revision, Settlement, State,
        Status, Store, StoreError, StoreErrorKind, StoredResponse, Write, WriteOutcome,
    },
    time::{Clock as _, Timestamp, system_clock},
};

use large::{LARGE, is_large};
use pipeline::Pipeline;

/// A memory store with one sabotage, or with [`Sabotage::None`].
#[derive(Debug)]
pub struct Faulty {
    sabotage: Sabotage,
    inside: Mutex<Inside>,
    written: Pipeline<Result<WriteOutcome, StoreError>>,
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

    async fn apply_now(&self, key: &StoredKey, write: &Write) -> Result<WriteOutcome, StoreError> {
        let id = self.id(key);
        let (current, older) = {
            let inside = self.inside();
            let versions = inside.records.get(&id).map(Vec::as_slice).unwrap_or_default();
            (versions.last().cloned(), versions.iter().rev().nth(1).cloned())
        };
        let holds = self.holds(write, current.as_ref());
        if self.is(Sabotage::NotAtomic) {
            tokio::task::yield_now().await;
        }
        if holds || (self.is(Sabotage::RefusedIsMade) && current.is_some()) {
            let record = self.written(write, current.as_ref());
            let mut inside = self.inside();
            if self.is(Sabotage::PartsGoWithCompletion) && matches!(record.state, State::Completed(_)) {
                inside.parts.retain(|(of, ..), _| *of != id);
            }
            inside.records.entry(id).or_default().push(record.clone());
            if !holds || self.is(Sabotage::AppliedIsRefused) {
                return Ok(WriteOutcome::Refused(current));
            }
            return Ok(WriteOutcome::Applied);
        }
        if let (true, Some(current), Some(lock)) = (self.is(Sabotage::RefusedTouches), &current, write.lock())
        {
            let touched = Record { request_id: lock.request_id.clone(), ..current.clone() };
            self.inside().records.entry(id).or_default().push(touched);
        }
        match self.sabotage {
            Sabotage::RefusedShowsOld => Ok(WriteOutcome::Refused(older.or(current))),
            Sabotage::RefusedShowsNothing => Ok(WriteOutcome::Refused(None)),
            Sabotage::RefusedIsError => {
                Err(StoreError::new(StoreErrorKind::Rejected, "the condition failed"))
            }
            _ => Ok(WriteOutcome::Refused(current)),
        }
    }

    /// Checks the contract's conditions, one by one.
    fn holds(&self, write: &Write, current: Option<&Record>) -> bool {
        let now = system_clock().now();
        let tested = |condition, holds| holds || self.is(Sabotage::Untested(condition));
        let Some(record) = current else {
            let taken = self.is(Sabotage::ConclusionTakesAbsent) && matches!(write, Write::Conclude { .. });
            return write.apply_to(None).is_some() || taken;
        };
        match write {
            Write::Claim(_) => {
                tested(Condition::ClaimAbsent, false)
                    || (self.is(Sabotage::ExpiredIsAbsent)
                        && record.expires_at.is_some_and(|expiry| expiry < now))
                    || (self.is(Sabotage::StaleIsAbsent)
                        && record.lease_until().is_some_and(|lease| lease < now))
            }
            Write::Reclaim { seen, .. } => {
                use Field::{ExpiresAt, Generation, LeaseUntil, Owner, Status};
                let required = [Status, Owner, Generation, ExpiresAt, LeaseUntil];
                self.all_same(Condition::Reclaim, &required, seen, record)
            }
            Write::TakeOver { seen, .. } => {
                use Field::{Generation, LeaseUntil, LockAcquiredAt, Owner};
                let required = [Owner, Generation, LockAcquiredAt, LeaseUntil];
                let mut seen = *seen;
                if self.is(Sabotage::NamelessIsUnfenced)
                    && write.lock().is_some_and(|lock| lock.request_id.is_none())
                {
                    seen.lease_until = record.lease_until();
                }
                record.status() == Status::Started
                    && self.all_same(Condition::TakeOver, &required, &seen, record)
            }
            Write::Settle { owner, generation, settlement } => {
                let mut seen = Revision { owner: *owner, generation: *generation, ..Revision::of(record) };
                match settlement {
                    Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _) => match outcome {
                        Outcome::Omitted if self.is(Sabotage::OmittedIsUnfenced) => {
                            seen.generation = record.generation;
                        }
                        Outcome::Retained(StoredResponse { place: Place::Chunks(_), .. })
                            if self.is(Sabotage::PartsAreUnfenced) =>
                        {
                            seen.owner = record.owner;
                        }
                        _ => {}
                    },
                    Settlement::Release { .. } => {}
                }
                let late = record.lease_until().is_some_and(|lease| lease < now);
                tested(Condition::Settle(Field::Status), record.status() == Status::Started)
                    && self.all_same(Condition::Settle, &[Field::Owner, Field::Generation], &seen, record)
                    && !(self.is(Sabotage::LateSettlementRefused) && late)
            }
            Write::Extend { owner, generation, lease_until, expires_at } => {
                let (owner, generation, expires_at) = (*owner, *generation, *expires_at);
                let seen = Revision { owner, generation, expires_at, ..Revision::of(record) };
                let late = record.lease_until().is_some_and(|lease| lease < now);
                tested(Condition::Extend(Field::Status), record.status() == Status::Started)
                    && self.all_same(Condition::Extend, &[Field::Owner, Field::Generation], &seen, record)
                    && record.lease_until().is_none_or(|ends| self.extends(ends, *lease_until))
                    && !(self.is(Sabotage::LateExtensionRefused) && late)
            }
            Write::Conclude { seen: None, .. } => tested(Condition::ConcludeAbsent, false),
            Write::Conclude { seen: Some(seen), record: new } => {
                use Field::{ExpiresAt, Generation, LeaseUntil, LockAcquiredAt, Owner, Status};
                let required = [Status, Owner, Generation, LockAcquiredAt, LeaseUntil, ExpiresAt];
                let mut seen = *seen;
                if self.is(Sabotage::OmittedConclusionIsUnfenced)
                    && matches!(
                        new.state,
                        State::Completed(Outcome::Omitted) | State::Failed(Outcome::Omitted)
                    )
                {
                    seen.generation = record.generation;
                }
                self.all_same(Condition::Conclude, &required, &seen, record)
            }
            Write::Resolve { seen, .. } => {
                use Field::{ExpiresAt, Generation, LeaseUntil, LockAcquiredAt, Owner, Status};
                let required = [Status, Owner, Generation, LockAcquiredAt, LeaseUntil, ExpiresAt];
                self.all_same(Condition::Resolve, &required, seen, record)
            }
        }
    }

    /// Whether an extension may move a lease from `ends` to `until`.
    fn extends(&self, ends: Timestamp, until: Timestamp) -> bool {
        let (old, new) = (ends.as_millis(), until.as_millis());
        match self.sabotage {
            Sabotage::Untested(Condition::Extend(Field::LeaseUntil)) => true,
            Sabotage::NotOlder(Condition::Extend(Field::LeaseUntil)) => old <= new,
            Sabotage::LeasesAreTexts => old.to_string() < new.to_string(),
            Sabotage::LeasesAreFloats => (old as f64) < (new as f64),
            Sabotage::LeasesAreSigned => old.cast_signed() < new.cast_signed(),
            _ => old < new,
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
        seen: &Revision,
        record: &Record,
    ) -> bool {
        let there = Revision::of(record);
        let every = [
            (Field::Status, seen.status == there.status, true),
            (Field::Owner, seen.owner == there.owner, true),
            (
                Field::Generation,
                self.equal(seen.generation.get(), there.generation.get()),
                seen.generation >= there.generation,
            ),
            (
                Field::LockAcquiredAt,
                self.equal(seen.lock_acquired_at.as_millis(), there.lock_acquired_at.as_millis()),
                seen.lock_acquired_at >= there.lock_acquired_at,
            ),
            (
                Field::LeaseUntil,
                seen.lease_until == there.lease_until,
                seen.lease_until.is_some() == there.lease_until.is_some()
                    && seen.lease_until >= there.lease_until,
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

    /// The record after the write.
    fn written(&self, write: &Write, current: Option<&Record>) -> Record {
        let record = match (write, current) {
            (Write::Claim(lock) | Write::Reclaim { lock, .. }, _) | (Write::TakeOver { lock, .. }, None) => {
                lock.clone().into()
            }
            (Write::TakeOver { lock, .. }, Some(current)) => {
                let mut record = Record { fingerprint: current.fingerprint, ..lock.clone().into() };
                if self.is(Sabotage::TakeOverWritesFingerprint) {
                    record.fingerprint = lock.fingerprint;
                }
                if self.is(Sabotage::TakeOverKeepsRequestId) && record.request_id.is_none() {
                    record.request_id.clone_from(&current.request_id);
                }
                if self.is(Sabotage::TakeOverKeepsExpiry) {
                    record.expires_at = record.expires_at.or(current.expires_at);
                }
                if self.is(Sabotage::TakeOverKeepsInterrupted) {
                    record.interrupted |= current.interrupted;
                }
                record
            }
            (Write::Settle { settlement, .. }, Some(current)) => self.settled(settlement, current),
            (Write::Resolve { owner, generation, settlement, .. }, Some(current)) => {
                let mut record = self.settled(settlement, current);
                if !self.is(Sabotage::ResolveKeepsOwner) {
                    record.owner = *owner;
                }
                if !self.is(Sabotage::ResolveKeepsGeneration) {
                    record.generation = *generation;
                }
                if self.is(Sabotage::ResolveKeepsOutcome) && current.lease_until().is_none() {
                    record.state = current.state.clone();
                }
                record
            }
            (Write::Extend { lease_until, expires_at, .. }, Some(current)) => {
                self.extended(*lease_until, *expires_at, current)
            }
            (Write::Conclude { record, .. }, current) => self.concluded(record.clone(), current),
            (Write::Settle { .. } | Write::Extend { .. } | Write::Resolve { .. }, None) => {
                unreachable!("a write that needs a record is refused if there is none")
            }
        };
        self.stored(record)
    }

    fn extended(&self, lease_until: Timestamp, expires_at: Option<Timestamp>, current: &Record) -> Record {
        let mut record = Record { state: State::Started { lease_until }, expires_at, ..current.clone() };
        match self.sabotage {
            Sabotage::ExtensionKeepsExpiry => record.expires_at = current.expires_at,
            Sabotage::ExtensionKeepsLaterExpiry => record.expires_at = expires_at.max(current.expires_at),
            Sabotage::ExtensionOnlyMovesExpiry => record.expires_at = expires_at.or(current.expires_at),
            Sabotage::ExtensionForgetsInterrupted => record.interrupted = false,
            Sabotage::ExtensionKeepsLease => record.state = current.state.clone(),
            Sabotage::ExtensionCounts => record.attempt = record.attempt.saturating_add(1),
            Sabotage::ExtensionLosesRequestId => record.request_id = None,
            _ => {}
        }
        record
    }

    fn concluded(&self, mut record: Record, current: Option<&Record>) -> Record {
        record.state = match record.state {
            State::Completed(outcome) => State::Completed(self.kept(outcome)),
            State::Failed(outcome) if self.is(Sabotage::ConclusionIsCompletion) => {
                State::Completed(self.kept(outcome))
            }
            State::Failed(outcome) => State::Failed(self.kept(outcome)),
            State::Started { .. } if self.is(Sabotage::ConclusionLosesLease) => State::Released,
            other => other,
        };
        let Some(current) = current else { return record };
        match self.sabotage {
            Sabotage::ConclusionKeepsRequestId if record.request_id.is_none() => {
                record.request_id.clone_from(&current.request_id);
            }
            Sabotage::ConclusionKeepsFingerprint => record.fingerprint = current.fingerprint,
            Sabotage::ConclusionKeepsAttempt => record.attempt = current.attempt,
            Sabotage::ConclusionKeepsLock => record.lock_acquired_at = current.lock_acquired_at,
            Sabotage::ConclusionKeepsExpiry => record.expires_at = current.expires_at,
            Sabotage::ConclusionKeepsInterrupted => record.interrupted = current.interrupted,
            Sabotage::ConclusionKeepsOutcome if current.lease_until().is_none() => match record.state {
                State::Released | State::Completed(Outcome::Omitted) | State::Failed(Outcome::Omitted) => {
                    record.state = current.state.clone();
                }
                _ => {}
            },
            _ => {}
        }
        record
    }

    fn settled(&self, settlement: &Settlement, current: &Record) -> Record {
        let mut record = current.clone();
        match settlement.clone() {
            Settlement::Complete(outcome, expires_at) => {
                (record.state, record.expires_at) = (State::Completed(self.kept(outcome)), Some(expires_at));
            }
            Settlement::Fail(outcome, expires_at) => {
                let outcome = self.kept(outcome);
                let completion = self.is(Sabotage::FailureIsCompletion);
                record.state = if completion { State::Completed(outcome) } else { State::Failed(outcome) };
                record.expires_at = Some(expires_at);
            }
            Settlement::Release { expires_at, interrupted } => {
                record.expires_at = Some(expires_at);
                record.interrupted = match self.sabotage {
                    Sabotage::ReleaseKeepsInterrupted => record.interrupted,
                    Sabotage::ReleaseOnlySetsInterrupted => record.interrupted || interrupted,
                    _ => interrupted,
                };
                if !self.is(Sabotage::ReleaseKeepsLease) {
                    record.state = State::Released;
                }
                if self.is(Sabotage::ReleaseMovesExpiry) {
                    record.expires_at = Some(expires_at.saturating_add(Duration::from_secs(1)));
                }
                if self.is(Sabotage::ReleaseKeepsExpiry) {
                    record.expires_at = current.expires_at;
                }
            }
        }
        if self.is(Sabotage::SettlementForgetsInterrupted) && !matches!(record.state, State::Released) {
            record.interrupted = false;
        }
        if self.is(Sabotage::SettlementKeepsExpiry) {
            record.expires_at = current.expires_at;
        }
        record
    }

    fn kept(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Omitted if self.is(Sabotage::ReclaimLeavesOutcome) => {
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
            Sabotage::Lost(Field::Interrupted) => record.interrupted = false,
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
                expires_at: Some(Timestamp::default()),
                interrupted: false,
                request_id: None,
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

impl Store for Faulty {
    fn apply<'a>(
        &'a self,
        key: &'a StoredKey,
        write: &'a Write,
    ) -> BoxFuture<'a, Result<WriteOutcome, StoreError>> {
        Box::pin(async move {
            if self.is(Sabotage::LargeOutcomeRejected) && is_large(write) {
                return Err(StoreError::new(StoreErrorKind::Rejected, "too large"));
            }
            let answer = self.apply_now(key, write).await;
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
