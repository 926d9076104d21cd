//! The records of Kafka's topics.

use std::{borrow::Cow, fmt};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{GeneralPurpose, general_purpose::PAD},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Batch,
    answer::Identifier,
    record::{self, Reading, Record, Split, Way, lacks, malformed, not_a_batch, shown},
};
use crate::{
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    internal::FingerprintExt as _,
    key::Key,
    lambda::source::{Fields, Text},
};

/// A record of a topic of Kafka, from Amazon MSK or from your own cluster.
///
/// ```
/// # use lambda_idempotency::{Failure, Idempotency, lambda::batch::KafkaRecord, store::memory::MemoryStore};
/// async fn index(record: KafkaRecord) -> Result<(), Failure> {
///     match record.value() {
///         Some(_) => println!("put {}", record.json::<serde_json::Value>()?),
///         None => println!("delete the {} bytes' entry", record.key().unwrap_or_default().len()), // a tombstone
///     }
///     Ok(())
/// }
///
/// let idempotency = Idempotency::builder(MemoryStore::new()).function("search").build()?;
/// let worker = idempotency.kafka(KafkaRecord::offset_key, index);
/// # Ok::<(), lambda_idempotency::Error>(())
/// ```
#[derive(Clone)]
pub struct KafkaRecord {
    topic: String,
    partition: u32,
    offset: u64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    raw: Box<RawValue>,
}

const WHAT: &str = "Kafka record";

/// The sources' names: Amazon MSK's, and two for a self-managed cluster. Older editions of "Using Lambda with
/// self-managed Apache Kafka" (AWS Lambda developer guide) have the longer one.
const SOURCES: [&str; 3] = [KafkaRecord::SOURCE, "SelfManagedKafka", "aws:SelfManagedKafka"];

/// Accepts what AWS's own samples have: bits behind the last byte that aren't zero.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));

/// The fields that name an event's cluster. By a pipe, each record has them ("Amazon Managed Streaming for Apache Kafka
/// topic as a source", EventBridge user guide).
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Event<'e> {
    #[serde(borrow)]
    event_source: Text<'e>,
    #[serde(borrow)]
    event_source_arn: Text<'e>,
    #[serde(borrow)]
    bootstrap_servers: Text<'e>,
    /// The records, by their topics and partitions.
    #[serde(borrow)]
    records: Option<&'e RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire<'r> {
    #[serde(borrow)]
    topic: Text<'r>,
    #[serde(borrow)]
    partition: Option<&'r RawValue>,
    #[serde(borrow)]
    offset: Option<&'r RawValue>,
    #[serde(borrow)]
    key: Option<&'r RawValue>,
    #[serde(borrow)]
    value: Option<&'r RawValue>,
}

/// The place of a record in the cluster's log, which no other record has.
struct Place<'r> {
    topic: Cow<'r, str>,
    partition: u32,
    offset: u64,
}

impl KafkaRecord {
    /// The record's topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The number of the record's partition.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The record's offset in its partition.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The key of this one record: its topic, partition and offset, such as `orders-0@15`. All deliveries of the record
    /// have this key, in both of Lambda's modes, since a share group delivers a record again under the same offset. If a
    /// producer sends twice, the second record has another key.
    ///
    /// If you delete a topic and create it again, its offsets restart at 0. A new record then has the same key as the
    /// old one at that offset, and is a mismatch until the old operation's record expires. Give the new topic another
    /// name, or change the worker's [`source_name`](Batch::source_name).
    ///
    /// # Errors
    ///
    /// None for the topics' names that Kafka allows.
    pub fn offset_key(&self) -> Result<Key, Error> {
        let key = |topic: &str| Key::new(identifier(topic, self.partition, self.offset));
        // A key has 255 bytes at most, and the longest topic's name has 249.
        key(&self.topic)
            .or_else(|_| key(&Fingerprint::builder("topic").part("name", &self.topic).finish().to_string()))
    }

    /// Kafka's own key of the record, decoded. `None` if it's null, or isn't Base64. It's not an idempotency key: a producer
    /// sends many records with one key.
    pub fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    /// The value, decoded; `None` for a tombstone, whose value is null.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// The value, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the record is a tombstone, or the value isn't the JSON of a `T`. The error says where
    /// parsing failed, and never quotes the value.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match self.unreadable() {
            Some(why) => Err(Error::new(ErrorKind::Invalid, why)),
            None => record::json("the record's value", self.as_ref()),
        }
    }

    /// Kafka's own key, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there's no [`key`](Self::key), or it isn't the JSON of a `T`. The error never quotes the
    /// key.
    pub fn key_json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        record::json("the record's key", self.key().unwrap_or_default())
    }

    /// The headers, in the order in which the producer sent them. A name may occur twice. A header whose value is null, or
    /// isn't a list of bytes, is left out; [`raw`](Self::raw) has it.
    pub fn headers(&self) -> Vec<(String, Vec<u8>)> {
        let headers = Fields::of(&self.raw).get("headers");
        let headers: Vec<&RawValue> =
            headers.and_then(|headers| serde_json::from_str(headers.get()).ok()).unwrap_or_default();
        let named = headers.into_iter().flat_map(|header| Fields::of(header).0);
        named.filter_map(|(name, value)| Some((name, bytes(value)?))).collect()
    }

    /// The whole record as Lambda delivered it, with its timestamp and the schema's id, for example to read it into a type
    /// of `aws_lambda_events`.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }
}

