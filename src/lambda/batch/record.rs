//! Reads the records of an event, and defines [`Record`], the trait that each source's record implements.

use std::borrow::Cow;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::answer::Identifier;
use crate::{
    error::{Error, ErrorKind, place},
    fingerprint::Fingerprint,
    lambda::{event::own_type, source::Text},
};

/// How a batch reads the records of one source. `AsRef<[u8]>` is the record's content, from which keys and compared
/// fields are taken.
pub trait Record: AsRef<[u8]> + Sized + Send + 'static {
    /// The source's name in its records, such as `aws:sqs`.
    const SOURCE: &'static str;
    /// The source's name in the scope and the fingerprint.
    const VIA: &'static str;
    /// Whether Lambda reads the response as a checkpoint, and redelivers all records from the first failure on.
    const IS_STREAM: bool;
    /// Whether the event names its source for all its records, and Lambda reads each of the source's partitions in
    /// order.
    const IS_PARTITIONED: bool = false;

    /// Splits an event into its records.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the event isn't a batch of this source.
    fn split(event: &RawValue) -> Result<Split<'_>, Error> {
        records(event, Self::SOURCE)
    }

    /// Reads the record in one pass.
    fn read(raw: &RawValue, way: Way) -> Reading<'_, Self>;

    /// The queue's ARN and the message's receipt handle, for a request that extends the visibility timeout. `None` if
    /// the source isn't a queue.
    fn receipt(&self) -> Option<(String, String)> {
        None
    }

    /// The `traceparent` or X-Ray header that the producer sent with the record.
    fn trace(&self) -> Option<String> {
        None
    }

    /// Says why the record's content can't be read as JSON, if the record shows that.
    fn unreadable(&self) -> Option<&'static str> {
        None
    }

    /// The form in which the response lists a record's identifier.
    fn listed(identifier: &str) -> Identifier<'_> {
        Identifier::Text(identifier)
    }

    /// Identifies the content that must be the same when the key is used again.
    fn fingerprint(&self) -> Fingerprint;
}

/// An event, split into its records.
#[derive(Debug)]
pub struct Split<'e> {
    pub records: Vec<&'e RawValue>,
    /// Whether a pipe delivered the records.
    pub by_pipe: bool,
    /// The name of the records' source, if the event has it in place of the records.
    pub source: Option<String>,
}

/// How the records of one delivery arrived, and whether they run in order.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Whether the worker runs the records of one partition key, item or partition in order.
    pub in_order: bool,
    /// Whether a pipe of EventBridge Pipes delivered the records. It sends a JSON array, and identifies a stream's
    /// records by `eventID`.
    pub by_pipe: bool,
}

/// The parts of a record's JSON. All parts but the record are there even if the rest of the record can't be read.
#[derive(Debug)]
pub struct Reading<'r, R> {
    /// The identifier that the response lists if the record must be redelivered.
    pub identifier: Option<Cow<'r, str>>,
    /// The source's name, if the record has it.
    pub source: Option<Cow<'r, str>>,
    /// The ARN of the queue, stream or table; empty if the record has none.
    pub arn: Cow<'r, str>,
    /// The group in which the record runs in order. Records that need an order, but have no readable group, share the
    /// empty one.
    pub group: Option<Cow<'r, str>>,
    /// The record.
    pub record: Result<R, Error>,
}

/// The elements of an event that is an array, as a pipe of EventBridge Pipes delivers a batch.
pub(super) fn piped(event: &RawValue) -> Option<Split<'_>> {
    let records = serde_json::from_str(event.get()).ok().filter(|all: &Vec<_>| !all.is_empty());
    records.map(|records| Split { records, by_pipe: true, source: None })
}

/// The records of an event from the source `source`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't a batch, or belongs to a tumbling window.
fn records<'e>(event: &'e RawValue, source: &str) -> Result<Split<'e>, Error> {
    if let Some(split) = piped(event) {
        return Ok(split);
    }
    let batch: Event<'e> =
        serde_json::from_str(event.get()).map_err(|_| not_a_batch(source, "an event without a source"))?;
    let Some(records) = batch.records else {
        return Err(match batch.source.0.as_deref() {
            Some(got) if got == source => not_a_batch(
                source,
                &format!(
                    "a single record of `{source}` without its batch. Pass on the whole event, `{{\"Records\": [\u{2026}]}}`"
                ),
            ),
            got => not_a_batch(source, &shown(got)),
        });
    };
    if batch.window.is_some() || batch.state.is_some() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the event belongs to a tumbling window, but this worker for `{source}` doesn't return the window's \
                 state, so redelivered records would be missing from the window. Remove `TumblingWindowInSeconds` \
                 from the event source mapping; nothing ran"
            ),
        ));
    }
    Ok(Split { records, by_pipe: false, source: None })
}

#[derive(Deserialize)]
struct Event<'e> {
    #[serde(rename = "Records", borrow, default)]
    records: Option<Vec<&'e RawValue>>,
    /// The source in an EventBridge event, a Kafka batch or a single record, for the error message.
    #[serde(borrow, default, alias = "eventSource")]
    source: Text<'e>,
    /// Only events of tumbling windows have `window` and `state` ("Using Lambda to process records from Amazon
    /// Kinesis Data Streams", AWS Lambda developer guide).
    #[serde(borrow, default)]
    window: Option<&'e RawValue>,
    #[serde(borrow, default)]
    state: Option<&'e RawValue>,
}

