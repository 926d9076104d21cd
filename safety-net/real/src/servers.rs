//! The DynamoDB servers that every net is thrown over: the embedded one, and those that are named.

use std::{sync::OnceLock, time::Duration};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Builder, Credentials, Region},
};
use lambda_idempotency::{Owner, store::dynamodb::DynamoDbStore};
use lambda_idempotency_cli::{
    problem::{Context, Problem, Result},
    rehearse::database::{ACCESS_KEY, Database, REGION},
};

#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "shared with tests, where it may fail"
)]
#[allow(dead_code, missing_docs, missing_debug_implementations, reason = "each user uses some of it")]
#[allow(clippy::disallowed_methods, reason = "it waits for a server to start")]
#[path = "../../../tests/support/postgres.rs"]
pub(crate) mod postgres_server;
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "shared with tests, where it may fail"
)]
#[allow(dead_code, missing_docs, missing_debug_implementations, reason = "each user uses some of it")]
#[allow(clippy::disallowed_methods, reason = "it waits for a server to start")]
#[path = "../../../tests/support/redis.rs"]
pub(crate) mod redis_server;

/// How long a call may take where no fault is meant.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Names further servers, as `name=http://host:port`, separated by spaces.
pub const VARIABLE: &str = "IDEMPOTENCY_NET_SERVERS";

/// Starts a PostgreSQL that asks for no password: hashing it takes an unoptimised build a tenth of a second for each
/// connection. `None` if there is none to start.
pub(crate) fn start_postgres() -> Option<postgres_server::Server> {
    postgres_server::Server::start_with("", &[("pg_hba.conf", b"host all all 127.0.0.1/32 trust\n")])
}

/// The one that the process's nets share.
pub(crate) fn shared_postgres() -> Option<&'static postgres_server::Server> {
    static SHARED: OnceLock<Option<postgres_server::Server>> = OnceLock::new();
    SHARED.get_or_init(start_postgres).as_ref()
}

/// A DynamoDB on loopback.
#[derive(Debug)]
pub struct Server {
    /// What reports call it.
    pub name: String,
    database: Database,
}

impl Server {
    /// The embedded one, and those that the environment names.
    ///
    /// # Errors
    ///
    /// If one does not start or does not answer.
    pub async fn all() -> Result<Vec<Self>> {
        let mut servers = vec![Self::embedded().await?];
        for given in std::env::var(VARIABLE).unwrap_or_default().split_whitespace() {
            let (name, url) = given.split_once('=').ok_or_else(|| {
                Problem::new(format!("{VARIABLE}: `{given}` is not of the form name=http://host:port"))
            })?;
            servers.push(Self { name: name.to_owned(), database: Database::at(url).await? });
        }
        Ok(servers)
    }

    /// The embedded one, with tables of its own.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn embedded() -> Result<Self> {
        Ok(Self { name: "embedded DynamoDB".into(), database: Database::embedded().await? })
    }

    /// What it is underneath.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::from_conf(config_of(&self.database.endpoint().to_string()).build())
    }

    /// A store in a fresh table of it.
    ///
    /// # Errors
    ///
    /// If the table cannot be created.
    pub async fn store(&self) -> Result<DynamoDbStore> {
        let table = fresh_table()?;
        let store = DynamoDbStore::builder(&table)
            .client(self.client())
            // Nothing is broken here: on a busy machine, an answer may take its time.
            .attempt_timeout(PATIENCE)
            .operation_timeout(PATIENCE)
            .build()
            .await;
        let store = store.context(format!("{}, the store in table {table}", self.name))?;
        store.create_table().await.context(format!("{}, creating the table {table}", self.name))?;
        Ok(store)
    }
}

/// A table name that no other run has taken.
///
/// # Errors
///
/// If the operating system has no random bits.
pub fn fresh_table() -> Result<String> {
    let random = Owner::random().context("a name for a table")?;
    Ok(format!("real-net-{random}"))
}

/// What a client of what listens at `endpoint` is made with: no TLS, whose certificates would take longer to read
/// than all the rest of a process's start.
pub fn config_of(endpoint: &str) -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new(ACCESS_KEY, ACCESS_KEY, None, None, "real-net"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(endpoint)
}
