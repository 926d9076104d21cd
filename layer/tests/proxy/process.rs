//! The program as a process: its start, its settings, its child, and the Extensions API.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lambda_idempotency_rehearsal::database::{ACCESS_KEY, Database, REGION};
use lambda_idempotency_verification_real::wire::{HttpWay, Meaning, Proxy};
use testkit::{http_server::Received, links, ports::free_port, unpaused::unpaused};

use super::bench::{Function, Lambda, PATIENCE, fresh_path, kill, posted, program};

pub(crate) async fn code(lambda: &Lambda, settings: &[(&str, &str)], command: &[&str]) -> (i32, String) {
    let output = program(lambda, settings).arg("--").args(command).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the program ends").unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

pub(crate) const WORKING: &[(&str, &str)] = &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_STORE", "memory:")];
pub(crate) const WITH_METRICS: (&str, &str) = ("IDEMPOTENCY_METRICS", "cloudwatch");

#[tokio::test]
async fn program_exits_with_the_commands_code() {
    let lambda = Lambda::start().await;
    assert_eq!(code(&lambda, WORKING, &["/bin/sh", "-c", "exit 7"]).await.0, 7);
    assert_eq!(code(&lambda, WORKING, &["/bin/sh", "-c", "kill -9 $$"]).await.0, 137);
    let (code, said) = code(&lambda, WORKING, &["/no/such/program"]).await;
    assert_eq!(code, 1);
    assert!(said.contains("/no/such/program can't be started"), "{said}");
}

#[tokio::test]
async fn signals_reach_the_command() {
    let lambda = Lambda::start().await;
    let file = fresh_path();
    let script = format!("trap 'exit 5' TERM; touch {}; while true; do sleep 0.05; done", file.display());
    let mut child = program(&lambda, WORKING).args(["--", "/bin/sh", "-c", &script]).spawn().unwrap();
    let started = async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, started).await.expect("the command starts");
    assert!(kill("TERM", &child.id().unwrap().to_string()));
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await.expect("the program ends").unwrap();
    assert_eq!(ended.code(), Some(5));
    std::fs::remove_file(file).unwrap();
}

/// The layer accepts the function's answer before it has settled the batch's records, so the function may exit first.
#[tokio::test]
async fn answer_is_sent_after_the_function_exits() {
    let lambda = Lambda::start().await;
    let mut function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "sqs")]).await;
    let record = |n: u32| {
        serde_json::json!({
            "messageId": n.to_string(), "body": "x", "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:q",
        })
    };
    let batch = serde_json::json!({ "Records": (0..500).map(record).collect::<Vec<_>>() });
    let waiting = lambda.deliver(batch.to_string());
    function.respond(&function.next().await, "{}").await;
    assert!(kill("KILL", &function.process));
    assert_eq!(posted(waiting).await.text(), r#"{"batchItemFailures":[]}"#);
    let ended =
        tokio::time::timeout(PATIENCE, function.child.wait()).await.expect("the program ends").unwrap();
    assert_eq!(ended.code(), Some(137));
}

