//! Converts a record's fields to attributes and back.

use std::{collections::HashMap, str::FromStr};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;

use super::attributes::AttributeNames;
use crate::{
    record::Record,
    store::toolkit::{self as codec, Field, Fields, NOT_IN_RANGE, Unreadable, Value},
    time::Timestamp,
};

/// An item in the SDK's form.
pub(super) type Item = HashMap<String, AttributeValue>;

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn binary(value: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// Converts to seconds, the unit of the TTL attribute. Rounds up, so that the sweeper never removes a record early.
pub(super) fn seconds(time: Timestamp) -> AttributeValue {
    AttributeValue::N(time.as_secs_rounded_up().to_string())
}

/// Converts the value of `field`.
pub(super) fn attribute(field: Field, value: Value<'_>) -> AttributeValue {
    match value {
        Value::Number(millis) if field == Field::ExpiresAt => seconds(Timestamp::from_millis(millis)),
        Value::Number(number) => AttributeValue::N(number.to_string()),
        Value::Text(value) => text(value),
        Value::Bytes(value) => binary(value),
    }
}

/// Adds all attributes of `record` to `item`, which already has the key.
pub(super) fn put_record(item: &mut Item, record: &Record, names: &AttributeNames) {
    for field in Field::RECORD {
        if let Some(value) = codec::value(field, record) {
            item.insert(names.of(field).to_owned(), attribute(field, value));
        }
    }
}

/// Decodes the record in `item`.
pub(super) fn decode(item: Item, names: &AttributeNames) -> Result<Record, Unreadable> {
    codec::decode(&mut Attributes { item, names })
}

/// The response bytes in a chunk's item.
pub(super) fn decode_chunk(item: Item, names: &AttributeNames) -> Option<Bytes> {
    Attributes { item, names }.take_response().ok().flatten()
}

/// An item's attributes.
struct Attributes<'n> {
    item: Item,
    names: &'n AttributeNames,
}

impl Attributes<'_> {
    fn get(&self, field: Field) -> Option<&AttributeValue> {
        self.item.get(self.names.of(field))
    }
}

impl Fields for Attributes<'_> {
    fn has(&self, field: Field) -> bool {
        self.get(field).is_some()
    }

    fn number(&self, field: Field) -> Result<Option<u64>, &'static str> {
        let digits = match self.get(field) {
            None => return Ok(None),
            Some(AttributeValue::N(digits)) => digits,
            Some(_) => return Err("isn't of type N"),
        };
        let number = parse_number(digits).ok_or(NOT_IN_RANGE)?;
        if field != Field::ExpiresAt {
            return Ok(Some(number));
        }
        let time = Timestamp::from_secs(number);
        // Refuse a time that's too large: it would saturate, and a condition on it would never match the item's value.
        if time.as_secs_rounded_up() == number { Ok(Some(time.as_millis())) } else { Err(NOT_IN_RANGE) }
    }

    fn text(&self, field: Field) -> Result<Option<&str>, &'static str> {
        match self.get(field) {
            None => Ok(None),
            Some(AttributeValue::S(text)) => Ok(Some(text)),
            Some(_) => Err("isn't of type S"),
        }
    }

    fn bytes(&self, field: Field) -> Result<Option<&[u8]>, &'static str> {
        match self.get(field) {
            None => Ok(None),
            Some(AttributeValue::B(bytes)) => Ok(Some(bytes.as_ref())),
            Some(_) => Err("isn't of type B"),
        }
    }

    fn take_response(&mut self) -> Result<Option<Bytes>, &'static str> {
        match self.item.remove(self.names.of(Field::Response)) {
            None => Ok(None),
            Some(AttributeValue::B(bytes)) => Ok(Some(bytes.into_inner().into())),
            Some(_) => Err("isn't of type B"),
        }
    }
}

/// Parses a number that has only digits. A plain `parse` would also accept a sign.
fn parse_number<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
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
