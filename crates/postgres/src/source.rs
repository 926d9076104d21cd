//! The store's own pool. It makes connections for a URL, or with the settings of the user's pool.
//!
//! The store never borrows a connection from the user's pool. Handlers hold those connections while they run. With all
//! of them in use, a completion would have to wait, and would be too late.

use std::{error::Error as StdError, fmt, sync::Arc};

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Manager};
use lambda_idempotency_core::store::BoxFuture;
use tokio_postgres::{Config, NoTls, error::SqlState};

use super::tls::Tls;

/// The store's own pool.
pub(super) type Pool = managed::Pool<Source>;
/// A connection of the store's own pool.
pub(super) type Object = managed::Object<Source>;

/// Makes the pool's connections.
#[derive(Debug)]
pub(super) enum Source {
    /// For a URL.
    Url(Box<Manager>),
    /// For a URL, with a password that's asked for.
    Asking(Box<Asking>),
    /// With the settings of the user's pool. That pool's hooks don't run.
    Pool(deadpool_postgres::Pool),
}

/// Returns the password of a new connection.
pub(super) type Password = Arc<dyn Fn() -> BoxFuture<'static, Result<String, PasswordError>> + Send + Sync>;
/// The error of the code that returns the password.
pub(super) type PasswordError = Box<dyn StdError + Send + Sync>;

/// Makes connections with a password that may change.
pub(super) struct Asking {
    pub(super) config: Config,
    /// `None` for connections without TLS.
    pub(super) tls: Option<Tls>,
    pub(super) password: Password,
}

/// Why a connection couldn't be made.
#[derive(Debug)]
pub(super) enum Unconnected {
    /// The server or the network.
    Server(tokio_postgres::Error),
    /// The code that returns the password failed.
    NoPassword(PasswordError),
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

impl Asking {
    /// Connects. If the server refuses the password, asks for it again: it may have changed since it was returned.
    async fn connect(&self) -> Result<ClientWrapper, Unconnected> {
        match self.attempt().await {
            Err(Unconnected::Server(error)) if is_of_password(&error) => self.attempt().await,
            made => made,
        }
    }

    async fn attempt(&self) -> Result<ClientWrapper, Unconnected> {
        let password = (self.password)().await.map_err(Unconnected::NoPassword)?;
        let mut config = self.config.clone();
        config.password(password);
        let manager = match &self.tls {
            Some(tls) => Manager::new(config, tls.clone()),
            None => Manager::new(config, NoTls),
        };
        manager_made(&manager).await
    }
}

/// Whether the server refused the user or the password.
fn is_of_password(error: &tokio_postgres::Error) -> bool {
    let refusals = [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
    error.code().is_some_and(|code| refusals.contains(code))
}

async fn manager_made(manager: &Manager) -> Result<ClientWrapper, Unconnected> {
    use managed::Manager as _;
    // Boxed: a call's future would otherwise reserve several kilobytes for a connection that it rarely makes.
    Box::pin(manager.create()).await.map_err(Unconnected::Server)
}

impl managed::Manager for Source {
    type Type = ClientWrapper;
    type Error = Unconnected;

    async fn create(&self) -> Result<ClientWrapper, Unconnected> {
        match self {
            Self::Url(manager) => manager_made(manager).await,
            Self::Asking(asking) => Box::pin(asking.connect()).await,
            Self::Pool(pool) => manager_made(pool.manager()).await,
        }
    }

    /// Rejects only a closed connection. A connection that may be dead is checked when it's lent.
    async fn recycle(&self, client: &mut ClientWrapper, _: &Metrics) -> RecycleResult<Unconnected> {
        if client.is_closed() { Err(RecycleError::message("the connection is closed")) } else { Ok(()) }
    }

    fn detach(&self, client: &mut ClientWrapper) {
        match self {
            Self::Url(manager) => manager.detach(client),
            // Its manager lived only while it connected.
            Self::Asking(_) => {}
            Self::Pool(pool) => pool.manager().detach(client),
        }
    }
}
