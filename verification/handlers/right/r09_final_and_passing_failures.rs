//! A refusal is final and recorded. After an outage SQS delivers the message again.

use crate::world::*;

async fn pay(message: SqsMessage, world: Arc<dyn World>) -> Result<String, Failure> {
    let order: Order = message.json()?;
    if order.cents == 0 {
        return Err(Failure::permanent("NothingToPay", "the amount is zero"));
    }
    let key = current().ok_or("not protected")?.derive_key("charge");
    match world.charge(Some(&key), &order.account, order.cents).await {
        Ok(charge) => Ok(charge),
        Err(GatewayError::Declined) => Err(Failure::permanent("Declined", "the card was declined")),
        Err(error) => Err(Failure::transient(error)),
    }
}

pub fn sqs(idempotency: Idempotency, world: Arc<dyn World>) -> Result<SqsFunction, Error> {
    let handler = move |message: SqsMessage| pay(message, world.clone());
    Ok(idempotency
        .sqs(|message| Key::from_json(message, "/id"), handler)
        .operation("pay")?
        .on_permanent_failure(OnPermanentFailure::Acknowledge))
}

pub const SAMPLE: &str = sqs_event!(
    ("1", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#),
    ("2", r#"{\"id\":\"order-20\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":0}"#)
);
pub const AGAIN: &str = sqs_event!(
    ("8", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#),
    ("9", r#"{\"id\":\"order-20\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":0}"#)
);
pub const OTHER: &str = sqs_event!((
    "3",
    r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
));
