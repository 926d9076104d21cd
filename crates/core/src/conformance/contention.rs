//! Concurrent writes on one key: the store applies one, and refuses the others because of the record that the winner
//! left.

use std::{slice, sync::Arc};

use tokio::task::JoinSet;

use super::{
    Verdict,
    bench::{apply, described_record, fresh_key, prepare, read, same, stands, together},
    samples::{
        Settlement, claim, conclude, extend, first_lock, inline, reclaim, release, resolve, second_lock,
        settle, settlements, take_over, tomorrow,
    },
};
use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::{Record, State},
    store::{Put, PutOutcome, Store},
};

const ROUNDS: u32 = 3;
const TASKS: usize = 64;

pub(super) async fn claims(store: &dyn Store) -> Verdict {
    for _ in 0..ROUNDS {
        race(store, Race::claims(TASKS)?).await?;
    }
    Ok(())
}

pub(super) async fn takeovers(store: &dyn Store) -> Verdict {
    for _ in 0..ROUNDS {
        race(store, Race::takeovers(TASKS / 4)?).await?;
    }
    Ok(())
}

pub(super) async fn reclaims(store: &dyn Store) -> Verdict {
    for _ in 0..ROUNDS {
        race(store, Race::reclaims(TASKS / 4)?).await?;
    }
    Ok(())
}

pub(super) async fn settlement_and_takeover(store: &dyn Store) -> Verdict {
    for round in 0..4 * ROUNDS {
        race(store, Race::settlement_and_takeover(round)?).await?;
    }
    Ok(())
}

pub(super) async fn extensions(store: &dyn Store) -> Verdict {
    for _ in 0..ROUNDS {
        race(store, Race::extensions(TASKS / 4)?).await?;
    }
    Ok(())
}

pub(super) async fn extension_and_takeover(store: &dyn Store) -> Verdict {
    for round in 0..4 * ROUNDS {
        race(store, Race::extension_and_takeover(round)?).await?;
    }
    Ok(())
}

pub(super) async fn conclusions(store: &dyn Store) -> Verdict {
    for round in 0..2 * ROUNDS {
        race(store, Race::conclusions(TASKS / 4, round)?).await?;
    }
    Ok(())
}

pub(super) async fn conclusions_and_claims(store: &dyn Store) -> Verdict {
    for round in 0..2 * ROUNDS {
        race(store, Race::conclusions_and_claims(TASKS / 4, round)?).await?;
    }
    Ok(())
}

pub(super) async fn settlement_and_operator(store: &dyn Store) -> Verdict {
    for round in 0..4 * ROUNDS {
        race(store, Race::settlement_and_operator(round)?).await?;
    }
    Ok(())
}

/// Races `tasks` concurrent tasks on one store, for `rounds` rounds. Each race must have exactly one winner.
///
/// Each task uses one of `handles`, assigned in rotation, and every handle must read what the others wrote. Lambda runs
/// a function in many processes, so pass at least two handles that you built separately and that share nothing in this
/// process. One handle isn't enough: a lock inside it can make the store look atomic, even if the store isn't atomic
/// between processes.
///
/// In five races, all tasks send the same kind of write: a claim, a takeover, a reclaim, an extension, or a conclusion
/// without a claim. In a sixth, conclusions race against claims. Three further races have only two tasks: a settlement
/// or an extension against a takeover, and a settlement against an operator's write.
///
/// [`check`](super::check) runs the same races in one task, so its writes overlap only while the store waits for
/// something. This function is for stores that can run in several threads: call it in a multi-threaded
/// runtime.
///
/// ```
/// # extern crate lambda_idempotency_core as lambda_idempotency;
/// use std::sync::Arc;
/// use lambda_idempotency::{conformance, store::memory::MemoryStore};
///
/// # #[tokio::main]
/// # async fn main() {
/// let store = MemoryStore::new();
/// conformance::check_contention(&[Arc::new(store.clone()), Arc::new(store)], 16, 4).await;
/// # }
/// ```
///
/// # Panics
///
/// If a race has no winner, or more than one; if a loser gets a record other than the winner's; or if a handle doesn't
/// read the record that the last applied write left. Also if `handles` is empty, or if you call this function outside a
/// tokio runtime.
///
/// # Cancel safety
///
/// Dropping the future aborts the tasks. The records that the tasks wrote stay until they expire.
pub async fn check_contention(handles: &[Arc<dyn Store>], tasks: usize, rounds: u32) {
    for round in 0..rounds {
        let races = [
            Race::claims(tasks),
            Race::takeovers(tasks),
            Race::reclaims(tasks),
            Race::settlement_and_takeover(round),
            Race::settlement_and_operator(round),
            Race::extensions(tasks),
            Race::extension_and_takeover(round),
            Race::conclusions(tasks, round),
            Race::conclusions_and_claims(tasks, round),
        ];
        for run in races {
            let verdict = match run {
                Ok(run) => parallel_race(handles, run).await,
                Err(finding) => Err(finding),
            };
            if let Err(finding) = verdict {
                panic!("contention, {tasks} tasks, round {round}: {finding}");
            }
        }
    }
}

