//! Delivers operations through the Lambda layer instead of through the library. The function doesn't use the library.

use std::{
    fmt::Display,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lambda_idempotency::{
    Builder, ErrorKind, Fingerprint, StoredKey,
    store::{Store, StoreError, StoreErrorKind, memory::MemoryStore},
    time::Timestamp,
};
use lambda_idempotency_layer::in_memory::{self, Invocation};
use lambda_idempotency_rehearsal::problem::{Context, Problem, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use testkit::hooked::{Asked, Hooked, Then};

use super::{answer::Answer, lock, scenario::Scenario, stage};

/// The `errorType` of the function's errors, and of the failures that the check itself records.
const FAILED: &str = "Wire";
/// The prefix of the `errorType` of the library's errors.
const LIBRARY: &str = "Idempotency.";
/// The kinds of error that a delivery may get.
const KINDS: [ErrorKind; 6] = [
    ErrorKind::InProgress,
    ErrorKind::Mismatch,
    ErrorKind::OutcomeUnknown,
    ErrorKind::NotRetained,
    ErrorKind::Unavailable,
    ErrorKind::Invalid,
];

/// The function behind the layer: gets the claim's generation, and returns a response or an error.
pub(super) type Function = Box<dyn FnOnce(u64) -> std::result::Result<String, String> + Send>;

/// An error report of the Runtime API.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    error_type: String,
    error_message: String,
}

/// Returns the event that requests an operation.
pub(super) fn event(key: &str, order: &str) -> Bytes {
    json!({ "id": key, "order": order }).to_string().into()
}

/// Returns the layer's environment variables for this scenario.
fn settings(scenario: &Scenario) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        // The layer checks this setting, but doesn't use it: each delivery brings its own store.
        ("IDEMPOTENCY_STORE", "memory:"),
        ("IDEMPOTENCY_KEY", "/id"),
        ("IDEMPOTENCY_CLAIM_FIELD", "claim"),
        ("IDEMPOTENCY_METRICS", "none"),
    ];
    if scenario.at_most_once {
        settings.push(("IDEMPOTENCY_EXECUTION", "at-most-once"));
    }
    if scenario.records_errors {
        settings.push(("IDEMPOTENCY_ON_ERROR", "record"));
    }
    settings
}

/// Delivers `event` to `function` behind the layer, and returns the answer that Lambda gets.
pub(super) async fn deliver(
    scenario: &Scenario,
    store: Arc<dyn Store>,
    with: impl FnOnce(Builder) -> Builder,
    (event, deadline): (Bytes, Timestamp),
    own_error: &str,
    function: Function,
) -> Result<Answer> {
    let function = move |event: &Bytes| {
        let event: Value = serde_json::from_slice(event).unwrap_or_default();
        let generation = event["claim"]["generation"].as_u64().unwrap_or_default();
        function(generation)
            .map(|response| Value::from(response).to_string().into())
            .map_err(|message| json!({ "errorType": FAILED, "errorMessage": message }).to_string().into())
    };
    let invocation = Invocation { event, deadline };
    let settings = settings(scenario);
    let delivered = in_memory::deliver(&settings, store, with, invocation, function).await;
    match delivered.map_err(without_answer)? {
        Ok(response) => {
            let text =
                serde_json::from_slice(&response).context("the layer's response isn't a JSON string")?;
            Ok(Answer::Value(text))
        }
        Err(report) => {
            let report: Report =
                serde_json::from_slice(&report).context("the layer's error isn't an error report")?;
            Ok(answer_of(report, own_error))
        }
    }
}

fn answer_of(report: Report, own_error: &str) -> Answer {
    let Report { error_type, error_message } = report;
    match error_type.strip_prefix(LIBRARY) {
        None if error_type == FAILED && error_message == own_error => Answer::HandlerFailed(error_message),
        None if error_type == FAILED => Answer::Recorded(error_message),
        Some("Unavailable") if error_message.contains(stage::NO_TIME) => Answer::NoTimeLeft,
        name => {
            let kind = KINDS.into_iter().find(|kind| name == Some(format!("{kind:?}").as_str()));
            // The judge never accepts `Invalid`, so an answer of an unknown kind is a violation.
            Answer::Refused(kind.unwrap_or(ErrorKind::Invalid))
        }
    }
}

/// Returns the record's key and the fingerprint that the layer computes from `event`. The store
/// refuses the claim, so the function doesn't run.
pub(super) async fn identity(event: Bytes, deadline: Timestamp) -> Result<(StoredKey, Fingerprint)> {
    let first = Arc::new(Mutex::new(None));
    let notes = Arc::clone(&first);
    let store = Hooked::new(MemoryStore::new(), move |key, asked| {
        if let Asked::Put(put) = asked {
            lock(&notes).get_or_insert_with(|| (key.clone(), put.record().fingerprint));
        }
        Then::Fail(StoreError::new(StoreErrorKind::Rejected, "this store refuses every call"))
    });
    let settings = [("IDEMPOTENCY_STORE", "memory:"), ("IDEMPOTENCY_KEY", "/id")];
    let invocation = Invocation { event, deadline };
    let with = |builder: Builder| builder.function(stage::FUNCTION);
    let refuse = |_: &Bytes| Err(Bytes::new());
    let delivered = in_memory::deliver(&settings, Arc::new(store), with, invocation, refuse).await;
    drop(delivered.map_err(without_answer)?);
    lock(&first).take().ok_or_else(|| Problem::new("the layer claimed nothing"))
}

fn without_answer(error: impl Display) -> Problem {
    Problem::new(format!("the layer gave no answer: {error}"))
}
