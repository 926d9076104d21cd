//! An embedded DynamoDB on loopback, and a table in it.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client,
    config::{
        BehaviorVersion, Config, Credentials, Region,
        retry::{RetryConfig, RetryPartition},
    },
    types::AttributeValue,
};
use lambda_idempotency::{
    StoredKey,
    store::dynamodb::{DynamoDbStore, DynamoDbStoreBuilder},
};
use tokio::net::TcpListener;

pub(crate) type Item = HashMap<String, AttributeValue>;

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

pub(crate) const TABLE: &str = "idempotency";
pub(crate) const SECRET: &str = "secret-access-key-of-the-test";

/// An emulator of its own, which ends with the test's runtime.
pub(crate) async fn emulator() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let database = dynoxide::Database::memory().unwrap();
    tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, std::future::pending()));
    address
}

pub(crate) fn config(address: SocketAddr) -> aws_sdk_dynamodb::config::Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("access-key", SECRET, None, None, "test"))
        // The default's is up to a second before the first retry: no test waits for chance.
        .retry_config(RetryConfig::standard().with_initial_backoff(Duration::from_millis(1)))
        // All clients of a process and a Region share one quota of retries: here, each has its own.
        .retry_partition(RetryPartition::new(format!("test {}", CLIENTS.fetch_add(1, Ordering::Relaxed))))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(format!("http://{address}"))
}

pub(crate) fn client(address: SocketAddr) -> Client {
    Client::from_conf(config(address).build())
}

pub(crate) fn builder(address: SocketAddr) -> DynamoDbStoreBuilder {
    DynamoDbStore::builder(TABLE).client(client(address))
}

/// A store with a table of its own, and a bare client to look behind it.
pub(crate) struct Table {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) store: DynamoDbStore,
}

impl Table {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(configure: impl FnOnce(DynamoDbStoreBuilder) -> DynamoDbStoreBuilder) -> Self {
        let address = emulator().await;
        let store = configure(builder(address)).build().await.unwrap();
        let _ = store.create_table().await.unwrap();
        Self { address, client: client(address), store }
    }

    pub(crate) async fn put(&self, item: Item) {
        self.client.put_item().table_name(TABLE).set_item(Some(item)).send().await.unwrap();
    }

    /// Every item of the table.
    pub(crate) async fn items(&self) -> Vec<Item> {
        self.client.scan().table_name(TABLE).consistent_read(true).send().await.unwrap().items.unwrap()
    }

    /// The one item with this `id`, where that is the whole key.
    pub(crate) async fn item(&self, id: &str) -> Option<Item> {
        self.client
            .get_item()
            .table_name(TABLE)
            .key("id", AttributeValue::S(id.to_owned()))
            .consistent_read(true)
            .send()
            .await
            .unwrap()
            .item
    }

    pub(crate) async fn record_item(&self, key: &StoredKey) -> Option<Item> {
        self.item(key.as_str()).await
    }
}
