//! The author believed: the gateway's manual says to send a UUID with each charge.

use crate::world::*;

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let gateway_key = uuid();
    Ok(world.charge(Some(&gateway_key), &order.account, order.cents).await?)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
