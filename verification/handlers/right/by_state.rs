//! Right handlers whose effects depend on other operations, or that fail permanently.

use std::{collections::BTreeMap, sync::Mutex};

use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};
use lambda_idempotency::{
    Failure, Idempotency, Key, current, idempotent,
    lambda::batch::{KinesisRecord, SqsMessage},
    settings::Recording,
    staging,
    store::{dynamodb, memory::MemoryStore},
};
use lambda_idempotency_testing::{Bench, Declined, Event, FrontEnd, Function, Ledger, Transaction};
use lambda_runtime::{Error, LambdaEvent, service_fn, tower::ServiceBuilder};
use serde_json::{json, value::RawValue};

use crate::{
    drive::Handler,
    world::{Body, Order, Request, Response},
};

pub(crate) fn balance(store: &MemoryStore, account: &str) -> u64 {
    store.item("accounts", account).and_then(|cents| cents.parse().ok()).unwrap_or(0)
}

/// Adds to an account's balance, if it's still what was read.
fn deposit(order: &Order, store: &MemoryStore) -> Result<String, Error> {
    let (account, old) = (order.account.as_str(), store.item("accounts", &order.account));
    let new = balance(store, account) + order.cents;
    let put = Transaction::new().put("accounts", account, new.to_string());
    let guarded = match &old {
        Some(old) => put.is("accounts", account, old),
        None => put.absent("accounts", account),
    };
    staging().ok_or("not protected")?.add(guarded)?;
    Ok(format!("the balance is {new}"))
}

fn depositing(bench: &Bench) -> Function {
    let (idempotency, store) = (bench.idempotency(), bench.records());
    Function::new(move |order: Order| {
        let (idempotency, store) = (idempotency.clone(), store.clone());
        async move {
            let run = || async { deposit(&order, &store) };
            Ok::<String, Error>(
                idempotency.operation("deposit")?.run(Key::new(&order.id)?, &order, run).await?,
            )
        }
    })
}

/// Deposits several orders of a batch concurrently. Two orders of one account may meet: one of them is declined, and
/// redelivered.
fn depositing_batch(bench: &Bench) -> Function {
    let store = bench.records();
    let handle = move |message: SqsMessage| {
        let store = store.clone();
        async move {
            let order: Order = message.json()?;
            let read = store.clone();
            // The two records read before either commits.
            let staged = deposit(&order, &read).map_err(Failure::transient)?;
            tokio::task::yield_now().await;
            Ok::<_, Failure>(staged)
        }
    };
    Function::lambda::<_, Box<RawValue>>(
        bench.idempotency().sqs(|message| Key::from_json(message, "/id"), handle),
    )
}

/// Takes from an account that has 2000 cents. If they don't suffice, the answer says so.
async fn withdraw(order: &Order, store: &MemoryStore) -> Result<String, Error> {
    let old = store.item("accounts", &order.account);
    let cents: u64 = old.as_ref().map_or(2000, |cents| cents.parse().unwrap_or(0));
    let Some(new) = cents.checked_sub(order.cents) else { return Ok("insufficient funds".to_owned()) };
    let put = Transaction::new().put("accounts", &order.account, new.to_string());
    let guarded = match &old {
        Some(old) => put.is("accounts", &order.account, old),
        None => put.absent("accounts", &order.account),
    };
    let staging = staging().ok_or("not protected")?;
    staging.add(guarded)?;
    staging.on_declined(|_: &Declined| -> Result<String, Error> { Ok("the account was busy".to_owned()) });
    Ok(format!("{new} are left"))
}

fn withdrawing(bench: &Bench) -> Function {
    let (idempotency, store) = (bench.idempotency(), bench.records());
    Function::new(move |order: Order| {
        let (idempotency, store) = (idempotency.clone(), store.clone());
        async move {
            let run = || withdraw(&order, &store);
            Ok::<String, Error>(
                idempotency.operation("withdraw")?.run(Key::new(&order.id)?, &order, run).await?,
            )
        }
    })
}

/// Like [`withdrawing`], but the second order fails.
fn refusing(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Order| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let run = || async {
                let key = current().ok_or("not protected")?.derive_key("take");
                let is_taken = ledger.effects().iter().any(|one| one.key.as_deref() != Some(key.as_str()));
                if is_taken {
                    return Err("the last bowl is gone".into());
                }
                Ok::<String, Error>(ledger.call("take the last bowl", Some(&key), &order.id).await?)
            };
            Ok::<String, Error>(idempotency.operation("take")?.run(Key::new(&order.id)?, &order, run).await?)
        }
    })
}

type Balances = Mutex<BTreeMap<String, u64>>;

