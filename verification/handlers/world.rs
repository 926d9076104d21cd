//! The effects that a handler can have, and the types and events that the handlers share.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::{error::Error as StdError, fmt, pin::Pin};

pub use std::sync::Arc;
pub use std::time::{Duration, SystemTime};

pub use lambda_http::http::request::Parts;
pub use lambda_http::{Body, Request, Response};
pub use lambda_idempotency::lambda::batch::{Batch, SqsMessage};
pub use lambda_idempotency::{Begun, Failure, Fingerprint, Idempotency, Key, KeyFields, current, staging};
pub use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
pub use serde::{Deserialize, Serialize};
pub use serde_json::{Value, json, value::RawValue};
pub use tower::util::BoxCloneService;

pub use crate::{http_event, sqs_event};

/// A function that gets an event's JSON and answers with JSON.
pub type EventFunction = BoxCloneService<LambdaEvent<Box<RawValue>>, Box<RawValue>, Error>;
/// A function that gets a request.
pub type HttpFunction = BoxCloneService<Request, Response<Body>, Error>;
/// A function that gets a batch of SQS messages.
pub type SqsFunction = Batch<SqsMessage>;

/// A call that has one effect. Any poll of the future may cause the effect.
pub type Effect<'a, T> = Pin<Box<dyn Future<Output = Result<T, GatewayError>> + Send + 'a>>;

/// Why an effect failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "these tests never decline a call")]
pub enum GatewayError {
    /// The called system refused, and did nothing. It would refuse a retry too.
    Declined,
    /// No answer: the effect may have happened. A retry may work.
    Unavailable,
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declined => "declined",
            Self::Unavailable => "no answer",
        })
    }
}

impl StdError for GatewayError {}

/// The systems that the handlers call.
pub trait World: Send + Sync + 'static {
    /// Takes `cents` from the account, and returns the charge's id. If an earlier charge had the same key, takes
    /// nothing and returns that charge's id.
    fn charge<'a>(&'a self, key: Option<&'a str>, account: &'a str, cents: u64) -> Effect<'a, String>;

    /// Pays a charge back. A second refund of the same charge does nothing.
    fn refund<'a>(&'a self, charge: &'a str) -> Effect<'a, ()>;

    /// Sends a mail, unless a mail with the same dedup id was sent already.
    fn send_mail<'a>(&'a self, dedup: Option<&'a str>, to: &'a str, text: &'a str) -> Effect<'a, ()>;

    /// Sends a message to a queue, unless a message with the same dedup id was sent already.
    fn publish<'a>(&'a self, queue: &'a str, dedup: Option<&'a str>, message: &'a str) -> Effect<'a, ()>;

    /// Writes an item, and replaces an existing item with the same id. A second write of the same item changes nothing.
    fn put_item<'a>(&'a self, table: &'a str, id: &'a str, item: &'a str) -> Effect<'a, ()>;

    /// Adds to a number, such as a stock or a balance. Adding twice adds twice.
    fn add<'a>(&'a self, table: &'a str, id: &'a str, number: i64) -> Effect<'a, ()>;
}

/// An order, as most of the handlers get it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub id: String,
    pub account: String,
    pub email: String,
    pub cents: u64,
}

/// A random id, new in each call.
pub fn uuid() -> String {
    format!(
        "{:016x}{:016x}",
        RandomState::new().build_hasher().finish(),
        RandomState::new().build_hasher().finish()
    )
}

/// Milliseconds since 1970.
pub fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_millis())
}

/// Makes a function from a service that gets an event's JSON, such as a handler behind the layer for typed events.
pub fn on_event<S>(service: S) -> EventFunction
where
    S: tower::Service<LambdaEvent<Box<RawValue>>, Response = Box<RawValue>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Error> + 'static,
{
    BoxCloneService::new(ServiceBuilder::new().map_err(Into::into).service(service))
}

