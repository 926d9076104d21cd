//! `orders`: an SQS worker that ships each order once, however often its message is delivered.
//!
//! Each message is an operation of its own: a failed one is told to SQS by its id, and the others are done. One whose
//! order is being shipped by another delivery is told as failed too: to acknowledge it would delete the only copy.

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use example_functions::Telemetry;
use futures_util::future::join_all;
use lambda_idempotency::{Idempotency, Key, RunError, current};
use lambda_runtime::{Error, LambdaEvent, run, service_fn, tower::ServiceBuilder, tracing};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, Serialize)]
struct Order {
    order_id: String,
    article: String,
    quantity: u32,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::from_env().await?.operation("ship")?; // IDEMPOTENCY_TABLE

    run(ServiceBuilder::new()
        .map_result(telemetry.flush_before())
        .service(service_fn(move |event| handle(idempotency.clone(), event))))
    .await
}

/// Ships the batch's orders at once, and names the messages that must come back.
async fn handle(idempotency: Idempotency, event: LambdaEvent<SqsEvent>) -> Result<SqsBatchResponse, Error> {
    let idempotency = idempotency.for_context(&event.context);
    let messages = event.payload.records;
    let shipped = join_all(messages.iter().map(|message| deliver(&idempotency, message))).await;

    let mut response = SqsBatchResponse::default();
    for (message, shipped) in messages.iter().zip(shipped) {
        let id = message.message_id.clone().unwrap_or_default();
        if let Err(reason) = shipped {
            tracing::warn!(message_id = %id, %reason, "the message must come back");
            response.add_failure(id);
        }
    }
    Ok(response)
}

/// Ships the message's order, or finds it shipped.
async fn deliver(idempotency: &Idempotency, message: &SqsMessage) -> Result<(), String> {
    let body = message.body.as_deref().unwrap_or_default();
    let order: Order = serde_json::from_str(body)
        .map_err(|error| format!("not an order (line {}, column {})", error.line(), error.column()))?;
    let key = Key::new(&order.order_id).map_err(|error| error.to_string())?;
    let parcel = idempotency.run(key, &order, ship).await;
    parcel.map(drop).map_err(|error: RunError<Error>| error.to_string())
}

/// Hands the order to the carrier. The claim names the parcel: a run that takes over from one that died half-way asks
/// the carrier for the same parcel, and not for a second.
async fn ship() -> Result<String, Error> {
    let claim = current().ok_or("an order is shipped under its claim only")?;
    let parcel = claim.derive_key("parcel");
    tracing::info!(parcel, attempt = claim.attempt(), "shipping an order");
    // … the carrier's API would be called here.
    Ok(parcel)
}
