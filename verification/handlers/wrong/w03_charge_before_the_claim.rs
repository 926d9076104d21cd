//! The author believed: only the receipt has to be created once, and `run` makes sure of that.

use crate::world::*;

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let charge = world.charge(None, &order.account, order.cents).await?;
    let receipt = idempotency.operation("receipt")?;
    let write = || async {
        world.put_item("receipts", &order.id, &charge).await?;
        Ok::<_, Error>(format!("receipt for {charge}"))
    };
    Ok(receipt.run(Key::new(&order.id)?, &order, write).await?)
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
