//! The author believed: every client sends a reference by now. But all donations without a reference have the same key.

use crate::world::*;

#[derive(Deserialize)]
struct Donation {
    #[serde(default)]
    reference: String,
    account: String,
    cents: u64,
}

async fn give(donation: Donation, idempotency: Idempotency, world: Arc<dyn World>) -> Result<String, Error> {
    let key = Key::new(format!("donation-{}", donation.reference))?;
    let charge = || async {
        let key = current().ok_or("not protected")?.derive_key("charge");
        Ok::<_, Error>(world.charge(Some(&key), &donation.account, donation.cents).await?)
    };
    Ok(idempotency.operation("give")?.run(key, &donation.cents, charge).await?)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    Ok(plain(move |event: LambdaEvent<Donation>| {
        let idempotency = idempotency.for_context(&event.context);
        give(event.payload, idempotency, world.clone())
    }))
}

pub const SAMPLE: &str = r#"{"account":"anna","cents":500}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"account":"otto","cents":500}"#;
