//! The proxy: serves the Runtime API to the function, and is a client of the real one.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use lambda_idempotency::{
    Idempotency,
    settings::Mode,
    time::{Clock as _, system_clock},
};
use lambda_runtime::SnapStartResource as _;
use tokio::sync::{oneshot, watch};
use tracing::Instrument as _;

use crate::{
    answer::{accepted, announce_trailers, sent},
    config::Rules,
    event::Event,
    function::{Function, Payload, Posted},
    http as http_event, invoke, logs,
    memory::Gathered,
    recorded,
    telemetry::Telemetry,
    turn::Protection,
    upstream::{
        self, AnyBody, BoxError, ERROR_TYPE, INVOCATION_ID, MAX_BUFFERED, Upstream, VERSION, answer,
        error_report,
    },
};

/// How long the layer waits for the runtime's first request before it logs a warning. It waits only if protection is
/// required. In an on-demand function, Lambda ends the init after 10 s, and the layer's program with it.
const SLOW_INIT: Duration = Duration::from_secs(8);

/// The Runtime API for the function.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    upstream: Upstream,
    /// `None` if the layer is switched off: every request passes through.
    protection: Option<Arc<Protection>>,
    telemetry: Telemetry,
}

/// A request of the function.
enum Route<'r> {
    Next,
    /// The answer to the event of this request id: a response, or an error.
    Answer {
        request_id: &'r str,
        is_error: bool,
    },
    /// Possibly a poll in another spelling. If the proxy passed it on, an event could reach the function unprotected.
    Unclear,
    Other,
}

fn route<'r>(method: &http::Method, path: &'r str) -> Route<'r> {
    let below =
        path.strip_prefix(VERSION).and_then(|path| path.strip_prefix("/invocation/")).unwrap_or_default();
    match (method, below.split_once('/')) {
        (&http::Method::GET, None) if below == "next" => Route::Next,
        (&http::Method::POST, Some((request_id, "response"))) => {
            Route::Answer { request_id, is_error: false }
        }
        (&http::Method::POST, Some((request_id, "error"))) => Route::Answer { request_id, is_error: true },
        _ if path.contains('%') || path.to_ascii_lowercase().contains("invocation") => Route::Unclear,
        _ => Route::Other,
    }
}

/// Whether a runtime waits for the restore from a snapshot by this request. Once it's answered, the layer's process is
/// restored too, and the connections that it had open look alive, but are dead.
fn is_restore(path: &str) -> bool {
    path.strip_prefix(VERSION) == Some("/restore/next")
}

impl Protection {
    /// Creates protection with these parts.
    ///
    /// # Errors
    ///
    /// If the library refuses the settings.
    pub(crate) fn new(
        idempotency: Idempotency,
        rules: Rules,
        upstream: Upstream,
        telemetry: Telemetry,
    ) -> Result<Arc<Self>, lambda_idempotency::Error> {
        let http = idempotency.with_settings(|settings| settings.max_response = rules.max_response)?;
        let http = http_event::layer(&rules, &http)?;
        let function = Function::new(rules.settings.execution);
        let streams = AtomicBool::new(rules.streams);
        let has_request = watch::Sender::new(false);
        let is_bypassed = AtomicBool::new(false);
        Ok(Arc::new(Self {
            idempotency,
            http,
            rules,
            function,
            upstream,
            telemetry,
            streams,
            has_request,
            is_bypassed,
        }))
    }

    /// Begins as many polls of the real Runtime API as the function's waiting polls need.
    pub(crate) fn pump(self: &Arc<Self>) {
        for _ in 0..self.function.polls_to_begin() {
            let protection = Arc::clone(self);
            tokio::spawn(async move { protection.poll().await });
        }
    }

