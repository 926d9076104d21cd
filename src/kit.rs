//! Names for `lambda-idempotency-testing`, which pins this library with `=`. They change in any release.

pub use crate::run::context::{HandlerOf, handler, in_invocation};

/// The writes that a handler stages for DynamoDB.
#[cfg(feature = "dynamodb")]
pub mod dynamodb {
    pub use crate::store::dynamodb::transaction::{DescribedWrite, described};
}
