//! The author believed: the order's id protects the loop, whatever the loop does.

use crate::world::*;

#[derive(Deserialize)]
struct Split {
    order: String,
    accounts: Vec<String>,
    cents: u64,
}

async fn pay(split: Split, idempotency: Idempotency, world: Arc<dyn World>) -> Result<Vec<String>, Error> {
    let (charge, mut charges) = (idempotency.operation("charge")?, Vec::new());
    for account in &split.accounts {
        let share = || async {
            let key = current().ok_or("not protected")?.derive_key("charge");
            Ok::<_, Error>(world.charge(Some(&key), account, split.cents).await?)
        };
        charges.push(charge.run(Key::new(&split.order)?, &split.cents, share).await?);
    }
    Ok(charges)
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    Ok(plain(move |event: LambdaEvent<Split>| {
        let idempotency = idempotency.for_context(&event.context);
        pay(event.payload, idempotency, world.clone())
    }))
}

pub const SAMPLE: &str = r#"{"order":"order-17","accounts":["anna","otto"],"cents":625}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"order":"order-18","accounts":["emma","paul","mia"],"cents":330}"#;
