//! The events that the rehearsal delivers, and the keys and orders that it puts into them.

use std::path::Path;

use bytes::Bytes;
use serde_json::Value;

use crate::{
    expect::{self, Source},
    problem::{Context, Problem, Result},
};

const KEY_HEADER: &str = "idempotency-key";

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

    /// Uses the only event of a user's function for every delivery.
    pub fn of_one(event: Event) -> Self {
        Self { first: event.clone(), again: event, conflicting: None }
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
    fn invalid_json_error_names_the_file() {
        let problem = Event::parse(b"{").unwrap_err().to_string();
        assert!(problem.starts_with("isn't JSON: "), "{problem}");
        let missing = Event::read(Path::new("no-such-event.json")).unwrap_err().to_string();
        assert!(missing.starts_with("couldn't read the event file no-such-event.json: "), "{missing}");
    }
}
