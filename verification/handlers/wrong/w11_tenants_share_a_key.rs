//! The author believed: an invoice number is unique. But each tenant counts from 1, so two tenants can have the
//! same number.

use crate::world::*;

#[derive(Deserialize)]
struct Invoice {
    tenant: String,
    number: u32,
    cents: u64,
}

async fn pay(invoice: Invoice, world: Arc<dyn World>) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &invoice.tenant, invoice.cents).await?;
    Ok(format!("{} paid {charge}", invoice.tenant))
}

pub fn event(idempotency: Idempotency, world: Arc<dyn World>) -> Result<EventFunction, Error> {
    let layer = idempotency.events(|invoice: &Invoice| Key::new(invoice.number.to_string()));
    let layer = layer.operation("pay")?.fingerprint_fields(["/number", "/cents"])?;
    let handler = service_fn(move |event: LambdaEvent<Invoice>| pay(event.payload, world.clone()));
    Ok(on_event(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = r#"{"tenant":"blue","number":17,"cents":1250}"#;
pub const AGAIN: &str = SAMPLE;
pub const OTHER: &str = r#"{"tenant":"green","number":17,"cents":1250}"#;
