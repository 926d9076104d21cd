//! Batches: SQS, Kinesis and DynamoDB Streams, record by record.
//!
//! Each record is its own operation: it's claimed, run and settled, several at a time. The response names the
//! records that Lambda must redeliver. Switch `ReportBatchItemFailures` on at the event source mapping, or
//! Lambda ignores the response: SQS then deletes the messages that failed, and a stream moves on past the
//! records that failed. Tumbling windows are refused.
//!
//! ```no_run
//! use lambda_idempotency::{Failure, Idempotency, Key, lambda::batch::SqsMessage};
//! use lambda_runtime::{Error, run};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     order_id: String,
//! }
//!
//! async fn ship(message: SqsMessage) -> Result<String, Failure> {
//!     let order: Order = message.json()?;
//!     Ok(format!("parcel of {}", order.order_id))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! # let store = lambda_idempotency::store::memory::MemoryStore::new();
//! let idempotency = Idempotency::builder(store).build()?;
//! run(idempotency.sqs(|message| Key::from_json(message, "/order_id"), ship)).await
//! # }
//! ```
//!
//! | a record | outcome |
//! |---|---|
//! | its handler returned `Ok` | recorded and acknowledged |
//! | an earlier delivery completed it | acknowledged; the handler doesn't run |
//! | its handler failed or panicked | its key is released, and it's redelivered (at most once: failed permanently) |
//! | it [failed permanently](Failure::permanent) | recorded; redelivered or acknowledged, by [`acknowledge_permanent_failures`](Batch::acknowledge_permanent_failures) |
//! | another delivery is processing it | redelivered: an acknowledgement would delete the only copy |
//! | it has no key, or can't be read | redelivered; no handler runs |
//! | the store is down, or no time is left | redelivered; no handler runs |
//! | the same key and payload appear twice in the batch | runs once, with one claim; both get the same outcome |
//! | its key was used with another payload | redelivered; no handler runs |
//!
//! In another group of a FIFO queue, the same key and payload are a separate delivery, which may be redelivered
//! as in progress.
//!
//! One event (`returned`) logs why a record is redelivered, with the record's identifier. It never contains the
//! payload. It has the type of a handler's error and not its text, which may quote the payload: log that in the
//! handler. If the handler failed with this library's [`Error`], the event has its text, which
//! never does.
//!
//! # Order
//!
//! In a FIFO queue, the messages of one group run in order, one after the other, and different groups run
//! concurrently. When one fails, the rest of its group is redelivered without running. Streams do the same for
//! the records of one partition key, or of one item, with [`in_order`](Batch::in_order).
//!
//! Lambda reads a stream's response as a checkpoint: it redelivers everything from the first failure on. So the
//! response names only that one. Records that succeeded behind it are recorded, and acknowledged the next time.
//! A record that can never succeed, for example because it can't be read, blocks its shard until the mapping
//! gives up on it. Set `MaximumRecordAgeInSeconds`, a destination for failures, and
//! `BisectBatchOnFunctionError`; without the last one, Lambda also gives up on the records behind it.
//! `MaximumRetryAttempts` counts in-progress responses too. If you set it, leave room for those after a crash
//! (below), or wait for the lease inside the invocation.
//!
//! # A crash
//!
//! When a process dies, its records are in progress at each redelivery until their leases expire.
//!
//! - **A stream's** claim has a short lease of 15 seconds (or three times
//!   [`lease_grace`](crate::settings::Settings::lease_grace), if that's longer), extended every 5 seconds while its
//!   handler runs. After a crash the record is free within the lease and the
//!   [`skew_margin`](crate::settings::Settings::skew_margin), 17 seconds. Until then each redelivery spends one of
//!   `MaximumRetryAttempts`. With a [`wait_in_progress`](crate::settings::Settings::wait_in_progress) of 20 seconds none does, on
//!   a function with a timeout of 40 seconds or more, since a wait takes at most half of the time left.
//!   Extensions cost 0.2 requests per second for each record, and none for a handler that ends within 5
//!   seconds.
//! - A short lease is safe here: Lambda doesn't deliver a shard's batch again while an invocation with it
//!   lives. A handler that blocks its thread stops the extension of every record of its batch, and one that
//!   awaits after its lease has expired is cut off. Use `spawn_blocking` for more than 8 seconds of such work,
//!   or set [`lease_extension`](crate::settings::Settings::lease_extension) to a longer lease: one longer than the
//!   function's timeout is never extended.
//! - When such a handler has steps that use [`run`](crate::Operation::run), their leases are short too. At most
//!   once there are no takeovers, so leases last until the deadline.
//! - **A queue's** message has a lease until the deadline, since SQS can deliver it to another process any
//!   time. After a crash SQS redelivers it once per visibility timeout, and each time counts towards
//!   `maxReceiveCount`: a lease of 62 seconds and a visibility timeout of 30 seconds cost 2 receives. With the
//!   feature `sqs`, `hide_while_in_progress` reduces that to 1.
//!
//! # Time
//!
//! Near the invocation's deadline the worker claims no new record. Then it cuts off handlers that still run,
//! settles the records whose handlers have returned, and responds in time ([`reserve`](Batch::reserve)).
//! Records that haven't ended are redelivered. If a handler was cut off, its key is free when the lease
//! expires. At most once, its outcome is unknown, and an operator has to resolve it.

