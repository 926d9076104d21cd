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
    record::{Generation, Owner, RECORD_VERSION, Record, State, Status},
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

/// Adds all attributes of `record` to `item`, which already has the key.
pub(super) fn put_record(item: &mut Item, record: &Record, names: &AttributeNames) {
    for (attribute, value) in attributes_of(record) {
        if let Some(value) = value {
            item.insert(names.of(attribute).to_owned(), value);
        }
    }
}

/// All attributes of `record` except the key; `None` for those that it doesn't have.
pub(super) fn attributes_of(record: &Record) -> impl Iterator<Item = (Attribute, Option<AttributeValue>)> {
    // The pattern names every field. If a field is added to `Record`, this code doesn't compile until it names the
    // field. `state_of` has the fields that are ignored here.
    let Record {
        owner: by,
        generation: of,
        attempt,
        fingerprint,
        lock_acquired_at,
        request_id,
        expires_at: _,
        interrupted: _,
        state: _,
    } = record;
    let of_claim = [
        (Attribute::Version, Some(number(RECORD_VERSION))),
        (Attribute::Owner, Some(owner(*by))),
        (Attribute::Generation, Some(generation(*of))),
        (Attribute::Attempt, Some(number(*attempt))),
        (Attribute::Fingerprint, Some(text(fingerprint.to_string()))),
        (Attribute::LockAcquiredAt, Some(millis(*lock_acquired_at))),
        (Attribute::RequestId, request_id.as_ref().map(|id| text(&**id))),
    ];
    of_claim.into_iter().chain(state_of(record))
}

/// The attributes that can change under one owner and generation.
pub(super) fn state_of(record: &Record) -> [(Attribute, Option<AttributeValue>); 8] {
    let outcome = match &record.state {
        State::Completed(outcome) | State::Failed(outcome) => Some(outcome),
        State::Started { .. } | State::Released => None,
    };
    let response = match outcome {
        Some(Outcome::Retained(response)) => Some(response),
        Some(Outcome::Omitted) | None => None,
    };
    let inline = response.and_then(|response| match &response.place {
        Place::Inline(kept) => Some(kept),
        Place::Chunks(_) => None,
    });
    [
        (Attribute::Status, Some(status(record.status()))),
        (Attribute::LeaseUntil, record.lease_until().map(millis)),
        // Without this attribute, DynamoDB's sweeper never removes the item.
        (Attribute::ExpiresAt, record.expires_at.map(seconds)),
        (Attribute::Interrupted, record.interrupted.then_some(AttributeValue::Bool(true))),
        (Attribute::ResponseEncoding, outcome.map(|outcome| text(Form::of(outcome).text()))),
        (Attribute::ResponseLength, response.map(|response| number(response.length))),
        (Attribute::ResponseSha256, response.map(|response| text(Hex(&response.sha256).to_string()))),
        (Attribute::Response, inline.map(|kept| AttributeValue::B(Blob::new(kept.to_vec())))),
    ]
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
