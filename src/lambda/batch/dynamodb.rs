//! The changes of a DynamoDB stream.

use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::record::{Record, malformed};
use crate::{error::Error, fingerprint::Fingerprint, key::Key};

/// A change to an item, from a DynamoDB stream.
#[derive(Clone)]
pub struct DynamoDbRecord {
    event_id: String,
    event_name: String,
    sequence_number: String,
    change: Box<RawValue>,
    raw: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'r> {
    #[serde(rename = "eventID", default)]
    event_id: String,
    #[serde(default)]
    event_name: String,
    #[serde(borrow)]
    dynamodb: &'r RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Change<'r> {
    sequence_number: String,
    #[serde(borrow, default)]
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
    pub fn change(&self) -> &RawValue {
        &self.change
    }

    /// The whole record as Lambda delivered it, for example to read it into a type of `aws_lambda_events`.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }
}

impl AsRef<[u8]> for DynamoDbRecord {
    /// The change, for [`Key::from_json`] with a field such as `/NewImage/order_id/S`.
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

    fn identifier_in(raw: &RawValue) -> Option<String> {
        let wire: Wire<'_> = serde_json::from_str(raw.get()).ok()?;
        serde_json::from_str::<Change<'_>>(wire.dynamodb.get()).ok().map(|change| change.sequence_number)
    }

    fn read(raw: &RawValue) -> Result<Self, Error> {
        let no_change = |error| malformed("change of a DynamoDB stream", &error);
        let wire: Wire<'_> = serde_json::from_str(raw.get()).map_err(no_change)?;
        let change: Change<'_> = serde_json::from_str(wire.dynamodb.get()).map_err(no_change)?;
        Ok(Self {
            event_id: wire.event_id,
            event_name: wire.event_name,
            sequence_number: change.sequence_number,
            change: wire.dynamodb.to_owned(),
            raw: raw.to_owned(),
        })
    }

    fn group_in(raw: &RawValue, in_order: bool) -> Option<String> {
        if !in_order {
            return None;
        }
        let wire: Wire<'_> = serde_json::from_str(raw.get()).ok()?;
        let keys = serde_json::from_str::<Change<'_>>(wire.dynamodb.get()).ok()?.keys?;
        // Compares the item's key as JSON, since the order of the attribute names doesn't matter.
        Some(Fingerprint::builder("item").json_or_bytes("keys", keys.get()).finish().to_string())
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
