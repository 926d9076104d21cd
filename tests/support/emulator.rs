//! An embedded DynamoDB on a free loopback port, with a client for it.

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use tokio::{net::TcpListener, task::JoinHandle};

/// A DynamoDB in this process. Each has its own tables; they are gone when it is dropped.
#[derive(Debug)]
pub struct Emulator {
    endpoint: String,
    server: JoinHandle<Result<(), String>>,
}

impl Emulator {
    /// Starts one, in the current tokio runtime.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let endpoint = format!("http://{}", listener.local_addr().expect("the listener's address"));
        let database = dynoxide::Database::memory().expect("a database in memory");
        let never = std::future::pending();
        let server = tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, never));
        Self { endpoint, server }
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A client for it.
    pub fn client(&self) -> Client {
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .endpoint_url(&self.endpoint)
            .build();
        Client::from_conf(config)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.server.abort();
    }
}
