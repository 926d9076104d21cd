//! A DynamoDB on loopback and its client. The DynamoDB is embedded, unless the environment names a running one.

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use lambda_idempotency::store::Owner;
use tokio::{net::TcpListener, task::JoinHandle};

/// The variable that names a running DynamoDB (DynamoDB Local, or `idempotency-rehearse dynamodb`) as
/// `http://host:port`.
pub const ENDPOINT: &str = "IDEMPOTENCY_TEST_ENDPOINT";

/// A DynamoDB for the tests' tables.
#[derive(Debug)]
pub struct Emulator {
    endpoint: String,
    /// The embedded server, which stops when the `Emulator` is dropped.
    server: Option<JoinHandle<Result<(), String>>>,
}

impl Emulator {
    /// Starts a server in the current tokio runtime, or uses the one that [`ENDPOINT`] names.
    pub async fn start() -> Self {
        if let Ok(endpoint) = std::env::var(ENDPOINT) {
            return Self { endpoint, server: None };
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("the listener's address"));
        Self { endpoint, server: Some(serve(listener)) }
    }

    /// The server's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Creates a client for the server.
    pub fn client(&self) -> Client {
        client(&self.endpoint)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

/// Serves an embedded DynamoDB, with its own tables, until the task is aborted.
pub fn serve(listener: TcpListener) -> JoinHandle<Result<(), String>> {
    let database = dynoxide::Database::memory().expect("a database in memory");
    tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, std::future::pending()))
}

/// Creates a client for the server at `endpoint`, without TLS.
pub fn client(endpoint: &str) -> Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(endpoint)
        .build();
    Client::from_conf(config)
}

/// A table name that no other test uses.
pub fn fresh_table() -> String {
    format!("test-{}", Owner::random().expect("random bits"))
}