mod answer;
mod dynamodb;
mod handler;
mod kinesis;
mod lanes;
mod locate;
mod record;
mod run;
mod sqs;
mod visibility;

pub use dynamodb::DynamoDbRecord;
use handler::{Handle, KeyOf};
pub use kinesis::KinesisRecord;
pub use lanes::scope_caller;
pub(super) use record::{Record, source_arn};
pub use sqs::SqsMessage;
use visibility::SharedVisibility;

use std::{
    fmt,
    future::Future,
    num::NonZeroUsize,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use lambda_runtime::LambdaEvent;
use serde::Serialize;
use serde_json::value::RawValue;
use tower::Service;

use crate::{
    error::Error, failure::Failure, future::BoxFuture, idempotency::Idempotency, lambda::event::IntoKey,
};

/// How many records run at a time.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// How long before the deadline handlers are cut off; see [`Batch::reserve`].
const RESERVE: Duration = Duration::from_millis(500);

impl Idempotency {
    /// A worker for an SQS queue, standard or FIFO.
    ///
    /// **Without `ReportBatchItemFailures` SQS deletes everything:** switch it on at the event source mapping,
    /// or Lambda ignores the response, and failed messages are lost.
    ///
    /// `key` returns the key of the operation that a message asks for:
    ///
    /// - [`SqsMessage::message_key`], the message's id: one *message* runs once, however often SQS delivers it.
    ///   A sender who sends twice makes two messages.
    /// - a field of the body, by [`Key::from_json`](crate::Key::from_json): one *order* runs once, however
    ///   often it was sent.
    ///
    /// When a key is used again, the body must be the same. Message attributes aren't compared: if they alone
    /// tell your operations apart, use a key that contains them.
    pub fn sqs<K, I, H, Fut, T>(&self, key: K, handler: H) -> Batch<SqsMessage>
    where
        K: Fn(&SqsMessage) -> I + Send + Sync + 'static,
        I: IntoKey,
        H: Fn(SqsMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        Batch::new(self, key, handler)
    }

    /// A worker for a Kinesis data stream. `key` returns the key of the operation that a record asks for:
    /// [`KinesisRecord::sequence_key`] for one *record*, however often Lambda delivers it, or a field of the
    /// data, since a producer that retries writes two records.
    pub fn kinesis<K, I, H, Fut, T>(&self, key: K, handler: H) -> Batch<KinesisRecord>
    where
        K: Fn(&KinesisRecord) -> I + Send + Sync + 'static,
        I: IntoKey,
        H: Fn(KinesisRecord) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        Batch::new(self, key, handler)
    }

    /// A worker for a DynamoDB stream. `key` returns the key of the operation that a change asks for:
    /// [`DynamoDbRecord::event_key`] for one *change*, however often Lambda delivers it.
    ///
    /// When a key is used again, the event's name, the item's key and its images must be the same.
    pub fn dynamodb_stream<K, I, H, Fut, T>(&self, key: K, handler: H) -> Batch<DynamoDbRecord>
    where
        K: Fn(&DynamoDbRecord) -> I + Send + Sync + 'static,
        I: IntoKey,
        H: Fn(DynamoDbRecord) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        Batch::new(self, key, handler)
    }
}

