//! The statement and the values of each put.

use super::{
    codec,
    fault::Fault,
    statements::{Statement, Statements},
    values::Value,
};
use lambda_idempotency_core::{
    StoredKey,
    store::{
        Outcome, Place, Put, Record, State, StoredResponse,
        toolkit::{self as record, Field},
    },
};

impl Statements {
    /// Returns the statement that applies `put`.
    pub(super) fn of(&self, put: &Put) -> &Statement {
        match put {
            Put::Create(_) => &self.insert,
            Put::Replace { seen, new } if new.is_claim_of(seen) => &self.renew,
            Put::Replace { .. } => &self.replace,
            Put::Mine { .. } => &self.settle,
        }
    }
}

/// The size limit of a stored response, in bytes. PostgreSQL rejects messages of 1 GiB, and one message
/// contains the whole row.
const LARGEST_RESPONSE: usize = (1 << 30) - (1 << 20);

/// Returns the values of the put's statement, or the reason why no row can hold its record. They include
/// `lock_timeout`, if it's given.
pub(super) fn values<'a>(
    put: &'a Put,
    key: &'a StoredKey,
    lock_timeout: Option<&'a str>,
) -> Result<Vec<Value<'a>>, Fault> {
    if kept_length(put.record()) > LARGEST_RESPONSE {
        return Err(Fault::too_large());
    }
    let new = |field: &Field| codec::value(*field, put.record());
    let mut values = Vec::with_capacity(26);
    values.push(Value::from(key.as_str()));
    values.extend(lock_timeout.map(Value::from));
    match put {
        Put::Create(_) => values.extend(Field::RECORD.iter().map(new)),
        Put::Replace { seen, new: to } => {
            let set = if to.is_claim_of(seen) { &Field::STATE[..] } else { &Field::RECORD[..] };
            values.extend(set.iter().map(new));
            values.extend(Field::VERSION.map(|field| codec::value(field, seen)));
        }
        Put::Mine { held, .. } => {
            values.extend(Field::STATE.iter().map(new));
            values.extend(record::claim(held).map(|(_, value)| value.into()));
        }
    }
    Ok(values)
}

/// Returns how many bytes of a response `record` keeps in its row.
const fn kept_length(record: &Record) -> usize {
    match &record.state {
        State::Completed(Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. }))
        | State::Failed(Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. })) => kept.len(),
        _ => 0,
    }
}
