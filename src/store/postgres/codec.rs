//! Rows to records and back. All that comes from the table is checked: what cannot be understood is said by column,
//! never guessed, and never shown.

use bytes::Bytes;
use tokio_postgres::{Row, types::FromSql};

use super::values::{Number, Value};
use crate::{
    fingerprint::Fingerprint,
    outcome::{Encoding, Outcome, Place, StoredResponse},
    record::{Generation, Owner, RECORD_VERSION, Record, State, Status},
    store::Settlement,
    time::Timestamp,
};

/// The columns of a record but for its key, in the order in which every statement names them.
pub(super) const COLUMNS: [&str; 14] = [
    "version",
    "status",
    "owner",
    "generation",
    "attempt",
    "fingerprint",
    "lock_acquired_at",
    "lease_until",
    "expires_at",
    "request_id",
    "response_encoding",
    "response_length",
    "response_sha256",
    "response",
];

/// What `response_encoding` says of a response that was not kept.
const OMITTED: &str = "omitted";

/// The texts that a record's values borrow.
#[derive(Debug)]
pub(super) struct Texts {
    fingerprint: String,
    encoding: Option<String>,
}

impl Texts {
    pub(super) fn of(record: &Record) -> Self {
        let encoding = match &record.state {
            State::Completed(outcome) | State::Failed(outcome) => Some(encoding(outcome)),
            State::Started { .. } | State::Released => None,
        };
        Self { fingerprint: record.fingerprint.to_string(), encoding }
    }
}

/// The values of `record`'s columns.
pub(super) fn values<'a>(record: &'a Record, texts: &'a Texts) -> [Value<'a>; 14] {
    let outcome = match &record.state {
        State::Completed(outcome) | State::Failed(outcome) => Some(outcome),
        State::Started { .. } | State::Released => None,
    };
    let [encoding, length, sha256, response] = response(outcome, texts.encoding.as_deref());
    [
        version(),
        Value::Text(record.status().as_str()),
        owner(&record.owner),
        generation(record.generation),
        Value::Integer(i64::from(record.attempt)),
        Value::Text(&texts.fingerprint),
        time(record.lock_acquired_at),
        optional_time(record.lease_until()),
        time(record.expires_at),
        request_id(record.request_id.as_deref()),
        encoding,
        length,
        sha256,
        response,
    ]
}

/// `response_encoding` as a settlement writes it.
pub(super) fn settlement_encoding(settlement: &Settlement) -> Option<String> {
    match settlement {
        Settlement::Complete(outcome, _) | Settlement::Fail(outcome, _) => Some(encoding(outcome)),
        Settlement::Release => None,
    }
}

/// What a settlement writes: status, expiry (none if it stays), and the four columns of the response.
pub(super) fn settlement<'a>(settlement: &'a Settlement, encoding: Option<&'a str>) -> [Value<'a>; 6] {
    let (outcome, expires_at) = match settlement {
        Settlement::Complete(outcome, expires_at) | Settlement::Fail(outcome, expires_at) => {
            (Some(outcome), Some(*expires_at))
        }
        Settlement::Release => (None, None),
    };
    let [encoding, length, sha256, kept] = response(outcome, encoding);
    let status = Value::Text(settlement.status().as_str());
    [status, optional_time(expires_at), encoding, length, sha256, kept]
}

/// The version of the record's format.
pub(super) fn version() -> Value<'static> {
    Value::Integer(i64::from(RECORD_VERSION))
}

/// As bytes: text does not take the character NUL.
pub(super) fn request_id(request_id: Option<&str>) -> Value<'_> {
    request_id.map_or(Value::Null, |id| Value::Bytes(id.as_bytes()))
}

pub(super) fn owner(owner: &Owner) -> Value<'_> {
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
    let Outcome::Retained(response) = outcome else { return OMITTED.to_owned() };
    let how = match response.encoding {
        Encoding::Identity => "identity",
        Encoding::Deflate => "deflate",
    };
    match response.place {
        Place::Inline(_) => how.to_owned(),
        // This store keeps none apart, and makes no record of this kind by itself.
        Place::Parts(count) => format!("{how}/{count}"),
    }
}

