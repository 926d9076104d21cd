//! The author believed: both steps belong to one order, so they share one operation and one key.

use crate::world::*;

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let (step, key) = (idempotency.operation("order")?, Key::new(&order.id)?);
    let charge = || async {
        let key = current().ok_or("not protected")?.derive_key("charge");
        Ok::<_, Error>(world.charge(Some(&key), &order.account, order.cents).await?)
    };
    let charge: String = step.run(&key, &order, charge).await?;
    let mail = || async {
        let dedup = current().ok_or("not protected")?.derive_key("mail");
        world.send_mail(Some(&dedup), &order.email, "Your receipt").await?;
        Ok::<_, Error>("sent".to_owned())
    };
    let _: String = step.run(&key, &order, mail).await?;
    Ok(charge)
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
