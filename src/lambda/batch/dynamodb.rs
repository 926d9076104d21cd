//! The changes of a DynamoDB stream.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Batch,
    record::{Reading, Record, Way, lacks, malformed},
};
use crate::{
    error::Error,
    fingerprint::Fingerprint,
    internal::FingerprintExt as _,
    key::Key,
    lambda::source::{Fields, Text},
};

const WHAT: &str = "change of a DynamoDB stream";

/// A change to an item, from a DynamoDB stream.
#[derive(Clone)]
pub struct DynamoDbRecord {
    event_id: String,
    event_name: String,
    sequence_number: String,
    change: Box<RawValue>,
    raw: Box<RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire<'r> {
    #[serde(rename = "eventID", borrow)]
    event_id: Text<'r>,
    #[serde(rename = "eventName", borrow)]
    event_name: Text<'r>,
    #[serde(rename = "eventSource", alias = "EventSource", borrow)]
    source: Text<'r>,
    #[serde(rename = "eventSourceARN", borrow)]
    arn: Text<'r>,
    #[serde(borrow)]
    dynamodb: Option<&'r RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Change<'r> {
    #[serde(borrow)]
    sequence_number: Text<'r>,
    #[serde(borrow)]
    keys: Option<&'r RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Images<'r> {
    #[serde(borrow)]
    keys: Option<&'r RawValue>,
    #[serde(borrow)]
    new_image: Option<&'r RawValue>,
    #[serde(borrow)]
    old_image: Option<&'r RawValue>,
}

impl DynamoDbRecord {
    /// The change's number in its shard: a string of digits.
    pub fn sequence_number(&self) -> &str {
        &self.sequence_number
    }

    /// `INSERT`, `MODIFY` or `REMOVE`.
    pub fn event_name(&self) -> &str {
        &self.event_name
    }

    /// The key of this one change, from its event's id. All deliveries of the change have this key. Two writes of one
    /// item are two changes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) if the record has no event id.
    pub fn event_key(&self) -> Result<Key, Error> {
        Key::new(&self.event_id)
    }

    /// The change: `Keys`, `NewImage`, `OldImage`, `SequenceNumber`, as DynamoDB writes them.
    ///
    /// Each write of an item is a change with other images. So a field that an item keeps, such as an order's id, isn't
    /// a key: the item's second change would be another payload under the first one's key, and block its shard. Use a
    /// field that's new in each change, such as the id of an order's latest payment, or [`event_key`](Self::event_key).
    /// If only the item's creation counts, filter the mapping's events by `eventName` `INSERT`.
    pub fn change(&self) -> &RawValue {
        &self.change
    }

    /// The whole record as Lambda delivered it, for example to read it into a type of `aws_lambda_events`.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }
}

impl Batch<DynamoDbRecord> {
    /// Runs the changes of one item in order, one after the other. When a change fails, the later changes of its item
    /// are redelivered too. Default: changes run independently.
    pub fn in_order(mut self) -> Self {
        self.choices.in_order = true;
        self
    }
}

impl AsRef<[u8]> for DynamoDbRecord {
    /// The change, for [`Key::from_json`] with a field such as `/NewImage/payment_id/S`: see
    /// [`change`](DynamoDbRecord::change).
    fn as_ref(&self) -> &[u8] {
        self.change.get().as_bytes()
    }
}

impl fmt::Debug for DynamoDbRecord {
    /// Shows the event's name and the sequence number, never the item.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamoDbRecord({}, {})", self.event_name, self.sequence_number)
    }
}

impl Record for DynamoDbRecord {
    const SOURCE: &'static str = "aws:dynamodb";
    const VIA: &'static str = "dynamodb";
    const IS_STREAM: bool = true;

    fn read(raw: &RawValue, way: Way) -> Reading<'_, Self> {
        let read = serde_json::from_str::<Wire<'_>>(raw.get());
        let problem = read.as_ref().err().map(|error| malformed(WHAT, error));
        let wire = read.unwrap_or_else(|_| Wire::identified_in(raw));
        let read = wire.dynamodb.map(|change| serde_json::from_str::<Change<'_>>(change.get())).transpose();
        let problem = problem.or_else(|| read.as_ref().err().map(|error| malformed(WHAT, error)));
        let change = read.unwrap_or_else(|_| wire.dynamodb.map(Change::identified_in)).unwrap_or_default();
        let identifier = if way.by_pipe { &wire.event_id } else { &change.sequence_number }.0.clone();
        let group = way.in_order.then(|| change.keys.map(item).unwrap_or_default().into());
        let (source, arn) = (wire.source.0.clone(), wire.arn.0.clone().unwrap_or_default());
        let record = problem.map_or_else(|| Self::of(wire, change, raw), Err);
        Reading { identifier, source, arn, group, record }
    }

    /// Leaves out the sequence number and the time, which differ for every change.
    fn fingerprint(&self) -> Fingerprint {
        let images: Images<'_> = serde_json::from_str(self.change.get()).unwrap_or_default();
        let text = |value: Option<&'_ RawValue>| value.map_or("null", RawValue::get).to_owned();
        let builder = Fingerprint::builder(Self::VIA).part("event", &self.event_name);
        let builder =
            builder.json_or_bytes("keys", text(images.keys)).json_or_bytes("new", text(images.new_image));
        builder.json_or_bytes("old", text(images.old_image)).finish()
    }
}

/// Identifies an item by its key, as JSON: the order of the attribute names doesn't matter.
fn item(keys: &RawValue) -> String {
    Fingerprint::builder("item").json_or_bytes("keys", keys.get()).finish().to_string()
}

impl DynamoDbRecord {
    fn of(wire: Wire<'_>, change: Change<'_>, raw: &RawValue) -> Result<Self, Error> {
        let Some(whole) = wire.dynamodb else { return Err(lacks(WHAT, "`dynamodb`")) };
        Ok(Self {
            event_id: wire.event_id.into_string(),
            event_name: wire.event_name.into_string(),
            sequence_number: change.sequence_number.into_string(),
            change: whole.to_owned(),
            raw: raw.to_owned(),
        })
    }
}

impl<'r> Wire<'r> {
    /// The fields that identify an unreadable record.
    fn identified_in(raw: &'r RawValue) -> Self {
        let fields = Fields::of(raw);
        Self {
            event_id: Text(fields.text("eventID")),
            source: Text(fields.text("eventSource")),
            arn: Text(fields.text("eventSourceARN")),
            dynamodb: fields.get("dynamodb"),
            ..Self::default()
        }
    }
}

impl<'r> Change<'r> {
    /// The fields that identify an unreadable change.
    fn identified_in(raw: &'r RawValue) -> Self {
        let fields = Fields::of(raw);
        Self { sequence_number: Text(fields.text("SequenceNumber")), keys: fields.get("Keys") }
    }
}
