//! Settings that change how the layer treats an event or a request.

use std::{pin::pin, time::Duration};

use serde_json::{Value, json};
use testkit::front_ends::{POST, Sent, event, set_header};

use super::{
    bench::{Function, Lambda, Posted, kill, posted},
    http_events::{created, header, status},
    process::{WITH_METRICS, on_table, table},
};

/// The expected result of a delivery.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Then {
    /// The function runs.
    Runs,
    /// The caller gets the recorded response.
    Replays,
    /// The caller gets the layer's own response with this status.
    Refuses(u64),
}

/// Delivers an event. If the function gets the event, the function answers with `answer`. Returns whether the function
/// ran, and the answer that Lambda got.
pub(crate) async fn delivered(
    lambda: &Lambda,
    function: &Function,
    event: &str,
    answer: &str,
) -> (bool, Posted) {
    let mut answered = pin!(posted(lambda.deliver(event)));
    tokio::select! {
        replayed = &mut answered => (false, replayed),
        next = function.next() => {
            function.respond(&next, answer.to_owned()).await;
            (true, answered.await)
        }
    }
}

/// Sends requests to a function with these settings, and checks the result of each.
pub(crate) async fn requests(settings: &[(&str, &str)], requests: &[(Value, Then)]) {
    let lambda = Lambda::start().await;
    let function = Function::start(&lambda, &[&[("IDEMPOTENCY_KEY", "header")], settings].concat()).await;
    for (nth, (request, expected)) in requests.iter().enumerate() {
        let own = created().to_string();
        let (runs, answer) = delivered(&lambda, &function, &request.to_string(), &own).await;
        let is_replay = || status(&answer) == 201 && header(&answer, "idempotent-replayed").is_some();
        let found = match runs {
            true => Then::Runs,
            false if is_replay() => Then::Replays,
            false => Then::Refuses(status(&answer)),
        };
        assert_eq!(&found, expected, "{settings:?}, request {nth}: {answer:?}");
    }
}

fn by(role: &'static str) -> Value {
    event("http-api", Sent { role, ..POST })
}

/// A request through a load balancer, which verifies no callers.
fn unverified(authorization: Option<&str>) -> Value {
    let mut request = event("alb", POST);
    set_header(&mut request, "authorization", authorization);
    request
}

#[tokio::test]
async fn setting_decides_which_callers_share_keys() {
    use Then::{Refuses, Replays, Runs};
    let named = || [(by("ANNA"), Runs), (by("OTTO"), Runs), (by("ANNA"), Replays), (by("OTTO"), Replays)];
    let [none, one, another] = [None, Some("Bearer 1"), Some("Bearer 2")].map(unverified);
    for (callers, unnamed) in [
        ("verified", [(none.clone(), Runs), (none.clone(), Replays), (one.clone(), Refuses(500))]),
        (
            "required",
            [(none.clone(), Refuses(403)), (none.clone(), Refuses(403)), (one.clone(), Refuses(500))],
        ),
        ("shared", [(one, Runs), (another, Replays), (none, Replays)]),
    ] {
        let all: Vec<_> = named().into_iter().chain(unnamed).collect();
        requests(&[("IDEMPOTENCY_CALLERS", callers)], &all).await;
    }
}

#[tokio::test]
async fn only_configured_methods_are_protected() {
    use Then::{Replays, Runs};
    let sent = |method| event("rest-api", Sent { method, ..POST });
    let put_only = [(sent("PUT"), Runs), (sent("PUT"), Replays), (sent("POST"), Runs), (sent("POST"), Runs)];
    requests(&[("IDEMPOTENCY_METHODS", "PUT")], &put_only).await;
    let usual = [(sent("PUT"), Runs), (sent("PUT"), Runs), (sent("PATCH"), Runs), (sent("PATCH"), Replays)];
    requests(&[], &usual).await;
}

