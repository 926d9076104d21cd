//! The author believed: two events are the same operation if everything in them is the same. But the shop sets
//! `sent_at` in each attempt.

use crate::world::*;

#[derive(Deserialize)]
struct Paid {
    account: String,
    cents: u64,
}

async fn pay(order: Paid, world: Arc<dyn World>) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    Ok(world.charge(Some(&key), &order.account, order.cents).await?)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events_by::<Paid>(KeyFields::new([""])?).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Paid>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str =
    r#"{"id":"order-17","account":"anna","cents":1250,"sent_at":"2026-11-20T09:15:44.120Z"}"#;
pub const AGAIN: &str =
    r#"{"id":"order-17","account":"anna","cents":1250,"sent_at":"2026-11-20T09:15:49.871Z"}"#;
pub const OTHER: &str =
    r#"{"id":"order-18","account":"otto","cents":990,"sent_at":"2026-11-20T09:16:02.004Z"}"#;
