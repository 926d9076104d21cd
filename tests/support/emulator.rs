//! A DynamoDB on loopback, with a client for it: an embedded one, or the one that the environment names.

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use lambda_idempotency::Owner;
use tokio::{net::TcpListener, task::JoinHandle};

/// Names a DynamoDB that is already there, as `http://host:port`: DynamoDB Local, or `idempotency dynamodb`.
pub const ENDPOINT: &str = "IDEMPOTENCY_TEST_ENDPOINT";

/// A DynamoDB with tables of its own.
#[derive(Debug)]
pub struct Emulator {
    endpoint: String,
    /// An embedded one, which ends with this.
    server: Option<JoinHandle<Result<(), String>>>,
}

impl Emulator {
    /// Starts one, in the current tokio runtime, or takes the one that is there.
    pub async fn start() -> Self {
        if let Ok(endpoint) = std::env::var(ENDPOINT) {
            return Self { endpoint, server: None };
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("the listener's address"));
        let database = dynoxide::Database::memory().expect("a database in memory");
        let never = std::future::pending();
        let server = tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, never));
        Self { endpoint, server: Some(server) }
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A client for it.
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

/// A client of what listens at `endpoint`, without TLS.
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

/// A table name that no other test has taken.
pub fn fresh_table() -> String {
    format!("test-{}", Owner::random().expect("random bits"))
}
