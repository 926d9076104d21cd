//! An embedded DynamoDB on loopback, and stores and clients that connect to it.

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
    store::{Owner, StoreBuilder, dynamodb::DynamoDbStore},
};
use testkit::emulator::ENDPOINT;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::wire::{Wire, forward, read_message};

pub(crate) type Item = HashMap<String, AttributeValue>;

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

pub(crate) const TABLE: &str = "idempotency";
pub(crate) const SECRET: &str = "secret-access-key-of-the-test";

const ACCESS_KEY: &str = "access-key";

/// Returns the address of a DynamoDB for this test alone. By default, starts an emulator. If the environment variable
/// [`ENDPOINT`] is set, starts a proxy to the DynamoDB at that URL, where the test has its own tables. Both end with
/// the test's runtime.
pub(crate) async fn emulator() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        let upstream = endpoint
            .strip_prefix("http://")
            .expect("the endpoint must begin with http://")
            .parse()
            .expect("the endpoint must end with HOST:PORT");
        tokio::spawn(tenant(listener, upstream));
        return address;
    }
    testkit::emulator::serve(listener);
    address
}

/// Forwards requests to `upstream` under an access key that no other test has. DynamoDB Local has one database per
/// access key, so each test has its own tables, although all tests use the same table name.
async fn tenant(listener: TcpListener, upstream: SocketAddr) {
    let own = Owner::random().unwrap().to_string();
    let (from, to) = (format!("Credential={ACCESS_KEY}/"), format!("Credential={own}/"));
    while let Ok((mut client, _)) = listener.accept().await {
        let (from, to) = (from.clone(), to.clone());
        tokio::spawn(async move {
            while let Ok(Some((head, request))) = read_message(&mut client).await {
                let mut sent = head.replace(&from, &to).into_bytes();
                sent.extend_from_slice(&request[head.len()..]);
                let Ok(answer) = forward(Some(upstream), &sent).await else { return };
                if client.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The configuration of a client without settings for its connections and retries.
pub(crate) fn bare_config(address: SocketAddr) -> aws_sdk_dynamodb::config::Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new(ACCESS_KEY, SECRET, None, None, "test"))
        .endpoint_url(format!("http://{address}"))
}

pub(crate) fn config(address: SocketAddr) -> aws_sdk_dynamodb::config::Builder {
    bare_config(address)
        // By default, the SDK waits a random time of up to a second before its first retry. A small backoff keeps the
        // tests fast.
        .retry_config(RetryConfig::standard().with_initial_backoff(Duration::from_millis(1)))
        // All clients in a process and Region share one retry quota. A separate partition gives each client its own.
        .retry_partition(RetryPartition::new(format!("test {}", CLIENTS.fetch_add(1, Ordering::Relaxed))))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
}

pub(crate) fn client(address: SocketAddr) -> Client {
    Client::from_conf(config(address).build())
}

/// Configures long timeouts. A busy machine may pause the process for seconds. With short timeouts, the SDK would then
/// send a write again, and the second attempt would find the record of the first.
pub(crate) fn patient(builder: StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore> {
    builder.attempt_timeout(Duration::from_secs(20)).operation_timeout(Duration::from_secs(60))
}

pub(crate) fn builder(address: SocketAddr) -> StoreBuilder<DynamoDbStore> {
    patient(DynamoDbStore::builder(TABLE).client(client(address)))
}

/// Builds a store that sends its requests over the wire. A test that waits for a timeout uses [`hasty`] or
/// [`resending`] instead.
pub(crate) async fn on(wire: &Wire) -> DynamoDbStore {
    builder(wire.address).build().await.unwrap()
}

/// Builds a store for a wire that hangs on every attempt. The short attempt timeout makes the call fail soon.
pub(crate) async fn hasty(wire: &Wire) -> DynamoDbStore {
    builder(wire.address).attempt_timeout(Duration::from_millis(600)).build().await.unwrap()
}

/// Builds a store for a wire that hangs on the first attempt. The attempt timeout is long enough for the second attempt
/// on a busy machine.
pub(crate) async fn resending(wire: &Wire) -> DynamoDbStore {
    builder(wire.address).attempt_timeout(Duration::from_secs(6)).build().await.unwrap()
}

/// A store with its own table, and a plain client to inspect it.
pub(crate) struct Table {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) store: DynamoDbStore,
}

impl Table {
    pub(crate) async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    pub(crate) async fn with(
        configure: impl FnOnce(StoreBuilder<DynamoDbStore>) -> StoreBuilder<DynamoDbStore>,
    ) -> Self {
        let address = emulator().await;
        let store = configure(builder(address)).build().await.unwrap();
        let _ = store.create_table().await.unwrap();
        Self { address, client: client(address), store }
    }

    pub(crate) async fn put(&self, item: Item) {
        self.client.put_item().table_name(TABLE).set_item(Some(item)).send().await.unwrap();
    }

    /// Returns every item of the table.
    pub(crate) async fn items(&self) -> Vec<Item> {
        self.client.scan().table_name(TABLE).consistent_read(true).send().await.unwrap().items.unwrap()
    }

    /// Returns the item with this `id`, in a table where `id` is the whole key.
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
