//! What the library tells about itself: `tracing` events, one function per fact.
//!
//! Names and fields are stable. The target is `lambda_idempotency`; `event` is the fact's name and
//! `id` the stored key, which shows neither key nor caller. No event holds a raw key, a payload, a
//! response or a token.

use std::error::Error as StdError;

use crate::{error::Error, key::StoredKey, protocol::Held, record::Record, time::Timestamp};

const TARGET: &str = "lambda_idempotency";

pub(crate) fn claimed(id: &StoredKey, held: &Held) {
    if held.is_takeover {
        tracing::warn!(
            target: TARGET, event = "takeover", %id, generation = held.generation.get(), attempt = held.attempt,
            "took over a stale claim: its handler may have had an effect"
        );
    } else {
        tracing::debug!(
            target: TARGET, event = "claimed", %id, generation = held.generation.get(), attempt = held.attempt,
            "claimed"
        );
    }
    if held.is_recovered {
        tracing::info!(
            target: TARGET, event = "claim_recovered", %id, generation = held.generation.get(),
            "the answer to the claim was lost; knew the claim again by its owner"
        );
    }
}

pub(crate) fn replayed(id: &StoredKey, record: &Record) {
    tracing::debug!(
        target: TARGET, event = "replayed", %id, generation = record.generation.get(),
        status = record.status().as_str(), "answered from the record"
    );
}

pub(crate) fn refused(id: &StoredKey, error: &Error) {
    tracing::info!(
        target: TARGET, event = "refused", %id, kind = error.kind().as_str(), "refused: {error}"
    );
}

pub(crate) fn settled(id: &StoredKey, held: &Held, status: &'static str) {
    tracing::debug!(target: TARGET, event = "settled", %id, generation = held.generation.get(), status, "settled");
}

pub(crate) fn fenced(id: &StoredKey, held: &Held) {
    tracing::warn!(
        target: TARGET, event = "fenced", %id, generation = held.generation.get(),
        "outlived the lease and was taken over: the successor's outcome stands"
    );
}

pub(crate) fn unrecorded(id: &StoredKey, held: &Held, cause: Option<&dyn StdError>) {
    tracing::error!(
        target: TARGET, event = "unrecorded", %id, generation = held.generation.get(),
        cause = cause.map(tracing::field::display),
        "the handler ran, but its outcome is not stored: a later delivery may run it again"
    );
}

pub(crate) fn not_retained(id: &StoredKey, bytes: Option<usize>, cause: Option<&dyn StdError>) {
    tracing::warn!(
        target: TARGET, event = "not_retained", %id, bytes, cause = cause.map(tracing::field::display),
        "the outcome is recorded without its response: duplicates will be told so"
    );
}

pub(crate) fn abandoned(id: &StoredKey, held: &Held) {
    tracing::warn!(
        target: TARGET, event = "abandoned", %id, generation = held.generation.get(),
        frees_at_ms = held.lease_until.as_millis(),
        "the claim was dropped unsettled: its lease frees the key"
    );
}

pub(crate) fn cut_off(id: &StoredKey, held: &Held, at: Timestamp) {
    tracing::warn!(
        target: TARGET, event = "cut_off", %id, generation = held.generation.get(), at_ms = at.as_millis(),
        "the handler was cut off before its lease ends"
    );
}

pub(crate) fn panicked(id: &StoredKey, held: &Held) {
    tracing::warn!(
        target: TARGET, event = "panicked", %id, generation = held.generation.get(), "the handler panicked"
    );
}

pub(crate) fn unprotected(reason: &'static str) {
    tracing::warn!(target: TARGET, event = "unprotected", reason, "the handler runs without protection");
}
