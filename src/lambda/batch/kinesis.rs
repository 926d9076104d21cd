//! The records of a Kinesis data stream.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Batch,
    record::{self, Reading, Record, Way, lacks, malformed},
};
use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    internal::FingerprintExt as _,
    key::Key,
    lambda::source::{Fields, Text},
};

/// A record of a Kinesis data stream.
///
/// An aggregate of the Kinesis Producer Library counts as one record. Its data is binary, with several records of the
/// producer's in it. So a key from a field of the data, and [`json`](Self::json), are refused with an error that names
/// the aggregate. Switch the aggregation off at the producer (`AggregationEnabled`). Or use
/// [`sequence_key`](Self::sequence_key), and take the aggregate apart in the handler. Then give each part its own
/// operation, with [`run`](crate::Operation::run): the producer may send a part again in another aggregate.
#[derive(Clone)]
pub struct KinesisRecord {
    event_id: String,
    partition_key: String,
    sequence_number: String,
    data: Vec<u8>,
    raw: Box<RawValue>,
}

const WHAT: &str = "Kinesis record";

/// A mapping nests the record's own fields in `kinesis`. A pipe doesn't ("Amazon Kinesis stream as a source",
/// EventBridge user guide).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire<'r> {
    #[serde(rename = "eventID", borrow)]
    event_id: Text<'r>,
    #[serde(rename = "eventSource", alias = "EventSource", borrow)]
    source: Text<'r>,
    #[serde(rename = "eventSourceARN", borrow)]
    arn: Text<'r>,
    #[serde(borrow)]
    kinesis: Option<WireData<'r>>,
    #[serde(rename = "partitionKey", borrow)]
    partition_key: Text<'r>,
    #[serde(rename = "sequenceNumber", borrow)]
    sequence_number: Text<'r>,
    #[serde(borrow)]
    data: Text<'r>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireData<'r> {
    #[serde(borrow)]
    partition_key: Text<'r>,
    #[serde(borrow)]
    sequence_number: Text<'r>,
    #[serde(borrow)]
    data: Text<'r>,
}

impl KinesisRecord {
    /// The record's number in its shard: a string of digits.
    pub fn sequence_number(&self) -> &str {
        &self.sequence_number
    }

    /// The key of this one record: its event id, which has the shard and the sequence number. All deliveries of the
    /// record have this key. If a producer writes twice, the second record has another key.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if the record has no event id.
    pub fn sequence_key(&self) -> Result<Key, Error> {
        Key::new(&self.event_id)
    }

    /// The partition key.
    pub fn partition_key(&self) -> &str {
        &self.partition_key
    }

    /// The data, decoded.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The data, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the data isn't the JSON of a `T`, or is an aggregate of the Kinesis Producer Library.
    /// The error says where parsing failed, and never quotes the data.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        record::json("the record's data", self.data()).map_err(|error| match self.unreadable() {
            Some(why) => Error::new(ErrorKind::Invalid, why),
            None => error,
        })
    }

    /// The whole record, as Lambda delivered it.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }
}

impl Batch<KinesisRecord> {
    /// Runs the records of one partition key in order, one after the other. When a record fails, the later records of
    /// its partition key are redelivered too. Default: records run independently.
    pub fn in_order(mut self) -> Self {
        self.choices.in_order = true;
        self
    }
}

impl AsRef<[u8]> for KinesisRecord {
    /// The data, for [`Key::from_json`].
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

impl fmt::Debug for KinesisRecord {
    /// Shows the sequence number, never the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KinesisRecord({}, <{} bytes>)", self.sequence_number, self.data.len())
    }
}

impl Record for KinesisRecord {
    const SOURCE: &'static str = "aws:kinesis";
    const VIA: &'static str = "kinesis";
    const IS_STREAM: bool = true;

    fn read(raw: &RawValue, way: Way) -> Reading<'_, Self> {
        let read = serde_json::from_str::<Wire<'_>>(raw.get());
        let problem = read.as_ref().err().map(|error| malformed(WHAT, error));
        let mut wire = read.unwrap_or_else(|_| Wire::identified_in(raw));
        let data = wire.kinesis.take().unwrap_or(WireData {
            partition_key: std::mem::take(&mut wire.partition_key),
            sequence_number: std::mem::take(&mut wire.sequence_number),
            data: std::mem::take(&mut wire.data),
        });
        let identifier = if way.by_pipe { &wire.event_id } else { &data.sequence_number }.0.clone();
        let group = way.in_order.then(|| data.partition_key.0.clone().unwrap_or_default());
        let record = problem.map_or_else(|| Self::of(wire.event_id, data, raw), Err);
        Reading { identifier, source: wire.source.0, arn: wire.arn.0.unwrap_or_default(), group, record }
    }

    /// An aggregate begins with these four bytes, and ends with an MD5 of 16 bytes ("KPL Aggregated Record Format" of
    /// the Kinesis Producer Library).
    fn unreadable(&self) -> Option<&'static str> {
        let is_aggregate = self.data.len() > 20 && self.data.starts_with(&[0xf3, 0x89, 0x9a, 0xc2]);
        is_aggregate.then_some(
            "the record is an aggregate of the Kinesis Producer Library, whose data isn't JSON. Switch off \
             `AggregationEnabled` at the producer, or use `KinesisRecord::sequence_key` as the key and take the \
             aggregate apart in the handler",
        )
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::builder(Self::VIA).json_or_bytes("payload", self.data()).finish()
    }
}

impl KinesisRecord {
    fn of(event_id: Text<'_>, wire: WireData<'_>, raw: &RawValue) -> Result<Self, Error> {
        let Some(data) = wire.data.0 else { return Err(lacks(WHAT, "text in `data`")) };
        let data = BASE64_STANDARD.decode(data.as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the Kinesis record's data isn't Base64; the record didn't run")
        })?;
        Ok(Self {
            event_id: event_id.into_string(),
            partition_key: wire.partition_key.into_string(),
            sequence_number: wire.sequence_number.into_string(),
            data,
            raw: raw.to_owned(),
        })
    }
}

impl<'r> Wire<'r> {
    /// The fields that identify an unreadable record.
    fn identified_in(raw: &'r RawValue) -> Self {
        let fields = Fields::of(raw);
        let nested = fields.get("kinesis").map(Fields::of);
        let of_data = |name: &str| Text(nested.as_ref().unwrap_or(&fields).text(name));
        let data = WireData {
            partition_key: of_data("partitionKey"),
            sequence_number: of_data("sequenceNumber"),
            data: Text::default(),
        };
        Self {
            event_id: Text(fields.text("eventID")),
            source: Text(fields.text("eventSource")),
            arn: Text(fields.text("eventSourceARN")),
            kinesis: Some(data),
            ..Self::default()
        }
    }
}