/// Makes a function from a handler that has no layer and calls `run` or `begin` itself.
pub fn plain<T, R, H, F>(handler: H) -> EventFunction
where
    T: serde::de::DeserializeOwned + Send + 'static,
    R: Serialize + Send + 'static,
    H: Fn(LambdaEvent<T>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    on_event(service_fn(move |event: LambdaEvent<Box<RawValue>>| {
        let handler = handler.clone();
        async move {
            let payload: T = serde_json::from_str(event.payload.get())?;
            let answer = handler(LambdaEvent::new(payload, event.context)).await?;
            Ok::<_, Error>(serde_json::value::to_raw_value(&answer)?)
        }
    }))
}

/// An HTTP answer with a JSON body.
pub fn answer(status: u16, body: &Value) -> Result<Response<Body>, Error> {
    let response = Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(Body::Text(body.to_string()))?)
}

/// The request's body, read as JSON.
pub fn body<T: serde::de::DeserializeOwned>(request: &Request) -> Result<T, Error> {
    Ok(serde_json::from_slice(request.body().as_ref())?)
}

/// Makes the event of an HTTP API with a JWT authorizer, from the caller, further headers, a trace id and the body.
/// Pass the headers and the body as they appear in the event's JSON: a comma before each header, and the body's quotes
/// escaped.
#[macro_export]
macro_rules! http_event {
    ($subject:literal, $headers:literal, $trace:literal, $body:literal) => {
        concat!(
            r#"{"version":"2.0","routeKey":"POST /payments","rawPath":"/payments","rawQueryString":"","headers":{"#,
            r#""content-type":"application/json","host":"api.example.com","authorization":"Bearer of "#, $subject,
            r#"","x-amzn-trace-id":"Root="#, $trace, r#"","x-request-id":""#, $trace, "\"", $headers,
            r#"},"requestContext":{"accountId":"123456789012","apiId":"a1b2c3d4e5","domainName":"api.example.com","#,
            r#""domainPrefix":"api","authorizer":{"jwt":{"claims":{"iss":"https://login.example.com","sub":""#,
            $subject, r#""},"scopes":null}},"http":{"method":"POST","path":"/payments","protocol":"HTTP/1.1","#,
            r#""sourceIp":"203.0.113.24","userAgent":"shop/2.4"},"requestId":""#, $trace, r#"","routeKey":"#,
            r#""POST /payments","stage":"$default","time":"20/Nov/2026:09:15:44 +0000","timeEpoch":1795166144000},"#,
            r#""body":""#, $body, r#"","isBase64Encoded":false}"#
        )
    };
}

/// Makes the event of an SQS queue, from each message's id and body. With `fifo`, makes the event of a FIFO queue, with
/// one message group. Pass each body as it appears in the event's JSON: with its quotes escaped.
#[macro_export]
macro_rules! sqs_event {
    ($(($id:literal, $body:literal)),+) => {
        $crate::sqs_event!(@records "orders", $((concat!("m-", $id), $id, r#""SenderId":"AROAEXAMPLE""#, $body)),+)
    };
    (fifo $group:literal $(($id:literal, $body:literal)),+) => {
        $crate::sqs_event!(@records "orders.fifo", $((concat!("m-", $id), $id, concat!(
            r#""MessageGroupId":""#, $group, r#"","MessageDeduplicationId":"dedup-"#, $id, "\""
        ), $body)),+)
    };
    (@records $queue:literal, $first:tt $(, $more:tt)*) => {
        concat!(
            r#"{"Records":["#, $crate::sqs_event!(@record $queue, $first),
            $(",", $crate::sqs_event!(@record $queue, $more),)* "]}"
        )
    };
    (@record $queue:literal, ($message:expr, $id:literal, $attributes:expr, $body:literal)) => {
        concat!(
            r#"{"messageId":""#, $message, r#"","receiptHandle":"handle-"#, $id, r#"","body":""#, $body,
            r#"","attributes":{"ApproximateReceiveCount":"1","SentTimestamp":"1795166330000","#, $attributes,
            r#"},"messageAttributes":{},"md5OfBody":"7ebbd04924495c5e40c68f8f55ba9b55","eventSource":"aws:sqs","#,
            r#""eventSourceARN":"arn:aws:sqs:eu-central-1:123456789012:"#, $queue,
            r#"","awsRegion":"eu-central-1"}"#
        )
    };
}
