//! Random operations on a store and on the memory store: their results must be the same.

use std::time::Duration;

use super::{
    Verdict,
    bench::{apply, described, described_record, fresh_key, read, same},
    fields::put_away,
    random::Random,
    samples::{base, in_chunks, inline, tomorrow},
};
use crate::{
    fingerprint::Fingerprint,
    key::StoredKey,
    outcome::Outcome,
    record::{Generation, Owner, Record, State, Status},
    settings::Execution,
    store::{Put, PutOutcome, Store, memory::MemoryStore},
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
/// # extern crate lambda_idempotency_core as lambda_idempotency;
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
async fn step(store: &dyn Store, memory: &MemoryStore, key: &StoredKey, write: Option<&Put>) -> Verdict {
    if let Some(write) = write {
        let (found, expected) = (apply(store, key, write).await?, apply(memory, key, write).await?);
        match (&found, &expected) {
            (PutOutcome::Applied, PutOutcome::Applied) => {}
            (PutOutcome::Refused(found), PutOutcome::Refused(expected)) => {
                same(
                    found.as_ref(),
                    expected.as_ref(),
                    &format!("the record returned with the refusal of {}", described(write)),
                )?;
            }
            (PutOutcome::Applied, PutOutcome::Refused(record)) => {
                let record = described_record(record.as_ref());
                return Err(format!(
                    "{} was applied, but the memory store refused it because of {record}",
                    described(write)
                ));
            }
            (PutOutcome::Refused(record), PutOutcome::Applied) => {
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

    /// Draws the next operation: the key's index, and a put. If the put is `None`, the operation is a read.
    fn next(&mut self) -> (usize, Option<Put>) {
        let at = self.random.below(KEYS) as usize;
        let version = self.version(at);
        let put = match (self.random.below(16), version) {
            (0, _) => return (at, None),
            (1..=10, Some(seen)) => self.replace(&seen),
            (11.., Some(held)) => self.mine(&held),
            (_, None) => {
                let claim = self.claim();
                Put::Create(self.with_a_state(claim))
            }
        };
        (at, Some(put))
    }

    fn replace(&mut self, record: &Record) -> Put {
        let seen = self.blurred(record);
        let claim = self.claim();
        let new = match self.random.below(3) {
            // An extension, of a claim only.
            0 if seen.status() == Status::Started => self.with_a_lease(seen.clone()),
            // An operator's.
            1 => {
                let owner = self.random.next().to_be_bytes();
                let owner = Owner::from_bytes([owner, owner].concat().try_into().unwrap_or_default());
                self.settled(Record { owner, generation: claim.generation, ..seen.clone() })
            }
            _ => self.with_a_state(claim),
        };
        Put::Replace { seen, new }
    }

    fn mine(&mut self, record: &Record) -> Put {
        let held = Record { expires_at: self.some_expiry(), ..self.blurred(record) };
        let new = match self.random.below(6) {
            0 if held.status() == Status::Started => self.with_a_lease(held.clone()),
            _ => self.settled(held.clone()),
        };
        let lease_until = self.near(self.base);
        Put::Mine { held: held.lock_until(lease_until), new }
    }

    /// Draws a version of the record: mostly the current one, else an earlier one.
    fn version(&mut self, at: usize) -> Option<Record> {
        let versions = &self.keys[at].versions;
        let back = if self.random.below(4) == 0 { self.random.below(versions.len() as u64) } else { 0 };
        versions.iter().rev().nth(back as usize).cloned()
    }

    /// Returns `record`. With a probability of one third, one part of its version is random.
    fn blurred(&mut self, record: &Record) -> Record {
        let other = self.claim();
        let of = |claim: Record| match claim.is_claim_of(record) {
            true => record.clone(),
            false => Record { state: record.state.clone(), expires_at: record.expires_at, ..claim },
        };
        match self.random.below(15) {
            0 => of(self.claim_of(other.owner, record.generation)),
            1 => of(self.claim_of(record.owner, other.generation)),
            2 if record.status() == Status::Started => {
                Record { expires_at: self.some_expiry(), ..record.clone() }
            }
            2 => Record { expires_at: Some(self.expiry()), ..record.clone() },
            3 if record.status() == Status::Started => self.with_a_lease(record.clone()),
            3 | 4 => self.with_a_state(record.clone()),
            _ => record.clone(),
        }
    }

    /// Draws a claim.
    fn claim(&mut self) -> Record {
        let owner = Owner::from_bytes([self.random.below(4) as u8; 16]);
        let generation = Generation::new(self.random.below(3));
        self.claim_of(owner, generation)
    }

    /// Returns a claim whose other fields follow from its owner and generation, since two different claims never have
    /// both in common.
    fn claim_of(&mut self, owner: Owner, generation: Generation) -> Record {
        let of = u64::from(owner.as_bytes()[0]) + 5 * generation.get();
        let request_ids = [None, Some("one".into()), Some("two".into())];
        let claim = Record {
            owner,
            generation,
            attempt: (of % 3) as u32,
            fingerprint: Fingerprint::of_bytes(&[(of % 2) as u8]),
            lock_acquired_at: self.base.saturating_add(Duration::from_millis(of)),
            // Odd ones may have no expiry.
            execution: if of % 2 == 1 { Execution::AtMostOnce } else { Execution::AtLeastOnce },
            expires_at: Some(self.expiry()),
            mark: of.is_multiple_of(4).into(),
            request_id: request_ids[of as usize % 3].clone(),
            trace: request_ids[of as usize / 3 % 3].as_deref().map(|id: &str| id.to_owned().into()),
            state: State::Released,
        };
        self.with_a_lease(claim)
    }

    fn with_a_state(&mut self, record: Record) -> Record {
        if self.random.below(3) == 0 && record.status() == Status::Started {
            record
        } else {
            self.settled(record)
        }
    }

    fn with_a_lease(&mut self, record: Record) -> Record {
        let lease_until = self.near(self.base);
        let expires_at = match record.execution {
            Execution::AtMostOnce => self.some_expiry(),
            Execution::AtLeastOnce => Some(self.expiry()),
        };
        Record { state: State::Started { lease_until }, expires_at, ..record }
    }

    fn settled(&mut self, record: Record) -> Record {
        let outcomes = [Outcome::Omitted, inline(b""), inline(b"{}"), in_chunks(2), in_chunks(3)];
        let outcome = self.random.pick(&outcomes).clone();
        let (state, interrupted) = match self.random.below(4) {
            0 => (State::Released, self.random.below(2) == 0),
            1 => (State::Failed(outcome), record.mark.is_interrupted()),
            _ => (State::Completed(outcome), record.mark.is_interrupted()),
        };
        Record { state, mark: interrupted.into(), expires_at: Some(self.expiry()), ..record }
    }

    fn near(&mut self, time: Timestamp) -> Timestamp {
        time.saturating_add(Duration::from_millis(self.random.below(3)))
    }

    fn some_expiry(&mut self) -> Option<Timestamp> {
        (self.random.below(3) > 0).then(|| self.expiry())
    }

    /// Draws an expiry in whole seconds, so far in the future that no sweeper removes the record.
    fn expiry(&mut self) -> Timestamp {
        self.tomorrow.saturating_add(Duration::from_secs(self.random.below(3)))
    }
}
