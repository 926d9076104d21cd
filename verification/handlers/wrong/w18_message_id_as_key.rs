//! The author believed: SQS gives each message an id, so the id can be the key. But a shop that gets no answer sends
//! the order again, in a new message.

use crate::world::*;

async fn pay(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    Ok(world.charge(Some(&key), &order.account, order.cents).await?)
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| pay(message, world.clone());
    Ok(idempotency.sqs(|message| message.message_key(), handler).operation("pay")?)
}

pub const SAMPLE: &str = sqs_event!((
    "1",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
));
pub const AGAIN: &str = sqs_event!((
    "9",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
));
pub const OTHER: &str = sqs_event!((
    "2",
    r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
));
