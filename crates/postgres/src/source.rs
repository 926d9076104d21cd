//! The store's own pool. It makes connections for a URL, or with the settings of the user's pool.
//!
//! The store never borrows a connection from the user's pool. Handlers hold those connections while they run. With all
//! of them in use, a completion would have to wait, and would be too late.

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Manager};

/// The store's own pool.
pub(super) type Pool = managed::Pool<Source>;
/// A connection of the store's own pool.
pub(super) type Object = managed::Object<Source>;

/// Makes the pool's connections.
#[derive(Debug)]
pub(super) enum Source {
    /// For a URL.
    Url(Box<Manager>),
    /// With the settings of the user's pool. That pool's hooks don't run.
    Pool(deadpool_postgres::Pool),
}

impl Source {
    fn manager(&self) -> &Manager {
        match self {
            Self::Url(manager) => manager,
            Self::Pool(pool) => pool.manager(),
        }
    }
}

impl managed::Manager for Source {
    type Type = ClientWrapper;
    type Error = tokio_postgres::Error;

    async fn create(&self) -> Result<ClientWrapper, Self::Error> {
        self.manager().create().await
    }

    /// Rejects only a closed connection. A connection that may be dead is checked when it's lent.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<Self::Error> {
        if client.is_closed() { Err(RecycleError::message("the connection is closed")) } else { Ok(()) }
    }

    fn detach(&self, client: &mut ClientWrapper) {
        self.manager().detach(client);
    }
}
