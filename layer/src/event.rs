//! An invocation as the Runtime API hands it out: its headers, its event, and what kind of event it is.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use lambda_idempotency::{
    ClaimHandle, Invocation,
    time::{Clock as _, Timestamp, system_clock},
};
use lambda_runtime::Context;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::upstream::{INVOCATION_ID, REQUEST_ID};

const CLIENT_CONTEXT: HeaderName = HeaderName::from_static("lambda-runtime-client-context");
const DEADLINE: HeaderName = HeaderName::from_static("lambda-runtime-deadline-ms");
const FUNCTION_ARN: HeaderName = HeaderName::from_static("lambda-runtime-invoked-function-arn");
const IDENTITY: HeaderName = HeaderName::from_static("lambda-runtime-cognito-identity");

/// The kind of an event, which decides how it's protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One operation.
    Event,
    /// An HTTP request.
    Http,
    /// A batch of SQS messages.
    Sqs,
    /// A batch of Kinesis records.
    Kinesis,
    /// A batch of a DynamoDB stream's records.
    DynamoDb,
    /// A batch of Kafka's records.
    Kafka,
    /// A part of a durable function's execution.
    Durable,
}

/// The place where the function finds the facts of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimField {
    /// In this field of the event, or of each record.
    Event(String),
    /// Under this name in the custom values of the client context.
    Context(String),
}

impl Kind {
    /// Whether the event has several records, each of which is an operation.
    pub(crate) fn is_batch(self) -> bool {
        matches!(self, Self::Sqs | Self::Kinesis | Self::DynamoDb | Self::Kafka)
    }

    /// The kind of a batch of this source, or of an event that isn't a batch.
    fn of_source(source: Option<&str>) -> Self {
        match source {
            Some("aws:sqs") => Self::Sqs,
            Some("aws:kinesis") => Self::Kinesis,
            Some("aws:dynamodb") => Self::DynamoDb,
            Some("aws:kafka" | "SelfManagedKafka" | "aws:SelfManagedKafka") => Self::Kafka,
            _ => Self::Event,
        }
    }
}

/// One invocation.
#[derive(Debug)]
pub(crate) struct Event {
    /// The invocation's headers, without those of the connection.
    pub(crate) headers: HeaderMap,
    /// The event.
    pub(crate) body: Bytes,
    /// The headers as the library reads them.
    pub(crate) context: Context,
    /// The invocation's deadline on the wall clock and on the monotonic clock, if it's plausible.
    deadline: Option<(Timestamp, Instant)>,
    /// The event's kind by its fields, once it was asked for: reading it takes a parse of the event.
    kind: OnceLock<Kind>,
    /// Whether the event is an array, once that was asked for.
    is_piped: OnceLock<bool>,
    /// Whether the library was called.
    is_claimed: AtomicBool,
    /// Whether the function was called.
    has_begun: AtomicBool,
    /// How many workers the invocation can use at the same time.
    width: AtomicUsize,
    /// Whether an answer was sent to the Runtime API, or is on its way.
    is_answered: AtomicBool,
    /// Whether the Runtime API has responded to the answer.
    is_posted: AtomicBool,
}

/// The fields that show an event's kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Shape<'e> {
    #[serde(rename = "Records", borrow)]
    records: Option<Vec<&'e RawValue>>,
    /// Kafka's events have these two fields.
    #[serde(rename = "records", borrow)]
    partitions: Option<&'e RawValue>,
    #[serde(rename = "eventSource", borrow)]
    source: Option<&'e RawValue>,
    #[serde(rename = "requestContext", borrow)]
    request_context: Option<RequestContext<'e>>,
    /// Events of REST APIs and load balancers have this field.
    #[serde(rename = "httpMethod", borrow)]
    http_method: Option<&'e RawValue>,
    /// VPC Lattice's events have this field.
    #[serde(borrow)]
    method: Option<&'e RawValue>,
    /// Events of durable functions have these three fields.
    #[serde(rename = "DurableExecutionArn", borrow)]
    durable_execution: Option<&'e RawValue>,
    #[serde(rename = "CheckpointToken", borrow)]
    checkpoint: Option<&'e RawValue>,
    #[serde(rename = "InitialExecutionState", borrow)]
    execution_state: Option<&'e RawValue>,
}

