//! The next queue gets the same deduplication id in every attempt.

use crate::world::*;

async fn forward(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    let dedup = current().ok_or("not protected")?.derive_key("warehouse");
    world.publish("warehouse.fifo", Some(&dedup), &order.id).await?;
    Ok(order.id)
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| forward(message, world.clone());
    Ok(idempotency.sqs(|message| Key::from_json(message, "/id"), handler).operation("forward")?)
}

pub const SAMPLE: &str = sqs_event!(
    fifo "customer-1"
    ("1", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#),
    ("2", r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#)
);
pub const AGAIN: &str = sqs_event!(
    fifo "customer-1"
    ("8", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#),
    ("9", r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#)
);
pub const OTHER: &str = sqs_event!(
    fifo "customer-1"
    ("3", r#"{\"id\":\"order-19\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#)
);
