//! The author believed: a failed charge must not be tried again, or we might charge twice.

use crate::world::*;

async fn pay(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &order.account, order.cents).await;
    charge.map_err(|error| Failure::permanent("ChargeFailed", error.to_string()))
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| pay(message, world.clone());
    Ok(idempotency
        .sqs(|message| Key::from_json(message, "/id"), handler)
        .operation("pay")?
        .on_permanent_failure(OnPermanentFailure::Acknowledge))
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
