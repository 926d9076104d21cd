//! Every field must be read back unchanged, up to the limits of its values.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Verdict,
    bench::{applied, fresh_key, owner, prepare, refused},
    samples::{
        Settlement, claim, conclude, first_lock, inline, noise, odd_request_ids, reclaim, release,
        second_lock, settle, take_over, tomorrow, until,
    },
};
use crate::{
    fingerprint::Fingerprint,
    key::StoredKey,
    outcome::{Outcome, Place, StoredResponse},
    record::{Generation, Lock, Mark, Owner, Record, State},
    settings::Execution,
    store::Store,
    time::Timestamp,
};

/// 0, 1, and numbers that don't survive a conversion to a 32-bit integer, a 64-bit float or a signed integer.
const NUMBERS: [u64; 6] = [0, 1, (1 << 31) + 1, (1 << 53) + 1, (1 << 63) + 1, u64::MAX];

pub(super) async fn locks(store: &dyn Store) -> Verdict {
    for lock in edge_locks()? {
        let (key, record) = (fresh_key()?, Record::from(lock.clone()));
        applied(store, &key, &claim(lock), &record).await?;
        // A refusal must return the same record.
        refused(store, &key, &claim(second_lock()?), Some(&record)).await?;
        put_away(store, &key, &record).await?;
    }
    Ok(())
}

pub(super) async fn outcomes(store: &dyn Store) -> Verdict {
    for outcome in edge_outcomes() {
        let expires_at = tomorrow();
        for settlement in
            [Settlement::Complete(outcome.clone(), expires_at), Settlement::Fail(outcome.clone(), expires_at)]
        {
            let (key, lock) = (fresh_key()?, first_lock()?);
            let started = Record::from(lock.clone());
            prepare(store, &key, &[claim(lock)]).await?;
            let state = match &settlement {
                Settlement::Fail(outcome, _) => State::Failed(outcome.clone()),
                _ => State::Completed(outcome.clone()),
            };
            let record = Record { state, expires_at: Some(expires_at), ..started.clone() };
            applied(store, &key, &settle(&started, settlement), &record).await?;
            refused(store, &key, &claim(second_lock()?), Some(&record)).await?;
        }
    }
    Ok(())
}

/// A conclusion writes a whole record at once. Its condition must also work for fields at their limits.
pub(super) async fn conclusions(store: &dyn Store) -> Verdict {
    for lock in edge_locks()? {
        let key = fresh_key()?;
        // Only a STARTED record may have no expiry.
        let settled = Lock { expires_at: lock.expires_at.or(Some(tomorrow())), ..lock.clone() };
        let failed = Record { state: State::Failed(inline(b"null")), ..settled.clone().into() };
        let write = conclude(None, failed.clone());
        applied(store, &key, &write, &failed).await?;
        refused(store, &key, &claim(second_lock()?), Some(&failed)).await?;
        let started = Record::from(lock);
        applied(store, &key, &conclude(Some(&failed), started.clone()), &started).await?;
        let released = Record { state: State::Released, ..settled.clone().into() };
        applied(store, &key, &conclude(Some(&started), released.clone()), &released).await?;
        let completed = Record { state: State::Completed(inline(b"{}")), ..settled.into() };
        applied(store, &key, &conclude(Some(&released), completed.clone()), &completed).await?;
        put_away(store, &key, &completed).await?;
    }
    for outcome in edge_outcomes() {
        let (key, started) = (fresh_key()?, Record::from(first_lock()?));
        let completed = Record { state: State::Completed(outcome.clone()), ..started.clone() };
        let write = conclude(None, completed.clone());
        applied(store, &key, &write, &completed).await?;
        let failed = Record { state: State::Failed(outcome), ..started };
        applied(store, &key, &conclude(Some(&completed), failed.clone()), &failed).await?;
    }
    Ok(())
}

/// Takeovers and reclaims also write a lock. Their conditions must work for fields at their limits.
pub(super) async fn later_writes(store: &dyn Store) -> Verdict {
    let mut before = first_lock()?;
    for lock in edge_locks()? {
        let key = fresh_key()?;
        let seen = Record::from(before.clone());
        prepare(store, &key, &[claim(before.clone())]).await?;
        let write = take_over(&seen, lock.clone());
        let taken = Record { fingerprint: before.fingerprint, ..lock.clone().into() };
        applied(store, &key, &write, &taken).await?;
        let write = reclaim(&taken, before);
        applied(store, &key, &write, write.record()).await?;
        let (release, released) = release(write.record());
        applied(store, &key, &release, &released).await?;
        put_away(store, &key, &released).await?;
        before = lock;
    }
    Ok(())
}

