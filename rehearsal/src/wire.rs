//! The wire between a function and DynamoDB: a proxy on loopback that counts requests, and injects faults.
//!
//! The verification suite breaks the wire with the same [`Proxy`], in more ways than the rehearsal does.

mod exchange;
mod meaning;
mod message;
mod proxy;
mod way;

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hyper::Uri;
use lambda_idempotency_testing::{Call, Point};
use serde_json::Value;
use tokio::sync::oneshot;

use self::proxy::{Interference, Rules, lock};
use super::{clock, database::Tables};

pub use self::{
    exchange::{Exchange, Served},
    meaning::Meaning,
    message::Upstream,
    proxy::{Log, Proxy},
    way::{HttpWay, When},
};

/// The time that a client's attempt may take. It matters only for faults that the rehearsal doesn't cause.
const ATTEMPT: Duration = Duration::from_secs(1);

/// An interference with a request at a point of a run. It lets `to_pass` such requests pass first.
#[derive(Debug)]
struct Planned {
    at: Point,
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
        let is_new =
            matches!(exchange.meaning, Meaning::Claim | Meaning::Reclaim) && self.claimed.insert(id.clone());
        if is_new && self.claimed.len().is_multiple_of(self.every) {
            self.out_of_reach.insert(id.clone());
        }
        self.out_of_reach.contains(id)
    }
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

/// The rehearsal's rules for the wire: the faults that wait for their requests, and the outage.
#[derive(Debug)]
struct Watch {
    tables: Tables,
    planned: Mutex<Vec<Planned>>,
    outage: Mutex<Option<Outage>>,
}

/// The wire of one step: a proxy with the rehearsal's rules.
#[derive(Debug)]
pub(crate) struct Wire {
    proxy: Proxy,
    watch: Arc<Watch>,
}

impl Wire {
    /// Listens on a free loopback port, in front of `upstream`.
    pub(crate) async fn start(upstream: Uri, tables: Tables) -> io::Result<Self> {
        let watch = Arc::new(Watch { tables, planned: Mutex::default(), outage: Mutex::default() });
        let rules = Arc::clone(&watch) as Arc<dyn Rules>;
        let proxy = Proxy::start(Upstream::new(upstream), BTreeMap::new(), ATTEMPT, Some(rules)).await?;
        Ok(Self { proxy, watch })
    }

    /// Listens on another port, for the process with this number. Returns the endpoint.
    pub(crate) async fn port(&self, process: usize) -> io::Result<String> {
        self.proxy.port(process).await
    }

    /// Returns all requests so far, and the time that theirs count from.
    pub(crate) fn all(&self) -> (Instant, Vec<Exchange>) {
        (self.proxy.begun(), self.proxy.log().exchanges())
    }

    /// Holds the next request at this point of a run.
    pub(crate) fn hold(&self, at: Point) -> Hold {
        self.hold_after(0, at)
    }

    /// Lets `to_pass` requests at this point pass, and holds the next one.
    pub(crate) fn hold_after(&self, to_pass: usize, at: Point) -> Hold {
        let (reached, on_reached) = oneshot::channel();
        let (release, released) = oneshot::channel();
        self.break_at(at, to_pass, Interference::Hold { reached, released });
        Hold { reached: on_reached, release }
    }

    /// Makes every n-th claimed item unreachable: the wire answers all requests for it with 500, and forwards none.
    pub(crate) fn fail_every(&self, every: usize) {
        let outage = Outage { every, claimed: HashSet::new(), out_of_reach: HashSet::new() };
        *lock(&self.watch.outage) = Some(outage);
    }

    /// Ends the outage of [`Self::fail_every`].
    pub(crate) fn recover(&self) {
        *lock(&self.watch.outage) = None;
    }

    /// Loses the response to the next request of this kind, after DynamoDB applied the request.
    pub(crate) fn lose_answer(&self, call: Call) {
        self.break_at(Point::After(call), 0, Interference::Break(HttpWay::CutAfter));
    }

    fn break_at(&self, at: Point, to_pass: usize, interference: Interference) {
        lock(&self.watch.planned).push(Planned { at, to_pass, interference });
    }

    /// Whether a fault still waits for its request.
    pub(crate) fn fault_is_pending(&self) -> bool {
        !lock(&self.watch.planned).is_empty()
    }

    /// Counts the requests forwarded so far: a mark for [`Self::since`].
    pub(crate) fn mark(&self) -> usize {
        self.proxy.log().forwarded_so_far()
    }

    /// Waits at most a second until DynamoDB has answered a request that was forwarded after the mark.
    pub(crate) async fn answered_since(&self, mark: usize) {
        for _ in 0..100 {
            if self.since(mark).iter().any(|exchange| exchange.served.is_some()) {
                return;
            }
            clock::pause(Duration::from_millis(10)).await;
        }
    }

    /// Returns the requests forwarded since the mark.
    pub(crate) fn since(&self, mark: usize) -> Vec<Exchange> {
        self.proxy.log().forwarded(mark)
    }
}

impl Rules for Watch {
    fn read(&self, exchange: &mut Exchange, body: &Value) {
        let tables = tables_of(body);
        exchange.to_store = tables.contains(&self.tables.idempotency.as_str());
        exchange.pays = exchange.operation != "GetItem" && tables.contains(&self.tables.payments.as_str());
        if !exchange.to_store {
            let is_payment =
                exchange.operation == "PutItem" && tables.contains(&self.tables.payments.as_str());
            exchange.meaning = if is_payment { Meaning::Payment } else { Meaning::Other };
        }
    }

    /// Takes the first interference that is due at this request, so that it happens only once. Each other
    /// interference that waits for such a request counts the request as passed.
    fn interference(&self, exchange: &Exchange) -> Option<Interference> {
        if lock(&self.outage).as_mut().is_some_and(|outage| outage.is_met_by(exchange)) {
            return Some(Interference::Break(HttpWay::ErrorBefore));
        }
        let mut planned = lock(&self.planned);
        let waits = |one: &Planned| is_at(one.at, exchange.meaning);
        let due = planned.iter().position(|one| waits(one) && one.to_pass == 0);
        let due = due.map(|position| planned.remove(position).interference);
        for waiting in planned.iter_mut().filter(|one| waits(one)) {
            waiting.to_pass = waiting.to_pass.saturating_sub(1);
        }
        due
    }
}

/// Whether a request with this meaning comes before or after `point`.
fn is_at(point: Point, meaning: Meaning) -> bool {
    match point {
        Point::Before(call) | Point::After(call) if call.is_settlement() => meaning.settles(),
        Point::Before(Call::TakeOver) | Point::After(Call::TakeOver) => meaning == Meaning::TakeOver,
        Point::Before(call) | Point::After(call) if call.is_claim() => {
            matches!(meaning, Meaning::Claim | Meaning::Reclaim)
        }
        Point::BeforeEffect | Point::AfterEffect => meaning == Meaning::Payment,
        _ => false,
    }
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

#[cfg(test)]
impl Exchange {
    /// A request to the store, in its first attempt, that was answered with this status.
    pub(crate) fn answered_with(meaning: Meaning, status: u16) -> Self {
        let served = Some(Served { status, ..Served::default() });
        Self { to_store: true, meaning, first_attempt: true, served, ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
