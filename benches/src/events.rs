//! Whole events, each through the library and without it: an SQS batch of 100 records beside the same requests by hand,
//! and HTTP requests beside `lambda_http` alone.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use aws_sdk_dynamodb::Client;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, poll_fn},
    stream::FuturesUnordered,
};
use lambda_http::{Adapter, Body, Request, Response, request::LambdaRequest, service_fn};
use lambda_idempotency::{
    Idempotency, Key,
    lambda::{
        batch::{Batch, SqsMessage},
        http::guarded,
    },
    store::dynamodb::DynamoDbStore,
};
use lambda_runtime::{Context, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use tower::{Layer as _, Service};

use crate::cases::{
    ByHand, Effort, Failure, Item, TABLE, Wire, completed, config, payment, receipt, refusal_with,
};

/// The records of a batch.
const RECORDS: usize = 100;
/// The bytes of a large body, before base64.
const LARGE: usize = 768 * 1024;

/// Who handles a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Handwritten code that sends the library's requests, whose values exist beforehand.
    ByHand,
    /// The library's worker.
    Library,
}

/// Whether a batch's operations are done already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// No.
    First,
    /// All.
    Again,
}

/// An HTTP request, and who handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A POST, without the library.
    Alone,
    /// A GET.
    Get,
    /// A POST without a key.
    NoKey,
    /// A POST with a new key.
    Key,
    /// The same, with the body compared byte for byte.
    KeyRaw,
}

/// A request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// 1 KB of JSON.
    Kilobyte,
    /// 1 MB of JSON: orders.
    Json,
    /// 1 MB of base64, for bytes.
    Base64,
}

/// An event, ready to be repeated.
pub(crate) struct Event(Box<dyn Fn() -> Answering>);

type Answering = BoxFuture<'static, Result<bool, Failure>>;

impl Event {
    /// Handles the event once. Returns whether the answer came from a record.
    ///
    /// # Errors
    ///
    /// If a record or a request isn't answered as it should be.
    pub(crate) async fn once(&self) -> Result<bool, Failure> {
        (self.0)().await
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// Prepares a batch.
///
/// # Errors
///
/// The library's error.
pub(crate) async fn batch(side: Side, delivery: Delivery) -> Result<Event, Failure> {
    let event: Arc<str> = sqs_event()?.into();
    let seen = Arc::default();
    worker(Wire::Records(Arc::clone(&seen)))?.handle(&event).await?;
    let items: HashMap<String, Value> = completed(&seen).into_iter().collect();
    let wire = match delivery {
        Delivery::First => Wire::Applies,
        Delivery::Again => Wire::RefusesEach(Arc::new(
            items.iter().map(|(id, item)| (id.clone(), refusal_with(item))).collect(),
        )),
    };
    let is_duplicate = delivery == Delivery::Again;
    Ok(match side {
        Side::Library => {
            let worker = worker(wire)?;
            Event(Box::new(move || {
                let (worker, event) = (worker.clone(), Arc::clone(&event));
                Box::pin(async move { worker.handle(&event).await.map(|()| is_duplicate) })
            }))
        }
        Side::ByHand => {
            let own: Vec<Item> = items.values().map(Item::of).collect::<Result<_, _>>()?;
            let first = items.values().next().ok_or("the batch recorded nothing")?;
            let client = Arc::new((ByHand::new(wire, Effort::Bare, first)?, own));
            Event(Box::new(move || {
                let (client, event) = (Arc::clone(&client), Arc::clone(&event));
                Box::pin(async move {
                    let (client, items) = &*client;
                    by_hand(client, items, &event).await
                })
            }))
        }
    })
}

/// The parts of an SQS event that a handwritten function needs.
#[derive(Deserialize)]
struct Messages<'e> {
    #[serde(rename = "Records", borrow)]
    records: Vec<Message<'e>>,
}

#[derive(Deserialize)]
struct Message<'e> {
    #[serde(borrow)]
    body: Cow<'e, str>,
}

async fn by_hand(client: &ByHand, items: &[Item], event: &str) -> Result<bool, Failure> {
    let messages: Messages<'_> = serde_json::from_str(event)?;
    let sent = messages.records.iter().zip(items).map(|(message, item)| async {
        std::hint::black_box(serde_json::from_str::<Value>(&message.body)?);
        client.send(item).await
    });
    let mut sent: FuturesUnordered<_> = sent.collect();
    let mut is_duplicate = false;
    while let Some(answer) = sent.next().await {
        is_duplicate = answer?;
    }
    Ok(is_duplicate)
}

#[derive(Clone)]
struct Worker(Batch<SqsMessage>);

impl Worker {
    async fn handle(&self, event: &str) -> Result<(), Failure> {
        let event = RawValue::from_string(event.to_owned())?;
        let mut worker = self.0.clone();
        let answer = worker.call(LambdaEvent::new(event, Context::default())).await?;
        match answer.get() {
            r#"{"batchItemFailures":[]}"# => Ok(()),
            returned => Err(format!("records were returned: {returned}").into()),
        }
    }
}

fn worker(wire: Wire) -> Result<Worker, Failure> {
    let key = |message: &SqsMessage| Key::from_json(message, "/payment_id");
    let handler = async |message: SqsMessage| {
        std::hint::black_box(message.json::<Value>()?);
        Ok::<_, lambda_idempotency::Failure>(receipt())
    };
    let handler = move |message| Box::pin(handler(message));
    let width = NonZeroUsize::new(RECORDS).ok_or("no records")?;
    Ok(Worker(idempotency(wire)?.sqs(key, handler).concurrency(width)))
}

