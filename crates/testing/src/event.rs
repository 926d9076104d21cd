//! [`Event`]: a sample event, and how its source sends it again.

use std::{collections::BTreeSet, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::world::hash;

/// A sample event in JSON, as the function gets it, with its retry and the event of another operation.
///
/// When a source delivers an event again, it changes parts of the event: delivery ids, times, traces, counts. The kit
/// makes the same changes for the AWS sources that it supports. If your own sender's retry looks different, set that
/// retry with [`again`](Self::again). A client may build its request again for each retry, for example with another
/// time in it. Such a retry often gets a wrong key.
///
/// ```
/// use lambda_idempotency_testing::Event;
///
/// let event = Event::json(r#"{"id": "order-17", "cents": 1250, "sent_at": "09:15:44"}"#)
///     .again(r#"{"id": "order-17", "cents": 1250, "sent_at": "09:15:49"}"#)
///     .other(r#"{"id": "order-18", "cents": 990, "sent_at": "09:16:02"}"#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    json: Arc<str>,
    again: Option<Arc<str>>,
    other: Option<Arc<str>>,
    conflicting: Option<Arc<str>>,
    /// The places of the records that fail in every delivery.
    poison: BTreeSet<usize>,
    keeps_request_id: bool,
}

impl Event {
    /// The event with this text.
    pub fn json(text: impl Into<String>) -> Self {
        Self {
            json: text.into().into(),
            again: None,
            other: None,
            conflicting: None,
            poison: BTreeSet::new(),
            keeps_request_id: false,
        }
    }

    /// The event with this value's JSON. A value that can't be serialized becomes `null`.
    pub fn of(value: &impl Serialize) -> Self {
        Self::json(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()))
    }

    /// Sets how the same operation's event looks when its sender sends it again.
    #[must_use]
    pub fn again(self, text: impl Into<String>) -> Self {
        Self { again: Some(text.into().into()), ..self }
    }

    /// Sets an event of another operation. The function must keep the two operations apart.
    #[must_use]
    pub fn other(self, text: impl Into<String>) -> Self {
        Self { other: Some(text.into().into()), ..self }
    }

    /// Sets an event with the same key but different content, such as another amount, which the function must refuse.
    #[must_use]
    pub fn conflicting(self, text: impl Into<String>) -> Self {
        Self { conflicting: Some(text.into().into()), ..self }
    }

    /// Says that this record of the batch, counted from 0, fails in every delivery. Its source gives up on it: a queue
    /// moves it to the dead-letter queue, a stream moves on past it. An event that isn't a batch is its own record 0.
    ///
    /// You need this only for a failure that isn't recorded, such as a body that can't be parsed.
    /// [`survive()`](super::survive()) notices that a record's failure was recorded, for example as
    /// [`Failure::permanent`](lambda_idempotency_core::Failure::permanent).
    ///
    /// ```
    /// use lambda_idempotency::{Failure, Key, lambda::batch::SqsMessage};
    /// use lambda_idempotency_testing::{Bench, Event, Function, survive};
    /// # use serde_json::value::RawValue;
    ///
    /// fn worker(bench: &Bench) -> Function {
    ///     let ledger = bench.ledger();
    ///     let ship = move |message: SqsMessage| {
    ///         let ledger = ledger.clone();
    ///         async move {
    ///             let order: u64 = message.json()?;
    ///             let key = lambda_idempotency::current().ok_or("not protected")?.derive_key("ship");
    ///             ledger.call("ship", Some(&key), order).await?;
    ///             Ok::<_, Failure>(())
    ///         }
    ///     };
    ///     Function::lambda::<_, Box<RawValue>>(bench.idempotency().sqs(SqsMessage::message_key, ship))
    /// }
    ///
    /// survive(worker, &Event::sqs("orders", ["17", "eighteen"]).poison(1)).assert_safe();
    /// ```
    #[must_use]
    pub fn poison(mut self, record: usize) -> Self {
        self.poison.insert(record);
        self
    }

    /// Gives all deliveries of the same text one request id, as Lambda does when it retries an asynchronous invocation.
    /// By default, every delivery has its own request id, because a caller's retry is a new invocation.
    #[must_use]
    pub fn invoked_asynchronously(self) -> Self {
        Self { keeps_request_id: true, ..self }
    }

    /// The event's text.
    pub fn text(&self) -> &str {
        &self.json
    }

    /// Returns the event as its source delivers it again: `nth` is 1 for the first retry. If [`again`](Self::again) has
    /// set the sender's own retry, an odd `nth` returns that retry, and an even `nth` the event, both with the changes
    /// that the source makes.
    #[must_use]
    pub fn retried(&self, nth: usize) -> Self {
        let json = match &self.again {
            Some(again) if nth % 2 == 1 => Arc::clone(again),
            _ => Arc::clone(&self.json),
        };
        Self { json: redelivered(&json, nth), ..self.clone() }
    }

    pub(super) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.json)
    }

    /// Returns the request id of a delivery of `json`, which is the test's `nth` delivery.
    pub(super) fn request_id(&self, json: &str, nth: usize) -> String {
        if self.keeps_request_id {
            format!("request-{:08x}", hash(&[json]))
        } else {
            format!("request-{nth}")
        }
    }

    /// Returns the identifiers of the records at these places, in the event and in its sender's retry.
    pub(super) fn ids_at(&self, places: &BTreeSet<usize>) -> BTreeSet<String> {
        let texts = [Some(&self.json), self.again.as_ref()].into_iter().flatten();
        let ids = texts.flat_map(|json| ids_of(json).into_iter().enumerate());
        ids.filter(|(place, _)| places.contains(place)).map(|(_, id)| id).collect()
    }

    /// The places of the records that fail in every delivery.
    pub(super) fn poisoned(&self) -> &BTreeSet<usize> {
        &self.poison
    }

    pub(super) fn other_one(&self) -> Option<&Arc<str>> {
        self.other.as_ref()
    }

    pub(super) fn conflicting_one(&self) -> Option<&Arc<str>> {
        self.conflicting.as_ref()
    }
}

