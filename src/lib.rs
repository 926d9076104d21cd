//! Makes AWS Lambda handlers idempotent: one logical operation has one outcome.
//!
//! AWS Lambda delivers at least once. This library wraps a handler so that the first delivery claims the
//! operation's key in DynamoDB, runs the handler and stores its response, and every later delivery gets
//! that stored response back, byte for byte, without running the handler.
//!
//! *Outcomes are recorded exactly once; handler bodies run at least once (default) or at most once (by
//! choice); when the handler's own writes go through the same DynamoDB transaction or PostgreSQL transaction as the
//! record, effects happen exactly once.* The handler learns about earlier attempts: [`current`] gives it its claim, with a key for
//! downstream APIs that is the same in every attempt ([`ClaimHandle::derive_key`]), and a number that grows
//! with every attempt ([`ClaimHandle::generation`]) for what it writes to.
//!
//! # Wrap a handler
//!
//! - HTTP: [`Idempotency::http`], the contract of the `Idempotency-Key` header, for `lambda_http` and axum;
//! - typed events: [`Idempotency::events`], for `lambda_runtime`;
//! - batches, record by record: [`Idempotency::sqs`], [`kinesis`](Idempotency::kinesis) and
//!   [`dynamodb_stream`](Idempotency::dynamodb_stream);
//! - one function inside a handler: [`Operation::run`];
//! - anything else: [`Operation::begin`] and [`Claim`].
//!
//! [`Idempotency::from_env`] takes the table from the environment; [`Idempotency::builder`] takes any
//! [`Store`].
//!
//! ```
//! use lambda_idempotency::{Idempotency, Key, store::memory::MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotency = Idempotency::builder(MemoryStore::new()).function("orders").build()?;
//!
//! let charge = idempotency.operation("charge")?;
//! let work = async || Ok::<_, std::io::Error>(String::from("receipt 1"));
//! let receipt: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
//! // The same operation again: answered from the record.
//! let again: String = charge.run(Key::new("order-17")?, &"12.50 EUR", work).await?;
//! assert_eq!(receipt, again);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `dynamodb` | yes | the DynamoDB store, and with it the AWS SDK |
//! | `http` | yes | the layer for `lambda_http` and axum; switches `events` on |
//! | `events` | by `http` | the layer and the workers for `lambda_runtime`: typed events; SQS, Kinesis, DynamoDB Streams |
//! | `sqs` | no | hides an SQS message that another delivery is processing until that one's lease ends |
//! | `jmespath` | no | JMESPath expressions in a [`Selector`] |
//! | `client` | no | the module `client`: a `reqwest` client that keeps one key over all attempts |
//! | `redis` | no | the store on Redis and Valkey, and nothing of AWS |
//! | `postgres` | no | the PostgreSQL store, and the record in a transaction of the handler's own |
//! | `metrics` | no | counters and latencies through the [`metrics`](https://docs.rs/metrics) facade |
//! | `conformance` | no | the suite that proves a store |
//! | `live-aws` | no | this package's own tests on a real table |
//!
//! Without default features there is the core: the machine, the engine and the memory store, and no AWS SDK.
//!
//! # What is not promised
//!
//! - An effect outside the store's transaction, when the process dies between it and the completion's write:
//!   the next delivery runs the handler again (or, at most once, nobody does).
//! - One outcome over two Regions of a multi-Region eventually consistent global table.
//! - Anything about a table that was restored from a backup, which brings old claims back.
//! - A single run where two executors' clocks are apart by more than the skew margin. Fencing still keeps one
//!   outcome a generation.
//! - Deduplication beyond the retention, so it must be longer than a queue goes on redelivering.
//!
//! What happens at each point of failure, and the test that shows it: [`guide::failure_modes`]. The rules:
//! [`guide::protocol`]. Effects in the outcome's transaction: [`guide::exactly_once`]. Running, deploying, metrics and
//! defaults: [`guide::operations`].

pub mod guide;

// Vocabulary.
mod error;
mod fingerprint;
mod finite;
mod future;
mod key;
mod key_fields;
mod outcome;
mod record;
mod selector;
mod time;
// The storage contract, the stores, and what proves them.
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod store;
// The rules, and what carries them out.
mod claim;
mod engine;
mod invocation;
mod observe;
mod policy;
pub mod protocol;
mod staging;
// The front door, and the wrappers.
mod environment;
#[cfg(feature = "postgres")]
mod in_transaction;
#[cfg(feature = "events")]
pub mod lambda;
// The other side: who calls such a function.
#[cfg(feature = "client")]
pub mod client;

pub use claim::{Claim, ClaimHandle, Commitment, Completion, NotMade, Replay, current};
pub use engine::{Begun, Builder, Idempotency, Operation, Resolution, Resolved};
pub use environment::NamedStore;
pub use error::{Error, ErrorKind, RecordedFailure, RunError};
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use future::BoxFuture;
#[cfg(feature = "postgres")]
pub use in_transaction::{BegunIn, CompletionIn, InTransaction};
pub use invocation::Invocation;
pub use key::{Key, MAX_KEY_BYTES, Scope, StoredKey};
pub use key_fields::KeyFields;
pub use observe::Metric;
#[cfg(feature = "metrics")]
pub use observe::describe_metrics;
pub use outcome::{Damaged, Encoding, Outcome, Place, StoredResponse};
pub use policy::{Execution, MissingKey, OnHandlerError, OnInProgress, OnStoreFailure, Settings};
pub use record::{Generation, Lock, Owner, RECORD_VERSION, Record, State, Status};
pub use selector::Selector;
pub use staging::{Staging, staging};
pub use store::Store;
pub use time::{Clock, SystemClock, Timestamp};