/// A worker for the records of one source: a service for `lambda_runtime::run`, whose response is the JSON that names the
/// records to redeliver. See [the module](self).
///
/// Its type contains no closure type, so a function can return it and a test can call it:
///
/// ```
/// use lambda_idempotency::{Idempotency, Key, Failure, lambda::batch::{Batch, SqsMessage}, store::memory::MemoryStore};
/// use lambda_runtime::{Context, LambdaEvent, tower::ServiceExt as _};
/// use serde_json::value::RawValue;
///
/// async fn ship(_: SqsMessage) -> Result<&'static str, Failure> {
///     Ok("shipped")
/// }
///
/// fn worker(idempotency: &Idempotency) -> Batch<SqsMessage> {
///     idempotency.sqs(|message| Key::from_json(message, "/order_id"), ship)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
/// let event = r#"{"Records": [{"messageId": "m1", "body": "{\"order_id\": 17}", "eventSource": "aws:sqs"}]}"#;
/// let event = LambdaEvent::new(RawValue::from_string(event.to_owned())?, Context::default());
/// let answer = worker(&idempotency).oneshot(event).await?;
/// assert_eq!(answer.get(), r#"{"batchItemFailures":[]}"#);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Batch<R> {
    idempotency: Idempotency,
    key: KeyOf<R>,
    handler: Arc<dyn Handle<R>>,
    choices: Choices,
    /// Replaces the source's ARN in the scope.
    source_name: Option<Arc<str>>,
    visibility: Option<SharedVisibility>,
    on_progress: Option<Arc<dyn Fn(usize) + Send + Sync>>,
}

#[derive(Clone, Copy, Debug)]
struct Choices {
    concurrency: NonZeroUsize,
    required: bool,
    acknowledges_permanent_failures: bool,
    in_order: bool,
    fails_if_all_fail: bool,
    reserve: Duration,
}

impl<R> Batch<R> {
    fn new<K, I>(idempotency: &Idempotency, key: K, handler: impl Handle<R> + 'static) -> Self
    where
        K: Fn(&R) -> I + Send + Sync + 'static,
        I: IntoKey,
    {
        let choices = Choices {
            concurrency: CONCURRENCY,
            required: true,
            acknowledges_permanent_failures: false,
            in_order: false,
            fails_if_all_fail: false,
            reserve: RESERVE,
        };
        Self {
            idempotency: idempotency.clone(),
            key: Arc::new(move |record| key(record).into_key()),
            handler: Arc::new(handler),
            choices,
            source_name: None,
            visibility: None,
            on_progress: None,
        }
    }

    /// Names the operation. If a function has more than one such layer, give each its own name, or they share
    /// keys. Default: [`Builder::operation`](crate::Builder::operation)'s.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is empty, too long, or contains anything
    /// but ASCII letters, digits, `-`, `_` and `.`.
    pub fn operation(mut self, name: impl AsRef<str>) -> Result<Self, Error> {
        self.idempotency = self.idempotency.named(name.as_ref())?;
        Ok(self)
    }

    /// Gives the source a name, in place of its ARN.
    ///
    /// Each queue, stream or table has its own keys: message 17 of `ship` is another operation than message 17
    /// of `cancel`. Name the source if its records may arrive from another ARN later: from a dead-letter queue
    /// that this function drains, or from another queue after a redrive or a move. Every worker with the same
    /// name, function and operation shares keys.
    ///
    /// ```
    /// # use lambda_idempotency::{Failure, Idempotency, Key, lambda::batch::SqsMessage, store::memory::MemoryStore};
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// // Messages of `orders` and of its dead-letter queue: a redelivered one finds its record.
    /// let worker = idempotency
    ///     .sqs(|message| Key::from_json(message, "/order_id"), async |_: SqsMessage| Ok::<_, Failure>(()))
    ///     .source_name("orders");
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn source_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.source_name = Some(name.into());
        self
    }

