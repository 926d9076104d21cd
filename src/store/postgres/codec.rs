//! Converts rows to records and back. Everything from the table is checked. An error names the column that
//! can't be decoded, and never shows its value. The codec never replaces an invalid value with a default.

use std::borrow::Cow;

use bytes::Bytes;
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use super::values::{Number, Value};
use crate::{
    fingerprint::Fingerprint,
    outcome::{Outcome, Place, StoredResponse},
    record::{Generation, Owner, RECORD_VERSION, Record, State, Status},
    store::codec::{Form, lacks_expiry},
    time::Timestamp,
};

/// The part of a record that a column belongs to.
#[derive(Clone, Copy)]
enum Part {
    /// It never changes under one owner and generation.
    Claim,
    /// It can change under one owner and generation.
    State,
    Outcome,
    /// Reserved: the library ignores it, and no statement reads it.
    Trace,
    /// Reserved: if such a column is set, only a newer version of the library can read the response.
    LaterResponse,
}

/// Declares [`Column`] from the list of columns: name, type, and the part of the record.
macro_rules! columns {
    ($($column:ident = $name:literal, $type:ident, $part:ident;)+) => {
        /// A column of the table, except the key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Column {
            $($column,)+
        }

        impl Column {
            const ALL: [Self; [$($name),+].len()] = [$(Self::$column),+];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$column => $name,)+
                }
            }

            pub(super) const fn type_(self) -> Type {
                match self {
                    $(Self::$column => Type::$type,)+
                }
            }

            const fn part(self) -> Part {
                match self {
                    $(Self::$column => Part::$part,)+
                }
            }
        }
    };
}

columns! {
    Version = "version", INT8, Claim;
    Status = "status", TEXT, State;
    Owner = "owner", BYTEA, Claim;
    Generation = "generation", NUMERIC, Claim;
    Attempt = "attempt", INT8, Claim;
    Fingerprint = "fingerprint", TEXT, Claim;
    LockAcquiredAt = "lock_acquired_at", NUMERIC, Claim;
    LeaseUntil = "lease_until", NUMERIC, State;
    ExpiresAt = "expires_at", NUMERIC, State;
    Interrupted = "interrupted", BOOL, State;
    RequestId = "request_id", BYTEA, Claim;
    ResponseEncoding = "response_encoding", TEXT, Outcome;
    ResponseLength = "response_length", NUMERIC, Outcome;
    ResponseSha256 = "response_sha256", BYTEA, Outcome;
    Response = "response", BYTEA, Outcome;
    TraceId = "trace_id", TEXT, Trace;
    ResponseCodec = "response_codec", TEXT, LaterResponse;
    ResponseKeyId = "response_key_id", TEXT, LaterResponse;
}

impl Column {
    /// All columns of a record, except the key and the reserved columns.
    pub(super) const RECORD: [Self; 15] = Self::of(&[Part::Claim, Part::State, Part::Outcome]);
    /// The columns that can change under one owner and generation.
    pub(super) const STATE: [Self; 8] = Self::of(&[Part::State, Part::Outcome]);
    /// The response's four columns. They're NULL unless the record has an outcome.
    const OUTCOME: [Self; 4] = Self::of(&[Part::Outcome]);
    /// Columns for a later version. A statement that replaces a row clears them.
    pub(super) const RESERVED: [Self; 3] = Self::of(&[Part::Trace, Part::LaterResponse]);
    /// Columns for a later version's response format. This version leaves them empty.
    pub(super) const LATER_RESPONSE: [Self; 2] = Self::of(&[Part::LaterResponse]);

    /// Returns the columns of these parts. If there aren't exactly `N`, it panics, so the constant doesn't compile.
    const fn of<const N: usize>(parts: &[Part]) -> [Self; N] {
        let mut columns = [Self::Version; N];
        let (mut at, mut found) = (0, 0);
        while at < Self::ALL.len() {
            if Self::ALL[at].is_in(parts) {
                columns[found] = Self::ALL[at];
                found += 1;
            }
            at += 1;
        }
        assert!(found == N, "a list of columns has the wrong length");
        columns
    }

    const fn is_in(self, parts: &[Part]) -> bool {
        let mut at = 0;
        while at < parts.len() {
            if parts[at] as u8 == self.part() as u8 {
                return true;
            }
            at += 1;
        }
        false
    }
}

/// The texts made from a record's fields. The [`Value`]s of its columns borrow them.
#[derive(Debug)]
pub(super) struct Texts {
    fingerprint: String,
    encoding: Option<String>,
}

impl Texts {
    pub(super) fn of(record: &Record) -> Self {
        let encoding = outcome_of(record).map(encoding);
        Self { fingerprint: record.fingerprint.to_string(), encoding }
    }
}