impl Shape<'_> {
    fn is_durable(&self) -> bool {
        self.durable_execution.is_some() && self.checkpoint.is_some() && self.execution_state.is_some()
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RequestContext<'e> {
    #[serde(borrow)]
    http: Option<&'e RawValue>,
    /// A WebSocket's events have this field.
    #[serde(borrow)]
    connection_id: Option<&'e RawValue>,
}

impl Event {
    /// Reads the invocation from the Runtime API's response. A successful response with a request id is an invocation,
    /// even without a readable deadline. Any other response is returned unchanged, as the error.
    pub(crate) fn of(response: Response<Bytes>) -> Result<Self, Box<Response<Bytes>>> {
        if !response.status().is_success() || request_id(response.headers()).is_empty() {
            return Err(Box::new(response));
        }
        let (parts, body) = response.into_parts();
        let mut headers = parts.headers;
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
            headers.remove(name);
        }
        let context = context(&headers);
        let deadline = Timestamp::from_millis(context.deadline);
        let now = system_clock().now();
        let deadline = Invocation::entered(now, deadline, "").deadline();
        let deadline = deadline.map(|deadline| (deadline, system_clock().monotonic() + now.until(deadline)));
        let [is_claimed, has_begun, is_answered, is_posted] = [false; 4].map(AtomicBool::new);
        let (kind, is_piped) = (OnceLock::new(), OnceLock::new());
        Ok(Self {
            headers,
            body,
            context,
            deadline,
            kind,
            is_piped,
            is_claimed,
            has_begun,
            width: AtomicUsize::new(1),
            is_answered,
            is_posted,
        })
    }

    /// The request id.
    pub(crate) fn request_id(&self) -> &str {
        &self.context.request_id
    }

    /// Adds the invocation id to an answer's headers.
    pub(crate) fn answering(&self, mut headers: HeaderMap) -> HeaderMap {
        if let Some(id) = self.headers.get(INVOCATION_ID) {
            headers.insert(INVOCATION_ID, id.clone());
        }
        headers
    }

    /// Notes that the library is called, which claims the event or its records.
    pub(crate) fn claims(&self) {
        self.is_claimed.store(true, Ordering::Relaxed);
    }

    /// Whether the library was called. If so, the event, or some of its records, may be claimed or complete.
    pub(crate) fn may_be_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Relaxed)
    }

    /// Notes that the function is called.
    pub(crate) fn begins(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Whether the function was called.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Notes how many of the invocation's records are in flight. Each has its own event.
    pub(crate) fn in_flight(&self, records: usize) {
        self.width.store(records.max(1), Ordering::Relaxed);
    }

    /// How many workers the invocation can use at the same time: one, or one for each record in flight.
    pub(crate) fn width(&self) -> usize {
        self.width.load(Ordering::Relaxed)
    }

    /// Whether the calling code must send its answer. Only the first call returns true: Lambda takes one answer.
    pub(crate) fn answers_now(&self) -> bool {
        !self.is_answered.swap(true, Ordering::Relaxed)
    }

    /// Notes that the Runtime API has responded to the answer.
    pub(crate) fn posted(&self) {
        self.is_posted.store(true, Ordering::Relaxed);
    }

    /// Whether the Runtime API has responded to the answer. If it rejected the answer, the function may send another.
    pub(crate) fn is_posted(&self) -> bool {
        self.is_posted.load(Ordering::Relaxed)
    }

    /// How much time is left until the deadline, by the clock that leaves less; `None` if the deadline is unknown.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let (by_wall_clock, by_monotonic_clock) = self.deadline?;
        let left = by_monotonic_clock.saturating_duration_since(system_clock().monotonic());
        Some(left.min(system_clock().now().until(by_wall_clock)))
    }

    /// Whether the event was answered, or its deadline has passed. In both cases, another delivery of the event may
    /// run.
    pub(crate) fn is_over(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed) || self.time_left() == Some(Duration::ZERO)
    }

    /// The event's kind, by its fields. An event that isn't JSON is one operation.
    fn kind(&self) -> Kind {
        if let Some(first) = self.piped().and_then(|records| records.first().copied()) {
            return kind_of_record(first);
        }
        let Ok(shape) = serde_json::from_slice::<Shape<'_>>(&self.body) else { return Kind::Event };
        if shape.is_durable() {
            return Kind::Durable;
        }
        if let Some(context) = shape.request_context {
            let has_method = context.http.is_some() || shape.http_method.is_some() || shape.method.is_some();
            return if has_method && context.connection_id.is_none() { Kind::Http } else { Kind::Event };
        }
        let source = shape.source.and_then(|source| serde_json::from_str::<String>(source.get()).ok());
        match (shape.records.as_deref(), shape.partitions) {
            (Some([first, ..]), _) => kind_of_record(first),
            (None, Some(_)) if Kind::of_source(source.as_deref()) == Kind::Kafka => Kind::Kafka,
            _ => Kind::Event,
        }
    }

    /// Whether the event is a part of a durable function's execution.
    fn is_durable(&self) -> bool {
        serde_json::from_slice::<Shape<'_>>(&self.body).is_ok_and(|shape| shape.is_durable())
    }

    /// The event's kind, which the user's setting may name. A durable function's events are of no other kind.
    pub(crate) fn kind_or(&self, set: Option<Kind>) -> Kind {
        match set {
            None => *self.kind.get_or_init(|| self.kind()),
            Some(Kind::Event) if self.is_durable() => Kind::Durable,
            Some(kind) => kind,
        }
    }

    /// The event's elements if it's an array, as a pipe of EventBridge Pipes delivers a batch.
    pub(crate) fn piped(&self) -> Option<Vec<&RawValue>> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Whether the event is an array.
    pub(crate) fn is_piped(&self) -> bool {
        *self.is_piped.get_or_init(|| self.piped().is_some())
    }

    /// The tool that Bedrock AgentCore's gateway calls. Its event has only the tool's arguments, so the client context
    /// is the one place that tells two tools of a function apart.
    pub(crate) fn tool(&self) -> Option<String> {
        let context: Value = serde_json::from_slice(self.headers.get(CLIENT_CONTEXT)?.as_bytes()).ok()?;
        let custom = context.get("custom")?.as_object()?;
        // AWS documents two spellings.
        let named = custom.iter().find(|(name, _)| name.eq_ignore_ascii_case("bedrockAgentCoreToolName"));
        named?.1.as_str().map(str::to_owned)
    }

    /// The headers and the event for the function, with the facts of `claim` in `field`.
    pub(crate) fn with_claim(
        &self,
        field: Option<&ClaimField>,
        claim: Option<&ClaimHandle>,
    ) -> (HeaderMap, Bytes) {
        let (mut headers, mut body) = (self.headers.clone(), self.body.clone());
        match (field, claim.map(facts)) {
            (Some(ClaimField::Event(name)), Some(facts)) => {
                if let Some(extended) = with_field(&body, name, &facts) {
                    body = extended;
                }
            }
            // Without a claim, this removes the caller's own value of that name, which would look like a claim.
            (Some(ClaimField::Context(name)), facts) => {
                if let Some(context) = with_custom(headers.get(CLIENT_CONTEXT), name, facts) {
                    headers.insert(CLIENT_CONTEXT, context);
                }
            }
            _ => {}
        }
        (headers, body)
    }
}

