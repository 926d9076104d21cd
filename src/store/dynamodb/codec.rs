//! Converts items to records and back. Everything from the table is checked. An error names the attribute that
//! can't be decoded, and never shows its value. The codec never replaces an invalid value with a default.

use std::{borrow::Cow, collections::HashMap, str::FromStr};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;

use super::attributes::{Attribute, AttributeNames};
use crate::{
    fingerprint::Fingerprint,
    key::{Hex, parse_hex},
    outcome::{Outcome, Place},
    record::{Generation, Lock, Owner, RECORD_VERSION, Record, State, Status},
    store::codec::{Form, lacks_expiry},
    time::Timestamp,
};

/// An item in the SDK's form.
pub(super) type Item = HashMap<String, AttributeValue>;

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(super) fn binary(value: &Bytes) -> AttributeValue {
    AttributeValue::B(Blob::new(value.to_vec()))
}

pub(super) fn millis(time: Timestamp) -> AttributeValue {
    number(time.as_millis())
}

/// Converts to seconds, the unit of the TTL attribute. Rounds up, so that the sweeper never removes a record early.
pub(super) fn seconds(time: Timestamp) -> AttributeValue {
    number(time.as_secs_rounded_up())
}

pub(super) fn status(status: Status) -> AttributeValue {
    text(status.as_str())
}

pub(super) fn owner(owner: Owner) -> AttributeValue {
    text(owner.to_string())
}

pub(super) fn generation(generation: Generation) -> AttributeValue {
    number(generation.get())
}

/// The value of `interrupted`, which is only written if true.
pub(super) fn interrupted() -> AttributeValue {
    AttributeValue::Bool(true)
}

pub(super) fn sha256(digest: &[u8; 32]) -> AttributeValue {
    text(Hex(digest).to_string())
}

/// The `response_encoding` of an outcome.
pub(super) fn encoding(outcome: &Outcome) -> AttributeValue {
    text(Form::of(outcome).text())
}

/// Adds a claim's attributes to `item`, which already has the key.
pub(super) fn put_lock(item: &mut Item, lock: &Lock, names: &AttributeNames) {
    // The pattern names every field. If a field is added to `Lock`, this code doesn't compile until it names the field.
    let Lock {
        owner: by,
        generation: of,
        attempt,
        fingerprint,
        lock_acquired_at,
        lease_until,
        expires_at,
        interrupted: was_interrupted,
        request_id,
    } = lock;
    let mut put = |attribute, value| item.insert(names.of(attribute).to_owned(), value);
    put(Attribute::Status, status(Status::Started));
    put(Attribute::Owner, owner(*by));
    put(Attribute::Generation, generation(*of));
    put(Attribute::LockAcquiredAt, millis(*lock_acquired_at));
    put(Attribute::LeaseUntil, millis(*lease_until));
    // Without this attribute, DynamoDB's sweeper never removes the item.
    if let Some(expires_at) = expires_at {
        put(Attribute::ExpiresAt, seconds(*expires_at));
    }
    put(Attribute::Fingerprint, text(fingerprint.to_string()));
    put(Attribute::Attempt, number(*attempt));
    if *was_interrupted {
        put(Attribute::Interrupted, interrupted());
    }
    if let Some(request_id) = request_id {
        put(Attribute::RequestId, text(&**request_id));
    }
    put(Attribute::Version, number(RECORD_VERSION));
}

