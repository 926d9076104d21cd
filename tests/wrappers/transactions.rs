//! Handlers whose writes commit in one transaction with their outcome, under each wrapper, with and without a claim.

use std::convert::Infallible;

use aws_sdk_dynamodb::{
    Client,
    types::{AttributeValue, Update},
};
use lambda_http::{Body, Request, Response, http::StatusCode, tower::ServiceExt};
use lambda_idempotency::{
    Failure, Idempotency, Key, RunError, Staging,
    lambda::batch::SqsMessage,
    settings::{Mode, Recording},
    staging,
    store::dynamodb::{Declined, DynamoDbStore, Transaction},
};
use lambda_runtime::{Context, LambdaEvent};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tower::{Layer, service_fn};

use crate::{
    api::CANARY,
    emulator::{Emulator, fresh_table},
    recording,
};

type Answer = Result<Response<Body>, Infallible>;

/// A shop's stock: the number `n` of the item `stock`, which is in the table of records.
#[derive(Clone)]
struct Stock {
    client: Client,
    table: String,
}

struct Shop {
    stock: Stock,
    idempotency: Idempotency,
    _emulator: Emulator,
}

/// The ways to run: with a claim, without a claim, and without a claim but with a read before the handler.
const MODES: [fn(&Idempotency) -> Idempotency; 3] = [
    Clone::clone,
    |engine| engine.optimistic().unwrap(),
    |engine| engine.optimistic_reading_first().unwrap(),
];

impl Shop {
    async fn with(in_stock: u32) -> Self {
        recording::begin();
        let emulator = Emulator::start().await;
        let (client, table) = (emulator.client(), fresh_table());
        let store = DynamoDbStore::new(client.clone(), &table).unwrap();
        let _ = store.create_table().await.unwrap();
        let put = client.put_item().table_name(&table).item("id", AttributeValue::S("stock".into()));
        put.item("n", AttributeValue::N(in_stock.to_string())).send().await.unwrap();
        let idempotency = Idempotency::builder(store).function("shop").build().unwrap();
        recording::shown(&idempotency);
        Self { stock: Stock { client, table }, idempotency, _emulator: emulator }
    }

    async fn left(&self) -> u32 {
        let Stock { client, table } = &self.stock;
        let get = client.get_item().table_name(table).key("id", AttributeValue::S("stock".into()));
        let item = get.consistent_read(true).send().await.unwrap().item.unwrap();
        item["n"].as_n().unwrap().parse().unwrap()
    }
}

impl Stock {
    /// Returns the write of a sale: it takes one piece from the stock, if any is left.
    fn sale(&self) -> Transaction {
        let update = Update::builder()
            .table_name(&self.table)
            .key("id", AttributeValue::S("stock".into()))
            .update_expression("SET n = n - :one")
            .condition_expression("n >= :one")
            .expression_attribute_values(":one", AttributeValue::N("1".into()));
        Transaction::new().update(update.build().unwrap())
    }

    /// Returns a second write for the sale's transaction. It adds 1 to the item whose id is `text`.
    fn note(&self, text: &str) -> Transaction {
        let update = Update::builder()
            .table_name(&self.table)
            .key("id", AttributeValue::S(text.to_owned()))
            .update_expression("ADD n :one")
            .expression_attribute_values(":one", AttributeValue::N("1".into()));
        Transaction::new().update(update.build().unwrap())
    }
}

fn answer(status: u16, text: &str) -> Answer {
    let body = json!({ "text": format!("{CANARY}-{text}") }).to_string();
    recording::secrets(|secrets| secrets.add_body(&body));
    Ok(Response::builder().status(status).body(Body::Text(body)).unwrap())
}

fn request(key: &str) -> Request {
    let key = format!("{CANARY}-{key}");
    recording::secrets(|secrets| secrets.add(&key));
    let request = lambda_http::http::Request::post("/sales").header("Idempotency-Key", key);
    request.body(Body::Text(json!({ "note": CANARY }).to_string())).unwrap()
}

