//! The [`Store`] contract: the operations that the library needs from a database.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub(crate) mod named;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

pub use lambda_idempotency_core::store::*;
pub use named::NamedStore;