/// Returns the event as its source sends it in the `nth` delivery after the first.
fn redelivered(json: &Arc<str>, nth: usize) -> Arc<str> {
    let Ok(mut event) = serde_json::from_str::<Value>(json) else { return Arc::clone(json) };
    if nth == 0 || !redeliver(&mut event, nth) {
        return Arc::clone(json);
    }
    event.to_string().into()
}

/// Changes the parts that the event's source changes. Returns false if the source is unknown, or changes nothing.
fn redeliver(event: &mut Value, nth: usize) -> bool {
    if let Some(records) = event.get_mut("Records").and_then(Value::as_array_mut) {
        let mut is_known = false;
        for record in records {
            is_known |= redeliver_record(record, nth);
        }
        return is_known;
    }
    let is_request = event.get("requestContext").is_some_and(Value::is_object);
    if !is_request {
        return false;
    }
    let seconds = 44 + nth as u64 * 5;
    if let Some(context) = event.get_mut("requestContext").and_then(Value::as_object_mut) {
        let time = format!("20/Nov/2026:09:{:02}:{:02} +0000", 15 + seconds / 60, seconds % 60);
        replace(context, "requestId", json!(format!("retry-{nth}")));
        replace(context, "extendedRequestId", json!(format!("retry-{nth}=")));
        replace(context, "time", json!(time));
        replace(context, "requestTime", json!(time));
        for name in ["timeEpoch", "requestTimeEpoch"] {
            replace(context, name, json!(1_795_166_100_000 + seconds * 1000));
        }
    }
    for headers in ["headers", "multiValueHeaders"] {
        let Some(headers) = event.get_mut(headers).and_then(Value::as_object_mut) else { continue };
        for (name, value) in headers.iter_mut() {
            let new = format!("Root=1-6b000fc{}-3c5d1f2e7a9b4c6d8e0f1a2b", nth % 10);
            if ["x-amzn-trace-id", "x-request-id", "traceparent"].contains(&name.to_lowercase().as_str()) {
                *value = if value.is_array() { json!([new]) } else { json!(new) };
            }
        }
    }
    true
}

fn redeliver_record(record: &mut Value, nth: usize) -> bool {
    let Some(record) = record.as_object_mut() else { return false };
    if record.get("eventSource").and_then(Value::as_str) != Some("aws:sqs") {
        return false;
    }
    let handle = record.get("receiptHandle").and_then(Value::as_str).unwrap_or_default();
    let handle = format!("{handle}-{nth}");
    replace(record, "receiptHandle", json!(handle));
    if let Some(attributes) = record.get_mut("attributes").and_then(Value::as_object_mut) {
        replace(attributes, "ApproximateReceiveCount", json!((nth + 1).to_string()));
        replace(
            attributes,
            "AWSTraceHeader",
            json!(format!("Root=1-6b00107{}-a3b4c5d6e7f8091a2b3c4d5e", nth % 10)),
        );
    }
    true
}

/// Replaces a field, if the object has it.
fn replace(object: &mut Map<String, Value>, name: &str, value: Value) {
    if let Some(old) = object.get_mut(name) {
        *old = value;
    }
}

/// Returns the identifier of a batch's record, as the batch's response has it.
fn id_of(record: &Value) -> Option<&str> {
    let id = record.get("messageId").or_else(|| record.pointer("/kinesis/sequenceNumber"));
    id.or_else(|| record.pointer("/dynamodb/SequenceNumber")).and_then(Value::as_str)
}

/// Returns the identifiers of a batch's records.
pub(super) fn ids_of(json: &str) -> Vec<String> {
    let event: Value = serde_json::from_str(json).unwrap_or_default();
    let records = event.get("Records").and_then(Value::as_array).cloned().unwrap_or_default();
    records.iter().map(|record| id_of(record).unwrap_or_default().to_owned()).collect()
}

/// Whether the event is a batch of a queue. A queue delivers only the failed records again; a stream delivers
/// everything from the first failure on.
pub(super) fn is_of_queue(json: &str) -> bool {
    let event: Value = serde_json::from_str(json).unwrap_or_default();
    event.pointer("/Records/0/messageId").is_some()
}

/// Returns the event that a batch's source delivers after the records with these `ids` failed, without the records in
/// `given_up`. The event is unchanged if no record has one of these ids.
pub(super) fn with_records(json: &Arc<str>, ids: &[String], given_up: &BTreeSet<String>) -> Arc<str> {
    let Ok(mut event) = serde_json::from_str::<Value>(json) else { return Arc::clone(json) };
    let Some(records) = event.get_mut("Records").and_then(Value::as_array_mut) else {
        return Arc::clone(json);
    };
    let is_returned = |record: &Value| id_of(record).is_some_and(|id| ids.iter().any(|other| other == id));
    let Some(first) = records.iter().position(is_returned) else { return Arc::clone(json) };
    if is_of_queue(json) {
        records.retain(is_returned);
    } else {
        records.drain(..first);
    }
    records.retain(|record| id_of(record).is_none_or(|id| !given_up.contains(id)));
    event.to_string().into()
}
