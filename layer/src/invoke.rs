//! One invocation: protects the event as its kind requires, and posts the answer to the Runtime API.

#[cfg(test)]
mod tests;

use std::{pin::pin, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Response};
use lambda_idempotency::{
    ErrorKind, RunError,
    protocol::Limits,
    settings::Mode,
    time::{Clock as _, system_clock},
};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tracing::Instrument as _;

use crate::{
    batch,
    config::{ClaimField, Rules},
    event::{Event, Kind, has_field},
    function::Posted,
    http as http_event, logs,
    proxy::{Protection, sent},
    recorded::{self, Recordable},
    turn::Turn,
    upstream::{self, AnyBody, BoxError, ERROR_TYPE, error_report, full, json_headers},
};

/// How long after the deadline the layer waits for the function's answer, to record it: Lambda's longest timeout, since a
/// frozen function goes on in the next invocation.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(15 * 60);
/// How long the layer waits for the function's answer if the deadline is unknown: as long as the longest lease.
const LONGEST_RUN: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest name of an operation, in bytes.
const LONGEST_NAME: usize = 128;
/// The type of an error of the layer itself.
pub(crate) const INTERNAL: &str = "Idempotency.Internal";

/// Why a durable function's event is refused.
const DURABLE: &str = "the event belongs to a durable execution, which the layer can't protect: it would record the \
                       function's first answer, such as PENDING, as the outcome, and the execution would never end. \
                       Durable functions have their own checkpoints. Take the layer off this function, or set \
                       IDEMPOTENCY_MODE=off";

/// The answer to an invocation, for the Runtime API.
pub(crate) enum Answer {
    /// The function's answer, as posted.
    Own(Box<Posted>),
    /// An answer that the layer made.
    Made { is_error: bool, headers: HeaderMap, body: AnyBody },
}

impl Answer {
    /// An error of the library, or of the layer.
    pub(crate) fn error(error: impl Into<Diagnostic>) -> Self {
        let Diagnostic { error_type, error_message } = error.into();
        let error_message = logs::in_variables(&error_message);
        let mut headers = json_headers();
        if let Ok(error_type) = HeaderValue::from_str(&error_type) {
            headers.insert(ERROR_TYPE, error_type);
        }
        Self::Made { is_error: true, headers, body: full(error_report(&error_type, &error_message)) }
    }

    /// A JSON response.
    fn json(json: impl Into<bytes::Bytes>) -> Self {
        Self::Made { is_error: false, headers: json_headers(), body: full(json) }
    }

    /// A response that's written as JSON.
    pub(crate) fn json_of(response: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(response) {
            Ok(json) => Self::json(json),
            Err(_) => Self::refusal(INTERNAL, "the response can't be written as JSON"),
        }
    }

    /// The refusal of an event that the library doesn't get to see. In shadow mode, the function runs the event.
    pub(crate) fn refused(protection: &Protection, kind: ErrorKind, message: &str) -> Self {
        if protection.rules.settings.mode == Mode::Enforce {
            protection.telemetry.refused(kind);
            tracing::info!(event = "refused", kind = kind.as_str(), "refused: {message}");
        }
        Self::refusal(&format!("Idempotency.{}", kind.as_str()), message)
    }

    /// An error of the layer, for a case that the library has no error for.
    pub(crate) fn refusal(error_type: &str, message: &str) -> Self {
        Self::error(Diagnostic { error_type: error_type.into(), error_message: message.into() })
    }
}

/// Runs one invocation, and posts its answer. A panic ends only this invocation.
pub(crate) async fn invoke(protection: &Arc<Protection>, event: &Arc<Event>) {
    run(protection, event, protected(Arc::clone(protection), Arc::clone(event))).await;
}

