//! The author believed: only the charge needs protection, because the receipt is just text.

use crate::world::*;

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<Value, Error> {
    let charge = || async {
        let key = current().ok_or("not protected")?.derive_key("charge");
        Ok::<_, Error>(world.charge(Some(&key), &order.account, order.cents).await?)
    };
    let charge: String = idempotency.operation("charge")?.run(Key::new(&order.id)?, &order, charge).await?;
    Ok(json!({ "charge": charge, "receipt": uuid(), "paid_at": now().to_string() }))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    Ok(plain(move |event: LambdaEvent<Order>| {
        let idempotency = idempotency.for_context(&event.context);
        pay(event.payload, idempotency, world.clone())
    }))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
