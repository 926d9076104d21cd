//! `outbox`: publishes an event to EventBridge for each operation that completed or failed. It reads these outcomes
//! from the DynamoDB stream of the table of records.
//!
//! The function publishes every outcome at least once, in the stream's order. All events of one outcome have the same
//! `detail.id`, so a consumer deduplicates by this id. EventBridge doesn't keep the order, but a later outcome of a key
//! has a greater `detail.generation`.
//!
//! The function itself makes no claims. A claim in the same table would appear in the stream and start the function
//! again, in an endless loop.

mod publish;

use std::sync::Arc;

use lambda_idempotency::store::dynamodb::DynamoDbStore;
use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn, tracing};
use publish::{Entry, Publisher};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

struct Outbox {
    store: DynamoDbStore,
    publisher: Publisher,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing::init_default_subscriber();
    // IDEMPOTENCY_TABLE names the table in which the other functions keep their records. Building the store sends no
    // request.
    let store = DynamoDbStore::builder_from_env()?.build().await?;
    let outbox = Arc::new(Outbox { store, publisher: Publisher::from_env().await? });
    run_concurrent(service_fn(move |event: LambdaEvent<Box<RawValue>>| {
        let outbox = Arc::clone(&outbox);
        async move { outbox.handle(&event.payload).await }
    }))
    .await
}

/// A batch of the stream's records. Each one describes a change of the table.
#[derive(Deserialize)]
struct Batch {
    #[serde(rename = "Records")]
    records: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Numbered {
    dynamodb: SequenceNumber,
}

#[derive(Deserialize)]
struct SequenceNumber {
    #[serde(rename = "SequenceNumber")]
    sequence_number: String,
}

impl Outbox {
    /// Publishes an event for each change that completed or failed an operation. The answer names the first change that
    /// couldn't be decoded or published. Lambda then redelivers that change and all later ones.
    async fn handle(&self, event: &RawValue) -> Result<Value, Error> {
        // Leaves out the parser's error, which may quote the records.
        let batch: Batch =
            serde_json::from_str(event.get()).map_err(|_| "the event isn't a batch from a stream")?;
        let (mut entries, mut unreadable) = (Vec::new(), None);
        for record in &batch.records {
            let numbered: Numbered =
                serde_json::from_str(record.get()).map_err(|_| "a record has no sequence number")?;
            let sequence_number = numbered.dynamodb.sequence_number;
            match self.store.ended_in(record.get()) {
                Ok(Some(ended)) => entries.push(self.publisher.entry(sequence_number, &ended)?),
                Ok(None) => {}
                Err(error) => {
                    // This change may have completed or failed an operation, so publish no later outcome before it.
                    tracing::error!(%error, sequence_number, "a change of the table can't be decoded");
                    unreadable = Some(sequence_number);
                    break;
                }
            }
        }
        let failed = self.publisher.publish(&entries).await.err().map(Entry::sequence_number);
        let first = failed.or(unreadable.as_deref());
        let failures: Vec<_> = first.into_iter().map(|number| json!({ "itemIdentifier": number })).collect();
        Ok(json!({ "batchItemFailures": failures }))
    }
}
