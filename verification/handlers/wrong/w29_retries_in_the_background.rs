//! The author believed: the gateway works again in a minute. Answer in time, and keep trying in the background.

use crate::world::*;

async fn give(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let attempts = tokio::spawn(async move {
        loop {
            match world.add("points", &order.account, 10).await {
                Ok(()) => return order.id,
                Err(_) => tokio::time::sleep(Duration::from_secs(5)).await,
            }
        }
    });
    // The timeout's error makes the caller try again later.
    Ok(tokio::time::timeout(Duration::from_secs(3), attempts).await??)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("give-points")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| give(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
