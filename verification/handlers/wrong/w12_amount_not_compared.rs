//! The author believed: the order's id identifies the request, so there's nothing else to compare.

use crate::world::*;
use lambda_idempotency::idempotent;

#[idempotent(operation = "charge", key = order.id, compare = ())]
async fn charge(
    order: &Order,
    world: &Arc<dyn World>,
    idempotency: &Idempotency,
) -> Result<String, GatewayError> {
    let key = current().map(|claim| claim.derive_key("gateway"));
    world.charge(key.as_deref(), &order.account, order.cents).await
}

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<Value, Error> {
    let charge = charge(&order, &world, &idempotency).await?;
    Ok(json!({ "charge": charge, "cents": order.cents }))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    Ok(plain(move |event: LambdaEvent<Order>| {
        let idempotency = idempotency.for_context(&event.context);
        pay(event.payload, idempotency, world.clone())
    }))
}

/// The same order, with another price.
pub const OTHER: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":9900}"#;
pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
