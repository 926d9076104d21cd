//! The events that the rehearsal delivers, and the keys and orders that it puts into them.

use std::path::Path;

use bytes::Bytes;
use serde_json::Value;

use crate::{
    expect::{self, Source},
    problem::{Context, Problem, Result},
};

const KEY_HEADER: &str = "idempotency-key";
const TRACE_HEADER: &str = "x-amzn-trace-id";
/// The trace header's value in a retry.
const ANOTHER_TRACE: &str = "Root=1-6b000fc5-5f0e1d2c3b4a59687786a5b4";

/// An event's JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Event(Value);

/// The events that a step delivers.
#[derive(Clone, Debug)]
pub struct Events {
    /// The first delivery.
    pub first: Event,
    /// The same operation, delivered again.
    pub again: Event,
    /// The same key with another payload, if there's such an event.
    pub conflicting: Option<Event>,
}

impl Events {
    /// The events of the example function.
    pub fn of_payments(folder: &Path) -> Result<Self> {
        Ok(Self {
            first: Event::read(&folder.join("http-api.json"))?,
            again: Event::read(&folder.join("http-api-again.json"))?,
            conflicting: Some(Event::read(&folder.join("http-api-conflicting.json"))?),
        })
    }

    /// Uses a user's single event for every delivery. Redeliveries get their own request ids, times and
    /// receipt handles, as on AWS. Otherwise, a function whose key or fingerprint includes such a field would pass the
    /// rehearsal, although it doesn't recognise duplicates on AWS.
    pub fn of_one(event: Event) -> Self {
        let again = event.renewed();
        Self { first: event, again, conflicting: None }
    }

    /// Whether each step can get its own key: whether the event has an `idempotency-key` header.
    pub fn take_keys(&self) -> bool {
        self.first.has_key()
    }

    /// Adapts the events to one step: sets the step's key and order in events that have such fields.
    pub fn for_step(&self, name: &str) -> Self {
        let adapt = |event: &Event| event.with_key(name).with_order(name);
        Self {
            first: adapt(&self.first),
            again: adapt(&self.again),
            conflicting: self.conflicting.as_ref().map(adapt),
        }
    }
}

impl Event {
    /// Wraps this JSON.
    pub fn new(json: Value) -> Self {
        Self(json)
    }

