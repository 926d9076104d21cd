//! Large responses in chunks next to the record, for stores that support chunks.

use bytes::Bytes;

use super::{
    Verdict,
    bench::{applied, chain, fresh_key, owner, stands},
    samples::{Settlement, claim, first_lock, noise, settle, tomorrow},
};
use crate::{
    key::StoredKey,
    outcome::{Outcome, Place, StoredResponse},
    record::{Owner, Record, State},
    store::{ResponseChunks, Store, StoreErrorKind},
};

/// Lambda's limit for a synchronous response.
const LARGEST: usize = 6 * 1024 * 1024;

pub(super) async fn round_trip(store: &dyn Store) -> Verdict {
    let Some(chunks) = store.chunks() else { return Ok(()) };
    for length in [0, 1, chunks.inline_limit() + 1, 1024 * 1024, LARGEST] {
        let (key, owner, bytes) = (fresh_key()?, owner()?, noise(length, length as u64));
        let count = written(chunks, &key, owner, &bytes).await?;
        comes_back(chunks, &key, owner, count, &bytes).await?;
    }
    Ok(())
}

pub(super) async fn owners_and_keys(store: &dyn Store) -> Verdict {
    let Some(chunks) = store.chunks() else { return Ok(()) };
    let (keys, owners) = ([fresh_key()?, fresh_key()?], [owner()?, owner()?]);
    let mut kept = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        for (by, owner) in owners.into_iter().enumerate() {
            let bytes = noise(500_000 + 100_000 * by, (10 * at + by) as u64);
            let count = written(chunks, key, owner, &bytes).await?;
            kept.push((key, owner, count, bytes));
        }
    }
    for (key, owner, count, bytes) in &kept {
        comes_back(chunks, key, *owner, *count, bytes).await?;
    }
    // Writing the same bytes again changes nothing.
    if let Some((key, owner, count, bytes)) = kept.first() {
        let again = written(chunks, key, *owner, bytes).await?;
        if again != *count {
            return Err(format!("the same bytes took {count} chunks first and {again} chunks later"));
        }
    }
    for (key, owner, count, bytes) in &kept {
        comes_back(chunks, key, *owner, *count, bytes).await?;
    }
    Ok(())
}

pub(super) async fn missing(store: &dyn Store) -> Verdict {
    let Some(chunks) = store.chunks() else { return Ok(()) };
    let (key, by, bytes) = (fresh_key()?, owner()?, noise(500_000, 3));
    let count = written(chunks, &key, by, &bytes).await?;
    let limit = bytes.len() as u64 * 2;
    corrupt(chunks, &key, by, count + 1, limit, "one chunk more than exist").await?;
    corrupt(chunks, &key, by, count + 300, limit, "many more chunks than exist").await?;
    corrupt(chunks, &key, owner()?, count, limit, "chunks of another owner").await?;
    corrupt(chunks, &fresh_key()?, by, count, limit, "chunks of another key").await
}

pub(super) async fn limit(store: &dyn Store) -> Verdict {
    let Some(chunks) = store.chunks() else { return Ok(()) };
    let (key, by, bytes) = (fresh_key()?, owner()?, noise(700_000, 4));
    let count = written(chunks, &key, by, &bytes).await?;
    comes_back(chunks, &key, by, count, &bytes).await?;
    for limit in [bytes.len() as u64 - 1, 1, 0] {
        corrupt(chunks, &key, by, count, limit, &format!("700,000 bytes with a limit of {limit}")).await?;
    }
    Ok(())
}

/// Chunks aren't records, and writes on the record don't touch its chunks.
pub(super) async fn beside_the_record(store: &dyn Store) -> Verdict {
    let Some(chunks) = store.chunks() else { return Ok(()) };
    let (key, lock, bytes) = (fresh_key()?, first_lock()?, noise(500_000, 5));
    let started = Record::from(lock.clone());
    let count = written(chunks, &key, started.owner, &bytes).await?;
    stands(store, &key, None, "of a key that has only chunks").await?;
    applied(store, &key, &claim(lock), &started).await?;
    written(chunks, &key, started.owner, &bytes).await?;
    stands(store, &key, Some(&started), "after its chunks were written").await?;

    let response = StoredResponse::new(bytes.clone());
    let kept = match &response.place {
        Place::Inline(kept) => kept.clone(),
        Place::Chunks(_) => bytes.clone(),
    };
    let outcome = Outcome::Retained(response.into_chunks(count));
    let expires_at = tomorrow();
    let state = State::Completed(outcome.clone());
    let completed = Record { state, expires_at: Some(expires_at), ..started.clone() };
    let complete = settle(&started, Settlement::Complete(outcome, expires_at));
    applied(store, &key, &complete, &completed).await?;
    comes_back(chunks, &key, started.owner, count, &kept).await
}

async fn written(chunks: &dyn ResponseChunks, key: &StoredKey, owner: Owner, bytes: &Bytes) -> Verdict<u32> {
    chunks
        .write_chunks(key, owner, bytes, tomorrow())
        .await
        .map_err(|error| format!("{} bytes couldn't be written in chunks: {}", bytes.len(), chain(&error)))
}

/// Checks that the bytes can be read back from the chunks, with a limit of exactly their length.
async fn comes_back(
    chunks: &dyn ResponseChunks,
    key: &StoredKey,
    owner: Owner,
    count: u32,
    bytes: &Bytes,
) -> Verdict {
    let found = chunks.read_chunks(key, owner, count, bytes.len() as u64).await.map_err(|error| {
        format!("{} bytes in {count} chunks couldn't be read: {}", bytes.len(), chain(&error))
    })?;
    if found == *bytes {
        return Ok(());
    }
    let at = found.iter().zip(bytes).take_while(|(found, expected)| found == expected).count();
    Err(format!(
        "{} bytes in {count} chunks were read as {} bytes that differ from byte {at} on",
        bytes.len(),
        found.len()
    ))
}

async fn corrupt(
    chunks: &dyn ResponseChunks,
    key: &StoredKey,
    owner: Owner,
    count: u32,
    limit: u64,
    what: &str,
) -> Verdict {
    match chunks.read_chunks(key, owner, count, limit).await {
        Err(error) if error.kind() == StoreErrorKind::Corrupt => Ok(()),
        Err(error) => Err(format!(
            "reading {what} should fail as Corrupt, but failed as {:?}: {}",
            error.kind(),
            chain(&error)
        )),
        Ok(found) => {
            Err(format!("reading {what} should fail as Corrupt, but returned {} bytes", found.len()))
        }
    }
}
