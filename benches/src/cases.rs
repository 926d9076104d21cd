//! Compares an operation that runs through the library with handwritten code that sends the same requests.
//!
//! Both sides use the same SDK, in one process, over a connection that answers at once from memory. In a real call, the
//! wire, the kernel and the TLS library cost more than everything measured here. Without them, the library's share of
//! the cost is as large as it can be.
//!
//! [`Effort`] lists the three kinds of handwritten code.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    config::{
        BehaviorVersion, Config, Credentials, HttpClient, Region, RuntimeComponents,
        http::{HttpRequest, HttpResponse},
        timeout::TimeoutConfig,
    },
    operation::put_item::PutItemError,
    primitives::Blob,
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure::AllOld},
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector},
    result::ConnectorError,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lambda_idempotency::{
    Idempotency, Key, Operation,
    store::{Owner, dynamodb::DynamoDbStore},
    time::{Clock as _, system_clock},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) const TABLE: &str = "idempotency";
pub(crate) const KEY: &str = "pay_00000000000017";
/// Bytes of the local cache in the cases that have one.
pub(crate) const LOCAL_CACHE: usize = 16 * 1024 * 1024;

/// How much of the library's work the handwritten code does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Only the requests. All values exist beforehand. For a duplicate, the code checks the record's status and
    /// fingerprint, but doesn't decode the response.
    Bare,
    /// Like `Bare`, with the timeouts that the library's store sets. By default, the SDK sets no such timeouts.
    Timeouts,
    /// Like `Timeouts`, but the code also computes its values in each run, as plainly as possible. It hashes the key
    /// and the payload's JSON, draws an owner, and encodes and hashes the response. It checks and decodes a replayed
    /// response.
    Careful,
}

/// The library's side.
#[derive(Debug)]
pub(crate) struct Run {
    charge: Operation,
    receipt: Receipt<'static>,
}

impl Run {
    /// Creates an `Idempotency` over `wire`, with a local cache of `local_cache` bytes.
    ///
    /// # Errors
    ///
    /// None is expected.
    pub(crate) fn new(wire: Wire, local_cache: usize) -> Result<Self, Failure> {
        let client = Client::from_conf(config(wire, false));
        let builder = Idempotency::builder(DynamoDbStore::new(client, TABLE)?).function("payments");
        let idempotency = builder.settings(|s| s.local_cache = local_cache).build()?;
        Ok(Self { charge: idempotency.operation("charge")?, receipt: receipt() })
    }

    /// Runs one operation. Returns whether the answer came from the record.
    ///
    /// # Errors
    ///
    /// The library's error.
    pub(crate) async fn once(&self, key: &str) -> Result<bool, Failure> {
        let mut has_run = false;
        let receipt: Receipt<'static> = self
            .charge
            .run(Key::new(key)?, &payment(key), || {
                has_run = true;
                std::future::ready(Ok::<_, std::io::Error>(self.receipt.clone()))
            })
            .await?;
        std::hint::black_box(receipt);
        Ok(!has_run)
    }
}

/// The other side: the library's requests, written by hand.
#[derive(Debug)]
pub(crate) struct ByHand {
    client: Client,
    effort: Effort,
    /// The attributes of the library's own completed item.
    item: Item,
    receipt: Receipt<'static>,
}

/// An item's values.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    id: String,
    owner: Vec<u8>,
    generation: String,
    fingerprint: Vec<u8>,
    millis: String,
    seconds: String,
    response: Vec<u8>,
    sha256: Vec<u8>,
}

impl Item {
    /// Reads the values that the library has sent.
    ///
    /// # Errors
    ///
    /// If an attribute is missing.
    pub(crate) fn of(item: &Value) -> Result<Self, Failure> {
        let text = |name: &str, kind: &str| {
            let text = item[name][kind].as_str().ok_or_else(|| format!("the item has no `{name}`"))?;
            Ok::<_, Failure>(text.to_owned())
        };
        let bytes = |name: &str| Ok::<_, Failure>(STANDARD.decode(text(name, "B")?)?);
        Ok(Self {
            id: text("id", "S")?,
            owner: bytes("owner")?,
            generation: text("generation", "N")?,
            fingerprint: bytes("fingerprint")?,
            millis: text("claimed_at", "N")?,
            seconds: text("expires_at", "N")?,
            response: serde_json::to_vec(&receipt())?,
            sha256: bytes("sha256")?,
        })
    }
}