pub(super) const fn outcome_of(record: &Record) -> Option<&Outcome> {
    match &record.state {
        State::Completed(outcome) | State::Failed(outcome) => Some(outcome),
        State::Started { .. } | State::Released => None,
    }
}

/// Returns the value of `record` in `column`.
pub(super) fn value<'a>(column: Column, record: &'a Record, texts: &'a Texts) -> Value<'a> {
    // The pattern names every field. If a field is added to `Record`, this code doesn't compile until it names the
    // field. `texts` has the fingerprint.
    let Record {
        owner: by,
        generation: of,
        attempt,
        fingerprint: _,
        lock_acquired_at,
        expires_at,
        interrupted,
        request_id,
        state: _,
    } = record;
    match column {
        Column::Version => Value::Integer(i64::from(RECORD_VERSION)),
        Column::Status => Value::Text(record.status().as_str()),
        Column::Owner => owner(by),
        Column::Generation => generation(*of),
        Column::Attempt => Value::Integer(i64::from(*attempt)),
        Column::Fingerprint => Value::Text(&texts.fingerprint),
        Column::LockAcquiredAt => time(*lock_acquired_at),
        Column::LeaseUntil => optional_time(record.lease_until()),
        Column::ExpiresAt => optional_time(*expires_at),
        Column::Interrupted => Value::Flag(*interrupted),
        // Stored as bytes, because text can't hold the NUL character.
        Column::RequestId => request_id.as_ref().map_or(Value::Null, |id| Value::Bytes(id.as_bytes())),
        Column::ResponseEncoding
        | Column::ResponseLength
        | Column::ResponseSha256
        | Column::Response
        | Column::TraceId
        | Column::ResponseCodec
        | Column::ResponseKeyId => of_response(column, outcome_of(record), texts.encoding.as_deref()),
    }
}

pub(super) const fn owner(owner: &Owner) -> Value<'_> {
    Value::Bytes(owner.as_bytes())
}

pub(super) const fn generation(generation: Generation) -> Value<'static> {
    Value::Number(generation.get())
}

pub(super) const fn time(time: Timestamp) -> Value<'static> {
    Value::Number(time.as_millis())
}

pub(super) fn optional_time(time_or_none: Option<Timestamp>) -> Value<'static> {
    time_or_none.map_or(Value::Null, time)
}

fn encoding(outcome: &Outcome) -> String {
    Form::of(outcome).text()
}

fn of_response<'a>(column: Column, outcome: Option<&'a Outcome>, encoding: Option<&'a str>) -> Value<'a> {
    let response = match outcome {
        Some(Outcome::Retained(response)) => Some(response),
        Some(Outcome::Omitted) | None => None,
    };
    match (column, response) {
        (Column::ResponseEncoding, _) => encoding.map_or(Value::Null, Value::Text),
        (Column::ResponseLength, Some(response)) => Value::Number(response.length),
        (Column::ResponseSha256, Some(response)) => Value::Bytes(&response.sha256),
        (Column::Response, Some(StoredResponse { place: Place::Inline(kept), .. })) => Value::Bytes(kept),
        _ => Value::Null,
    }
}

/// Explains why a row isn't a record. It names the column, and never shows its value, except for the version's
/// number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) column: &'static str,
    pub(super) why: Cow<'static, str>,
}

impl Unreadable {
    fn new(column: Column, why: impl Into<Cow<'static, str>>) -> Self {
        Self { column: column.name(), why: why.into() }
    }
}

const NOT_OUR_FORM: &str = "isn't in the form that this library writes";
const IS_MISSING: &str = "is missing";
const OF_ANOTHER_STATUS: &str = "doesn't belong to the record's status";

/// Decodes the record in `row`. The row needs every [`Column`] except `trace_id`.
pub(super) fn decode(row: &Row) -> Result<Record, Unreadable> {
    let fields = Fields(row);
    // Check the version first: it determines how to read the rest.
    let version = fields.integer(Column::Version)?;
    if version != i64::from(RECORD_VERSION) {
        let why = format!("is {version}, but this library reads only version {RECORD_VERSION}");
        return Err(Unreadable::new(Column::Version, why));
    }
    if let Some(column) = Column::LATER_RESPONSE.into_iter().find(|column| !fields.is_null(*column)) {
        let why = "is set, so a newer version of this library wrote the response; update the library";
        return Err(Unreadable::new(column, why));
    }
    let record = Record {
        owner: Owner::from_bytes(fields.array(Column::Owner)?),
        generation: Generation::new(fields.number(Column::Generation)?),
        attempt: u32::try_from(fields.integer(Column::Attempt)?)
            .map_err(|_| Unreadable::new(Column::Attempt, "isn't a whole number in its range"))?,
        fingerprint: fields.parsed(Column::Fingerprint, Fingerprint::from_stored)?,
        lock_acquired_at: fields.time(Column::LockAcquiredAt)?,
        expires_at: fields.optional::<Number>(Column::ExpiresAt)?.map(|at| Timestamp::from_millis(at.0)),
        interrupted: fields.required(Column::Interrupted)?,
        request_id: match fields.optional::<&[u8]>(Column::RequestId)? {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes);
                Some(text.map_err(|_| Unreadable::new(Column::RequestId, "isn't UTF-8"))?.into())
            }
            None => None,
        },
        state: state(&fields)?,
    };
    if lacks_expiry(&record) {
        return Err(Unreadable::new(Column::ExpiresAt, IS_MISSING));
    }
    Ok(record)
}

