//! The handler only calculates. It may run any number of times, always with the same result.

use crate::world::*;

#[derive(Deserialize)]
struct Quote {
    id: String,
    items: Vec<u64>,
}

async fn quote(quote: Quote, _world: Arc<dyn World>) -> Result<Value, Error> {
    let net: u64 = quote.items.iter().sum();
    Ok(json!({ "quote": quote.id, "net": net, "tax": net * 19 / 100 }))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|event: &Quote| Key::new(&event.id)).operation("quote")?;
    let handler = service_fn(move |event: LambdaEvent<Quote>| quote(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"id":"quote-17","items":[1250,490]}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"id":"quote-18","items":[990]}"#;