    /// Runs this number of records at a time. Default: 10. It also limits how many records are decoded in
    /// memory at once.
    pub fn concurrency(mut self, records: NonZeroUsize) -> Self {
        self.choices.concurrency = records;
        self
    }

    /// Calls this with the number of records that are being claimed, run or settled, each time it changes.
    ///
    /// A handler can collect records with it, to process several at once: when as many calls are waiting inside the
    /// handler as records are in flight, no further record comes before one of them ends. The records of one lane
    /// (a FIFO group, or a partition key [in order](Batch::in_order)) run one after the other, and count as one.
    pub fn on_progress(mut self, call: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(call));
        self
    }

    /// Whether a record needs a key. Without one it's redelivered, and no handler runs. Default: yes; otherwise its
    /// handler runs unprotected.
    pub fn required(mut self, is_required: bool) -> Self {
        self.choices.required = is_required;
        self
    }

    /// Acknowledges a record whose handler failed permanently, in this delivery and later ones. Only the stored
    /// failure is left of it then. If the failure couldn't be recorded, the record is redelivered. Default: no; it's
    /// redelivered until the source gives up on it and moves it to the dead-letter queue, or to the stream's
    /// destination for failures.
    pub fn acknowledge_permanent_failures(mut self, acknowledges: bool) -> Self {
        self.choices.acknowledges_permanent_failures = acknowledges;
        self
    }

    /// Fails the invocation with [`ErrorKind::AllFailed`](crate::ErrorKind::AllFailed) when every record's
    /// handler failed, so that Lambda's `Errors` counts it and Lambda polls the source less. Default: false;
    /// the response names the records, and Lambda counts a success.
    /// [`Metric::AllFailed`](crate::metrics::Metric::AllFailed) counts it either way.
    ///
    /// The same records are redelivered either way. An invocation never fails because of records that another
    /// delivery is processing, that can't be read, or that the store refused.
    pub fn fail_if_all_fail(mut self, fails: bool) -> Self {
        self.choices.fails_if_all_fail = fails;
        self
    }

    /// Cuts handlers off this long before the invocation's deadline, or a sixth of the invocation's time if
    /// that's shorter. For the same time before that, it claims nothing. Half of the reserve is for settlements
    /// under way, the other half for the response. Default: 500 ms.
    pub fn reserve(mut self, time: Duration) -> Self {
        self.choices.reserve = time;
        self
    }
}

impl Batch<KinesisRecord> {
    /// Runs the records of one partition key in order, one after the other. When one fails, the records behind
    /// it with that key are redelivered too. Default: records run independently.
    pub fn in_order(mut self) -> Self {
        self.choices.in_order = true;
        self
    }
}

impl Batch<DynamoDbRecord> {
    /// Runs the changes of one item in order, one after the other. When one fails, the changes behind it to
    /// that item are redelivered too. Default: changes run independently.
    pub fn in_order(mut self) -> Self {
        self.choices.in_order = true;
        self
    }
}

impl<R> Clone for Batch<R> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            key: Arc::clone(&self.key),
            handler: Arc::clone(&self.handler),
            choices: self.choices,
            source_name: self.source_name.clone(),
            visibility: self.visibility.clone(),
            on_progress: self.on_progress.clone(),
        }
    }
}

impl<R: Record> fmt::Debug for Batch<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("source", &R::SOURCE)
            .field("idempotency", &self.idempotency)
            .field("choices", &self.choices)
            .field("visibility", &self.visibility)
            .finish_non_exhaustive()
    }
}

impl<R: Record> Service<LambdaEvent<Box<RawValue>>> for Batch<R> {
    type Response = Box<RawValue>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Box<RawValue>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, event: LambdaEvent<Box<RawValue>>) -> Self::Future {
        let batch = self.clone();
        Box::pin(async move { batch.handle(event).await })
    }
}
