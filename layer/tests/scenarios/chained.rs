//! Tests the layer with another proxy between Lambda and the layer, and between the layer and the function.
//!
//! The other proxy is the layer's own program, switched off. `RUNTIME_API_PROXY` can name a different program, which
//! must listen on `LRAP_LISTENER_PORT`, like AWS's example in Go (`aws-samples/aws-lambda-extensions`).

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use lambda_idempotency_rehearsal::database::Database;

use testkit::{ports::free_port, tools::tool};

use crate::{
    ledger::Ledger,
    play::TABLE,
    runtime::Runtime,
    sandbox::{Answer, Function, Mode, Sandbox, scratch},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_idempotency-extension");
const WRAPPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/idempotency-wrapper");

/// Writes the script that starts the other proxy in front of a command.
fn other_proxy(folder: &Path) -> String {
    let script = folder.join("other-proxy");
    let start = match std::env::var("RUNTIME_API_PROXY") {
        Ok(program) => {
            let port = free_port();
            format!(
                "LRAP_RUNTIME_API_ENDPOINT=$AWS_LAMBDA_RUNTIME_API LRAP_LISTENER_PORT={port} {program} &\n\
                 sleep 2\nAWS_LAMBDA_RUNTIME_API=127.0.0.1:{port} exec \"$@\"\n"
            )
        }
        Err(_) => format!("exec env IDEMPOTENCY_MODE=off {PROGRAM} -- env -u IDEMPOTENCY_MODE \"$@\"\n"),
    };
    fs::write(&script, format!("#!/bin/sh\necho the other proxy starts\n{start}")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

/// Delivers an event twice to a function behind both proxies, and checks that the second delivery is a replay.
async fn replays(layer: impl Fn(&str) -> String, settings: &[(&str, &str)]) {
    // AWS's example sends each header twice, and 200 where Lambda sends 202. Only Node's client accepts that.
    let is_the_example = std::env::var_os("RUNTIME_API_PROXY").is_some();
    let runtime = if is_the_example { Runtime::Node } else { Runtime::Python };
    if tool("aws-lambda-rie").is_none() || !runtime.is_installed() {
        return;
    }
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    let folder = scratch();
    let ledger = Ledger::new(folder.join("ledger"));
    let other = other_proxy(&folder);
    let mut environment: Vec<(String, String)> = vec![
        ("AWS_ENDPOINT_URL_DYNAMODB".into(), database.endpoint().to_string()),
        ("LEDGER".into(), ledger.file().display().to_string()),
        ("IDEMPOTENCY_TABLE".into(), TABLE.into()),
        ("IDEMPOTENCY_KEY".into(), "/id".into()),
    ];
    environment.extend(settings.iter().map(|(name, value)| ((*name).into(), value.replace("OTHER", &other))));
    let function = Function {
        runtime,
        mode: Mode::OnDemand,
        handler: "handler",
        layer: layer(&other),
        is_unpacked: false,
        timeout: 20,
        environment,
    };
    let sandbox = Sandbox::start(&function).await;
    let mut answers = Vec::new();
    for _ in 0..2 {
        match sandbox.invoke(br#"{"id":"order-1","do":"effect"}"#, &[]).await {
            Answer::Payload(bytes) => answers.push(bytes),
            other => panic!("{other:?}\n{}\n{}", sandbox.output(), sandbox.log()),
        }
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!((ledger.runs("order-1"), ledger.effects("order-1")), (1, 1));
    assert!(sandbox.output().contains("the other proxy starts"), "{}", sandbox.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_proxy_can_be_before_the_layer() {
    replays(|other| format!("{other} {PROGRAM} -- "), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_proxy_can_be_behind_the_layer() {
    let settings = [("IDEMPOTENCY_EXTENSION", PROGRAM), ("IDEMPOTENCY_WRAPPER", "OTHER")];
    replays(|_| format!("{WRAPPER} "), &settings).await;
}
