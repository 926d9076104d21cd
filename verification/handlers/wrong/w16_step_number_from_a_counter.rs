//! The author believed: each step needs its own key, and a counter makes the keys unique.

use crate::world::*;
use std::sync::atomic::{AtomicU64, Ordering};

static STEPS: AtomicU64 = AtomicU64::new(1);

async fn charge(
    order: &Order,
    cents: u64,
    idempotency: &Idempotency,
    world: &Arc<dyn World>,
) -> Result<String, Error> {
    let key = Key::new(format!("{}-step-{}", order.id, STEPS.fetch_add(1, Ordering::Relaxed)))?;
    let step = || async {
        let key = current().ok_or("not protected")?.derive_key("charge");
        Ok::<_, Error>(world.charge(Some(&key), &order.account, cents).await?)
    };
    Ok(idempotency.operation("charge")?.run(key, &cents, step).await?)
}

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<[String; 2], Error> {
    let goods = charge(&order, order.cents, &idempotency, &world).await?;
    let postage = charge(&order, 490, &idempotency, &world).await?;
    Ok([goods, postage])
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler =
        service_fn(move |event: LambdaEvent<Order>| pay(event.payload, idempotency.clone(), world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
