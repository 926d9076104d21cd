//! The shop sends no `idempotency-key` header, but each cart has an id. `sent_at` differs in each attempt, so it isn't
//! compared.

use crate::world::*;

async fn buy(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let cart: Order = body(&request)?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &cart.account, cart.cents).await?;
    answer(201, &json!({ "charge": charge }))
}

pub fn http(idempotency: Idempotency, world: Arc<dyn World>) -> Result<HttpFunction, Error> {
    let layer = idempotency.http().required(true).key_fields(KeyFields::new(["/id"])?);
    let layer = layer.fingerprint_fields(["/id", "/account", "/cents"])?;
    let handler = service_fn(move |request: Request| buy(request, world.clone()));
    Ok(BoxCloneService::new(ServiceBuilder::new().layer(layer).service(handler)))
}

pub const SAMPLE: &str = http_event!(
    "anna",
    r#""#,
    "1-6b000fc0",
    r#"{\"id\":\"cart-5\",\"account\":\"anna\",\"email\":\"a@e.org\",\"cents\":1250,\"sent_at\":\"09:15:44.120\"}"#
);
pub const AGAIN: &str = http_event!(
    "anna",
    r#""#,
    "1-6b000fc9",
    r#"{\"id\":\"cart-5\",\"account\":\"anna\",\"email\":\"a@e.org\",\"cents\":1250,\"sent_at\":\"09:15:49.871\"}"#
);
pub const OTHER: &str = http_event!(
    "anna",
    r#""#,
    "1-6b000fe7",
    r#"{\"id\":\"cart-6\",\"account\":\"anna\",\"email\":\"a@e.org\",\"cents\":1250,\"sent_at\":\"09:15:58.300\"}"#
);
