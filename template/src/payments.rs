//! The handler, and the layer around it.

use lambda_http::{
    Body, Error, Request, Response,
    http::StatusCode,
    service_fn,
    tower::{Service, ServiceBuilder},
};
use lambda_idempotency::{Idempotency, current};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Order {
    customer: String,
    cents: u64,
}

#[derive(Serialize)]
struct Payment {
    payment_id: String,
    customer: String,
    cents: u64,
}

/// The function: the layer answers a repeated request with the recorded response. The handler runs again if an attempt
/// ends without a recorded response.
pub fn service(
    idempotency: &Idempotency,
) -> impl Service<Request, Response = Response<Body>, Error = Error, Future: Send> + Clone + Send + 'static
{
    // Without `required(true)`, a request without an Idempotency-Key runs unprotected.
    ServiceBuilder::new()
        .layer(idempotency.http().required(true))
        .service(service_fn(create_payment))
}

async fn create_payment(request: Request) -> Result<Response<Body>, Error> {
    let Ok(order) = serde_json::from_slice::<Order>(request.body()) else {
        return Ok(Response::builder()
            .status(StatusCode::BAD_REQUEST)
            .body("send a JSON object with `customer` and `cents`".into())?);
    };
    // The id is the same in every attempt. Pass it to your payment gateway as its idempotency key.
    let payment_id = current()
        .ok_or("this handler must run behind the idempotency layer")?
        .derive_key("payment");
    let payment = Payment {
        payment_id,
        customer: order.customer,
        cents: order.cents,
    };
    Ok(Response::builder()
        .status(StatusCode::CREATED)
        .body(serde_json::to_string(&payment)?.into())?)
}

#[cfg(test)]
mod tests {
    use lambda_http::http;
    use lambda_idempotency::store::memory::MemoryStore;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    fn request(key: &str, cents: u64) -> Request {
        let body = json!({ "customer": "anna", "cents": cents }).to_string();
        let request = http::Request::post("/payments").header("idempotency-key", key);
        request.body(Body::from(body)).unwrap()
    }

    #[tokio::test]
    async fn repeated_requests_pay_once() {
        let idempotency = Idempotency::builder(MemoryStore::new())
            .function("{{ project_name }}")
            .build()
            .unwrap();
        let service = service(&idempotency);

        let first = service
            .clone()
            .oneshot(request("\"order-17\"", 1250))
            .await
            .unwrap();
        assert_eq!(first.status(), StatusCode::CREATED);
        let again = service
            .clone()
            .oneshot(request("\"order-17\"", 1250))
            .await
            .unwrap();
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(again.body(), first.body());

        let other = service
            .clone()
            .oneshot(request("\"order-17\"", 1))
            .await
            .unwrap();
        assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    }
}
