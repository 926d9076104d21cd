//! A record as fields, for all stores: which fields it has, their values, and how to read them back. A store only
//! converts each value to its own types.
//!
//! Everything from a store is checked. An error names the field that can't be read, and never shows its value. The codec
//! never replaces an invalid value with a default.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;

use crate::{
    fingerprint::Fingerprint,
    outcome::{Labels, Outcome, Place, StoredResponse},
    record::{Generation, Lock, Mark, Owner, RECORD_VERSION, Record, State, Status},
    settings::Execution,
    time::Timestamp,
};

/// When a field can change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It isn't of the record: it's the key.
    Key,
    /// It never changes under one owner and generation.
    Claim,
    /// It can change under one owner and generation.
    State,
}

/// Declares [`Field`] from the list of fields: the default name, and the part of the record.
macro_rules! fields {
    ($($(#[$doc:meta])* $field:ident = $name:literal, $part:ident;)+) => {
        /// A field of a record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $($(#[$doc])* $field,)+
        }

        impl Field {
            /// The key and all fields of a record.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$field),+];

            /// The name, unless a table has its own.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$field => $name,)+
                }
            }

            const fn part(self) -> Part {
                match self {
                    $(Self::$field => Part::$part,)+
                }
            }
        }
    };
}

fields! {
    /// The stored key.
    Id = "id", Key;
    /// The version of the record's format.
    Version = "version", Claim;
    /// The status.
    Status = "status", State;
    /// The owner.
    Owner = "owner", Claim;
    /// The generation.
    Generation = "generation", Claim;
    /// How many claims the operation has had.
    Attempt = "attempt", Claim;
    /// The fingerprint of the payload.
    Fingerprint = "fingerprint", Claim;
    /// When the claim was made.
    ClaimedAt = "claimed_at", Claim;
    /// When the lease ends.
    LeaseUntil = "lease_until", State;
    /// When the record expires.
    ExpiresAt = "expires_at", State;
    /// What's known of earlier attempts.
    Mark = "mark", State;
    /// Whether the handler may run again.
    Execution = "execution", Claim;
    /// The invocation that made the claim.
    RequestId = "request_id", Claim;
    /// The trace of the run under the claim.
    Trace = "trace", Claim;
    /// How the kept bytes encode the response, and how many chunks hold them.
    Encoding = "encoding", State;
    /// The response's length before it was encoded.
    Length = "length", State;
    /// The response's digest.
    Sha256 = "sha256", State;
    /// The kept bytes of the response.
    Response = "response", State;
}

impl Field {
    /// All fields of a record.
    pub const RECORD: [Self; 17] = Self::of(&[Part::Claim, Part::State]);
    /// The fields that can change under one owner and generation.
    pub const STATE: [Self; 8] = Self::of(&[Part::State]);
    /// The fields that identify a record's version.
    pub const VERSION: [Self; 5] =
        [Self::Status, Self::Owner, Self::Generation, Self::ExpiresAt, Self::LeaseUntil];

    /// Returns the fields of these parts. If there aren't exactly `N`, it panics, so the constant doesn't compile.
    const fn of<const N: usize>(parts: &[Part]) -> [Self; N] {
        let (mut fields, mut found, mut at) = ([Self::Id; N], 0, 0);
        while at < Self::ALL.len() {
            let mut part = 0;
            while part < parts.len() {
                if parts[part] as u8 == Self::ALL[at].part() as u8 {
                    assert!(found < N, "a list of fields is too short: add the new field to its length");
                    fields[found] = Self::ALL[at];
                    found += 1;
                }
                part += 1;
            }
            at += 1;
        }
        assert!(found == N, "a list of fields is too long");
        fields
    }

    /// Whether a settlement can change the field although the condition of a put doesn't compare it.
    pub fn is_settled(self) -> bool {
        self.part() == Part::State && !Self::VERSION.contains(&self)
    }
}

/// A field's value. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A whole number.
    Number(u64),
    /// A text.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes.into())
    }
}

const OMITTED: &str = "omitted";
const DEFLATE: &str = "deflate";
/// The execution of a claim whose handler runs at most once. For one that may run again, the field is absent.
const AT_MOST_ONCE: &str = "at-most-once";