/// Adds all attributes of `record` to `item`, which already has the key.
pub(super) fn put_record(item: &mut Item, record: &Record, names: &AttributeNames) {
    // `put_lock` writes the fields that are ignored here. If a field is added to `Record`, this code doesn't compile
    // until it names the field.
    let Record {
        state,
        owner: _,
        generation: _,
        attempt: _,
        fingerprint: _,
        lock_acquired_at,
        expires_at: _,
        interrupted: _,
        request_id: _,
    } = record;
    let lease_until = record.lease_until();
    put_lock(item, &record.lock_until(lease_until.unwrap_or(*lock_acquired_at)), names);
    if lease_until.is_none() {
        item.remove(names.of(Attribute::LeaseUntil));
    }
    let mut put = |attribute, value| item.insert(names.of(attribute).to_owned(), value);
    put(Attribute::Status, status(record.status()));
    match state {
        State::Started { .. } | State::Released => {}
        State::Completed(outcome) | State::Failed(outcome) => {
            put(Attribute::ResponseEncoding, encoding(outcome));
            let Outcome::Retained(response) = outcome else { return };
            put(Attribute::ResponseLength, number(response.length));
            put(Attribute::ResponseSha256, sha256(&response.sha256));
            if let Place::Inline(kept) = &response.place {
                put(Attribute::Response, binary(kept));
            }
        }
    }
}

/// Explains why an item isn't a record. It names the attribute, and never shows its value, except for the
/// version's number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) attribute: String,
    pub(super) why: Cow<'static, str>,
}

/// Decodes the record in `item`.
pub(super) fn decode(item: Item, names: &AttributeNames) -> Result<Record, Unreadable> {
    let mut fields = Fields { item, names };
    // Check the version first: it determines how to read the rest.
    let version = fields.number::<u32>(Attribute::Version)?;
    if version != RECORD_VERSION {
        return Err(fields.unreadable(
            Attribute::Version,
            format!(
                "is {version}, but this library reads only version {RECORD_VERSION}; use the release of \
                 lambda-idempotency that wrote the record"
            ),
        ));
    }
    // With one of these attributes, the response has a form that this version can't read, so it must not be replayed.
    for attribute in [Attribute::ResponseCodec, Attribute::ResponseKeyId] {
        if fields.has(attribute) {
            return Err(fields.unreadable(attribute, "needs a newer release of lambda-idempotency"));
        }
    }
    let record = Record {
        owner: fields.parsed(Attribute::Owner, Owner::from_hex)?,
        generation: Generation::new(fields.number(Attribute::Generation)?),
        attempt: fields.number(Attribute::Attempt)?,
        fingerprint: fields.parsed(Attribute::Fingerprint, Fingerprint::from_stored)?,
        lock_acquired_at: fields.millis(Attribute::LockAcquiredAt)?,
        expires_at: fields.optional_seconds(Attribute::ExpiresAt)?,
        interrupted: fields.flag(Attribute::Interrupted)?,
        request_id: fields.optional_text(Attribute::RequestId)?.map(Into::into),
        state: state(&mut fields)?,
    };
    if lacks_expiry(&record) {
        return Err(fields.unreadable(Attribute::ExpiresAt, "is missing"));
    }
    Ok(record)
}

/// The response bytes in a chunk's item.
pub(super) fn decode_chunk(mut item: Item, names: &AttributeNames) -> Option<Bytes> {
    match item.remove(names.of(Attribute::Response)) {
        Some(AttributeValue::B(kept)) => Some(kept.into_inner().into()),
        _ => None,
    }
}

fn state(fields: &mut Fields<'_>) -> Result<State, Unreadable> {
    let state = match fields.parsed(Attribute::Status, Status::from_stored)? {
        Status::Started => State::Started { lease_until: fields.millis(Attribute::LeaseUntil)? },
        Status::Completed => State::Completed(outcome(fields)?),
        Status::Failed => State::Failed(outcome(fields)?),
        Status::Released => State::Released,
    };
    // Each attribute of the record's status has been taken above. One that's still there belongs to another status, so
    // it's unclear what happened.
    for attribute in [
        Attribute::LeaseUntil,
        Attribute::Response,
        Attribute::ResponseEncoding,
        Attribute::ResponseLength,
        Attribute::ResponseSha256,
    ] {
        if fields.has(attribute) {
            return Err(fields.unreadable(attribute, "doesn't belong to the record's status"));
        }
    }
    Ok(state)
}