    /// Reads an event from a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).context(format!("couldn't read the event file {}", path.display()))?;
        Self::parse(&text)
            .map_err(|problem| Problem::new(format!("the event file {}: {problem}", path.display())))
    }

    fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text).map(Self).context("isn't JSON")
    }

    /// Builds a batch of this source with one record.
    pub(crate) fn in_batch(&self, source: Source) -> Result<Self> {
        source.batch_of(&self.0).map(Self)
    }

    /// Returns the event, or an error if it's a batch.
    pub(crate) fn refuse_batch(self) -> Result<Self> {
        expect::refuse_batch(&self.0)?;
        Ok(self)
    }

    /// A part of the event, by its JSON Pointer.
    pub(crate) fn pointer(&self, pointer: &str) -> Option<&Value> {
        self.0.pointer(pointer)
    }

    /// The bytes to deliver.
    pub fn bytes(&self) -> Bytes {
        Bytes::from(self.0.to_string())
    }

    /// The request in a few words.
    pub fn summary(&self) -> String {
        let v1 = self.0.get("httpMethod").zip(self.0.get("path"));
        let v2 = self.0.pointer("/requestContext/http/method").zip(self.0.get("rawPath"));
        match v2.or(v1) {
            Some((Value::String(method), Value::String(path))) => format!("{method} {path}"),
            _ => "the event".into(),
        }
    }

    fn has_key(&self) -> bool {
        ["headers", "multiValueHeaders"].iter().any(|place| self.key_header(place).is_some())
    }

    /// Returns the event as a retry or a redelivery sends it: an HTTP request's ids and times, the trace header,
    /// receipt handles and receive counts have other values.
    fn renewed(&self) -> Self {
        let mut event = self.clone();
        if self.is_http() {
            event.renew_request_context();
        }
        let json = &mut event.0;
        for place in ["headers", "multiValueHeaders"] {
            let headers = json.get_mut(place).and_then(Value::as_object_mut).into_iter().flatten();
            for (_, value) in headers.filter(|(name, _)| name.eq_ignore_ascii_case(TRACE_HEADER)) {
                *value = if value.is_array() { vec![ANOTHER_TRACE].into() } else { ANOTHER_TRACE.into() };
            }
        }
        for record in json.get_mut("Records").and_then(Value::as_array_mut).into_iter().flatten() {
            replace(record, "/receiptHandle", another_id);
            replace(record, "/attributes/ApproximateReceiveCount", another_count);
        }
        event
    }

    /// Whether the event is an HTTP request: whether it has one of the fields by which the library's fingerprint
    /// recognises HTTP. A `requestContext` alone isn't enough. A Lambda destination's record has one too, and Lambda
    /// doesn't change it in a redelivery.
    fn is_http(&self) -> bool {
        let marks = ["/httpMethod", "/method", "/requestContext/http/method", "/requestContext/routeKey"];
        marks.into_iter().any(|mark| self.pointer(mark).is_some())
    }

    fn renew_request_context(&mut self) {
        let json = &mut self.0;
        for field in ["requestId", "extendedRequestId"] {
            replace(json, &format!("/requestContext/{field}"), another_id);
        }
        for field in ["time", "requestTime"] {
            replace(json, &format!("/requestContext/{field}"), another_time);
        }
        for field in ["timeEpoch", "requestTimeEpoch"] {
            replace(json, &format!("/requestContext/{field}"), another_epoch);
        }
    }

    fn key_header(&self, place: &str) -> Option<String> {
        let headers = self.0.get(place)?.as_object()?;
        headers.keys().find(|name| name.eq_ignore_ascii_case(KEY_HEADER)).cloned()
    }

    fn with_key(&self, key: &str) -> Self {
        let mut event = self.clone();
        if let Some(name) = self.key_header("headers") {
            event.0["headers"][name] = Value::from(key);
        }
        if let Some(name) = self.key_header("multiValueHeaders") {
            event.0["multiValueHeaders"][name] = Value::from(vec![key]);
        }
        event
    }

    /// Sets the order in a body that has an `order_id`, so that each step's payments can be counted
    /// separately.
    fn with_order(&self, order: &str) -> Self {
        let mut event = self.clone();
        let body = self.0.get("body").and_then(Value::as_str).unwrap_or_default();
        if let Ok(mut body) = serde_json::from_str::<Value>(body)
            && body.get("order_id").is_some()
        {
            body["order_id"] = Value::from(order);
            event.0["body"] = Value::from(body.to_string());
        }
        event
    }
}

/// Replaces the value at this JSON Pointer. Does nothing if the value is missing, or isn't in the form that `renew`
/// expects.
fn replace(json: &mut Value, pointer: &str, renew: fn(&Value) -> Option<Value>) {
    if let Some(value) = json.pointer_mut(pointer)
        && let Some(renewed) = renew(value)
    {
        *value = renewed;
    }
}

fn another_id(id: &Value) -> Option<Value> {
    id.as_str().map(|id| format!("{id}-again").into())
}

/// Changes the seconds' last digit in a time such as `20/Nov/2026:09:15:44 +0000`.
fn another_time(time: &Value) -> Option<Value> {
    let (time, zone) = time.as_str()?.split_once(' ')?;
    let digit = time.chars().last()?.to_digit(10)?;
    let before = time.strip_suffix(|last: char| last.is_ascii_digit())?;
    Some(format!("{before}{} {zone}", (digit + 1) % 10).into())
}

fn another_epoch(time: &Value) -> Option<Value> {
    time.as_u64().map(|time| time.saturating_add(1_000).into())
}