/// Returns the value of `record` in `field`; `None` if the record doesn't have the field.
pub fn value(field: Field, record: &Record) -> Option<Value<'_>> {
    // The pattern names every field. If a field is added to `Record`, this code doesn't compile until it names the field.
    let Record {
        owner,
        generation,
        attempt,
        fingerprint,
        lock_acquired_at,
        execution,
        expires_at,
        mark,
        request_id,
        trace,
        state,
    } = record;
    Some(match field {
        Field::Id => return None,
        Field::Version => Value::Number(RECORD_VERSION.into()),
        Field::Status => state.status().as_str().into(),
        Field::Owner => owner.as_bytes()[..].into(),
        Field::Generation => Value::Number(generation.get()),
        Field::Attempt => Value::Number((*attempt).into()),
        Field::Fingerprint => Value::Bytes(fingerprint.to_bytes().to_vec().into()),
        Field::ClaimedAt => Value::Number(lock_acquired_at.as_millis()),
        Field::LeaseUntil => Value::Number(record.lease_until()?.as_millis()),
        Field::ExpiresAt => Value::Number((*expires_at)?.as_millis()),
        Field::Mark => mark.name()?.into(),
        Field::Execution => (*execution == Execution::AtMostOnce).then_some(AT_MOST_ONCE)?.into(),
        Field::RequestId => Value::from(&**request_id.as_ref()?),
        Field::Trace => Value::from(trace.as_ref()?.as_str()),
        Field::Encoding | Field::Length | Field::Sha256 | Field::Response => {
            let (State::Completed(outcome) | State::Failed(outcome)) = state else { return None };
            of_outcome(field, outcome)?
        }
    })
}

/// A response that isn't encoded has no encoding, and no length besides that of the kept bytes.
fn of_outcome(field: Field, outcome: &Outcome) -> Option<Value<'_>> {
    let Outcome::Retained(response) = outcome else {
        return (field == Field::Encoding).then_some(OMITTED.into());
    };
    let kept = match &response.place {
        Place::Inline(kept) => Some(kept),
        Place::Chunks(_) => None,
    };
    match field {
        Field::Encoding => encoding(response).map(|text| Value::Text(text.into())),
        Field::Length => {
            let is_known = kept.is_some_and(|kept| kept.len() as u64 == response.length);
            (!is_known).then_some(Value::Number(response.length))
        }
        Field::Sha256 => Some(response.sha256[..].into()),
        _ => kept.map(|kept| kept[..].into()),
    }
}

/// Returns the claim's fields that identify `held`.
pub fn claim(held: &Lock) -> [(Field, Value<'_>); 3] {
    [
        (Field::Status, Status::Started.as_str().into()),
        (Field::Owner, held.owner.as_bytes()[..].into()),
        (Field::Generation, Value::Number(held.generation.get())),
    ]
}

/// A stored record's fields, in a store's own types. Each method returns `None` if the record doesn't have the field,
/// and an error says how the value's type is wrong.
pub trait Fields {
    /// Whether the field is there, whatever its type.
    fn has(&self, field: Field) -> bool;

    /// Reads a number. A time is in milliseconds.
    fn number(&self, field: Field) -> Result<Option<u64>, &'static str>;

    /// Reads a text.
    fn text(&self, field: Field) -> Result<Option<&str>, &'static str>;

    /// Reads bytes.
    fn bytes(&self, field: Field) -> Result<Option<&[u8]>, &'static str>;

    /// Takes the kept bytes of the response. Called at most once.
    fn take_response(&mut self) -> Result<Option<Bytes>, &'static str>;
}

/// Explains why something isn't a record. It names the field, and never shows its value, except for the version's
/// number.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The field.
    pub field: Field,
    /// What's wrong with it.
    pub why: Cow<'static, str>,
}

impl Unreadable {
    fn new(field: Field, why: impl Into<Cow<'static, str>>) -> Self {
        Self { field, why: why.into() }
    }
}

/// Says that a number isn't what the field may hold.
pub const NOT_IN_RANGE: &str = "isn't a whole number in its range";
const OTHER_FORM: &str = "isn't in the form that this library writes";
const OTHER_STATUS: &str = "doesn't belong to the record's status or encoding";
const IS_MISSING: &str = "is missing";
const NEEDS_UPDATE: &str =
    "has a value that this release of lambda-idempotency doesn't know; update the library";