impl<R: Record> Reading<'_, R> {
    /// Checks that the record is from the worker's source. A record without a source's name passes if it can be read,
    /// since no other source's records have the same parts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the record is from another source.
    pub(super) fn is_of_source(&self) -> Result<(), Error> {
        let is_own = match self.source.as_deref() {
            Some(source) => source == R::SOURCE,
            None => self.record.is_ok() && self.identifier.is_some(),
        };
        if is_own { Ok(()) } else { Err(not_a_batch(R::SOURCE, &shown(self.source.as_deref()))) }
    }
}

/// Returns how an error message shows `source`: in backquotes if it looks like a source's name. The message doesn't
/// show any other text, which may be private.
pub(super) fn shown(source: Option<&str>) -> String {
    let is_name = |name: &&str| {
        name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":.-_".contains(&byte))
    };
    match source {
        Some("aws:docdb") => {
            "`aws:docdb`. The library has no worker for DocumentDB's change streams. Make each \
                              change its own operation, and use the change's `_id` as its key"
                .into()
        }
        Some(source) if is_name(&source) => format!("`{source}`"),
        Some(_) => "an event of an unknown source".into(),
        None => "an event without a source".into(),
    }
}

pub(super) fn not_a_batch(wanted: &str, got: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("this worker handles batches of `{wanted}`, but got {got}; nothing ran"),
    )
}

/// Says where a record is malformed. It leaves out the error's text, which may quote the record.
pub(super) fn malformed(what: &str, error: &serde_json::Error) -> Error {
    invalid(what, &place(error))
}

/// Says which field of the record is missing, or isn't of the right type.
pub(super) fn lacks(what: &str, field: &str) -> Error {
    invalid(what, &format!("it has no {field}"))
}

fn invalid(what: &str, problem: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the record isn't a valid {what}: {problem}; it didn't run"))
}

/// Reads a record's content as JSON.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if `text` isn't the JSON of a `T`. The error says where parsing failed, but leaves out the
/// parser's own text, which may quote the record.
pub(super) fn json<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| {
        let wanted = own_type::<T>().unwrap_or("JSON");
        let problem = format!("{what} doesn't parse as {wanted}: {}", place(&error));
        Error::new(ErrorKind::Invalid, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lambda::batch::SqsMessage;

    const WAY: Way = Way { in_order: false, by_pipe: false };

    fn of(event: &str) -> Result<usize, String> {
        let event: &RawValue = serde_json::from_str(event).unwrap();
        let Split { records, .. } = SqsMessage::split(event).map_err(|error| error.to_string())?;
        for record in &records {
            SqsMessage::read(record, WAY).is_of_source().map_err(|error| error.to_string())?;
        }
        Ok(records.len())
    }

    #[test]
    fn errors_name_the_wrong_source() {
        assert_eq!(of(r#"{"Records": []}"#), Ok(0));
        assert_eq!(of(r#"{"Records": [{"eventSource": "aws:sqs"}, {"eventSource": "aws:sqs"}]}"#), Ok(2));
        assert_eq!(of(r#"[{"eventSource": "aws:sqs"}]"#), Ok(1));
        assert_eq!(of(r#"{"Records": [{"eventSource": null, "messageId": "m1", "body": "x"}]}"#), Ok(1));
        for (event, named) in [
            (r#"{"Records": [{"eventSource": "aws:sqs"}, {"eventSource": "aws:kinesis"}]}"#, "`aws:kinesis`"),
            (r#"{"Records": [{"EventSource": "aws:sns"}]}"#, "`aws:sns`"),
            (r#"[{"eventSource": "aws:kinesis"}]"#, "`aws:kinesis`"),
            (r#"{"Records": [{}]}"#, "without a source"),
            (r#"{"Records": ["text"]}"#, "without a source"),
            (r#"{"Records": {}}"#, "without a source"),
            (r#"{"source": "aws.scheduler", "id": "1"}"#, "`aws.scheduler`"),
            (r#"{"eventSource": "aws:kafka", "records": {}}"#, "`aws:kafka`"),
            (r#"{"eventSource": "aws:docdb", "events": []}"#, "no worker for DocumentDB's change streams"),
            (
                r#"{"eventSource": "aws:sqs", "messageId": "m1"}"#,
                "a single record of `aws:sqs` without its batch",
            ),
            (r#"{"source": "a secret of a customer's"}"#, "an event of an unknown source"),
            (
                r#"{"Records": [], "window": {}, "state": {}, "isFinalInvokeForWindow": true}"#,
                "`TumblingWindowInSeconds`",
            ),
            (
                r#"{"Records": [{"eventSource": "aws:sqs"}], "state": {"secret": 1}}"#,
                "`TumblingWindowInSeconds`",
            ),
            ("[]", "without a source"),
            ("null", "without a source"),
        ] {
            let error = of(event).unwrap_err();
            assert!(error.contains("`aws:sqs`") && error.contains(named), "{event}: {error}");
            assert!(!error.contains("secret"));
        }
    }
}