fn response<'a>(outcome: Option<&'a Outcome>, encoding: Option<&'a str>) -> [Value<'a>; 4] {
    let encoding = encoding.map_or(Value::Null, Value::Text);
    let Some(Outcome::Retained(response)) = outcome else {
        return [encoding, Value::Null, Value::Null, Value::Null];
    };
    let kept = match &response.place {
        Place::Inline(kept) => Value::Bytes(kept),
        Place::Parts(_) => Value::Null,
    };
    [encoding, Value::Number(response.length), Value::Bytes(&response.sha256), kept]
}

/// Why a row is not a record. It names the column, and never has its value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) column: &'static str,
    pub(super) why: &'static str,
}

const NOT_OUR_FORM: &str = "is not in the form that this library writes";
const OF_ANOTHER_STATUS: &str = "does not belong to the record's status";

/// The record in `row`, whose columns begin at `offset`.
pub(super) fn decode(row: &Row, offset: usize) -> Result<Record, Unreadable> {
    let fields = Fields { row, offset };
    // The version first: nothing else can be judged before it.
    if fields.integer(0)? != i64::from(RECORD_VERSION) {
        return Err(fields.unreadable(0, "is one that this library does not know"));
    }
    Ok(Record {
        owner: Owner::from_bytes(fields.array(2)?),
        generation: Generation::new(fields.number(3)?),
        attempt: u32::try_from(fields.integer(4)?)
            .map_err(|_| fields.unreadable(4, "is not a whole number in its range"))?,
        fingerprint: fields.parsed(5, Fingerprint::from_stored)?,
        lock_acquired_at: fields.time(6)?,
        expires_at: fields.time(8)?,
        request_id: match fields.optional::<&[u8]>(9)? {
            Some(bytes) => {
                let text = std::str::from_utf8(bytes).map_err(|_| fields.unreadable(9, "is not UTF-8"))?;
                Some(text.into())
            }
            None => None,
        },
        state: state(&fields)?,
    })
}

fn state(fields: &Fields<'_>) -> Result<State, Unreadable> {
    let status = fields.parsed(1, Status::from_stored)?;
    let (state, foreign) = match status {
        Status::Started => (State::Started { lease_until: fields.time(7)? }, 10..14),
        Status::Released => (State::Released, 10..14),
        Status::Completed => (State::Completed(outcome(fields)?), 0..0),
        Status::Failed => (State::Failed(outcome(fields)?), 0..0),
    };
    // Whatever belongs to another state makes this one half-settled: what happened cannot be told.
    if status != Status::Started && !fields.is_null(7) {
        return Err(fields.unreadable(7, OF_ANOTHER_STATUS));
    }
    match { foreign }.find(|column| !fields.is_null(*column)) {
        Some(column) => Err(fields.unreadable(column, OF_ANOTHER_STATUS)),
        None => Ok(state),
    }
}

fn outcome(fields: &Fields<'_>) -> Result<Outcome, Unreadable> {
    let Kept::Somewhere(encoding, parts) = fields.parsed(10, parse_encoding)? else {
        return match (11..14).find(|column| !fields.is_null(*column)) {
            Some(column) => Err(fields.unreadable(column, "belongs to a response, and none was kept")),
            None => Ok(Outcome::Omitted),
        };
    };
    let place = match parts {
        Some(count) if fields.is_null(13) => Place::Parts(count),
        Some(_) => return Err(fields.unreadable(13, "is in the record, and said to be elsewhere")),
        None => Place::Inline(Bytes::copy_from_slice(fields.required(13)?)),
    };
    let (length, sha256) = (fields.number(11)?, fields.array(12)?);
    Ok(Outcome::Retained(StoredResponse { encoding, length, sha256, place }))
}

