//! A function that EventBridge Scheduler starts once an hour. It deletes the expired records of a PostgreSQL
//! table, a thousand at a time, and ends well before its deadline. If expired records are left, the next hour's
//! run deletes them.

use std::time::Duration;

use lambda_idempotency::{
    lambda::run,
    store::postgres::PostgresStore,
    time::{Clock as _, Timestamp, system_clock},
};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::{Value, json};

const BATCH: u32 = 1000;
/// The function starts no batch in this time before its deadline. A batch takes milliseconds, but longer on a busy
/// database.
const RESERVE: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let url = std::env::var("IDEMPOTENCY_STORE")
        .map_err(|_| "IDEMPOTENCY_STORE isn't set: set it to postgres://…")?;
    let store = PostgresStore::builder(url).build()?;
    run(service_fn(async |event| sweep(&store, event).await)).await
}

async fn sweep(store: &PostgresStore, event: LambdaEvent<Value>) -> Result<Value, Error> {
    let ends = Timestamp::from_millis(event.context.deadline).saturating_sub(RESERVE);
    let mut deleted = 0;
    while system_clock().now() < ends {
        let count = store.sweep(system_clock().now(), BATCH).await?;
        deleted += count;
        if count < u64::from(BATCH) {
            return Ok(json!({ "deleted": deleted, "more": false }));
        }
    }
    Ok(json!({ "deleted": deleted, "more": true }))
}
