//! The author believed: `x-request-id` names the request, so it's the same when the client repeats the request.

use crate::world::*;

async fn pay(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let order: Order = body(&request)?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &order.account, order.cents).await?;
    answer(201, &json!({ "charge": charge }))
}

fn request_id(request: &Parts, _body: &[u8]) -> Result<Option<Key>, lambda_idempotency::Error> {
    let id = request.headers.get("x-request-id").and_then(|id| id.to_str().ok());
    id.map(Key::new).transpose()
}

pub fn http(idempotency: Idempotency, world: Arc<dyn World>) -> Result<HttpFunction, Error> {
    let layer = idempotency.http().required(true).key(request_id);
    let handler = service_fn(move |request: Request| pay(request, world.clone()));
    Ok(BoxCloneService::new(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = http_event!(
    "anna",
    r#""#,
    "1-6b000fc0",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
);
pub const AGAIN: &str = http_event!(
    "anna",
    r#""#,
    "1-6b000fc9",
    r#"{\"id\":\"order-17\",\"account\":\"anna\",\"email\":\"anna@example.com\",\"cents\":1250}"#
);
pub const OTHER: &str = http_event!(
    "otto",
    r#""#,
    "1-6b000fe7",
    r#"{\"id\":\"order-18\",\"account\":\"otto\",\"email\":\"otto@example.com\",\"cents\":990}"#
);
