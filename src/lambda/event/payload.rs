//! The payload of an event from a known source: the part that a retry repeats, without the fields that the delivery
//! adds.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    fingerprint::{Fingerprint, FingerprintBuilder},
    internal::FingerprintExt as _,
    lambda::{
        identity::{
            SESSION_TOKEN, VERIFIED_NAMES, cookies, is_credential, is_global, is_machine, is_shared_by_pool,
            is_signature, without_session,
        },
        source::{Fields, Text, stable},
    },
};

/// Each known source's events have one of these fields.
const NAMES: [&str; 5] =
    ["\"requestContext\"", "\"detail-type\"", "\"Records\"", "\"raw_path\"", "\"parentTypeName\""];

// The fields that each source sends. They're compared as the table in [the module](super) says. Every field that isn't
// listed here is compared: a state machine may have added it, and calls that differ in such a field aren't duplicates.
const OF_HTTP: [&str; 18] = [
    "version",
    "resource",
    "routeKey",
    "httpMethod",
    "method",
    "path",
    "rawPath",
    "rawQueryString",
    "queryStringParameters",
    "multiValueQueryStringParameters",
    "pathParameters",
    "stageVariables",
    "headers",
    "multiValueHeaders",
    "cookies",
    "requestContext",
    "body",
    "isBase64Encoded",
];
/// VPC Lattice's first event structure, which has no context.
const OF_FIRST_LATTICE: [&str; 6] =
    ["raw_path", "method", "headers", "query_string_parameters", "body", "is_base64_encoded"];
/// The context of an AppSync resolver.
const OF_APPSYNC: [&str; 7] = ["arguments", "source", "prev", "stash", "identity", "request", "info"];
const OF_APPSYNC_INFO: [&str; 5] =
    ["fieldName", "parentTypeName", "variables", "selectionSetList", "selectionSetGraphQL"];
/// A replay from an archive adds `replay-name`.
const OF_EVENT_BUS: [&str; 10] = [
    "version",
    "id",
    "source",
    "account",
    "detail-type",
    "time",
    "region",
    "resources",
    "detail",
    "replay-name",
];
const OF_SNS_RECORD: [&str; 4] = ["EventSource", "EventVersion", "EventSubscriptionArn", "Sns"];
/// Some field names end in `Url` in Lambda's events, but in `URL` in SNS's HTTP deliveries.
const OF_SNS: [&str; 13] = [
    "Type",
    "MessageId",
    "TopicArn",
    "Subject",
    "Message",
    "Timestamp",
    "SignatureVersion",
    "Signature",
    "SigningCertUrl",
    "SigningCertURL",
    "UnsubscribeUrl",
    "UnsubscribeURL",
    "MessageAttributes",
];
const OF_KINESIS_RECORD: [&str; 8] = [
    "eventSource",
    "eventSourceARN",
    "eventID",
    "eventName",
    "eventVersion",
    "awsRegion",
    "invokeIdentityArn",
    "kinesis",
];
const OF_KINESIS: [&str; 6] = [
    "kinesisSchemaVersion",
    "partitionKey",
    "sequenceNumber",
    "data",
    "approximateArrivalTimestamp",
    "encryptionType",
];
const OF_CHANGE_RECORD: [&str; 8] = [
    "eventSource",
    "eventSourceARN",
    "eventID",
    "eventName",
    "eventVersion",
    "awsRegion",
    "userIdentity",
    "dynamodb",
];
const OF_CHANGE: [&str; 7] = [
    "ApproximateCreationDateTime",
    "Keys",
    "NewImage",
    "OldImage",
    "SequenceNumber",
    "SizeBytes",
    "StreamViewType",
];
/// Some notifications have further fields, such as `glacierEventData`. They aren't in this list, so they're compared.
const OF_S3_RECORD: [&str; 9] = [
    "eventSource",
    "eventName",
    "eventVersion",
    "eventTime",
    "awsRegion",
    "userIdentity",
    "requestParameters",
    "responseElements",
    "s3",
];
const OF_S3: [&str; 4] = ["s3SchemaVersion", "configurationId", "bucket", "object"];
const OF_BUCKET: [&str; 3] = ["name", "ownerIdentity", "arn"];
const OF_SQS_RECORD: [&str; 10] = [
    "eventSource",
    "eventSourceARN",
    "awsRegion",
    "messageId",
    "receiptHandle",
    "body",
    "md5OfBody",
    "attributes",
    "messageAttributes",
    "md5OfMessageAttributes",
];

