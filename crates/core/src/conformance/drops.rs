//! Calls that are dropped midway, as the library drops a call that takes too long.

use std::{future::poll_fn, task::Poll};

use super::{
    Verdict,
    bench::{applied, described, described_record, fresh_key, prepare, read, refused, stands},
    samples::{
        claim, conclude, extend, first_lock, inline, reclaim, release, resolve, second_lock, settle,
        settlements, take_over, tomorrow,
    },
};
use crate::{
    future::BoxFuture,
    key::StoredKey,
    record::{Record, State},
    store::{Put, Store},
};

/// A call is dropped after this many polls at most. It's polled again only when the store wakes the task, so each
/// number of polls drops the call at another point of its exchange with the server.
const POLLS: u32 = 6;

/// A dropped call leaves its record as before or as after the write, and the calls that follow get their own answers,
/// not the dropped call's.
pub(super) async fn calls(store: &dyn Store) -> Verdict {
    let (other, lock) = (fresh_key()?, second_lock()?);
    let standing = Record::from(lock.clone());
    prepare(store, &other, &[claim(lock)]).await?;
    for (before, write) in dropped_writes()? {
        for polls in 0..=POLLS {
            let dropped = drop_write(store, &before, &write, polls).await?;
            follow(store, &other, &standing, polls).await.map_err(|finding| {
                format!("{} was dropped at poll {polls}; a later call failed: {finding}", described(&write))
            })?;
            if !dropped {
                break;
            }
        }
    }
    for polls in 0..=POLLS {
        let (key, lock) = (fresh_key()?, first_lock()?);
        prepare(store, &key, &[claim(lock)]).await?;
        let dropped = is_dropped(polls, store.read(&key)).await;
        follow(store, &other, &standing, polls).await.map_err(|finding| {
            format!("a read was dropped at poll {polls}; a later call failed: {finding}")
        })?;
        if !dropped {
            break;
        }
    }
    Ok(())
}

/// Returns the writes to drop, of every kind, each with the writes that prepare its key. The condition of each write to
/// drop holds, except that of the last one: a claim of a key that's already claimed.
fn dropped_writes() -> Verdict<Vec<(Vec<Put>, Put)>> {
    let first = first_lock()?;
    let (started, claimed) = (Record::from(first.clone()), claim(first));
    let (release, released) = release(&started);
    let concluded = Record { state: State::Completed(inline(b"concluded")), ..second_lock()?.into() };
    let [complete, fail, _] = settlements();
    let on_started = [
        settle(&started, complete),
        release.clone(),
        take_over(&started, second_lock()?),
        extend(&started, tomorrow()),
        conclude(Some(&started), concluded),
        resolve(&started, fail)?,
        claim(second_lock()?),
    ];
    let reclaim = reclaim(&released, second_lock()?);
    let mut writes = vec![(vec![], claimed.clone()), (vec![claimed.clone(), release], reclaim)];
    writes.extend(on_started.map(|write| (vec![claimed.clone()], write)));
    Ok(writes)
}

/// Sends `write` on a fresh key, and drops it after `polls` polls. Returns whether it was dropped before its answer.
async fn drop_write(store: &dyn Store, before: &[Put], write: &Put, polls: u32) -> Verdict<bool> {
    let key = fresh_key()?;
    prepare(store, &key, before).await?;
    let old =
        before.iter().fold(None, |record: Option<Record>, write| write.apply_to(record.as_ref()).or(record));
    let new = write.apply_to(old.as_ref()).or_else(|| old.clone());
    let dropped = is_dropped(polls, store.put(&key, write)).await;
    // The store may apply the dropped write later, so either record may be there.
    let found = read(store, &key).await?;
    if found != old && found != new {
        return Err(format!(
            "{} was dropped at poll {polls}; the record should be {} or {}, but is {}",
            described(write),
            described_record(old.as_ref()),
            described_record(new.as_ref()),
            described_record(found.as_ref())
        ));
    }
    Ok(dropped)
}

/// Reads and writes other keys. If `polls` is even, the first call is a read; otherwise, it's a write. The store may
/// mistake the dropped call's late answer for the answer to a read but not to a write, or the reverse, so the case
/// needs both orders.
async fn follow(store: &dyn Store, other: &StoredKey, standing: &Record, polls: u32) -> Verdict {
    let (fresh, lock) = (fresh_key()?, first_lock()?);
    let claimed = Record::from(lock.clone());
    if polls.is_multiple_of(2) {
        stands(store, other, Some(standing), "of another key").await?;
        stands(store, &fresh, None, "of a fresh key").await?;
    }
    refused(store, other, &claim(first_lock()?), Some(standing)).await?;
    applied(store, &fresh, &claim(lock), &claimed).await?;
    stands(store, other, Some(standing), "of another key").await
}

/// Polls `call` up to `polls` times, whenever it wakes the task, and drops it. Returns whether it had no answer yet.
async fn is_dropped<T>(polls: u32, mut call: BoxFuture<'_, T>) -> bool {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(true);
        }
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending if left == 0 => Poll::Ready(true),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
