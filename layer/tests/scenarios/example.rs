//! Runs the functions of `layer/example` as Lambda would: with the settings of the example's template, and with the
//! wrapper script in front of the official clients.

use std::fs;

use lambda_idempotency_rehearsal::{database::Database, event::Event};
use serde_json::Value;

use testkit::tools::tool;

use crate::{
    play::TABLE,
    runtime::{Runtime, project},
    sandbox::{Answer, Function, Mode, Sandbox},
};

/// Reads the `IDEMPOTENCY_` settings of a function from the template's text. This works because no value has an
/// intrinsic function such as `!Ref`.
fn settings_of(function: &str) -> Vec<(String, String)> {
    let template = fs::read_to_string(project().join("layer/example/template.yaml")).unwrap();
    let from = template.find(&format!("\n  {function}:\n")).expect("the template has the function");
    let lines =
        template[from..].lines().skip(2).take_while(|line| line.is_empty() || line.starts_with("    "));
    let settings = lines
        .filter_map(|line| line.trim().split_once(": ").filter(|(name, _)| name.starts_with("IDEMPOTENCY_")));
    settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Delivers these events to the example's function, and returns its answers and its output.
async fn deliver(function: &str, runtime: Runtime, folder: &str, events: &[&str]) -> (Vec<Value>, String) {
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    let mut environment = settings_of(function);
    assert!(environment.len() >= 2, "the template has too few settings for {function}: {environment:?}");
    environment.extend([
        ("IDEMPOTENCY_TABLE".into(), TABLE.into()),
        ("AWS_ENDPOINT_URL_DYNAMODB".into(), database.endpoint().to_string()),
        ("IDEMPOTENCY_EXTENSION".into(), env!("CARGO_BIN_EXE_idempotency-extension").into()),
        ("CODE".into(), project().join("layer/example").join(folder).display().to_string()),
    ]);
    let layer = format!("{}/layer/idempotency-wrapper ", project().display());
    let function = Function {
        runtime,
        mode: Mode::OnDemand,
        handler: "handler",
        layer,
        is_unpacked: false,
        timeout: 120,
        environment,
    };
    let sandbox = Sandbox::start(&function).await;
    let mut answers = Vec::new();
    for event in events {
        let event = Event::read(&project().join("events").join(format!("{event}.json"))).unwrap();
        match sandbox.invoke(&event.bytes(), &[]).await {
            Answer::Payload(bytes) => answers.push(serde_json::from_slice(&bytes).unwrap()),
            other => panic!("{other:?}\n{}", sandbox.output()),
        }
    }
    (answers, sandbox.output())
}

#[tokio::test(flavor = "multi_thread")]
async fn example_in_python_pays_once() {
    if tool("aws-lambda-rie").is_none() || !Runtime::Python.is_installed() {
        return;
    }
    let events = ["payments/http-api", "payments/http-api-again"];
    let (answers, written) = deliver("PaymentsFunction", Runtime::Python, "payments", &events).await;
    for answer in &answers {
        println!("POST /payments: {} {} {}", answer["statusCode"], answer["headers"], answer["body"]);
    }
    assert_eq!(answers[0]["statusCode"], 201);
    assert_eq!(answers[0]["body"], answers[1]["body"]);
    assert_eq!(answers[1]["headers"]["idempotent-replayed"], "true");
    assert_eq!(written.matches("creating payment").count(), 1, "{written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn example_in_node_ships_each_order_once() {
    if tool("aws-lambda-rie").is_none() || !Runtime::Node.is_installed() {
        return;
    }
    let events = ["orders/sqs", "orders/sqs-again"];
    let (answers, written) = deliver("OrdersFunction", Runtime::Node, "orders", &events).await;
    println!("the batch, twice: {answers:?}");
    let shipped = || written.lines().filter_map(|line| line.split("shipping order ").nth(1));
    let mut orders: Vec<_> = shipped().collect();
    println!("shipped: {orders:?}");
    orders.sort_unstable();
    orders.dedup();
    assert!(!orders.is_empty());
    assert_eq!(shipped().count(), orders.len(), "{written}");
    assert!(
        answers.iter().all(|answer| answer["batchItemFailures"].as_array().is_none_or(Vec::is_empty)),
        "{answers:?}"
    );
}
