//! The [`Store`] contract: the operations that the library needs from a database.

#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub(crate) mod named;

pub use lambda_idempotency_core::store::*;
#[cfg(feature = "postgres")]
pub use lambda_idempotency_postgres as postgres;
#[cfg(feature = "redis")]
pub use lambda_idempotency_redis as redis;
pub use named::NamedStore;
