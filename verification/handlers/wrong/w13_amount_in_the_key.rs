//! The author believed: the key should contain the amount, so that the key is unique.

use crate::world::*;

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    Ok(world.charge(Some(&key), &order.account, order.cents).await?)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency
        .events(|order: &Order| Key::new(format!("{}-{}", order.id, order.cents)))
        .operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

/// The same order, after the client added the postage. An order must be paid once.
pub const OTHER: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1650}"#;
pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
