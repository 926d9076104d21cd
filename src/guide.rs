//! Pages that are longer than an item's documentation.

#[doc = include_str!("guide/which_one.md")]
pub mod which_one {}

#[doc = include_str!("guide/protocol.md")]
pub mod protocol {}

#[doc = include_str!("guide/failure_modes.md")]
pub mod failure_modes {}

#[doc = include_str!("guide/exactly_once.md")]
pub mod exactly_once {}

#[doc = include_str!("guide/reconcile.md")]
pub mod reconcile {}

#[doc = include_str!("guide/operations.md")]
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