/// Concurrent writes. The store may apply only one of them.
struct Race {
    name: &'static str,
    key: StoredKey,
    before: Vec<Put>,
    current: Option<Record>,
    writes: Vec<Put>,
}

impl Race {
    fn claims(tasks: usize) -> Verdict<Self> {
        Ok(Self {
            name: "claims",
            key: fresh_key()?,
            before: vec![],
            current: None,
            writes: (0..tasks).map(|_| Ok(claim(first_lock()?))).collect::<Verdict<_>>()?,
        })
    }

    fn takeovers(tasks: usize) -> Verdict<Self> {
        let first = first_lock()?;
        let current = Record::from(first.clone());
        let write = |_| Ok(take_over(&current, second_lock()?));
        Ok(Self {
            name: "takeovers",
            key: fresh_key()?,
            before: vec![claim(first)],
            writes: (0..tasks).map(write).collect::<Verdict<_>>()?,
            current: Some(current),
        })
    }

    fn reclaims(tasks: usize) -> Verdict<Self> {
        let first = first_lock()?;
        let started = Record::from(first.clone());
        let (release, current) = release(&started);
        let write = |_| Ok(reclaim(&current, second_lock()?));
        Ok(Self {
            name: "reclaims",
            key: fresh_key()?,
            before: vec![claim(first), release],
            writes: (0..tasks).map(write).collect::<Verdict<_>>()?,
            current: Some(current),
        })
    }

    /// The owner settles while another executor takes over. Every second round, the takeover is sent first.
    fn settlement_and_takeover(round: u32) -> Verdict<Self> {
        let race = Self { name: "settlement and takeover", ..Self::takeovers(1)? };
        Ok(race.against_a_settlement(round))
    }

    /// The owner settles while an operator settles the same record.
    fn settlement_and_operator(round: u32) -> Verdict<Self> {
        let mut race = Self { name: "settlement and operator's write", ..Self::takeovers(0)? };
        if let Some(current) = &race.current {
            race.writes.push(resolve(current, settlement_of(round / 3))?);
        }
        Ok(race.against_a_settlement(round))
    }

    /// The same extension, sent several times. After the store has applied one of them, the others no longer move the
    /// lease to a later time.
    fn extensions(tasks: usize) -> Verdict<Self> {
        let mut race = Self { name: "extensions to one lease", ..Self::takeovers(0)? };
        if let Some(current) = &race.current {
            race.writes = vec![extend(current, tomorrow()); tasks];
        }
        Ok(race)
    }

    /// The extension and the takeover each change the version that the other write expects.
    fn extension_and_takeover(round: u32) -> Verdict<Self> {
        let mut race = Self { name: "extension and takeover", ..Self::takeovers(1)? };
        if let Some(current) = &race.current {
            race.writes.push(extend(current, tomorrow()));
        }
        race.alternate(round);
        Ok(race)
    }

    /// Conclusions on an absent record or, every second round, on a released one.
    fn conclusions(tasks: usize, round: u32) -> Verdict<Self> {
        let race = if round.is_multiple_of(2) { Self::claims(0)? } else { Self::reclaims(0)? };
        let writes = conclusions_on(race.current.as_ref(), tasks)?;
        Ok(Self { name: "conclusions", writes, ..race })
    }

    /// Conclusions against claims or, every second round, against reclaims.
    fn conclusions_and_claims(tasks: usize, round: u32) -> Verdict<Self> {
        let half = tasks.div_ceil(2);
        let mut race = if round.is_multiple_of(2) { Self::claims(half)? } else { Self::reclaims(half)? };
        race.writes.extend(conclusions_on(race.current.as_ref(), half)?);
        race.alternate(round / 2);
        Ok(Self { name: "conclusions and claims", ..race })
    }

