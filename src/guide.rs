//! Pages that are longer than an item's documentation.

#[doc = include_str!("guide/which_one.md")]
pub mod which_one {}

#[doc = include_str!("guide/protocol.md")]
pub mod protocol {}

#[doc = include_str!("guide/failure_modes.md")]
///
/// # Drawn
///
/// The testing kit played these failures, and drew them. Time runs downwards, and each line is a participant: the caller, the
/// function's processes, the table of records, and the place of the effects: a remote system that charges, or the handler's
/// own table. A purple arrow with a dot is an effect, and red is the failure. Green is a write that was applied or an answer of success, and
/// amber is what was refused or had no effect. The answer to a refused claim brings the record, so that a duplicate is answered from it.
///
/// ## The process dies after its effect
///
/// Until the claim is stale, deliveries are refused. Then one takes it over, and sends the charge under the same derived key, so
/// nothing is charged again.
///
#[doc = include_str!("guide/drawn/dies.svg")]
///
/// ## The process freezes past its lease
///
/// Another delivery takes the claim over and records its outcome; its charge has the same key, too. When the frozen process continues, its own
/// outcome is refused, and its caller gets the recorded one.
///
#[doc = include_str!("guide/drawn/freezes.svg")]
///
/// ## The answer to a claim is lost
///
/// The library reads the record, recognises its own claim by the owner, and runs the handler.
///
#[doc = include_str!("guide/drawn/claim_lost.svg")]
///
/// ## The answer to a completion is lost
///
/// The library reads the record, and finds its own outcome. A duplicate gets it.
///
#[doc = include_str!("guide/drawn/completion_lost.svg")]
///
/// ## The outcome can't be recorded
///
/// The caller gets the response. The store is back for the next deliveries: they're refused until the claim is stale, and
/// then one runs again.
///
#[doc = include_str!("guide/drawn/unrecorded.svg")]
///
/// ## At most once
///
/// The library can't know whether the charge happened, so no delivery runs until an operator steps in.
///
#[doc = include_str!("guide/drawn/at_most_once.svg")]
///
/// ## With a reconciler
///
/// The next delivery takes the claim over, and asks the remote system. It charged, so the library records that, and the handler doesn't run.
///
#[doc = include_str!("guide/drawn/reconciled.svg")]
///
/// ## In one transaction
///
/// One transaction applies the handler's write and records the outcome. The process died before it was sent, so neither happened, and the
/// next delivery does both, once.
///
#[doc = include_str!("guide/drawn/transaction.svg")]
pub mod failure_modes {}

#[doc = include_str!("guide/exactly_once.md")]
pub mod exactly_once {}

#[doc = include_str!("guide/reconcile.md")]
pub mod reconcile {}

#[doc = include_str!("guide/operations.md")]
///
/// # Two traces
///
/// A receiver of OpenTelemetry got these spans of an operation and of its duplicate. Each line is a trace, and the green arrow is the
/// link from the replay to the run that made its answer.
///
#[doc = include_str!("guide/drawn/traces.svg")]
pub mod operations {}

#[cfg(feature = "dynamodb")]
#[doc = include_str!("guide/global_tables.md")]
pub mod global_tables {}

#[cfg(feature = "http")]
#[doc = include_str!("guide/idempotency_specification.md")]
pub mod idempotency_specification {}

#[cfg(feature = "http")]
#[doc = include_str!("guide/callers.md")]
pub mod callers {}

#[cfg(all(feature = "dynamodb", feature = "http"))]
#[doc = include_str!("guide/recipes.md")]
pub mod recipes {}

#[doc = include_str!("guide/own_store.md")]
#[doc = include_str!("../examples/file_store/store.rs")]
#[doc = include_str!("guide/own_store_end.md")]
pub mod own_store {}
