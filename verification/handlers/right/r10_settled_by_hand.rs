//! If the charge or the mail fails, the handler releases its claim at once. Every attempt sends the gateway the same
//! derived key, and the mail goes out before the outcome is recorded.

use crate::world::*;
use lambda_idempotency::Settled;

async fn pay(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let pay = idempotency.operation("pay")?;
    let claim = match pay.begin(Key::new(&order.id)?, Fingerprint::of(&order)?).await? {
        Begun::Replay(replay) => return Ok(String::from_utf8(replay.into_response().to_vec())?),
        Begun::Claimed(claim) => claim,
    };
    let handle = claim.handle();
    let work = async {
        let charge = world.charge(Some(&handle.derive_key("charge")), &order.account, order.cents).await?;
        world.send_mail(Some(&handle.derive_key("mail")), &order.email, "Your receipt").await?;
        Ok::<_, GatewayError>(charge)
    };
    match work.await {
        Ok(charge) => match claim.complete(charge.clone()).await? {
            Settled::Recorded => Ok(charge),
            Settled::Superseded(replay) => Ok(String::from_utf8(replay.into_response().to_vec())?),
        },
        Err(error) => {
            claim.release().await?;
            Err(error.into())
        }
    }
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
