//! The printer doesn't support idempotency keys, and a letter must never go out twice. A person looks for lost letters
//! and settles their records.

use crate::world::*;
use lambda_idempotency::settings::Execution;

async fn print(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    world
        .publish("printer", None, &format!("Dear {}, your order costs {} cents", order.account, order.cents))
        .await?;
    Ok(format!("the letter for {} is printed", order.id))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency
        .with_settings(|settings| settings.execution = Execution::AtMostOnce)?
        .events(|event: &Order| Key::new(&event.id))
        .operation("print-letter")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| print(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
