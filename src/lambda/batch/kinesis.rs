//! The records of a Kinesis data stream.

use std::{borrow::Cow, fmt};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::record::{self, Record, malformed};
use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    key::Key,
};

/// A record of a Kinesis data stream. An aggregate of the Kinesis Producer Library counts as one record.
#[derive(Clone)]
pub struct KinesisRecord {
    event_id: String,
    partition_key: String,
    sequence_number: String,
    data: Vec<u8>,
    raw: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'r> {
    #[serde(rename = "eventID", default)]
    event_id: String,
    #[serde(borrow)]
    kinesis: WireData<'r>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireData<'r> {
    #[serde(default)]
    partition_key: String,
    sequence_number: String,
    #[serde(borrow)]
    data: Cow<'r, str>,
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
    /// [`ErrorKind::Invalid`] if the data isn't the JSON of a `T`. The error says where parsing failed, and never
    /// quotes the data.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        record::json("the record's data", self.data())
    }

    /// The whole record, as Lambda delivered it.
    pub fn raw(&self) -> &RawValue {
        &self.raw
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

    fn identifier_in(raw: &RawValue) -> Option<String> {
        #[derive(Deserialize)]
        struct Identified {
            kinesis: Number,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Number {
            sequence_number: String,
        }
        serde_json::from_str::<Identified>(raw.get()).ok().map(|record| record.kinesis.sequence_number)
    }

    fn read(raw: &RawValue) -> Result<Self, Error> {
        let Wire { event_id, kinesis } =
            serde_json::from_str(raw.get()).map_err(|error| malformed("Kinesis record", &error))?;
        let data = BASE64_STANDARD.decode(kinesis.data.as_bytes()).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the Kinesis record's data isn't Base64; the record didn't run")
        })?;
        let WireData { partition_key, sequence_number, .. } = kinesis;
        Ok(Self { event_id, partition_key, sequence_number, data, raw: raw.to_owned() })
    }

    fn group_in(raw: &RawValue, in_order: bool) -> Option<String> {
        #[derive(Deserialize)]
        struct Grouped {
            kinesis: Partition,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Partition {
            partition_key: String,
        }
        let grouped = in_order.then(|| serde_json::from_str::<Grouped>(raw.get()).ok()).flatten();
        grouped.map(|grouped| grouped.kinesis.partition_key)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::builder(Self::VIA).json_or_bytes("payload", self.data()).finish()
    }
}