/// Decodes a record.
pub fn decode(fields: &mut impl Fields) -> Result<Record, Unreadable> {
    // Check the version first: it determines how to read the rest.
    let version = number(fields, Field::Version)?;
    if version != u64::from(RECORD_VERSION) {
        return Err(Unreadable::new(Field::Version, other_version(version)));
    }
    let record = Record {
        owner: Owner::from_bytes(array(fields, Field::Owner)?),
        generation: Generation::new(number(fields, Field::Generation)?),
        attempt: number(fields, Field::Attempt)?
            .try_into()
            .map_err(|_| Unreadable::new(Field::Attempt, NOT_IN_RANGE))?,
        fingerprint: Fingerprint::from_bytes(bytes(fields, Field::Fingerprint)?)
            .ok_or_else(|| Unreadable::new(Field::Fingerprint, OTHER_FORM))?,
        lock_acquired_at: time(fields, Field::ClaimedAt)?,
        execution: match optional_text(fields, Field::Execution)? {
            None => Execution::AtLeastOnce,
            Some(AT_MOST_ONCE) => Execution::AtMostOnce,
            Some(_) => return Err(Unreadable::new(Field::Execution, NEEDS_UPDATE)),
        },
        expires_at: optional(Field::ExpiresAt, fields.number(Field::ExpiresAt))?.map(Timestamp::from_millis),
        mark: mark(fields)?,
        request_id: optional_text(fields, Field::RequestId)?.map(Into::into),
        trace: optional_text(fields, Field::Trace)?.map(|trace| Arc::new(trace.to_owned())),
        state: state(fields)?,
    };
    if !record.mark.fits(record.status()) {
        return Err(Unreadable::new(Field::Mark, OTHER_STATUS));
    }
    if record.expires_at.is_none() && !record.is_at_most_once_claim() {
        return Err(Unreadable::new(Field::ExpiresAt, IS_MISSING));
    }
    // A field that the record doesn't have belongs to another status or encoding, and the library can't know which of
    // the two is right.
    match Field::STATE.into_iter().find(|field| value(*field, &record).is_none() && fields.has(*field)) {
        Some(field) => Err(Unreadable::new(field, OTHER_STATUS)),
        None => Ok(record),
    }
}

/// A later release may write other marks. This one refuses a record with a mark that it doesn't know, since it can't tell
/// what may still run.
fn mark(fields: &impl Fields) -> Result<Mark, Unreadable> {
    let stored = optional_text(fields, Field::Mark)?;
    let known = Mark::ALL.into_iter().find(|mark| mark.name() == stored);
    known.ok_or_else(|| Unreadable::new(Field::Mark, NEEDS_UPDATE))
}

fn other_version(version: u64) -> String {
    let next = if version < u64::from(RECORD_VERSION) {
        "use the release of lambda-idempotency that wrote the record until the record has expired, or delete the record \
         if its operation may run again"
    } else {
        "update lambda-idempotency to the release that wrote the record"
    };
    format!("is {version}, but this library reads only version {RECORD_VERSION}; {next}")
}

fn state(fields: &mut impl Fields) -> Result<State, Unreadable> {
    let status = text(fields, Field::Status)?;
    let status = Status::from_stored(status).ok_or_else(|| Unreadable::new(Field::Status, OTHER_FORM))?;
    Ok(match status {
        Status::Started => State::Started { lease_until: time(fields, Field::LeaseUntil)? },
        Status::Completed => State::Completed(outcome(fields)?),
        Status::Failed => State::Failed(outcome(fields)?),
        Status::Released => State::Released,
    })
}

fn outcome(fields: &mut impl Fields) -> Result<Outcome, Unreadable> {
    let encoding = match optional_text(fields, Field::Encoding)? {
        Some(OMITTED) => return Ok(Outcome::Omitted),
        None => Encoding::default(),
        Some(text) => Encoding::parse(text).ok_or_else(|| Unreadable::new(Field::Encoding, OTHER_FORM))?,
    };
    let sha256 = array(fields, Field::Sha256)?;
    let length = optional(Field::Length, fields.number(Field::Length))?;
    let (place, length) = match encoding.chunks {
        Some(count) => (Place::Chunks(count), required(Field::Length, Ok(length))?),
        None => {
            let kept = required(Field::Response, fields.take_response())?;
            let length = length.unwrap_or(kept.len() as u64);
            (Place::Inline(kept), length)
        }
    };
    let Encoding { deflated, labels, .. } = encoding;
    Ok(Outcome::Retained(StoredResponse { deflated, length, sha256, labels, place }))
}

fn optional<T>(field: Field, read: Result<Option<T>, &'static str>) -> Result<Option<T>, Unreadable> {
    read.map_err(|why| Unreadable::new(field, why))
}

fn required<T>(field: Field, read: Result<Option<T>, &'static str>) -> Result<T, Unreadable> {
    optional(field, read)?.ok_or_else(|| Unreadable::new(field, IS_MISSING))
}

fn number(fields: &impl Fields, field: Field) -> Result<u64, Unreadable> {
    required(field, fields.number(field))
}

fn time(fields: &impl Fields, field: Field) -> Result<Timestamp, Unreadable> {
    number(fields, field).map(Timestamp::from_millis)
}

fn text(fields: &impl Fields, field: Field) -> Result<&str, Unreadable> {
    required(field, fields.text(field))
}

fn optional_text(fields: &impl Fields, field: Field) -> Result<Option<&str>, Unreadable> {
    optional(field, fields.text(field))
}

fn bytes(fields: &impl Fields, field: Field) -> Result<&[u8], Unreadable> {
    required(field, fields.bytes(field))
}

