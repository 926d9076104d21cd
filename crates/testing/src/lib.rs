//! Tests whether a handler that uses [`lambda-idempotency`](lambda_idempotency) is safe to retry. It needs no AWS and no
//! network, and time is virtual.
//!
//! [`guide`] makes an unsafe handler safe, step by step, with the output of each step.
//!
//! ```
//! use lambda_idempotency::{Key, current};
//! use lambda_idempotency_testing::{Bench, Event, Function, survive};
//! use serde_json::Value;
//!
//! type Error = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn function(bench: &Bench) -> Function {
//!     let (idempotency, gateway) = (bench.idempotency(), bench.ledger());
//!     Function::new(move |order: Value| {
//!         let (idempotency, gateway) = (idempotency.clone(), gateway.clone());
//!         async move {
//!             let charge = || async {
//!                 let key = current().ok_or("not protected")?.derive_key("charge");
//!                 Ok::<_, Error>(gateway.call("charge", Some(&key), &order["cents"]).await?)
//!             };
//!             let key = Key::new(order["id"].as_str().unwrap_or_default())?;
//!             Ok::<String, Error>(idempotency.operation("pay")?.run(key, &order, charge).await?)
//!         }
//!     })
//! }
//!
//! let event = Event::json(r#"{"id": "order-17", "cents": 1250}"#)
//!     .other(r#"{"id": "order-18", "cents": 990}"#)
//!     .conflicting(r#"{"id": "order-17", "cents": 1300}"#);
//!
//! // One situation at a time …
//! let bench = Bench::new();
//! let mut charging = function(&bench);
//! bench.deliver(&mut charging, &event).assert_ran();
//! bench.deliver(&mut charging, &event.retried(1)).assert_replayed();
//! bench.ledger().assert_count("charge", 1);
//!
//! // … or all of them.
//! survive(function, &event).assert_safe();
//! ```
//!
//! | concept | what it is |
//! |---|---|
//! | [`Function`] | your own service with its layers, or a handler that uses [`run`](lambda_idempotency::Operation::run) |
//! | [`Event`] | a sample event, how its sender repeats it, and the event of another operation |
//! | [`Ledger`] | the effects, which your fakes record |
//! | [`Bench`] | one process: its store, its clock, and methods that cause faults |
//! | [`Delivery`] | what one delivery did, and its answer |
//! | [`survive()`] | causes every fault at every point, with every duplicate |
//! | [`key_of`] | which fields change the key, which the fingerprint, which neither |
//!
//! A handler that stages its writes can stage a [`Transaction`] of items in the memory store:
//!
//! ```
//! use lambda_idempotency::{Idempotency, Key, staging, store::memory::MemoryStore};
//! use lambda_idempotency_testing::Transaction;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let idempotency = Idempotency::builder(store.clone()).function("orders").build()?;
//! let pay = async || {
//!     let staging = staging().ok_or("not protected")?;
//!     staging.add(Transaction::new().put("payments", "order-17", "12.50 EUR").absent("payments", "order-17"))?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("paid".to_owned())
//! };
//! let answer: String = idempotency.operation("pay")?.run(Key::new("order-17")?, &12, pay).await.map_err(|_| "failed")?;
//! assert_eq!(store.item("payments", "order-17").as_deref(), Some("12.50 EUR"));
//! # Ok(())
//! # }
//! ```
//!
//! # Survive
//!
//! [`survive()`] first delivers the event without a fault. This shows which effects the operation must have, and how
//! often each of them must happen, whatever goes wrong. Then [`survive()`] plays schedules, each with an empty store
//! and new processes. The first schedules have at most one fault each, and together have every fault at every point
//! that the first delivery reached. A duplicate follows, in the same process or in another one, at once or after the
//! lease has expired. The further schedules have up to three faults, chosen at random. There are at least 100 of these,
//! unless [`Survival::schedules`] sets the total number of schedules. A schedule's number is also the seed of its
//! random choices. Each schedule delivers the event until the operation is done, as the event's source would, and then
//! once more.
//!
//! At the end, [`survive()`] delivers the event set by [`Event::other`], and the sample event with one field changed,
//! for each of its first 80 fields. If AWS sets a field, such as a time, the field stays. A change of a record's content
//! changes the record's id too. Another operation may do something else after the first one than alone: only what holds
//! for every right handler counts as a mistake. Then two operations run concurrently. Without [`Event::other`], it can only guess whether two operations send different
//! keys to a remote system: it reports a remote key that stays the same whichever field changes. If the function is
//! safe, the report still says whether [`Event::other`] was missing, and whether some fields weren't changed.
//!
//! [`survive()`] only compares effects and answers, without knowing their meaning. It finds:
//!
//! | found | when |
//! |---|---|
//! | [`Mistake::FirstFailed`] | the first delivery fails, although no fault happened |
//! | [`Mistake::Repeated`] | an effect happened more often than in an undisturbed delivery |
//! | [`Mistake::Missing`] | the answer says that the operation is done, but an effect is missing; or a retry sent an effect with other details, which the remote system ignored because it already knew the effect's key |
//! | [`Mistake::AfterAnswer`] | an effect happened after the answer, when Lambda may freeze the process |
//! | [`Mistake::AnswersDiffer`] | two recorded answers to one operation differ, for example in an HTTP response's `Location`; a replay may have more fields. Or the result of an operation reads back differently |
//! | [`Mistake::RetryRefused`] | every retry is refused |
//! | [`Mistake::Shared`] | two operations share an outcome or a remote key, or two steps of one operation share a key |
//! | [`Mistake::OtherRefused`] | another operation is refused |
//! | [`Mistake::ConflictAccepted`] | the same key with different content is accepted |
//! | [`Mistake::UpdateLost`] | two concurrent operations leave a state that they leave in neither order, in the items of a [`Transaction`] or in writes staged for DynamoDB |
//!
//! Under at-most-once, an operation may end without success: its outcome is unknown, or its failure is recorded.
//! [`survive()`] then accepts that the function refuses every retry. A handler may have several operations. If all its
//! at-most-once operations are completed or released, another operation causes the refusal, and that's a mistake.
//!
//! # Drawings
//!
//! `DRAW_FAILURES=/tmp/failures cargo test` writes a page into that folder for each failed check of a [`Report`] or a
//! [`Delivery`]. The page has a sequence diagram of what happened, and the check's message names it. [`Report::to_html`]
//! returns the page of a report, and [`Bench::to_svg`] draws any test. The
//! [failure modes](lambda_idempotency::guide::failure_modes#drawn) have such drawings.
//!
//! # Points and faults
//!
//! [`Point`] and [`Fault`] are the only lists of a run's points and of the faults that can happen there. The rehearsal,
//! the model checker, the simulation, and the tests on real servers and sockets use them too. [`Bench::fault_at`] and
//! [`survive()`] can cause each fault at each point that it [fits](Fault::fits). A [late](Fault::Late) request arrives
//! when the next delivery begins, or when the test waits. A dead process has no more effects, and runs no destructor:
//! the kit ignores whatever the process's code still does, and drops its futures only when the test is over.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `http` | yes | [`Function::lambda`] and [`Function::http`], for services of `lambda_runtime` and `lambda_http` |
//! | `dynamodb` | yes | writes that a handler stages for DynamoDB |
//! | `proptest` | no | [`strategies`]: keys, events and schedules for property tests |
//!
//! Disable the default features if your function needs neither: the tests then build without the AWS SDK.

