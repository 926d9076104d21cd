//! The messages of an SQS queue.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::record::{self, Reading, Record, Way, lacks, malformed};
use crate::{
    error::Error,
    fingerprint::Fingerprint,
    internal::FingerprintExt as _,
    key::Key,
    lambda::source::{Fields, Text},
};

/// A message of an SQS queue.
#[derive(Clone)]
pub struct SqsMessage {
    message_id: String,
    receipt_handle: String,
    body: String,
    attributes: Vec<(String, String)>,
    queue_arn: String,
    raw: Box<RawValue>,
}

const WHAT: &str = "SQS message";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wire<'r> {
    #[serde(borrow)]
    message_id: Text<'r>,
    #[serde(borrow)]
    receipt_handle: Text<'r>,
    #[serde(borrow)]
    body: Text<'r>,
    #[serde(borrow)]
    attributes: Option<&'r RawValue>,
    /// SNS names this field `EventSource`.
    #[serde(rename = "eventSource", alias = "EventSource", borrow)]
    source: Text<'r>,
    #[serde(rename = "eventSourceARN", borrow)]
    arn: Text<'r>,
}

impl SqsMessage {
    /// The id that SQS gave the message, the same in every delivery.
    pub fn message_id(&self) -> &str {
        &self.message_id
    }

    /// The key of this one message. All deliveries of the message have this key. If a sender sends twice, the second
    /// message has another key. A redrive from a dead-letter queue gives the message a new id, and so another key
    /// ("Configuring a dead-letter queue redrive", Amazon SQS developer guide).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) if the id isn't a valid key. The ids that SQS gives are valid.
    pub fn message_key(&self) -> Result<Key, Error> {
        Key::new(self.message_id())
    }

    /// The body as sent.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The body, read as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the body isn't the JSON of a `T`. The error says where
    /// parsing failed, and never quotes the body.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        record::json("the message's body", self.body().as_bytes())
    }

    /// The message's group, in a FIFO queue or a fair queue.
    pub fn group_id(&self) -> Option<&str> {
        self.attribute("MessageGroupId")
    }

    /// An attribute that SQS gave the message, such as `ApproximateReceiveCount`.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let named = |(known, _): &&(String, String)| known == name;
        self.attributes.iter().rev().find(named).map(|(_, value)| value.as_str())
    }

    /// The ARN of the message's queue.
    pub fn queue_arn(&self) -> &str {
        &self.queue_arn
    }

    /// The receipt handle, for requests that delete the message or change its visibility timeout.
    pub fn receipt_handle(&self) -> &str {
        &self.receipt_handle
    }

    /// The whole record as Lambda delivered it, for example to look up message attributes, or to read the record into a
    /// type of `aws_lambda_events`.
    pub fn raw(&self) -> &RawValue {
        &self.raw
    }
}

impl AsRef<[u8]> for SqsMessage {
    /// The body, for [`Key::from_json`].
    fn as_ref(&self) -> &[u8] {
        self.body().as_bytes()
    }
}

impl fmt::Debug for SqsMessage {
    /// Shows the id, never the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqsMessage({}, <{} bytes>)", self.message_id(), self.body().len())
    }
}

impl Record for SqsMessage {
    const SOURCE: &'static str = "aws:sqs";
    const VIA: &'static str = "sqs";
    const IS_STREAM: bool = false;

    fn read(raw: &RawValue, _: Way) -> Reading<'_, Self> {
        let read = serde_json::from_str::<Wire<'_>>(raw.get());
        let problem = read.as_ref().err().map(|error| malformed(WHAT, error));
        let wire = read.unwrap_or_else(|_| Wire::identified_in(raw));
        let attributes =
            wire.attributes.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        let (identifier, source, arn) =
            (wire.message_id.0.clone(), wire.source.0.clone(), wire.arn.0.clone());
        let group = group(arn.as_deref(), &attributes);
        let record = problem.map_or_else(|| wire.into_message(attributes, raw), Err);
        Reading { identifier, source, arn: arn.unwrap_or_default(), group, record }
    }

    fn receipt(&self) -> Option<(String, String)> {
        Some((self.queue_arn.clone(), self.receipt_handle.clone()))
    }

    /// A producer's own `traceparent`, or else the header that SQS keeps for X-Ray.
    fn trace(&self) -> Option<String> {
        let sent = Fields::of(&self.raw).get("messageAttributes").map(Fields::of);
        let sent = sent.and_then(|sent| Fields::of(sent.get("traceparent")?).text("stringValue"));
        sent.as_deref().or_else(|| self.attribute("AWSTraceHeader")).map(str::to_owned)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::builder(Self::VIA).json_or_bytes("payload", self.body()).finish()
    }
}

impl<'r> Wire<'r> {
    /// The fields that identify an unreadable message.
    fn identified_in(raw: &'r RawValue) -> Self {
        let fields = Fields::of(raw);
        Self {
            message_id: Text(fields.text("messageId")),
            source: Text(fields.text("eventSource")),
            arn: Text(fields.text("eventSourceARN")),
            attributes: fields.get("attributes"),
            ..Self::default()
        }
    }

    fn into_message(
        self,
        Attributes(attributes): Attributes<'r>,
        raw: &RawValue,
    ) -> Result<SqsMessage, Error> {
        let Some(message_id) = self.message_id.0 else { return Err(lacks(WHAT, "text in `messageId`")) };
        let Some(body) = self.body.0 else { return Err(lacks(WHAT, "text in `body`")) };
        let owned = |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        Ok(SqsMessage {
            message_id: message_id.into_owned(),
            receipt_handle: self.receipt_handle.into_string(),
            body: body.into_owned(),
            attributes: attributes.into_iter().map(owned).collect(),
            queue_arn: self.arn.into_string(),
            raw: raw.to_owned(),
        })
    }
}

/// The attributes that have a text.
#[derive(Default)]
struct Attributes<'r>(Vec<(Cow<'r, str>, Cow<'r, str>)>);

impl<'r> Attributes<'r> {
    fn get(&self, name: &str) -> Option<&Cow<'r, str>> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// The message's group in a FIFO queue. In a standard queue, a message's group is for fairness, and doesn't ask for an
/// order. If the message doesn't name its queue, its sequence number shows that the queue is FIFO.
fn group<'r>(arn: Option<&str>, attributes: &Attributes<'r>) -> Option<Cow<'r, str>> {
    let is_fifo = match arn {
        Some(arn) => arn.ends_with(".fifo"),
        None => attributes.get("SequenceNumber").is_some(),
    };
    is_fifo.then(|| attributes.get("MessageGroupId").cloned().unwrap_or_default())
}

impl<'de: 'r, 'r> Deserialize<'de> for Attributes<'r> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Texts)
    }
}

struct Texts;

impl<'de> Visitor<'de> for Texts {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut sent: A) -> Result<Self::Value, A::Error> {
        let mut texts = Vec::with_capacity(6);
        while let Some((Text(name), Text(value))) = sent.next_entry()? {
            texts.extend(name.zip(value));
        }
        Ok(Attributes(texts))
    }
}
