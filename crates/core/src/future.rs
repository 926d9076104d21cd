//! The future type that the crate's traits return.

use std::{future::Future, pin::Pin};

/// A boxed, sendable future: what the methods of [`Store`](crate::store::Store) and [`Clock`](crate::time::Clock)
/// return, so that both traits can be used as trait objects and chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
