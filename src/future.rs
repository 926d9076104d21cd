//! The one future type of the crate's traits.

use std::{future::Future, pin::Pin};

/// A boxed, sendable future: what the methods of [`Store`](crate::store::Store) and [`Clock`](crate::time::Clock)
/// return, so that both can be held as trait objects and chosen at run time.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