/// Reads the balance from another system's copy, and stages an update with a condition on it.
fn depositing_in_dynamodb(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    let balances = bench.shared::<Balances>();
    let _ = balances.lock().map(|balances| balances.len());
    Function::new(move |order: Order| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let run = || async {
                let earlier =
                    ledger.effects().iter().filter(|one| one.name == "update accounts").count() as u64;
                let old = earlier * order.cents;
                let update = Update::builder()
                    .table_name("accounts")
                    .key("id", AttributeValue::S(order.account.clone()))
                    .update_expression("SET cents = :new")
                    .condition_expression("cents = :old")
                    .expression_attribute_values(":old", AttributeValue::N(old.to_string()))
                    .expression_attribute_values(":new", AttributeValue::N((old + order.cents).to_string()));
                let payment = Put::builder()
                    .table_name("payments")
                    .item("id", AttributeValue::S(order.id.clone()))
                    .condition_expression("attribute_not_exists(id)");
                let writes = dynamodb::Transaction::new().update(update.build()?).put(payment.build()?);
                staging().ok_or("not protected")?.add(writes)?;
                Ok::<_, Error>("paid".to_owned())
            };
            Ok::<String, Error>(idempotency.operation("pay")?.run(Key::new(&order.id)?, &order, run).await?)
        }
    })
}

/// Both operations make sure that the customer exists, in a step that they share. Only the first order gets a welcome.
async fn buy(order: Order, idempotency: Idempotency, ledger: Ledger) -> Result<String, Error> {
    let create = || async {
        let key = current().ok_or("not protected")?.derive_key("customer");
        Ok::<String, Error>(ledger.call("create customer", Some(&key), &order.account).await?)
    };
    let customer = idempotency.operation("customer")?;
    let _: String = customer.run(Key::new(&order.account)?, &order.account, create).await?;
    let buy = || async {
        let key = current().ok_or("not protected")?.derive_key("buy");
        let own = |one: &lambda_idempotency_testing::Effect| one.key.as_deref() == Some(key.as_str());
        let is_first = ledger.effects().iter().filter(|one| one.name != "create customer").all(own);
        let greeting = if is_first { "welcome and thank you" } else { "thank you" };
        Ok::<String, Error>(ledger.call("mail", Some(&key), format!("{greeting} for {}", order.id)).await?)
    };
    Ok(idempotency.operation("buy")?.run(Key::new(&order.id)?, &order, buy).await?)
}

fn buying(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Order| buy(order, idempotency.clone(), ledger.clone()))
}

/// Appends to a list, if the list is still what was read. The later item contains the ids of the earlier orders.
fn appending(bench: &Bench) -> Function {
    let (idempotency, store) = (bench.idempotency(), bench.records());
    Function::new(move |order: Order| {
        let (idempotency, store) = (idempotency.clone(), store.clone());
        async move {
            let run = || async {
                let old = store.item("orders", &order.account);
                let new = format!("{} {}", old.as_deref().unwrap_or_default(), order.id);
                let put = Transaction::new().put("orders", &order.account, new);
                staging().ok_or("not protected")?.add(match &old {
                    Some(old) => put.is("orders", &order.account, old),
                    None => put.absent("orders", &order.account),
                })?;
                Ok::<_, Error>("noted".to_owned())
            };
            Ok::<String, Error>(idempotency.operation("note")?.run(Key::new(&order.id)?, &order, run).await?)
        }
    })
}

#[idempotent(operation = "hotel", key = order.id, compare = order)]
async fn hotel(order: &Order, ledger: &Ledger, idempotency: &Idempotency) -> Result<String, Error> {
    Ok(ledger
        .call("hotel", Some(&current().ok_or("not protected")?.derive_key("hotel")), &order.account)
        .await?)
}

#[idempotent(operation = "flight", key = order.id, compare = order)]
async fn flight(order: &Order, ledger: &Ledger, idempotency: &Idempotency) -> Result<String, Error> {
    Ok(ledger
        .call("flight", Some(&current().ok_or("not protected")?.derive_key("flight")), &order.account)
        .await?)
}

fn travelling(bench: &Bench) -> Function {
    let (idempotency, ledger) = (bench.idempotency(), bench.ledger());
    Function::new(move |order: Order| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let hotel = hotel(&order, &ledger, &idempotency).await?;
            let flight = flight(&order, &ledger, &idempotency).await?;
            Ok::<_, Error>(vec![hotel, flight])
        }
    })
}

async fn ship(body: &str, ledger: &Ledger) -> Result<String, Failure> {
    let Ok(order) = serde_json::from_str::<Order>(body) else {
        return Err("this isn't an order".into());
    };
    if order.cents == 0 {
        return Err(Failure::permanent("NothingToPay", "the amount is zero"));
    }
    let key = current().ok_or("not protected")?.derive_key("ship");
    ledger.call("ship", Some(&key), body).await.map_err(Failure::transient)
}

/// A worker with its default settings: a permanent failure is recorded, and its message goes to the dead-letter queue.
fn shipping(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |message: SqsMessage| {
        let ledger = ledger.clone();
        async move { ship(message.body(), &ledger).await }
    };
    Function::lambda::<_, Box<RawValue>>(bench.idempotency().sqs(SqsMessage::message_key, handle))
}

fn shipping_stream(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = move |record: KinesisRecord| {
        let ledger = ledger.clone();
        async move { ship(&String::from_utf8_lossy(record.data()), &ledger).await }
    };
    Function::lambda::<_, Box<RawValue>>(bench.idempotency().kinesis(|record| record.sequence_key(), handle))
}

