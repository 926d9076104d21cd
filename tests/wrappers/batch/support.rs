//! Queues, workers, and a log of the purchase orders that the workers handled.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency::{
    Builder, Error, Failure, Idempotency, Key,
    lambda::{
        batch::{Batch, SqsMessage},
        event::IntoKey,
    },
    store::{Put, Store, memory::MemoryStore},
    time::{Clock as _, system_clock},
};
use lambda_runtime::{
    Context, LambdaEvent,
    tower::{Service, ServiceExt},
};
use serde_json::{Value, json, value::RawValue};
use testkit::hooked::{Asked, Hooked, Then, down};
use tokio::sync::Notify;

use crate::{api::CANARY, recording, store::empty_store};

/// A message for the queue.
pub(super) struct Message {
    id: String,
    body: String,
    group: Option<String>,
    is_fifo: bool,
    queue: Option<String>,
}

impl Message {
    /// A message with this id about this order.
    pub(super) fn new(id: &str, order: &str) -> Self {
        let body = json!({ "order": order, "note": CANARY }).to_string();
        Self { id: id.into(), body, group: None, is_fifo: false, queue: None }
    }

    pub(super) fn with_body(mut self, body: &str) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn in_group(mut self, group: &str) -> Self {
        self.group = Some(group.into());
        self
    }

    pub(super) fn fifo(mut self) -> Self {
        self.is_fifo = true;
        self
    }

    /// Puts the message in this queue instead of `orders`.
    pub(super) fn in_queue(mut self, name: &str) -> Self {
        self.queue = Some(name.into());
        self
    }

    pub(super) fn json(&self) -> Value {
        recording::secrets(|secrets| secrets.add_body(&self.body));
        let queue = if self.is_fifo { "orders.fifo" } else { "orders" };
        let queue = self.queue.as_deref().unwrap_or(queue);
        json!({
            "messageId": self.id,
            "receiptHandle": format!("handle of {}", self.id),
            "body": self.body,
            "attributes": self.group.as_ref().map_or(json!({}), |group| json!({ "MessageGroupId": group })),
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:eu-west-1:123456789012:{queue}"),
        })
    }
}

pub(super) fn sqs(messages: impl IntoIterator<Item = Message>) -> Value {
    json!({ "Records": messages.into_iter().map(|message| message.json()).collect::<Vec<_>>() })
}

pub(super) fn by_id(message: &SqsMessage) -> Result<Key, Error> {
    message.message_key()
}

pub(super) fn by_order(message: &SqsMessage) -> Result<Option<Key>, Error> {
    Key::from_json(message, "/order")
}

/// Counts a store's requests, and can take it down.
#[derive(Clone, Debug, Default)]
pub(super) struct Counting {
    pub(super) requests: Arc<AtomicUsize>,
    pub(super) is_down: Arc<AtomicBool>,
    pub(super) takes_claims_alone: Arc<AtomicBool>,
    millis: Arc<AtomicU64>,
}

impl Counting {
    /// Returns a store over `inner`, which this counts and breaks.
    fn over(&self, inner: Arc<dyn Store>) -> Hooked<Arc<dyn Store>> {
        let Self { requests, is_down, takes_claims_alone, millis } = self.clone();
        Hooked::new(inner, move |_, asked| {
            requests.fetch_add(1, Ordering::SeqCst);
            let fails = is_down.load(Ordering::SeqCst);
            match asked {
                _ if fails => Then::Fail(down()),
                Asked::Put(put)
                    if takes_claims_alone.load(Ordering::SeqCst) && !matches!(put, Put::Create(_)) =>
                {
                    Then::Fail(down())
                }
                // Lets other tasks run, as a network call does.
                Asked::Put(_) => Then::PassAfter(Duration::from_millis(millis.load(Ordering::SeqCst))),
                Asked::Read => Then::Pass,
            }
        })
    }
}

/// The `Idempotency`, store and orders that a test's workers share.
#[derive(Clone)]
pub(super) struct Bench {
    pub(super) idempotency: Idempotency,
    pub(super) store: Counting,
    orders: Orders,
}

/// The handler. The order's text decides what a run does: `fail …`, `panic …`, `final …` (a permanent failure), `held`
/// (waits for [`Bench::let_go`]) or `takes <milliseconds>`. Any other order succeeds.
#[derive(Clone)]
struct Orders {
    ran: Arc<Mutex<Vec<String>>>,
    running: Arc<AtomicUsize>,
    widest: Arc<AtomicUsize>,
    held: Arc<Notify>,
    go: Arc<Notify>,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(super) fn with(build: impl FnOnce(Builder) -> Builder) -> Self {
        Self::over(empty_store(), build)
    }

    /// Uses the memory store, for tests that count concurrent runs: a network's timing varies.
    pub(super) fn in_memory() -> Self {
        Self::over(Arc::new(MemoryStore::new()), |builder| builder)
    }

