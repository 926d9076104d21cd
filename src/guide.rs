//! What is longer than an item's own documentation.

#[doc = include_str!("guide/failure_modes.md")]
pub mod failure_modes {}

#[cfg(feature = "http")]
#[doc = include_str!("guide/idempotency_specification.md")]
pub mod idempotency_specification {}
