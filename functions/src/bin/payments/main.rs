//! `payments`: an HTTP function whose `POST /payments` may be delivered any number of times and pays once.
//!
//! Idempotency needs three things: the lines of `main` that build the `Idempotency`, the layer around the handler, and
//! the payment's id in [`create_payment`]. The id comes from the claim, so a run that takes over from a dead process
//! finds the payment that the process made, and doesn't make a second one.
//!
//! With `PAYMENTS_FORM=transaction`, the handler only stages the payment. The library commits the payment in one
//! transaction with the operation's outcome, so the payment is made exactly once, whatever its id.

mod payment;
mod rehearsal;

use example_functions::Telemetry;
use lambda_http::{
    Body, Error, Request, RequestExt, Response, http::Method, http::StatusCode, run_concurrent, service_fn,
    tower::ServiceBuilder, tracing,
};
use lambda_idempotency::{Idempotency, store::dynamodb::Transaction};
use payment::{Order, Payment, Payments};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let idempotency = Idempotency::builder_from_env().await?; // reads IDEMPOTENCY_TABLE or IDEMPOTENCY_STORE
    let idempotency = rehearsal::leases(idempotency)?.build()?;
    let payments = Payments::from_env().await?; // reads PAYMENTS_TABLE

    run_concurrent(
        ServiceBuilder::new()
            .map_result(telemetry.flush_before())
            .layer(idempotency.http()) // reads Idempotency-Key; a request without one passes through
            .service(service_fn(move |request| handle(payments.clone(), request))),
    )
    .await
}

/// The function's two routes.
async fn handle(payments: Payments, request: Request) -> Result<Response<Body>, Error> {
    let path = request.raw_http_path().trim_matches('/').to_owned();
    let route: Vec<&str> = path.split('/').collect();

    match (request.method(), route.as_slice()) {
        (&Method::POST, ["payments"]) => create_payment(&payments, &request).await,
        (&Method::GET, ["payments", id]) => read_payment(&payments, id).await,
        _ => answer(StatusCode::NOT_FOUND, &json!({ "message": "no such route" })),
    }
}

/// `POST /payments`: makes the payment, or returns the one that an earlier attempt made.
async fn create_payment(payments: &Payments, request: &Request) -> Result<Response<Body>, Error> {
    let order: Order = match Order::from_json(request.body()) {
        Ok(order) => order,
        Err(problem) => return answer(StatusCode::BAD_REQUEST, &json!({ "message": problem })),
    };

    let payment_id = match lambda_idempotency::current() {
        Some(claim) => {
            tracing::info!(
                attempt = claim.attempt(),
                takeover = claim.is_takeover(),
                generation = %claim.generation(),
                "creating payment"
            );
            claim.derive_key("payment") // the same id in every attempt
        }
        None => {
            tracing::info!("creating payment without an idempotency key");
            uuid::Uuid::new_v4().to_string()
        }
    };

    rehearsal::block_thread().await?;
    let payment = Payment::new(payment_id, order);
    let payment = match lambda_idempotency::staging().filter(|_| payments.are_in_transactions()) {
        Some(staging) => {
            staging.add(Transaction::new().put(payments.put(&payment)?))?; // the payment commits with the outcome
            payment
        }
        None => payments.create(payment).await?,
    };
    let mut response = answer(StatusCode::CREATED, &json!(payment))?;
    response.headers_mut().insert("location", format!("/payments/{}", payment.payment_id).parse()?);
    Ok(response)
}

/// `GET /payments/{id}`.
async fn read_payment(payments: &Payments, id: &str) -> Result<Response<Body>, Error> {
    match payments.read(id).await? {
        Some(payment) => answer(StatusCode::OK, &json!(payment)),
        None => answer(StatusCode::NOT_FOUND, &json!({ "message": "no such payment" })),
    }
}

fn answer(status: StatusCode, body: &Value) -> Result<Response<Body>, Error> {
    Ok(Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))?)
}

#[cfg(test)]
mod tests {
    use lambda_idempotency_testing::{Bench, Call, Event, Function, Point, survive};

    use super::*;

    /// The function as it's deployed with `PAYMENTS_FORM=transaction`.
    fn function(bench: &Bench) -> Function {
        let payments = Payments::in_transactions("payments");
        let handler = service_fn(move |request| handle(payments.clone(), request));
        Function::http(ServiceBuilder::new().layer(bench.idempotency().http()).service(handler))
    }

    fn event() -> Event {
        Event::json(include_str!("../../../../events/payments/http-api.json"))
            .again(include_str!("../../../../events/payments/http-api-again.json"))
            .other(include_str!("../../../../events/payments/http-api-other-caller.json"))
            .conflicting(include_str!("../../../../events/payments/http-api-conflicting.json"))
    }

    #[test]
    fn staged_payments_survive_every_fault() {
        survive(function, &event()).assert_safe();
    }

    #[test]
    fn lost_commit_response_pays_once() {
        let bench = Bench::new();
        let mut function = function(&bench);
        bench.lose_answer(Call::Complete).deliver(&mut function, &event()).assert_ran();
        bench.deliver(&mut function, &event().retried(1)).assert_replayed();
        bench.ledger().assert_count("put payments", 1);
    }

    #[test]
    fn kill_before_the_commit_pays_nothing() {
        let bench = Bench::new();
        bench.die_at(Point::Before(Call::Complete));
        bench.deliver(&mut function(&bench), &event()).assert_died();
        bench.ledger().assert_count("put payments", 0);
    }
}