/// What `response_encoding` says.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    /// The response was not kept.
    Omitted,
    /// It was, in this form; in so many siblings, or in the record.
    Somewhere(Encoding, Option<u32>),
}

fn parse_encoding(text: &str) -> Option<Kept> {
    if text == OMITTED {
        return Some(Kept::Omitted);
    }
    let (how, parts) = match text.split_once('/') {
        // `parse` would take a sign too.
        Some((how, count)) if count.bytes().all(|digit| digit.is_ascii_digit()) => {
            (how, Some(count.parse().ok()?))
        }
        Some(_) => return None,
        None => (text, None),
    };
    match how {
        "identity" => Some(Kept::Somewhere(Encoding::Identity, parts)),
        "deflate" => Some(Kept::Somewhere(Encoding::Deflate, parts)),
        _ => None,
    }
}

/// A row's columns, by their place in [`COLUMNS`].
struct Fields<'a> {
    row: &'a Row,
    offset: usize,
}

impl<'a> Fields<'a> {
    fn unreadable(&self, column: usize, why: &'static str) -> Unreadable {
        Unreadable { column: COLUMNS[column], why }
    }

    fn optional<T: FromSql<'a>>(&self, column: usize) -> Result<Option<T>, Unreadable> {
        self.row.try_get(self.offset + column).map_err(|_| {
            self.unreadable(column, "is not of the type, or not in the range, that it should be")
        })
    }

    fn required<T: FromSql<'a>>(&self, column: usize) -> Result<T, Unreadable> {
        self.optional(column)?.ok_or_else(|| self.unreadable(column, "is missing"))
    }

    /// Whether there is nothing in the column, of whatever type it is.
    fn is_null(&self, column: usize) -> bool {
        matches!(self.row.try_get(self.offset + column), Ok(None::<Anything>))
    }

    fn number(&self, column: usize) -> Result<u64, Unreadable> {
        self.required::<Number>(column).map(|number| number.0)
    }

    fn time(&self, column: usize) -> Result<Timestamp, Unreadable> {
        self.number(column).map(Timestamp::from_millis)
    }

    fn integer(&self, column: usize) -> Result<i64, Unreadable> {
        self.required(column)
    }

    fn array<const N: usize>(&self, column: usize) -> Result<[u8; N], Unreadable> {
        let bytes: &[u8] = self.required(column)?;
        bytes.try_into().map_err(|_| self.unreadable(column, "has another length than it should"))
    }

    fn parsed<T>(&self, column: usize, parse: fn(&str) -> Option<T>) -> Result<T, Unreadable> {
        parse(self.required(column)?).ok_or_else(|| self.unreadable(column, NOT_OUR_FORM))
    }
}

/// A value that is there, of any type.
struct Anything;

impl<'a> FromSql<'a> for Anything {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        _: &'a [u8],
    ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_read_back_as_they_are_written() {
        let kept = |encoding, place| {
            Outcome::Retained(StoredResponse { encoding, length: 1, sha256: [0; 32], place })
        };
        for (written, outcome, parts) in [
            ("identity", kept(Encoding::Identity, Place::Inline(Bytes::new())), None),
            ("deflate", kept(Encoding::Deflate, Place::Inline(Bytes::new())), None),
            ("identity/1", kept(Encoding::Identity, Place::Parts(1)), Some(1)),
            ("deflate/16", kept(Encoding::Deflate, Place::Parts(16)), Some(16)),
        ] {
            assert_eq!(encoding(&outcome), written);
            let Outcome::Retained(response) = outcome else { panic!() };
            assert_eq!(parse_encoding(written), Some(Kept::Somewhere(response.encoding, parts)));
        }
        assert_eq!(encoding(&Outcome::Omitted), OMITTED);
        assert_eq!(parse_encoding(OMITTED), Some(Kept::Omitted));
        for unknown in ["", "gzip", "identity/", "identity/-1", "identity/+1", "deflate/4294967296", "/1"] {
            assert_eq!(parse_encoding(unknown), None, "{unknown}");
        }
    }
}