#[tokio::test]
async fn requests_must_match_in_compared_fields() {
    use Then::{Refuses, Replays, Runs};
    let sent = |body| event("function-url", Sent { body, ..POST });
    let first = sent(r#"{"amount": 1, "note": "a"}"#);
    let [noted, dearer] = [r#"{"amount": 1, "note": "b"}"#, r#"{"amount": 2, "note": "a"}"#].map(sent);
    let all = [(first, Runs), (noted, Replays), (dearer, Refuses(422))];
    requests(&[("IDEMPOTENCY_COMPARE", "/amount")], &all).await;
}

/// If the layer records a failure, the first caller gets 500 with the problem `operation-failed`, and so does each
/// duplicate.
#[tokio::test]
async fn function_errors_over_http_can_be_recorded() {
    for setting in [("IDEMPOTENCY_ON_ERROR", "record"), ("IDEMPOTENCY_EXECUTION", "at-most-once")] {
        let lambda = Lambda::start().await;
        let function = Function::start(&lambda, &[("IDEMPOTENCY_KEY", "header"), setting]).await;
        for runs in [true, false] {
            let failed = lambda.deliver(event("http-api", POST).to_string());
            match runs {
                true => drop(function.fail(&function.next().await, "Declined").await),
                false => assert!(function.gets_nothing().await, "{setting:?}"),
            }
            let failed = posted(failed).await;
            assert_eq!(
                (status(&failed), failed.text().contains("operation-failed")),
                (500, true),
                "{setting:?}"
            );
        }
    }
}

#[tokio::test]
async fn at_most_once_records_server_errors() {
    let lambda = Lambda::start().await;
    let settings = [("IDEMPOTENCY_KEY", "header"), ("IDEMPOTENCY_EXECUTION", "at-most-once")];
    let function = Function::start(&lambda, &settings).await;
    let (request, failed) = (event("http-api", POST).to_string(), json!({ "statusCode": 503 }).to_string());
    for expected in [true, false] {
        let (runs, answer) = delivered(&lambda, &function, &request, &failed).await;
        assert_eq!((runs, status(&answer)), (expected, 503), "{answer:?}");
    }
}

#[tokio::test]
async fn operations_have_their_own_keys() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    for (operation, expected) in [("charge", true), ("refund", true), ("charge", false)] {
        let settings = [&on_table(&endpoint)[..], &[("IDEMPOTENCY_OPERATION", operation)]].concat();
        let function = Function::start(&lambda, &settings).await;
        let own = format!("\"{operation}\"");
        let (runs, answer) = delivered(&lambda, &function, r#"{"id": 1}"#, &own).await;
        assert_eq!((runs, answer.text()), (expected, own));
    }
}

/// The default lease ends only after the deadline, which is a minute away. The test sets a short lease, so that the
/// successor can take over sooner.
#[tokio::test]
async fn short_lease_is_extended_while_function_runs() {
    let (lambda, (_database, wire)) = (Lambda::start().await, table().await);
    let endpoint = wire.endpoint();
    let lease = [("IDEMPOTENCY_LEASE", "10s"), ("IDEMPOTENCY_ON_IN_PROGRESS", "wait:30s")];
    let settings = [&on_table(&endpoint)[..], &lease].concat();
    let killed = Function::start(&lambda, &settings).await;
    let _unanswered = lambda.deliver(r#"{"id": 1}"#);
    killed.next().await;
    // The claim's first lease and the skew margin end now.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let successor = Function::start(&lambda, &settings).await;
    let waiting = lambda.deliver(r#"{"id": 1}"#);
    // The successor would take over here if the lease weren't extended.
    successor.gets_nothing_until(tokio::time::sleep(Duration::from_secs(3))).await;
    assert!(kill("KILL", &killed.child.id().unwrap().to_string()));
    successor.respond(&successor.next().await, "1").await;
    assert_eq!(posted(waiting).await.text(), "1");
}

/// How often the layer has counted this metric: the number of log lines in which the metric is 1. Each line has the
/// count since the previous line, which is never more than 1 in these tests.
fn counted(log: &str, metric: &str) -> usize {
    log.matches(&format!("\"{metric}\":1")).count()
}

#[tokio::test]
async fn shadow_mode_reports_only_differing_answers() {
    let respond = |body: &str| json!({ "statusCode": 201, "body": body }).to_string();
    let http = event("http-api", POST).to_string();
    for (key, event, answers) in [
        ("/id", r#"{"id": 1}"#, ["1", "1", "2"].map(str::to_owned)),
        ("header", http.as_str(), ["1", "1", "2"].map(respond)),
    ] {
        let lambda = Lambda::start().await;
        let settings = [("IDEMPOTENCY_KEY", key), ("IDEMPOTENCY_MODE", "shadow"), WITH_METRICS];
        let function = Function::start(&lambda, &settings).await;
        for (answer, replayed, differed) in [(&answers[0], 0, 0), (&answers[1], 1, 0), (&answers[2], 2, 1)] {
            let (runs, got) = delivered(&lambda, &function, event, answer).await;
            assert_eq!((runs, &got.text()), (true, answer));
            let log = function.log();
            let metrics = ["replayed", "differed"].map(|name| format!("idempotency_shadow_{name}"));
            let found = metrics.map(|metric| counted(&log, &metric));
            assert_eq!(found, [replayed, differed], "{key}: {log}");
            assert_eq!(log.matches("different").count(), differed, "{key}: {log}");
        }
    }
}
