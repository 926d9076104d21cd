//! The wire between a function and DynamoDB: a proxy on loopback that counts requests, and injects faults.

use std::{
    collections::HashSet,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use hyper::{Request, Response, StatusCode, Uri, header, http::request::Parts};
use lambda_idempotency::testing::{Call, Fault, Point};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    clock,
    database::Tables,
    http::{self, HangUp, Server},
};

/// A request's role in the rehearsed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Puts a STARTED record (T1, T2).
    Claim,
    /// Takes over a stale claim (T3).
    Takeover,
    /// Settles a claim: completes, fails or releases it (T4, T5, T6, T8).
    Settle,
    /// Makes a payment.
    Payment,
    /// Anything else.
    Other,
}

impl Meaning {
    /// The meaning of the request that `point` comes before or after.
    pub(crate) const fn at(point: Point) -> Self {
        match point {
            Point::Before(call) | Point::After(call) if call.is_settlement() => Self::Settle,
            Point::Before(Call::TakeOver) | Point::After(Call::TakeOver) => Self::Takeover,
            Point::Before(call) | Point::After(call) if call.is_claim() => Self::Claim,
            Point::BeforeEffect | Point::AfterEffect => Self::Payment,
            _ => Self::Other,
        }
    }
}

/// A request that the wire forwarded to DynamoDB, and the status of the response. The wire logs a held request only
/// after its release.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The operation, such as `PutItem`.
    pub(crate) operation: String,
    /// Whether the request is for the idempotency table.
    pub(crate) to_store: bool,
    /// The request's role.
    pub(crate) meaning: Meaning,
    /// Whether the request is the first attempt of its SDK call. Later attempts are the SDK's own retries, which the
    /// checks don't count.
    pub(crate) first_attempt: bool,
    /// The `id` of the item that the request puts or that its key names, if it has one.
    pub(crate) id: Option<String>,
    /// A transaction's token. DynamoDB applies transactions with the same token once.
    pub(crate) token: Option<String>,
    /// DynamoDB's status, once it has answered.
    pub(crate) status: Option<StatusCode>,
}

impl Exchange {
    /// Whether DynamoDB applied the request.
    pub(crate) fn succeeded(&self) -> bool {
        self.status == Some(StatusCode::OK)
    }
}

/// An interference with a request whose meaning is `at`. It lets `to_pass` such requests pass first.
#[derive(Debug)]
struct Planned {
    at: Meaning,
    to_pass: usize,
    interference: Interference,
}

/// A lasting fault: every n-th claimed item is unreachable.
#[derive(Debug)]
struct Outage {
    every: usize,
    claimed: HashSet<String>,
    out_of_reach: HashSet<String>,
}

impl Outage {
    fn is_met_by(&mut self, exchange: &Exchange) -> bool {
        let Some(id) = exchange.id.as_ref().filter(|_| exchange.to_store) else { return false };
        let is_new = exchange.meaning == Meaning::Claim && self.claimed.insert(id.clone());
        if is_new && self.claimed.len().is_multiple_of(self.every) {
            self.out_of_reach.insert(id.clone());
        }
        self.out_of_reach.contains(id)
    }
}

/// How the wire interferes with one request.
#[derive(Debug)]
enum Interference {
    /// Notify [`Hold::reached`], and forward the request only after [`Hold::release`].
    Hold { reached: oneshot::Sender<()>, released: oneshot::Receiver<()> },
    /// Forward the request only if this fault lets DynamoDB apply it. In either case, cut the connection instead of
    /// answering.
    Cut(Fault),
}

/// A request that the wire holds or will hold. If the `Hold` is dropped without a release, DynamoDB never gets the
/// request.
#[derive(Debug)]
pub(crate) struct Hold {
    reached: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl Hold {
    /// Waits until the request is held. Returns false if no such request came in time.
    pub(crate) async fn reached(&mut self, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, &mut self.reached).await, Ok(Ok(())))
    }

    /// Forwards the request. Returns false if the sender has disconnected: then DynamoDB never gets the request.
    pub(crate) fn release(self) -> bool {
        self.release.send(()).is_ok()
    }
}

#[derive(Debug)]
struct Shared {
    upstream: Uri,
    tables: Tables,
    log: Mutex<Vec<Exchange>>,
    planned: Mutex<Vec<Planned>>,
    outage: Mutex<Option<Outage>>,
}

/// The proxy.
#[derive(Debug)]
pub(crate) struct Wire {
    server: Server,
    shared: Arc<Shared>,
}

