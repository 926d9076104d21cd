//! A function whose program `scripts/bench-size` measures. Each `way` of compiling it adds something to it.

#![allow(unexpected_cfgs, reason = "only scripts/bench-size sets `way`")]
#![allow(unused, reason = "each way uses a part")]

use std::io;

use aws_sdk_dynamodb::types::AttributeValue;
use lambda_http::{Body, Request, Response, service_fn};
use lambda_idempotency::{Failure, Idempotency, Key, lambda};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
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
                event: LambdaEvent<Order>,
            ) -> Result<Receipt, Error> {
                let operation = idempotency.for_context(&event.context).operation(stringify!($name))?;
                let order = event.payload;
                Ok(operation.run(Key::new(&order.id)?, &order, || handle(&order)).await?)
            }

            pub(crate) async fn start(idempotency: Idempotency) -> Result<(), Error> {
                lambda::run(service_fn(|event| run(&idempotency, event))).await
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

async fn paid(_: Request) -> Result<Response<Body>, Error> {
    Ok(Response::new(Body::Text("paid".to_owned())))
}

/// What the function does without the library: the same requests, and no rule.
async fn by_hand(
    client: &aws_sdk_dynamodb::Client,
    event: LambdaEvent<charge::Order>,
) -> Result<charge::Receipt, Error> {
    let id = || AttributeValue::S(event.payload.id.clone());
    client
        .put_item()
        .table_name("t")
        .item("id", id())
        .condition_expression("attribute_not_exists(id)")
        .send()
        .await?;
    let receipt = charge::handle(&event.payload).await?;
    let update = client.update_item().table_name("t").key("id", id()).update_expression("SET r = :r");
    update
        .expression_attribute_values(":r", AttributeValue::S(serde_json::to_string(&receipt)?))
        .send()
        .await?;
    Ok(receipt)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let way = std::env::var("_HANDLER").unwrap_or_default();
    #[cfg(any(way = "bare", way = "bare-http"))]
    {
        let client = aws_sdk_dynamodb::Client::new(
            &aws_config::load_defaults(aws_config::BehaviorVersion::latest()).await,
        );
        #[cfg(way = "bare-http")]
        if way == "http" {
            return lambda_http::run(service_fn(paid)).await;
        }
        let handler = |event| by_hand(&client, event);
        return lambda_runtime::run(service_fn(handler)).await;
    }
    #[cfg(not(any(way = "bare", way = "bare-http")))]
    {
        let idempotency = Idempotency::from_env().await?;
        match &*way {
            #[cfg(way = "ten-more")]
            "ship" => ship::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "refund" => refund::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "cancel" => cancel::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "notify" => notify::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "reserve" => reserve::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "confirm" => confirm::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "invoice" => invoice::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "credit" => credit::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "restock" => restock::start(idempotency).await,
            #[cfg(way = "ten-more")]
            "schedule" => schedule::start(idempotency).await,
            #[cfg(way = "events")]
            "events" => {
                let layer = idempotency.events(|order: &charge::Order| Key::new(&order.id));
                let handle = async |event: LambdaEvent<charge::Order>| charge::handle(&event.payload).await;
                lambda::run(ServiceBuilder::new().layer(layer).service(service_fn(handle))).await
            }
            #[cfg(way = "http")]
            "http" => {
                lambda::http::run(ServiceBuilder::new().layer(idempotency.http()).service(service_fn(paid)))
                    .await
            }
            #[cfg(way = "sqs")]
            "sqs" => {
                let handle = async |message: lambda::batch::SqsMessage| {
                    charge::handle(&message.json()?).await.map_err(Failure::from)
                };
                lambda::run(idempotency.sqs(|message| Key::from_json(message, "/id"), handle)).await
            }
            #[cfg(way = "kafka")]
            "kafka" => {
                let handle = async |record: lambda::batch::KafkaRecord| {
                    charge::handle(&record.json()?).await.map_err(Failure::from)
                };
                lambda::run(idempotency.kafka(|record| record.offset_key(), handle)).await
            }
            #[cfg(way = "kinesis")]
            "kinesis" => {
                let handle = async |record: lambda::batch::KinesisRecord| {
                    charge::handle(&record.json()?).await.map_err(Failure::from)
                };
                lambda::run(idempotency.kinesis(|record| record.sequence_key(), handle)).await
            }
            _ => charge::start(idempotency).await,
        }
    }
}
