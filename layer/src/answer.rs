//! The answer to an invocation: what the function or the layer answers, and how it's posted to the Runtime API.

use std::{pin::pin, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use lambda_idempotency::{
    ErrorKind,
    protocol::Limits,
    settings::Mode,
    time::{Clock as _, system_clock},
};
use lambda_runtime::Diagnostic;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::{
    event::Event,
    function::{Payload, Posted},
    logs, recorded,
    turn::{Protection, Turn},
    upstream::{self, AnyBody, BoxError, Chunked, ERROR_TYPE, error_report, full, json_headers},
};

/// The type of an error of the layer itself.
pub(crate) const INTERNAL: &str = "Idempotency.Internal";

/// The trailers of a stream that ends with an error ("Building a custom runtime", AWS Lambda developer guide).
const ERROR_TRAILERS: &str = "lambda-runtime-function-error-type, lambda-runtime-function-error-body";

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

/// Converts the body of the function's answer, to send it to Lambda. Announces the body's trailers in `headers`.
pub(crate) fn sent(headers: &mut HeaderMap, body: Payload) -> AnyBody {
    match body {
        Payload::Whole(bytes) => recorded::body_of(bytes, recorded::is_streamed(headers)),
        Payload::Broken(bytes, trailers) => {
            // hyper drops trailers that the header `trailer` doesn't announce. Without the trailers, Lambda would treat
            // the broken stream as complete.
            let names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
            if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
                headers.insert(header::TRAILER, names);
            }
            Chunked::body([bytes], None, Some(trailers))
        }
        Payload::Endless(begun, rest) => {
            announce_trailers(headers);
            Chunked::body(begun, Some(rest), None)
        }
    }
}

/// Announces an error's trailers in the headers of a stream. A runtime needn't announce them, but hyper drops trailers
/// that aren't announced. HTTP allows an announced trailer to be missing, so a stream may also end without an error.
pub(crate) fn announce_trailers(headers: &mut HeaderMap) {
    if recorded::is_streamed(headers) && !headers.contains_key(header::TRAILER) {
        headers.insert(header::TRAILER, HeaderValue::from_static(ERROR_TRAILERS));
    }
}
