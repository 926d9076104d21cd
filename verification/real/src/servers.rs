//! The DynamoDB servers of the checks: the embedded one, and those that the environment names. Also starts PostgreSQL.

use std::{sync::OnceLock, time::Duration};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Builder, Credentials, Region},
};
use lambda_idempotency::store::{Owner, dynamodb::DynamoDbStore};
use lambda_idempotency_rehearsal::{
    database::{ACCESS_KEY, Database, REGION},
    problem::{Context, Problem, Result},
};
use testkit::postgres::Server as PostgresServer;

/// How long a call without a fault may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The environment variable that names further servers, as `name=http://host:port`, separated by spaces.
pub const VARIABLE: &str = "IDEMPOTENCY_VERIFICATION_SERVERS";

/// Starts a PostgreSQL without passwords: in an unoptimised build, hashing a password takes a tenth of a second
/// per connection. Returns `None` if PostgreSQL isn't installed.
pub(crate) fn start_postgres() -> Option<PostgresServer> {
    PostgresServer::start_with("", &[("pg_hba.conf", b"host all all 127.0.0.1/32 trust\n")])
}

/// Returns the PostgreSQL that the checks of this process share, except those that start their own.
pub(crate) fn shared_postgres() -> Option<&'static PostgresServer> {
    static SHARED: OnceLock<Option<PostgresServer>> = OnceLock::new();
    SHARED.get_or_init(start_postgres).as_ref()
}

/// A DynamoDB: the embedded one, or one that the environment names.
#[derive(Debug)]
pub struct Server {
    /// The server's name in reports.
    pub name: String,
    database: Database,
}

impl Server {
    /// Starts the embedded server, and connects to the servers that [`VARIABLE`] names.
    ///
    /// # Errors
    ///
    /// If a server doesn't start or doesn't answer.
    pub async fn all() -> Result<Vec<Self>> {
        let mut servers = vec![Self::embedded().await?];
        for given in std::env::var(VARIABLE).unwrap_or_default().split_whitespace() {
            let (name, url) = given.split_once('=').ok_or_else(|| {
                Problem::new(format!("{VARIABLE}: `{given}` isn't of the form name=http://host:port"))
            })?;
            servers.push(Self { name: name.to_owned(), database: Database::at(url).await? });
        }
        Ok(servers)
    }

    /// Starts an embedded server, with its own tables.
    ///
    /// # Errors
    ///
    /// If the server doesn't start.
    pub async fn embedded() -> Result<Self> {
        Ok(Self { name: "embedded DynamoDB".into(), database: Database::embedded().await? })
    }

    /// The underlying database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Creates a client for this server.
    pub fn client(&self) -> Client {
        Client::from_conf(config_of(&self.database.endpoint().to_string()).build())
    }

    /// Creates a store in a fresh table.
    ///
    /// # Errors
    ///
    /// If the table can't be created.
    pub async fn store(&self) -> Result<DynamoDbStore> {
        let table = fresh_table()?;
        let store = DynamoDbStore::builder(&table)
            .client(self.client())
            // No fault is injected here, and a busy machine may answer slowly.
            .attempt_timeout(PATIENCE)
            .operation_timeout(PATIENCE)
            .build()
            .await;
        let store = store.context(format!("{}: couldn't open the store in table {table}", self.name))?;
        store.create_table().await.context(format!("{}: couldn't create the table {table}", self.name))?;
        Ok(store)
    }
}

/// Returns a table name that no other run uses.
///
/// # Errors
///
/// If the operating system has no random bits.
pub fn fresh_table() -> Result<String> {
    let random = Owner::random().context("couldn't draw a table name")?;
    Ok(format!("verification-real-{random}"))
}

/// Configures a client for the server at `endpoint`. The client uses no TLS, since reading the certificates would
/// take longer than the rest of a process's start.
pub fn config_of(endpoint: &str) -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new(ACCESS_KEY, ACCESS_KEY, None, None, "verification-real"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(endpoint)
}
