//! The statement and the values of each put.

use bytes::Bytes;

use super::{
    codec::{self, Column, Texts},
    fault::Fault,
    statements::{HELD, Statement, Statements, VERSION},
    values::Value,
};
use crate::{
    key::StoredKey,
    outcome::{Outcome, Place, StoredResponse},
    record::Record,
    store::Put,
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

/// A put, and the texts that its values borrow.
#[derive(Debug)]
pub(super) struct Draft<'p> {
    put: &'p Put,
    texts: Texts,
}

impl<'p> Draft<'p> {
    /// Prepares `put`, or returns the reason why no row can hold its record.
    pub(super) fn of(put: &'p Put) -> Result<Self, Fault> {
        if kept(put.record()).is_some_and(|kept| kept.len() > LARGEST_RESPONSE) {
            return Err(Fault::too_large());
        }
        Ok(Self { put, texts: Texts::of(put.record()) })
    }

    /// Returns the values of the put's statement. They include `lock_timeout`, if it's given.
    pub(super) fn values<'a>(&'a self, key: &'a StoredKey, lock_timeout: Option<&'a str>) -> Vec<Value<'a>> {
        let new = |column: &Column| codec::value(*column, self.put.record(), &self.texts);
        let mut values = Vec::with_capacity(24);
        values.push(Value::Text(key.as_str()));
        values.extend(lock_timeout.map(Value::Text));
        match self.put {
            Put::Create(_) => values.extend(Column::RECORD.iter().map(new)),
            Put::Replace { seen, new: to } => {
                let set = if to.is_claim_of(seen) { &Column::STATE[..] } else { &Column::RECORD[..] };
                values.extend(set.iter().map(new));
                values.extend(VERSION.map(|column| codec::value(column, seen, &self.texts)));
            }
            Put::Mine { held, .. } => {
                values.extend(Column::STATE.iter().map(new));
                values.extend(HELD.map(|column| match column {
                    Column::Owner => codec::owner(&held.owner),
                    _ => codec::generation(held.generation),
                }));
            }
        }
        values
    }
}

/// Returns the response that `record` keeps in its row.
fn kept(record: &Record) -> Option<&Bytes> {
    match codec::outcome_of(record)? {
        Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. }) => Some(kept),
        _ => None,
    }
}
