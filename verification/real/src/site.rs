//! Starts a check's own server, with a table or a prefix for its records, and opens stores on it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aws_sdk_dynamodb::{Client, config::retry::RetryPartition, types::AttributeValue};
use lambda_idempotency::{
    StoredKey,
    store::{Store, StoreBuilder, dynamodb::DynamoDbStore, postgres::PostgresStore, redis::RedisStore},
};
use lambda_idempotency_rehearsal::problem::{Context, Problem, Result};

use testkit::redis::RedisServer;

use crate::servers::{self, PATIENCE, Server, config_of, fresh_table};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The embedded DynamoDB.
    DynamoDb,
    /// PostgreSQL from Debian's package.
    Postgres,
    /// Redis from Debian's package. Redis appends every command to its file before it answers, so an
    /// acknowledged write survives a crash of the Redis process.
    Redis,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::DynamoDb, Self::Postgres, Self::Redis];

    /// Returns the store's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DynamoDb => "DynamoDB",
            Self::Postgres => "PostgreSQL",
            Self::Redis => "Redis",
        }
    }

    /// Whether this kind of server is installed, for tests that skip the stores of missing servers. If it isn't, prints
    /// how to install it, or panics if `CI` is `true`.
    pub fn is_installed(self) -> bool {
        match self {
            Self::DynamoDb => true,
            Self::Postgres => testkit::postgres::is_installed(),
            Self::Redis => testkit::redis::is_installed(),
        }
    }
}

/// A server, and the table or the prefix of the records on it.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) host: Host,
    /// The table's name, or the keys' prefix.
    room: String,
}

/// A running server.
#[derive(Debug)]
pub(crate) enum Host {
    DynamoDb(Server),
    Postgres(testkit::postgres::Server),
    Redis(RedisServer),
}