impl Wire {
    /// Listens on a free loopback port, in front of `upstream`.
    pub(crate) async fn start(upstream: Uri, tables: Tables) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream,
            tables,
            log: Mutex::default(),
            planned: Mutex::default(),
            outage: Mutex::default(),
        });
        let for_server = Arc::clone(&shared);
        let server = Server::start(move |request| Arc::clone(&for_server).handle(request)).await?;
        Ok(Self { server, shared })
    }

    /// The endpoint for the function.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Holds the next request at this point of a run.
    pub(crate) fn hold(&self, at: Point) -> Hold {
        self.hold_after(0, at)
    }

    /// Lets `to_pass` requests at this point pass, and holds the next one.
    pub(crate) fn hold_after(&self, to_pass: usize, at: Point) -> Hold {
        let (reached, on_reached) = oneshot::channel();
        let (release, released) = oneshot::channel();
        self.break_at(Meaning::at(at), to_pass, Interference::Hold { reached, released });
        Hold { reached: on_reached, release }
    }

    /// Makes every n-th claimed item unreachable: the wire answers all requests for it with 500, and forwards none.
    pub(crate) fn fail_every(&self, every: usize) {
        let outage = Outage { every, claimed: HashSet::new(), out_of_reach: HashSet::new() };
        *lock(&self.shared.outage) = Some(outage);
    }

    /// Ends the outage of [`Self::fail_every`].
    pub(crate) fn recover(&self) {
        *lock(&self.shared.outage) = None;
    }

    /// Loses the response to the next request of this kind, after DynamoDB applied the request.
    pub(crate) fn lose_answer(&self, call: Call) {
        self.break_at(Meaning::at(Point::After(call)), 0, Interference::Cut(Fault::LoseAnswer));
    }

    fn break_at(&self, at: Meaning, to_pass: usize, interference: Interference) {
        lock(&self.shared.planned).push(Planned { at, to_pass, interference });
    }

    /// Whether a fault still waits for its request.
    pub(crate) fn fault_is_pending(&self) -> bool {
        !lock(&self.shared.planned).is_empty()
    }

    /// Counts the requests forwarded so far: a mark for [`Self::since`].
    pub(crate) fn mark(&self) -> usize {
        lock(&self.shared.log).len()
    }

    /// Waits at most a second until DynamoDB has answered a request that was forwarded after the mark.
    pub(crate) async fn answered_since(&self, mark: usize) {
        for _ in 0..100 {
            if self.since(mark).iter().any(|exchange| exchange.status.is_some()) {
                return;
            }
            clock::pause(Duration::from_millis(10)).await;
        }
    }

    /// Returns the requests forwarded since the mark.
    pub(crate) fn since(&self, mark: usize) -> Vec<Exchange> {
        lock(&self.shared.log).get(mark..).unwrap_or_default().to_vec()
    }
}

impl Shared {
    async fn handle(self: Arc<Self>, request: Request<Bytes>) -> Result<Response<Bytes>, HangUp> {
        let (parts, body) = request.into_parts();
        let exchange = self.read(&parts, &body);
        if lock(&self.outage).as_mut().is_some_and(|outage| outage.is_met_by(&exchange)) {
            let failed = json!({ "__type": "InternalServerError", "message": "the rehearsal made this item unreachable" });
            return Ok(http::json(StatusCode::INTERNAL_SERVER_ERROR, &failed));
        }
        let mut is_cut = false;
        match self.interference_at(exchange.meaning) {
            None => {}
            Some(Interference::Cut(fault)) if fault.is_applied() == Some(true) => is_cut = true,
            Some(Interference::Cut(_)) => return Err(HangUp),
            Some(Interference::Hold { reached, released }) => {
                // If nobody waits in `Hold::reached`, the request still waits for its release.
                let _ = reached.send(());
                released.await.map_err(|_| HangUp)?;
            }
        }
        // In its own task, forwarding continues even if the client hangs up: DynamoDB may still answer, and the log
        // needs the status.
        let forwarded = tokio::spawn(async move { self.forward(exchange, parts, body).await });
        let response = forwarded.await.map_err(|_| HangUp)?;
        if is_cut { Err(HangUp) } else { Ok(response) }
    }