async fn run(
    protection: &Arc<Protection>,
    event: &Arc<Event>,
    protected: impl Future<Output = ()> + Send + 'static,
) {
    if tokio::spawn(protected.in_current_span()).await.is_ok() {
        return;
    }
    let passes = passes_after_panic(protection, event);
    tracing::error!(
        request_id = event.request_id(),
        may_be_claimed = event.may_be_claimed(),
        has_begun = event.has_begun(),
        passes,
        "the layer panicked; this is a bug in the layer"
    );
    protection.telemetry.internal_error();
    let answer = match passes {
        true => unprotected(protection, event).await,
        false => Answer::refusal(INTERNAL, "the idempotency layer failed; its log says more"),
    };
    post(protection, event, answer).await;
}

/// Whether the function gets the event after a panic. If the function was called before the panic, it doesn't get the
/// event again. Otherwise it gets the event in shadow mode. In the mode `enforce`, the user must have allowed that, and
/// the library mustn't have been called yet. After its call, the event's record may be complete, and another run would
/// repeat the operation.
fn passes_after_panic(protection: &Protection, event: &Event) -> bool {
    let Rules { settings, passes_internal_errors, .. } = &protection.rules;
    let is_shadow = settings.mode != Mode::Enforce;
    !event.has_begun() && (is_shadow || *passes_internal_errors && !event.may_be_claimed())
}

/// Runs the event without protection.
async fn unprotected(protection: &Arc<Protection>, event: &Arc<Event>) -> Answer {
    protection.telemetry.unprotected();
    let turn = Turn::new(protection, event);
    match (turn.run(|_: &Posted| ()).await, turn.take()) {
        (_, Some(posted)) => Answer::Own(Box::new(posted)),
        (Err(failure), None) => Answer::error(failure),
        (Ok(()), None) => Answer::refusal(INTERNAL, "the function's answer was lost"),
    }
}

async fn protected(protection: Arc<Protection>, event: Arc<Event>) {
    let rules = &protection.rules;
    let kind = event.kind_or(rules.kind);
    let longest = event.time_left().map_or(LONGEST_RUN, |left| left.saturating_add(GIVEN_UP_AFTER));
    let answering = async {
        if let Some(ClaimField::Event(name)) = &rules.claim_field
            && let Some(owner) = owner_of(name, &event, kind)
        {
            let message =
                format!("{owner} already has a field `{name}`; set IDEMPOTENCY_CLAIM_FIELD to another name");
            return Some(Answer::refused(&protection, ErrorKind::Invalid, &message));
        }
        match kind {
            Kind::Event => one(&protection, &event).await,
            Kind::Http => http_event::request(&protection, &event).await,
            Kind::Sqs => Some(batch::sqs(&protection, &event).await),
            Kind::Kinesis => Some(batch::kinesis(&protection, &event).await),
            Kind::DynamoDb => Some(batch::dynamodb(&protection, &event).await),
            Kind::Durable => Some(Answer::refusal("Idempotency.Invalid", DURABLE)),
        }
    };
    match tokio::time::timeout(longest, Box::pin(answering)).await {
        // A refusal, since the function wasn't called. In shadow mode, the function runs the event instead.
        Ok(Some(_)) if rules.settings.mode != Mode::Enforce && !event.has_begun() => {
            let answer = unprotected(&protection, &event).await;
            post(&protection, &event, answer).await;
        }
        Ok(Some(answer)) => post(&protection, &event, answer).await,
        // The answer was sent already.
        Ok(None) => {}
        Err(_) => tracing::warn!(request_id = event.request_id(), "the function never answered"),
    }
}

/// Returns which part of the event already has a field of this name: the event itself, or a record of the batch. If the
/// layer added its own field of the same name, most parsers would read the layer's field instead.
fn owner_of(name: &str, event: &Event, kind: Kind) -> Option<&'static str> {
    if has_field(&event.body, name) {
        return Some("the event");
    }
    let is_batch = matches!(kind, Kind::Sqs | Kind::Kinesis | Kind::DynamoDb);
    let has_it = || batch::records(event).iter().any(|record| has_field(record.get().as_bytes(), name));
    (is_batch && has_it()).then_some("a record of the batch")
}

