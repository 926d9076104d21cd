//! One turn of the function: the function gets an event, and the layer holds the function's answer until the library
//! settles the operation.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use lambda_idempotency::{Failure, Idempotency, current, lambda::http::HttpLayer, settings::Execution};
use serde::Deserialize;
use tokio::sync::{Notify, watch};

use crate::{
    config::Rules,
    event::Event,
    function::{Function, Payload, Posted},
    telemetry::Telemetry,
    upstream::{ERROR_TYPE, Upstream},
};

/// The parts that the protected invocations share.
#[derive(Debug)]
pub(crate) struct Protection {
    pub(crate) idempotency: Idempotency,
    /// The library's HTTP layer. It has a lower size limit than `idempotency`: `max_response` of the rules. An HTTP
    /// response's recorded form is hardly larger than its body. Other answers may need an envelope, which is larger.
    pub(crate) http: HttpLayer,
    pub(crate) rules: Rules,
    pub(crate) function: Function,
    pub(crate) upstream: Upstream,
    pub(crate) telemetry: Telemetry,
    /// Whether the function streams its responses: a setting says so, or it has streamed one.
    pub(crate) streams: AtomicBool,
    /// Whether the function's runtime has sent a request. If it never sends one, the layer isn't in front of the
    /// runtime.
    pub(crate) has_request: watch::Sender<bool>,
    /// Whether it's reported that the layer isn't in front of the runtime.
    pub(crate) is_bypassed: AtomicBool,
}

/// The turn of the function in one invocation.
#[derive(Clone, Debug)]
pub(crate) struct Turn(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    protection: Arc<Protection>,
    event: Arc<Event>,
    /// The function's answer, until the layer posts it.
    posted: Mutex<Option<Posted>>,
    has_posted: Notify,
    /// Whether the outcome is replayed from another run.
    is_replay: AtomicBool,
}

/// An error as a function reports it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Report {
    #[serde(rename = "errorType")]
    error_type: Option<String>,
    #[serde(rename = "errorMessage")]
    message: Option<String>,
}

impl Turn {
    /// The function's turn with this event.
    pub(crate) fn new(protection: &Arc<Protection>, event: &Arc<Event>) -> Self {
        Self(Arc::new(Shared {
            protection: Arc::clone(protection),
            event: Arc::clone(event),
            posted: Mutex::default(),
            has_posted: Notify::new(),
            is_replay: AtomicBool::new(false),
        }))
    }

    /// Hands the event to the function, waits for the function's answer, and returns what `read` makes of it.
    ///
    /// # Errors
    ///
    /// The function's error, or a transient error if the function never got the event.
    pub(crate) async fn run<T>(&self, read: impl FnOnce(&Posted) -> T) -> Result<T, Failure> {
        let Shared { protection, event, .. } = &*self.0;
        event.begins();
        let (headers, body) = event.with_claim(protection.rules.claim_field.as_ref(), current().as_ref());
        let posted = protection.function.run(event, headers, body, protection.rules.max_response).await;
        let posted = posted?;
        let read = match posted.is_error || matches!(posted.body, Payload::Broken(..)) {
            true => Err(failure(&posted, &protection.rules)),
            false => Ok(read(&posted)),
        };
        *self.posted() = Some(posted);
        self.0.has_posted.notify_one();
        read
    }

    fn posted(&self) -> MutexGuard<'_, Option<Posted>> {
        self.0.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the function's own answer. `None` if the function hasn't answered, or if the answer was taken already.
    pub(crate) fn take(&self) -> Option<Posted> {
        self.posted().take()
    }

    /// Waits until the function has answered.
    pub(crate) async fn answered(&self) {
        self.0.has_posted.notified().await;
    }

    /// Notes that the outcome is replayed from another run.
    pub(crate) fn replays(&self) {
        self.0.is_replay.store(true, Ordering::Relaxed);
    }

    /// Whether the outcome is replayed from another run.
    pub(crate) fn is_replay(&self) -> bool {
        self.0.is_replay.load(Ordering::Relaxed)
    }
}

/// Converts the function's error to a failure for the library, which records a permanent failure, and releases the key
/// after a transient one.
fn failure(posted: &Posted, rules: &Rules) -> Failure {
    match reported(posted, rules) {
        (error_type, message, true) => Failure::permanent(error_type, message),
        (_, message, false) => Failure::transient(message),
    }
}

/// The type and the message of the error that the function reported, and whether it's recorded.
pub(crate) fn reported(posted: &Posted, rules: &Rules) -> (String, String, bool) {
    let (error_type, message) = read(posted);
    // Under at-most-once, the function mustn't run again, whatever error it reports.
    let is_recorded =
        rules.on_error.records(&error_type) || rules.settings.execution == Execution::AtMostOnce;
    (error_type, message, is_recorded)
}

fn read(posted: &Posted) -> (String, String) {
    let no_body = Bytes::new();
    let (headers, body) = match &posted.body {
        Payload::Whole(bytes) => (&posted.headers, bytes),
        Payload::Broken(bytes, trailers) => (trailers, bytes),
        Payload::Endless(..) => (&posted.headers, &no_body),
    };
    let report: Report = serde_json::from_slice(body).unwrap_or_default();
    let in_header = || headers.get(ERROR_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let error_type = report.error_type.or_else(in_header).unwrap_or_else(|| "Error".to_owned());
    (error_type, report.message.unwrap_or_else(|| "the function reported an error".to_owned()))
}
