//! The author believed: the money comes first. Once the payment is recorded, the customer gets the mail.

use crate::world::*;
use lambda_idempotency::Settled;

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let pay = idempotency.operation("pay")?;
    let claim = match pay.begin(Key::new(&order.id)?, Fingerprint::of(&order)?).await? {
        Begun::Replay(replay) => return Ok(String::from_utf8(replay.into_response().to_vec())?),
        Begun::Claimed(claim) => claim,
    };
    let key = claim.handle().derive_key("charge");
    let charge = match world.charge(Some(&key), &order.account, order.cents).await {
        Ok(charge) => charge,
        Err(error) => {
            claim.release().await?;
            return Err(error.into());
        }
    };
    if let Settled::Superseded(replay) = claim.complete(charge.clone()).await? {
        return Ok(String::from_utf8(replay.into_response().to_vec())?);
    }
    world.send_mail(Some(&key), &order.email, "Thank you for your order").await?;
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