impl ByHand {
    /// Creates a client over `wire`, for this item.
    ///
    /// # Errors
    ///
    /// If the item isn't the library's.
    pub(crate) fn new(wire: Wire, effort: Effort, item: &Value) -> Result<Self, Failure> {
        let item = Item::of(item)?;
        let client = Client::from_conf(config(wire, effort != Effort::Bare));
        Ok(Self { client, effort, item, receipt: receipt() })
    }

    /// Returns the claim's values. With [`Effort::Careful`], this computes them.
    fn claim<'i>(&self, item: &'i Item) -> Result<Cow<'i, Item>, Failure> {
        if self.effort != Effort::Careful {
            return Ok(Cow::Borrowed(item));
        }
        let now = system_clock().now();
        Ok(Cow::Owned(Item {
            id: format!("payments/run#{}", hex(&Sha256::digest(KEY.as_bytes()))),
            owner: Owner::random()?.as_bytes().to_vec(),
            generation: now.as_millis().to_string(),
            fingerprint: [&[1][..], &Sha256::digest(serde_json::to_vec(&payment(KEY))?)].concat(),
            millis: now.as_millis().to_string(),
            seconds: now.as_secs_rounded_up().to_string(),
            response: Vec::new(),
            sha256: Vec::new(),
        }))
    }

    /// The response in its recorded form.
    fn response(&self, item: &Item) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        if self.effort != Effort::Careful {
            return Ok((item.response.clone(), item.sha256.clone()));
        }
        let response = serde_json::to_vec(&self.receipt)?;
        let digest = Sha256::digest(&response).to_vec();
        Ok((response, digest))
    }

    /// Reads the recorded response.
    fn replay(&self, own: &Item, old: &HashMap<String, AttributeValue>) -> Result<(), Failure> {
        let status = old.get("status").and_then(|value| value.as_s().ok()).ok_or("no status")?;
        let bytes = |name: &str| {
            let bytes = old.get(name).and_then(|value| value.as_b().ok());
            bytes.map(AsRef::<[u8]>::as_ref).ok_or("a binary attribute is missing")
        };
        // The library wrote this record, so compare with the library's fingerprint. `claim` computes a different one.
        if status != "COMPLETED" || bytes("fingerprint")? != own.fingerprint {
            return Err("the record isn't COMPLETED, or has another fingerprint".into());
        }
        let response = bytes("response")?;
        if self.effort == Effort::Careful {
            if bytes("sha256")? != &Sha256::digest(response)[..] {
                return Err("the response is damaged".into());
            }
            let receipt: Receipt<'static> = serde_json::from_slice(response)?;
            std::hint::black_box(receipt);
        }
        std::hint::black_box(response);
        Ok(())
    }

    /// Sends the requests for the client's own item, as [`send`](Self::send) does.
    ///
    /// # Errors
    ///
    /// The SDK's error.
    pub(crate) async fn once(&self) -> Result<bool, Failure> {
        self.send(&self.item).await
    }

    /// Sends the requests for an operation with this item. Returns whether the answer came from the record.
    ///
    /// # Errors
    ///
    /// The SDK's error.
    pub(crate) async fn send(&self, own: &Item) -> Result<bool, Failure> {
        let s = |text: &str| AttributeValue::S(text.to_owned());
        let n = |digits: &str| AttributeValue::N(digits.to_owned());
        let b = |bytes: &[u8]| AttributeValue::B(Blob::new(bytes));
        let item = self.claim(own)?;
        let claimed = self
            .client
            .put_item()
            .table_name(TABLE)
            .item("id", s(&item.id))
            .item("version", n("3"))
            .item("status", s("STARTED"))
            .item("owner", b(&item.owner))
            .item("generation", n(&item.generation))
            .item("attempt", n("1"))
            .item("fingerprint", b(&item.fingerprint))
            .item("claimed_at", n(&item.millis))
            .item("lease_until", n(&item.millis))
            .item("expires_at", n(&item.seconds))
            .condition_expression("attribute_not_exists(id)")
            .return_values_on_condition_check_failure(AllOld)
            .send()
            .await;
        if let Err(error) = claimed {
            let PutItemError::ConditionalCheckFailedException(refusal) = error.into_service_error() else {
                return Err("the claim's PutItem failed, and not because of its condition".into());
            };
            self.replay(own, &refusal.item.unwrap_or_default())?;
            return Ok(true);
        }
        let (response, sha256) = self.response(own)?;
        self.client
            .update_item()
            .table_name(TABLE)
            .key("id", s(&item.id))
            .update_expression("SET #s=:s,#x=:x,#d=:d,#r=:r REMOVE #l,#m,#c,#b")
            .condition_expression("#s=:vs AND #o=:vo AND #g=:vg")
            .expression_attribute_names("#s", "status")
            .expression_attribute_names("#o", "owner")
            .expression_attribute_names("#g", "generation")
            .expression_attribute_names("#x", "expires_at")
            .expression_attribute_names("#l", "lease_until")
            .expression_attribute_names("#m", "mark")
            .expression_attribute_names("#r", "response")
            .expression_attribute_names("#c", "encoding")
            .expression_attribute_names("#b", "length")
            .expression_attribute_names("#d", "sha256")
            .expression_attribute_values(":s", s("COMPLETED"))
            .expression_attribute_values(":vs", s("STARTED"))
            .expression_attribute_values(":vo", b(&item.owner))
            .expression_attribute_values(":vg", n(&item.generation))
            .expression_attribute_values(":x", n(&item.seconds))
            .expression_attribute_values(":d", b(&sha256))
            .expression_attribute_values(":r", AttributeValue::B(Blob::new(response)))
            .return_values_on_condition_check_failure(AllOld)
            .send()
            .await?;
        Ok(false)
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// DynamoDB's answer to a claim whose key has this item.
pub(crate) fn refusal_with(item: &Value) -> Bytes {
    Bytes::from(format!(
        r#"{{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException","Message":"The conditional request failed","Item":{item}}}"#
    ))
}

/// The item that the library leaves in DynamoDB after a first run.
pub(crate) async fn completed_item() -> Result<Value, Failure> {
    let seen = Arc::default();
    Box::pin(Run::new(Wire::Records(Arc::clone(&seen)), 0)?.once(KEY)).await?;
    let [(_, item)] = completed(&seen).try_into().map_err(|_| "one run wrote more than one item")?;
    Ok(item)
}

/// The completed items that a [`Wire::Records`] has seen, by their keys.
pub(crate) fn completed(seen: &Items) -> Vec<(String, Value)> {
    let mut items = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    items.values_mut().for_each(|item| drop(item.remove("lease_until")));
    items.into_iter().map(|(id, item)| (id, Value::Object(item))).collect()
}

pub(crate) fn config(wire: Wire, has_timeouts: bool) -> Config {
    let mut config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("AKIDEXAMPLE", "secret", None, None, "bench"))
        .http_client(wire);
    if has_timeouts {
        config = config.timeout_config(
            TimeoutConfig::builder()
                .operation_attempt_timeout(Duration::from_secs(1))
                .operation_timeout(Duration::from_secs(3))
                .build(),
        );
    }
    config.build()
}