impl Batch<KafkaRecord> {
    /// Answers with the records that failed, so that Lambda redelivers only these, and in its stream mode the ones behind
    /// them. Default: one failure fails the invocation.
    ///
    /// **Lambda reads the answer only in provisioned mode with `ReportBatchItemFailures`** ("Configuring error handling
    /// controls for Kafka event sources", AWS Lambda developer guide). Without both, Lambda ignores the answer and goes on
    /// behind the batch: **the failed records are lost**. A pipe doesn't read it either, so a pipe's invocation fails in
    /// any case.
    pub fn partial_answers(mut self) -> Self {
        self.choices.fails_whole = false;
        self
    }

    /// Runs all records independently, for a mapping in queue mode (`ConsumptionMode` `Queue`, a share group), where several
    /// invocations have records of one partition at the same time. Default: the records of a partition run in order, one
    /// after the other, as in stream mode.
    ///
    /// As in an SQS queue, a record's lease isn't short as described [for streams](crate::lambda::batch#a-crash), but
    /// lasts until the deadline: Kafka may give a record to another consumer at any time, when the group's acquisition lock
    /// (`share.record.lock.duration.ms`) has expired.
    pub fn unordered(self) -> Self {
        let mut batch = self.together();
        batch.choices.is_queue = true;
        batch
    }

    /// Claims all records of a partition at the same time, in stream mode, for handlers that
    /// [collect](Batch::on_progress) them. **The handlers must keep the order**: the library doesn't. The leases are short, as
    /// [for streams](crate::lambda::batch#a-crash).
    pub fn together(mut self) -> Self {
        self.choices.in_order = false;
        self
    }
}

impl AsRef<[u8]> for KafkaRecord {
    /// The value, for [`Key::from_json`]; empty for a tombstone.
    fn as_ref(&self) -> &[u8] {
        self.value().unwrap_or_default()
    }
}

impl fmt::Debug for KafkaRecord {
    /// Shows the record's place, never its key or value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.value().map_or(0, <[u8]>::len);
        write!(f, "KafkaRecord({}, <{length} bytes>)", identifier(&self.topic, self.partition, self.offset))
    }
}

impl Record for KafkaRecord {
    const SOURCE: &'static str = "aws:kafka";
    const VIA: &'static str = "kafka";
    const IS_STREAM: bool = false;
    const IS_PARTITIONED: bool = true;

