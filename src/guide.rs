//! What is longer than an item's own documentation.

#[doc = include_str!("guide/failure_modes.md")]
pub mod failure_modes {}

#[cfg(feature = "http")]
#[doc = include_str!("guide/idempotency_specification.md")]
pub mod idempotency_specification {}

#[cfg(feature = "http")]
#[doc = include_str!("guide/callers.md")]
pub mod callers {}

#[doc = include_str!("guide/own_store.md")]
#[doc = include_str!("../examples/file_store/store.rs")]
#[doc = include_str!("guide/own_store_end.md")]
pub mod own_store {}
