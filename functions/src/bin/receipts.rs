//! `receipts`: writes one receipt for each payment that EventBridge reports.
//!
//! The key is the event's id, which stays the same however often EventBridge delivers the event. If a producer puts the
//! same payment on the bus twice, the two events have different ids. To deduplicate such events too, use a field of
//! the detail as the key.

use aws_lambda_events::eventbridge::EventBridgeEvent;
use example_functions::{RETENTION, Telemetry};
use lambda_idempotency::{Idempotency, Key, current, lambda::event::EventLayer};
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
    let idempotency = Idempotency::builder_from_env().await?; // reads IDEMPOTENCY_TABLE
    let idempotency = idempotency.retention(RETENTION).build()?;

    run_concurrent(
        ServiceBuilder::new()
            .map_result(telemetry.flush_before())
            .layer(layer(&idempotency))
            .service(service_fn(handle)),
    )
    .await
}

type Reported = EventBridgeEvent<PaymentMade>;

fn layer(idempotency: &Idempotency) -> EventLayer<Reported> {
    idempotency.events(|event: &Reported| event.id.as_deref().map(Key::new).transpose()) // refused if it has no id
}

async fn handle(event: LambdaEvent<EventBridgeEvent<PaymentMade>>) -> Result<Receipt, Diagnostic> {
    let payment = event.payload.detail;
    let claim = current().ok_or_else(|| Diagnostic {
        error_type: "Receipts.NoClaim".into(),
        error_message: "no claim: wrap `handle` in the layer".into(),
    })?;
    let receipt_id = claim.derive_key("receipt"); // the same in every attempt
    tracing::info!(receipt_id, attempt = claim.attempt(), "writing a receipt");
    Ok(Receipt { receipt_id, payment_id: payment.payment_id })
}

#[cfg(test)]
mod tests {
    use lambda_idempotency_testing::{Bench, Event, Function, survive};

    use super::*;

    fn function(bench: &Bench) -> Function {
        let service = ServiceBuilder::new().layer(layer(&bench.idempotency())).service(service_fn(handle));
        Function::lambda::<_, Box<serde_json::value::RawValue>>(service)
    }

    #[test]
    fn receipts_survive_every_fault() {
        let event = Event::json(include_str!("../../../events/receipts/event-bridge.json"))
            .again(include_str!("../../../events/receipts/event-bridge-again.json"));
        survive(function, &event).assert_safe();
    }
}
