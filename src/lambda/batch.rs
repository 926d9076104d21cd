//! Batches: SQS, Kinesis, DynamoDB Streams and Kafka, record by record.
//!
//! Each record is its own operation: the worker claims, runs and settles each one, several at a time. The response
//! lists the records that Lambda must redeliver. Switch `ReportBatchItemFailures` on at the event source mapping, or
//! Lambda ignores the response: SQS then deletes the messages that failed, and a stream moves on past the records that
//! failed. Kafka is different: see [below](#kafka). Tumbling windows are refused.
//!
//! ```no_run
//! use lambda_idempotency::{Failure, Idempotency, Key, lambda::{batch::SqsMessage, run}};
//! use lambda_runtime::Error;
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
//! | its handler failed or panicked | its key is released, and it's redelivered (under at-most-once, it has failed permanently: see the next row) |
//! | it [failed permanently](Failure::permanent) | recorded; redelivered, or acknowledged with [`acknowledge_permanent_failures`](Batch::acknowledge_permanent_failures) |
//! | another delivery is processing it | redelivered: an acknowledgement would delete the only copy |
//! | it has no key, or can't be read | redelivered; the handler doesn't run |
//! | the store is down, or no time is left | redelivered; the handler doesn't run |
//! | the same key and payload appear twice in the batch | the handler runs once, with one claim; both records get that run's outcome |
//! | its key was used with another payload | redelivered; the handler doesn't run |
//!
//! A record needs only the fields from which its key, its order and the response come: a message's id and body, a
//! Kinesis record's sequence number and data, a change's sequence number and `dynamodb`, the topic, partition and offset
//! of a record of Kafka. In every other field, null or a value of another type counts as absent.
//!
//! The handler runs in the batch's invocation: [`Invocation::current`](crate::Invocation::current) has its deadline, its
//! request id and its tenant, and [`current`](crate::current()) the record's claim. The handler is cut off
//! [before the deadline](#time).
//!
//! If two groups of a FIFO queue each have a message with the same key and payload, the worker processes the two
//! messages concurrently. One gets the claim, and the other may be redelivered because the operation is in progress.
//!
//! The log event `returned` says why a record is redelivered, and contains the record's identifier, but never the
//! payload. If the handler failed, the event has the error's type without the error's text, which may quote the
//! payload. Log the text in the handler. This library's own [`Error`] never quotes the payload, so the event also
//! has the text of such an error.
//!
//! # What's compared
//!
//! When a key is used again, the record's content must be the same:
//!
//! | source | compared | not compared |
//! |---|---|---|
//! | SQS | the body | message attributes |
//! | Kinesis | the data | partition key |
//! | an aggregate of the Kinesis Producer Library | the data, as one record | partition key |
//! | DynamoDB Streams | event name, the item's key, and both images | times |
//! | Kafka | the record's key and value | headers, times |
//! | an event of EventBridge, its scheduler, SNS or S3 [through a queue](crate::lambda::keys#through-a-queue), with its key from [`keys`](crate::lambda::keys) | the fields that the key's page lists | everything else |
//! | any of these, with [`fingerprint_fields`](Batch::fingerprint_fields) | the chosen fields of the content | everything else |
//!
//! If all compared fields are absent, the whole content is compared. DocumentDB's change streams have no worker: call
//! [`run`](crate::Operation::run) for each change.
//!
//! # EventBridge Pipes
//!
//! A pipe delivers a batch as a JSON array, and the workers read it too. Leave out its input template and its
//! enrichment, or let them keep the records as they are. A pipe reads the same response as a mapping, without
//! `ReportBatchItemFailures`, but only if it invokes the function synchronously (`REQUEST_RESPONSE`). It identifies the
//! records of a stream by their `eventID` ("Amazon EventBridge Pipes batching and concurrency", EventBridge user
//! guide). It isn't documented to redeliver the records behind a failed one. So the response lists every failed record
//! of a stream, and a record's lease isn't short as described [below](#a-crash), but lasts until the deadline.
//!
//! # Kafka
//!
//! By default, a record that must be redelivered fails the invocation, and Lambda redelivers the whole batch, without an
//! end unless the mapping has `MaximumRetryAttempts`. A record that can never succeed blocks its partition: set that
//! limit, and a destination for failures. In provisioned mode with `ReportBatchItemFailures`, choose
//! [`partial_answers`](Batch::partial_answers). The response then lists each record that isn't done, by its topic,
//! partition and offset. AWS documents both that Lambda retries the failed records and that it goes on from an offset;
//! such a list is right for both.
//!
//! | the mapping's mode | order | concurrent | lease |
//! |---|---|---|---|
//! | stream (default) | by partition; the records behind a failed one wait | partitions | short |
//! | queue, with [`unordered`](Batch::unordered) | none | records | until the deadline |
//!
//! # Order
//!
//! In a FIFO queue, the messages of one group run in order, one after the other, and different groups run
//! concurrently. When a message fails, the rest of its group is redelivered without running. Streams do the same for
//! the records of one partition key, or of one item, with [`in_order`](Batch::in_order), and Kafka for the records of one
//! partition. Records without a readable group count as one group.
//!
//! Lambda reads a stream's response as a checkpoint: it redelivers everything from the first failure on. So the
//! response lists only the first failure. If a later record succeeded, its outcome is recorded, and its redelivery is
//! acknowledged without running the handler. A record that can never succeed, for example because it can't be read,
//! blocks its shard until the mapping gives up on it. Set `MaximumRecordAgeInSeconds`, a destination for failures, and
//! `BisectBatchOnFunctionError`. Without bisecting, Lambda also gives up on the records behind the blocking one.
//! `MaximumRetryAttempts` also counts redeliveries of records in progress. If you set this limit, allow enough attempts
//! for the redeliveries after [a crash](#a-crash), or set `wait_in_progress` as described there.
//!
//! # A crash
//!
//! When a process dies, its records stay in progress until their leases expire.
//!
//! - **A stream's** record has a short lease of 15 seconds (or three times
//!   [`lease_grace`](crate::settings::Settings::lease_grace), if that's longer). The library extends the lease every
//!   5 seconds while the handler runs. After a crash, the record is free once the lease and the
//!   [`skew_margin`](crate::settings::Settings::skew_margin) have passed: within 17 seconds. Until then, each
//!   redelivery uses up one of `MaximumRetryAttempts`. To avoid this, set
//!   [`wait_in_progress`](crate::settings::Settings::wait_in_progress) to 20 seconds and the function's timeout to 40
//!   seconds or more, since a wait takes at most half of the time left. Extensions cost 0.2 requests per second for
//!   each record. A handler that ends within 5 seconds needs no extension.
//! - A stream's short lease is safe, since Lambda doesn't deliver a shard's batch again while an invocation with that
//!   batch is running. For Kafka, the group may assign a partition to another consumer in the meantime, which then finds
//!   the extended lease. But if a handler blocks its thread, the library can't extend any lease of the batch. The library
//!   cuts a handler off at its next `await` if that handler's lease has expired. For blocking work of more than 8
//!   seconds, use `spawn_blocking`, or set [`lease_extension`](crate::settings::Settings::lease_extension) to a longer
//!   lease. A lease that's longer than the function's timeout is never extended.
//! - If a stream's handler has its own steps that use [`run`](crate::Operation::run), their leases are short too.
//! - Under at-most-once there are no takeovers, so a stream's leases aren't short: they last until the deadline.
//! - **A queue's** message has a lease until the deadline, since SQS can deliver the message to another process at
//!   any time. After a crash, SQS redelivers the message once per visibility timeout, and each delivery counts
//!   towards `maxReceiveCount`: a lease of 62 seconds and a visibility timeout of 30 seconds cost 2 receives. With
//!   the feature `sqs-visibility`, `hide_while_in_progress` reduces the cost to 1 receive.
//!
//! # Time
//!
//! Near the invocation's deadline the worker claims no new record. Then it cuts off handlers that still run,
//! settles the records whose handlers have returned, and responds in time ([`reserve`](Batch::reserve)).
//! Unfinished records are redelivered. If a handler was cut off, its key is free when the lease expires. Under
//! at-most-once, the operation's outcome is unknown after a cut-off, and an operator has to resolve it. Without a
//! [`cut_off`](crate::settings::Settings::cut_off), the worker waits for running handlers past the deadline, and
//! responds once they have returned.