fn idempotency(wire: Wire) -> Result<Idempotency, Failure> {
    let store = DynamoDbStore::new(Client::from_conf(config(wire, false)), TABLE)?;
    Ok(Idempotency::builder(store).function("payments").build()?)
}

/// An event with all fields that SQS sends, 1.4 KB for each record.
fn sqs_event() -> Result<String, Failure> {
    let record = |nth: usize| -> Result<Value, Failure> {
        Ok(json!({
            "messageId": format!("059f36b4-87a3-44ab-83d2-{nth:012}"),
            "receiptHandle": "AQEB".repeat(85),
            "body": serde_json::to_string(&payment(&format!("pay_{nth:014}")))?,
            "attributes": {
                "ApproximateReceiveCount": "1",
                "SentTimestamp": "1795208510319",
                "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                "ApproximateFirstReceiveTimestamp": "1795208510331",
            },
            "messageAttributes": {},
            "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:payments",
            "awsRegion": "eu-west-1",
        }))
    };
    let records: Vec<_> = (0..RECORDS).map(record).collect::<Result<_, _>>()?;
    Ok(json!({ "Records": records }).to_string())
}

/// Prepares an HTTP request.
///
/// # Errors
///
/// The library's error.
pub(crate) fn http(sent: Sent, content: Content) -> Result<Event, Failure> {
    let event: Arc<str> = http_event(sent, content).into();
    let handler = service_fn(pay);
    if sent == Sent::Alone {
        return Ok(answered(event, Adapter::from(handler)));
    }
    let layer = idempotency(Wire::Applies)?.http().fingerprint_raw_body(sent == Sent::KeyRaw);
    Ok(answered(event, guarded(layer.layer(handler))))
}

async fn pay(request: Request) -> Result<Response<Body>, Failure> {
    std::hint::black_box(request.body().len());
    let response = Response::builder().header("content-type", "application/json");
    Ok(response.body(Body::Text(r#"{"paid":true}"#.to_owned()))?)
}

/// Reads the event, as the runtime does, and lets `service` answer it.
fn answered<S>(event: Arc<str>, service: S) -> Event
where
    S: Service<LambdaEvent<LambdaRequest>, Response: Serialize + Send, Error = Failure, Future: Send>
        + Send
        + 'static,
    S::Future: 'static,
{
    let service = Arc::new(Mutex::new(service));
    Event(Box::new(move || {
        let (event, service) = (Arc::clone(&event), Arc::clone(&service));
        Box::pin(async move {
            let request: LambdaRequest = serde_json::from_str(&event)?;
            let service = || service.lock().unwrap_or_else(PoisonError::into_inner);
            poll_fn(|cx| service().poll_ready(cx)).await?;
            let answering = service().call(LambdaEvent::new(request, Context::default()));
            let answer = serde_json::to_string(&answering.await?)?;
            match answer.contains(r#""statusCode":200"#) {
                true => Ok(false),
                false => Err(format!("the function answered {answer}").into()),
            }
        })
    }))
}

/// An event of an HTTP API, as payload version 2.0.
fn http_event(sent: Sent, content: Content) -> String {
    let method = if sent == Sent::Get { "GET" } else { "POST" };
    let body = match content {
        Content::Kilobyte => orders(1024),
        Content::Json => orders(1024 * 1024),
        Content::Base64 => STANDARD.encode((0..LARGE).map(|nth| (nth % 251) as u8).collect::<Vec<_>>()),
    };
    let mut event = json!({
        "version": "2.0",
        "routeKey": format!("{method} /payments"),
        "rawPath": "/payments",
        "rawQueryString": "channel=web",
        "headers": {
            "accept": "*/*",
            "accept-encoding": "gzip, deflate, br",
            "authorization": format!("Bearer {}", "eyJhbGciOiJSUzI1NiJ9".repeat(20)),
            "content-length": body.len().to_string(),
            "content-type": if content == Content::Base64 { "application/octet-stream" } else { "application/json" },
            "host": "abcdef1234.execute-api.eu-west-1.amazonaws.com",
            "user-agent": "client/1.0",
            "x-amzn-trace-id": "Root=1-5e6722a7-cc56xmpl46db7ae02d4da47e",
            "x-forwarded-for": "192.0.2.1",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
        },
        "queryStringParameters": { "channel": "web" },
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "abcdef1234",
            "authorizer": { "jwt": { "claims": { "iss": "https://login.example", "sub": "user-17" } } },
            "domainName": "abcdef1234.execute-api.eu-west-1.amazonaws.com",
            "domainPrefix": "abcdef1234",
            "http": {
                "method": method,
                "path": "/payments",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "client/1.0",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": format!("{method} /payments"),
            "stage": "$default",
            "time": "10/Mar/2026:05:16:23 +0000",
            "timeEpoch": 1_795_208_510_319_u64,
        },
        "body": body,
        "isBase64Encoded": content == Content::Base64,
    });
    if matches!(sent, Sent::Key | Sent::KeyRaw) {
        event["headers"]["idempotency-key"] = "8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10".into();
    }
    event.to_string()
}

/// A list of orders, with at least this many bytes of JSON.
fn orders(bytes: usize) -> String {
    let mut list = String::from("[");
    while list.len() < bytes {
        let nth = list.len();
        list.push_str(&format!(
            r#"{{"id":"ord_{nth:08}","cents":{nth},"state":"PAID","note":"at the door"}},"#
        ));
    }
    list.push_str("{}]");
    list
}
