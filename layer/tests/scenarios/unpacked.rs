//! Tests the layer as Lambda runs it, as an extension with a wrapper script. Also tests that Lambda's trace id reaches
//! the function.

use std::{path::Path, time::Duration};

use lambda_idempotency_rehearsal::{
    answer::Answer as Posted, database::Database, event::Event, function, runs::Runs,
};
use serde_json::json;

use testkit::{ports::free_port, tools::tool, unpaused::unpaused};

use crate::{
    ledger::Ledger,
    play::TABLE,
    runtime::Runtime,
    sandbox::{Answer, Function, Mode, Sandbox, has_namespaces, scratch},
};

async fn environment(database: &Database, ledger: &Ledger) -> Vec<(String, String)> {
    database.create_idempotency_table(TABLE).await.unwrap();
    [
        ("AWS_ENDPOINT_URL_DYNAMODB", database.endpoint().to_string()),
        ("LEDGER", ledger.file().display().to_string()),
        ("IDEMPOTENCY_TABLE", TABLE.into()),
        ("IDEMPOTENCY_KEY", "/id".into()),
        ("IDEMPOTENCY_PORT", free_port().to_string()),
        ("IDEMPOTENCY_REQUIRED", "1".into()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

async fn extension_replays(mode: Mode) {
    if tool("aws-lambda-rie").is_none() || !Runtime::Go.is_installed() || !has_namespaces() {
        return;
    }
    let database = Database::embedded().await.unwrap();
    let ledger = Ledger::new(scratch().join("ledger"));
    let sandbox = Sandbox::start(&Function {
        runtime: Runtime::Go,
        mode,
        handler: "handler",
        layer: "/opt/idempotency-wrapper ".into(),
        is_unpacked: true,
        timeout: 120,
        environment: environment(&database, &ledger).await,
    })
    .await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        match sandbox.invoke(br#"{"id":"order-1","do":"effect"}"#, &[]).await {
            Answer::Payload(bytes) => answers.push(bytes),
            other => panic!("{other:?}\n{}\n{}", sandbox.output(), sandbox.log()),
        }
    }
    assert_eq!((&answers[0], &answers[0]), (&answers[1], &answers[2]));
    assert_eq!(ledger.effects("order-1"), 1);
    assert!(sandbox.log().contains("idempotency"), "the emulator started no extension: {}", sandbox.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_replays_in_an_on_demand_function() {
    extension_replays(Mode::OnDemand).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extension_replays_on_managed_instances() {
    extension_replays(Mode::ManagedInstances).await;
}

/// Starts a sandbox with the layer unpacked, and invokes the function once. Waits until the emulator's log contains
/// `expected`. The extension writes to this log.
///
/// # Errors
///
/// The answer and the logs, without `expected`.
async fn logged(layer: &str, required: &str, event: &[u8], expected: &str) -> Result<(), String> {
    if tool("aws-lambda-rie").is_none() || !Runtime::Python.is_installed() || !has_namespaces() {
        return Ok(());
    }
    let database = Database::embedded().await.unwrap();
    let ledger = Ledger::new(scratch().join("ledger"));
    let mut environment = environment(&database, &ledger).await;
    environment.retain(|(name, _)| name != "IDEMPOTENCY_REQUIRED");
    environment.push(("IDEMPOTENCY_REQUIRED".into(), required.into()));
    let sandbox = Sandbox::start(&Function {
        runtime: Runtime::Python,
        mode: Mode::OnDemand,
        handler: "handler",
        layer: layer.into(),
        is_unpacked: true,
        timeout: 600,
        environment,
    })
    .await;
    let answer = sandbox.invoke(event, &[]).await;
    for _ in 0..500 {
        let log = sandbox.log() + &sandbox.output();
        if log.contains(expected) {
            return Ok(());
        }
        lambda_idempotency_rehearsal::clock::pause(Duration::from_millis(20)).await;
    }
    Err(format!("{answer:?}\n{}\n{}", sandbox.output(), sandbox.log()))
}

#[tokio::test(flavor = "multi_thread")]
async fn emulator_shows_the_extension_a_bypassed_runtime() {
    let event = br#"{"id":"order-1","do":"effect"}"#;
    logged("", "0", event, "its runtime never sent the layer a request").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn emulator_shows_the_extension_a_crash() {
    let layer = "/opt/idempotency-wrapper ";
    let crash = br#"{"id":"order-1","do":"exit:1"}"#;
    let expected = "the handler's process ended without an answer: the key is free within";
    // The layer has only moments to change the record.
    unpaused(async || logged(layer, "1", crash, expected).await, Result::is_ok).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_id_reaches_the_function() {
    if !Runtime::Python.is_installed() {
        return;
    }
    let database = Database::embedded().await.unwrap();
    let folder = scratch();
    let ledger = Ledger::new(folder.join("ledger"));
    let script = folder.join("start");
    let layer = format!("{} -- ", env!("CARGO_BIN_EXE_idempotency-extension"));
    std::fs::write(&script, Runtime::Python.command("handler", &layer)).unwrap();
    let environment = environment(&database, &ledger).await;
    let environment: Vec<(&'static str, String)> =
        environment.into_iter().map(|(name, value)| (&*name.leak(), value)).chain(credentials()).collect();
    let answer = deliver(&script, &environment).await;
    let Posted::Payload(bytes) = answer else { panic!("{answer}") };
    let answer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let trace = answer["context"]["trace"].as_str().unwrap_or_default();
    assert!(trace.starts_with("Root=1-") && trace.ends_with(";Sampled=0"), "{answer}");
}

fn credentials() -> [(&'static str, String); 3] {
    use lambda_idempotency_rehearsal::database::{ACCESS_KEY, REGION};
    [
        ("AWS_REGION", REGION.into()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
    ]
}

/// Delivers an event through the rehearsal's Runtime API, which sends a trace id as Lambda does.
async fn deliver(script: &Path, environment: &[(&'static str, String)]) -> Posted {
    let function = function::Function::from_command(&format!("sh {}", script.display()), None).unwrap();
    let mut sandbox = function::Sandbox::start(&function, environment, Runs::default()).await.unwrap();
    let event = Event::new(json!({ "id": "order-1", "do": "context" }));
    let delivery = sandbox.deliver(&event, Duration::from_secs(20));
    sandbox.answer(delivery).await
}