mod answer;
mod dynamodb;
mod handler;
mod handlers;
mod kafka;
mod kinesis;
mod lanes;
#[cfg(all(feature = "admin", feature = "http"))]
mod locate;
mod record;
mod run;
mod sqs;
mod visibility;

pub use dynamodb::DynamoDbRecord;
use handler::{Handle, KeyOf, QuestionOf, question_of};
pub use kafka::KafkaRecord;
pub use kinesis::KinesisRecord;
pub use lanes::scope_caller;
pub(super) use record::Record;
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
    error::Error,
    failure::Failure,
    future::BoxFuture,
    idempotency::{Found, Idempotency},
    lambda::event::IntoKey,
    run::handle::ClaimHandle,
    selector::{self, Selector},
};

/// How many records run at a time, by default.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// How long before the deadline the worker cuts handlers off, by default; see [`Batch::reserve`]. Half of it is for
/// settlements, as long as the default of `answer_reserve`, and half for the response.
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
    ///   If a sender sends twice, that's two messages.
    /// - a field of the body, by [`Key::from_json`](crate::Key::from_json): one *order* runs once, however
    ///   often it was sent.
    ///
    /// When a key is used again, the body must be the same. Message attributes aren't compared: if your operations
    /// differ only in their attributes, use a key that contains the attributes.
    ///
    /// If a message comes from SNS, S3 or EventBridge, its body is that service's envelope. With the source's own key, such
    /// as `|message| keys::s3().key_of(message.as_ref())`, a second copy of one notification is a duplicate: the key
    /// brings [the fields that are compared](crate::lambda::keys#through-a-queue).
    ///
    /// If a sender publishes an order twice, the two envelopes have different ids: SNS writes a new `MessageId` and
    /// `Timestamp`, and EventBridge a new `id` and `time`. If the key is a field of the order, compare only the order,
    /// with [`fingerprint_fields`](Batch::fingerprint_fields), such as `["/detail"]`. Otherwise the second message is a
    /// mismatch, and ends in the dead-letter queue. Or switch on raw message delivery at the SNS subscription, and let
    /// EventBridge send only `$.detail` (the target's input path).
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

    /// A worker for a Kinesis data stream. `key` returns the key of the operation that a record asks for. With
    /// [`KinesisRecord::sequence_key`], each *record* runs once, however often Lambda delivers it. A producer that
    /// retries may write two records. To run the handler only once for both, take the key from a field of the data.
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

    /// A worker for a DynamoDB stream. `key` returns the key of the operation that a change asks for.
    /// With [`DynamoDbRecord::event_key`], each *change* runs once, however often Lambda delivers it.
    ///
    /// When a key is used again, the event's name, the item's key and its images must be the same. See
    /// [`DynamoDbRecord::change`] for keys from the images.
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

    /// A worker for topics of Kafka, from Amazon MSK or from your own cluster. `key` returns the key of the
    /// operation that a record asks for. With [`KafkaRecord::offset_key`], each *record* runs once, however often Lambda
    /// delivers it. If a producer may send an order twice, take the key from a field of the value.
    ///
    /// **One failure fails the invocation**, with [`ErrorKind::BatchFailed`](crate::ErrorKind::BatchFailed): Lambda
    /// redelivers the whole batch, and the records that are done don't run again. Lambda reads an answer that lists the
    /// failed records only in provisioned mode: see [`partial_answers`](Batch::partial_answers).
    ///
    /// The records of one partition run in order, and different partitions run concurrently. For a mapping in queue mode,
    /// see [`unordered`](Batch::unordered).
    ///
    /// Each cluster has its own keys. Its name is the cluster's ARN, or the sorted brokers of your own cluster, as
    /// the mapping lists them. Set a name that never changes, with [`source_name`](Batch::source_name), if you may create
    /// the mapping again with other brokers, or if its source is a VPC connection, which has its own ARN.
    pub fn kafka<K, I, H, Fut, T>(&self, key: K, handler: H) -> Batch<KafkaRecord>
    where
        K: Fn(&KafkaRecord) -> I + Send + Sync + 'static,
        I: IntoKey,
        H: Fn(KafkaRecord) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, Failure>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        let mut batch = Batch::new(self, key, handler);
        (batch.choices.in_order, batch.choices.fails_whole) = (true, true);
        batch
    }
}