/// Returns locks with fields at their limits: first one field at a time, then all together.
pub(super) fn edge_locks() -> Verdict<Vec<Lock>> {
    let mut locks = Vec::new();
    for number in NUMBERS {
        locks.push(Lock { generation: Generation::new(number), ..first_lock()? });
        locks.push(Lock { lock_acquired_at: Timestamp::from_millis(number), ..first_lock()? });
        locks.push(Lock { lease_until: Timestamp::from_millis(number), ..first_lock()? });
    }
    for request_id in odd_request_ids() {
        locks.push(Lock { request_id: request_id.clone(), ..first_lock()? });
        locks.push(Lock { trace: request_id.map(|id| Arc::new(id.to_string())), ..first_lock()? });
    }
    for bytes in [[0; 16], [0xff; 16]] {
        locks.push(Lock { owner: Owner::from_bytes(bytes), ..first_lock()? });
    }
    for digest in [[0; 32], [0xff; 32]] {
        locks.push(Lock { fingerprint: Fingerprint::from_digest(digest), ..first_lock()? });
    }
    for attempt in [0, u32::MAX] {
        locks.push(Lock { attempt, ..first_lock()? });
    }
    for interrupted in [false, true] {
        for execution in [Execution::AtLeastOnce, Execution::AtMostOnce] {
            locks.push(Lock {
                expires_at: Some(LAST_SECOND),
                execution,
                mark: interrupted.into(),
                ..first_lock()?
            });
        }
        locks.push(Lock { mark: interrupted.into(), ..until(None, first_lock()?) });
    }
    locks.push(Lock {
        owner: owner()?,
        generation: Generation::new(u64::MAX),
        attempt: u32::MAX,
        fingerprint: Fingerprint::from_digest([0x80; 32]),
        lock_acquired_at: Timestamp::from_millis(u64::MAX),
        lease_until: Timestamp::from_millis(u64::MAX),
        execution: Execution::AtMostOnce,
        expires_at: Some(LAST_SECOND),
        mark: Mark::Interrupted,
        request_id: None,
        trace: None,
    });
    Ok(locks)
}

/// The last whole second that fits into a [`Timestamp`], which counts milliseconds.
pub(super) const LAST_SECOND: Timestamp = Timestamp::from_secs(u64::MAX / 1000);

fn edge_outcomes() -> Vec<Outcome> {
    let kept = |deflated, length, place| StoredResponse {
        deflated,
        length,
        sha256: [0xa5; 32],
        labels: None,
        place,
    };
    let labelled =
        |labels: String, place| StoredResponse { labels: Some(Arc::new(labels)), ..kept(true, 5, place) };
    let other = || Place::Inline(Bytes::from_static(b"other"));
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut outcomes = vec![
        Outcome::Omitted,
        inline(b""),
        inline(b"null"),
        inline(&every_byte),
        inline("Größe \u{1f980}\u{0}".as_bytes()),
        inline(&noise(30 * 1024, 1)),
        inline(&[b'a'; 100_000]),
    ];
    // These responses are damaged. A store must keep them, because only the library checks responses.
    let odd = [
        kept(false, 7, other()),
        kept(true, u64::MAX, Place::Inline(Bytes::new())),
        kept(false, 400_000, Place::Chunks(1)),
        kept(true, 6_291_556, Place::Chunks(17)),
        kept(false, 0, Place::Chunks(0)),
        kept(false, u64::MAX, Place::Chunks(u32::MAX)),
        labelled("format=cbor".to_owned(), other()),
        labelled("key=arn:aws:kms:eu-west-1:111122223333:key/a;key=/".to_owned(), Place::Chunks(3)),
        labelled(format!("format={};key={}", "f".repeat(32), "k".repeat(512)), Place::Chunks(2)),
    ];
    outcomes.extend(odd.map(Outcome::Retained));
    outcomes
}

/// Replaces `record` with one that expires in a day, so that a sweeper can remove it then.
pub(super) async fn put_away(store: &dyn Store, key: &StoredKey, record: &Record) -> Verdict {
    let lock = second_lock()?;
    let write = reclaim(record, lock.clone());
    applied(store, key, &write, &lock.into()).await
}
