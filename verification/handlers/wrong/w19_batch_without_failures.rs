//! The author believed: the log shows the orders that failed, and a failed order shouldn't fail the batch.

use crate::world::*;

async fn pay(batch: Value, idempotency: Idempotency, world: Arc<dyn World>) -> Result<Value, Error> {
    for message in batch["Records"].as_array().into_iter().flatten() {
        let order: Order = serde_json::from_str(message["body"].as_str().unwrap_or_default())?;
        let charge = || async {
            let key = current().ok_or("not protected")?.derive_key("charge");
            Ok::<_, Error>(world.charge(Some(&key), &order.account, order.cents).await?)
        };
        if let Err(error) = idempotency.operation("pay")?.run(Key::new(&order.id)?, &order, charge).await {
            eprintln!("an order failed: {error}");
        }
    }
    Ok(json!({ "batchItemFailures": [] }))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    Ok(plain(move |event: LambdaEvent<Value>| {
        let idempotency = idempotency.for_context(&event.context);
        pay(event.payload, idempotency, world.clone())
    }))
}

pub const SAMPLE: &str = sqs_event!(
    ("1", r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#),
    ("2", r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#)
);
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = sqs_event!((
    "3",
    r#"{\"id\":\"order-19\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
));
