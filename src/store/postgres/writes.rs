//! The values of each write, in the order of its statement's parameters.

use bytes::Bytes;

use super::{
    codec::{self, Column, Texts},
    fault::Fault,
    statements::{RECLAIM, Statement, Statements, TAKEOVER, VERSION},
    values::Value,
};
use crate::{
    key::StoredKey,
    outcome::{Outcome, Place, StoredResponse},
    record::{Record, State},
    store::{Revision, Settlement, Write},
};

impl Statements {
    /// Returns the statement that applies `write`.
    pub(super) const fn of(&self, write: &Write) -> &Statement {
        match write {
            Write::Claim(_) | Write::Conclude { seen: None, .. } => &self.insert,
            Write::Reclaim { .. } => &self.reclaim,
            Write::Conclude { seen: Some(_), .. } => &self.conclude,
            Write::TakeOver { .. } => &self.take_over,
            Write::Settle { .. } => &self.settle,
            Write::Extend { .. } => &self.extend,
            Write::Resolve { .. } => &self.resolve,
        }
    }
}

/// The size limit of a stored response, in bytes. PostgreSQL rejects messages of 1 GiB, and one message
/// contains the whole row.
const LARGEST_RESPONSE: usize = (1 << 30) - (1 << 20);

/// The data that a write's values borrow, besides the write itself.
#[derive(Debug)]
pub(super) enum Draft {
    /// The record that the write stores, whole or in part.
    Record(Box<(Record, Texts)>),
    /// The `response_encoding` of the settlement.
    Settlement(Option<String>),
    /// The values borrow nothing else.
    Nothing,
}

impl Draft {
    /// Prepares `write`, or returns the reason why no row can hold it.
    pub(super) fn of(write: &Write) -> Result<Self, Fault> {
        let of_record = |record: Record| {
            let texts = Texts::of(&record);
            Self::Record(Box::new((record, texts)))
        };
        if kept(write).is_some_and(|kept| kept.len() > LARGEST_RESPONSE) {
            return Err(Fault::too_large());
        }
        Ok(match write {
            Write::Claim(lock) | Write::Reclaim { lock, .. } | Write::TakeOver { lock, .. } => {
                of_record(lock.clone().into())
            }
            Write::Conclude { record, .. } => of_record(record.clone()),
            Write::Settle { settlement, .. } | Write::Resolve { settlement, .. } => {
                Self::Settlement(codec::settlement_encoding(settlement))
            }
            Write::Extend { .. } => Self::Nothing,
        })
    }

    /// Returns the values of the statement that applies `write` to `key`. They include `lock_timeout`, if it's given.
    pub(super) fn values<'a>(
        &'a self,
        key: &'a StoredKey,
        lock_timeout: Option<&'a str>,
        write: &'a Write,
    ) -> Vec<Value<'a>> {
        let mut values = Vec::with_capacity(23);
        values.push(Value::Text(key.as_str()));
        values.extend(lock_timeout.map(Value::Text));
        if let Self::Record(draft) = self {
            let columns = if matches!(write, Write::TakeOver { .. }) {
                &Column::TAKEOVER[..]
            } else {
                &Column::RECORD[..]
            };
            values.extend(columns.iter().map(|column| codec::value(*column, &draft.0, &draft.1)));
        }
        if let Write::Settle { settlement, .. } | Write::Resolve { settlement, .. } = write {
            let encoding = if let Self::Settlement(encoding) = self { encoding.as_deref() } else { None };
            let of_settlement = |column| codec::settled(column, settlement, encoding);
            values.extend(Column::SETTLEMENT.map(of_settlement));
        }
        match write {
            Write::Claim(_) | Write::Conclude { seen: None, .. } => {}
            Write::Reclaim { seen, .. } => values.extend(RECLAIM.map(|column| as_seen(column, seen))),
            Write::Conclude { seen: Some(seen), .. } => {
                values.extend(VERSION.map(|column| as_seen(column, seen)));
            }
            Write::TakeOver { seen, .. } => values.extend(TAKEOVER.map(|column| as_seen(column, seen))),
            Write::Settle { owner, generation, .. } => {
                values.extend([codec::owner(owner), codec::generation(*generation)]);
            }
            Write::Extend { owner, generation, lease_until, expires_at } => values.extend([
                codec::time(*lease_until),
                codec::optional_time(*expires_at),
                codec::owner(owner),
                codec::generation(*generation),
            ]),
            Write::Resolve { seen, owner, generation, .. } => {
                values.extend([codec::owner(owner), codec::generation(*generation)]);
                values.extend(VERSION.map(|column| as_seen(column, seen)));
            }
        }
        values
    }
}

/// Returns the response that `write` stores in the row.
fn kept(write: &Write) -> Option<&Bytes> {
    let outcome = match write {
        Write::Settle { settlement, .. } | Write::Resolve { settlement, .. } => match settlement {
            Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _) => outcome,
            Settlement::Release { .. } => return None,
        },
        Write::Conclude {
            record: Record { state: State::Completed(outcome) | State::Failed(outcome), .. },
            ..
        } => outcome,
        _ => return None,
    };
    match outcome {
        Outcome::Retained(StoredResponse { place: Place::Inline(kept), .. }) => Some(kept),
        _ => None,
    }
}

/// Returns the value of `column` in the version that was seen.
fn as_seen(column: Column, seen: &Revision) -> Value<'_> {
    match column {
        Column::Status => Value::Text(seen.status.as_str()),
        Column::Owner => codec::owner(&seen.owner),
        Column::Generation => codec::generation(seen.generation),
        Column::LeaseUntil => codec::optional_time(seen.lease_until),
        Column::ExpiresAt => codec::optional_time(seen.expires_at),
        Column::LockAcquiredAt => codec::time(seen.lock_acquired_at),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fingerprint::Fingerprint,
        record::{Generation, Lock, Owner},
        time::Timestamp,
    };

    #[test]
    fn only_inline_responses_are_stored_in_the_row() {
        let response = StoredResponse::new(Bytes::from_static(b"done"));
        let settled = |settlement| Write::Settle {
            owner: Owner::from_bytes([1; 16]),
            generation: Generation::new(1),
            settlement,
        };
        let until = Timestamp::from_secs(2_000_000_000);
        let stored = |write: &Write| kept(write).map(|kept| kept.to_vec());
        let retained = || Outcome::Retained(response.clone());
        assert_eq!(stored(&settled(Settlement::Complete(retained(), until))), Some(b"done".to_vec()));
        assert_eq!(stored(&settled(Settlement::Fail(retained(), until))), Some(b"done".to_vec()));
        let in_chunks = Outcome::Retained(response.clone().into_chunks(2));
        assert_eq!(stored(&settled(Settlement::Complete(in_chunks, until))), None);
        let lock = Lock {
            owner: Owner::from_bytes([1; 16]),
            generation: Generation::new(1),
            attempt: 1,
            fingerprint: Fingerprint::from_digest([2; 32]),
            lock_acquired_at: until,
            lease_until: until,
            expires_at: Some(until),
            interrupted: false,
            request_id: None,
        };
        for (state, expected) in [
            (State::Completed(retained()), Some(b"done".to_vec())),
            (State::Failed(retained()), Some(b"done".to_vec())),
            (State::Started { lease_until: until }, None),
        ] {
            let record = Record { state, ..lock.clone().into() };
            assert_eq!(stored(&Write::Conclude { seen: None, record }), expected);
        }
    }
}