/// The request id. Empty if there's none, or if it isn't text.
fn request_id(headers: &HeaderMap) -> &str {
    headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default()
}

/// The headers as the library reads them. A malformed header that the library doesn't need must not keep the event from
/// running. `Context::new` panics without a deadline, and fails if it can't read one of the other headers. So it gets
/// only headers that it can read.
fn context(headers: &HeaderMap) -> Context {
    let config = Arc::new(lambda_runtime::Config::default());
    let mut read = headers.clone();
    // Only the function reads these.
    for name in [CLIENT_CONTEXT, IDENTITY, FUNCTION_ARN] {
        read.remove(name);
    }
    let deadline = headers.get(DEADLINE).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    // The library treats the deadline 0 as unknown, so the lease has its fallback length.
    read.insert(DEADLINE, deadline.unwrap_or(0).into());
    Context::new(request_id(headers), config, &read).unwrap_or_default()
}

fn kind_of_record(record: &RawValue) -> Kind {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Record {
        event_source: Option<String>,
    }
    let record: Record = serde_json::from_str(record.get()).unwrap_or_default();
    Kind::of_source(record.event_source.as_deref())
}

/// The facts of a claim, as the function gets them.
pub(crate) fn facts(claim: &ClaimHandle) -> Value {
    serde_json::json!({
        "key": claim.derive_key(""),
        "attempt": claim.attempt(),
        "earlierAttemptMayHaveRun": claim.is_takeover(),
        "generation": claim.generation().get(),
    })
}