mod arrival;
mod bench;
mod delivery;
#[cfg(feature = "dynamodb")]
mod dynamodb;
/// Without the feature `dynamodb`, no write is for DynamoDB.
#[cfg(not(feature = "dynamodb"))]
mod dynamodb {
    use lambda_idempotency_core::{
        StoredKey,
        store::{OwnWrites, StoreError},
    };

    use crate::effect::StagedEffect;

    pub(crate) fn checked(_: &StoredKey, _: &OwnWrites) -> Option<Result<(), StoreError>> {
        None
    }

    pub(crate) fn described(_: &OwnWrites) -> Option<Vec<StagedEffect>> {
        None
    }
}
#[doc(hidden)]
pub mod drawing;
mod effect;
mod event;
mod fault;
mod fields;
mod function;
mod given;
#[doc = include_str!("guide.md")]
pub mod guide {}
mod keys;
mod ledger;
mod picture;
mod point;
mod random;
mod request;
mod sources;
mod stage;
mod store;
mod story;
#[cfg(feature = "proptest")]
pub mod strategies;
mod survive;
mod time;
mod told;
mod world;

pub use bench::Bench;
pub use delivery::Delivery;
pub use effect::{Effect, Lookup, NoAnswer};
pub use event::Event;
pub use fault::Fault;
pub use function::{Answer, Function};
pub use given::Given;
pub use keys::{Changes, KeyReport, key_of};
pub use lambda_idempotency_core::internal::testing::{Declined, Transaction};
pub use ledger::Ledger;
pub use point::{Call, Point};
pub use random::Random;
pub use sources::{FrontEnd, HttpRequest};
pub use survive::{Finding, Mistake, Report, Survival, survive};
