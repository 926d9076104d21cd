//! The author believed: one lookup of the customer per instance is enough, and a second lookup costs time.

use crate::world::*;
use std::sync::OnceLock;

static CUSTOMER: OnceLock<(String, String)> = OnceLock::new();

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let (account, email) = CUSTOMER.get_or_init(|| (order.account.clone(), order.email.clone()));
    let claim = current().ok_or("not protected")?;
    let charge = world.charge(Some(&claim.derive_key("charge")), account, order.cents).await?;
    world.send_mail(Some(&claim.derive_key("mail")), email, "Your receipt").await?;
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
