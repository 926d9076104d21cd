//! Converts records to the fields of a hash and back. Everything from Redis is checked. An error names the
//! field that can't be decoded, and never shows its value. The codec never replaces an invalid value with a default.

use std::{borrow::Cow, str::FromStr};

use bytes::Bytes;

use crate::{
    fingerprint::Fingerprint,
    key::{Hex, parse_hex},
    outcome::{Outcome, Place},
    record::{Generation, Owner, RECORD_VERSION, Record, State, Status},
    store::codec::{Form, lacks_expiry},
    time::Timestamp,
};

/// A record's field, by its name in the hash.
pub(super) type Field = &'static str;

/// Which records have a field, and whether it can change under one owner and generation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Every record has it.
    Always,
    /// Only some records have it, and it never changes under one claim.
    OfClaim,
    /// Only some records have it, and it can change under one claim.
    OfState,
    /// Reserved: the library ignores it, and nothing writes it yet.
    Ignored,
}

/// Declares the fields of a hash, with their names and kinds.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident = $name:literal, $kind:ident;)+) => {
        $($(#[$doc])* pub(super) const $field: Field = $name;)+

        const FIELDS: [(Field, Kind); [$($name),+].len()] = [$(($field, Kind::$kind)),+];
    };
}

fields! {
    VERSION = "version", Always;
    STATUS = "status", Always;
    OWNER = "owner", Always;
    GENERATION = "generation", Always;
    ATTEMPT = "attempt", Always;
    FINGERPRINT = "fingerprint", Always;
    LOCK_ACQUIRED_AT = "lock_acquired_at", Always;
    LEASE_UNTIL = "lease_until", OfState;
    EXPIRES_AT = "expires_at", OfState;
    INTERRUPTED = "interrupted", OfState;
    REQUEST_ID = "request_id", OfClaim;
    RESPONSE_ENCODING = "response_encoding", OfState;
    RESPONSE_LENGTH = "response_length", OfState;
    RESPONSE_SHA256 = "response_sha256", OfState;
    RESPONSE = "response", OfState;
    TRACE_ID = "trace_id", Ignored;
    /// Reserved: only a newer version of the library can read a response with this field.
    RESPONSE_CODEC = "response_codec", OfState;
    /// Reserved, like [`RESPONSE_CODEC`].
    RESPONSE_KEY_ID = "response_key_id", OfState;
}

/// The fields that only some records have; or only those that can change under one claim.
pub(super) fn optional(only_state: bool) -> impl Iterator<Item = Field> {
    let is_wanted = move |kind| matches!(kind, Kind::OfState) || !only_state && matches!(kind, Kind::OfClaim);
    FIELDS.into_iter().filter(move |(_, kind)| is_wanted(*kind)).map(|(field, _)| field)
}

/// The only value of `interrupted`. A record that wasn't interrupted has no such field.
const TRUE: &str = "true";

/// Fields to set, with their values.
pub(super) type Values = Vec<(Field, Bytes)>;

pub(super) fn text(value: impl ToString) -> Bytes {
    value.to_string().into()
}

pub(super) fn millis(time: Timestamp) -> Bytes {
    text(time.as_millis())
}

pub(super) fn word(word: &'static str) -> Bytes {
    Bytes::from_static(word.as_bytes())
}

/// All fields of a record.
pub(super) fn record(record: &Record) -> Values {
    // The pattern names every field. If a field is added to `Record`, this code doesn't compile until it names the
    // field. `state` has the fields that are ignored here.
    let Record {
        owner,
        generation,
        attempt,
        fingerprint,
        lock_acquired_at,
        request_id,
        expires_at: _,
        interrupted: _,
        state: _,
    } = record;
    let mut values = vec![
        (VERSION, text(RECORD_VERSION)),
        (OWNER, text(owner)),
        (GENERATION, text(generation)),
        (ATTEMPT, text(attempt)),
        (FINGERPRINT, text(fingerprint)),
        (LOCK_ACQUIRED_AT, millis(*lock_acquired_at)),
    ];
    values.extend(request_id.as_ref().map(|request_id| (REQUEST_ID, text(request_id))));
    values.extend(state_of(record));
    values
}

/// The fields that can change under one owner and generation.
pub(super) fn state_of(record: &Record) -> Values {
    let mut values = vec![(STATUS, word(record.status().as_str()))];
    values.extend(record.lease_until().map(|at| (LEASE_UNTIL, millis(at))));
    values.extend(record.expires_at.map(|at| (EXPIRES_AT, millis(at))));
    values.extend(record.interrupted.then(|| (INTERRUPTED, word(TRUE))));
    let (State::Completed(outcome) | State::Failed(outcome)) = &record.state else { return values };
    values.push((RESPONSE_ENCODING, text(Form::of(outcome).text())));
    let Outcome::Retained(response) = outcome else { return values };
    values.push((RESPONSE_LENGTH, text(response.length)));
    values.push((RESPONSE_SHA256, text(Hex(&response.sha256))));
    if let Place::Inline(kept) = &response.place {
        values.push((RESPONSE, kept.clone()));
    }
    values
}

/// Explains why a hash isn't a record. It names the field, and never shows its value, except for the version's
/// number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) field: Field,
    pub(super) why: Cow<'static, str>,
}

impl Unreadable {
    fn new(field: Field, why: impl Into<Cow<'static, str>>) -> Self {
        Self { field, why: why.into() }
    }
}

