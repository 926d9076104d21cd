//! Makes AWS Lambda handlers idempotent: one logical operation has one outcome.
//!
//! AWS Lambda delivers at least once. This library wraps a handler so that the first delivery claims the
//! operation's key in DynamoDB, runs the handler and stores its response. Every later delivery gets that
//! stored response back, byte for byte, without running the handler.
//!
//! *Outcomes are recorded exactly once. Handler bodies run at least once (default) or at most once (by choice).
//! When the handler's own writes go through the same DynamoDB or PostgreSQL transaction as the record, effects
//! happen exactly once.*
//!
//! With [`current`], the handler gets its claim and learns about earlier
//! attempts. For calls to downstream APIs, the claim derives a key that is the same in every attempt
//! ([`ClaimHandle::derive_key`]). For downstream writes, the claim has a fencing token ([`ClaimHandle::generation`]):
//! a number that grows with every attempt.
//!
//! # Wrap a handler
//!
//! - HTTP: [`Idempotency::http`], the contract of the `Idempotency-Key` header, for `lambda_http` and axum;
//! - typed events: [`Idempotency::events`], for `lambda_runtime`;
//! - batches, record by record: [`Idempotency::sqs`], [`kinesis`](Idempotency::kinesis) and
//!   [`dynamodb_stream`](Idempotency::dynamodb_stream);
//! - one function inside a handler: [`Operation::run`], or the attribute `#[idempotent]`;
//! - anything else: [`Operation::begin`] and [`Claim`].
//!
//! [`Idempotency::from_env`] opens the store that the environment variables choose; [`Idempotency::builder`] takes
//! any [`Store`](store::Store).
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
//! | `events` | with `http` | `lambda_runtime`: a layer for typed events; workers for SQS, Kinesis, DynamoDB Streams, Kafka |
//! | `axum` | no | the HTTP layer sees the whole path inside axum's `Router::nest`, and reads an axum body itself, so that a body that breaks off causes no panic |
//! | `sqs-visibility` | no | hides an SQS message that another delivery is processing, until that delivery's lease ends |
//! | `jmespath` | no | JMESPath expressions beside JSON Pointers in [`KeyFields`] |
//! | `macros` | no | the attribute `#[idempotent]`, the short form of [`Operation::run`] |
//! | `client` | no | the module `client`: a `reqwest` client that sends the same key in every attempt |
//! | `redis` | no | the Redis and Valkey store; needs no AWS crate |
//! | `postgres` | no | the PostgreSQL store, and the record in the handler's own transaction |
//! | `iam` | no | the parameter `iam` of the URLs of these two stores: tokens of RDS, ElastiCache and MemoryDB, signed by the function's role |
//! | `admin` | no | for operators' tools: `scan` and `check_table` of the stores, `check_servers` of the Redis store, and with `http` the wrappers' `describe` |
//! | `metrics` | no | counters and latencies through the [`metrics`](https://docs.rs/metrics) facade |
//! | `conformance` | no | the conformance suite for stores |
//! | `live-aws` | no | this package's own tests on a real table |
//!
//! Without default features you get the core: the state machine, its driver and the memory store, without the
//! AWS SDK.
//!
//! # What can't be promised
//!
//! - Exactly one effect outside the store's transaction, when the process dies after the effect and before the outcome
//!   is recorded. The next delivery runs the handler again. Under at-most-once, no delivery does.
//! - One outcome over two Regions of a multi-Region eventually consistent global table.
//! - Anything after a table was restored from a backup: the restore brings old claims back.
//! - A single run where two executors' clocks differ by more than the skew margin. Fencing still keeps one
//!   outcome per generation.
//! - Deduplication beyond the retention. Set it longer than the queue keeps redelivering.
//!
//! [`guide::failure_modes`] says what happens at each point of failure, and which test shows it.
//! [`guide::protocol`] has the rules, [`guide::exactly_once`] explains how one transaction stores a handler's effects
//! and its outcome, and [`guide::operations`] covers running, deploying, metrics and defaults.

pub mod guide;

// Vocabulary.
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "the wrappers use the rest"))]
mod invocation;
pub mod metrics;
pub mod time;
// The stores.
pub mod store;
// The code that applies the rules to one operation.
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "the wrappers use the rest"))]
mod observe;
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "the wrappers use the rest"))]
mod run;
#[doc(hidden)]
pub mod span;
// The entry points and the wrappers.
#[cfg_attr(
    not(all(feature = "admin", feature = "http")),
    allow(dead_code, reason = "the wrappers and their descriptions use the rest")
)]
mod idempotency;
#[cfg(feature = "events")]
pub mod lambda;
// Names for the kit for tests of a user's handlers.
#[doc(hidden)]
pub mod kit;

pub use idempotency::{Builder, Found, Idempotency, Operation, Reconciled, Resolution};
pub use invocation::Invocation;
// The client side: calls functions that use this library.
#[cfg(feature = "client")]
pub use lambda_idempotency_client as client;
#[cfg(any(test, feature = "conformance"))]
pub use lambda_idempotency_core::conformance;
#[doc(hidden)]
pub use lambda_idempotency_core::protocol;
// The core's modules, under the names that they have there.
use lambda_idempotency_core::internal::{
    self, error, failure, fingerprint, format, future, key, outcome, record,
};
#[cfg(feature = "events")]
use lambda_idempotency_core::internal::{key_fields, selector};
pub use lambda_idempotency_core::{
    Error, ErrorKind, Failure, Fingerprint, Key, KeyFields, RecordedFailure, RunError, Scope, StoredKey,
    settings,
};
#[cfg(feature = "macros")]
pub use lambda_idempotency_macros::idempotent;
/// The attribute's examples, which need the library.
#[cfg(all(doctest, feature = "macros"))]
#[doc = include_str!("../crates/macros/src/idempotent.md")]
mod attribute {}
pub use run::{
    claim::{Begun, Claim, Settled},
    commit::NotCommitted,
    context::{current, staging},
    handle::ClaimHandle,
    in_transaction::InTransaction,
    replay::Replay,
    staging::Staging,
};