    /// Polls once, and runs the invocation that Lambda hands out.
    async fn poll(self: Arc<Self>) {
        let polled = match self.upstream.next().await {
            Ok(response) => Event::of(response),
            Err(error) => {
                tracing::error!(error = &*error, "the Runtime API doesn't answer");
                self.function.polled(None);
                return self.function.pass(answer(StatusCode::BAD_GATEWAY, Bytes::new()));
            }
        };
        match polled {
            Ok(event) => {
                let event = Arc::new(event);
                self.function.polled(Some(&event));
                let invocation = logs::invocation(event.request_id());
                invoke::invoke(&self, &event).instrument(invocation).await;
                self.function.closed(&event);
                self.pump();
            }
            Err(refusal) => {
                self.function.polled(None);
                self.function.pass(refusal.map(upstream::full));
            }
        }
    }

    async fn next(self: &Arc<Self>) -> Response<AnyBody> {
        match self.function.next() {
            Ok(event) => event,
            Err(event) => {
                self.pump();
                event.await.unwrap_or_else(|_| answer(StatusCode::BAD_GATEWAY, Bytes::new()))
            }
        }
    }

    /// Takes the function's answer, and returns the Runtime API's response to it.
    async fn answered(
        &self,
        request_id: &str,
        is_error: bool,
        request: Request<Incoming>,
    ) -> Result<Response<AnyBody>, BoxError> {
        let invocation_id = request.headers().get(INVOCATION_ID).cloned();
        let Some(limit) = self.function.limit_of(request_id, invocation_id.as_ref()) else {
            // The function isn't running this event. For example, it answers the event for the second time. If the
            // proxy passed that answer on, Lambda would take it instead of the layer's answer.
            if self.function.will_be_answered(request_id, invocation_id.as_ref()) {
                return Ok(accepted());
            }
            return pass(&self.upstream, request).await;
        };
        let path = request.uri().path().to_owned();
        let (parts, body) = request.into_parts();
        let body = read(body, enough(is_error, &parts.headers, limit)).await?;
        // Take the event only after reading the body. If the body breaks off, the event must still count as running.
        let Some(waiting) = self.function.answered(request_id, invocation_id.as_ref()) else {
            if self.function.will_be_answered(request_id, invocation_id.as_ref()) {
                return Ok(accepted());
            }
            return self.late(&path, parts.headers, body).await;
        };
        let (reply, replied) = oneshot::channel();
        let sent = waiting.send(Ok(Posted { is_error, headers: parts.headers, body, reply }));
        let replied = match sent {
            Ok(()) => replied.await.map_err(|_| ()),
            Err(_) => Err(()),
        };
        // If the invocation was answered without this answer, tell the function that its answer was accepted.
        Ok(replied.unwrap_or_else(|()| accepted()))
    }

    async fn late(
        &self,
        path: &str,
        mut headers: HeaderMap,
        body: Payload,
    ) -> Result<Response<AnyBody>, BoxError> {
        let path = path.strip_prefix(VERSION).unwrap_or(path).trim_start_matches('/');
        let body = sent(&mut headers, body);
        Ok(self.upstream.post(path, headers, body).await?.map(upstream::full))
    }

    /// Waits until the function's runtime has sent a request. Logs a warning if that takes long.
    pub(crate) async fn reached(&self) {
        let mut requests = self.has_request.subscribe();
        let mut reached = pin!(async { requests.wait_for(|has_request| *has_request).await.is_ok() });
        if tokio::time::timeout(SLOW_INIT, &mut reached).await.is_err() {
            tracing::warn!(
                "the function's runtime hasn't sent the layer a request yet, and gets no event until it does. Either \
                 the function's init is slow, or the layer isn't in front of the runtime. In the second case, start \
                 the runtime with /opt/idempotency-wrapper, as AWS_LAMBDA_EXEC_WRAPPER or in a bootstrap or \
                 ENTRYPOINT. To run the function unprotected, set IDEMPOTENCY_MODE=off!, or IDEMPOTENCY_REQUIRED=0"
            );
            reached.await;
        }
    }

