//! The mail's dedup id comes from the order, so neither a retry nor a second message sends the mail again.

use crate::world::*;

async fn confirm(message: SqsMessage, world: Arc<dyn World>) -> Result<(), Failure> {
    let order: Order = message.json()?;
    let dedup = format!("confirmation-{}", order.id);
    world.send_mail(Some(&dedup), &order.email, "We have your order").await?;
    Ok(())
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| confirm(message, world.clone());
    Ok(idempotency.sqs(|message| Key::from_json(message, "/id"), handler).operation("confirm")?)
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
