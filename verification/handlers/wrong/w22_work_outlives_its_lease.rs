//! The author believed: a short lease is good, since the key is free again soon after a crash.

use crate::world::*;
use lambda_idempotency::Settled;

async fn produce(order: Order, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let produce = idempotency.operation("produce")?;
    let claim = match produce.begin(Key::new(&order.id)?, Fingerprint::of(&order)?).await? {
        Begun::Replay(replay) => return Ok(String::from_utf8(replay.into_response().to_vec())?),
        Begun::Claimed(claim) => claim,
    };
    tokio::time::sleep(Duration::from_secs(20)).await; // the machine warms up
    if let Err(error) = world.add("stock", &order.id, -1).await {
        claim.release().await?;
        return Err(error.into());
    }
    match claim.complete(order.id.clone()).await? {
        Settled::Recorded => Ok(order.id),
        Settled::Superseded(replay) => Ok(String::from_utf8(replay.into_response().to_vec())?),
    }
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let short = idempotency.with_settings(|settings| settings.lease_fallback = Duration::from_secs(5))?;
    Ok(plain(move |event: LambdaEvent<Order>| produce(event.payload, short.clone(), world.clone())))
}

pub const SAMPLE: &str = r#"{"id":"order-17","account":"anna","email":"anna@example.com","cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"order-18","account":"otto","email":"otto@example.com","cents":990}"#;
