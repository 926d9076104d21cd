//! `POST /payments` pays once per `Idempotency-Key`, however often the request arrives.

mod payments;

use std::time::Duration;

use lambda_http::{Error, tracing};
use lambda_idempotency::{Idempotency, lambda::http};

/// Requests that are repeated within this time get the recorded answer.
const RETENTION: Duration = Duration::from_secs({{ retention_hours }} * 60 * 60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    tracing::init_default_subscriber();
    // IDEMPOTENCY_TABLE names the table.
    let idempotency = Idempotency::builder_from_env()
        .await?
        .retention(RETENTION)
        .build()?;
    http::run(payments::service(&idempotency)).await
}
