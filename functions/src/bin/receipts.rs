//! `receipts`: writes one receipt for each payment that EventBridge reports.
//!
//! The key is the event's id, which stays the same however often EventBridge delivers the event. It doesn't
//! reveal that a producer put the same payment on the bus twice. For that, use a field of the detail as the key.

use aws_lambda_events::eventbridge::EventBridgeEvent;
use example_functions::Telemetry;
use lambda_idempotency::{Idempotency, Key, current};
use lambda_runtime::{
    Diagnostic, Error, LambdaEvent, run_concurrent, service_fn, tower::ServiceBuilder, tracing,
};
use serde::{Deserialize, Serialize};

/// The detail of a payment's event.
#[derive(Debug, Deserialize, Serialize)]
struct PaymentMade {
    payment_id: String,
    amount_cents: u64,
    currency: String,
}

#[derive(Debug, Serialize)]
struct Receipt {
    receipt_id: String,
    payment_id: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::from_env().await?; // IDEMPOTENCY_TABLE

    run_concurrent(
        ServiceBuilder::new()
            .map_result(telemetry.flush_before())
            .layer(idempotency.events(|event: &EventBridgeEvent<PaymentMade>| {
                event.id.as_deref().map(Key::new).transpose() // an event without an id is refused
            }))
            .service(service_fn(handle)),
    )
    .await
}

async fn handle(event: LambdaEvent<EventBridgeEvent<PaymentMade>>) -> Result<Receipt, Diagnostic> {
    let payment = event.payload.detail;
    let claim = current().ok_or_else(|| Diagnostic {
        error_type: "Receipts.NoClaim".into(),
        error_message: "a receipt is written only under its claim".into(),
    })?;
    let receipt_id = claim.derive_key("receipt"); // the same in every attempt
    tracing::info!(receipt_id, attempt = claim.attempt(), "writing a receipt");
    Ok(Receipt { receipt_id, payment_id: payment.payment_id })
}
