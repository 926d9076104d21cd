//! [`StoreBuilder`]: configures a store on a database.

use std::fmt;

/// Configures a store on a database. Create it with the store's `builder` function, and finish with
/// [`build`](Self::build).
///
/// ```
/// use std::time::Duration;
/// use lambda_idempotency::store::{StoreBuilder, dynamodb::DynamoDbStore};
///
/// fn patient(builder: StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore> {
///     builder.operation_timeout(Duration::from_secs(10))
/// }
///
/// let builder = patient(DynamoDbStore::builder("payments"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct StoreBuilder<S: Configured> {
    pub(super) choices: S::Choices,
}

/// A store on a database, which a [`StoreBuilder`] configures.
pub trait Configured {
    /// The configuration of the store.
    type Choices: Clone + fmt::Debug;
}

impl<S: Configured> fmt::Debug for StoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.choices.fmt(f)
    }
}
