//! Each attempt sends the gateway the same key. The library records a declined card (402), but not
//! an outage (503).

use crate::world::*;

async fn pay(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let order: Order = body(&request)?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    match world.charge(Some(&key), &order.account, order.cents).await {
        Ok(charge) => answer(201, &json!({ "charge": charge })),
        Err(GatewayError::Declined) => answer(402, &json!({ "error": "the card was declined" })),
        Err(error) => answer(503, &json!({ "error": error.to_string() })),
    }
}

pub fn http(idempotency: Idempotency, world: Arc<dyn World>) -> Result<HttpFunction, Error> {
    let handler = service_fn(move |request: Request| pay(request, world.clone()));
    let layer = idempotency.http().required(true);
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
