//! Reconcilers, right and wrong. The gateway doesn't deduplicate, and can be asked for a charge by its reference.

use std::{error::Error as StdError, time::Duration};

use lambda_idempotency::{ClaimHandle, Failure, Found, Idempotency, Key, current};
use lambda_idempotency_testing::{Bench, Effect, Event, Function, Ledger, Lookup, NoAnswer};
use lambda_runtime::{Error, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{drive::Handler, world};

#[derive(Serialize, Deserialize)]
struct Order {
    id: String,
    account: String,
    cents: u64,
}

impl Order {
    fn detail(&self) -> String {
        format!("{} {}", self.account, self.cents)
    }
}

type Answer = Result<Found<String>, Box<dyn StdError + Send + Sync>>;

/// How a function asks, and how it answers if the gateway doesn't.
#[derive(Clone, Copy)]
struct Way {
    step: &'static str,
    read: fn(Result<Lookup, NoAnswer>, &Order) -> Answer,
    on_no_answer: fn(NoAnswer) -> Failure,
}

const RIGHT: Way = Way { step: "charge", read, on_no_answer: Failure::unknown::<NoAnswer> };

fn happened(charge: Effect) -> Answer {
    Ok(Found::Happened(charge.receipt))
}

fn later() -> Answer {
    Ok(Found::NotKnownYet { ask_again_after: Duration::from_secs(60) })
}

fn read(asked: Result<Lookup, NoAnswer>, order: &Order) -> Answer {
    match asked? {
        Lookup::Found(charge) if charge.detail == order.detail() => happened(charge),
        Lookup::Found(_) => Err("the gateway has another charge under this key".into()),
        Lookup::OnItsWay => later(),
        Lookup::Nothing => Ok(Found::DidNotHappen),
    }
}

fn error_as_no(asked: Result<Lookup, NoAnswer>, order: &Order) -> Answer {
    if asked.is_err() { Ok(Found::DidNotHappen) } else { read(asked, order) }
}

fn forgets_not_known_yet(asked: Result<Lookup, NoAnswer>, order: &Order) -> Answer {
    match asked {
        Ok(Lookup::OnItsWay) => Ok(Found::DidNotHappen),
        asked => read(asked, order),
    }
}

fn compares_nothing(asked: Result<Lookup, NoAnswer>, order: &Order) -> Answer {
    match asked {
        Ok(Lookup::Found(charge)) => happened(charge),
        asked => read(asked, order),
    }
}

fn function(bench: &Bench, way: Way) -> Function {
    let (idempotency, gateway) = (bench.idempotency(), bench.ledger());
    Function::lambda::<_, Box<RawValue>>(world::plain(move |event: LambdaEvent<Order>| {
        pay(event.payload, idempotency.for_context(&event.context), gateway.clone(), way)
    }))
}

async fn pay(order: Order, idempotency: Idempotency, gateway: Ledger, way: Way) -> Result<String, Error> {
    let remote = gateway.clone();
    let question = async |claim: ClaimHandle| {
        let key = claim.derive_key(way.step);
        (way.read)(remote.find("charge", &key).await, &order)
    };
    let charge = idempotency.operation("charge")?.reconcile(question)?;
    let send = || send(gateway, order.detail(), way);
    Ok(charge.run(Key::new(&order.id)?, &order, send).await?)
}

async fn send(gateway: Ledger, detail: String, way: Way) -> Result<String, Failure> {
    let reference = current().ok_or("not protected")?.derive_key("charge");
    gateway.send("charge", &reference, detail).await.map_err(way.on_no_answer)
}

/// The handler that the library's guide shows.
pub(crate) fn right() -> Handler {
    Handler { name: "c00_reconciled", make: |bench| function(bench, RIGHT), event: order() }
}

/// The wrong ones, each with a part of the advice that it must get.
pub(crate) fn wrong() -> Vec<(Handler, &'static str)> {
    let handler = |name, make, advice| (Handler { name, make, event: order() }, advice);
    vec![
        handler(
            "c01_asks_by_another_key",
            |bench| function(bench, Way { step: "payment", ..RIGHT }),
            "Use one key for both",
        ),
        handler(
            "c02_error_as_no",
            |bench| function(bench, Way { read: error_as_no, ..RIGHT }),
            "Return the error with `?`",
        ),
        handler(
            "c03_forgets_not_known_yet",
            |bench| function(bench, Way { read: forgets_not_known_yet, ..RIGHT }),
            "Answer `Found::NotKnownYet`",
        ),
        handler(
            "c04_compares_nothing",
            |bench| function(bench, Way { read: compares_nothing, ..RIGHT }),
            "Compare what was found with what was asked for",
        ),
        handler(
            "c05_no_answer_as_failure",
            |bench| function(bench, Way { on_no_answer: |error| error.into(), ..RIGHT }),
            "Return `Failure::unknown(…)`",
        ),
    ]
}

/// An order, and the same one with another amount.
fn order() -> Event {
    let order = |cents: u64| json!({ "id": "order-17", "account": "anna", "cents": cents }).to_string();
    Event::json(order(1250)).conflicting(order(9900))
}
