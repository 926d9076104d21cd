//! The author believed: the layer makes the request idempotent, so the gateway needs no key.

use crate::world::*;

async fn pay(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let order: Order = body(&request)?;
    match world.charge(None, &order.account, order.cents).await {
        Ok(charge) => answer(201, &json!({ "charge": charge })),
        Err(GatewayError::Declined) => answer(402, &json!({ "error": "the card was declined" })),
        Err(error) => answer(503, &json!({ "error": error.to_string() })),
    }
}

pub fn http(idempotency: Idempotency, world: Arc<dyn World>) -> Result<HttpFunction, Error> {
    let layer = idempotency.http().required(true);
    let handler = service_fn(move |request: Request| pay(request, world.clone()));
    Ok(BoxCloneService::new(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = http_event!(
    "anna",
    r#","idempotency-key":"8e03978e-40d5""#,
    "1-6b000fc0",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
);
pub const AGAIN: &str = http_event!(
    "anna",
    r#","idempotency-key":"8e03978e-40d5""#,
    "1-6b000fc9",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
);
pub const OTHER: &str = http_event!(
    "otto",
    r#","idempotency-key":"0c1f7a52-9b6d""#,
    "1-6b000fe7",
    r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
);
