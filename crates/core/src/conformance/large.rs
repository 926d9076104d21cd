//! The largest responses that a record itself may have to hold.

use super::{
    Verdict,
    bench::{applied, chain, described, described_record, fresh_key, prepare, refused, stands},
    samples::{Settlement, claim, first_lock, noise, second_lock, settle, settled, tomorrow},
};
use crate::{
    outcome::{Outcome, Place, StoredResponse},
    record::Record,
    store::{PutOutcome, Store, StoreErrorKind},
};

/// The lengths to try on a store that keeps every response in its record: one MiB, and the library's default
/// `max_response`.
const WITHOUT_CHUNKS: [usize; 2] = [1024 * 1024, 8 * 1024 * 1024];

/// A store keeps a large response unchanged, or rejects it with a definite `Unstorable`.
pub(super) async fn responses(store: &dyn Store) -> Verdict {
    let lengths = match store.chunks() {
        Some(chunks) => vec![chunks.inline_limit()],
        None => WITHOUT_CHUNKS.to_vec(),
    };
    for length in lengths {
        response(store, length)
            .await
            .map_err(|finding| format!("a response of {length} bytes: {finding}"))?;
    }
    Ok(())
}

async fn response(store: &dyn Store, length: usize) -> Verdict {
    let (key, lock) = (fresh_key()?, first_lock()?);
    let started = Record::from(lock.clone());
    prepare(store, &key, &[claim(lock)]).await?;
    // Not `StoredResponse::new`: compressing megabytes takes long in a debug build.
    let outcome = Outcome::Retained(StoredResponse {
        deflated: false,
        length: length as u64,
        sha256: [0xa5; 32],
        labels: None,
        place: Place::Inline(noise(length, length as u64)),
    });
    let settlement = Settlement::Complete(outcome, tomorrow());
    let completed = settled(&started, settlement.clone());
    let write = settle(&started, settlement);
    match store.put(&key, &write).await {
        Ok(PutOutcome::Applied) => {
            stands(store, &key, Some(&completed), &format!("after {}", described(&write))).await?;
            // A refused claim returns the whole record, from which duplicates get their response.
            refused(store, &key, &claim(second_lock()?), Some(&completed)).await
        }
        Ok(PutOutcome::Refused(record)) => Err(format!(
            "{} should have been applied, but was refused because of {}",
            described(&write),
            described_record(record.as_ref())
        )),
        Err(error) if error.kind() == StoreErrorKind::Unstorable && !error.is_maybe_applied() => {
            stands(store, &key, Some(&started), "after a response that the store doesn't accept").await?;
            // The library then settles without the response.
            let omitted = Settlement::Complete(Outcome::Omitted, tomorrow());
            let completed = settled(&started, omitted.clone());
            applied(store, &key, &settle(&started, omitted), &completed).await
        }
        Err(error) => {
            let certainty = if error.is_maybe_applied() { "ambiguous" } else { "definite" };
            Err(format!(
                "the settlement should be applied, or fail with a definite Unstorable error, but it failed with this \
                 {certainty} error: {:?}: {}",
                error.kind(),
                chain(&error)
            ))
        }
    }
}