fn state(fields: &Fields<'_>) -> Result<State, Unreadable> {
    let status = fields.parsed(Column::Status, Status::from_stored)?;
    let (state, foreign) = match status {
        Status::Started => {
            (State::Started { lease_until: fields.time(Column::LeaseUntil)? }, &Column::OUTCOME[..])
        }
        Status::Released => (State::Released, &Column::OUTCOME[..]),
        Status::Completed => (State::Completed(outcome(fields)?), &[][..]),
        Status::Failed => (State::Failed(outcome(fields)?), &[][..]),
    };
    // A value that belongs to another status contradicts the record's status, and the library can't know which of the
    // two is right.
    if status != Status::Started && !fields.is_null(Column::LeaseUntil) {
        return Err(Unreadable::new(Column::LeaseUntil, OF_ANOTHER_STATUS));
    }
    match foreign.iter().find(|column| !fields.is_null(**column)) {
        Some(column) => Err(Unreadable::new(*column, OF_ANOTHER_STATUS)),
        None => Ok(state),
    }
}

fn outcome(fields: &Fields<'_>) -> Result<Outcome, Unreadable> {
    let form = fields.parsed(Column::ResponseEncoding, Form::parse)?;
    let refuse = |columns: &[Column], why| match columns.iter().find(|column| !fields.is_null(**column)) {
        Some(column) => Err(Unreadable::new(*column, why)),
        None => Ok(()),
    };
    match &form {
        Form::Omitted => refuse(&Column::OUTCOME[1..], "is set, but `response_encoding` is `omitted`")?,
        Form::Kept { chunks: Some(_), .. } => {
            refuse(&[Column::Response], "is set, but `response_encoding` says that it's in chunks")?;
        }
        Form::Kept { chunks: None, .. } => {}
    }
    let measures = |fields: &mut &Fields<'_>| {
        Ok((fields.number(Column::ResponseLength)?, fields.array(Column::ResponseSha256)?))
    };
    let kept = |fields: &mut &Fields<'_>| Ok(Bytes::copy_from_slice(fields.required(Column::Response)?));
    form.outcome(&mut &*fields, measures, kept)
}

/// A row's columns.
struct Fields<'a>(&'a Row);

impl<'a> Fields<'a> {
    fn optional<T: FromSql<'a>>(&self, column: Column) -> Result<Option<T>, Unreadable> {
        self.0
            .try_get(column.name())
            .map_err(|_| Unreadable::new(column, "has the wrong type or is out of range"))
    }

    fn required<T: FromSql<'a>>(&self, column: Column) -> Result<T, Unreadable> {
        self.optional(column)?.ok_or_else(|| Unreadable::new(column, IS_MISSING))
    }

    /// Whether the column is NULL, whatever its type.
    fn is_null(&self, column: Column) -> bool {
        matches!(self.0.try_get(column.name()), Ok(None::<Anything>))
    }

    fn number(&self, column: Column) -> Result<u64, Unreadable> {
        self.required::<Number>(column).map(|number| number.0)
    }

    fn time(&self, column: Column) -> Result<Timestamp, Unreadable> {
        self.number(column).map(Timestamp::from_millis)
    }

    fn integer(&self, column: Column) -> Result<i64, Unreadable> {
        self.required(column)
    }

    fn array<const N: usize>(&self, column: Column) -> Result<[u8; N], Unreadable> {
        let bytes: &[u8] = self.required(column)?;
        bytes.try_into().map_err(|_| Unreadable::new(column, "has the wrong length"))
    }

    fn parsed<T>(&self, column: Column, parse: fn(&str) -> Option<T>) -> Result<T, Unreadable> {
        parse(self.required(column)?).ok_or_else(|| Unreadable::new(column, NOT_OUR_FORM))
    }
}

/// A non-null value of any type.
struct Anything;

impl<'a> FromSql<'a> for Anything {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
