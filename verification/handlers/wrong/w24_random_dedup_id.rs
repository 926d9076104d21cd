//! The author believed: a FIFO queue demands a deduplication id, and a random one never collides.

use crate::world::*;

async fn forward(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    let dedup = uuid();
    world.publish("warehouse.fifo", Some(&dedup), &order.id).await?;
    Ok(order.id)
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| forward(message, world.clone());
    Ok(idempotency.sqs(|message| Key::from_json(message, "/id"), handler).operation("forward")?)
}

pub const SAMPLE: &str = sqs_event!(
    fifo "customer-1"
    ("1", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#)
);
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = sqs_event!(
    fifo "customer-1"
    ("2", r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#)
);
