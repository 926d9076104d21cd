//! Sample values. Each differs from the others in every field, so that a store can't pass by mixing them up.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Verdict, bench::owner, random::Random};
use crate::{
    fingerprint::Fingerprint,
    outcome::{Outcome, Place, StoredResponse},
    record::{Generation, Lock, Mark, Record, State},
    settings::Execution,
    store::Put,
    time::{Clock as _, Timestamp, system_clock},
};

/// The base of a sample's times: now, so that the sweeper later removes the records that the suite leaves behind.
pub(super) fn base() -> Timestamp {
    system_clock().now().rounded_up_to_second()
}

/// A day from now: the usual expiry.
pub(super) fn tomorrow() -> Timestamp {
    base().saturating_add(Duration::from_secs(86_400))
}

/// A first lock, by a new owner. It expires, and no earlier attempt was interrupted.
pub(super) fn first_lock() -> Verdict<Lock> {
    let now = base();
    Ok(Lock {
        owner: owner()?,
        generation: Generation::new(1_000),
        attempt: 1,
        fingerprint: Fingerprint::of_bytes(b"first"),
        lock_acquired_at: now.saturating_add(Duration::from_millis(123)),
        lease_until: now.saturating_add(Duration::from_millis(60_456)),
        execution: Execution::AtLeastOnce,
        expires_at: Some(tomorrow()),
        mark: Mark::None,
        request_id: Some("first-invocation".into()),
        trace: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned().into()),
    })
}

/// A first lock that never expires, as under at-most-once, after an interrupted attempt. Cases replace the records
/// of this lock at their end, because no sweeper removes them.
pub(super) fn lasting_lock() -> Verdict<Lock> {
    Ok(Lock { mark: Mark::Interrupted, ..until(None, first_lock()?) })
}

/// `lock` with this expiry. Only an at-most-once claim may have none.
pub(super) fn until(expires_at: Option<Timestamp>, lock: Lock) -> Lock {
    let execution = if expires_at.is_none() { Execution::AtMostOnce } else { lock.execution };
    Lock { execution, expires_at, ..lock }
}

/// A later lock, by a new owner. Every field differs from the first lock's.
pub(super) fn second_lock() -> Verdict<Lock> {
    let now = base();
    Ok(Lock {
        owner: owner()?,
        generation: Generation::new(2_000),
        attempt: 2,
        fingerprint: Fingerprint::of_bytes(b"second"),
        lock_acquired_at: now.saturating_add(Duration::from_millis(7_789)),
        lease_until: now.saturating_add(Duration::from_millis(90_012)),
        execution: Execution::AtMostOnce,
        expires_at: Some(tomorrow().saturating_add(Duration::from_secs(100))),
        mark: Mark::Interrupted,
        request_id: Some("second-invocation".into()),
        trace: Some("Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1".to_owned().into()),
    })
}

/// An outcome whose response is stored in the record.
pub(super) fn inline(response: &[u8]) -> Outcome {
    Outcome::Retained(StoredResponse::new(Bytes::copy_from_slice(response)))
}

/// An outcome whose response claims to be in `count` chunks.
pub(super) fn in_chunks(count: u32) -> Outcome {
    Outcome::Retained(StoredResponse {
        deflated: true,
        length: 1_000_000,
        sha256: [7; 32],
        labels: Some(Arc::new("format=cbor;key=arn:aws:kms:eu-west-1:1:key/1".into())),
        place: Place::Chunks(count),
    })
}

/// `length` incompressible bytes, the same for the same seed.
pub(super) fn noise(length: usize, seed: u64) -> Bytes {
    let mut random = Random::new(seed);
    let mut noise = Vec::with_capacity(length + 8);
    while noise.len() < length {
        noise.extend_from_slice(&random.next().to_be_bytes());
    }
    noise.truncate(length);
    noise.into()
}

/// How a record is settled.
#[derive(Clone, Debug)]
pub(super) enum Settlement {
    Complete(Outcome, Timestamp),
    Fail(Outcome, Timestamp),
    Release { expires_at: Timestamp, interrupted: bool },
}

/// T1.
pub(super) fn claim(lock: Lock) -> Put {
    Put::Create(lock.into())
}

/// T2.
pub(super) fn reclaim(seen: &Record, lock: Lock) -> Put {
    Put::Replace { seen: seen.clone(), new: lock.into() }
}

/// T3. The fingerprint stays, since only the same operation is taken over.
pub(super) fn take_over(seen: &Record, lock: Lock) -> Put {
    reclaim(seen, Lock { fingerprint: seen.fingerprint, ..lock })
}

