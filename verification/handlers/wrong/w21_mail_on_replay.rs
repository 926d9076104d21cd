//! The author believed: a client that repeats its request hasn't got our mail, so each replay sends the mail once more.

use crate::world::*;

async fn pay(request: Request, world: Arc<dyn World>) -> Result<Response<Body>, Error> {
    let order: Order = body(&request)?;
    let key = current().ok_or("not protected")?.derive_key("charge");
    let charge = world.charge(Some(&key), &order.account, order.cents).await?;
    answer(201, &json!({ "charge": charge }))
}

pub fn http(idempotency: Idempotency, world: Arc<dyn World>) -> Result<HttpFunction, Error> {
    let mailer = world.clone();
    let layer = idempotency.http().required(true).on_replay(move |replay, response| {
        let (mailer, text) = (mailer.clone(), String::from_utf8_lossy(replay.response()).into_owned());
        tokio::spawn(async move { mailer.send_mail(None, "orders@example.com", &text).await });
        response.headers_mut().insert("x-mail", 1.into());
    });
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
