//! The author believed: our API always responds with 200, and the body says whether the request worked.

use crate::world::*;

async fn pay(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let order: Order = body(&request)?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    match world.charge(Some(&key), &order.account, order.cents).await {
        Ok(charge) => answer(200, &json!({ "ok": true, "charge": charge })),
        Err(error) => answer(200, &json!({ "ok": false, "error": error.to_string() })),
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