/// Decodes the record from these fields.
pub(super) fn decode(fields: Vec<(Bytes, Bytes)>) -> Result<Record, Unreadable> {
    let mut fields = Fields(fields);
    // Check the version first: it determines how to read the rest.
    let version = fields.number::<u32>(VERSION)?;
    if version != RECORD_VERSION {
        let why = format!("is {version}, but this library reads only version {RECORD_VERSION}");
        return Err(Unreadable::new(VERSION, why));
    }
    if let Some(field) = [RESPONSE_CODEC, RESPONSE_KEY_ID].into_iter().find(|field| fields.has(field)) {
        let why = "is set, so a newer version of this library wrote the response; update the library";
        return Err(Unreadable::new(field, why));
    }
    let record = Record {
        owner: fields.parsed(OWNER, Owner::from_hex)?,
        generation: Generation::new(fields.number(GENERATION)?),
        attempt: fields.number(ATTEMPT)?,
        fingerprint: fields.parsed(FINGERPRINT, Fingerprint::from_stored)?,
        lock_acquired_at: fields.millis(LOCK_ACQUIRED_AT)?,
        expires_at: if fields.has(EXPIRES_AT) { Some(fields.millis(EXPIRES_AT)?) } else { None },
        interrupted: match fields.has(INTERRUPTED) {
            true if fields.text(INTERRUPTED)? == TRUE => true,
            true => return Err(Unreadable::new(INTERRUPTED, OTHER_FORM)),
            false => false,
        },
        request_id: if fields.has(REQUEST_ID) { Some(fields.text(REQUEST_ID)?.into()) } else { None },
        state: state(&mut fields)?,
    };
    if lacks_expiry(&record) {
        return Err(Unreadable::new(EXPIRES_AT, IS_MISSING));
    }
    Ok(record)
}

fn state(fields: &mut Fields) -> Result<State, Unreadable> {
    let status = fields.text(STATUS)?;
    let status = Status::from_stored(&status).ok_or_else(|| Unreadable::new(STATUS, OTHER_FORM))?;
    let state = match status {
        Status::Started => State::Started { lease_until: fields.millis(LEASE_UNTIL)? },
        Status::Completed => State::Completed(kept(fields)?),
        Status::Failed => State::Failed(kept(fields)?),
        Status::Released => State::Released,
    };
    // All fields of this status have been taken. A field that's left belongs to another status, so it contradicts the
    // record's status, and the library can't know which of the two is right.
    let left_over = optional(false).find(|field| fields.has(field));
    match left_over {
        Some(field) => Err(Unreadable::new(field, "doesn't belong to the record's status")),
        None => Ok(state),
    }
}

fn kept(fields: &mut Fields) -> Result<Outcome, Unreadable> {
    let form = Form::parse(&fields.text(RESPONSE_ENCODING)?)
        .ok_or_else(|| Unreadable::new(RESPONSE_ENCODING, OTHER_FORM))?;
    let measures =
        |fields: &mut Fields| Ok((fields.number(RESPONSE_LENGTH)?, fields.digest(RESPONSE_SHA256)?));
    form.outcome(fields, measures, |fields| fields.take(RESPONSE))
}

/// Accepts a number only in the form that this library writes. The script compares texts, so a number in another form
/// would never equal the one that the store sends.
fn parse_number<T: FromStr + ToString>(digits: &str) -> Option<T> {
    digits.parse().ok().filter(|number: &T| number.to_string() == digits)
}

const IS_MISSING: &str = "is missing";
const OTHER_FORM: &str = "isn't in the form that this library writes";

/// A record's fields. Each can be taken once. `has` tells whether a field is still there.
struct Fields(Vec<(Bytes, Bytes)>);

impl Fields {
    fn has(&self, field: Field) -> bool {
        self.0.iter().any(|(name, _)| name == field)
    }

    fn take(&mut self, field: Field) -> Result<Bytes, Unreadable> {
        let at = self.0.iter().position(|(name, _)| name == field);
        let at = at.ok_or_else(|| Unreadable::new(field, IS_MISSING))?;
        Ok(self.0.swap_remove(at).1)
    }

    fn text(&mut self, field: Field) -> Result<String, Unreadable> {
        let bytes = self.take(field)?;
        String::from_utf8(bytes.into()).map_err(|_| Unreadable::new(field, "isn't text"))
    }

    fn number<T: FromStr + ToString>(&mut self, field: Field) -> Result<T, Unreadable> {
        let number = parse_number(&self.text(field)?);
        number.ok_or_else(|| Unreadable::new(field, "isn't a whole number in its range"))
    }

    fn millis(&mut self, field: Field) -> Result<Timestamp, Unreadable> {
        self.number(field).map(Timestamp::from_millis)
    }

    /// The script compares fields as text, so a parsed value must format to the same text.
    fn parsed<T: ToString>(&mut self, field: Field, parse: fn(&str) -> Option<T>) -> Result<T, Unreadable> {
        let text = self.text(field)?;
        let value = parse(&text).filter(|value| value.to_string() == text);
        value.ok_or_else(|| Unreadable::new(field, OTHER_FORM))
    }

    fn digest(&mut self, field: Field) -> Result<[u8; 32], Unreadable> {
        let text = self.text(field)?;
        parse_hex(&text).ok_or_else(|| Unreadable::new(field, OTHER_FORM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_numbers_are_accepted() {
        assert_eq!(parse_number::<u64>("18446744073709551615"), Some(u64::MAX));
        for wrong in ["", "+1", "-1", "1.5", "1e3", " 1", "01", "18446744073709551616"] {
            assert_eq!(parse_number::<u64>(wrong), None, "{wrong}");
        }
    }
}
