//! The program's log in Lambda's JSON format.

use std::process::Stdio;

use super::{
    bench::{Function, Lambda, PATIENCE, posted, program},
    process::{on_table, table},
    settings::delivered,
};

/// The lines of a log in Lambda's JSON format, without the metrics. Checks what Lambda needs in each line.
fn json_lines(log: &str) -> Vec<serde_json::Value> {
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")));
    let lines: Vec<serde_json::Value> =
        lines.filter(|line: &serde_json::Value| line.get("_aws").is_none()).collect();
    for line in &lines {
        let text = |name: &str| line[name].as_str().unwrap_or_else(|| panic!("no {name} in {line}"));
        assert!(text("timestamp").ends_with('Z') && text("timestamp").contains('T'), "{line}");
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&text("level")), "{line}");
        assert!(!text("message").is_empty(), "{line}");
    }
    lines
}

/// "Why did the function not run for this request?" has its answer in the log, and the AWS SDK adds nothing.
#[tokio::test]
async fn replays_and_refusals_are_logged_once() {
    let (_database, wire) = table().await;
    let endpoint = wire.endpoint();
    for level in ["INFO", "DEBUG"] {
        let lambda = Lambda::start().await;
        let json =
            [("AWS_LAMBDA_LOG_FORMAT", "JSON"), ("AWS_LAMBDA_LOG_LEVEL", level), ("RUST_LOG", "trace")];
        let function = Function::start(&lambda, &[&on_table(&endpoint)[..], &json].concat()).await;
        let id = level.len();
        let http = r#"{"requestContext": {"http": {}}, "headers": {}}"#.to_owned();
        for (event, expected) in [
            (format!(r#"{{"id": {id}}}"#), None),
            (format!(r#"{{"id": {id}}}"#), Some(("replayed", "", true))),
            (format!(r#"{{"id": {id}, "other": 1}}"#), Some(("refused", "Mismatch", true))),
            ("{}".to_owned(), Some(("refused", "MissingKey", false))),
            ("no JSON".to_owned(), Some(("refused", "MissingKey", false))),
            (http, Some(("refused", "Invalid", false))),
        ] {
            let waiting = lambda.deliver(&event);
            if expected.is_none() {
                function.respond(&function.next().await, "1").await;
            } else {
                assert!(function.gets_nothing().await, "{event}");
            }
            posted(waiting).await;
            let lines = json_lines(&function.log());
            let is_of_last = |line: &&serde_json::Value| line["requestId"] == *lambda.last_request();
            let told: Vec<_> =
                lines.iter().filter(is_of_last).filter(|line| line["level"] == "INFO").collect();
            let Some((name, kind, has_id)) = expected else {
                assert!(told.is_empty(), "{told:?}");
                continue;
            };
            let [line] = told.as_slice() else { panic!("{event}: {told:?} in {lines:?}") };
            assert_eq!(
                (line["event"].as_str(), line["kind"].as_str().unwrap_or_default()),
                (Some(name), kind)
            );
            assert_eq!(line["id"].as_str().is_some_and(|id| id.starts_with("f/event#")), has_id, "{line}");
        }
        let lines = json_lines(&function.log());
        assert!(lines.len() < 30, "{} lines at {level}: {lines:?}", lines.len());
    }
}

/// `idempotency why --describe` reads the first line of the log.
#[tokio::test]
async fn first_line_describes_the_keys() {
    use lambda_idempotency::lambda::Description;
    let order = r#"{"id": 1}"#;
    let message = |source: &str, body: &str| {
        serde_json::json!({ "Records": [{
            "messageId": "m-1", "body": body, "eventSource": source, "eventSourceARN": "arn:aws:sqs:eu-west-1:1:q",
        }] })
        .to_string()
    };
    const IDENTITY: &str = "/requestContext/authorizer/iam/userId";
    let mut request = testkit::front_ends::event("http-api", testkit::front_ends::POST);
    request["requestContext"]["authorizer"]["iam"]["userId"] = "anna".into();
    let mut with_id = request.clone();
    with_id["headers"]["x-user-id"] = "anna".into();
    let request = request.to_string();
    for (settings, event, via) in [
        (&[("IDEMPOTENCY_KEY", "/id")][..], order.to_owned(), "event"),
        (&[("IDEMPOTENCY_KEY", "/id")], message("aws:sqs", order), "sqs"),
        (&[("IDEMPOTENCY_KEY", "sqs")], message("aws:sqs", "x"), "sqs"),
        (&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_OPERATION", "charge")], order.to_owned(), "event"),
        (&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_COMPARE", "/id")], order.to_owned(), "event"),
        (&[("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_EVENT", "http")], request.clone(), "http"),
        (&[("IDEMPOTENCY_KEY", "header")], request.clone(), "http"),
        (
            &[("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_CALLERS", "header:x-user-id")],
            with_id.to_string(),
            "http",
        ),
        (&[("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_CALLERS", IDENTITY)], request, "http"),
    ] {
        let (lambda, (database, wire)) = (Lambda::start().await, table().await);
        let endpoint = wire.endpoint();
        let json = [("AWS_LAMBDA_LOG_FORMAT", "JSON")];
        let all = [&on_table(&endpoint)[..2], &on_table(&endpoint)[2..], &json, settings].concat();
        let function = Function::start(&lambda, &all).await;
        let (runs, answer) = delivered(&lambda, &function, &event, r#"{"statusCode":201}"#).await;
        assert!(runs, "{settings:?}: {answer:?}, {}", function.log());
        let lines = json_lines(&function.log());
        let started = lines.iter().find(|line| line["event"] == "started").unwrap();
        let wrappers: Vec<Description> = serde_json::from_value(started["wrappers"].clone()).unwrap();
        let described = wrappers.iter().find(|described| described.via == via).unwrap();
        let caller = started["resolved_caller"].as_str().map(|text| text.replace("NAME", "anna"));
        let context = lambda_runtime::Context::default();
        let located = described.locate(event.as_bytes(), &context, caller.as_deref()).unwrap();
        let record = database.record("records", located[0].key.as_str()).await.unwrap();
        assert_eq!(record["status"]["S"], "COMPLETED", "{settings:?}: {located:?}");
    }
}

#[tokio::test]
async fn failed_init_is_an_error_in_json() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_KEY", "/id"), ("AWS_LAMBDA_LOG_FORMAT", "JSON")];
    let output = program(&lambda, &settings).args(["--", "/bin/true"]).stdout(Stdio::piped()).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the program ends").unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = json_lines(&String::from_utf8(output.stdout).unwrap());
    let is_told = |line: &serde_json::Value| {
        line["level"] == "ERROR" && line["message"].as_str().unwrap().contains("no store is configured")
    };
    assert!(lines.iter().any(is_told), "{lines:?}");
}
