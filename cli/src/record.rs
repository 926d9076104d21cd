//! `idempotency list`, `inspect`, `release` and `complete`: records, for an operator.
//!
//! Only `list` has to know which store it is, since the contract has no way to go through all records.

pub mod inspect;
pub mod key;
pub mod list;
mod response;
pub mod settle;
mod view;

use std::sync::Arc;

use lambda_idempotency::{Builder, Idempotency, Record, Store, StoredKey};

use crate::problem::{Problem, Result};

/// The record of `key`, if there is one.
async fn read(store: &dyn Store, key: &StoredKey) -> Result<Option<Record>> {
    store.read(key).await.map_err(|error| Problem::of(&error))
}

/// The engine that looks at records and settles them, on `store`; `configure` has its settings.
fn engine(store: &Arc<dyn Store>, configure: impl FnOnce(Builder) -> Builder) -> Result<Idempotency> {
    // The name counts for keys that are derived, and here they are already.
    let builder = configure(Idempotency::builder(Arc::clone(store)).function("operator"));
    builder.build().map_err(|error| Problem::of(&error))
}