    /// Notes that Lambda has handed out an invocation. If the function's runtime hasn't sent a request, logs an error
    /// the first time, and counts the event as not enforced: a runtime behind the layer has polled before its first
    /// invocation.
    pub(crate) fn invoked(&self) {
        if *self.has_request.borrow() {
            return;
        }
        if !self.is_bypassed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                event = "not_enforced",
                "the function gets events, but its runtime never sent the layer a request, so nothing protects the \
                 events: the layer isn't in front of the runtime. Start the runtime with /opt/idempotency-wrapper, as \
                 AWS_LAMBDA_EXEC_WRAPPER or in a bootstrap or ENTRYPOINT"
            );
        }
        self.telemetry.not_enforced();
        self.telemetry.flush();
    }

    /// Notes the sandbox's normal end, for platforms that don't announce invocations. If the function's runtime never
    /// sent a request, logs an error and counts the sandbox as not enforced, unless [`invoked`](Self::invoked) has done
    /// so.
    pub(crate) fn check_reached(&self) {
        if !self.is_bypassed.load(Ordering::Relaxed) {
            self.invoked();
        }
    }

    /// Notes that the function's process has ended: the claims that it hasn't answered get a short lease. Call
    /// [`settled`](Self::settled) afterwards.
    ///
    /// On Managed Instances, the end of one worker says nothing about the others, so nothing changes.
    pub(crate) fn function_ended(&self) {
        if !self.rules.is_managed && self.rules.settings.mode == Mode::Enforce {
            self.function.ended();
        }
    }

    /// Waits until the function's answers are recorded and sent, for at most `longest`. Then writes the last metrics.
    pub(crate) async fn settled(&self, longest: Duration) {
        let settled = async {
            while !self.function.settling().is_empty() {
                system_clock().sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(longest, settled).await;
        let is_enforced = self.rules.settings.mode == Mode::Enforce;
        for event in self.function.unsettled().iter().filter(|_| is_enforced) {
            tracing::error!(
                request_id = event.request_id(),
                "the layer ends before it knows that the function's answer is recorded and sent. Find the event's \
                 record, and check whether the function did its work"
            );
            self.telemetry.unrecorded();
        }
        self.telemetry.flush();
    }
}

impl Proxy {
    /// The proxy in front of `upstream`.
    pub(crate) fn new(upstream: Upstream, protection: Option<Arc<Protection>>, telemetry: Telemetry) -> Self {
        Self { upstream, protection, telemetry }
    }

    /// Answers a request of the function.
    ///
    /// # Errors
    ///
    /// If the real Runtime API can't be reached, or a connection breaks. The function's connection is then closed.
    pub(crate) async fn handle(self, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
        let Some(protection) = &self.protection else { return self.unenforced(request).await };
        protection.has_request.send_if_modified(|has_request| !std::mem::replace(has_request, true));
        let path = request.uri().path().to_owned();
        match route(request.method(), &path) {
            Route::Next => Ok(protection.next().await),
            Route::Answer { request_id, is_error } => {
                protection.answered(request_id, is_error, request).await
            }
            Route::Unclear => {
                tracing::warn!("refused a request: the layer doesn't know its path in the Runtime API");
                let report = error_report(
                    "Idempotency.Invalid",
                    "the layer doesn't know this path in the Runtime API",
                );
                Ok(answer(StatusCode::NOT_FOUND, report))
            }
            Route::Other => {
                let response = pass(&self.upstream, request).await?;
                if is_restore(&path) {
                    protection.idempotency.after_restore().await?;
                }
                Ok(response)
            }
        }
    }

    /// Passes a request on. If the request is a poll and gets an event, counts the event as not enforced.
    async fn unenforced(&self, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
        let is_poll = matches!(route(request.method(), request.uri().path()), Route::Next);
        let response = pass(&self.upstream, request).await?;
        if is_poll && response.status().is_success() {
            self.telemetry.not_enforced();
            self.telemetry.flush();
        }
        Ok(response)
    }
}

async fn pass(upstream: &Upstream, mut request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
    announce_trailers(request.headers_mut());
    let is_restore = is_restore(request.uri().path());
    let request = request.map(|body| body.map_err(BoxError::from).boxed_unsync());
    let response = upstream.pass(request).await?;
    if is_restore {
        upstream.close_connections();
    }
    Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
}

/// Returns a closure for reading an answer with these headers. Call the closure with each part of the body: it returns
/// true once the rest needn't be read.
///
/// A stream is read until its body has more than `most` bytes, which is too large to record. The head of an HTTP
/// response doesn't count as body. It's read to its end, since the status decides whether the response is an outcome.
///
/// An error, streamed JSON, and an answer that isn't a stream have a higher limit: `MAX_BUFFERED`, or `most` if that's
/// larger. Only complete JSON shows whether it's an HTTP response or a list of a batch's failures, and some front ends
/// buffer streamed JSON.
fn enough(is_error: bool, headers: &HeaderMap, most: usize) -> impl FnMut(&[u8]) -> bool + use<> {
    let has_limit = !is_error && recorded::is_streamed(headers) && !recorded::is_json(headers);
    let mut head = http_event::Head::of(headers);
    let (mut length, longest) = (0_usize, most.max(MAX_BUFFERED));
    move |part| {
        length = length.saturating_add(part.len());
        length > longest || has_limit && head.body_after(part).is_some_and(|body| body > most)
    }
}

/// Reads a body to its end, or until `is_enough` returns true for a part.
async fn read(mut body: Incoming, mut is_enough: impl FnMut(&[u8]) -> bool) -> Result<Payload, BoxError> {
    let mut gathered = Gathered::of(&body);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                let stops = is_enough(&data);
                gathered.push(data);
                if stops {
                    return Ok(Payload::Endless(vec![gathered.bytes()], body));
                }
            }
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) if trailers.contains_key(ERROR_TYPE) => {
                    return Ok(Payload::Broken(gathered.bytes(), trailers));
                }
                _ => {}
            },
        }
    }
    Ok(Payload::Whole(gathered.bytes()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};

    use super::*;

    #[test]
    fn only_polls_and_answers_are_intercepted() {
        assert!(matches!(route(&Method::GET, "/2018-06-01/runtime/invocation/next"), Route::Next));
        assert!(matches!(
            route(&Method::POST, "/2018-06-01/runtime/invocation/a/error"),
            Route::Answer { request_id: "a", is_error: true }
        ));
        for (method, path) in [
            (Method::POST, "/2018-06-01/runtime/init/error"),
            (Method::GET, "/2018-06-01/runtime/restore/next"),
            (Method::GET, "/2020-01-01/extension/event/next"),
            (Method::PUT, "/2022-07-01/telemetry"),
        ] {
            assert!(matches!(route(&method, path), Route::Other), "{path}");
        }
    }

    #[test]
    fn heads_and_json_may_exceed_the_limit() {
        let stops = |content_type, parts: &[&[u8]]| {
            let headers = recorded::headers_of(Some(HeaderValue::from_static(content_type)), true);
            let mut is_enough = enough(false, &headers, 3);
            parts.iter().map(|part| is_enough(part)).collect::<Vec<_>>()
        };
        let head: [&[u8]; 3] = [b"{\"statusCode\":503}", &[0; 8], b"text"];
        assert_eq!(stops("application/octet-stream", &head), [false, false, true]);
        assert_eq!(stops("application/json", &[b"{\"statusCode\":", b"503}"]), [false, false]);
        assert_eq!(stops("text/plain", &[b"one", b" two"]), [false, true]);
    }

    #[test]
    fn other_spellings_of_a_poll_are_refused() {
        for (method, path) in [
            (Method::GET, "/2018-06-01/runtime/invocation/next/"),
            (Method::GET, "/2018-06-01/runtime//invocation/next"),
            (Method::GET, "/2018-06-01/runtime/Invocation/Next"),
            (Method::GET, "/2018-06-01/runtime/%69nvocation/next"),
            (Method::HEAD, "/2018-06-01/runtime/invocation/next"),
            (Method::POST, "/2018-06-01/runtime/invocation/next"),
            (Method::GET, "/2019-01-01/runtime/invocation/next"),
            (Method::GET, "/2018-06-01/runtime/invocation/a/response"),
        ] {
            assert!(matches!(route(&method, path), Route::Unclear), "{path}");
        }
    }
}