/// Sells over HTTP. With `closes`, an `on_declined` closure answers if the stock is empty.
async fn sell(stock: Stock, request: Request, closes: bool) -> Answer {
    // The layer adds a `Staging` to each protected request, such as this one.
    let of_the_request = request.extensions().get::<Staging>().unwrap();
    recording::shown(of_the_request);
    of_the_request.add(stock.sale()).unwrap();
    let of_the_task = staging().unwrap();
    of_the_task.add(stock.note("a note")).unwrap();
    let twice = of_the_task.add(stock.note("a note")).unwrap_err();
    recording::error(&twice);
    assert!(twice.to_string().contains("are on the same item"), "{twice}");
    if closes {
        of_the_request.on_declined(|declined: &Declined| -> Answer {
            recording::shown(declined);
            assert_eq!(declined.conditions().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
            let mut sold_out = answer(409, "sold out")?;
            // Without this, the layer releases the key for a 409.
            sold_out.extensions_mut().insert(Recording::Record);
            Ok(sold_out)
        });
    }
    tokio::task::yield_now().await;
    answer(201, "sold")
}

fn is_replay(response: &Response<Body>) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

#[tokio::test]
async fn http_sales_commit_with_their_answer() {
    for mode in MODES {
        let shop = Shop::with(5).await;
        let stock = shop.stock.clone();
        let service = mode(&shop.idempotency)
            .http()
            .layer(service_fn(move |request| sell(stock.clone(), request, true)));
        let first = service.clone().oneshot(request("one")).await.unwrap();
        let again = service.clone().oneshot(request("one")).await.unwrap();
        assert_eq!((first.status(), is_replay(&first)), (StatusCode::CREATED, false));
        assert_eq!((again.status(), is_replay(&again), again.body()), (first.status(), true, first.body()));
        assert_eq!(shop.left().await, 4);
    }
}

#[tokio::test]
async fn http_answers_of_decline_closures_are_recorded() {
    for mode in MODES {
        let shop = Shop::with(0).await;
        let stock = shop.stock.clone();
        let service = mode(&shop.idempotency)
            .http()
            .layer(service_fn(move |request| sell(stock.clone(), request, true)));
        let first = service.clone().oneshot(request("one")).await.unwrap();
        assert_eq!(first.status(), StatusCode::CONFLICT);
        assert!(String::from_utf8_lossy(first.body()).contains("sold out"));
        let again = service.clone().oneshot(request("one")).await.unwrap();
        assert_eq!((again.status(), is_replay(&again), again.body()), (first.status(), true, first.body()));
        assert_eq!(shop.left().await, 0);
    }
}

#[tokio::test]
async fn declined_http_sales_without_closure_are_unrecorded() {
    for mode in MODES {
        let shop = Shop::with(0).await;
        let stock = shop.stock.clone();
        let service = mode(&shop.idempotency)
            .http()
            .layer(service_fn(move |request| sell(stock.clone(), request, false)));
        for _ in 0..2 {
            let refused = service.clone().oneshot(request("one")).await.unwrap();
            assert_eq!(refused.status(), StatusCode::CONFLICT);
            let problem: Value = serde_json::from_slice(refused.body()).unwrap();
            assert_eq!((&problem["code"], &problem["retryable"]), (&json!("declined"), &json!(false)));
            assert!(!is_replay(&refused));
        }
    }
}

#[tokio::test]
async fn decline_closure_of_wrong_type_causes_500() {
    for mode in MODES {
        let shop = Shop::with(0).await;
        let stock = shop.stock.clone();
        let handler = move |request: Request| {
            let stock = stock.clone();
            async move {
                let response = sell(stock, request, false).await?;
                let answers = |_: &String| -> Result<Response<Body>, Infallible> { Ok(Response::default()) };
                lambda_idempotency::staging().unwrap().on_declined(answers);
                Ok::<_, lambda_http::Error>(response)
            }
        };
        let service = mode(&shop.idempotency).http().layer(service_fn(handler));
        let refused = service.oneshot(request("one")).await.unwrap();
        let problem: Value = serde_json::from_slice(refused.body()).unwrap();
        assert_eq!((refused.status().as_u16(), &problem["code"]), (500, &json!("misconfigured")));
    }
}

#[tokio::test]
async fn http_concurrent_deliveries_sell_once() {
    for mode in MODES {
        let shop = Shop::with(50).await;
        let stock = shop.stock.clone();
        let service = mode(&shop.idempotency)
            .http()
            .layer(service_fn(move |request| sell(stock.clone(), request, true)));
        let tasks: Vec<_> = (0..12).map(|_| tokio::spawn(service.clone().oneshot(request("one")))).collect();
        let mut sold = 0;
        for task in tasks {
            let response = task.await.unwrap().unwrap();
            match response.status() {
                StatusCode::CREATED => sold += 1,
                StatusCode::CONFLICT => {
                    assert!(response.headers().contains_key("retry-after"), "{response:?}")
                }
                status => panic!("{status}"),
            }
        }
        assert!(sold >= 1);
        assert_eq!(shop.left().await, 49);
    }
}

#[tokio::test]
async fn unrecorded_http_answer_discards_staged_sale() {
    for mode in MODES {
        let shop = Shop::with(5).await;
        let stock = shop.stock.clone();
        let handler = move |request: Request| {
            let stock = stock.clone();
            async move {
                sell(stock, request, true).await?;
                answer(503, "later")
            }
        };
        let response =
            mode(&shop.idempotency).http().layer(service_fn(handler)).oneshot(request("one")).await.unwrap();
        assert_eq!((response.status(), shop.left().await), (StatusCode::SERVICE_UNAVAILABLE, 5));
    }
}

#[tokio::test]
async fn unenforced_sales_commit_without_records() {
    for mode in [Mode::Off, Mode::Shadow] {
        let shop = Shop::with(2).await;
        let idempotency = shop.idempotency.with_settings(|settings| settings.mode = mode).unwrap();
        let stock = shop.stock.clone();
        let handler = service_fn(move |request| sell(stock.clone(), request, true));
        let service = idempotency.http().layer(handler);
        for (status, left) in [(201, 1), (201, 0), (409, 0)] {
            let response = service.clone().oneshot(request("one")).await.unwrap();
            assert_eq!((response.status().as_u16(), shop.left().await), (status, left), "{mode:?}");
            assert!(!is_replay(&response));
        }
        let stock = shop.stock.clone();
        let unanswered = service_fn(move |request| sell(stock.clone(), request, false));
        let refused = idempotency.http().layer(unanswered).oneshot(request("two")).await.unwrap();
        let problem: Value = serde_json::from_slice(refused.body()).unwrap();
        assert_eq!(problem["code"], "declined", "{mode:?}");
    }
}

#[derive(Deserialize)]
struct Order {
    id: String,
}

fn event(id: &str) -> LambdaEvent<Box<RawValue>> {
    let json = json!({ "id": format!("{CANARY}-{id}") }).to_string();
    recording::secrets(|secrets| secrets.add_body(&json));
    LambdaEvent::new(RawValue::from_string(json).unwrap(), Context::default())
}

#[tokio::test]
async fn typed_events_sell_once_or_answer_sold_out() {
    for mode in MODES {
        let shop = Shop::with(1).await;
        let stock = shop.stock.clone();
        let handler = move |_: LambdaEvent<Order>| {
            let stock = stock.clone();
            async move {
                let staging = staging().unwrap();
                staging.add(stock.sale())?;
                staging.on_declined(|_: &Declined| Ok::<_, lambda_runtime::Error>("sold out".to_owned()));
                Ok::<_, lambda_runtime::Error>("sold".to_owned())
            }
        };
        let key = |order: &Order| Key::new(&order.id);
        let service = mode(&shop.idempotency).events(key).layer(service_fn(handler));
        for (id, expected) in
            [("1", "\"sold\""), ("2", "\"sold out\""), ("1", "\"sold\""), ("2", "\"sold out\"")]
        {
            let answer = service.clone().oneshot(event(id)).await.unwrap();
            assert_eq!(answer.get(), expected, "{id}");
        }
        assert_eq!(shop.left().await, 0);
    }
}

#[tokio::test]
async fn declined_typed_events_without_closure_fail() {
    for mode in MODES {
        let shop = Shop::with(0).await;
        let stock = shop.stock.clone();
        let handler = move |_: LambdaEvent<Order>| {
            let stock = stock.clone();
            async move {
                staging().unwrap().add(stock.sale())?;
                Ok::<_, lambda_runtime::Error>("sold".to_owned())
            }
        };
        let key = |order: &Order| Key::new(&order.id);
        let service = mode(&shop.idempotency).events(key).layer(service_fn(handler));
        let Err(RunError::Idempotency(error)) = service.oneshot(event("1")).await else { panic!("sold") };
        recording::error(&error);
        assert_eq!(error.kind(), lambda_idempotency::ErrorKind::Declined);
    }
}

fn batch(orders: &[&str]) -> LambdaEvent<Box<RawValue>> {
    let records: Vec<_> = orders
        .iter()
        .map(|order| {
            let body = json!({ "order": format!("{CANARY}-{order}") }).to_string();
            recording::secrets(|secrets| secrets.add_body(&body));
            json!({
                "messageId": order, "receiptHandle": "handle", "body": body, "attributes": {},
                "messageAttributes": {}, "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:orders",
            })
        })
        .collect();
    let payload = RawValue::from_string(json!({ "Records": records }).to_string()).unwrap();
    LambdaEvent::new(payload, Context::default())
}

#[tokio::test]
async fn each_message_has_its_own_transaction() {
    for mode in MODES {
        let shop = Shop::with(3).await;
        let stock = shop.stock.clone();
        let worker = mode(&shop.idempotency).sqs(SqsMessage::message_key, move |message: SqsMessage| {
            let stock = stock.clone();
            async move {
                let staging = staging().unwrap();
                staging.add(stock.sale())?;
                if message.body().contains("fails") {
                    return Err(Failure::from("out of luck"));
                }
                Ok("sold".to_owned())
            }
        });
        let orders = ["a", "b", "fails", "c"];
        for _ in 0..2 {
            let answer = worker.clone().oneshot(batch(&orders)).await.unwrap();
            assert_eq!(answer.get(), r#"{"batchItemFailures":[{"itemIdentifier":"fails"}]}"#);
            assert_eq!(shop.left().await, 0, "a, b and c take one each");
        }
        // The stock is empty, so the sale of d is declined, and d is returned as failed.
        let answer = worker.clone().oneshot(batch(&["a", "d"])).await.unwrap();
        assert_eq!(answer.get(), r#"{"batchItemFailures":[{"itemIdentifier":"d"}]}"#);
        assert_eq!(shop.left().await, 0);
    }
}
