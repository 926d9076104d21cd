//! Tests the layer with another proxy, which is either between Lambda and the layer, or between the layer and the
//! function.
//!
//! The other proxy is a second process of the layer's program, switched off. If both proxies are extensions, the other
//! proxy is the script `other-proxy`. `RUNTIME_API_PROXY` can name a different program, which must listen on
//! `LRAP_LISTENER_PORT`, like AWS's example in Go (`aws-samples/aws-lambda-extensions`).

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use lambda_idempotency_rehearsal::database::Database;

use testkit::{ports::free_port, tools::tool};

use crate::{
    ledger::Ledger,
    play::TABLE,
    runtime::Runtime,
    sandbox::{Answer, Function, Mode, Sandbox, has_namespaces, scratch},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_idempotency-extension");
const WRAPPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/idempotency-wrapper");

/// The other proxy as an extension in Python.
const OTHER_EXTENSION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/other-proxy");

/// Writes a script to the file `script`, and returns the file's path. The script reports that the other proxy starts,
/// and then runs `text`.
fn write(script: &Path, text: &str) -> String {
    fs::write(script, format!("#!/bin/sh\necho the other proxy starts\n{text}")).unwrap();
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

/// Returns the path of the program that runs the other proxy as an extension. The proxy listens on `OTHER_PORT`, and
/// passes requests on to the Runtime API at `OTHER_UPSTREAM`.
fn other_extension(folder: &Path) -> String {
    let Ok(program) = std::env::var("RUNTIME_API_PROXY") else { return OTHER_EXTENSION.into() };
    // The extension registers under its program's name, which must also be the name of this script's file.
    let script = folder.join(Path::new(&program).file_name().unwrap());
    let text = format!(
        "export LRAP_RUNTIME_API_ENDPOINT=${{OTHER_UPSTREAM:-$AWS_LAMBDA_RUNTIME_API}} LRAP_LISTENER_PORT=$OTHER_PORT\n\
         exec {program}\n"
    );
    write(&script, &text)
}

/// Writes the script that starts the other proxy in front of a command.
fn other_proxy(folder: &Path) -> String {
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
    write(&folder.join("other-proxy"), &start)
}

/// Delivers an event twice to a function behind both proxies, and checks that the second delivery is a replay. With
/// `polls`, both proxies are extensions, and the other proxy must pass on this many polls.
///
/// `layer` gets the path of the other proxy, and returns the command in front of the function's command. In the values
/// of `settings`, `OTHER` stands for the same path.
async fn replays(layer: impl Fn(&str) -> String, polls: Option<usize>, settings: &[(&str, &str)]) {
    // AWS's example sends each header twice, and 200 where Lambda sends 202. Only Node's client accepts that.
    let is_the_example = std::env::var_os("RUNTIME_API_PROXY").is_some();
    let is_unpacked = polls.is_some();
    let runtime = if is_the_example { Runtime::Node } else { Runtime::Python };
    if tool("aws-lambda-rie").is_none() || !runtime.is_installed() || is_unpacked && !has_namespaces() {
        return;
    }
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    let folder = scratch();
    let ledger = Ledger::new(folder.join("ledger"));
    let other = if is_unpacked { other_extension(&folder) } else { other_proxy(&folder) };
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
        is_unpacked,
        timeout: 120,
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
    let output = sandbox.output() + &sandbox.log();
    assert!(output.contains("the other proxy starts"), "{output}");
    if let Some(polls) = polls.filter(|_| !is_the_example) {
        let passed = output.matches("the other proxy passed /2018-06-01/runtime/invocation/next").count();
        assert_eq!(passed, polls, "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_works_behind_another_proxy() {
    replays(|other| format!("{other} {PROGRAM} -- "), None, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_works_in_front_of_another_proxy() {
    let settings = [("IDEMPOTENCY_EXTENSION", PROGRAM), ("IDEMPOTENCY_WRAPPER", "OTHER")];
    replays(|_| format!("{WRAPPER} "), None, &settings).await;
}

/// The other proxy passes on two polls, since the layer gets both events through it.
#[tokio::test(flavor = "multi_thread")]
async fn layer_works_behind_another_extension() {
    let [ours, others] = [free_port(), free_port()].map(|port| port.to_string());
    let upstream = format!("127.0.0.1:{others}");
    let chain = [("OTHER_PORT", others.as_str()), ("IDEMPOTENCY_UPSTREAM", &upstream)];
    extensions_replay(2, &ours, &chain).await;
}

/// The other proxy passes on one poll, since the layer hands only the first event to the function.
#[tokio::test(flavor = "multi_thread")]
async fn layer_works_in_front_of_another_extension() {
    let [ours, others] = [free_port(), free_port()].map(|port| port.to_string());
    let upstream = format!("127.0.0.1:{ours}");
    let folder = scratch();
    let wrapper = folder.join("wrapper");
    let wrapper = write(&wrapper, &format!("AWS_LAMBDA_RUNTIME_API=127.0.0.1:{others} exec \"$@\"\n"));
    let chain =
        [("OTHER_PORT", others.as_str()), ("OTHER_UPSTREAM", &upstream), ("IDEMPOTENCY_WRAPPER", &wrapper)];
    extensions_replay(1, &ours, &chain).await;
}

/// Calls [`replays`] with both proxies as extensions. `port` is the port of the layer.
async fn extensions_replay(polls: usize, port: &str, chain: &[(&str, &str)]) {
    let settings = [("OTHER_EXTENSION", "OTHER"), ("IDEMPOTENCY_PORT", port), ("IDEMPOTENCY_REQUIRED", "1")];
    replays(|_| "/opt/idempotency-wrapper ".into(), Some(polls), &[&settings, chain].concat()).await;
}
