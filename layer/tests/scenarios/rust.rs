//! The function under test, in Rust: this program, started as a function. See ../runtimes/README.md.

use std::{env, fs, io::Write as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lambda_idempotency_rehearsal::clock;
use lambda_runtime::{Context, Diagnostic, LambdaEvent, run, service_fn};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

/// Runs this program as a Lambda function.
#[tokio::test]
#[ignore = "not a test: other tests start it as their function"]
async fn as_a_function() {
    if env::var_os("AWS_LAMBDA_RUNTIME_API").is_none() {
        return;
    }
    match env::var("INIT").as_deref() {
        Ok("error") => panic!("the function can't start"),
        Ok("exit") => std::process::exit(7),
        _ => run(service_fn(handle)).await.unwrap(),
    }
}

fn ledger() -> String {
    env::var("LEDGER").unwrap()
}

/// Appends a line in one write, which a kill can't halve or undo.
fn note(what: &str, key: &str, run: &str) {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(ledger()).unwrap();
    file.write_all(format!("{what} {key} {run}\n").as_bytes()).unwrap();
}

fn runs(key: &str) -> usize {
    let beginning = format!("run {key} ");
    fs::read_to_string(ledger()).unwrap().lines().filter(|line| line.starts_with(&beginning)).count()
}

async fn handle(event: LambdaEvent<Value>) -> Result<Value, Diagnostic> {
    let LambdaEvent { payload, context } = event;
    let run = format!("{}/{}", context.request_id, std::process::id());
    if let Some(records) = payload["Records"].as_array() {
        return batch(records, &run, &context).await;
    }
    if payload.get("requestContext").is_none() {
        return play(&payload, &run, &context).await;
    }
    let body = payload["body"].as_str().unwrap_or("{}");
    let body = match payload["isBase64Encoded"].as_bool() {
        Some(true) => STANDARD.decode(body).unwrap(),
        _ => body.as_bytes().to_vec(),
    };
    Ok(http(play(&serde_json::from_slice(&body).unwrap(), &run, &context).await?))
}

async fn play(order: &Value, run: &str, context: &Context) -> Result<Value, Diagnostic> {
    let key = order["id"].as_str().unwrap_or_default();
    note("run", key, run);
    let mut answer = json!({ "id": key, "run": run });
    for step in order["do"].as_str().unwrap_or("effect").split_whitespace() {
        let step = match step.strip_prefix("first-") {
            Some(_) if runs(key) > 1 => continue,
            first => first.unwrap_or(step),
        };
        let words: Vec<&str> = step.split(':').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
        match words[0] {
            "effect" => note("effect", key, run),
            "sleep" => clock::pause(Duration::from_millis(number(1).unwrap_or(0) as u64)).await,
            "error" => {
                let message =
                    number(2).map_or_else(|| "as the event asks".to_owned(), |length| "x".repeat(length));
                return Err(Diagnostic { error_type: words[1].to_owned(), error_message: message });
            }
            "exit" => std::process::exit(number(1).unwrap_or(0) as i32),
            "kill" => {
                let _ = kill_process(getpid(), Signal::KILL);
                clock::pause(Duration::from_secs(60)).await;
            }
            "big" => answer["pad"] = "x".repeat(number(1).unwrap_or(0)).into(),
            "context" => answer["context"] = about(context),
            "see" => answer["see"] = order[words[1]].clone(),
            "text" => answer["text"] = true.into(),
            "status" => answer["status"] = number(1).into(),
            other => panic!("unknown step: {other}"),
        }
    }
    Ok(answer)
}

fn about(context: &Context) -> Value {
    json!({
        "request_id": context.request_id,
        "arn": context.invoked_function_arn,
        "tenant": context.tenant_id,
        "trace": context.xray_trace_id,
        "client": context.client_context.as_ref().map(|client| &client.custom),
        "identity": context.identity.as_ref().map(|identity| &identity.identity_id),
        "has_time_left": context.deadline > clock::now_ms(),
    })
}

fn http(mut answer: Value) -> Value {
    let fields = answer.as_object_mut().unwrap();
    let status = fields.remove("status").unwrap_or_else(|| 201.into());
    let (kind, body) = match fields.remove("text") {
        Some(_) => ("text/plain", format!("run {}", fields["run"].as_str().unwrap())),
        None => ("application/json", answer.to_string()),
    };
    json!({ "statusCode": status, "headers": { "content-type": kind }, "body": body })
}

async fn batch(records: &[Value], run: &str, context: &Context) -> Result<Value, Diagnostic> {
    let is_whole = env::var_os("WHOLE").is_some();
    let mut failures = Vec::new();
    for record in records {
        let is_ordered =
            record["eventSource"] != "aws:sqs" || record.pointer("/attributes/MessageGroupId").is_some();
        let (name, order) = opened(record);
        if is_ordered && !failures.is_empty() {
            failures.push(json!({ "itemIdentifier": name }));
            continue;
        }
        match play(&order, run, context).await {
            Ok(_) => {}
            Err(error) if is_whole => return Err(error),
            Err(_) => failures.push(json!({ "itemIdentifier": name })),
        }
    }
    Ok(if is_whole { Value::Null } else { json!({ "batchItemFailures": failures }) })
}

/// Returns the `itemIdentifier` of the record in a partial failure, and the order in the record's payload.
fn opened(record: &Value) -> (Value, Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if let Some(kinesis) = record.get("kinesis") {
        let order = serde_json::from_slice(&STANDARD.decode(text(&kinesis["data"])).unwrap()).unwrap();
        return (kinesis["sequenceNumber"].clone(), order);
    }
    if let Some(image) = record.get("dynamodb") {
        let field = |name: &str| image["NewImage"][name]["S"].clone();
        return (image["SequenceNumber"].clone(), json!({ "id": field("id"), "do": field("do") }));
    }
    (record["messageId"].clone(), serde_json::from_str(&text(&record["body"])).unwrap())
}
