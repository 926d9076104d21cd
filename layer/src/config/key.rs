//! The sources of keys.

use lambda_idempotency::{
    Error, Idempotency, Key, KeyFields,
    lambda::{
        event::{EventLayer, IntoKey as _},
        keys,
    },
};
use serde::de::IgnoredAny;

use super::value::{Read, Wrong, list};
use crate::event::Kind;

/// The source of an event's key.
#[derive(Clone, Debug)]
pub(crate) enum KeyOf {
    /// Fields of the event, of an HTTP request's JSON body, or of a record's content.
    Fields(KeyFields),
    /// The identifier that a known source, such as EventBridge, puts into each event, or into each event that comes
    /// through a queue.
    Source(KeyFields),
    /// The header `Idempotency-Key` of an HTTP request.
    Header,
    /// The request id.
    RequestId,
    /// The id that the source of a batch gives each record.
    Record(Kind),
}

/// The valid values of the setting.
pub(super) const ALLOWED: &str = "a JSON Pointer such as /orderId, several with commas between them, jmespath:EXPRESSION, header, \
                       request-id, eventbridge, scheduler, sns, s3, step-functions, sqs, kinesis, dynamodb or kafka";

impl KeyOf {
    /// Reads the setting.
    pub(super) fn parse(text: &str) -> Read<Self> {
        if let Some(expression) = text.strip_prefix("jmespath:") {
            return fields([expression]);
        }
        if text.starts_with('/') {
            let pointers = list(text)?;
            if let Some(other) = pointers.iter().find(|pointer| !pointer.starts_with('/')) {
                let message = format!("`{other}` isn't a JSON Pointer; it must begin with /");
                return Err(Wrong::Because(message));
            }
            return fields(pointers.iter().map(String::as_str));
        }
        Ok(match text {
            "header" => Self::Header,
            "request-id" => Self::RequestId,
            "eventbridge" => Self::Source(keys::event_bridge()),
            "scheduler" => Self::Source(keys::scheduler()),
            "sns" => Self::Source(keys::sns()),
            "s3" => Self::Source(keys::s3()),
            "step-functions" => Self::Source(keys::step_functions()),
            "sqs" | "fifo" => Self::Record(Kind::Sqs),
            "kinesis" => Self::Record(Kind::Kinesis),
            "dynamodb" => Self::Record(Kind::DynamoDb),
            "kafka" => Self::Record(Kind::Kafka),
            _ => return Err(Wrong::Value(text.into())),
        })
    }

    /// The default source of keys for this kind of event, if it has one.
    pub(super) fn usual(kind: Option<Kind>) -> Option<Self> {
        match kind? {
            Kind::Http => Some(Self::Header),
            Kind::Event => None,
            kind => Some(Self::Record(kind)),
        }
    }

    /// Says why this source can't give a key to events of this kind. `None` if it can.
    pub(super) fn misfit(&self, kind: Kind) -> Option<String> {
        let fits = match self {
            Self::Fields(_) => true,
            Self::Source(_) => kind != Kind::Http,
            Self::RequestId => kind == Kind::Event,
            Self::Header => kind == Kind::Http,
            Self::Record(source) => *source == kind,
        };
        let other = if kind.is_batch() {
            "the records' own ids (leave this setting out)"
        } else {
            "a JSON Pointer such as /orderId"
        };
        (!fits).then(|| format!("events of the kind in IDEMPOTENCY_EVENT don't have this key; use {other}"))
    }

    /// The library's layer, with keys from this source.
    pub(crate) fn layer(&self, idempotency: &Idempotency) -> EventLayer<IgnoredAny> {
        match self {
            Self::Fields(fields) | Self::Source(fields) => idempotency.events_by(fields.clone()),
            Self::RequestId => idempotency.events_by_request_id(),
            // Only HTTP requests and batches have these keys. A plain event has none.
            Self::Header | Self::Record(_) => idempotency.events(|_: &IgnoredAny| None::<Key>),
        }
    }

    /// The key of a record in a batch: fields of its `content`, which may be a known source's event, or the id that the
    /// record's source gave it, which `own` returns.
    ///
    /// # Errors
    ///
    /// If the key isn't valid, or if the content can't be searched for it.
    pub(crate) fn of_record(
        &self,
        kind: Kind,
        content: &[u8],
        own: impl FnOnce() -> Result<Key, Error>,
    ) -> Result<Option<Key>, Error> {
        match self {
            Self::Fields(fields) | Self::Source(fields) => fields.key_of(content),
            Self::Record(source) if *source == kind => own().into_key(),
            _ => Ok(None),
        }
    }
}

fn fields<'a>(fields: impl IntoIterator<Item = &'a str>) -> Read<KeyOf> {
    // All fields are required: without one of them, two operations could get the same key.
    let fields = KeyFields::new(fields).map_err(|error| Wrong::Because(error.to_string()))?;
    Ok(KeyOf::Fields(fields.all_required()))
}
