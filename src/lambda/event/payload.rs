//! The payload of an event from a known source: the part that a retry repeats, without the fields that the delivery
//! adds.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    fingerprint::{Fingerprint, FingerprintBuilder},
    lambda::{
        batch::source_arn,
        identity::{VERIFIED_NAMES, cookies, is_credential, without_session},
    },
};

/// Each known source's events have one of these fields.
const NAMES: [&str; 3] = ["\"requestContext\"", "\"detail-type\"", "\"Records\""];

/// The fingerprint of the event's payload, if the event is from a known source; the table is in
/// [the module](super). `None` means that the whole event is compared.
///
/// If an event has a field twice, the whole event is compared too.
pub(super) fn fingerprint(event: &RawValue) -> Option<Fingerprint> {
    // Skips the parsing of events from other sources.
    if !NAMES.iter().any(|name| event.get().contains(name)) {
        return None;
    }
    let event: Event<'_> = serde_json::from_str(event.get()).ok()?;
    let begun = Fingerprint::builder("payload of an event");
    Some(
        of_http(&event, &begun)
            .or_else(|| of_event_bus(&event, &begun))
            .or_else(|| of_records(&event, begun))?
            .finish(),
    )
}

/// The fields of all known sources' events. No event has the fields of two sources.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Event<'e> {
    #[serde(rename = "requestContext")]
    context: Option<&'e RawValue>,
    #[serde(rename = "httpMethod", alias = "method")]
    method: Option<&'e RawValue>,
    #[serde(alias = "rawPath")]
    path: Option<&'e RawValue>,
    #[serde(rename = "queryStringParameters")]
    query: Option<&'e RawValue>,
    #[serde(rename = "multiValueQueryStringParameters")]
    repeated_query: Option<&'e RawValue>,
    headers: Option<&'e RawValue>,
    #[serde(rename = "multiValueHeaders")]
    repeated_headers: Option<&'e RawValue>,
    cookies: Option<&'e RawValue>,
    body: Option<&'e RawValue>,
    #[serde(rename = "isBase64Encoded")]
    is_base64: Option<&'e RawValue>,

    source: Option<&'e RawValue>,
    account: Option<&'e RawValue>,
    #[serde(rename = "detail-type")]
    detail_type: Option<&'e RawValue>,
    time: Option<&'e RawValue>,
    resources: Option<&'e RawValue>,
    detail: Option<&'e RawValue>,

    #[serde(rename = "Records")]
    records: Option<Vec<&'e RawValue>>,
}

