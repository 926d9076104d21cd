//! The core of [`lambda-idempotency`](https://docs.rs/lambda-idempotency): keys, records, the rules, the contract that a
//! store implements, and the store in memory. It doesn't depend on the AWS SDK, and on Lambda's
//! runtime only with the feature `lambda`, which `lambda-idempotency` enables.
//!
//! Functions use `lambda-idempotency`, which re-exports these names. Depend on this crate in a package that implements
//! [`Store`](store::Store). The feature `conformance` adds the test suite for stores, and
//! [`store::toolkit`] has what several stores need.

// Vocabulary.
#[cfg(feature = "lambda")]
mod diagnostic;
mod draw;
mod error;
mod failure;
mod fingerprint;
mod finite;
mod format;
mod future;
mod key;
mod key_fields;
mod outcome;
mod record;
mod selector;
pub mod settings;
pub mod time;
// The storage contract, the store in memory, and the stores' conformance suite.
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod store;
// The rules.
#[doc(hidden)]
pub mod protocol;
// Names for this repository's other packages.
#[doc(hidden)]
pub mod internal;

pub use error::{Error, ErrorKind, RecordedFailure, RunError};
pub use failure::Failure;
pub use fingerprint::Fingerprint;
pub use key::{Key, Scope, StoredKey};
pub use key_fields::KeyFields;
