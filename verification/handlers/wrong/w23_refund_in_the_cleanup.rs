//! The author believed: if the order can't be saved, pay the money back. A retry then starts from the beginning.

use crate::world::*;

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &order.account, order.cents).await?;
    if let Err(error) = world.put_item("orders", &order.id, &charge).await {
        world.refund(&charge).await?;
        return Err(error.into());
    }
    Ok(charge)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
