//! Tests `cargo rehearse --function` on each kind of function. The rehearsal raises no false alarm, and reports
//! mistakes in the function and in the options.

use std::{convert::Infallible, env, fs, path::PathBuf};

use example_functions::Telemetry;
use lambda_http::{Body, Request, Response};
use lambda_idempotency::{
    Failure, Idempotency, Key,
    lambda::batch::{KinesisRecord, SqsMessage},
    settings::Execution,
    staging,
    store::dynamodb::Transaction,
};
use lambda_idempotency_rehearsal::{self as rehearsal, Arguments};
use lambda_runtime::{
    Error, LambdaEvent, run,
    tower::{ServiceBuilder, service_fn},
    tracing,
};
use serde_json::{Value, json};

use super::stage::project;

const MARK: &str = "a rehearsed handler runs";

/// Runs this program as a function of the kind that the variable `KIND` names.
#[tokio::test]
#[ignore = "not a test: other tests start it as a function"]
async fn as_a_function() {
    if env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        serve(&env::var("KIND").unwrap()).await.unwrap();
    }
}

async fn serve(kind: &str) -> Result<(), Error> {
    let _telemetry = Telemetry::start()?;
    let (kind, execution) = match kind.strip_suffix("-at-most-once") {
        Some(kind) => (kind, Execution::AtMostOnce),
        None => (kind, Execution::AtLeastOnce),
    };
    let idempotency = Idempotency::builder_from_env().await?.execution(execution).build()?;
    let worker = ServiceBuilder::new();
    match kind {
        "http" => {
            let handler = service_fn(async |_: Request| {
                tracing::info!("{MARK}");
                Ok::<_, Infallible>(Response::new(Body::Text("paid".to_owned())))
            });
            lambda_idempotency::lambda::http::run(worker.layer(idempotency.http()).service(handler)).await
        }
        "event" | "event-by-request" | "transaction" => {
            let field = if kind == "event-by-request" { "/requestContext/requestId" } else { "/id" };
            let key = move |event: &Value| {
                Key::new(event.pointer(field).and_then(Value::as_str).unwrap_or_default())
            };
            let is_staged = kind == "transaction";
            let handler = service_fn(move |_: LambdaEvent<Value>| async move {
                tracing::info!("{MARK}");
                if is_staged {
                    stage()?;
                }
                Ok::<_, Error>("done")
            });
            run(worker.layer(idempotency.events(key)).service(handler)).await
        }
        "sqs" => {
            run(worker.service(idempotency.sqs(SqsMessage::message_key, async |_| {
                tracing::info!("{MARK}");
                Ok::<_, Failure>(())
            })))
            .await
        }
        _ => {
            run(worker.service(idempotency.kinesis(KinesisRecord::sequence_key, async |_| {
                tracing::info!("{MARK}");
                Ok::<_, Failure>(())
            })))
            .await
        }
    }
}

/// Stages a write of another item into the table of records, which is the test's only table.
fn stage() -> Result<(), Error> {
    use aws_sdk_dynamodb::types::{AttributeValue, Update};
    let update = Update::builder()
        .table_name(env::var("IDEMPOTENCY_TABLE")?)
        .key("id", AttributeValue::S("effects".to_owned()))
        .update_expression("ADD n :one")
        .expression_attribute_values(":one", AttributeValue::N("1".to_owned()));
    staging().ok_or("the run is unprotected")?.add(Transaction::new().update(update.build()?))?;
    Ok(())
}

fn command(kind: &str) -> String {
    let program = env::current_exe().unwrap();
    format!("env KIND={kind} {} --ignored --nocapture --exact rehearsed::as_a_function", program.display())
}

/// Writes the event into its own file.
fn file(name: &str, event: &Value) -> PathBuf {
    let path = env::temp_dir().join(format!("rehearsed-{}-{name}.json", std::process::id()));
    fs::write(&path, event.to_string()).unwrap();
    path
}