/// Items by their keys.
pub(crate) type Items = Arc<Mutex<HashMap<String, Map<String, Value>>>>;

/// The connection, which answers at once from memory.
#[derive(Clone)]
pub(crate) enum Wire {
    /// Applies every write.
    Applies,
    /// Applies every write, and keeps the resulting items.
    Records(Items),
    /// Applies every write, and counts the requests' bytes as HTTP/1.1 sends them.
    Counts(Arc<AtomicU64>),
    /// Fails every condition, with this answer.
    Refuses(Bytes),
    /// Fails every condition, with the answer for the item's key.
    RefusesEach(Arc<HashMap<String, Bytes>>),
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Applies => "Applies",
            Self::Records(_) => "Records",
            Self::Counts(_) => "Counts",
            Self::Refuses(_) => "Refuses",
            Self::RefusesEach(_) => "RefusesEach",
        })
    }
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (status, body) = match self {
            Self::Applies => (200_u16, Bytes::from_static(b"{}")),
            Self::Records(items) => {
                record(&mut items.lock().unwrap_or_else(PoisonError::into_inner), request.body().bytes());
                (200, Bytes::from_static(b"{}"))
            }
            Self::Counts(bytes) => {
                bytes.fetch_add(sent_bytes(&request), Ordering::Relaxed);
                (200, Bytes::from_static(b"{}"))
            }
            Self::Refuses(answer) => (400, answer.clone()),
            Self::RefusesEach(answers) => {
                (400, id_in(&request).and_then(|id| answers.get(id)).cloned().unwrap_or_default())
            }
        };
        HttpConnectorFuture::ready(respond(status, body).map_err(|error| ConnectorError::other(error, None)))
    }
}