fn outcome(fields: &mut Fields<'_>) -> Result<Outcome, Unreadable> {
    let form = fields.parsed(Attribute::ResponseEncoding, Form::parse)?;
    let measures = |fields: &mut Fields<'_>| {
        Ok((fields.number(Attribute::ResponseLength)?, fields.parsed(Attribute::ResponseSha256, parse_hex)?))
    };
    form.outcome(fields, measures, |fields| fields.binary(Attribute::Response))
}

/// Parses a number that has only digits. A plain `parse` would also accept a sign.
fn parse_number<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// An item's attributes. Each can be taken once. [`has`](Self::has) tells whether an attribute is still there.
struct Fields<'a> {
    item: Item,
    names: &'a AttributeNames,
}

impl Fields<'_> {
    fn unreadable(&self, attribute: Attribute, why: impl Into<Cow<'static, str>>) -> Unreadable {
        Unreadable { attribute: self.names.of(attribute).to_owned(), why: why.into() }
    }

    fn has(&self, attribute: Attribute) -> bool {
        self.item.contains_key(self.names.of(attribute))
    }

    fn take(&mut self, attribute: Attribute) -> Result<AttributeValue, Unreadable> {
        self.item.remove(self.names.of(attribute)).ok_or_else(|| self.unreadable(attribute, "is missing"))
    }

    fn text(&mut self, attribute: Attribute) -> Result<String, Unreadable> {
        match self.take(attribute)? {
            AttributeValue::S(text) => Ok(text),
            _ => Err(self.unreadable(attribute, "isn't of type S")),
        }
    }

    fn optional_text(&mut self, attribute: Attribute) -> Result<Option<String>, Unreadable> {
        if self.has(attribute) { self.text(attribute).map(Some) } else { Ok(None) }
    }

    fn flag(&mut self, attribute: Attribute) -> Result<bool, Unreadable> {
        match self.item.remove(self.names.of(attribute)) {
            None => Ok(false),
            Some(AttributeValue::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.unreadable(attribute, "isn't of type BOOL")),
        }
    }

    fn binary(&mut self, attribute: Attribute) -> Result<Bytes, Unreadable> {
        match self.take(attribute)? {
            AttributeValue::B(bytes) => Ok(bytes.into_inner().into()),
            _ => Err(self.unreadable(attribute, "isn't of type B")),
        }
    }

    fn number<T: FromStr>(&mut self, attribute: Attribute) -> Result<T, Unreadable> {
        match self.take(attribute)? {
            AttributeValue::N(digits) => parse_number(&digits)
                .ok_or_else(|| self.unreadable(attribute, "isn't a whole number in its range")),
            _ => Err(self.unreadable(attribute, "isn't of type N")),
        }
    }

    fn millis(&mut self, attribute: Attribute) -> Result<Timestamp, Unreadable> {
        self.number(attribute).map(Timestamp::from_millis)
    }

    fn seconds(&mut self, attribute: Attribute) -> Result<Timestamp, Unreadable> {
        let seconds = self.number(attribute)?;
        let time = Timestamp::from_secs(seconds);
        // Refuse a time that's too large: it would saturate, and a condition on it would never match the item's value.
        if time.as_secs_rounded_up() == seconds {
            Ok(time)
        } else {
            Err(self.unreadable(attribute, "isn't a whole number in its range"))
        }
    }

    fn optional_seconds(&mut self, attribute: Attribute) -> Result<Option<Timestamp>, Unreadable> {
        if self.has(attribute) { self.seconds(attribute).map(Some) } else { Ok(None) }
    }

    fn parsed<T>(&mut self, attribute: Attribute, parse: fn(&str) -> Option<T>) -> Result<T, Unreadable> {
        let text = self.text(attribute)?;
        parse(&text).ok_or_else(|| self.unreadable(attribute, "isn't in the form that this library writes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_in_range_are_numbers() {
        assert_eq!(parse_number::<u64>("18446744073709551615"), Some(u64::MAX));
        for wrong in ["", "+1", "-1", "1.5", "1e3", " 1", "18446744073709551616"] {
            assert_eq!(parse_number::<u64>(wrong), None, "{wrong}");
        }
    }
}
