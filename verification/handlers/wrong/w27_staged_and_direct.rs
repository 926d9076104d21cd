//! The author believed: the payment can wait for the transaction, but the balance must change at once.

use crate::world::*;
use aws_sdk_dynamodb::types::{AttributeValue, Put};
use lambda_idempotency::store::dynamodb::Transaction;

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let staging = staging().ok_or("not protected")?;
    let id = AttributeValue::S(order.id.clone());
    let payment = Put::builder().table_name("payments").item("id", id);
    let cents = AttributeValue::N(order.cents.to_string());
    staging.add(Transaction::new().put(payment.item("cents", cents).build()?))?;
    world.add("balances", &order.account, -i64::try_from(order.cents)?).await?;
    Ok(format!("{} is paid", order.id))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