    fn read(&self, parts: &Parts, body: &[u8]) -> Exchange {
        let text =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let operation = text("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned();
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let tables = tables_of(&request);
        let to_store = tables.contains(&self.tables.idempotency.as_str());
        let meaning = if to_store {
            meaning_to_store(&operation, &request)
        } else if operation == "PutItem" && tables.contains(&self.tables.payments.as_str()) {
            Meaning::Payment
        } else {
            Meaning::Other
        };
        let id = request.pointer("/Item/id/S").or_else(|| request.pointer("/Key/id/S"));
        Exchange {
            operation,
            to_store,
            meaning,
            first_attempt: !text("amz-sdk-request").contains("attempt=")
                || text("amz-sdk-request").contains("attempt=1;"),
            id: id.and_then(Value::as_str).map(str::to_owned),
            token: request.get("ClientRequestToken").and_then(Value::as_str).map(str::to_owned),
            status: None,
        }
    }

    /// Takes the first interference that is due at a request with this meaning, so that it happens only once. Each
    /// other interference that waits for this meaning counts the request as passed.
    fn interference_at(&self, meaning: Meaning) -> Option<Interference> {
        let mut planned = lock(&self.planned);
        let due = planned.iter().position(|one| one.at == meaning && one.to_pass == 0);
        let due = due.map(|position| planned.remove(position).interference);
        for waiting in planned.iter_mut().filter(|one| one.at == meaning) {
            waiting.to_pass = waiting.to_pass.saturating_sub(1);
        }
        due
    }

    async fn forward(&self, exchange: Exchange, mut parts: Parts, body: Bytes) -> Response<Bytes> {
        let index = {
            let mut log = lock(&self.log);
            log.push(exchange);
            log.len() - 1
        };
        parts.headers.remove(header::CONNECTION);
        let mut response = match http::send(&self.upstream, Request::from_parts(parts, body)).await {
            Ok(response) => response,
            Err(words) => http::json(
                StatusCode::BAD_GATEWAY,
                &json!({ "__type": "InternalServerError", "message": format!("the rehearsal's wire: {words}") }),
            ),
        };
        // The body was read whole, so its length is known, and its original framing doesn't matter.
        response.headers_mut().remove(header::TRANSFER_ENCODING);
        response.headers_mut().remove(header::CONNECTION);
        if let Some(exchange) = lock(&self.log).get_mut(index) {
            exchange.status = Some(response.status());
        }
        response
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tables that a request names: in `TableName`, as the keys of `RequestItems`, or inside `TransactItems`.
fn tables_of(request: &Value) -> Vec<&str> {
    let direct = request.get("TableName").and_then(Value::as_str);
    let batch = request.get("RequestItems").and_then(Value::as_object);
    let transaction = request.get("TransactItems").and_then(Value::as_array);
    let actions = transaction.into_iter().flatten().filter_map(Value::as_object);
    let inside =
        actions.flat_map(|item| item.values()).filter_map(|action| action.get("TableName")?.as_str());
    direct
        .into_iter()
        .chain(batch.into_iter().flat_map(|items| items.keys().map(String::as_str)))
        .chain(inside)
        .collect()
}

/// Recognises a request to the store by the names of states in it: these are fixed, whereas attribute names can be
/// configured.
fn meaning_to_store(operation: &str, request: &Value) -> Meaning {
    match operation {
        "PutItem" if texts(request.get("Item")).contains(&"STARTED") => Meaning::Claim,
        "UpdateItem" => meaning_of_update(request),
        "TransactWriteItems" => {
            let actions = request.get("TransactItems").and_then(Value::as_array).into_iter().flatten();
            let updates = actions.filter_map(|action| action.get("Update"));
            let settles = updates.map(meaning_of_update).any(|meaning| meaning == Meaning::Settle);
            if settles { Meaning::Settle } else { Meaning::Other }
        }
        _ => Meaning::Other,
    }
}

/// Recognises an update by the texts among its values. A settlement names its new state. A takeover names two owners:
/// the previous one in its condition, and the new one in its update. An extension names only one owner.
fn meaning_of_update(request: &Value) -> Meaning {
    let texts = texts(request.get("ExpressionAttributeValues"));
    if texts.iter().any(|text| matches!(*text, "COMPLETED" | "FAILED" | "RELEASED")) {
        Meaning::Settle
    } else if texts.iter().filter(|text| **text != "STARTED").count() >= 2 {
        Meaning::Takeover
    } else {
        Meaning::Other
    }
}

/// The text values among an item's attributes.
fn texts(attributes: Option<&Value>) -> Vec<&str> {
    let attributes = attributes.and_then(Value::as_object).into_iter().flatten();
    attributes.filter_map(|(_, value)| value.get("S")?.as_str()).collect()
}

#[cfg(test)]
mod tests;
