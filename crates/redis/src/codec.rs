//! Converts a record's fields to those of a hash and back. A hash's values are bytes: numbers are in decimal digits.

use std::borrow::Cow;

use bytes::Bytes;

use lambda_idempotency_core::store::{
    Record,
    toolkit::{self as codec, Field, Fields, NOT_IN_RANGE, Unreadable, Value},
};

/// Returns the bytes of `value` as Redis stores them.
pub(super) fn bytes_of<'v>(value: &'v Value<'_>) -> Cow<'v, [u8]> {
    match value {
        Value::Number(number) => number.to_string().into_bytes().into(),
        Value::Text(text) => text.as_bytes().into(),
        Value::Bytes(bytes) => (&**bytes).into(),
    }
}

/// Decodes the record in a hash with these fields.
pub(super) fn decode(fields: Vec<(Bytes, Bytes)>) -> Result<Record, Unreadable> {
    codec::decode(&mut Hash(fields))
}

/// Accepts a number only in the form that this library writes. The script compares texts, so a number in another form
/// would never equal the one that the store sends.
fn parse_number(digits: &str) -> Option<u64> {
    digits.parse().ok().filter(|number: &u64| number.to_string() == digits)
}

/// A hash's fields.
struct Hash(Vec<(Bytes, Bytes)>);

impl Hash {
    fn get(&self, field: Field) -> Option<&Bytes> {
        self.0.iter().find(|(name, _)| name == field.name()).map(|(_, value)| value)
    }
}

impl Fields for Hash {
    fn has(&self, field: Field) -> bool {
        self.get(field).is_some()
    }

    fn number(&self, field: Field) -> Result<Option<u64>, &'static str> {
        let text = self.text(field).map_err(|_| NOT_IN_RANGE)?;
        text.map(|digits| parse_number(digits).ok_or(NOT_IN_RANGE)).transpose()
    }

    fn text(&self, field: Field) -> Result<Option<&str>, &'static str> {
        self.get(field).map(|bytes| std::str::from_utf8(bytes)).transpose().map_err(|_| "isn't text")
    }

    fn bytes(&self, field: Field) -> Result<Option<&[u8]>, &'static str> {
        Ok(self.get(field).map(AsRef::as_ref))
    }

    fn take_response(&mut self) -> Result<Option<Bytes>, &'static str> {
        Ok(self.get(Field::Response).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_numbers_are_accepted() {
        assert_eq!(parse_number("18446744073709551615"), Some(u64::MAX));
        for wrong in ["", "+1", "-1", "1.5", "1e3", " 1", "01", "18446744073709551616"] {
            assert_eq!(parse_number(wrong), None, "{wrong}");
        }
    }
}