#[tokio::test]
async fn invalid_settings_fail_the_init() {
    let lambda = Lambda::start().await;
    for (settings, says) in [
        (&[("IDEMPOTENCY_KEY", "/id")][..], "no store is configured"),
        (&[("IDEMPOTENCY_STORE", "memory:")], "IDEMPOTENCY_KEY isn't set"),
        (&[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_STORE", "mysql://u:secret@h")], "scheme"),
        (
            &[WORKING[0], WORKING[1], ("IDEMPOTENCY_RETENTION", "1 day")],
            "IDEMPOTENCY_RETENTION: `1 day` isn't valid",
        ),
        (&[WORKING[0], WORKING[1], ("IDEMPOTENCY_RETENTON", "1d")], "IDEMPOTENCY_RETENTON isn't a setting"),
        (
            &[
                WORKING[0],
                WORKING[1],
                ("IDEMPOTENCY_EXECUTION", "at-most-once"),
                ("IDEMPOTENCY_ON_STORE_FAILURE", "pass"),
            ],
            "under at-most-once",
        ),
        (&[WORKING[0], WORKING[1], ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")], "another sandbox"),
    ] {
        let (code, said) = code(&lambda, settings, &["/bin/sh", "-c", "exit 0"]).await;
        assert_eq!(code, 1, "{says}");
        assert!(said.contains(says) && !said.contains("secret"), "{said}");
        let report = lambda.others().pop().unwrap();
        assert_eq!(report.path, "/2018-06-01/runtime/init/error");
        assert_eq!(report.headers["lambda-runtime-function-error-type"], "Idempotency.Invalid");
        let report: serde_json::Value = serde_json::from_slice(&report.body).unwrap();
        assert!(report["errorMessage"].as_str().unwrap().contains(says), "{report}");
    }
}

#[tokio::test]
async fn mode_off_passes_every_event() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_MODE", "off"), ("IDEMPOTENCY_KEY", "/id"), WITH_METRICS];
    let function = Function::start(&lambda, &settings).await;
    for nth in 1..=2 {
        let waiting = lambda.deliver(r#"{"id": 1}"#);
        let event = function.next().await;
        let log = function.log();
        assert_eq!(log.matches(r#""idempotency_not_enforced":1"#).count(), nth, "{log}");
        function.respond(&event, "1").await;
        assert_eq!(posted(waiting).await.text(), "1");
    }
}

#[tokio::test]
async fn shadow_mode_runs_every_event() {
    let lambda = Lambda::start().await;
    let function =
        Function::start(&lambda, &[("IDEMPOTENCY_MODE", "shadow"), ("IDEMPOTENCY_KEY", "/id")]).await;
    let events =
        [r#"{"id": 1}"#, r#"{"id": 1}"#, r#"{"id": 1, "n": 2}"#, "{}", "no JSON", r#"{"Records": 1}"#];
    for (n, event) in events.iter().enumerate() {
        let waiting = lambda.deliver(event);
        let next = function.next().await;
        assert_eq!(next.body, *event);
        function.respond(&next, n.to_string()).await;
        assert_eq!(posted(waiting).await.text(), n.to_string(), "{event}");
    }
}

#[tokio::test]
async fn required_protection_cannot_be_switched_off() {
    let lambda = Lambda::start().await;
    for mode in ["off", "shadow"] {
        let settings = [WORKING[0], WORKING[1], ("IDEMPOTENCY_MODE", mode), ("IDEMPOTENCY_REQUIRED", "1")];
        let (code, said) = code(&lambda, &settings, &["/bin/sh", "-c", "exit 0"]).await;
        assert_eq!(code, 1);
        assert!(said.contains("IDEMPOTENCY_REQUIRED"), "{said}");
    }
}

#[tokio::test]
async fn settings_can_be_in_a_file() {
    let lambda = Lambda::start().await;
    let file = fresh_path();
    std::fs::write(&file, r#"{"store": "memory:", "key": ["/id", "/line"], "on_missing_key": "pass"}"#)
        .unwrap();
    let path = file.to_str().unwrap().to_owned();
    let store = [("IDEMPOTENCY_CONFIG", path.as_str())];
    let (code_of, said) = code(&lambda, &store, &["/bin/sh", "-c", "exit 3"]).await;
    assert_eq!(code_of, 3, "{said}");
    let twice = [("IDEMPOTENCY_CONFIG", path.as_str()), ("IDEMPOTENCY_KEY", "/id")];
    let (code_of, said) = code(&lambda, &twice, &["/bin/sh", "-c", "exit 3"]).await;
    assert_eq!(code_of, 1);
    assert!(said.contains("IDEMPOTENCY_KEY is set, and so is `key`"), "{said}");
    std::fs::remove_file(file).unwrap();
}

/// Starts the program as an extension.
fn started(lambda: &Lambda, settings: &[(&str, &str)]) -> Function {
    let port = free_port().to_string();
    let mut command = program(lambda, settings);
    command.env("IDEMPOTENCY_PORT", &port);
    Function::at(lambda, format!("127.0.0.1:{port}"), command)
}

/// Starts the program as an extension that doesn't wait for the runtime, and waits until it has asked for its first
/// event.
pub(crate) async fn extension(lambda: &Lambda, settings: &[(&str, &str)]) -> Function {
    let function = started(lambda, &[&[("IDEMPOTENCY_REQUIRED", "0")], settings].concat());
    waits_for_an_event(lambda).await;
    function
}

/// Waits until the extension has registered, and asked for its first event.
async fn waits_for_an_event(lambda: &Lambda) {
    until("the extension registers and waits", || lambda.others().len() >= 2).await;
}

pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let becoming = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, becoming).await.expect(what);
}

/// Ends the sandbox, and waits until the extension has ended. Returns the extension's output.
async fn shut_down(lambda: &Lambda, function: &mut Function) -> String {
    lambda.shut_down();
    let ended =
        tokio::time::timeout(PATIENCE, function.child.wait()).await.expect("the program ends").unwrap();
    assert_eq!(ended.code(), Some(0));
    function.log()
}

#[tokio::test]
async fn extension_serves_until_the_sandbox_ends() {
    let lambda = Lambda::start().await;
    let mut function = extension(&lambda, WORKING).await;
    let others = lambda.others();
    assert_eq!(others[0].path, "/2020-01-01/extension/register");
    assert_eq!(others[0].headers["lambda-extension-name"], "idempotency");
    assert_eq!(others[0].body, b"{\"events\":[\"INVOKE\",\"SHUTDOWN\"]}");
    assert_eq!(others[1].headers["lambda-extension-identifier"], "extension-1");
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    function.respond(&function.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
    lambda.invoke();
    let log = shut_down(&lambda, &mut function).await;
    assert!(!log.contains("never sent the layer a request"), "{log}");
    let version = format!("the idempotency layer {} starts", env!("CARGO_PKG_VERSION"));
    assert_eq!(log.matches(&version).count(), 1, "{log}");
}

/// The other proxy is a second simulated Lambda here.
#[tokio::test]
async fn events_can_come_from_another_proxy() {
    for mode in ["enforce", "off"] {
        let (lambda, other) = (Lambda::start().await, Lambda::start().await);
        let address = other.address();
        let settings = [("IDEMPOTENCY_UPSTREAM", address.as_str()), ("IDEMPOTENCY_MODE", mode)];
        let mut function = extension(&lambda, &[WORKING, &settings].concat()).await;
        let waiting = other.deliver(r#"{"id": 1}"#);
        function.respond(&function.next().await, "1").await;
        assert_eq!(posted(waiting).await.text(), "1");
        let got = function.send("GET", "/2018-06-01/runtime/restore/next", &[], Bytes::new()).await;
        assert_eq!(got.body, "other");
        shut_down(&lambda, &mut function).await;
        assert_eq!((lambda.polls(), other.polls(), other.others().len()), (0, 1, 1));
        let is_extensions = |received: &Received| received.path.starts_with("/2020-01-01/extension/");
        assert!(lambda.others().iter().all(is_extensions), "{:?}", lambda.others());
    }
}

/// For example, if another tool has replaced `AWS_LAMBDA_EXEC_WRAPPER`, the runtime bypasses the layer: it polls Lambda
/// directly.
#[tokio::test]
async fn bypassed_layer_is_reported_at_shutdown() {
    let lambda = Lambda::start().await;
    let mut function = extension(&lambda, &[WORKING, &[WITH_METRICS]].concat()).await;
    let log = shut_down(&lambda, &mut function).await;
    assert!(log.contains("never sent the layer a request"), "{log}");
    assert!(log.contains(r#""idempotency_not_enforced":1"#), "{log}");
}

/// The sandbox may live for hours, so its end is too late for an alarm.
#[tokio::test]
async fn bypassed_events_are_reported_at_once() {
    for mode in ["enforce", "shadow"] {
        let lambda = Lambda::start().await;
        let mode = ("IDEMPOTENCY_MODE", mode);
        let mut function = extension(&lambda, &[WORKING, &[WITH_METRICS, mode]].concat()).await;
        for nth in 1..=2 {
            lambda.invoke();
            let counted = || function.log().matches(r#""idempotency_not_enforced":1"#).count();
            until("the event is counted", || counted() == nth).await;
        }
        let log = shut_down(&lambda, &mut function).await;
        assert_eq!(log.matches("never sent the layer a request").count(), 1, "{log}");
        assert_eq!(log.matches(r#""idempotency_not_enforced":1"#).count(), 2, "{log}");
    }
}

#[tokio::test]
async fn managed_instances_announce_only_the_end() {
    let lambda = Lambda::start().await;
    let managed = ("AWS_LAMBDA_MAX_CONCURRENCY", "8");
    let mut function = extension(&lambda, &[WORKING, &[managed]].concat()).await;
    assert_eq!(lambda.others()[0].body, b"{\"events\":[\"SHUTDOWN\"]}");
    shut_down(&lambda, &mut function).await;
}

/// In an outage of the store, one change of one variable lets every event pass.
#[tokio::test]
async fn kill_switch_overrides_required_protection() {
    let file = fresh_path();
    std::fs::write(&file, r#"{"mode": "off!", "table": "records", "key": "/id"}"#).unwrap();
    let required = ("IDEMPOTENCY_REQUIRED", "1");
    let in_file = [("IDEMPOTENCY_CONFIG", file.to_str().unwrap()), required, WITH_METRICS];
    let variable = [("IDEMPOTENCY_MODE", "off!"), ("IDEMPOTENCY_KEY", "/id"), required, WITH_METRICS];
    for settings in [&in_file[..], &variable] {
        let lambda = Lambda::start().await;
        let port = free_port().to_string();
        let mut command = program(&lambda, settings);
        command.env("IDEMPOTENCY_PORT", &port);
        let mut function = Function::at(&lambda, format!("127.0.0.1:{port}"), command);
        waits_for_an_event(&lambda).await;
        assert!(function.log().contains("switched off by IDEMPOTENCY_MODE=off!"), "{}", function.log());
        for nth in 1..=2 {
            let waiting = lambda.deliver(r#"{"id": 1}"#);
            let event = function.next().await;
            let log = function.log();
            assert_eq!(log.matches(r#""idempotency_not_enforced":1"#).count(), nth + 1, "{log}");
            function.respond(&event, "1").await;
            assert_eq!(posted(waiting).await.text(), "1");
        }
        shut_down(&lambda, &mut function).await;
    }
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn required_extension_waits_for_the_runtime() {
    let lambda = Lambda::start().await;
    let function = started(&lambda, WORKING);
    until("the warning is logged", || function.log().contains("hasn't sent the layer a request")).await;
    // So far, the extension has only registered. Lambda hands out no invocation until the extension asks for its first
    // event.
    assert_eq!(lambda.others().len(), 1, "{:?}", lambda.others());
    assert_eq!(lambda.others()[0].body, b"{\"events\":[\"SHUTDOWN\"]}");
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    function.respond(&function.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
    waits_for_an_event(&lambda).await;
}

/// Lambda sends SHUTDOWN when the function has timed out.
#[tokio::test]
async fn shutdown_writes_metrics_of_unanswered_events() {
    let lambda = Lambda::start().await;
    let mut function = extension(&lambda, &[WORKING, &[WITH_METRICS]].concat()).await;
    let _waiting = lambda.deliver(r#"{"id": 1}"#);
    function.next().await;
    let log = shut_down(&lambda, &mut function).await;
    assert!(log.contains(r#""idempotency_executed":1"#), "{log}");
}

/// A table of records, and the proxy that can break requests to the table.
pub(crate) async fn table() -> (Database, Proxy) {
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table("records").await.unwrap();
    let wire = Proxy::before(database.endpoint().clone(), Duration::from_secs(1)).await.unwrap();
    (database, wire)
}

/// Runs two events, and kills the layer's connections to the table after each. Returns how many requests were lost.
async fn lost_after_a_freeze(is_restored: bool) -> usize {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let links = links::Links::before(wire.address());
    let endpoint = format!("http://{}", links.address());
    let function = Function::start(&lambda, &on_table(&endpoint)).await;
    // The layer connects in the background. If that request came late, it would be lost too.
    let connects = || wire.log().exchanges().iter().any(|it| it.is_warm_up() && it.served.is_some());
    until("the layer connects", connects).await;
    for event in [r#"{"id": 1}"#, r#"{"id": 2}"#] {
        let waiting = lambda.deliver(event);
        function.respond(&function.next().await, "1").await;
        assert_eq!(posted(waiting).await.text(), "1");
        links.kill(links::Death::Swallows);
        if is_restored {
            function.send("GET", "/2018-06-01/runtime/restore/next", &[], Bytes::new()).await;
        }
    }
    links.lost()
}

#[tokio::test]
async fn restore_closes_the_connections_to_the_table() {
    // A busy machine may exceed the timeout of an attempt, which costs a connection too.
    assert_eq!(unpaused(async || lost_after_a_freeze(true).await, |lost| *lost == 0).await, 0);
    let lost = unpaused(async || lost_after_a_freeze(false).await, |lost| *lost > 0).await;
    assert!(lost > 0, "the dead connections weren't used");
}

/// The settings for the table behind this endpoint.
pub(crate) fn on_table(endpoint: &str) -> [(&str, &str); 7] {
    [
        WITH_METRICS,
        ("IDEMPOTENCY_KEY", "/id"),
        ("IDEMPOTENCY_TABLE", "records"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
        ("AWS_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY),
    ]
}

/// Ends the sandbox while an extension records the answer `1` to the delivered event, and waits until the extension has
/// ended. The proxy breaks `requests` requests with `fault`, beginning with the request that records the answer.
/// Returns how long the extension took to end, and its output.
async fn shut_down_while_recording(
    lambda: &Lambda,
    wire: &Proxy,
    settings: &[(&str, &str)],
    requests: usize,
    fault: HttpWay,
) -> (Duration, String) {
    let mut function = extension(lambda, settings).await;
    let event = function.next().await;
    wire.break_next(requests, fault);
    let begins = async {
        while !wire.arrived().iter().any(|(meaning, _)| *meaning == Meaning::Complete) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Lambda ends the runtime before it sends SHUTDOWN, so the function's request breaks off here.
    tokio::select! {
        answered = function.respond(&event, "1") => panic!("{answered:?} came before the record"),
        begun = tokio::time::timeout(PATIENCE, begins) => begun.expect("the recording begins"),
    }
    let begun = Instant::now();
    let log = shut_down(lambda, &mut function).await;
    (begun.elapsed(), log)
}

/// If a function answers just before its deadline, it can time out while the layer records the answer.
#[tokio::test]
async fn extension_records_the_answer_before_it_ends() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let settings = on_table(&endpoint);
    let first = lambda.deliver(r#"{"id": 1}"#);
    // The SDK pauses before its retry. One pause leaves most of the time that an extension has to end.
    shut_down_while_recording(&lambda, &wire, &settings, 1, HttpWay::ErrorBefore).await;
    let function = Function::start(&lambda, &settings).await;
    let again = lambda.deliver(r#"{"id": 1}"#);
    assert!(function.gets_nothing().await);
    assert_eq!(posted(again).await.text(), "1");
    assert_eq!(posted(first).await.text(), "1");
}

/// A function's process, or its sandbox, that ends while it runs events.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    /// The child of a `bootstrap` is killed.
    Child,
    /// Lambda reports a failed sandbox to the extension.
    Sandbox,
    /// Lambda ends an idle sandbox.
    None,
}

/// Delivers an event with a long timeout to a function that dies, and then to a new function. Returns the seconds until
/// the lease ends, and the log.
async fn after_death(death: Death, event: &str, more: &[(&str, &str)]) -> (u64, String) {
    let (lambda, (database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let settings = [&on_table(&endpoint)[..], more].concat();
    let mut function = match death {
        Death::Child => Function::start(&lambda, &settings).await,
        Death::Sandbox | Death::None => extension(&lambda, &settings).await,
    };
    let _first = lambda.deliver_with(event, Duration::from_secs(900), &[]);
    function.next().await;
    match death {
        Death::Child => assert!(kill("KILL", &function.process)),
        Death::Sandbox => lambda.fail(),
        Death::None => lambda.shut_down(),
    }
    tokio::time::timeout(PATIENCE, function.child.wait()).await.expect("the program ends").unwrap();
    let log = function.log();
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[&on_table(&endpoint)[..], more].concat()).await;
    let second = lambda.deliver(event);
    assert!(function.gets_nothing().await, "{death:?}");
    let log = log + &posted(second).await.text();
    // The record's id is in the layer's line about the death, or in the error.
    let id = log.find("f/").map(|at| &log[at..]).unwrap_or_else(|| panic!("{log}"));
    let id = id.split([':', ' ', '\n']).next().unwrap();
    let record = database.record("records", id).await.unwrap();
    let lease_until: u64 =
        record["lease_until"]["N"].as_str().unwrap_or_else(|| panic!("{record}")).parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    (lease_until.saturating_sub(u64::try_from(now.as_millis()).unwrap()) / 1000, log)
}

/// Lambda retries an asynchronous invocation after one and two minutes. With a lease until the deadline, both retries
/// would be refused.
#[tokio::test]
async fn dead_functions_keep_keys_only_briefly() {
    let once = [("IDEMPOTENCY_EXECUTION", "at-most-once")];
    let header = [("IDEMPOTENCY_KEY", "header")];
    let each = [("IDEMPOTENCY_BATCH", "each")];
    let order = r#"{"id": 1}"#.to_owned();
    let request = testkit::front_ends::event("http-api", testkit::front_ends::POST).to_string();
    let message = serde_json::json!({
        "messageId": "m", "body": order, "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:1:q",
    });
    let batch = serde_json::json!({ "Records": [message] }).to_string();
    for (death, more, event, expected) in [
        (Death::Child, &[][..], &order, 5..10),
        (Death::Sandbox, &[], &order, 5..10),
        (Death::None, &[], &order, 890..902),
        (Death::Child, &once, &order, 890..902),
        (Death::Sandbox, &once, &order, 890..902),
        (Death::Child, &header, &request, 5..10),
        (Death::Sandbox, &[], &batch, 5..10),
        (Death::Child, &each, &batch, 5..10),
    ] {
        // The layer has only moments to change the record.
        let died = async || after_death(death, event, more).await;
        let (lease, log) = unpaused(died, |(lease, _)| expected.contains(lease)).await;
        assert!(expected.contains(&lease), "{death:?} {more:?}: {lease} s: {log}");
        let is_told = log.contains("the handler's process ended without an answer");
        assert_eq!(is_told, death != Death::None, "{log}");
        assert!(!log.contains("idempotency_unrecorded"), "{log}");
    }
}

/// A worker's crash keeps the environment, and its other workers run on.
#[tokio::test]
async fn managed_instances_keep_long_leases() {
    let managed = [("AWS_LAMBDA_MAX_CONCURRENCY", "8")];
    for death in [Death::Child, Death::Sandbox] {
        let (lease, log) = after_death(death, r#"{"id": 1}"#, &managed).await;
        assert!(lease > 890, "{death:?}: {lease} s: {log}");
    }
}

#[tokio::test]
async fn shutdown_limits_the_wait_for_settlements() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let _first = lambda.deliver(r#"{"id": 1}"#);
    let (took, log) =
        shut_down_while_recording(&lambda, &wire, &on_table(&endpoint), 100, HttpWay::HangBefore).await;
    assert!(log.contains(r#""idempotency_unrecorded":1"#), "{log}");
    assert!(log.contains("the layer ends before it knows"), "{log}");
    // Lambda kills the extension after 2 s. A loaded machine may need longer.
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// While the process can't open another file, no connection can be accepted.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn failed_accepts_are_logged_and_retried() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, WORKING).await;
    let process = Pid::from_raw(function.child.id().unwrap().try_into().unwrap());
    let usual = getrlimit(Resource::Nofile);
    let begun = Instant::now();
    prlimit(process, Resource::Nofile, Rlimit { current: Some(0), ..usual }).unwrap();
    let _waiting = tokio::net::TcpStream::connect(function.address()).await.unwrap();
    let failures = || function.log().matches("couldn't accept a connection").count();
    let failing = async {
        while failures() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, failing).await.expect("failed accepts in the log");
    prlimit(process, Resource::Nofile, usual).unwrap();
    let (failures, time) = (failures(), begun.elapsed());
    assert!(failures as u128 <= 1 + time.as_millis() / 50, "{failures} failures in {time:?}");
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    function.respond(&function.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
}

#[tokio::test]
async fn invalid_settings_fail_the_extensions_init() {
    let lambda = Lambda::start().await;
    let output = program(&lambda, &[("IDEMPOTENCY_KEY", "nothing")]).stderr(Stdio::piped()).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the program ends").unwrap();
    assert_eq!(output.status.code(), Some(1));
    let report = lambda.others().pop().unwrap();
    assert_eq!(report.path, "/2020-01-01/extension/init/error");
    assert_eq!(report.headers["lambda-extension-identifier"], "extension-1");
    assert!(String::from_utf8(report.body).unwrap().contains("IDEMPOTENCY_KEY: `nothing` isn't valid"));
}

#[tokio::test]
async fn wrapper_starts_the_program_and_the_command() {
    let lambda = Lambda::start().await;
    let wrapper = concat!(env!("CARGO_MANIFEST_DIR"), "/idempotency-wrapper");
    let mut command = tokio::process::Command::new(wrapper);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("AWS_LAMBDA_RUNTIME_API", lambda.address())
        .env("AWS_LAMBDA_FUNCTION_NAME", "f")
        .env("IDEMPOTENCY_EXTENSION", env!("CARGO_BIN_EXE_idempotency-extension"))
        .env("IDEMPOTENCY_WRAPPER", "/usr/bin/env")
        .envs(WORKING.iter().copied());
    let script = format!("[ \"$AWS_LAMBDA_RUNTIME_API\" != {} ] && exit 9", lambda.address());
    // `env` plays another wrapper script. Without it, `CHAINED=1` would be the command.
    let output = command.args(["CHAINED=1", "/bin/sh", "-c", &script]).output();
    let output = tokio::time::timeout(PATIENCE, output).await.expect("the program ends").unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
}