/// Protects an event that's one operation. `None` if its answer was sent already.
async fn one(protection: &Arc<Protection>, event: &Arc<Event>) -> Option<Answer> {
    let rules = &protection.rules;
    let passes_unkeyed = rules.passes_unkeyed.unwrap_or(false);
    let Some(raw) = raw(event) else {
        let message = "the event isn't JSON, so it has no idempotency key";
        return Some(match passes_unkeyed {
            true => unprotected(protection, event).await,
            false => Answer::refused(protection, ErrorKind::MissingKey, message),
        });
    };
    let turn = Turn::new(protection, event);
    let layer = rules.key.layer(&protection.idempotency).required(!passes_unkeyed);
    let layer = match event.tool() {
        Some(tool) => match layer.operation(of_tool(rules.operation.as_deref(), &tool)) {
            Ok(layer) => layer,
            Err(error) => return Some(Answer::error(error)),
        },
        None => layer,
    };
    let layer = match &rules.compare {
        Some(fields) => match layer.fingerprint_fields(fields.iter().map(String::as_str)) {
            Ok(layer) => layer,
            Err(error) => return Some(Answer::error(error)),
        },
        None => layer,
    };
    let layer = match &rules.not_retained {
        Some(answer) => layer.on_not_retained(answer.clone()),
        None => layer,
    };
    let replayed = turn.clone();
    let layer = layer.on_replay(move |_| {
        replayed.replays();
        []
    });
    let (function, most) = (turn.clone(), rules.max_response);
    let inner = service_fn(move |_: LambdaEvent<IgnoredAny>| {
        let function = function.clone();
        async move { function.run(|posted| Recordable::of(posted, most)).await }
    });
    let calling = layer.layer(inner).oneshot(LambdaEvent::new(raw, event.context.clone()));
    let ended = in_time(protection, event, &turn, calling).await?;
    let own = turn.take().map(Box::new);
    Some(match (ended, own) {
        (Ok(_), Some(own)) if !turn.is_replay() => Answer::Own(own),
        (Ok(recorded), own) => {
            let (headers, body) = recorded::replayed(recorded);
            also(own, Answer::Made { is_error: false, headers, body })
        }
        (Err(RunError::Handler(_)), Some(own)) => Answer::Own(own),
        (Err(RunError::Recorded(_)), Some(own)) if !turn.is_replay() => Answer::Own(own),
        (Err(RunError::Idempotency(error)), Some(own))
            if own.is_larger_than(most) && error.kind() == ErrorKind::Invalid && !turn.is_replay() =>
        {
            Answer::Own(own)
        }
        (Err(error), own) => also(own, Answer::error(error)),
    })
}

/// The operation's name for a tool: the tool's own name, or its hash if a name can't have its characters or its length.
fn of_tool(operation: Option<&str>, tool: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let whole = operation.map_or_else(String::new, |operation| format!("{operation}."));
    if !tool.is_empty() && tool.chars().all(is_name) && whole.len() + tool.len() <= LONGEST_NAME {
        return whole + tool;
    }
    let digest = Sha256::digest(tool);
    digest.iter().take(16).fold(whole + "tool.", |name, byte| format!("{name}{byte:02x}"))
}

/// Returns `answer`. If the function has answered too, tells the function that its own answer was accepted.
fn also(own: Option<Box<Posted>>, answer: Answer) -> Answer {
    if let Some(own) = own {
        accept(own.reply);
    }
    answer
}

/// Tells the function that its answer was accepted.
pub(crate) fn accept(reply: oneshot::Sender<Response<AnyBody>>) {
    // The function may have hung up.
    let _ = reply.send(accepted());
}

/// The Runtime API's response to an answer that it accepted.
pub(crate) fn accepted() -> Response<AnyBody> {
    upstream::answer(http::StatusCode::ACCEPTED, &b"{\"status\":\"OK\"}"[..])
}