/// The fingerprint of the event's payload, by the table in [the module](super).
///
/// Returns `None` if the source is unknown, the event has a known source's field twice, or a part of the event can't be
/// read. The whole event is then compared.
pub(super) fn fingerprint(raw: &RawValue) -> Option<Fingerprint> {
    // Skips the parsing of events from other sources.
    if !NAMES.iter().any(|name| raw.get().contains(name)) {
        return None;
    }
    let event: Event<'_> = serde_json::from_str(raw.get()).ok()?;
    let begun = Fingerprint::builder("payload of an event");
    Some(
        of_http(&event, raw, &begun)
            .or_else(|| of_first_lattice(&event, raw, &begun))
            .or_else(|| of_appsync(&event, raw, &begun))
            .or_else(|| of_event_bus(&event, raw, &begun))
            .or_else(|| of_records(&event, raw, begun))?
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
    #[serde(rename = "isBase64Encoded", alias = "is_base64_encoded")]
    is_base64: Option<&'e RawValue>,

    raw_path: Option<&'e RawValue>,
    query_string_parameters: Option<&'e RawValue>,

    arguments: Option<&'e RawValue>,
    prev: Option<&'e RawValue>,
    stash: Option<&'e RawValue>,
    identity: Option<&'e RawValue>,
    request: Option<&'e RawValue>,
    info: Option<&'e RawValue>,

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
fn of_http(event: &Event<'_>, raw: &RawValue, begun: &FingerprintBuilder) -> Option<FingerprintBuilder> {
    let context: Value = serde_json::from_str(event.context?.get()).ok()?;
    let of_http_api = context.pointer("/http/method");
    let route = context.get("routeKey");
    if event.method.is_none() && of_http_api.is_none() && route.is_none() {
        return None;
    }
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
    senders(event, &context)?
        .into_iter()
        .fold(builder, |builder, (name, value)| builder.part("sender", name).part("is", value))
        .others("event", raw, &OF_HTTP)
}

/// The header in which VPC Lattice names the principal that it verified, in its first event structure.
const LATTICE_IDENTITY: &str = "x-amzn-lattice-identity";

/// Adds the request and its sender, for an event of VPC Lattice in its first structure.
///
/// Its sender is the principal that VPC Lattice verified, and everything that carries a credential. A principal's own
/// signature and session token aren't compared, since a retry has new ones.
fn of_first_lattice(
    event: &Event<'_>,
    raw: &RawValue,
    begun: &FingerprintBuilder,
) -> Option<FingerprintBuilder> {
    let (Some(path), Some(_), None) = (event.raw_path, event.method, event.context) else { return None };
    let mut senders = credentials(event)?;
    let headers = Fields::of(event.headers?);
    let of_identity = headers.0.iter().filter(|(name, _)| name.eq_ignore_ascii_case(LATTICE_IDENTITY));
    for (_, value) in of_identity {
        let identity: String = serde_json::from_str(value.get()).ok()?;
        let principal = identity.split(';').filter_map(|part| part.trim().strip_prefix("Principal="));
        let principal =
            principal.filter(|name| !name.is_empty()).map(without_session).collect::<Vec<_>>().join(";");
        if principal.is_empty() {
            senders.push((LATTICE_IDENTITY.to_owned(), identity));
            continue;
        }
        senders.retain(|(name, value)| match name.as_str() {
            "authorization" => !value.starts_with("AWS4-"),
            "x-amz-security-token" => false,
            _ => true,
        });
        senders.push(("principal".to_owned(), principal));
    }
    let builder = begun
        .clone()
        .part("kind", "first lattice")
        .value("method", event.method)
        .value("path", Some(path))
        .value("query", event.query_string_parameters)
        .content("body", event.body)
        .value("base64", event.is_base64);
    senders
        .into_iter()
        .fold(builder, |builder, (name, value)| builder.part("sender", name).part("is", value))
        .others("event", raw, &OF_FIRST_LATTICE)
}

/// Adds the field that a client of AppSync asks for, its arguments and the client, for the event of a resolver.
fn of_appsync(event: &Event<'_>, raw: &RawValue, begun: &FingerprintBuilder) -> Option<FingerprintBuilder> {
    let (Some(_), Some(info)) = (event.arguments, event.info) else { return None };
    let asked = Fields::of(info);
    let builder = begun
        .clone()
        .part("kind", "appsync")
        .value("type", Some(asked.get("parentTypeName")?))
        .value("field", Some(asked.get("fieldName")?))
        .others("info", info, &OF_APPSYNC_INFO)?
        .value("arguments", event.arguments)
        .value("source", event.source)
        .value("prev", event.prev)
        .value("stash", event.stash);
    let (builder, senders) = match event.identity.and_then(subject) {
        Some(subject) => (builder, subject),
        // An API key or a Lambda authorizer's token, for example.
        None => {
            let headers = Fields::of(event.request?).get("headers")?;
            (
                builder.value("identity", event.identity),
                credentials_in(serde_json::from_str(headers.get()).ok()?),
            )
        }
    };
    senders
        .into_iter()
        .fold(builder, |builder, (name, value)| builder.part("sender", name).part("is", value))
        .others("event", raw, &OF_APPSYNC)
}

/// The fields that identify the user whom AppSync verified, and that a refreshed token doesn't change: an issuer and its
/// subject, or an identity of a Cognito pool, or an IAM user. `None` if there's no such user.
fn subject(identity: &RawValue) -> Option<Vec<(String, String)>> {
    let fields = Fields::of(identity);
    let named = |name: &&str| {
        let text = fields.text(name).filter(|text| !text.is_empty())?;
        Some(((*name).to_owned(), without_session(&text).to_owned()))
    };
    [["issuer", "sub"], ["cognitoIdentityPoolId", "cognitoIdentityId"], ["accountId", "username"]]
        .iter()
        .find_map(|names| names.iter().map(named).collect())
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

/// The values that identify the request's sender. `None` if the headers can't be read.
fn senders(event: &Event<'_>, context: &Value) -> Option<Vec<(String, String)>> {
    let mut senders = verified(context);
    // An issuer without a subject doesn't identify a sender.
    let is_named = !senders.iter().all(|(name, _)| name.ends_with("/iss") || name.ends_with("/issuerDN"));
    let is_global = is_global(|name| senders.iter().any(|(sender, _)| sender == name));
    let is_machine = is_named && senders.iter().all(|(name, _)| is_machine(name));
    if !is_named {
        senders.extend(unnamed(context));
    }
    let identified = |name: &str| (format!("/{name}"), text(context.get(name)).to_owned());
    if !senders.is_empty() && !is_global {
        senders.extend(["apiId", "stage"].map(identified));
    }
    if is_machine {
        // Several people may stand behind a role or a certificate. The role's own signature differs in each request.
        let is_own = |name: &str, value: &str| match name {
            "authorization" => is_signature(value),
            name => name == SESSION_TOKEN,
        };
        senders.extend(credentials(event)?.into_iter().filter(|(name, value)| !is_own(name, value)));
    }
    if !is_named {
        // The handler may check these credentials, and a request from another sender isn't a retry.
        senders.extend(credentials(event)?);
        // A WebSocket's messages carry no headers. The handler may know their sender by the connection.
        senders.extend(context.get("connectionId").map(|_| identified("connectionId")));
    }
    Some(senders)
}

/// The sender that the front end verified, identified by the values that stay the same when a token is refreshed or a
/// role starts another session.
fn verified(context: &Value) -> Vec<(String, String)> {
    let named = VERIFIED_NAMES.iter().filter_map(|name| match context.pointer(name)? {
        Value::Null => None,
        Value::String(id) if id.is_empty() || is_shared_by_pool(id) => None,
        Value::String(id) => Some(((*name).to_owned(), without_session(id).to_owned())),
        other => Some(((*name).to_owned(), other.to_string())),
    });
    named.collect()
}

/// An authorizer's context, for a request without a verified sender: everything but the authorizer's latency, which
/// differs in each request.
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
    Some(credentials_in(headers))
}

/// The credentials in these headers, sorted.
fn credentials_in(headers: BTreeMap<String, Value>) -> Vec<(String, String)> {
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
    carried
}

/// Adds the detail and its source, for an event of EventBridge or its scheduler.
fn of_event_bus(event: &Event<'_>, raw: &RawValue, begun: &FingerprintBuilder) -> Option<FingerprintBuilder> {
    let (Some(_), Some(of), Some(_)) = (event.source, event.detail_type, event.detail) else { return None };
    // The events of one schedule differ only in their scheduled time.
    let scheduled_for = event.time.filter(|_| of.get() == r#""Scheduled Event""#);
    begun
        .clone()
        .part("kind", "event bus")
        .value("source", event.source)
        .value("account", event.account)
        .value("type", event.detail_type)
        .value("time", scheduled_for)
        .value("resources", event.resources)
        .value("detail", event.detail)
        .others("event", raw, &OF_EVENT_BUS)
}

/// Adds each record's content and source, for an event of SNS, SQS, Kinesis, DynamoDB Streams or S3. `None` if the
/// event has no records, since its source is then unknown. A tumbling window's last event has none.
fn of_records(event: &Event<'_>, raw: &RawValue, begun: FingerprintBuilder) -> Option<FingerprintBuilder> {
    let records = event.records.as_ref().filter(|records| !records.is_empty())?;
    let builder = begun.part("kind", "records").others("event", raw, &["Records"])?;
    records.iter().try_fold(builder, |builder, raw| {
        let record: Record<'_> = serde_json::from_str(raw.get()).ok()?;
        let from = stable(record.arn.0.as_deref().unwrap_or_default());
        let builder = builder.part("source", record.source.as_deref()?).part("from", from);
        record.add_to(builder, raw)
    })
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Record<'e> {
    /// SNS names this field `EventSource`.
    #[serde(rename = "eventSource", alias = "EventSource", borrow)]
    source: Option<Cow<'e, str>>,
    #[serde(rename = "eventSourceARN", default, borrow)]
    arn: Text<'e>,
    #[serde(rename = "eventName")]
    name: Option<&'e RawValue>,
    #[serde(rename = "Sns")]
    sns: Option<&'e RawValue>,
    body: Option<&'e RawValue>,
    kinesis: Option<&'e RawValue>,
    dynamodb: Option<&'e RawValue>,
    s3: Option<&'e RawValue>,
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
    bucket: Option<&'e RawValue>,
    object: Option<&'e RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'e"))]
struct Bucket<'e> {
    name: Option<&'e RawValue>,
}

impl Record<'_> {
    /// Adds the content of the record, whose JSON is `raw`, if its source is known.
    fn add_to(&self, builder: FingerprintBuilder, raw: &RawValue) -> Option<FingerprintBuilder> {
        if let Some(sns) = self.sns {
            return of_sns(builder.others("record", raw, &OF_SNS_RECORD)?, sns);
        }
        if let Some(kinesis) = self.kinesis {
            let builder = builder.others("record", raw, &OF_KINESIS_RECORD)?;
            let data = serde_json::from_str::<Kinesis<'_>>(kinesis.get()).ok()?.data;
            return builder.value("data", data).others("kinesis", kinesis, &OF_KINESIS);
        }
        if let Some(change) = self.dynamodb {
            let builder = builder.others("record", raw, &OF_CHANGE_RECORD)?;
            return of_change(builder.value("name", self.name), change);
        }
        if let Some(s3) = self.s3 {
            let builder = builder.others("record", raw, &OF_S3_RECORD)?;
            return of_s3(builder.value("name", self.name), s3);
        }
        if self.source.as_deref() != Some("aws:sqs") {
            return None;
        }
        builder.content("body", self.body).others("record", raw, &OF_SQS_RECORD)
    }
}

fn of_sns(builder: FingerprintBuilder, raw: &RawValue) -> Option<FingerprintBuilder> {
    let sns: Sns<'_> = serde_json::from_str(raw.get()).ok()?;
    let builder = builder.value("topic", sns.topic_arn).value("subject", sns.subject);
    builder.content("message", sns.message).others("Sns", raw, &OF_SNS)
}

fn of_change(builder: FingerprintBuilder, raw: &RawValue) -> Option<FingerprintBuilder> {
    let change: Change<'_> = serde_json::from_str(raw.get()).ok()?;
    let builder = builder.value("keys", change.keys).value("new", change.new_image);
    builder.value("old", change.old_image).others("dynamodb", raw, &OF_CHANGE)
}

fn of_s3(builder: FingerprintBuilder, raw: &RawValue) -> Option<FingerprintBuilder> {
    let s3: S3<'_> = serde_json::from_str(raw.get()).ok()?;
    let builder = builder.value("object", s3.object).others("s3", raw, &OF_S3)?;
    let Some(raw) = s3.bucket else { return Some(builder.value("bucket", None)) };
    let name = serde_json::from_str::<Bucket<'_>>(raw.get()).ok()?.name;
    builder.value("bucket", name).others("bucket", raw, &OF_BUCKET)
}

/// Adds parts of an event to a fingerprint.
trait Parts: Sized {
    /// Adds a field: its value, or the fact that it's absent.
    fn value(self, label: &str, value: Option<&RawValue>) -> Self;

    /// Adds the fields of the object `raw` whose names aren't in `sent`. `None` if `raw` isn't an object.
    fn others(self, of: &str, raw: &RawValue, sent: &[&str]) -> Option<Self>;

    /// Adds a text field's content: as JSON if it's JSON, and otherwise byte for byte.
    fn content(self, label: &str, text: Option<&RawValue>) -> Self;
}

impl Parts for FingerprintBuilder {
    fn value(self, label: &str, value: Option<&RawValue>) -> Self {
        match value {
            Some(value) => self.json_or_bytes(label, value.get()),
            None => self.part("absent", label),
        }
    }

    fn others(self, of: &str, raw: &RawValue, sent: &[&str]) -> Option<Self> {
        let Fields(mut others) = serde_json::from_str(raw.get()).ok()?;
        others.retain(|(name, _)| !sent.contains(&name.as_str()));
        // Sorted by name, since the order of names doesn't matter in JSON. The sort is stable, so fields with the same
        // name keep their order.
        others.sort_by(|(one, _), (another, _)| one.cmp(another));
        let begun = self.part("others of", of);
        Some(
            others
                .into_iter()
                .fold(begun, |builder, (name, value)| builder.part("other", name).value("is", Some(value))),
        )
    }

    fn content(self, label: &str, text: Option<&RawValue>) -> Self {
        match text.map(|text| serde_json::from_str::<String>(text.get())) {
            Some(Ok(content)) => self.json_or_bytes(label, content),
            _ => self.value(label, text),
        }
    }
}
