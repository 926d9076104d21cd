//! The library commits the payment, the new balance and the outcome in one transaction. There's no other effect.

use crate::world::*;
use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};
use lambda_idempotency::store::dynamodb::Transaction;

async fn pay(order: Order, _world: Arc<dyn World>) -> Result<String, Error> {
    let staging = staging().ok_or("not protected")?;
    let payment = Put::builder().table_name("payments").item("id", AttributeValue::S(order.id.clone()));
    let withdraw = Update::builder()
        .table_name("balances")
        .key("id", AttributeValue::S(order.account.clone()))
        .update_expression("ADD cents :minus")
        .expression_attribute_values(":minus", AttributeValue::N(format!("-{}", order.cents)));
    staging.add(Transaction::new().put(payment.build()?).update(withdraw.build()?))?;
    Ok(format!("{} is paid", order.id))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|event: &Order| Key::new(&event.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
