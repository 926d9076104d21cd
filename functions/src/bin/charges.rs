//! `charges`: charges each order once, at a gateway that doesn't recognise a repeated request. After an attempt that ended
//! without an answer, the function first asks the gateway whether the charge happened.

use std::time::Duration;

use example_functions::Telemetry;
use lambda_idempotency::{ClaimHandle, Failure, Found, Idempotency, Key, RunError, current};
use lambda_runtime::{Error, LambdaEvent, run, service_fn, tower::ServiceBuilder, tracing};
use reqwest::{Client, StatusCode};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    order_id: String,
    amount_cents: u64,
}

/// A charge, as the gateway knows it.
#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    receipt: String,
    amount_cents: u64,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let gateway = Gateway::from_env()?; // reads GATEWAY_URL and GATEWAY_APPLIES_WITHIN_MS
    let idempotency = Idempotency::builder_from_env().await?; // reads IDEMPOTENCY_TABLE
    let idempotency = idempotency.settings(|s| s.effects_arrive_within = gateway.applies_within).build()?;

    run(ServiceBuilder::new()
        .map_result(telemetry.flush_before())
        .service(service_fn(|event| handle(&idempotency, &gateway, event))))
    .await
}

async fn handle(
    idempotency: &Idempotency,
    gateway: &Gateway,
    event: LambdaEvent<Order>,
) -> Result<Charge, RunError<Failure>> {
    let order = event.payload;
    let question = async |claim: ClaimHandle| gateway.ask(&claim, &order).await;
    let charge = idempotency.for_context(&event.context).operation("charge")?.reconcile(question)?;
    charge.run(Key::new(&order.order_id)?, &order, || gateway.charge(&order)).await
}

/// The client of the gateway.
#[derive(Debug)]
struct Gateway {
    client: Client,
    url: String,
    /// How long the gateway takes at most to apply a charge.
    applies_within: Duration,
}

impl Gateway {
    fn from_env() -> Result<Self, Error> {
        let url =
            std::env::var("GATEWAY_URL").map_err(|_| "GATEWAY_URL isn't set: set it to the gateway's URL")?;
        let applies_within = match std::env::var("GATEWAY_APPLIES_WITHIN_MS") {
            Ok(millis) => Duration::from_millis(millis.parse()?),
            Err(_) => Duration::from_secs(30),
        };
        Ok(Self { client: Client::new(), url, applies_within })
    }

    /// Charges the order. An error of the connection says nothing about the charge.
    async fn charge(&self, order: &Order) -> Result<Charge, Failure> {
        let key = current().ok_or("no claim: call `charge` only in the operation")?.derive_key("charge");
        tracing::info!(key, "charging an order");
        let charge = format!("{}/charges/{key}", self.url);
        let request = self.client.post(charge).body(order.amount_cents.to_string()).send();
        let response = request.await.map_err(Failure::unknown)?;
        match response.status() {
            StatusCode::PAYMENT_REQUIRED => {
                Err(Failure::permanent("Charges.Declined", "the card was declined"))
            }
            StatusCode::CREATED => {
                let body = response.bytes().await.map_err(Failure::unknown)?;
                serde_json::from_slice(&body).map_err(Failure::unknown)
            }
            status => Err(Failure::unknown(format!("the gateway answered {status}"))),
        }
    }

    /// Asks for the charge of an earlier attempt.
    async fn ask(&self, claim: &ClaimHandle, order: &Order) -> Result<Found<Charge>, Error> {
        let charge = format!("{}/charges/{}", self.url, claim.derive_key("charge"));
        let response = self.client.get(charge).send().await?;
        tracing::info!(status = response.status().as_u16(), "asked for a charge");
        match response.status() {
            StatusCode::OK => {
                let found: Charge = serde_json::from_slice(&response.bytes().await?)?;
                match found.amount_cents == order.amount_cents {
                    true => Ok(Found::Happened(found)),
                    false => Err("the gateway has another charge under this key".into()),
                }
            }
            StatusCode::NOT_FOUND => Ok(Found::DidNotHappen),
            StatusCode::ACCEPTED => Ok(Found::NotKnownYet { ask_again_after: Duration::from_secs(1) }),
            status => Err(format!("the gateway answered {status}").into()),
        }
    }
}
