//! [`StoreBuilder`]: configures a store on a database.

use std::fmt;

use crate::{error::Error, store::Store};

/// Configures a store on a database: the store's own builder. Create it with the store's `builder` function, and finish
/// with its `build`.
pub type StoreBuilder<S> = <S as Configured>::Builder;

/// A store on a database, which a [`StoreBuilder`] configures.
pub trait Configured {
    /// The store's builder.
    type Builder: Clone + fmt::Debug;
}

/// A store that a URL can name. The URL begins with one of the store's schemes and `://`.
///
/// `Idempotency::from_env` and `NamedStore` of `lambda-idempotency` open the stores of this project by their URLs. Other
/// stores are passed to `Idempotency::builder`.
pub trait FromUrl: Configured + Store + Sized {
    /// Returns a builder with the settings of `url`, whose scheme is the store's. Errors refer to the URL as `what`.
    /// Some stores parse the URL only in [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL is malformed. The error shows no password.
    fn from_url(what: &str, url: &str) -> Result<StoreBuilder<Self>, Error>;

    /// Builds the store, without sending a request.
    ///
    /// # Errors
    ///
    /// The errors of the store's builder.
    fn open(builder: StoreBuilder<Self>) -> impl Future<Output = Result<Self, Error>> + Send;

    /// Whether an `@` after the first `?` of the builder's URL belongs to a parameter. If not, the `?` may belong to a
    /// password that isn't percent-encoded, as in `postgres://user:se?cret@db`.
    fn has_at_in_parameter(builder: StoreBuilder<Self>) -> bool;
}
