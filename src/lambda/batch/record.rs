//! Reads the records of an event, and defines [`Record`], the trait that each source's record implements.

use std::{any::type_name, borrow::Cow};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    error::{Error, ErrorKind, place},
    fingerprint::Fingerprint,
};

/// How a batch reads the records of one source.
pub trait Record: Sized + Send + 'static {
    /// The source's name in its records, such as `aws:sqs`.
    const SOURCE: &'static str;
    /// The source's name in the scope and the fingerprint.
    const VIA: &'static str;
    /// Whether Lambda reads the response as a checkpoint, and redelivers all records from the first failure on.
    const IS_STREAM: bool;

    /// The record's identifier, even if the rest of the record can't be read.
    fn identifier_in(raw: &RawValue) -> Option<String>;

    /// The queue's ARN and the message's receipt handle, for a request that extends the visibility timeout. `None` if
    /// the source isn't a queue.
    fn receipt_in(_: &RawValue) -> Option<(String, String)> {
        None
    }

    /// Reads the record.
    fn read(raw: &RawValue) -> Result<Self, Error>;

    /// The group in which the record runs in order, even if the rest of the record can't be read. `None` if the record
    /// has no group. A stream's records have groups only if `in_order` is true.
    fn group_in(raw: &RawValue, in_order: bool) -> Option<String>;

    /// Identifies the content that must be the same when the key is used again.
    fn fingerprint(&self) -> Fingerprint;
}

/// The records of an event from the source `source`.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the event isn't a batch of this source, or belongs to a tumbling window.
pub(super) fn records<'e>(event: &'e RawValue, source: &str) -> Result<Vec<&'e RawValue>, Error> {
    let batch: Event<'e> =
        serde_json::from_str(event.get()).map_err(|_| not_a_batch(source, "an event without a source"))?;
    let Some(records) = batch.records else {
        return Err(not_a_batch(source, &shown(batch.source.as_deref())));
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
    for record in &records {
        let origin: Origin<'_> = serde_json::from_str(record.get()).unwrap_or_default();
        if origin.event_source.as_deref() != Some(source) {
            return Err(not_a_batch(source, &shown(origin.event_source.as_deref())));
        }
    }
    Ok(records)
}

#[derive(Deserialize)]
struct Event<'e> {
    #[serde(rename = "Records", borrow, default)]
    records: Option<Vec<&'e RawValue>>,
    /// The source in an EventBridge event or a Kafka batch, for the error message.
    #[serde(borrow, default, alias = "eventSource")]
    source: Option<Cow<'e, str>>,
    /// Only events of tumbling windows have `window` and `state` ("Using Lambda to process records from Amazon
    /// Kinesis Data Streams", AWS Lambda developer guide).
    #[serde(borrow, default)]
    window: Option<&'e RawValue>,
    #[serde(borrow, default)]
    state: Option<&'e RawValue>,
}

#[derive(Default, Deserialize)]
struct Origin<'e> {
    /// SNS names this field `EventSource`.
    #[serde(rename = "eventSource", alias = "EventSource", borrow, default)]
    event_source: Option<Cow<'e, str>>,
}

/// Returns how an error message shows `source`: in backquotes if it looks like a source's name. The message doesn't
/// show any other text, which may be private.
fn shown(source: Option<&str>) -> String {
    let is_name = |name: &&str| {
        name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":.-_".contains(&byte))
    };
    match source {
        Some(source) if is_name(&source) => format!("`{source}`"),
        Some(_) => "an event of an unknown source".into(),
        None => "an event without a source".into(),
    }
}

fn not_a_batch(wanted: &str, got: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("this worker handles batches of `{wanted}`, but got {got}; nothing ran"),
    )
}

/// Says where a record is malformed. It leaves out the error's text, which may quote the record.
pub(super) fn malformed(what: &str, error: &serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("the record isn't a valid {what}: {}; it didn't run", place(error)),
    )
}

/// Reads a record's content as JSON.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if `text` isn't the JSON of a `T`. The error says where parsing failed, but leaves out the
/// parser's own text, which may quote the record.
pub(super) fn json<T: DeserializeOwned>(what: &str, text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| {
        let problem = format!("{what} doesn't parse as {}: {}", type_name::<T>(), place(&error));
        Error::new(ErrorKind::Invalid, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(event: &str) -> Result<usize, String> {
        let event: &RawValue = serde_json::from_str(event).unwrap();
        records(event, "aws:sqs").map(|records| records.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn errors_name_the_wrong_source() {
        assert_eq!(of(r#"{"Records": []}"#), Ok(0));
        assert_eq!(of(r#"{"Records": [{"eventSource": "aws:sqs"}, {"eventSource": "aws:sqs"}]}"#), Ok(2));
        for (event, named) in [
            (r#"{"Records": [{"eventSource": "aws:sqs"}, {"eventSource": "aws:kinesis"}]}"#, "`aws:kinesis`"),
            (r#"{"Records": [{"EventSource": "aws:sns"}]}"#, "`aws:sns`"),
            (r#"{"Records": [{}]}"#, "without a source"),
            (r#"{"Records": ["text"]}"#, "without a source"),
            (r#"{"Records": {}}"#, "without a source"),
            (r#"{"source": "aws.scheduler", "id": "1"}"#, "`aws.scheduler`"),
            (r#"{"eventSource": "aws:kafka", "records": {}}"#, "`aws:kafka`"),
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
