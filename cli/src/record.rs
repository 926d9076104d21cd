//! The commands that show or settle records: `idempotency list`, `watch`, `inspect`, `why`, `release`,
//! `complete` and `run-again`.
//!
//! Only `list` and `watch` depend on the kind of store, since the trait `Store` can't list all records.

pub(crate) mod again;
mod described;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod list;
mod response;
pub(crate) mod settle;
mod view;
pub(crate) mod watch;
pub(crate) mod why;

use std::sync::Arc;

use lambda_idempotency::{
    Builder, Idempotency, StoredKey,
    store::{Record, Store},
};

use crate::problem::{Problem, Result};

/// The record of `key`, if there is one.
async fn read(store: &dyn Store, key: &StoredKey) -> Result<Option<Record>> {
    store.read(key).await.map_err(|error| Problem::of(&error))
}

/// Builds an `Idempotency` on `store`, to read and settle records. `configure` sets its options.
fn engine(store: &Arc<dyn Store>, configure: impl FnOnce(Builder) -> Builder) -> Result<Idempotency> {
    // The commands pass keys that are already derived, so the function's name has no effect.
    let builder = configure(Idempotency::builder(Arc::clone(store)).function("operator"));
    builder.build().map_err(|error| Problem::of(&error))
}
