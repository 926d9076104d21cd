//! Tests that the functions answer every event in `events/` as the name of its file says.

use std::{collections::BTreeSet, fs};

use lambda_idempotency_rehearsal::answer::Answer;
use serde_json::Value;

use super::{
    sources,
    stage::{Delivers, Running, database, functions, project},
};

/// The expected answer to an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// This status, with this many runs of the handler. With zero runs, the function refuses the request, or the
    /// request only reads.
    Http(u64, Runs),
    /// A replay with this status.
    Replay(u64),
    /// A problem with this status and code, without a run.
    Problem(u64, &'static str),
    /// A response, after this many runs. With zero runs, it comes from the record.
    Response(Runs),
    /// A function error of this type, whose message contains these words.
    Error(&'static str, &'static str),
    /// A batch's answer after this many runs. It reports these messages as failed, and SQS redelivers them.
    Batch(usize, &'static [&'static str]),
}

/// How often the handler ran.
pub(crate) type Runs = usize;

use Expected::{Batch, Error, Http, Problem, Replay, Response};

/// Each function's events, in the order of their delivery.
pub(crate) const STORY: &[(&str, &[(&str, Expected)])] = &[
    (
        "payments",
        &[
            ("http-api", Http(201, 1)),
            ("http-api-again", Replay(201)),
            ("http-api-conflicting", Problem(422, "key-reused")),
            ("http-api-other-caller", Http(201, 1)),
            ("http-api-malformed-key", Problem(400, "key-invalid")),
            ("http-api-malformed-body", Http(400, 0)),
            ("http-api-get", Http(404, 0)),
            ("rest-api", Http(201, 1)),
            ("rest-api-again", Replay(201)),
            ("function-url", Http(201, 1)),
            ("function-url-again", Replay(201)),
            ("alb", Http(201, 1)),
            ("alb-again", Replay(201)),
        ],
    ),
    (
        "orders",
        &[
            ("sqs", Batch(2, &[])),
            ("sqs-again", Batch(0, &[])),
            (
                "sqs-malformed",
                Batch(1, &["8d4f6ba3-5a7c-4e9d-b1cf-4c6e8a0d2f3b", "9e5a7cb4-6b8d-4fae-82d0-5d7f9b1e3a4c"]),
            ),
            ("sqs-duplicates", Batch(1, &[])),
            ("sqs-failing", Batch(1, &["af6b8dc5-7c9e-40bf-93e1-6e8a0c2f4b5d"])),
            ("sqs-failing", Batch(0, &["af6b8dc5-7c9e-40bf-93e1-6e8a0c2f4b5d"])),
            // One message of the group fails. SQS redelivers this message and the later ones.
            (
                "sqs-fifo",
                Batch(2, &["d19e0fa8-0fc1-43e2-a614-91bd3f5c7e80", "e2af10b9-10d2-44f3-b725-a2ce406d8f91"]),
            ),
        ],
    ),
    (
        "receipts",
        &[
            ("event-bridge", Response(1)),
            ("event-bridge-again", Response(0)),
            ("event-bridge-malformed", Error("Idempotency.Invalid", "no field `payment_id`")),
            ("event-bridge-without-id", Error("Idempotency.MissingKey", "no idempotency key")),
        ],
    ),
    (
        "refunds",
        &[
            ("invoke", Response(1)),
            ("invoke-again", Response(0)),
            ("invoke-conflicting", Error("Idempotency.Mismatch", "another payload")),
            ("invoke-malformed", Error("Idempotency.Invalid", "no field `payment_id`")),
            ("invoke-without-key", Error("Idempotency.InvalidKey", "empty")),
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_event_gets_its_expected_answer() {
    let database = database().await;
    for (function, story) in STORY {
        let mut running = Running::start(function, &database).await;
        tell(function, story, &mut running).await;
    }
}

/// Delivers a function's events, and checks each answer.
pub(crate) async fn tell(function: &str, story: &[(&str, Expected)], to: &mut impl Delivers) {
    let mut ran = 0;
    for (event, expected) in story {
        let answer = to.deliver(&format!("{function}/{event}")).await;
        let runs = to.marks().await - ran;
        ran += runs;
        assert!(is_as(*expected, &answer, runs), "{function}/{event}: {expected:?}, {runs} runs: {answer:?}");
    }
}

fn is_as(expected: Expected, answer: &Answer, runs: Runs) -> bool {
    match (expected, answer) {
        (Http(status, expected), Answer::Http(http)) => {
            http.status == status && runs == expected && !answer.is_marked_replay()
        }
        (Replay(status), Answer::Http(http)) => {
            http.status == status && runs == 0 && answer.is_marked_replay()
        }
        (Problem(status, code), Answer::Http(http)) => {
            let body: Value = serde_json::from_str(&http.body).unwrap_or_default();
            http.status == status && runs == 0 && body["code"] == code
        }
        (Response(expected), Answer::Payload(_)) => runs == expected,
        (Error(expected, words), Answer::Error { kind, message }) => {
            kind == expected && message.contains(words) && runs == 0
        }
        (Batch(expected, back), Answer::Payload(payload)) => {
            runs == expected && come_back(payload) == BTreeSet::from_iter(back.iter().map(|id| (*id).into()))
        }
        _ => false,
    }
}

/// The records that a batch's answer reports as failed.
pub(crate) fn come_back(payload: &[u8]) -> BTreeSet<String> {
    let answer: Value = serde_json::from_slice(payload).unwrap();
    let failures = answer["batchItemFailures"].as_array().expect("a partial-batch answer");
    failures.iter().map(|failure| failure["itemIdentifier"].as_str().unwrap().to_owned()).collect()
}

/// Returns the folder and the name of each event: first those of the functions, then those of the sources.
pub(crate) fn all_told() -> impl Iterator<Item = (&'static str, &'static str)> {
    let functions =
        STORY.iter().flat_map(|(function, story)| story.iter().map(|(event, _)| (*function, *event)));
    functions.chain(sources::names().map(|event| (sources::FOLDER, event)))
}

#[test]
fn every_event_file_has_an_expectation() {
    let folders = fs::read_dir(project().join("events")).unwrap();
    let found: BTreeSet<(String, String)> = folders
        .map(|folder| folder.unwrap().path())
        .flat_map(|folder| {
            let function = folder.file_name().unwrap().to_string_lossy().into_owned();
            let is_known = function == sources::FOLDER || functions().any(|known| known == function);
            assert!(is_known, "events/{function} doesn't belong to a function");
            fs::read_dir(folder)
                .unwrap()
                .map(move |file| (function.clone(), stem(&file.unwrap().path())))
                .collect::<Vec<_>>()
        })
        .collect();
    let told = all_told().map(|(folder, event)| (folder.to_owned(), event.to_owned()));
    assert_eq!(found, told.collect());
}

fn stem(path: &std::path::Path) -> String {
    assert_eq!(path.extension().unwrap(), "json", "{}", path.display());
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Sends each function the event of another trigger. The error must name the missing field, or the expected trigger.
#[tokio::test(flavor = "multi_thread")]
async fn events_of_wrong_triggers_get_descriptive_errors() {
    let database = database().await;
    for (function, event, words) in [
        ("orders", "refunds/invoke", "this worker handles batches of `aws:sqs`"),
        ("receipts", "orders/sqs", "no field `detail-type`"),
        ("refunds", "receipts/event-bridge", "no field `refund_id`"),
        // The error of lambda_http names the expected front ends, not a field.
        ("payments", "refunds/invoke", "expects a JSON payload from Amazon API Gateway"),
    ] {
        let mut running = Running::start(function, &database).await;
        let answer = running.deliver(event).await;
        let Answer::Error { message, .. } = &answer else { panic!("{function}, {event}: {answer:?}") };
        assert!(message.contains(words), "{function}, {event}: {message}");
        assert_eq!(running.marks().await, 0);
    }
}

/// Tests that a deployed function writes its metrics with each answer. CloudWatch reads them from the function's
/// output.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_written_with_each_answer() {
    let database = database().await;
    let mark = r#""Dimensions":[["FunctionName"]],"Metrics":[{"Name":"idempotency_"#;
    let mut running = Running::watching("refunds", mark, &database).await;
    running.deliver("refunds/invoke").await;
    assert_eq!(running.marks().await, 1);
    for (mark, event) in [
        (r#""idempotency_replayed":1"#, "refunds/invoke-again"),
        (r#""idempotency_mismatch":1"#, "refunds/invoke-conflicting"),
        (r#""idempotency_invalid_key":1"#, "refunds/invoke-without-key"),
        (r#""idempotency_invalid":1"#, "refunds/invoke-malformed"),
    ] {
        let mut running = Running::watching("refunds", mark, &database).await;
        running.deliver(event).await;
        assert_eq!(running.marks().await, 1, "{event}: {mark}");
    }
}
