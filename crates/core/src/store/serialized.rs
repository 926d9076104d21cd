//! A record as bytes, for stores that keep each record as one value.

use std::fmt;

use bytes::{Buf as _, Bytes};

use crate::{
    record::Record,
    store::{
        StoreError, StoreErrorKind,
        codec::{self, Field, Fields, Value},
    },
};

const NUMBER: u8 = 0;
const TEXT: u8 = 1;
const BYTES: u8 = 2;
const NOT_A_RECORD: &str = "the bytes aren't a record, or not all of it";

impl Record {
    /// Returns the record as bytes, for a store that keeps each record as one value, such as a file. A later release of the library
    /// reads the bytes back, or says that it can't. Don't read them elsewhere: call [`from_bytes`](Self::from_bytes).
    ///
    /// First the length of the rest, so that a part is never read as a whole record. Then each field's name, type, length and value.
    /// Numbers are big-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in Field::RECORD {
            match codec::value(field, self) {
                None => {}
                Some(Value::Number(number)) => put(&mut bytes, field, NUMBER, &number.to_be_bytes()),
                Some(Value::Text(text)) => put(&mut bytes, field, TEXT, text.as_bytes()),
                Some(Value::Bytes(value)) => put(&mut bytes, field, BYTES, &value),
            }
        }
        [&length(&bytes)[..], &bytes].concat()
    }

    /// Reads a record that [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// ```
    /// # fn example(record: lambda_idempotency_core::store::Record) -> Result<(), lambda_idempotency_core::store::StoreError> {
    /// use lambda_idempotency_core::store::Record;
    ///
    /// assert_eq!(Record::from_bytes(record.to_bytes())?, record);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Corrupt`] if any of the bytes is wrong or missing, or if another version of the library wrote
    /// them. The message names the field, and never shows its value. Never treat such a record as absent.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, StoreError> {
        let mut found = parse(bytes.into()).ok_or_else(|| corrupt(NOT_A_RECORD))?;
        codec::decode(&mut found).map_err(|unreadable| {
            corrupt(format!("the record's field {} {}", unreadable.field.name(), unreadable.why))
        })
    }
}

fn corrupt(message: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message)
}

#[expect(clippy::cast_possible_truncation, reason = "no response has 4 GiB")]
fn length(bytes: &[u8]) -> [u8; 4] {
    (bytes.len() as u32).to_be_bytes()
}

fn put(bytes: &mut Vec<u8>, field: Field, kind: u8, value: &[u8]) {
    let name = field.name();
    for part in [&length(name.as_bytes())[..], name.as_bytes(), &[kind], &length(value), value] {
        bytes.extend_from_slice(part);
    }
}

/// The fields in the bytes of a record.
struct Found(Vec<(Field, u8, Bytes)>);

/// Returns `None` if a field is unknown, cut off, or there twice.
fn parse(mut bytes: Bytes) -> Option<Found> {
    let mut found = Found(Vec::new());
    if usize::try_from(bytes.try_get_u32().ok()?).ok()? != bytes.len() {
        return None;
    }
    while !bytes.is_empty() {
        let name = taken(&mut bytes)?;
        let field = Field::RECORD.into_iter().find(|field| field.name().as_bytes() == name)?;
        let kind = bytes.try_get_u8().ok()?;
        let value = taken(&mut bytes)?;
        if found.has(field) {
            return None;
        }
        found.0.push((field, kind, value));
    }
    Some(found)
}

/// Takes a value, after its length.
fn taken(bytes: &mut Bytes) -> Option<Bytes> {
    let length = bytes.try_get_u32().ok()?.try_into().ok()?;
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

impl Found {
    fn of(&self, field: Field, kind: u8) -> Result<Option<&Bytes>, &'static str> {
        match self.0.iter().find(|(found, ..)| *found == field) {
            None => Ok(None),
            Some((_, found, value)) if *found == kind => Ok(Some(value)),
            Some(_) => Err("has the wrong type"),
        }
    }
}

impl Fields for Found {
    fn has(&self, field: Field) -> bool {
        self.0.iter().any(|(found, ..)| *found == field)
    }

    fn number(&self, field: Field) -> Result<Option<u64>, &'static str> {
        let number =
            |value: &Bytes| value[..].try_into().map(u64::from_be_bytes).map_err(|_| "has the wrong length");
        self.of(field, NUMBER)?.map(number).transpose()
    }

    fn text(&self, field: Field) -> Result<Option<&str>, &'static str> {
        self.of(field, TEXT)?.map(|value| std::str::from_utf8(value)).transpose().map_err(|_| "isn't UTF-8")
    }

    fn bytes(&self, field: Field) -> Result<Option<&[u8]>, &'static str> {
        Ok(self.of(field, BYTES)?.map(|value| &value[..]))
    }

    fn take_response(&mut self) -> Result<Option<Bytes>, &'static str> {
        Ok(self.of(Field::Response, BYTES)?.cloned())
    }
}

impl fmt::Debug for Found {
    /// Shows which fields are there, never their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(field, ..)| field)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fingerprint::Fingerprint,
        outcome::{Outcome, StoredResponse},
        record::{Generation, Mark, Owner, State},
        settings::Execution,
        time::Timestamp,
    };

    fn record(state: State) -> Record {
        let at = Timestamp::from_secs;
        Record {
            owner: Owner::from_bytes([7; 16]),
            generation: Generation::new(u64::MAX),
            attempt: 3,
            fingerprint: Fingerprint::of_bytes(b"request"),
            lock_acquired_at: at(1000),
            execution: Execution::AtMostOnce,
            expires_at: Some(at(2000)),
            mark: Mark::Interrupted,
            request_id: Some("invocation".into()),
            trace: Some("trace".to_owned().into()),
            state,
        }
    }

    #[test]
    fn no_part_of_a_record_is_a_record() {
        for state in [
            State::Started { lease_until: Timestamp::from_secs(1060) },
            State::Completed(Outcome::Retained(StoredResponse::new(Bytes::from_static(b"receipt")))),
            State::Failed(Outcome::Omitted),
            State::Released,
        ] {
            let record = record(state);
            let bytes = record.to_bytes();
            assert_eq!(Record::from_bytes(bytes.clone()).unwrap(), record);
            for end in 0..bytes.len() {
                assert!(Record::from_bytes(bytes[..end].to_vec()).is_err(), "{end}");
            }
            assert!(Record::from_bytes([&bytes[..], &[0]].concat()).is_err());
            // The same field twice.
            let again = [&bytes[4..], &bytes[4..]].concat();
            assert!(Record::from_bytes([&length(&again)[..], &again].concat()).is_err());
        }
        assert_eq!(Record::from_bytes(Vec::new()).unwrap_err().kind(), StoreErrorKind::Corrupt);
    }
}