impl HttpClient for Wire {
    fn http_connector(&self, _: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

fn respond(status: u16, body: Bytes) -> Result<HttpResponse, Failure> {
    let length = body.len();
    let mut response = HttpResponse::new(status.try_into()?, body.into());
    let headers = response.headers_mut();
    headers.insert("content-type", "application/x-amz-json-1.0");
    headers.insert("content-length", length.to_string());
    headers.insert("x-amzn-requestid", "5QTM0L6I7AKN0OL8M0I1RKVRJRVV4KQNSO5AEMVJF66Q9ASUAAJG");
    headers.insert("date", "Fri, 20 Nov 2026 10:20:30 GMT");
    Ok(response)
}

/// The item's key in a PutItem. It's found without a parser, so that the answer costs next to nothing.
fn id_in(request: &HttpRequest) -> Option<&str> {
    let body = std::str::from_utf8(request.body().bytes()?).ok()?;
    body.split_once(r#""id":{"S":""#)?.1.split('"').next()
}

/// The bytes of a request's line, headers and body.
fn sent_bytes(request: &HttpRequest) -> u64 {
    let headers: usize = request.headers().iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    let line = "POST / HTTP/1.1\r\n\r\n".len();
    (line + headers + request.body().bytes().map_or(0, <[u8]>::len)) as u64
}

/// Puts the attributes of a PutItem, or those that an UpdateItem sets, into the item. The library's updates set each
/// placeholder of a name, such as `#s`, to the value's placeholder `:s`.
fn record(items: &mut HashMap<String, Map<String, Value>>, request: Option<&[u8]>) {
    let request: Value = request.and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
    let id = [&request["Item"], &request["Key"]].into_iter().find_map(|of| of["id"]["S"].as_str());
    let item = items.entry(id.unwrap_or_default().to_owned()).or_default();
    if let Some(put) = request["Item"].as_object() {
        item.clone_from(put);
    }
    let none = Map::new();
    for (placeholder, name) in request["ExpressionAttributeNames"].as_object().unwrap_or(&none) {
        let value = &request["ExpressionAttributeValues"][placeholder.replace('#', ":")];
        if let (Some(name), true) = (name.as_str(), value.is_object()) {
            item.insert(name.to_owned(), value.clone());
        }
    }
}

/// The payload: 466 bytes of JSON, plus the key.
#[derive(Serialize)]
pub(crate) struct Payment<'a> {
    payment_id: &'a str,
    amount: Money<'static>,
    customer: Customer,
    method: Method,
    items: [Line; 2],
    metadata: Metadata,
    requested_at: &'static str,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Money<'a> {
    value: Cow<'a, str>,
    currency: Cow<'a, str>,
}

#[derive(Serialize)]
struct Customer {
    id: &'static str,
    email: &'static str,
    country: &'static str,
}

#[derive(Serialize)]
struct Method {
    r#type: &'static str,
    token: &'static str,
    network: &'static str,
    last4: &'static str,
}

#[derive(Serialize)]
struct Line {
    sku: &'static str,
    qty: u32,
    price: &'static str,
}

#[derive(Serialize)]
struct Metadata {
    order: &'static str,
    channel: &'static str,
    note: &'static str,
}

fn money(value: &'static str) -> Money<'static> {
    Money { value: value.into(), currency: "EUR".into() }
}

pub(crate) fn payment(payment_id: &str) -> Payment<'_> {
    Payment {
        payment_id,
        amount: money("149.95"),
        customer: Customer { id: "cus_9f2d1c7ab3e4", email: "someone@example.com", country: "DE" },
        method: Method { r#type: "card", token: "tok_6b1f0c9de2a94f58", network: "visa", last4: "4242" },
        items: [
            Line { sku: "A-1009", qty: 2, price: "49.95" },
            Line { sku: "B-2204", qty: 1, price: "50.05" },
        ],
        metadata: Metadata { order: "ord_2026_000123", channel: "web", note: "leave at the door" },
        requested_at: "2026-01-15T10:20:30.123Z",
    }
}

/// The response: 261 bytes of JSON, plus the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt<'a> {
    payment_id: Cow<'a, str>,
    status: Cow<'a, str>,
    authorization: Cow<'a, str>,
    amount: Money<'a>,
    fees: Money<'a>,
    captured_at: Cow<'a, str>,
    receipt: Cow<'a, str>,
}

pub(crate) fn receipt() -> Receipt<'static> {
    Receipt {
        payment_id: KEY.into(),
        status: "authorized".into(),
        authorization: "auth_7d0b1f6e5c3a4921".into(),
        amount: money("149.95"),
        fees: money("1.75"),
        captured_at: "2026-01-15T10:20:31.004Z".into(),
        receipt: "https://pay.example.com/r/7d0b1f6e5c3a4921".into(),
    }
}
