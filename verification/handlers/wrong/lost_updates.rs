//! Handlers that lose an update: they read, add and write, without a condition on what they read. Alone, each of them is
//! safe to retry.

use aws_sdk_dynamodb::types::{AttributeValue, Put};
use lambda_idempotency::{
    Failure, Idempotency, Key,
    lambda::batch::SqsMessage,
    staging,
    store::{dynamodb, memory::MemoryStore},
};
use lambda_idempotency_testing::{Bench, Event, FrontEnd, Function, Transaction};
use lambda_runtime::{Error, service_fn, tower::ServiceBuilder};
use serde_json::{json, value::RawValue};

use crate::{
    drive::Handler,
    right::by_state::{balance, two_orders},
    world::{Body, Order, Request, Response, now, uuid},
};

type Stage = fn(&Order, &MemoryStore) -> Result<Transaction, Error>;

/// Returns a function that stages these writes.
fn function(bench: &Bench, stage: Stage) -> Function {
    let (idempotency, store) = (bench.idempotency(), bench.records());
    Function::new(move |order: Order| pay(order, idempotency.clone(), store.clone(), stage))
}

async fn pay(
    order: Order,
    idempotency: Idempotency,
    store: MemoryStore,
    stage: Stage,
) -> Result<String, Error> {
    let run = || async {
        staging().ok_or("not protected")?.add(stage(&order, &store)?)?;
        Ok::<_, Error>("paid".to_owned())
    };
    Ok(idempotency.operation("pay")?.run(Key::new(&order.id)?, &order, run).await?)
}

fn put(order: &Order, store: &MemoryStore) -> Transaction {
    let new = balance(store, &order.account) + order.cents;
    Transaction::new().put("accounts", &order.account, new.to_string())
}

/// The item has the time of its last change, and the payment has a random id.
fn with_time(order: &Order, store: &MemoryStore) -> Result<Transaction, Error> {
    let old = store.item("accounts", &order.account).unwrap_or_default();
    let cents = old.split(' ').next().and_then(|cents| cents.parse().ok()).unwrap_or(0) + order.cents;
    let put = Transaction::new().put("accounts", &order.account, format!("{cents} since {}", now()));
    Ok(put.put("payments", &uuid(), &order.id))
}

/// The condition is on the payment, not on the account.
fn other_condition(order: &Order, store: &MemoryStore) -> Result<Transaction, Error> {
    Ok(put(order, store).put("payments", &order.id, "paid").absent("payments", &order.id))
}

/// The first order creates the account under a condition. The later ones have no condition.
fn condition_on_creation(order: &Order, store: &MemoryStore) -> Result<Transaction, Error> {
    let put = put(order, store);
    Ok(match store.item("accounts", &order.account) {
        None => put.absent("accounts", &order.account),
        Some(_) => put,
    })
}

/// Two orders may both take from the last 2000 cents.
fn overdraft(order: &Order, store: &MemoryStore) -> Result<Transaction, Error> {
    let cents: u64 = store.item("accounts", &order.account).map_or(2000, |cents| cents.parse().unwrap_or(0));
    let new = cents.checked_sub(order.cents).ok_or("insufficient funds")?;
    Ok(Transaction::new().put("accounts", &order.account, new.to_string()))
}

/// Puts the new balance into DynamoDB. The balance comes from the earlier puts.
fn in_dynamodb(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Order| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let run = || async {
                let puts = ledger.effects().iter().filter(|one| one.name == "put accounts").count() as u64;
                let new = AttributeValue::N(((puts + 1) * order.cents).to_string());
                let account = Put::builder()
                    .table_name("accounts")
                    .item("id", AttributeValue::S(order.account.clone()));
                let payment =
                    Put::builder().table_name("payments").item("id", AttributeValue::S(order.id.clone()));
                let payment = payment.condition_expression("attribute_not_exists(id)").build()?;
                let writes =
                    dynamodb::Transaction::new().put(account.item("cents", new).build()?).put(payment);
                staging().ok_or("not protected")?.add(writes)?;
                Ok::<_, Error>("paid".to_owned())
            };
            Ok::<String, Error>(idempotency.operation("pay")?.run(Key::new(&order.id)?, &order, run).await?)
        }
    })
}

fn over_http(bench: &Bench) -> Function {
    let store = bench.records();
    let handle = service_fn(move |request: Request| {
        let store = store.clone();
        async move {
            let order: Order = serde_json::from_slice(request.body().as_ref())?;
            let put = put(&order, &store);
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            staging().ok_or("not protected")?.add(put)?;
            Ok::<_, Error>(Response::builder().status(201).body(Body::Text("paid".to_owned()))?)
        }
    });
    Function::http(ServiceBuilder::new().layer(bench.idempotency().http().required(true)).service(handle))
}

fn from_a_queue(bench: &Bench) -> Function {
    let store = bench.records();
    let handle = move |message: SqsMessage| {
        let store = store.clone();
        async move {
            let order: Order = message.json()?;
            staging().ok_or("not protected")?.add(put(&order, &store))?;
            Ok::<_, Failure>("paid".to_owned())
        }
    };
    Function::lambda::<_, Box<RawValue>>(
        bench.idempotency().sqs(|message| Key::from_json(message, "/id"), handle),
    )
}

pub(crate) fn all() -> Vec<Handler> {
    let handler = |name, make: fn(&Bench) -> Function, event| Handler { name, make, event };
    let alone = || Event::json(two_orders().text());
    let order = json!({ "id": "order-17", "account": "anna", "email": "anna@example.com", "cents": 1250 });
    let request = Event::request(FrontEnd::HttpApi, "POST", "/payments").key("8e03978e").json(&order).event();
    let of_otto = json!({ "id": "order-18", "account": "otto", "email": "otto@example.com", "cents": 1250 });
    vec![
        handler("l01_put", |bench| function(bench, |order, store| Ok(put(order, store))), two_orders()),
        handler("l02_no_other_order", |bench| function(bench, |order, store| Ok(put(order, store))), alone()),
        handler("l03_condition_on_the_payment", |bench| function(bench, other_condition), two_orders()),
        handler("l04_condition_on_creation", |bench| function(bench, condition_on_creation), two_orders()),
        handler("l05_overdraft", |bench| function(bench, overdraft), two_orders()),
        handler("l06_dynamodb", in_dynamodb, two_orders()),
        handler("l07_http", over_http, request),
        handler(
            "l08_queue",
            from_a_queue,
            Event::sqs("orders", [order.to_string()])
                .other(Event::sqs("orders", [of_otto.to_string()]).text()),
        ),
        handler("l09_time", |bench| function(bench, with_time), two_orders()),
    ]
}