fn another_count(count: &Value) -> Option<Value> {
    let count: u64 = count.as_str()?.parse().ok()?;
    Some(count.saturating_add(1).to_string().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../events/payments")
    }

    #[test]
    fn each_step_sets_its_key_and_order() {
        let events = Events::of_payments(&folder()).unwrap();
        assert!(events.take_keys());
        assert_eq!(events.first.summary(), "POST /payments");
        let step = events.for_step("step-7");
        let conflicting = step.conflicting.unwrap();
        for event in [&step.first, &step.again, &conflicting] {
            assert_eq!(event.0["headers"]["idempotency-key"], "step-7");
            assert!(event.0["body"].as_str().unwrap().contains("\"order_id\":\"step-7\""));
        }
        assert_eq!(step.first.0["body"], step.again.0["body"], "a retry must send the same body");
        assert_ne!(
            step.first.0["requestContext"], step.again.0["requestContext"],
            "a retry must have its own request context"
        );
        assert_ne!(step.first.0["body"], conflicting.0["body"]);
    }

    #[test]
    fn payment_lookup_event_has_no_key() {
        let event = Event::read(&folder().join("http-api-get.json")).unwrap();
        assert!(!event.has_key());
        assert!(event.summary().starts_with("GET /payments/"));
    }

    #[test]
    fn key_is_found_in_any_header_case() {
        let event = Event(json!({
            "headers": { "Idempotency-Key": "k" },
            "multiValueHeaders": { "Idempotency-Key": ["k"] },
        }));
        let expected = json!({
            "headers": { "Idempotency-Key": "mine" },
            "multiValueHeaders": { "Idempotency-Key": ["mine"] },
        });
        assert_eq!(event.with_key("mine").0, expected);
    }

    #[test]
    fn event_without_a_key_is_unchanged() {
        let event = Event(json!({ "Records": [{ "body": "{}" }] }));
        assert!(!Events::of_one(event.clone()).take_keys());
        assert_eq!(Events::of_one(event.clone()).for_step("step").first, event);
        assert_eq!(event.summary(), "the event");
    }

    #[test]
    fn redelivered_requests_have_new_ids_and_times() {
        let event = |id: &str, time: &str, epoch: u64, trace: &str| {
            Event(json!({
                "httpMethod": "POST",
                "headers": { "X-Amzn-Trace-Id": trace, "accept": "*/*" },
                "multiValueHeaders": { "X-Amzn-Trace-Id": [trace], "accept": ["*/*"] },
                "requestContext": {
                    "accountId": "123456789012", "requestId": id, "extendedRequestId": id,
                    "time": time, "requestTime": time, "timeEpoch": epoch, "requestTimeEpoch": epoch,
                },
                "body": "{\"sent_at\":1}",
            }))
        };
        let first = event("UQm=", "20/Nov/2026:09:15:49 +0000", 1_795_166_149_000, "Root=1-6b000fc0-3c5d");
        let again = event("UQm=-again", "20/Nov/2026:09:15:40 +0000", 1_795_166_150_000, ANOTHER_TRACE);
        let events = Events::of_one(first.clone()).for_step("step");
        assert_eq!(events.first, first);
        assert_eq!(events.again, again);
    }

    #[test]
    fn http_requests_are_recognised_by_their_fields() {
        for event in [
            json!({ "httpMethod": "POST", "requestContext": { "requestId": "r" } }),
            json!({ "method": "POST", "requestContext": { "requestId": "r" } }),
            json!({ "requestContext": { "requestId": "r", "http": { "method": "POST" } } }),
            json!({ "requestContext": { "requestId": "r", "routeKey": "pay" } }),
        ] {
            let again = Events::of_one(Event(event)).again;
            assert_eq!(again.0["requestContext"]["requestId"], "r-again", "{again:?}");
        }
    }

    #[test]
    fn redelivered_messages_get_another_receipt() {
        let message = |receipt: &str, count: &str| {
            let attributes = json!({ "ApproximateReceiveCount": count, "SentTimestamp": "17" });
            let message = json!({ "messageId": "m", "receiptHandle": receipt, "attributes": attributes });
            Event(json!({ "Records": [message] }))
        };
        let again = Events::of_one(message("r", "1")).again;
        assert_eq!(again, message("r-again", "2"));
    }

    #[test]
    fn redelivered_plain_events_are_unchanged() {
        for event in [
            json!({ "id": 1, "time": "t", "requestContext": { "time": "t", "requestId": 1 } }),
            json!([1]),
            // A Lambda destination's record.
            json!({
                "version": "1.0", "timestamp": "2026-11-20T09:15:49.000Z",
                "requestContext": { "requestId": "r", "condition": "Success", "approximateInvokeCount": 1 },
                "requestPayload": {}, "responsePayload": {},
            }),
        ] {
            let events = Events::of_one(Event(event));
            assert_eq!(events.again, events.first);
        }
    }

    #[test]
    fn invalid_or_missing_event_is_reported() {
        let problem = Event::parse(b"{").unwrap_err().to_string();
        assert!(problem.starts_with("isn't JSON: "), "{problem}");
        let missing = Event::read(Path::new("no-such-event.json")).unwrap_err().to_string();
        assert!(missing.starts_with("couldn't read the event file no-such-event.json: "), "{missing}");
    }
}