fn array<const N: usize>(fields: &impl Fields, field: Field) -> Result<[u8; N], Unreadable> {
    bytes(fields, field)?.try_into().map_err(|_| Unreadable::new(field, OTHER_FORM))
}

/// How a response is kept: the text `identity` or `deflate`, then `/` and the number of its chunks, then `;` and its
/// labels. A release that doesn't know a part of the text refuses the record, because it couldn't interpret the
/// response's bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Encoding {
    deflated: bool,
    chunks: Option<u32>,
    labels: Option<Arc<String>>,
}

const IDENTITY: &str = "identity";

/// Returns the text of the response's encoding; `None` if it has none.
fn encoding(response: &StoredResponse) -> Option<String> {
    let mut text = if response.deflated { DEFLATE } else { IDENTITY }.to_owned();
    if let Place::Chunks(count) = response.place {
        text.push('/');
        text.push_str(&count.to_string());
    }
    if let Some(labels) = &response.labels {
        text.push(';');
        text.push_str(labels);
    }
    (text != IDENTITY).then_some(text)
}

impl Encoding {
    /// Parses a text that [`encoding`] wrote. Returns `None` for any other text.
    fn parse(text: &str) -> Option<Self> {
        let (text, labels) = match text.split_once(';') {
            Some((text, labels)) => (text, Some(labels)),
            None => (text, None),
        };
        let (how, chunks) = match text.split_once('/') {
            Some((how, count)) => (how, Some(parse_count(count)?)),
            None => (text, None),
        };
        let deflated = match how {
            IDENTITY => false,
            DEFLATE => true,
            _ => return None,
        };
        if let Some(labels) = labels {
            Labels::parse(labels)?;
        }
        Some(Self { deflated, chunks, labels: labels.map(|labels| Arc::new(labels.into())) })
    }
}

/// Parses a number as this library writes it. A plain `parse` would also accept a sign and leading zeros.
fn parse_count(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|count: &u32| count.to_string() == digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(deflated: bool, place: Place, labels: Option<&str>) -> StoredResponse {
        let labels = labels.map(|labels| Arc::new(labels.into()));
        StoredResponse { deflated, length: 1, sha256: [0; 32], labels, place }
    }

    #[test]
    fn response_encodings_round_trip() {
        let inline = || Place::Inline(Bytes::new());
        for (text, response) in [
            (None, kept(false, inline(), None)),
            (Some("deflate"), kept(true, inline(), None)),
            (Some("identity/1"), kept(false, Place::Chunks(1), None)),
            (Some("deflate/4294967295"), kept(true, Place::Chunks(u32::MAX), None)),
            (Some("identity;key=k"), kept(false, inline(), Some("key=k"))),
            (Some("deflate/3;format=cbor"), kept(true, Place::Chunks(3), Some("format=cbor"))),
            (
                Some("deflate/3;format=cbor;key=a;key=b"),
                kept(true, Place::Chunks(3), Some("format=cbor;key=a;key=b")),
            ),
        ] {
            assert_eq!(encoding(&response).as_deref(), text);
            let StoredResponse { deflated, labels, place, .. } = response;
            let chunks = match place {
                Place::Chunks(count) => Some(count),
                Place::Inline(_) => None,
            };
            let parsed = text.map_or(Some(Encoding::default()), Encoding::parse);
            assert_eq!(parsed, Some(Encoding { deflated, chunks, labels }), "{text:?}");
        }
    }

    #[test]
    fn unknown_response_encodings_are_refused() {
        for text in [
            "",
            "gzip",
            "identity/",
            "identity/-1",
            "identity/+1",
            "identity/01",
            "deflate/4294967296",
            "/1",
            "identity;",
            "identity;format=",
            "identity;format=CBOR",
            "identity;key=",
            "identity;key=a b",
            "omitted;key=k",
            "identity;format=a;format=b",
            "identity;codec=x",
        ] {
            assert_eq!(Encoding::parse(text), None, "{text}");
        }
        assert_eq!(Encoding::parse(&format!("identity;key={}", "k".repeat(513))), None);
    }

    #[test]
    fn lists_of_fields_are_complete() {
        assert_eq!(Field::ALL.len(), Field::RECORD.len() + 1);
        assert!(!Field::RECORD.contains(&Field::Id));
        for field in Field::VERSION {
            assert!(Field::RECORD.contains(&field));
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        assert_eq!(
            other_version(2),
            "is 2, but this library reads only version 3; use the release of lambda-idempotency that wrote the record \
             until the record has expired, or delete the record if its operation may run again"
        );
        assert!(
            other_version(4).ends_with("; update lambda-idempotency to the release that wrote the record")
        );
    }
}
