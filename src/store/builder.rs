//! [`StoreBuilder`]: configures a store on a database.

use std::{fmt, time::Duration};

use crate::{error::Error, store::Store};

/// How long one attempt of a request may take, by default: a hundred times as long as a healthy database in the same
/// region takes.
#[allow(dead_code, reason = "unused if the features of all stores are off")]
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

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

/// A store that a URL can name. The URL begins with one of the store's schemes and `://`. If a parameter of the URL is
/// a secret, add the parameter to `CREDENTIALS` in `named/shown.rs`.
#[allow(dead_code, reason = "unused if the features of all stores are off")]
pub(super) trait FromUrl: Configured + Store + Sized {
    /// Returns a builder with the settings of `url`, whose scheme is the store's. Errors refer to the URL as `what`.
    /// Some stores parse the URL only in [`open`](Self::open).
    fn from_url(what: &str, url: &str) -> Result<StoreBuilder<Self>, Error>;

    /// Builds the store, without sending a request.
    fn open(builder: StoreBuilder<Self>) -> impl Future<Output = Result<Self, Error>> + Send;

    /// Whether an `@` after the first `?` of the builder's URL belongs to a parameter. If not, the `?` may belong to a
    /// password that isn't percent-encoded, as in `postgres://user:se?cret@db`.
    fn has_at_in_parameter(builder: StoreBuilder<Self>) -> bool;
}

impl<S: Configured> fmt::Debug for StoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.choices.fmt(f)
    }
}
