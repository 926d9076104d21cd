//! A function whose program `scripts/bench-size` measures. Each `way` of compiling it adds something to it.

#![allow(unexpected_cfgs, reason = "only scripts/bench-size sets `way`")]
#![allow(unused, reason = "each way uses a part")]

use std::io;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_http::{Body, Request, Response, service_fn};
use lambda_idempotency::{Failure, Idempotency, Key, lambda};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower::ServiceBuilder;

/// Declares a payload, a response, and an operation that turns one into the other.
macro_rules! operation {
    ($name:ident, $field:ident) => {
        mod $name {
            use super::*;

            #[derive(Serialize, Deserialize)]
            pub(crate) struct Order {
                pub(crate) id: String,
                pub(crate) $field: u64,
            }

            #[derive(Serialize, Deserialize)]
            pub(crate) struct Receipt {
                pub(crate) id: String,
                pub(crate) $field: String,
            }

            pub(crate) async fn handle(order: &Order) -> Result<Receipt, io::Error> {
                tokio::task::yield_now().await;
                if order.$field == 0 {
                    return Err(io::Error::other(stringify!($field)));
                }
                Ok(Receipt { id: order.id.clone(), $field: order.$field.to_string() })
            }

            pub(crate) async fn run(
                idempotency: &Idempotency,
                event: LambdaEvent<Value>,
            ) -> Result<Value, Error> {
                let operation = idempotency.for_context(&event.context).operation(stringify!($name))?;
                let order: Order = serde_json::from_value(event.payload)?;
                let receipt = operation.run(Key::new(&order.id)?, &order, || handle(&order)).await?;
                Ok(serde_json::to_value(receipt)?)
            }
        }
    };
}

operation!(charge, cents);
operation!(ship, parcels);
operation!(refund, amount);
operation!(cancel, reason);
operation!(notify, template);
operation!(reserve, seats);
operation!(confirm, room);
operation!(invoice, lines);
operation!(credit, points);
operation!(restock, items);
operation!(schedule, hour);

/// One handler with one operation, or with eleven.
async fn by_kind(idempotency: &Idempotency, event: LambdaEvent<Value>) -> Result<Value, Error> {
    #[cfg(way = "ten-more")]
    match event.payload["kind"].as_str().unwrap_or_default() {
        "ship" => return ship::run(idempotency, event).await,
        "refund" => return refund::run(idempotency, event).await,
        "cancel" => return cancel::run(idempotency, event).await,
        "notify" => return notify::run(idempotency, event).await,
        "reserve" => return reserve::run(idempotency, event).await,
        "confirm" => return confirm::run(idempotency, event).await,
        "invoice" => return invoice::run(idempotency, event).await,
        "credit" => return credit::run(idempotency, event).await,
        "restock" => return restock::run(idempotency, event).await,
        "schedule" => return schedule::run(idempotency, event).await,
        _ => {}
    }
    charge::run(idempotency, event).await
}

async fn paid(_: Request) -> Result<Response<Body>, Error> {
    Ok(Response::new(Body::Text("paid".to_owned())))
}

/// The library's two requests without its rules.
async fn by_hand(client: &aws_sdk_dynamodb::Client, event: LambdaEvent<Value>) -> Result<Value, Error> {
    let order: charge::Order = serde_json::from_value(event.payload)?;
    let id = || AttributeValue::S(order.id.clone());
    client
        .put_item()
        .table_name("t")
        .item("id", id())
        .condition_expression("attribute_not_exists(id)")
        .send()
        .await?;
    let receipt = charge::handle(&order).await?;
    let update = client.update_item().table_name("t").key("id", id()).update_expression("SET r = :r");
    let response = AttributeValue::S(serde_json::to_string(&receipt)?);
    update.expression_attribute_values(":r", response).send().await?;
    Ok(serde_json::to_value(receipt)?)
}

#[cfg(way = "bare")]
#[tokio::main]
async fn main() -> Result<(), Error> {
    let config = aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await;
    let client = &aws_sdk_dynamodb::Client::new(&config);
    lambda_runtime::run(service_fn(|event| by_hand(client, event))).await
}

#[cfg(not(way = "bare"))]
#[tokio::main]
async fn main() -> Result<(), Error> {
    let idempotency = Idempotency::from_env().await?;
    #[cfg(way = "http")]
    if std::env::args().len() > 1 {
        return lambda::http::run(ServiceBuilder::new().layer(idempotency.http()).service(service_fn(paid)))
            .await;
    }
    #[cfg(way = "events")]
    if std::env::args().len() > 1 {
        let layer = idempotency.events(|order: &charge::Order| Key::new(&order.id));
        let handle = async |event: LambdaEvent<charge::Order>| charge::handle(&event.payload).await;
        return lambda::run(ServiceBuilder::new().layer(layer).service(service_fn(handle))).await;
    }
    #[cfg(way = "sqs")]
    if std::env::args().len() > 1 {
        let handle = async |message: lambda::batch::SqsMessage| {
            charge::handle(&message.json()?).await.map_err(Failure::from)
        };
        return lambda::run(idempotency.sqs(|message| Key::from_json(message, "/id"), handle)).await;
    }
    #[cfg(way = "kafka")]
    if std::env::args().len() > 1 {
        let handle = async |record: lambda::batch::KafkaRecord| {
            charge::handle(&record.json()?).await.map_err(Failure::from)
        };
        return lambda::run(idempotency.kafka(|record| record.offset_key(), handle)).await;
    }
    #[cfg(way = "kinesis")]
    if std::env::args().len() > 1 {
        let handle = async |record: lambda::batch::KinesisRecord| {
            charge::handle(&record.json()?).await.map_err(Failure::from)
        };
        return lambda::run(idempotency.kinesis(|record| record.sequence_key(), handle)).await;
    }
    lambda::run(service_fn(|event| by_kind(&idempotency, event))).await
}
