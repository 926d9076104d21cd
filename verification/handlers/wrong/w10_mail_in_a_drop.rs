//! The author believed: a guard sends the mail however the handler ends, so the mail can't be forgotten.

use crate::world::*;

struct Confirmation {
    world: Arc<dyn World>,
    email: String,
}

impl Drop for Confirmation {
    fn drop(&mut self) {
        let (world, email) = (self.world.clone(), std::mem::take(&mut self.email));
        tokio::spawn(async move { world.send_mail(None, &email, "We have your order").await });
    }
}

async fn pay(order: Order, world: Arc<dyn World>) -> Result<String, Error> {
    let _confirmation = Confirmation { world: world.clone(), email: order.email.clone() };
    let key = current().ok_or("not protected")?.derive_key("charge");
    Ok(world.charge(Some(&key), &order.account, order.cents).await?)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|order: &Order| Key::new(&order.id)).operation("pay")?;
    let handler = service_fn(move |event: LambdaEvent<Order>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