/// The settlement of `record`'s claim.
pub(super) fn settle(record: &Record, settlement: Settlement) -> Put {
    let lease_until = record.lease_until().unwrap_or(record.lock_acquired_at);
    Put::Mine { held: record.lock_until(lease_until), new: settled(record, settlement) }
}

/// Stores `record` without a claim.
pub(super) fn conclude(seen: Option<&Record>, record: Record) -> Put {
    match seen.cloned() {
        Some(seen) => Put::Replace { seen, new: record },
        None => Put::Create(record),
    }
}

/// The extension of `record`'s claim. It also changes the record's expiry, if there's one.
pub(super) fn extend(record: &Record, lease_until: Timestamp) -> Put {
    Put::Replace { seen: record.clone(), new: extended(record, lease_until) }
}

/// The record after [`extend`]. Its expiry is earlier than the record's: a later one may not exist, since the record may
/// have the last possible time. A record that never expires keeps `None`.
pub(super) fn extended(record: &Record, lease_until: Timestamp) -> Record {
    let expires_at = record.expires_at.map(|expires_at| expires_at.saturating_sub(Duration::from_secs(11)));
    Record { state: State::Started { lease_until }, expires_at, ..record.clone() }
}

/// Returns `record` after `settlement`.
pub(super) fn settled(record: &Record, settlement: Settlement) -> Record {
    let (state, expires_at, interrupted) = match settlement {
        Settlement::Complete(outcome, expires_at) => {
            (State::Completed(outcome), expires_at, record.mark.is_interrupted())
        }
        Settlement::Fail(outcome, expires_at) => {
            (State::Failed(outcome), expires_at, record.mark.is_interrupted())
        }
        Settlement::Release { expires_at, interrupted } => (State::Released, expires_at, interrupted),
    };
    Record { state, expires_at: Some(expires_at), mark: interrupted.into(), ..record.clone() }
}

/// A release that marks `record`'s claim as interrupted, and the record after this release.
pub(super) fn release(record: &Record) -> (Put, Record) {
    let expires_at = tomorrow().saturating_add(Duration::from_secs(9));
    let release = Settlement::Release { expires_at, interrupted: true };
    (settle(record, release.clone()), settled(record, release))
}

/// An operator's write on `record`, by a new owner.
pub(super) fn resolve(record: &Record, settlement: Settlement) -> Verdict<Put> {
    let generation = Generation::new(record.generation.get().saturating_add(1));
    let new = Record { owner: owner()?, generation, ..settled(record, settlement) };
    Ok(Put::Replace { seen: record.clone(), new })
}

/// One settlement of each kind. Each has its own expiry, which no lock of this file has.
pub(super) fn settlements() -> [Settlement; 3] {
    let expires_at = tomorrow().saturating_add(Duration::from_secs(7));
    [
        Settlement::Complete(inline(b"\x00\xffdone"), expires_at),
        Settlement::Fail(inline(b"{\"error\":\"no\"}"), expires_at.saturating_add(Duration::from_secs(1))),
        Settlement::Release {
            expires_at: expires_at.saturating_add(Duration::from_secs(2)),
            interrupted: true,
        },
    ]
}

/// Request ids that a store could easily mangle.
pub(super) fn odd_request_ids() -> [Option<Arc<str>>; 4] {
    [
        None,
        Some("".into()),
        Some("c9d5e5ef-8d0c-4a40-8a83-8a1e3c1f0f1b".into()),
        Some("Größe \u{1f980} \"quoted\" \\ \u{0}\u{7f}\r\n end".into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The patterns name every field. A new field with the same value in both locks, or with none, would test nothing.
    #[test]
    fn sample_locks_differ_in_every_field() {
        let Lock {
            owner,
            generation,
            attempt,
            fingerprint,
            lock_acquired_at,
            lease_until,
            execution,
            expires_at,
            mark,
            request_id,
            trace,
        } = first_lock().unwrap();
        let second = second_lock().unwrap();
        assert_ne!(owner, second.owner);
        assert_ne!(generation, second.generation);
        assert_ne!(attempt, second.attempt);
        assert_ne!(fingerprint, second.fingerprint);
        assert_ne!(lock_acquired_at, second.lock_acquired_at);
        assert_ne!(lease_until, second.lease_until);
        assert_ne!(execution, second.execution);
        assert!(expires_at.is_some() && expires_at != second.expires_at);
        assert_ne!(mark, second.mark);
        assert!(request_id.is_some() && request_id != second.request_id);
        assert!(trace.is_some() && trace != second.trace);
    }
}