/// Adds the request and its sender, for an event of API Gateway, a function URL, a load balancer or VPC Lattice.
fn of_http(event: &Event<'_>, begun: &FingerprintBuilder) -> Option<FingerprintBuilder> {
    let raw = event.context?;
    let context: Value = serde_json::from_str(raw.get()).ok()?;
    let of_http_api = context.pointer("/http/method");
    let route = context.get("routeKey");
    if event.method.is_none() && of_http_api.is_none() && route.is_none() {
        return None;
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let builder = begun
        .clone()
        .part("kind", "http")
        .value("method", event.method)
        .part("method", text(of_http_api))
        .part("route", text(route))
        .value("path", event.path)
        .value("query", event.query)
        .value("query", event.repeated_query)
        .content("body", event.body)
        .value("base64", event.is_base64);
    let mut senders = verified(&context);
    // An issuer without a subject doesn't identify a sender.
    if senders.iter().all(|(name, _)| name.ends_with("/iss") || name.ends_with("/issuerDN")) {
        // The handler may check these credentials, and a request from another sender isn't a retry.
        senders.extend(credentials(event)?);
        senders.extend(unnamed(&context));
    }
    Some(
        senders
            .into_iter()
            .fold(builder, |builder, (name, value)| builder.part("sender", name).part("is", value)),
    )
}

/// The sender that the front end verified, identified by the values that stay the same when a token is refreshed or a
/// role starts another session.
fn verified(context: &Value) -> Vec<(String, String)> {
    let named = VERIFIED_NAMES.iter().filter_map(|name| match context.pointer(name)? {
        Value::Null => None,
        Value::String(id) if id.is_empty() => None,
        Value::String(id) => Some(((*name).to_owned(), without_session(id).to_owned())),
        other => Some(((*name).to_owned(), other.to_string())),
    });
    named.collect()
}

/// An authorizer's whole context, for a request without a verified sender. It leaves out the authorizer's latency,
/// which differs in each request.
fn unnamed(context: &Value) -> Option<(String, String)> {
    let mut authorizer = context.get("authorizer")?.as_object()?.clone();
    authorizer.remove("integrationLatency");
    (!authorizer.is_empty()).then(|| ("/authorizer".to_owned(), Value::Object(authorizer).to_string()))
}

/// The headers that carry a credential. `None` if the headers can't be read.
fn credentials(event: &Event<'_>) -> Option<Vec<(String, String)>> {
    let mut headers = BTreeMap::<String, Value>::new();
    if let Some(raw) = event.headers.or(event.repeated_headers) {
        headers = serde_json::from_str(raw.get()).ok()?;
    }
    if let Some(raw) = event.cookies {
        headers.insert("cookie".to_owned(), serde_json::from_str(raw.get()).ok()?);
    }
    let mut carried = Vec::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let values = match &value {
            Value::Array(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values.iter().filter_map(Value::as_str) {
            match name.as_str() {
                "cookie" => carried.extend(cookies(value).map(|cookie| (name.clone(), cookie.to_owned()))),
                _ if is_credential(&name) => carried.push((name.clone(), value.to_owned())),
                _ => {}
            }
        }
    }
    carried.sort();
    Some(carried)
}

/// Adds the detail and its source, for an event of EventBridge or its scheduler.
fn of_event_bus(event: &Event<'_>, begun: &FingerprintBuilder) -> Option<FingerprintBuilder> {
    let (Some(_), Some(of), Some(_)) = (event.source, event.detail_type, event.detail) else { return None };
    // The events of one schedule differ only in their scheduled time.
    let scheduled_for = event.time.filter(|_| of.get() == r#""Scheduled Event""#);
    Some(
        begun
            .clone()
            .part("kind", "event bus")
            .value("source", event.source)
            .value("account", event.account)
            .value("type", event.detail_type)
            .value("time", scheduled_for)
            .value("resources", event.resources)
            .value("detail", event.detail),
    )
}

/// Adds each record's content and source, for an event of SNS, SQS, Kinesis, DynamoDB Streams or S3.
fn of_records(event: &Event<'_>, begun: FingerprintBuilder) -> Option<FingerprintBuilder> {
    let records = event.records.as_ref()?;
    records.iter().try_fold(begun.part("kind", "records"), |builder, raw| {
        let record: Record<'_> = serde_json::from_str(raw.get()).ok()?;
        record.add_to(builder.part("source", record.source.as_deref()?).part("from", source_arn(raw)))
    })
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Record<'e> {
    /// SNS writes `EventSource`.
    #[serde(rename = "eventSource", alias = "EventSource", borrow)]
    source: Option<Cow<'e, str>>,
    #[serde(rename = "eventName")]
    name: Option<&'e RawValue>,
    #[serde(rename = "Sns")]
    sns: Option<Sns<'e>>,
    body: Option<&'e RawValue>,
    kinesis: Option<Kinesis<'e>>,
    dynamodb: Option<Change<'e>>,
    s3: Option<S3<'e>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'e"))]
struct Sns<'e> {
    topic_arn: Option<&'e RawValue>,
    subject: Option<&'e RawValue>,
    message: Option<&'e RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Kinesis<'e> {
    data: Option<&'e RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'e"))]
struct Change<'e> {
    keys: Option<&'e RawValue>,
    new_image: Option<&'e RawValue>,
    old_image: Option<&'e RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct S3<'e> {
    bucket: Option<Bucket<'e>>,
    object: Option<&'e RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Bucket<'e> {
    name: Option<&'e RawValue>,
}

impl Record<'_> {
    /// Adds the record's content, if its source is known.
    fn add_to(&self, builder: FingerprintBuilder) -> Option<FingerprintBuilder> {
        if let Some(sns) = &self.sns {
            let builder = builder.value("topic", sns.topic_arn).value("subject", sns.subject);
            return Some(builder.content("message", sns.message));
        }
        if let Some(kinesis) = &self.kinesis {
            return Some(builder.value("data", kinesis.data));
        }
        if let Some(change) = &self.dynamodb {
            let builder = builder.value("name", self.name).value("keys", change.keys);
            return Some(builder.value("new", change.new_image).value("old", change.old_image));
        }
        if let Some(s3) = &self.s3 {
            let bucket = s3.bucket.as_ref().and_then(|bucket| bucket.name);
            let builder = builder.value("name", self.name).value("bucket", bucket);
            return Some(builder.value("object", s3.object));
        }
        if self.source.as_deref() != Some("aws:sqs") {
            return None;
        }
        Some(builder.content("body", self.body))
    }
}

impl FingerprintBuilder {
    /// Adds a field: its value, or the fact that it's absent.
    fn value(self, label: &str, value: Option<&RawValue>) -> Self {
        match value {
            Some(value) => self.json_or_bytes(label, value.get()),
            None => self.part("absent", label),
        }
    }

    /// Adds a text field's content: as JSON if it's JSON, and otherwise byte for byte.
    fn content(self, label: &str, text: Option<&RawValue>) -> Self {
        match text.map(|text| serde_json::from_str::<String>(text.get())) {
            Some(Ok(content)) => self.json_or_bytes(label, content),
            _ => self.value(label, text),
        }
    }
}