/// A worker for the records of one source: a service for [`lambda::run`](super::run). Its response is the JSON that lists the
/// records to redeliver. See [the module](self).
///
/// The worker's type doesn't depend on its closures, so a function can return the worker. `main` and the tests can then
/// use the same one:
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
    question: Option<QuestionOf<R>>,
    choices: Choices,
    /// The fields to compare. `None` means those that the key brings, or the whole record.
    fingerprinted: Option<Arc<[Selector]>>,
    /// Replaces the source's ARN in the scope.
    source_name: Option<Arc<str>>,
    visibility: Option<SharedVisibility>,
    on_progress: Option<Arc<ToldProgress>>,
}

/// Gets the number of records in flight, and the identifiers of those that may run when they're redelivered.
type ToldProgress = dyn Fn(usize, &[&str]) + Send + Sync;

#[derive(Clone, Copy, Debug)]
struct Choices {
    concurrency: NonZeroUsize,
    required: bool,
    acknowledges_permanent_failures: bool,
    in_order: bool,
    /// Whether the source may hand a record to several invocations at the same time.
    is_queue: bool,
    fails_if_all_fail: bool,
    /// Whether a record to redeliver fails the invocation, since Lambda doesn't read the response.
    fails_whole: bool,
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
            is_queue: false,
            fails_if_all_fail: false,
            fails_whole: false,
            reserve: RESERVE,
        };
        Self {
            idempotency: idempotency.clone(),
            key: Arc::new(move |record| key(record).into_key()),
            handler: Arc::new(handler),
            question: None,
            choices,
            fingerprinted: None,
            source_name: None,
            visibility: None,
            on_progress: None,
        }
    }

    /// Names the operation. If a function has more than one such worker, give each its own name, or they share keys.
    /// Default: the name from [`Builder::operation`](crate::Builder::operation).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name is empty, too long, or contains anything
    /// but ASCII letters, digits, `-`, `_` and `.`.
    pub fn operation(mut self, name: impl AsRef<str>) -> Result<Self, Error> {
        self.idempotency = self.idempotency.named(name.as_ref())?;
        Ok(self)
    }

    /// Asks `question` before a record's handler runs again after an attempt that ended without an answer, as
    /// [`Operation::reconcile`](crate::Operation::reconcile) does. `T` is the type that the handler returns.
    ///
    /// Without an answer yet, the record is redelivered: see [the guide](crate::guide::reconcile#batches-and-whole-handlers).
    ///
    /// ```
    /// # use lambda_idempotency::{Failure, Found, Idempotency, Key, lambda::batch::SqsMessage, store::memory::MemoryStore};
    /// # async fn find(_: String) -> Result<Option<String>, std::io::Error> { Ok(None) }
    /// # async fn ship(_: SqsMessage) -> Result<String, Failure> { Ok("parcel 17".to_owned()) }
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// let worker = idempotency
    ///     .sqs(|message| Key::from_json(message, "/order_id"), ship)
    ///     .reconcile(|claim, _| async move {
    ///         Ok(match find(claim.derive_key("parcel")).await? {
    ///             Some(parcel) => Found::Happened(parcel),
    ///             None => Found::DidNotHappen,
    ///         })
    ///     })?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Same as [`Operation::reconcile`](crate::Operation::reconcile).
    pub fn reconcile<T, Q, Fut>(mut self, question: Q) -> Result<Self, Error>
    where
        R: 'static,
        T: Serialize,
        Q: Fn(ClaimHandle, R) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Found<T>, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        self.idempotency = self.idempotency.asking()?;
        self.question = Some(question_of(question));
        Ok(self)
    }

    /// Sets a name for the source, in place of its ARN.
    ///
    /// Each queue, stream or table has its own keys: the key 17 in the queue `ship` and the key 17 in the queue
    /// `cancel` identify two operations. Set a name if the source's records may arrive from another ARN later: from a
    /// dead-letter queue that this function drains, or from another queue after a redrive or a move. All workers with
    /// the same source name, function and operation share their keys. A redrive gives each SQS message a new id, so its
    /// [`message_key`](SqsMessage::message_key) changes: use a key from the body instead.
    ///
    /// ```
    /// # use lambda_idempotency::{Failure, Idempotency, Key, lambda::batch::SqsMessage, store::memory::MemoryStore};
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// // A message of `orders` finds its record even if it comes back from the dead-letter queue.
    /// let worker = idempotency
    ///     .sqs(|message| Key::from_json(message, "/order_id"), async |_: SqsMessage| Ok::<_, Failure>(()))
    ///     .source_name("orders");
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn source_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.source_name = Some(name.into());
        self
    }

    /// Compares these fields of each record's content, [named](crate::KeyFields#naming-a-field) as for a key, in place of
    /// the whole content: the fields of a message's body, of a Kinesis record's data, or of a
    /// [change](DynamoDbRecord::change). Use it if a sender that sends again changes a field, such as the time of the
    /// sending. Otherwise the second record is a mismatch: it ends in the dead-letter queue, blocks its shard, or holds
    /// back its FIFO group.
    ///
    /// An absent field matches only an absent field. If no field has a value, or a field can't be looked up, the whole
    /// content is compared. These fields replace those that a key from [`keys`](crate::lambda::keys) brings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a field's name isn't valid, or `fields` is empty.
    ///
    /// ```
    /// # use lambda_idempotency::{Failure, Idempotency, Key, lambda::batch::KinesisRecord, store::memory::MemoryStore};
    /// # let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
    /// // A producer that gets no answer puts the order again, with another `sent_at`.
    /// let worker = idempotency
    ///     .kinesis(|record| Key::from_json(record, "/order"), async |_: KinesisRecord| Ok::<_, Failure>(()))
    ///     .fingerprint_fields(["/order", "/cents"])?;
    /// # Ok::<(), lambda_idempotency::Error>(())
    /// ```
    pub fn fingerprint_fields<'a>(
        mut self,
        fields: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        self.fingerprinted = Some(selector::some_of(fields)?.into());
        Ok(self)
    }

    /// Sets how many records run at a time. Default: 10. If the event has more than 1 MiB, no more records than that are
    /// decoded in memory at once.
    pub fn concurrency(mut self, records: NonZeroUsize) -> Self {
        self.choices.concurrency = records;
        self
    }

    /// Calls a closure with the number of records in flight (being claimed, run or settled) whenever that number
    /// changes.
    ///
    /// With this number, handlers can collect several records and process them together. Once as many handler calls are
    /// waiting as records are in flight, the handlers have all of these records, and no other record arrives before one
    /// of the calls returns. The records of one lane (for example a FIFO group, or a partition key
    /// [in order](Batch::in_order)) run one after the other, and count as one.
    ///
    /// The closure also gets the identifiers of the records that have ended since its last call and may run when they're
    /// redelivered: as the response lists them, and for Kafka as in `orders-0@15`. Handlers that collect a stream's records
    /// keep its order by failing those behind one of these, with [`Failure::not_begun`](crate::Failure::not_begun).
    pub fn on_progress(mut self, call: impl Fn(usize, &[&str]) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(call));
        self
    }

    /// Whether a record needs a key. By default it does, and a record without a key is redelivered without running. If
    /// you pass false, such a record runs unprotected.
    pub fn required(mut self, is_required: bool) -> Self {
        self.choices.required = is_required;
        self
    }

    /// Whether to acknowledge a record whose handler failed permanently, now or in an earlier delivery. Afterwards,
    /// only the stored failure remains, so a record whose failure couldn't be stored is redelivered in any case.
    /// Default: no; each record that failed permanently is redelivered until the source gives up on it and moves it to
    /// the dead-letter queue, or to the stream's destination for failures.
    pub fn acknowledge_permanent_failures(mut self, acknowledges: bool) -> Self {
        self.choices.acknowledges_permanent_failures = acknowledges;
        self
    }

    /// Whether to fail the invocation with [`ErrorKind::AllFailed`](crate::ErrorKind::AllFailed) when every record's
    /// handler failed, so that Lambda's metric `Errors` counts the invocation and Lambda polls the source less.
    /// Default: no; the response lists the records, and Lambda counts a success.
    /// [`Metric::AllFailed`](crate::metrics::Metric::AllFailed) counts such a batch either way.
    ///
    /// The same records are redelivered either way. An invocation never fails because of records that another
    /// delivery is processing, that can't be read, or that the store refused.
    pub fn fail_if_all_fail(mut self, fails: bool) -> Self {
        self.choices.fails_if_all_fail = fails;
        self
    }

    /// Cuts handlers off this long before the invocation's deadline, or a sixth of the invocation's time if
    /// that's shorter. The worker stops claiming records twice as long before the deadline. The first half of the
    /// reserve is for settlements under way, the second half for the response. Default: 500 ms.
    ///
    /// A handler without protection has no outcome to record, so it runs until the response is due: half the reserve
    /// before the deadline. This applies to records without a key ([`required`](Batch::required)), to runs after a
    /// failed claim ([`fail_open`](crate::settings::Settings::fail_open)), and to every run while idempotency isn't
    /// enforced. Without a [`cut_off`](crate::settings::Settings::cut_off), the response waits for every running
    /// handler.
    pub fn reserve(mut self, time: Duration) -> Self {
        self.choices.reserve = time;
        self
    }
}

impl<R> Clone for Batch<R> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            key: Arc::clone(&self.key),
            handler: Arc::clone(&self.handler),
            question: self.question.clone(),
            choices: self.choices,
            fingerprinted: self.fingerprinted.clone(),
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
            .field("fingerprinted", &self.fingerprinted)
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
