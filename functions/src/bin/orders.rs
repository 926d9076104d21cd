//! `orders`: an SQS worker that ships each order once, however often a producer sends the order or SQS delivers its
//! message. With `ORDERS_FROM=kafka`, or `kafka-queue` for a share group, it's a worker for Kafka.
//!
//! Each message is its own operation, and several run at a time. The worker reports to SQS which messages to
//! redeliver. It also reports a message whose order another delivery is shipping, since acknowledging the message
//! would delete its only copy.

use example_functions::{RETENTION, Telemetry};
use lambda_idempotency::{
    Failure, Idempotency, Key, current,
    lambda::batch::{Batch, KafkaRecord, SqsMessage},
};
use lambda_runtime::{Error, run_concurrent, tower::ServiceBuilder, tracing};
use serde::{Deserialize, Serialize};

/// The fields of a message's body that the handler uses. The body also has an `order_id`, which is the key.
#[derive(Debug, Deserialize)]
struct Order {
    article: String,
    quantity: u32,
}

/// The recorded outcome of a shipped order.
#[derive(Debug, Serialize)]
struct Parcel {
    parcel: String,
    article: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::builder_from_env().await?; // reads IDEMPOTENCY_TABLE
    let idempotency = idempotency.retention(RETENTION).build()?;

    let service = ServiceBuilder::new().map_result(telemetry.flush_before());
    match std::env::var("ORDERS_FROM").unwrap_or_default().as_str() {
        "kafka" => run_concurrent(service.service(of_kafka(&idempotency)?)).await,
        // The mapping is in provisioned mode, with `ReportBatchItemFailures`, so Lambda reads the answer.
        "kafka-queue" => {
            run_concurrent(service.service(of_kafka(&idempotency)?.unordered().partial_answers())).await
        }
        _ => run_concurrent(service.service(worker(&idempotency)?)).await,
    }
}

/// Ships each order once.
fn worker(idempotency: &Idempotency) -> Result<Batch<SqsMessage>, lambda_idempotency::Error> {
    let handler = async |message: SqsMessage| ship(message.json()?);
    idempotency.sqs(|message| Key::from_json(message, "/order_id"), handler).operation("ship")
}

/// Ships each order once, from a topic of Kafka.
fn of_kafka(idempotency: &Idempotency) -> Result<Batch<KafkaRecord>, lambda_idempotency::Error> {
    let handler = async |record: KafkaRecord| ship(record.json()?);
    idempotency.kafka(|record| Key::from_json(record, "/order_id"), handler).operation("ship")
}

/// Hands the order to the carrier. The parcel's id comes from the claim, so a run that takes over from a dead process
/// asks the carrier for the same parcel, not for a second one.
fn ship(order: Order) -> Result<Parcel, Failure> {
    if order.quantity == 0 {
        // A retry can't fix the order. After a permanent failure, redeliveries don't run the handler again, and SQS
        // finally moves the message to the dead-letter queue.
        return Err(Failure::permanent("Orders.Nothing", "quantity is 0: there's nothing to ship"));
    }
    let claim = current().ok_or("no claim: call `ship` only through the worker")?;
    let parcel = claim.derive_key("parcel");
    tracing::info!(parcel, attempt = claim.attempt(), "shipping an order");
    // Your code would call the carrier's API here.
    Ok(Parcel { parcel, article: order.article })
}

#[cfg(test)]
mod tests {
    use lambda_idempotency_testing::{Bench, Changes, Event, Function, key_of, survive};

    use super::*;

    fn function(bench: &Bench) -> Function {
        Function::lambda::<_, Box<serde_json::value::RawValue>>(worker(&bench.idempotency()).unwrap())
    }

    #[test]
    fn orders_survive_every_fault() {
        let event = Event::json(include_str!("../../../events/orders/sqs.json"));
        survive(function, &event.again(include_str!("../../../events/orders/sqs-again.json"))).assert_safe();
    }

    #[test]
    fn order_id_is_the_key() {
        let event = Event::sqs("orders", [r#"{"order_id":"order-1","article":"cup","quantity":1}"#]);
        let keys = key_of(function, &event);
        keys.assert_sound();
        assert_eq!(keys.changes("/Records/0/body/order_id"), Some(Changes::Key));
        assert_eq!(keys.changes("/Records/0/body/quantity"), Some(Changes::Fingerprint));
    }
}