    pub(super) fn over(inner: Arc<dyn Store>, build: impl FnOnce(Builder) -> Builder) -> Self {
        recording::begin();
        let store = Counting::default();
        let idempotency = build(Idempotency::builder(store.over(inner)).function("ship")).build().unwrap();
        let orders = Orders {
            ran: Arc::default(),
            running: Arc::default(),
            widest: Arc::default(),
            held: Arc::default(),
            go: Arc::default(),
        };
        Self { idempotency, store, orders }
    }

    /// Returns a worker with the handler [`Orders`].
    pub(super) fn worker<K, I>(&self, key: K) -> Batch<SqsMessage>
    where
        K: Fn(&SqsMessage) -> I + Send + Sync + 'static,
        I: IntoKey,
    {
        let orders = self.orders.clone();
        let worker = self.idempotency.sqs(key, move |message: SqsMessage| {
            recording::shown(&message);
            let orders = orders.clone();
            async move { orders.handle(message.body()).await }
        });
        recording::shown(&worker);
        worker
    }

    /// Runs the handler [`Orders`] on a message body.
    pub(super) async fn handle(&self, body: &str) -> Result<String, Failure> {
        self.orders.handle(body).await
    }

    /// Returns the orders that ran, sorted, with one entry per run.
    pub(super) fn ran(&self) -> Vec<String> {
        let mut ran = self.in_order();
        ran.sort();
        ran
    }

    /// Returns the orders that ran, in the sequence in which their runs started.
    pub(super) fn in_order(&self) -> Vec<String> {
        self.orders.ran.lock().unwrap().clone()
    }

    pub(super) fn requests(&self) -> usize {
        self.store.requests.load(Ordering::SeqCst)
    }

    /// Makes the store accept only claims from now on, so that settlements fail.
    pub(super) fn settles_in_vain(&self) {
        self.store.takes_claims_alone.store(true, Ordering::SeqCst);
    }

    /// Makes each write to the store take this long.
    pub(super) fn is_slow(&self, millis: u64) {
        self.store.millis.store(millis, Ordering::SeqCst);
    }

    /// Returns the highest number of concurrent runs.
    pub(super) fn widest(&self) -> usize {
        self.orders.widest.load(Ordering::SeqCst)
    }

    /// Waits until a run of the order `held` has started.
    pub(super) async fn is_held(&self) {
        self.orders.held.notified().await;
    }

    /// Lets the run of the order `held` end.
    pub(super) fn let_go(&self) {
        self.orders.go.notify_one();
    }
}

impl Orders {
    async fn handle(&self, body: &str) -> Result<String, Failure> {
        let body: Value = serde_json::from_str(body)?;
        let order = body["order"].as_str().or(body["name"].as_str()).unwrap_or_default().to_owned();
        self.ran.lock().unwrap().push(order.clone());
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.widest.fetch_max(running, Ordering::SeqCst);
        let _running = Running(Arc::clone(&self.running));
        match order.split_once(' ').unwrap_or((&order, "")) {
            ("fail", _) => return Err(format!("{CANARY}: failed order {order}").into()),
            ("panic", _) => panic!("this panic is intended"),
            ("final", _) => {
                return Err(Failure::permanent("NoStock", format!("{CANARY}: sold out")));
            }
            ("held", _) => {
                self.held.notify_one();
                self.go.notified().await;
            }
            ("takes", millis) => system_clock().sleep(Duration::from_millis(millis.parse()?)).await,
            _ => {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(format!("{CANARY}-parcel of {order}"))
    }
}

/// Counts a handler as running until this is dropped.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the ids of the records that a batch's response reports as failed.
pub(crate) fn returned(answer: &RawValue) -> Vec<String> {
    let answer: Value = serde_json::from_str(answer.get()).unwrap();
    assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
    let items = answer["batchItemFailures"].as_array().unwrap();
    items.iter().map(|item| item["itemIdentifier"].as_str().unwrap().to_owned()).collect()
}

/// A worker for any source.
pub(super) trait Worker:
    Clone + Service<LambdaEvent<Box<RawValue>>, Response = Box<RawValue>, Error = Error>
{
}

impl<S> Worker for S where
    S: Clone + Service<LambdaEvent<Box<RawValue>>, Response = Box<RawValue>, Error = Error>
{
}

/// Delivers a batch in an invocation with this deadline. 0 means that the deadline is unknown.
pub(super) async fn told(worker: &impl Worker, batch: &Value, deadline: u64) -> Result<Box<RawValue>, Error> {
    let mut context = Context::default();
    context.deadline = deadline;
    let payload = RawValue::from_string(batch.to_string()).unwrap();
    let answer = worker.clone().oneshot(LambdaEvent::new(payload, context)).await;
    answer.inspect_err(|error| recording::error(error)).inspect(|answer| recording::shown(answer))
}

/// Delivers a batch, and returns the ids of the failed items.
pub(super) async fn deliver(worker: &impl Worker, batch: &Value) -> Vec<String> {
    deliver_by(worker, batch, 0).await
}

/// Does the same as [`deliver`], in an invocation with this deadline.
pub(super) async fn deliver_by(worker: &impl Worker, batch: &Value, deadline: u64) -> Vec<String> {
    returned(&told(worker, batch, deadline).await.unwrap())
}
