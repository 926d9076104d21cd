//! The author believed: the gateway is slow, so charge in the background and answer at once.

use crate::world::*;

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    let accepted = format!("{} is accepted", order.id);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await; // the gateway asks for a pause between charges
        if let Err(error) = world.charge(Some(&key), &order.account, order.cents).await {
            eprintln!("the charge failed: {error}");
        }
    });
    Ok(accepted)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
