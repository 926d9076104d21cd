//! Random operations on a store and on the memory store: their results must be the same.

use std::time::Duration;

use super::{
    Verdict,
    bench::{apply, described, described_record, fresh_key, read, same},
    fields::put_away,
    random::Random,
    samples::{base, in_chunks, inline, settle, tomorrow},
};
use crate::{
    fingerprint::Fingerprint,
    key::StoredKey,
    outcome::Outcome,
    record::{Generation, Lock, Owner, Record, State, Status},
    store::{Revision, Settlement, Store, Write, WriteOutcome, memory::MemoryStore},
    time::Timestamp,
};

const KEYS: u64 = 3;

/// The suite's case: one fixed sequence.
pub(super) async fn case(store: &dyn Store) -> Verdict {
    run(store, 1, 300).await
}

/// Runs the same random operations on a few fresh keys of `store` and of the memory store.
///
/// The same `seed` gives the same operations, so a failure can be reproduced. Let a test draw a new seed every time,
/// and print it.
///
/// ```
/// use lambda_idempotency::{conformance, store::memory::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// conformance::differential(&MemoryStore::new(), 42, 500).await;
/// # }
/// ```
///
/// # Panics
///
/// If a result differs from the memory store's. The message has the seed, the number of operations up to the first
/// different result, and a list of the operations that ran on the key with this result.
///
/// # Cancel safety
///
/// Dropping the future ends the run. The records that the run wrote stay until they expire. Records without an expiry
/// stay until you delete them.
pub async fn differential(store: &dyn Store, seed: u64, operations: u32) {
    if let Err(finding) = run(store, seed, operations).await {
        panic!("{finding}");
    }
}

async fn run(store: &dyn Store, seed: u64, operations: u32) -> Verdict {
    let (mut script, memory) = (Script::new(seed)?, MemoryStore::new());
    let mut done: Vec<(usize, String)> = Vec::new();
    for count in 1..=operations {
        let (at, write) = script.next();
        let key = &script.keys[at].key;
        done.push((at, write.as_ref().map_or_else(|| "a read".to_owned(), described)));
        let verdict = step(store, &memory, key, write.as_ref()).await;
        if let Some(record) = memory.get(key) {
            script.keys[at].saw(record);
        }
        if let Err(finding) = verdict {
            // There's no shorter failing run to search for: with the same seed and fewer operations, a run ends before
            // this first difference.
            let steps: String =
                done.iter().filter(|(of, _)| *of == at).map(|(_, step)| format!("\n  {step}")).collect();
            return Err(format!(
                "seed {seed}, after {count} operations: {finding}; operations on this key:{steps}"
            ));
        }
    }
    for Subject { key, .. } in &script.keys {
        // Sweepers never remove a record that never expires.
        if let Some(record) = memory.get(key).filter(|record| record.expires_at.is_none()) {
            put_away(store, key, &record).await?;
        }
    }
    Ok(())
}

/// Runs one operation on both stores, and compares the records.
async fn step(store: &dyn Store, memory: &MemoryStore, key: &StoredKey, write: Option<&Write>) -> Verdict {
    if let Some(write) = write {
        let (found, expected) = (apply(store, key, write).await?, apply(memory, key, write).await?);
        match (&found, &expected) {
            (WriteOutcome::Applied, WriteOutcome::Applied) => {}
            (WriteOutcome::Refused(found), WriteOutcome::Refused(expected)) => {
                same(
                    found.as_ref(),
                    expected.as_ref(),
                    &format!("the record returned with the refusal of {}", described(write)),
                )?;
            }
            (WriteOutcome::Applied, WriteOutcome::Refused(record)) => {
                let record = described_record(record.as_ref());
                return Err(format!(
                    "{} was applied, but the memory store refused it because of {record}",
                    described(write)
                ));
            }
            (WriteOutcome::Refused(record), WriteOutcome::Applied) => {
                let record = described_record(record.as_ref());
                return Err(format!(
                    "{} was refused because of {record}, but the memory store applied it",
                    described(write)
                ));
            }
        }
    }
    same(read(store, key).await?.as_ref(), memory.get(key).as_ref(), "the record read back")
}

/// One key, and all versions of its record.
struct Subject {
    key: StoredKey,
    versions: Vec<Record>,
}

impl Subject {
    fn saw(&mut self, record: Record) {
        if self.versions.last() != Some(&record) {
            self.versions.push(record);
        }
    }
}

/// Generates the operations. Values are drawn from small sets, so that versions differ little, and most
/// writes expect a version that existed.
struct Script {
    random: Random,
    keys: Vec<Subject>,
    base: Timestamp,
    tomorrow: Timestamp,
}

impl Script {
    fn new(seed: u64) -> Verdict<Self> {
        let subject = |_| Ok(Subject { key: fresh_key()?, versions: vec![] });
        let keys = (0..KEYS).map(subject).collect::<Verdict<_>>()?;
        Ok(Self { random: Random::new(seed), keys, base: base(), tomorrow: tomorrow() })
    }

    /// Draws the next operation: the key's index, and a write. If the write is `None`, the operation is a read.
    fn next(&mut self) -> (usize, Option<Write>) {
        let at = self.random.below(KEYS) as usize;
        let write = match self.random.below(16) {
            0 => None,
            1 => Some(Write::Claim(self.lock())),
            2..=4 => Some(self.reclaim(at)),
            5..=6 => Some(self.take_over(at)),
            7..=8 => Some(self.resolve(at)),
            9..=10 => Some(self.extend(at)),
            11..=12 => Some(self.conclude(at)),
            _ => Some(self.settle(at)),
        };
        (at, write)
    }

