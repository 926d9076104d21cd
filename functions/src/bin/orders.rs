//! `orders`: an SQS worker that ships each order once, however often its message is delivered, or its order is sent.
//!
//! Each message is an operation of its own, several run at a time, and SQS is told which must come back. One whose
//! order is being shipped by another delivery is one of them: to acknowledge it would delete the only copy.

use example_functions::Telemetry;
use lambda_idempotency::{
    Idempotency, Key, current,
    lambda::batch::{Failure, SqsMessage},
};
use lambda_runtime::{Error, run_concurrent, tower::ServiceBuilder, tracing};
use serde::{Deserialize, Serialize};

/// A message's body; its `order_id` is the key.
#[derive(Debug, Deserialize)]
struct Order {
    article: String,
    quantity: u32,
}

/// What is recorded of an order that is on its way.
#[derive(Debug, Serialize)]
struct Parcel {
    parcel: String,
    article: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::from_env().await?; // IDEMPOTENCY_TABLE

    run_concurrent(
        ServiceBuilder::new().map_result(telemetry.flush_before()).service(
            idempotency.sqs(|message| Key::from_json(message, "/order_id"), ship).operation("ship")?,
        ),
    )
    .await
}

/// Hands the order to the carrier. The claim names the parcel: a run that takes over from one that died half-way asks
/// the carrier for the same parcel, and not for a second.
async fn ship(message: SqsMessage) -> Result<Parcel, Failure> {
    let order: Order = message.json()?;
    if order.quantity == 0 {
        // No retry will mend it: it goes to the dead-letter queue, and is not tried again on the way.
        return Err(Failure::for_good("Orders.Nothing", "quantity is 0: there is nothing to ship"));
    }
    let claim = current().ok_or("an order is shipped under its claim only")?;
    let parcel = claim.derive_key("parcel");
    tracing::info!(parcel, attempt = claim.attempt(), "shipping an order");
    // … the carrier's API would be called here.
    Ok(Parcel { parcel, article: order.article })
}