/// Every failure is recorded, as the settings say.
fn declining(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = service_fn(move |event: LambdaEvent<Order>| {
        let ledger = ledger.clone();
        async move {
            let key = current().ok_or("not protected")?.derive_key("ask");
            ledger.call("ask", Some(&key), &event.payload.id).await.map_err(Failure::transient)?;
            Err::<String, Failure>(Failure::permanent(
                "Declined",
                format!("{} was declined", event.payload.id),
            ))
        }
    });
    let layer = bench.idempotency().events(|order: &Order| Key::new(&order.id));
    Function::lambda::<_, Box<RawValue>>(ServiceBuilder::new().layer(layer).service(handle))
}

fn declining_over_http(bench: &Bench) -> Function {
    let ledger = bench.ledger();
    let handle = service_fn(move |_: Request| {
        let ledger = ledger.clone();
        async move {
            let key = current().ok_or("not protected")?.derive_key("ask");
            let Ok(receipt) = ledger.call("ask", Some(&key), "the bank").await else {
                return Ok(Response::builder().status(503).body(Body::Empty)?);
            };
            let body = json!({ "code": "card-declined", "receipt": receipt }).to_string();
            Ok::<_, Error>(Response::builder().status(402).body(Body::Text(body))?)
        }
    });
    Function::http(ServiceBuilder::new().layer(bench.idempotency().http().required(true)).service(handle))
}

/// All errors are recorded, under at-most-once.
fn printing(bench: &Bench) -> Function {
    let once = bench.idempotency().with_settings(|settings| {
        settings.execution = lambda_idempotency::settings::Execution::AtMostOnce;
        settings.on_handler_error = Recording::Record;
    });
    let (idempotency, ledger) = (once.unwrap(), bench.ledger());
    Function::new(move |order: Order| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move {
            let print = || async { ledger.call("print", None, &order.id).await };
            let printed = idempotency.operation("print")?.run(Key::new(&order.id)?, &order, print).await;
            printed.map_err(Error::from)
        }
    })
}

fn order(id: &str, account: &str, cents: u64) -> String {
    json!({ "id": id, "account": account, "email": "anna@example.com", "cents": cents }).to_string()
}

/// Two orders of one account, with the same amount.
pub(crate) fn two_orders() -> Event {
    Event::json(order("order-17", "anna", 1250)).other(order("order-18", "anna", 1250))
}

pub(crate) fn all() -> Vec<Handler> {
    let handler = |name, make: fn(&Bench) -> Function, event| Handler { name, make, event };
    let (good, free) = (order("order-17", "anna", 1250), order("order-20", "anna", 0));
    let another = order("order-18", "anna", 1250);
    let batch = [good.clone(), another.clone()];
    let poisoned = [free.clone(), good.clone(), another.clone()];
    let unreadable = ["not an order".to_owned(), good.clone(), another.clone()];
    let stream = [("a", free.as_str()), ("a", good.as_str()), ("b", another.as_str())];
    let others = [order("order-30", "anna", 0), order("order-31", "anna", 1250)];
    let declined =
        Event::request(FrontEnd::HttpApi, "POST", "/payments").key("8e03978e").json(&json!({"cents": 1}));
    let declined_too =
        Event::request(FrontEnd::HttpApi, "POST", "/payments").key("8e03978f").json(&json!({"cents": 1}));
    vec![
        handler("r30_conditional_write", depositing, two_orders()),
        handler(
            "r31_conditional_writes_in_a_batch",
            depositing_batch,
            Event::sqs("orders", batch.clone())
                .other(Event::sqs("orders", [order("order-19", "anna", 50)]).text()),
        ),
        handler("r32_on_declined", withdrawing, two_orders()),
        handler("r33_second_order_fails", refusing, two_orders()),
        handler("r34_conditional_update", depositing_in_dynamodb, two_orders()),
        handler("r35_shared_step", buying, two_orders()),
        handler("r36_list", appending, two_orders()),
        handler("r37_steps", travelling, two_orders()),
        handler(
            "r38_poison",
            shipping,
            Event::sqs("orders", poisoned.clone()).other(Event::sqs("orders", others.clone()).text()),
        ),
        handler("r39_poison_fifo", shipping, Event::fifo("orders.fifo", poisoned.map(|body| ("a", body)))),
        handler("r40_poison_unrecorded", shipping, Event::sqs("orders", unreadable.clone()).poison(0)),
        handler(
            "r41_poison_unrecorded_fifo",
            shipping,
            Event::fifo("orders.fifo", unreadable.map(|body| ("a", body))).poison(0),
        ),
        handler("r42_poison_stream", shipping_stream, Event::kinesis("orders", stream)),
        handler("r43_permanent_failure", declining, two_orders()),
        handler(
            "r44_declined_over_http",
            declining_over_http,
            declined.event().other(declined_too.event().text()),
        ),
        handler("r45_at_most_once", printing, two_orders()),
    ]
}