/// Awaits the library's call, and returns its result. If the deadline comes near while the call records the function's
/// answer, posts the answer immediately, waits until the call ends, and returns `None`.
pub(crate) async fn in_time<T>(
    protection: &Arc<Protection>,
    event: &Arc<Event>,
    turn: &Turn,
    calling: impl Future<Output = T>,
) -> Option<T> {
    event.claims();
    let mut calling = pin!(calling);
    let reserve = protection.rules.settings.answer_reserve / Limits::HARD_FLOOR;
    let overdue = async {
        turn.answered().await;
        match event.time_left().map(|left| left.saturating_sub(reserve)) {
            // The deadline is unknown, or it was already near when the function answered. In both cases, the answer is
            // posted only after the library's call has ended.
            None | Some(Duration::ZERO) => std::future::pending().await,
            Some(left) => system_clock().sleep(left).await,
        }
        // The process was frozen past the deadline. Lambda takes no answer any more, and another delivery may have taken
        // over, so wait for the recorded answer.
        if event.is_over() {
            std::future::pending().await
        }
    };
    tokio::select! {
        biased;
        ended = &mut calling => return Some(ended),
        () = overdue => {}
    }
    if let Some(own) = turn.take() {
        tracing::warn!(
            request_id = event.request_id(),
            "posting the answer before its outcome is recorded, since the deadline is near"
        );
        post(protection, event, Answer::Own(Box::new(own))).await;
    }
    let _ = calling.await;
    // Write the metrics that the library has counted since the answer was posted.
    protection.telemetry.flush();
    None
}

/// The event as JSON. `None` if it isn't JSON.
pub(crate) fn raw(event: &Event) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(&event.body).ok()?;
    RawValue::from_string(text.to_owned()).ok()
}

/// Posts the answer, unless the invocation was answered already.
pub(crate) async fn post(protection: &Protection, event: &Event, answer: Answer) {
    let (is_error, headers, body, reply) = match answer {
        Answer::Own(posted) => {
            let Posted { is_error, mut headers, body, reply } = *posted;
            let body = sent(&mut headers, body);
            (is_error, event.answering(headers), body, Some(reply))
        }
        Answer::Made { is_error, headers, body } => (is_error, event.answering(headers), body, None),
    };
    if !event.answers_now() {
        return reply.map(accept).unwrap_or_default();
    }
    protection.telemetry.flush();
    let path = format!("invocation/{}/{}", event.request_id(), if is_error { "error" } else { "response" });
    let answered = protection.upstream.post(&path, headers, body).await;
    event.posted();
    tell(protection, event, &answered);
    if let Some(reply) = reply {
        if is_late(&answered) {
            // Hide the rejection: the function can't do anything about it, and Go's runtime client would exit.
            return accept(reply);
        }
        let answered = answered.map(|response| response.map(full));
        let answered = answered.unwrap_or_else(|_| upstream::answer(http::StatusCode::BAD_GATEWAY, ""));
        // The function may have hung up.
        let _ = reply.send(answered);
    }
}

/// Whether Lambda rejected the answer because it was late.
fn is_late(answered: &Result<Response<bytes::Bytes>, BoxError>) -> bool {
    answered.as_ref().is_ok_and(|response| response.status() == http::StatusCode::GONE)
}

/// Logs the Runtime API's response to an answer, unless it's a success.
fn tell(protection: &Protection, event: &Event, answered: &Result<Response<bytes::Bytes>, BoxError>) {
    let request_id = event.request_id();
    match answered {
        Ok(response) if response.status().is_success() => {}
        _ if is_late(answered) => {
            protection.telemetry.late_answer();
            tracing::info!(request_id, "the answer was late, and Lambda rejected it");
        }
        Ok(response) => {
            let status = response.status().as_u16();
            tracing::warn!(request_id, status, "the Runtime API rejected the answer");
        }
        Err(error) => tracing::error!(request_id, error = &**error, "couldn't post the answer to Lambda"),
    }
}