/// Adds a field at the end of the JSON object. `None` if `json` isn't an object.
pub(crate) fn with_field(json: &[u8], name: &str, value: &Value) -> Option<Bytes> {
    let trimmed = json.trim_ascii_end();
    let inner = trimmed.strip_suffix(b"}")?;
    let is_empty = inner.trim_ascii() == b"{";
    if !inner.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let field = format!("{}{}:{value}}}", if is_empty { "" } else { "," }, Value::from(name));
    Some([inner, field.as_bytes()].concat().into())
}

/// Sets a custom value of the client context, or removes it if `value` is `None`. Returns `None` if nothing changes, or
/// if the client context can't be read.
fn with_custom(context: Option<&HeaderValue>, name: &str, value: Option<Value>) -> Option<HeaderValue> {
    let mut context: Map<String, Value> = match context {
        Some(context) if !context.is_empty() => serde_json::from_slice(context.as_bytes()).ok()?,
        _ => Map::new(),
    };
    match value {
        Some(value) => {
            let custom = context.entry("custom").or_insert_with(|| Value::Object(Map::new()));
            // Runtimes read custom values as strings.
            custom.as_object_mut()?.insert(name.to_owned(), Value::String(value.to_string()));
        }
        None => drop(context.get_mut("custom")?.as_object_mut()?.remove(name)?),
    }
    HeaderValue::from_bytes(Value::Object(context).to_string().as_bytes()).ok()
}

/// Whether the JSON object has a field of this name at its top level.
pub(crate) fn has_field(json: &[u8], name: &str) -> bool {
    let fields: Result<std::collections::HashMap<String, serde::de::IgnoredAny>, _> =
        serde_json::from_slice(json);
    fields.is_ok_and(|fields| fields.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, headers: &[(&str, &str)]) -> Response<Bytes> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(Bytes::from_static(b"{}")).unwrap()
    }

    /// Only the monotonic clock advances here.
    #[tokio::test(start_paused = true)]
    async fn monotonic_clock_ends_events_too() {
        let in_a_minute =
            system_clock().now().saturating_add(Duration::from_secs(60)).as_millis().to_string();
        let id = ("lambda-runtime-aws-request-id", "r");
        let event = Event::of(response(200, &[id, ("lambda-runtime-deadline-ms", &in_a_minute)])).unwrap();
        assert!(!event.is_over());
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(event.is_over());
        assert_eq!(event.time_left(), Some(Duration::ZERO));
    }

    #[test]
    fn events_need_only_a_request_id() {
        let id = ("lambda-runtime-aws-request-id", "r");
        let in_an_hour = system_clock().now().saturating_add(Duration::from_secs(3600));
        let text = in_an_hour.as_millis().to_string();
        for (deadline, expected) in [
            (None, None),
            (Some("soon"), None),
            (Some(""), None),
            (Some("1"), None),
            (Some(text.as_str()), Some(Timestamp::from_millis(in_an_hour.as_millis()))),
        ] {
            let deadline = deadline.map(|deadline| ("lambda-runtime-deadline-ms", deadline));
            let tenant = ("lambda-runtime-aws-tenant-id", "anna");
            let headers: Vec<_> = [id, tenant].into_iter().chain(deadline).collect();
            let event = Event::of(response(200, &headers)).unwrap();
            assert_eq!(
                (event.request_id(), event.deadline.map(|(deadline, _)| deadline)),
                ("r", expected),
                "{deadline:?}"
            );
            assert_eq!(event.context.tenant_id.as_deref(), Some("anna"), "{deadline:?}");
        }
        let deadline = ("lambda-runtime-deadline-ms", text.as_str());
        for no_event in [response(200, &[deadline]), response(403, &[id, deadline])] {
            assert!(Event::of(no_event).is_err());
        }
    }
}
