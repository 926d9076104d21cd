//! Helpers for every case: fresh keys, requests whose errors become findings, and comparisons that name the
//! field that differs.

use std::{fmt::Debug, future::poll_fn, task::Poll};

use super::Verdict;
use crate::{
    future::BoxFuture,
    key::{Key, Scope, StoredKey},
    record::{Owner, Record},
    store::{Put, PutOutcome, Store},
};

/// A new owner.
pub(super) fn owner() -> Verdict<Owner> {
    Owner::random().map_err(|error| error.to_string())
}

/// A key that was never used.
pub(super) fn fresh_key() -> Verdict<StoredKey> {
    fresh_key_in("case")
}

/// A key of this operation that was never used.
pub(super) fn fresh_key_in(operation: &str) -> Verdict<StoredKey> {
    let key = Key::new(owner()?.to_string()).map_err(|error| error.to_string())?;
    let scope = Scope::new("conformance", operation).map_err(|error| error.to_string())?;
    Ok(StoredKey::new(&scope, &key))
}

/// Sends `put`; an error of the store fails the case.
pub(super) async fn apply(store: &dyn Store, key: &StoredKey, put: &Put) -> Verdict<PutOutcome> {
    store
        .put(key, put)
        .await
        .map_err(|error| format!("the store failed to answer {}: {}", described(put), chain(&error)))
}

/// Reads the record of `key`.
pub(super) async fn read(store: &dyn Store, key: &StoredKey) -> Verdict<Option<Record>> {
    store.read(key).await.map_err(|error| format!("the store failed to answer a read: {}", chain(&error)))
}

/// Sends `put`. The store must apply it, and the record must then be `expected`.
pub(super) async fn applied(store: &dyn Store, key: &StoredKey, put: &Put, expected: &Record) -> Verdict {
    match apply(store, key, put).await? {
        PutOutcome::Applied => stands(store, key, Some(expected), &format!("after {}", described(put))).await,
        PutOutcome::Refused(record) => Err(format!(
            "{} should have been applied, but was refused because of {}",
            described(put),
            described_record(record.as_ref())
        )),
    }
}

/// Sends `put`. The store must refuse it because of `current`, and change nothing.
pub(super) async fn refused(
    store: &dyn Store,
    key: &StoredKey,
    put: &Put,
    current: Option<&Record>,
) -> Verdict {
    match apply(store, key, put).await? {
        PutOutcome::Applied => Err(format!(
            "{} should have been refused because of {}, but was applied",
            described(put),
            described_record(current)
        )),
        PutOutcome::Refused(found) => {
            same(
                found.as_ref(),
                current,
                &format!("the record returned with the refusal of {}", described(put)),
            )?;
            stands(store, key, current, &format!("after {} was refused", described(put))).await
        }
    }
}

/// Reads the record and compares it with `expected`.
pub(super) async fn stands(
    store: &dyn Store,
    key: &StoredKey,
    expected: Option<&Record>,
    when: &str,
) -> Verdict {
    let found = read(store, key).await?;
    same(found.as_ref(), expected, &format!("the record {when}"))
}

/// Sends `puts`, a claim and perhaps a settlement, to bring a fresh key into the state that a case starts from.
pub(super) async fn prepare(store: &dyn Store, key: &StoredKey, puts: &[Put]) -> Verdict {
    for put in puts {
        if let PutOutcome::Refused(record) = apply(store, key, put).await? {
            return Err(format!(
                "{} of a fresh key should have been applied, but was refused because of {}",
                described(put),
                described_record(record.as_ref())
            ));
        }
    }
    Ok(())
}

/// Compares two records, or their absence.
pub(super) fn same(found: Option<&Record>, expected: Option<&Record>, what: &str) -> Verdict {
    match (found, expected) {
        (None, None) => Ok(()),
        (Some(found), Some(expected)) if found == expected => Ok(()),
        (Some(found), Some(expected)) => Err(format!("{what} {}", differences(found, expected))),
        (found, expected) => Err(format!(
            "{what} should be {}, but is {}",
            described_record(expected),
            described_record(found)
        )),
    }
}

/// The fields in which two records differ.
fn differences(found: &Record, expected: &Record) -> String {
    let mut list = Vec::new();
    let mut field = |name: &str, found: &dyn Debug, expected: &dyn Debug, equal: bool| {
        if !equal {
            list.push(format!("should have {name} = {expected:?}, but has {found:?}"));
        }
    };
    // Destructuring makes the compiler report a new field that is missing here.
    let Record {
        owner,
        generation,
        attempt,
        fingerprint,
        lock_acquired_at,
        execution,
        expires_at,
        mark,
        request_id,
        trace,
        state,
    } = found;
    field("owner", owner, &expected.owner, *owner == expected.owner);
    field("generation", generation, &expected.generation, *generation == expected.generation);
    field("attempt", attempt, &expected.attempt, *attempt == expected.attempt);
    field("fingerprint", fingerprint, &expected.fingerprint, *fingerprint == expected.fingerprint);
    field(
        "lock_acquired_at",
        lock_acquired_at,
        &expected.lock_acquired_at,
        *lock_acquired_at == expected.lock_acquired_at,
    );
    field("execution", execution, &expected.execution, *execution == expected.execution);
    field("expires_at", expires_at, &expected.expires_at, *expires_at == expected.expires_at);
    field("mark", mark, &expected.mark, *mark == expected.mark);
    field("request_id", request_id, &expected.request_id, *request_id == expected.request_id);
    field("trace", trace, &expected.trace, *trace == expected.trace);
    field("the state", state, &expected.state, *state == expected.state);
    if format!("{:?}", found.state) == format!("{:?}", expected.state) && found.state != expected.state {
        list.push("(the bytes or the digest of the outcome differ)".to_owned());
    }
    list.join(", and ")
}

/// Describes a put in a few words.
pub(super) fn described(put: &Put) -> String {
    let new = put.record();
    let what = format!("a put of {} as generation {}", new.status().as_str(), new.generation);
    match put {
        Put::Create(_) => format!("{what} where there's no record"),
        Put::Replace { seen, .. } => format!("{what} in place of {}", described_record(Some(seen))),
        Put::Mine { held, .. } => {
            format!("{what} under the claim of {:?}, generation {}", held.owner, held.generation)
        }
    }
}

pub(super) fn described_record(record: Option<&Record>) -> String {
    record.map_or_else(|| "no record".to_owned(), |record| format!("{record:?}"))
}

/// Writes an error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    text
}

/// Runs `futures` concurrently in this task, and returns their results in order. The futures overlap only while the
/// store waits for I/O.
pub(super) async fn together<T>(futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (slot, result) in running.iter_mut().zip(&mut results) {
            if let Some(Poll::Ready(value)) = slot.as_mut().map(|future| future.as_mut().poll(context)) {
                (*slot, *result) = (None, Some(value));
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
