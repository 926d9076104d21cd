//! Each step has its own name and sends its own key. A retry replays the steps that are done.

use crate::world::*;
use lambda_idempotency::idempotent;

#[idempotent(operation = "charge", key = order.id, compare = order)]
async fn charge(order: &Order, world: &Arc<dyn World>, idempotency: &Idempotency) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("gateway");
    Ok(world.charge(Some(&key), &order.account, order.cents).await?)
}

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let charge = charge(&order, &world, &idempotency).await?;
    let mail = || async {
        let dedup = current().ok_or("not protected")?.derive_key("mail");
        world.send_mail(Some(&dedup), &order.email, &format!("You paid {charge}")).await?;
        Ok::<_, Error>("sent".to_owned())
    };
    let _: String = idempotency.operation("mail")?.run(Key::new(&order.id)?, &order, mail).await?;
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