    fn split(event: &RawValue) -> Result<Split<'_>, Error> {
        if let Some(split) = record::piped(event) {
            return Ok(split);
        }
        let not_kafkas = |source: Option<&str>| not_a_batch(Self::SOURCE, &shown(source));
        let read: Event<'_> = serde_json::from_str(event.get()).map_err(|_| not_kafkas(None))?;
        let source = read.event_source.0.as_deref();
        let is_kafkas = source.is_none_or(|source| SOURCES.contains(&source));
        let lists = read.records.filter(|lists| is_kafkas && lists.get().starts_with('{'));
        let Some(lists) = lists else { return Err(not_kafkas(source)) };
        let mut records = Vec::new();
        for (_, list) in Fields::of(lists).0 {
            let list: Option<Vec<&RawValue>> =
                serde_json::from_str(list.get()).map_err(|_| not_kafkas(source))?;
            records.extend(list.into_iter().flatten());
        }
        Ok(Split { records, by_pipe: false, source: Some(cluster(read)) })
    }

    fn read(raw: &RawValue, way: Way) -> Reading<'_, Self> {
        let read = serde_json::from_str::<Wire<'_>>(raw.get());
        let problem = read.as_ref().err().map(|error| malformed(WHAT, error));
        let wire = read.unwrap_or_else(|_| Wire::identified_in(raw));
        let event = match way.by_pipe {
            true => serde_json::from_str(raw.get()).unwrap_or_default(),
            false => Event::default(),
        };
        // The event has its source's name, and not each record. Only a pipe's records have their own.
        let source = event.event_source.0.clone().filter(|source| !SOURCES.contains(&&**source));
        let place = wire.place();
        let identified = place.as_ref().map(|place| identifier(&place.topic, place.partition, place.offset));
        let group = way.in_order.then(|| {
            let partition = identified.as_deref().and_then(|identifier| identifier.rsplit_once('@'));
            partition.map(|(partition, _)| partition.to_owned()).unwrap_or_default().into()
        });
        let record = match (problem, place) {
            (Some(problem), _) => Err(problem),
            (None, Some(place)) => Self::of(place, &wire, raw),
            (None, None) => Err(lacks(WHAT, "`topic`, or no number in `partition` or `offset`")),
        };
        Reading {
            identifier: identified.map(Cow::Owned),
            source: source.or(Some(Self::SOURCE.into())),
            arn: cluster(event).into(),
            group,
            record,
        }
    }

    fn listed(identifier: &str) -> Identifier<'_> {
        let place = identifier.rsplit_once('@');
        let place = place.and_then(|(partition, offset)| Some((partition, offset.parse().ok()?)));
        place.map_or(Identifier::Text(identifier), |(partition, offset)| Identifier::Offset {
            partition,
            offset,
        })
    }

    fn unreadable(&self) -> Option<&'static str> {
        self.value.is_none().then_some(
            "the record is a tombstone: its value is null. Take the key from `KafkaRecord::key` or \
             `KafkaRecord::offset_key`, and look at `KafkaRecord::value` before you read it",
        )
    }

    fn trace(&self) -> Option<String> {
        let sent = self.headers().into_iter().find(|(name, _)| name == "traceparent");
        sent.and_then(|(_, value)| String::from_utf8(value).ok())
    }

    fn fingerprint(&self) -> Fingerprint {
        let builder = Fingerprint::builder(Self::VIA);
        let builder = match self.key() {
            Some(key) => builder.part("key", key),
            None => builder.part("no key", ""),
        };
        match self.value() {
            Some(value) => builder.json_or_bytes("payload", value).finish(),
            None => builder.part("tombstone", "").finish(),
        }
    }
}

impl KafkaRecord {
    fn of(place: Place<'_>, wire: &Wire<'_>, raw: &RawValue) -> Result<Self, Error> {
        let value = wire.value.map(|value| decoded(value).ok_or_else(|| lacks(WHAT, "Base64 in `value`")));
        Ok(Self {
            topic: place.topic.into_owned(),
            partition: place.partition,
            offset: place.offset,
            key: wire.key.and_then(decoded),
            value: value.transpose()?,
            raw: raw.to_owned(),
        })
    }
}

impl<'r> Wire<'r> {
    /// The fields that identify an unreadable record.
    fn identified_in(raw: &'r RawValue) -> Self {
        let fields = Fields::of(raw);
        Self {
            topic: Text(fields.text("topic")),
            partition: fields.get("partition"),
            offset: fields.get("offset"),
            ..Self::default()
        }
    }

    fn place(&self) -> Option<Place<'r>> {
        Some(Place {
            topic: self.topic.0.clone()?,
            partition: number(self.partition?)?,
            offset: number(self.offset?)?,
        })
    }
}

/// A record's identifier in logs, and its key: a name with the partition, as AWS writes it, and the offset.
fn identifier(topic: &str, partition: u32, offset: u64) -> String {
    format!("{topic}-{partition}@{offset}")
}

/// The cluster: its ARN, or the sorted brokers of a self-managed cluster. Empty if the event has neither.
fn cluster(event: Event<'_>) -> String {
    let arn = event.event_source_arn.into_string();
    if !arn.is_empty() {
        return arn;
    }
    let servers = event.bootstrap_servers.into_string();
    let mut brokers: Vec<_> = servers.split(',').map(str::trim).filter(|broker| !broker.is_empty()).collect();
    brokers.sort_unstable();
    brokers.join(",")
}

/// A number, which a pipe may send as text.
fn number<T: std::str::FromStr>(raw: &RawValue) -> Option<T> {
    raw.get().trim_matches('"').parse().ok()
}

/// A text's bytes, from Base64.
fn decoded(raw: &RawValue) -> Option<Vec<u8>> {
    let text = serde_json::from_str::<Text<'_>>(raw.get()).ok()?.0?;
    BASE64.decode(text.as_bytes()).ok()
}

/// A header's bytes. Java writes a byte of 128 or more as a negative number.
fn bytes(raw: &RawValue) -> Option<Vec<u8>> {
    let numbers: Vec<i16> = serde_json::from_str(raw.get()).ok()?;
    let byte =
        |number: i16| u8::try_from(number).ok().or_else(|| i8::try_from(number).ok().map(i8::cast_unsigned));
    numbers.into_iter().map(byte).collect()
}
