//! The author believed: if the mail fails, the error makes SQS deliver the order again, and then the mail is sent.

use crate::world::*;

async fn ship(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    world.add("stock", "bowl", -1).await?;
    let dedup = current().ok_or("not protected")?.derive_key("mail");
    world.send_mail(Some(&dedup), &order.email, "Your bowl is on its way").await?;
    Ok(order.id)
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| ship(message, world.clone());
    Ok(idempotency.sqs(|message| Key::from_json(message, "/id"), handler).operation("ship")?)
}

pub const SAMPLE: &str = sqs_event!((
    "1",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
));
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = sqs_event!((
    "2",
    r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
));
