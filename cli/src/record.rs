//! `idempotency list`, `inspect`, `release` and `complete`: records, for an operator.

pub mod inspect;
pub mod key;
pub mod list;
mod response;
pub mod settle;
mod view;

use lambda_idempotency::{Idempotency, Record, Store as _, StoredKey, store::dynamodb::DynamoDbStore};

use crate::problem::{Problem, Result};

/// The record of `key`, if there is one.
async fn read(store: &DynamoDbStore, key: &StoredKey) -> Result<Option<Record>> {
    store.read(key).await.map_err(|error| Problem::of(&error))
}

/// The engine that looks at records and settles them, on `store`; `configure` has its settings.
fn engine(
    store: &DynamoDbStore,
    configure: impl FnOnce(lambda_idempotency::Builder) -> lambda_idempotency::Builder,
) -> Result<Idempotency> {
    // The name counts for keys that are derived, and here they are already.
    let builder = configure(Idempotency::builder(store.clone()).function("operator"));
    builder.build().map_err(|error| Problem::of(&error))
}