async fn faults(kind: &str, event: &Value, options: &[&str]) -> Vec<String> {
    let (command, path) = (command(kind), file(&format!("{kind}-{}", options.len()), event));
    let base = ["--function", &command, "--event", path.to_str().unwrap(), "--count-runs", MARK];
    let arguments = Arguments::parse(&[&base[..], options].concat()).unwrap();
    let faults = rehearsal::faults(&arguments).await.unwrap();
    fs::remove_file(path).unwrap();
    faults
}

fn sample(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(project().join("events").join(name)).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_once_functions_raise_no_false_alarm() {
    let request = sample("payments/http-api.json");
    let expected = ["--expect", "at-most-once"];
    assert_eq!(faults("http-at-most-once", &request, &expected).await, [""; 0]);
    let event = json!({ "id": "order-17" });
    assert_eq!(faults("event-at-most-once", &event, &expected).await, [""; 0]);
    // The rehearsal reports a wrong expectation, and says what to do.
    let alarms = faults("http-at-most-once", &request, &[]).await;
    assert!(alarms.iter().any(|fault| fault.contains("add --expect at-most-once")), "{alarms:#?}");
    let alarms = faults("http", &request, &expected).await;
    assert!(alarms.iter().any(|fault| fault.contains("OutcomeUnknown")), "{alarms:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_raise_no_false_alarm() {
    let order = json!({ "order_id": "order-17" });
    let (sqs, kinesis) = (sample("orders/sqs.json"), sample("sources/kinesis.json"));
    for (kind, event, options) in [
        ("sqs", &order, &["--batch", "sqs"][..]),
        ("sqs", &sqs, &["--batch", "sqs"]),
        ("sqs", &order, &["--batch", "fifo"]),
        ("kinesis", &kinesis, &["--batch", "kinesis"]),
        ("sqs-at-most-once", &order, &["--batch", "sqs", "--expect", "at-most-once"]),
    ] {
        assert_eq!(faults(kind, event, options).await, [""; 0], "{kind} {options:?}");
    }
}

/// The shell stays the function's parent process, as with a `bootstrap` that doesn't `exec`, or with `npm start`.
#[tokio::test(flavor = "multi_thread")]
async fn wrapped_functions_raise_no_false_alarm() {
    let (script, path) =
        (format!("{}; exit $?", command("event")), file("wrapped", &json!({ "id": "order-17" })));
    let base = ["--event", path.to_str().unwrap(), "--count-runs", MARK, "--", "sh", "-c", &script];
    let faults = rehearsal::faults(&Arguments::parse(&base).unwrap()).await.unwrap();
    assert_eq!(faults, [""; 0]);
    fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_transactions_raise_an_alarm() {
    let event = json!({ "id": "order-17" });
    assert_eq!(faults("transaction", &event, &["--transactional"]).await, [""; 0]);
    let alarms = faults("event", &event, &["--transactional"]).await;
    assert!(alarms.iter().any(|fault| fault.contains("not by a transaction")), "{alarms:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_with_changed_events_raise_alarms() {
    let again = file("sent-again", &json!({ "id": "order-17", "sent_at": 2 }));
    let context = json!({ "requestId": "UQmzMhYdliAEJTw=" });
    let request = json!({ "id": "order-17", "httpMethod": "POST", "requestContext": context });
    let sent = json!({ "id": "order-17", "sent_at": 1 });
    let options = ["--again", again.to_str().unwrap()];
    let (renewed, resent) =
        tokio::join!(faults("event-by-request", &request, &[]), faults("event", &sent, &options));
    fs::remove_file(&again).unwrap();
    let ran_again = |fault: &String| {
        fault.starts_with("2 duplicate after completion")
            && fault.contains("the handler ran once (expected 0)")
    };
    assert!(renewed.iter().any(ran_again), "{renewed:#?}");
    let refused = |fault: &String| {
        fault.starts_with("2 duplicate after completion") && fault.contains("Idempotency.Mismatch")
    };
    assert!(resent.iter().any(refused), "{resent:#?}");
}
