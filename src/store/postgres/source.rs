//! The store's own pool, which makes connections for a URL, or as the user's pool makes its own.
//!
//! Handlers hold the user's connections for as long as they work. A completion that had to wait for one would come too late
//! where every handler waits for the next one, so that the store never takes a connection of theirs.

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Manager};

/// The store's own pool.
pub(super) type Pool = managed::Pool<Source>;
/// A connection of it.
pub(super) type Object = managed::Object<Source>;

/// Makes connections.
#[derive(Debug)]
pub(super) enum Source {
    /// For a URL.
    Url(Box<Manager>),
    /// As the user's pool does. Its hooks belong to the pool, and don't run.
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

    /// Nothing is asked: a connection that may be dead is checked when it's lent.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<Self::Error> {
        if client.is_closed() { Err(RecycleError::message("the connection is closed")) } else { Ok(()) }
    }

    fn detach(&self, client: &mut ClientWrapper) {
        self.manager().detach(client);
    }
}
