//! The rehearsal's DynamoDB, embedded or running elsewhere, and the requests that the rehearsal itself sends: to create
//! its tables, and to read what they contain. The functions under test don't use this module.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{clock, http};
use crate::problem::{Context, Problem, Result};

/// The Region that everything in the rehearsal uses.
pub const REGION: &str = "eu-central-1";
/// The access key's id, and also its secret part. Emulators need credentials, but don't check them.
pub const ACCESS_KEY: &str = "REHEARSAL";

/// How long the rehearsal waits for DynamoDB to answer a request.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tables that a function uses.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The table of records.
    pub idempotency: String,
    /// The example function's table of payments.
    pub payments: String,
}

/// A DynamoDB endpoint.
#[derive(Debug)]
pub struct Database {
    endpoint: Uri,
    embedded: Option<JoinHandle<Result<(), String>>>,
    patience: Duration,
}

impl Database {
    /// Starts DynamoDB in this process, in memory, on a free loopback port.
    pub async fn embedded() -> Result<Self> {
        Self::embedded_on(0).await
    }

    /// Starts DynamoDB in this process, in memory, on this loopback port; 0 means any free one.
    pub async fn embedded_on(port: u16) -> Result<Self> {
        let database = dynoxide::Database::memory().context("the embedded DynamoDB didn't start")?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.context(format!("the embedded DynamoDB can't listen on 127.0.0.1:{port}"))?;
        let address = listener.local_addr().context("the embedded DynamoDB has no address")?;
        let never = std::future::pending();
        let serving = tokio::spawn(dynoxide::server::serve_with_shutdown(listener, database, never));
        let endpoint =
            format!("http://{address}").parse().context("invalid address of the embedded DynamoDB")?;
        Ok(Self { endpoint, embedded: Some(serving), patience: PATIENCE })
    }

    /// Uses a DynamoDB that is already running.
    pub async fn at(url: &str) -> Result<Self> {
        let endpoint: Uri = url.parse().context(format!("--endpoint-url {url} isn't a valid URL"))?;
        if endpoint.scheme_str() != Some("http") || endpoint.host().is_none() {
            return Err(Problem::new(format!(
                "--endpoint-url {url} must be http://HOST:PORT, a DynamoDB for tests such as DynamoDB Local"
            )));
        }
        let database = Self { endpoint, embedded: None, patience: PATIENCE };
        database.call("ListTables", &json!({})).await.context(format!("no DynamoDB answers at {url}"))?;
        Ok(database)
    }

    /// DynamoDB's URL.
    pub fn endpoint(&self) -> &Uri {
        &self.endpoint
    }

    /// Whether the DynamoDB is embedded. The embedded DynamoDB loses its tables when this process exits.
    pub fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Creates the table of records: billed on demand, with TTL enabled.
    pub async fn create_idempotency_table(&self, name: &str) -> Result<()> {
        self.create_table(name, "id").await?;
        let specification = json!({ "Enabled": true, "AttributeName": "expires_at" });
        let request = json!({ "TableName": name, "TimeToLiveSpecification": specification });
        self.call("UpdateTimeToLive", &request).await.map(drop)
    }

    /// Creates the table of payments.
    pub async fn create_payments_table(&self, name: &str) -> Result<()> {
        self.create_table(name, "payment_id").await
    }

    /// Removes a table.
    pub async fn delete_table(&self, name: &str) -> Result<()> {
        self.call("DeleteTable", &json!({ "TableName": name })).await.map(drop)
    }

    /// How many payments the table has for an order.
    pub async fn payments_of(&self, table: &str, order: &str) -> Result<usize> {
        let mut found = 0;
        let mut request = json!({
            "TableName": table,
            "ConsistentRead": true,
            "FilterExpression": "order_id = :order",
            "ExpressionAttributeValues": { ":order": { "S": order } },
        });
        loop {
            let page = self.call("Scan", &request).await?;
            found += page["Count"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            match page.get("LastEvaluatedKey") {
                Some(last) if !last.is_null() => request["ExclusiveStartKey"] = last.clone(),
                _ => return Ok(found),
            }
        }
    }

    /// The record with this id, as DynamoDB returns it; `Null` if there's none.
    pub async fn record(&self, table: &str, id: &str) -> Result<Value> {
        let request = json!({ "TableName": table, "Key": { "id": { "S": id } }, "ConsistentRead": true });
        Ok(self.call("GetItem", &request).await?["Item"].take())
    }

    /// Creates a table, billed on demand and without TTL. `key` names its partition key, a string.
    pub async fn create_table(&self, name: &str, key: &str) -> Result<()> {
        let request = json!({
            "TableName": name,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": key, "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": key, "KeyType": "HASH" }],
        });
        self.call("CreateTable", &request).await?;
        for _ in 0..100 {
            let described = self.call("DescribeTable", &json!({ "TableName": name })).await?;
            if described["Table"]["TableStatus"] == "ACTIVE" {
                return Ok(());
            }
            clock::pause(Duration::from_millis(100)).await;
        }
        Err(Problem::new(format!("the table {name} was created, but isn't active after 10 s")))
    }

    async fn call(&self, operation: &str, request: &Value) -> Result<Value> {
        let doing = format!("DynamoDB at {}, {operation}", self.endpoint);
        let request = Request::post("/")
            .header("host", self.endpoint.authority().map_or("localhost", |authority| authority.as_str()))
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("DynamoDB_20120810.{operation}"))
            .header("x-amz-date", "20261120T000000Z")
            .header("authorization", authorization())
            .body(Bytes::from(request.to_string()))
            .context(&doing)?;
        let sent = tokio::time::timeout(self.patience, http::send(&self.endpoint, request)).await;
        let response = sent
            .map_err(|_| {
                let seconds = self.patience.as_secs_f32();
                Problem::new(format!("{doing}: no answer within {seconds} s. Check that it still runs."))
            })?
            .context(&doing)?;
        let answer: Value = serde_json::from_slice(response.body())
            .context(format!("{doing}: the response ({}) isn't JSON", response.status()))?;
        if response.status() != StatusCode::OK {
            return Err(Problem::new(format!("{doing}: answered {}: {answer}", response.status())));
        }
        Ok(answer)
    }
}

/// Returns an `authorization` header in the form that emulators expect. Emulators don't check the signature.
fn authorization() -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20261120/{REGION}/dynamodb/aws4_request, \
         SignedHeaders=host;x-amz-date;x-amz-target, Signature={:064}",
        0
    )
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(serving) = &self.embedded {
            serving.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stalled_server_is_reported() {
        // Connections wait in the backlog, and nothing accepts them.
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let database = Database { endpoint, embedded: None, patience: Duration::from_millis(50) };
        let deleting = tokio::time::timeout(Duration::from_secs(60), database.delete_table("t"));
        let problem = deleting.await.expect("the request times out").unwrap_err().to_string();
        assert!(
            problem.ends_with("DeleteTable: no answer within 0.05 s. Check that it still runs."),
            "{problem}"
        );
    }
}
