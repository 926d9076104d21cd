//! `refunds`: makes each refund once, however often the function is invoked with the same request. A Step Functions
//! task may retry the request, Lambda may retry an asynchronous invoke, or a caller may retry after a timeout.

use example_functions::{RETENTION, Telemetry};
use lambda_idempotency::{Idempotency, Key, current, lambda::event::EventLayer};
use lambda_runtime::{
    Diagnostic, Error, LambdaEvent, run_concurrent, service_fn, tower::ServiceBuilder, tracing,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
struct Refund {
    refund_id: String,
    payment_id: String,
    amount_cents: u64,
}

#[derive(Debug, Serialize)]
struct Refunded {
    refund_id: String,
    payment_id: String,
    gateway_reference: String,
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

fn layer(idempotency: &Idempotency) -> EventLayer<Refund> {
    idempotency.events(|refund: &Refund| Key::new(&refund.refund_id))
}

async fn handle(event: LambdaEvent<Refund>) -> Result<Refunded, Diagnostic> {
    let Refund { refund_id, payment_id, amount_cents } = event.payload;
    if amount_cents == 0 {
        return Err(failure("Refunds.Nothing", "amount_cents is 0: there's nothing to refund"));
    }
    let claim =
        current().ok_or_else(|| failure("Refunds.NoClaim", "no claim: wrap `handle` in the layer"))?;
    let gateway_reference = claim.derive_key("gateway"); // the same in every attempt
    tracing::info!(gateway_reference, attempt = claim.attempt(), "refunding");
    // Your code would call the gateway here, with this reference as the gateway's own idempotency key.
    Ok(Refunded { refund_id, payment_id, gateway_reference })
}

fn failure(kind: &str, message: &str) -> Diagnostic {
    Diagnostic { error_type: kind.into(), error_message: message.into() }
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
    fn refunds_survive_every_fault() {
        let event = Event::json(include_str!("../../../events/refunds/invoke.json"))
            .again(include_str!("../../../events/refunds/invoke-again.json"))
            .conflicting(include_str!("../../../events/refunds/invoke-conflicting.json"));
        survive(function, &event).assert_safe();
    }
}