    /// Every second round, reverses the order of sending.
    fn alternate(&mut self, round: u32) {
        if round % 2 == 1 {
            self.writes.reverse();
        }
    }

    fn against_a_settlement(mut self, round: u32) -> Self {
        if let Some(current) = &self.current {
            self.writes.push(settle(current, settlement_of(round / 2)));
        }
        self.alternate(round);
        self
    }
}

/// `count` conclusions, each by its own owner, that replace `current`.
fn conclusions_on(current: Option<&Record>, count: usize) -> Verdict<Vec<Put>> {
    let write = |_| {
        let state = State::Completed(inline(b"concluded"));
        Ok(conclude(current, Record { state, ..second_lock()?.into() }))
    };
    (0..count).map(write).collect()
}

/// Rotates through the kinds of settlement.
fn settlement_of(nth: u32) -> Settlement {
    let [complete, fail, release] = settlements();
    match nth % 3 {
        0 => complete,
        1 => fail,
        _ => release,
    }
}

async fn race(store: &dyn Store, race: Race) -> Verdict {
    prepare(store, &race.key, &race.before).await?;
    let key = &race.key;
    let runs =
        race.writes.iter().map(|write| Box::pin(apply(store, key, write)) as BoxFuture<'_, _>).collect();
    let answers: Verdict<Vec<_>> = together(runs).await.into_iter().collect();
    judge(store, &race, &answers?).await.map(drop)
}

async fn parallel_race(handles: &[Arc<dyn Store>], race: Race) -> Verdict {
    let [first, ..] = handles else {
        return Err("no handle was passed; pass at least one".to_owned());
    };
    // If a handle has a cache, these reads fill it. The next write makes the cached entry stale, so a handle that
    // answers from its cache fails the next comparison.
    all_read(handles, &race, None, "before any write of").await?;
    for (store, write) in handles.iter().cycle().zip(&race.before) {
        prepare(&**store, &race.key, slice::from_ref(write)).await?;
    }
    all_read(handles, &race, race.current.as_ref(), "before").await?;
    let mut tasks = JoinSet::new();
    for (store, (at, write)) in handles.iter().cycle().zip(race.writes.iter().cloned().enumerate()) {
        let (store, key) = (Arc::clone(store), race.key.clone());
        tasks.spawn(async move { (at, apply(&*store, &key, &write).await) });
    }
    let mut answers = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        let (at, answer) = joined.map_err(|error| format!("a task of the race failed: {error}"))?;
        answers.push((at, answer?));
    }
    answers.sort_by_key(|(at, _)| *at);
    let answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
    let expected = judge(&**first, &race, &answers).await?;
    all_read(handles, &race, expected.as_ref(), "after").await
}

/// Reads the record through every handle, and compares it with `expected`.
async fn all_read(handles: &[Arc<dyn Store>], race: &Race, expected: Option<&Record>, when: &str) -> Verdict {
    for (at, store) in (1..).zip(handles) {
        let when = format!("{when} concurrent {} (through handle {at} of {})", race.name, handles.len());
        stands(&**store, &race.key, expected, &when).await?;
    }
    Ok(())
}

/// Checks that the store applied exactly one write, the winner, that it stored the winner's record, and that it
/// returned this record with every refusal. Returns the record.
async fn judge(store: &dyn Store, race: &Race, answers: &[PutOutcome]) -> Verdict<Option<Record>> {
    let name = race.name;
    let stands = read(store, &race.key).await?;
    let winners: Vec<_> = race
        .writes
        .iter()
        .zip(answers)
        .filter(|(_, answer)| matches!(answer, PutOutcome::Applied))
        .map(|(write, _)| write)
        .collect();
    let [winner] = winners[..] else {
        let record = described_record(stands.as_ref());
        return Err(format!(
            "{} of {} concurrent {name} were applied instead of one; the record is {record}",
            winners.len(),
            answers.len()
        ));
    };
    let expected = winner.apply_to(race.current.as_ref());
    same(stands.as_ref(), expected.as_ref(), &format!("the record after concurrent {name}"))?;
    for answer in answers {
        if let PutOutcome::Refused(record) = answer {
            let what = format!("the record returned to a loser of concurrent {name}");
            same(record.as_ref(), expected.as_ref(), &what)?;
        }
    }
    Ok(expected)
}