    fn reclaim(&mut self, at: usize) -> Write {
        let lock = self.lock();
        match self.version(at) {
            Some(record) => Write::Reclaim { seen: self.blurred(&record), lock },
            None => Write::Claim(lock),
        }
    }

    /// Draws a takeover if the drawn version is STARTED, and a claim otherwise: the protocol takes over only STARTED
    /// records.
    fn take_over(&mut self, at: usize) -> Write {
        let lock = self.lock();
        match self.version(at) {
            Some(record) if record.status() == Status::Started => {
                let mut seen = self.blurred(&record);
                seen.status = Status::Started;
                seen.lease_until = seen.lease_until.or(record.lease_until());
                Write::TakeOver { seen, lock }
            }
            _ => Write::Claim(lock),
        }
    }

    fn settle(&mut self, at: usize) -> Write {
        let settlement = self.settlement();
        match self.version(at) {
            Some(record) => {
                let seen = self.blurred(&record);
                settle(&Record { owner: seen.owner, generation: seen.generation, ..record }, settlement)
            }
            None => Write::Claim(self.lock()),
        }
    }

    fn extend(&mut self, at: usize) -> Write {
        let lock = self.lock();
        match self.version(at) {
            Some(record) => {
                let Revision { owner, generation, .. } = self.blurred(&record);
                let Lock { lease_until, expires_at, .. } = lock;
                Write::Extend { owner, generation, lease_until, expires_at }
            }
            None => Write::Claim(lock),
        }
    }

    fn conclude(&mut self, at: usize) -> Write {
        let (lock, outcome) = (self.lock(), self.outcome());
        let seen = match self.version(at) {
            Some(record) if self.random.below(6) > 0 => Some(self.blurred(&record)),
            _ => None,
        };
        let state = match self.random.below(6) {
            0 => State::Released,
            1 => State::Started { lease_until: lock.lease_until },
            2 => State::Failed(outcome),
            _ => State::Completed(outcome),
        };
        let mut record = Record { state, ..lock.into() };
        if record.status() != Status::Started {
            // Only a STARTED record may have no expiry.
            record.expires_at = Some(self.expiry());
        }
        Write::Conclude { seen, record }
    }

    fn resolve(&mut self, at: usize) -> Write {
        let (lock, settlement) = (self.lock(), self.settlement());
        match self.version(at) {
            Some(record) => {
                let seen = self.blurred(&record);
                Write::Resolve { seen, owner: lock.owner, generation: lock.generation, settlement }
            }
            None => Write::Claim(lock),
        }
    }

    /// Draws a version of the record: mostly the current one, else an earlier one.
    fn version(&mut self, at: usize) -> Option<Record> {
        let versions = &self.keys[at].versions;
        let back = if self.random.below(4) == 0 { self.random.below(versions.len() as u64) } else { 0 };
        versions.iter().rev().nth(back as usize).cloned()
    }

    /// Returns `record`'s version. With a probability of one third, one part of the version is random.
    fn blurred(&mut self, record: &Record) -> Revision {
        let mut seen = Revision::of(record);
        let other = self.lock();
        match self.random.below(18) {
            0 => seen.owner = other.owner,
            1 => seen.generation = other.generation,
            2 => seen.lock_acquired_at = other.lock_acquired_at,
            3 => seen.expires_at = other.expires_at,
            4 => seen.lease_until = seen.lease_until.and(Some(other.lease_until)),
            5 => {
                let all = [Status::Started, Status::Completed, Status::Failed, Status::Released];
                seen.status = *self.random.pick(&all);
                let started = seen.status == Status::Started;
                seen.lease_until = started.then(|| seen.lease_until.unwrap_or(other.lease_until));
            }
            _ => {}
        }
        seen
    }

    fn lock(&mut self) -> Lock {
        let request_ids = [None, Some("one".into()), Some("two".into())];
        Lock {
            owner: Owner::from_bytes([self.random.below(4) as u8; 16]),
            generation: Generation::new(self.random.below(3)),
            attempt: self.random.below(3) as u32,
            fingerprint: Fingerprint::of_bytes(&[self.random.below(2) as u8]),
            lock_acquired_at: self.near(self.base),
            lease_until: self.near(self.base),
            expires_at: (self.random.below(3) > 0).then(|| self.expiry()),
            interrupted: self.random.below(2) == 0,
            request_id: self.random.pick(&request_ids).clone(),
        }
    }

    fn near(&mut self, time: Timestamp) -> Timestamp {
        time.saturating_add(Duration::from_millis(self.random.below(3)))
    }

    /// Draws an expiry in whole seconds, so far in the future that no sweeper removes the record.
    fn expiry(&mut self) -> Timestamp {
        self.tomorrow.saturating_add(Duration::from_secs(self.random.below(3)))
    }

    fn outcome(&mut self) -> Outcome {
        self.random.pick(&[Outcome::Omitted, inline(b""), inline(b"{}"), in_chunks(2)]).clone()
    }

    fn settlement(&mut self) -> Settlement {
        let outcome = self.outcome();
        match self.random.below(4) {
            0 => Settlement::Release { expires_at: self.expiry(), interrupted: self.random.below(2) == 0 },
            1 => Settlement::Fail(outcome, self.expiry()),
            _ => Settlement::Complete(outcome, self.expiry()),
        }
    }
}