impl Site {
    /// Starts a server of this kind, and creates its table for records. Redis needs no table.
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        let host = match kind {
            Kind::DynamoDb => Host::DynamoDb(Server::embedded().await?),
            Kind::Postgres => {
                let server = blocking(servers::start_postgres).await?;
                Host::Postgres(server.ok_or_else(|| Problem::new("PostgreSQL isn't installed"))?)
            }
            Kind::Redis => {
                let settings = ["--appendonly", "yes", "--appendfsync", "no"];
                let server = blocking(move || RedisServer::start(&settings)).await?;
                Host::Redis(server.ok_or_else(|| Problem::new("Redis isn't installed"))?)
            }
        };
        let site = Self { host, room: fresh_table()?.replace('-', "_") };
        match &site.host {
            Host::DynamoDb(server) => server.database().create_idempotency_table(&site.room).await?,
            Host::Postgres(_) => {
                let store = site.postgres(site.address()?, |builder| builder)?;
                store.create_table().await.context("couldn't create the table of records")?;
            }
            Host::Redis(_) => {}
        }
        Ok(site)
    }

    /// The server's address.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        match &self.host {
            Host::DynamoDb(server) => {
                let endpoint = server.database().endpoint();
                let authority = endpoint.authority().map(|authority| authority.as_str());
                authority.unwrap_or_default().parse().context("invalid address of the embedded DynamoDB")
            }
            Host::Postgres(server) => Ok(([127, 0, 0, 1], server.port()).into()),
            Host::Redis(server) => Ok(server.address()),
        }
    }

    /// Creates the store of one sandbox: with its own connections to `address`, and otherwise with the library's
    /// defaults.
    pub(crate) async fn store_at(&self, address: SocketAddr) -> Result<Arc<dyn Store>> {
        Ok(match &self.host {
            Host::DynamoDb(_) => Arc::new(self.dynamodb(address, |builder| builder).await?),
            Host::Postgres(_) => Arc::new(self.postgres(address, |builder| builder)?),
            Host::Redis(_) => Arc::new(self.redis(address, |builder| builder)?),
        })
    }

    /// Creates a PostgreSQL or Redis store with its own connections to `address` and these timeouts.
    pub(crate) fn limited_store_at(
        &self,
        address: SocketAddr,
        attempt: Duration,
        operation: Duration,
    ) -> Result<Arc<dyn Store>> {
        Ok(match &self.host {
            Host::DynamoDb(_) => {
                return Err(Problem::new("`limited_store_at` creates only PostgreSQL and Redis stores"));
            }
            Host::Postgres(_) => Arc::new(self.postgres(address, |builder| {
                let statement = operation.saturating_sub(attempt);
                builder.connect_timeout(attempt).statement_timeout(statement).lock_timeout(attempt / 2)
            })?),
            Host::Redis(_) => {
                Arc::new(self.redis(address, |builder| {
                    builder.attempt_timeout(attempt).operation_timeout(operation)
                })?)
            }
        })
    }

    /// Deletes this record on the server directly, without the library.
    pub(crate) async fn remove(&self, key: &StoredKey) -> Result<()> {
        match &self.host {
            Host::DynamoDb(server) => {
                let gone = server.client().delete_item().table_name(&self.room);
                let gone = gone.key("id", AttributeValue::S(key.as_str().to_owned())).send().await;
                gone.map(drop).map_err(|error| Problem::new(format!("couldn't delete the record: {error:?}")))
            }
            Host::Postgres(server) => {
                let statement = format!("DELETE FROM \"{}\" WHERE id = $1", self.room);
                let gone = server.client().await.execute(&statement, &[&key.as_str()]).await;
                gone.map(drop).context("couldn't delete the record")
            }
            Host::Redis(server) => {
                let name = format!("{}:{key}", self.room);
                match server.run(&["DEL", &name]).as_str() {
                    "0" | "1" => Ok(()),
                    said => Err(Problem::new(format!("couldn't delete the record: {said}"))),
                }
            }
        }
    }

    /// Creates the harness's own store. It connects without the proxy, and its timeouts are long enough for a
    /// busy machine.
    pub(crate) async fn direct(&self) -> Result<Arc<dyn Store>> {
        let address = self.address()?;
        Ok(match &self.host {
            Host::DynamoDb(_) => {
                let patient = |builder: StoreBuilder<DynamoDbStore>| {
                    builder.attempt_timeout(PATIENCE).operation_timeout(PATIENCE)
                };
                Arc::new(self.dynamodb(address, patient).await?)
            }
            Host::Postgres(_) => {
                let patient = |builder: StoreBuilder<PostgresStore>| {
                    builder.connect_timeout(PATIENCE).statement_timeout(PATIENCE).lock_timeout(PATIENCE / 2)
                };
                Arc::new(self.postgres(address, patient)?)
            }
            Host::Redis(_) => {
                let patient = |builder: StoreBuilder<RedisStore>| {
                    builder.attempt_timeout(PATIENCE).operation_timeout(PATIENCE)
                };
                Arc::new(self.redis(address, patient)?)
            }
        })
    }

    async fn dynamodb(
        &self,
        address: SocketAddr,
        configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>,
    ) -> Result<DynamoDbStore> {
        let config = config_of(&format!("http://{address}"))
            // By default, all clients of a process and a Region share one retry quota. This partition gives
            // each sandbox its own quota.
            .retry_partition(RetryPartition::new(fresh_table()?))
            .build();
        let builder = configure(DynamoDbStore::builder(&self.room).client(Client::from_conf(config)));
        builder.build().await.context("couldn't open the DynamoDB store")
    }

    fn postgres(
        &self,
        address: SocketAddr,
        configure: impl FnOnce(StoreBuilder<PostgresStore>) -> StoreBuilder<PostgresStore>,
    ) -> Result<PostgresStore> {
        let Host::Postgres(server) = &self.host else { return Err(Problem::new("this isn't PostgreSQL")) };
        let builder = PostgresStore::builder(server.url_at(address.port())).table(&self.room);
        configure(builder).build().context("couldn't open the PostgreSQL store")
    }

    fn redis(
        &self,
        address: SocketAddr,
        configure: impl FnOnce(StoreBuilder<RedisStore>) -> StoreBuilder<RedisStore>,
    ) -> Result<RedisStore> {
        let builder = RedisStore::builder(format!("redis://{address}?prefix={}:", self.room));
        configure(builder).build().context("couldn't open the Redis store")
    }
}

/// Starts a server on a blocking thread, so that other tasks continue while it starts.
async fn blocking<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(start).await.context("couldn't start a server")
}
