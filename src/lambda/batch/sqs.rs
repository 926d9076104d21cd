//! The messages of an SQS queue.

use std::{collections::HashMap, fmt};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::record::{self, Record, malformed};
use crate::{error::Error, fingerprint::Fingerprint, key::Key};

/// A message of an SQS queue.
#[derive(Clone)]
pub struct SqsMessage {
    head: Head,
    raw: Box<RawValue>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    message_id: String,
    #[serde(default)]
    receipt_handle: String,
    body: String,
    #[serde(default)]
    attributes: HashMap<String, String>,
    #[serde(rename = "eventSourceARN", default)]
    queue_arn: String,
}

impl SqsMessage {
    /// The id that SQS gave the message, the same in every delivery.
    pub fn message_id(&self) -> &str {
        &self.head.message_id
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
        &self.head.body
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
        self.head.attributes.get(name).map(String::as_str)
    }

    /// The ARN of the message's queue.
    pub fn queue_arn(&self) -> &str {
        &self.head.queue_arn
    }

    /// The receipt handle, for requests that delete the message or change its visibility timeout.
    pub fn receipt_handle(&self) -> &str {
        &self.head.receipt_handle
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

    fn identifier_in(raw: &RawValue) -> Option<String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Identified {
            message_id: String,
        }
        serde_json::from_str::<Identified>(raw.get()).ok().map(|identified| identified.message_id)
    }

    fn receipt_in(raw: &RawValue) -> Option<(String, String)> {
        Self::read(raw).ok().map(|message| (message.head.queue_arn, message.head.receipt_handle))
    }

    fn read(raw: &RawValue) -> Result<Self, Error> {
        let head = serde_json::from_str(raw.get()).map_err(|error| malformed("SQS message", &error))?;
        Ok(Self { head, raw: raw.to_owned() })
    }

    fn group_in(raw: &RawValue, _: bool) -> Option<String> {
        #[derive(Deserialize)]
        struct Grouped {
            attributes: Attributes,
            #[serde(rename = "eventSourceARN")]
            queue_arn: String,
        }
        #[derive(Deserialize)]
        struct Attributes {
            #[serde(rename = "MessageGroupId")]
            group: String,
        }
        let Grouped { attributes, queue_arn } = serde_json::from_str(raw.get()).ok()?;
        // In a standard queue, a message's group is for fairness, and doesn't ask for an order.
        queue_arn.ends_with(".fifo").then_some(attributes.group)
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::builder(Self::VIA).json_or_bytes("payload", self.body()).finish()
    }
}
