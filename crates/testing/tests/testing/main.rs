//! The testing kit: the bench, its faults, the ledger, `survive` and `key_of`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by a panic, and shows what it measured"
)]
#![allow(clippy::disallowed_methods, reason = "the handlers sleep, and a test measures the kit's speed")]

mod bench;
mod drawn;
mod faults;
mod sources;
mod survival;

use lambda_idempotency::{Idempotency, Key, current};
use lambda_idempotency_testing::{Bench, Function, Ledger};
use serde_json::Value;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Charges at the payment gateway, with a key derived from the operation's key.
async fn charge_with_key(ledger: &Ledger, order: &Value) -> Result<String, Error> {
    let key = current().ok_or("not protected")?.derive_key("charge");
    Ok(ledger.call("charge", Some(&key), &order["cents"]).await?)
}

/// Charges at the payment gateway, without a key.
async fn charge_without_key(ledger: &Ledger, order: &Value) -> Result<String, Error> {
    Ok(ledger.call("charge", None, &order["cents"]).await?)
}

/// Runs an operation whose key is the order's id. `has_key` says whether the operation sends the payment gateway a key.
async fn pay(
    idempotency: &Idempotency,
    ledger: &Ledger,
    order: &Value,
    has_key: bool,
) -> Result<String, Error> {
    let key = Key::new(order["id"].as_str().unwrap_or_default())?;
    let charge = || async {
        if has_key { charge_with_key(ledger, order).await } else { charge_without_key(ledger, order).await }
    };
    Ok(idempotency.operation("pay")?.run(key, order, charge).await?)
}

fn function(bench: &Bench, has_key: bool) -> Function {
    function_of(bench.idempotency(), bench.ledger(), has_key)
}

fn function_of(idempotency: Idempotency, ledger: Ledger, has_key: bool) -> Function {
    Function::new(move |order: Value| {
        let (idempotency, ledger) = (idempotency.clone(), ledger.clone());
        async move { pay(&idempotency, &ledger, &order, has_key).await }
    })
}

/// Returns a function that pays, and sends the payment gateway a derived key.
fn safe(bench: &Bench) -> Function {
    function(bench, true)
}

/// Returns a function that pays, and sends the payment gateway no key.
fn unsafe_one(bench: &Bench) -> Function {
    function(bench, false)
}

const ORDER: &str = r#"{"id":"order-17","cents":1250}"#;
const OTHER: &str = r#"{"id":"order-18","cents":990}"#;
const DEARER: &str = r#"{"id":"order-17","cents":1300}"#;
