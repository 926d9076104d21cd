//! Fuzzes the proxy's edge: sends any bytes through the real connection code, as if a function sent them, but without a
//! socket.
//!
//! A simulated Lambda hands out an event, its duplicate, and another event. First the fuzzer's bytes arrive on one
//! connection. Then a correct runtime polls and answers on a second connection.

use std::{
    cell::Cell,
    collections::VecDeque,
    panic::{set_hook, take_hook},
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use lambda_idempotency::{
    store::memory::MemoryStore,
    time::{Clock as _, system_clock},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    http::{LONGEST_HEAD, is_stream},
    in_memory,
    proxy::Proxy,
    recorded, server,
    telemetry::Telemetry,
    turn::Protection,
    upstream::{AnyBody, BoxError, ERROR_TYPE, INVOCATION_ID, REQUEST_ID, Upstream, VERSION, answer},
};

/// The limit for recorded answers. It's low, so that small inputs exceed it.
const MAX_RESPONSE: usize = 200;
/// How long to wait until the layer is idle. The clock is paused, so this time passes once no task has work left.
const IDLE: Duration = Duration::from_millis(1);
/// The runtime's answer to each event. It's valid as an HTTP response too.
const OWN_ANSWER: &[u8] = br#"{"statusCode":200,"body":"own"}"#;
/// The request id and the operation of each event: an event, its duplicate, and another event.
const EVENTS: [(&str, u32); 3] = [("x", 1), ("y", 1), ("z", 2)];
/// The bit of the first byte that makes the events HTTP requests.
const IS_HTTP: u8 = 0x80;

const SETTINGS: [(&str, &str); 4] = [
    ("IDEMPOTENCY_STORE", "memory:"),
    ("IDEMPOTENCY_KEY", "/id"),
    ("IDEMPOTENCY_MAX_RESPONSE", "200"),
    ("AWS_LAMBDA_FUNCTION_NAME", "fuzz"),
];

/// An answer that Lambda accepted.
#[derive(Clone, Debug)]
struct Answered {
    is_error: bool,
    is_broken: bool,
    /// Whether it's a streamed HTTP response.
    is_stream: bool,
    /// Whether it's a stream of any kind.
    is_streamed: bool,
    /// An upper bound on the bytes that the record of an HTTP response needs for the head, in addition to `body`.
    head: usize,
    /// Whether no event can carry the content type, because it isn't UTF-8.
    is_unsendable: bool,
    body: Bytes,
}

#[derive(Debug, Default)]
struct State {
    is_http: bool,
    /// The events to hand out next, as indexes of `EVENTS`.
    queue: VecDeque<usize>,
    /// Whether each event was handed out, and its first answer.
    events: [(bool, Option<Answered>); EVENTS.len()],
}

/// Lambda's Runtime API, in memory.
#[derive(Clone, Debug, Default)]
struct Lambda(Arc<Mutex<State>>);

impl Lambda {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer_to(&self, event: usize) -> Option<Answered> {
        self.state().events[event].1.clone()
    }

    async fn serve(self, request: Request<Incoming>) -> Result<Response<AnyBody>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let path = parts.uri.path().strip_prefix(VERSION).unwrap_or_default();
        Ok(match path.strip_prefix("/invocation/").map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
            Some(("next", "")) if parts.method == http::Method::GET => self.next(),
            Some((id, kind @ ("response" | "error"))) if parts.method == http::Method::POST => {
                let answered = Answered {
                    is_error: kind == "error",
                    is_broken: trailers.contains_key(ERROR_TYPE),
                    is_stream: is_stream(&parts.headers),
                    is_streamed: recorded::is_streamed(&parts.headers),
                    // JSON escapes a character of a content type with at most one more byte.
                    head: 100 + 2 * parts.headers.get("content-type").map_or(0, |name| name.len()),
                    is_unsendable: parts
                        .headers
                        .get_all("content-type")
                        .iter()
                        .any(|value| std::str::from_utf8(value.as_bytes()).is_err()),
                    body: body.to_bytes(),
                };
                self.answered(id, &parts.headers, answered)
            }
            _ => answer(StatusCode::NOT_FOUND, "{}"),
        })
    }

    fn next(&self) -> Response<AnyBody> {
        let mut state = self.state();
        let Some(at) = state.queue.pop_front() else { return answer(StatusCode::FORBIDDEN, "{}") };
        state.events[at].0 = true;
        let (id, event) = EVENTS[at];
        let event = event_of(event, state.is_http);
        let deadline = system_clock().now().saturating_add(Duration::from_secs(600)).as_millis();
        let mut response = answer(StatusCode::OK, event);
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, http::HeaderValue::from_static(id));
        headers.insert(INVOCATION_ID, http::HeaderValue::from_static(id));
        headers.insert("lambda-runtime-deadline-ms", deadline.into());
        response
    }

    fn answered(&self, id: &str, headers: &HeaderMap, answered: Answered) -> Response<AnyBody> {
        let is_stale = headers.get(INVOCATION_ID).is_some_and(|sent| sent != id);
        let mut state = self.state();
        match EVENTS.iter().position(|(known, _)| *known == id) {
            Some(at) if !is_stale && state.events[at].0 && state.events[at].1.is_none() => {
                state.events[at].1 = Some(answered);
                answer(StatusCode::ACCEPTED, "{}")
            }
            _ => answer(StatusCode::BAD_REQUEST, "{}"),
        }
    }
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts this thread's panics. Without the count, the test would miss a task's panic, which Tokio catches.
fn watch_panics() {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            hook(panic);
        }));
    });
}

/// Checks the layer with `data`. In the first byte, the highest bit says whether the events are HTTP requests. The
/// other bits are the size of the pieces that the function sends. The remaining bytes are the data that the function
/// sends on its first connection.
///
/// Call it on a Tokio runtime with one thread and a paused clock.
///
/// # Panics
///
/// If the layer panics, answers a duplicate differently from its event, or stops serving.
pub async fn check(data: &[u8]) {
    watch_panics();
    let panics = PANICS.get();
    let lambda = Lambda::default();
    let proxy = proxy(&lambda);
    lambda.state().queue.push_back(0);
    let (first, bytes) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    lambda.state().is_http = first & IS_HTTP != 0;
    let heard = talk(&proxy, usize::from(first & !IS_HTTP), bytes).await;
    assert!(
        heard.is_empty() || heard.starts_with(b"HTTP/1."),
        "not HTTP: {:?}",
        String::from_utf8_lossy(&heard)
    );
    let first = lambda.clone().state().events[0].clone();
    lambda.state().queue.extend([1, 2]);
    let runs = run(&proxy).await;
    judge(&lambda, first, begins_unsuccessful_stream(bytes), &runs);
    assert_eq!(PANICS.get(), panics, "the layer panicked");
}

fn proxy(lambda: &Lambda) -> Proxy {
    let rules = match in_memory::rules(&SETTINGS) {
        Ok(rules) => rules,
        Err(problem) => panic!("{problem}"),
    };
    let store = Arc::new(MemoryStore::new());
    let idempotency = match rules.open_with(store, |builder| builder.function("fuzz")) {
        Ok(idempotency) => idempotency,
        Err(error) => panic!("{error}"),
    };
    let lambda = lambda.clone();
    let upstream = Upstream::in_memory(move || {
        let lambda = lambda.clone();
        in_memory::connection(move |request| lambda.clone().serve(request))
    });
    match Protection::new(idempotency, rules, upstream.clone(), Telemetry::default()) {
        Ok(protection) => Proxy::new(upstream, Some(protection), Telemetry::default()),
        Err(error) => panic!("{error}"),
    }
}

/// Sends the bytes in pieces, and hangs up once the layer is idle. Returns the layer's answer.
async fn talk(proxy: &Proxy, piece: usize, bytes: &[u8]) -> Vec<u8> {
    let (function, layer) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(server::connection(layer, proxy.clone()));
    let (mut reads, mut writes) = tokio::io::split(function);
    let mut heard = Vec::new();
    let sending = async {
        // A size of 0 sends all bytes at once.
        for part in bytes.chunks(if piece == 0 { usize::MAX } else { piece }) {
            if writes.write_all(part).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = sending => {}
        _ = reads.read_to_end(&mut heard) => {}
        () = system_clock().sleep(IDLE) => {}
    }
    drop((reads, writes));
    // The connection may break, but `PANICS` counts a panic of its task.
    let _ = serving.await;
    heard
}

/// Polls and answers like a runtime, until no event is left. Returns the request ids of the received events.
async fn run(proxy: &Proxy) -> Vec<String> {
    let mut got = Vec::new();
    let running = async {
        let mut sender = in_memory::connected(proxy.clone()).await?;
        while let Some((id, _)) = in_memory::polled(&mut sender).await? {
            got.push(id.clone());
            let status = in_memory::posted(&mut sender, &id, Ok(OWN_ANSWER.into())).await?;
            assert_eq!(status, StatusCode::ACCEPTED, "the layer rejected the answer to {id}");
        }
        Ok(())
    };
    let ended: Result<(), BoxError> = tokio::select! {
        ended = running => ended,
        () = system_clock().sleep(IDLE) => Ok(()),
    };
    if let Err(error) = ended {
        panic!("the runtime's connection broke: {error}");
    }
    got
}

/// An operation's event.
fn event_of(operation: u32, is_http: bool) -> Bytes {
    if !is_http {
        return format!("{{\"id\":{operation}}}").into();
    }
    let request = json!({
        "resource": "/pay", "path": "/pay", "httpMethod": "POST", "headers": {}, "multiValueHeaders": {},
        "requestContext": { "httpMethod": "POST", "identity": {}, "path": "/pay", "resourcePath": "/pay" },
        "body": format!("{{\"id\":{operation}}}"), "isBase64Encoded": false,
    });
    request.to_string().into()
}

/// Whether the bytes contain the head of a streamed HTTP response whose status isn't known to be a success. If such a
/// stream is too large to record, the layer releases the key after the head, and the rest of the stream may never come.
fn begins_unsuccessful_stream(bytes: &[u8]) -> bool {
    let find = |from: usize, part: &[u8]| {
        bytes.get(from..)?.windows(part.len()).position(|window| window == part).map(|at| from + at)
    };
    let Some(end) = find(0, &[0; 8]) else { return false };
    // Looks for the head at the beginning of the first request's body, or after the length of the body's first chunk.
    // If the head is elsewhere, its status is unknown.
    let status = || {
        let body = find(find(0, b"POST ")?, b"\r\n\r\n")? + 4;
        let begin = if bytes.get(body)? == &b'{' { body } else { find(body, b"\r\n")? + 2 };
        let head: Value = serde_json::from_slice(bytes.get(begin..end)?).ok()?;
        head["statusCode"].as_u64()
    };
    !status().is_some_and(|status| (200..400).contains(&status))
}

/// Checks that Lambda got the answers that the layer promises. `first` is the first event's state after the fuzzer's
/// bytes. If `may_release` is true, the layer may release the key even if Lambda didn't get the first event's answer.
fn judge(lambda: &Lambda, first: (bool, Option<Answered>), may_release: bool, runs: &[String]) {
    let (was_handed_out, answered) = first;
    let told = format!("first answer {answered:?}, then runs {runs:?}, events {:?}", lambda.state().events);
    let has_run = |id: &str| runs.iter().any(|run| run == id);
    assert_eq!(has_run("x"), !was_handed_out, "{told}");
    assert!(has_run("z"), "the other event never ran: {told}");
    assert_eq!(lambda.answer_to(2).map(|answer| answer.body), Some(OWN_ANSWER.into()), "{told}");
    let Some(again) = lambda.answer_to(1) else { panic!("no answer to the duplicate: {told}") };
    let is_http = lambda.state().is_http;
    let refused = |kind: &str| is_refused(&again, kind, is_http);
    let Some(first) = answered.or_else(|| lambda.answer_to(0)) else {
        // The connection broke before the function's answer was complete: before the answer began, in its middle, or in
        // a stream that's too large to record.
        let is_released = is_http && may_release && has_run("y") && again.body == OWN_ANSWER;
        let is_refused = refused("InProgress") || refused("NotRetained");
        assert!(is_refused && !has_run("y") || is_released, "{told}");
        return;
    };
    if first.is_error || first.is_broken {
        // A stream that's too large to record is settled before its error trailers arrive.
        let is_settled = first.is_broken && !first.is_error && first.body.len() > MAX_RESPONSE;
        let is_refused = is_settled && refused("NotRetained") && !has_run("y");
        assert!(has_run("y") || is_refused, "the key wasn't released: {told}");
    } else if is_http {
        judge_response(&first, &again, has_run("y"), &told);
    } else if first.body.len() > MAX_RESPONSE {
        assert!(refused("NotRetained") && !has_run("y"), "{told}");
    } else {
        assert!(!has_run("y") && !again.is_error && again.body == first.body, "{told}");
    }
}

/// Whether the layer refused the duplicate with an error of this type.
fn is_refused(again: &Answered, kind: &str, is_http: bool) -> bool {
    let text = String::from_utf8_lossy(&again.body);
    let code = match kind {
        "InProgress" => "in-progress",
        _ => "not-retained",
    };
    match is_http {
        true => !again.is_error && text.contains(code),
        false => again.is_error && text.contains(&format!("Idempotency.{kind}")),
    }
}

/// Checks the answer to a duplicate HTTP request.
fn judge_response(first: &Answered, again: &Answered, has_run: bool, told: &str) {
    let is_not_retained = is_refused(again, "NotRetained", true);
    match Meant::by(first) {
        Meant::Response(status, body) => {
            let is_success = (200..400).contains(&status);
            assert!(!(has_run && is_success), "the operation ran twice: {told}");
            let is_deliverable = first.body.len() + first.head <= MAX_RESPONSE && !first.is_unsendable;
            assert!(!is_not_retained || !is_deliverable, "{told}");
            assert!(!(is_success && body.len() > MAX_RESPONSE) || is_not_retained, "{told}");
            let is_replay = replayed(again) == Some((status, body));
            assert!(has_run || is_not_retained || is_replay, "{told}");
        }
        Meant::Nothing => assert!(has_run, "the key wasn't released: {told}"),
        Meant::Unclear => {}
    }
}

/// The status and the body of a replay, as the layer writes it.
fn replayed(again: &Answered) -> Option<(u64, Vec<u8>)> {
    let (head, streamed) = split(again)?;
    let head: Value = serde_json::from_slice(head).ok()?;
    let text = head["body"].as_str().unwrap_or_default();
    let body = match (streamed, head["isBase64Encoded"].as_bool()) {
        (Some(streamed), _) => streamed.to_vec(),
        (None, Some(true)) => STANDARD.decode(text).ok()?,
        (None, _) => text.as_bytes().to_vec(),
    };
    Some((head["statusCode"].as_u64()?, body))
}

/// Splits an HTTP response into its JSON and, if the response is a stream, the body behind the JSON. A stream of any
/// type may have such JSON as its head, since a REST API reads the head of any stream.
fn split(answered: &Answered) -> Option<(&[u8], Option<&[u8]>)> {
    let body: &[u8] = &answered.body;
    let end = body.windows(8).position(|window| window == [0; 8]);
    let parts = end.map(|end| (&body[..end], Some(&body[end + 8..])));
    if answered.is_stream {
        return parts;
    }
    let is_head = |head: &[u8]| matches!(serde_json::from_slice::<Value>(head), Ok(Value::Object(_)));
    parts.filter(|(head, _)| answered.is_streamed && is_head(head)).or(Some((body, None)))
}

/// How a front end understands an answer to an HTTP request.
enum Meant {
    Response(u64, Vec<u8>),
    /// The client gets 502.
    Nothing,
    /// Front ends may differ in how they read the answer.
    Unclear,
}

impl Meant {
    fn by(answered: &Answered) -> Self {
        if answered.is_stream && answered.body.is_empty() {
            return Self::Response(200, Vec::new());
        }
        let is_raw = answered.is_streamed && !answered.is_stream;
        // The layer may stop reading a raw stream before the end of its JSON.
        let is_long = is_raw && answered.body.len() > LONGEST_HEAD;
        let Some((head, streamed)) = split(answered) else { return Self::Nothing };
        let Ok(Value::Object(fields)) = serde_json::from_slice(head) else {
            return if is_raw { Self::Response(200, head.to_vec()) } else { Self::Nothing };
        };
        let count = |name: &str| String::from_utf8_lossy(head).matches(name).count();
        let is_plain = count("\\") == 0
            && count("statusCode") == 1
            && count("\"body\"") <= 1
            && count("isBase64Encoded") == 0;
        let known = ["statusCode", "body"];
        match (fields.get("statusCode").and_then(Value::as_u64), fields.get("body")) {
            _ if is_long || !is_plain => Self::Unclear,
            _ if fields.keys().any(|name| !known.contains(&name.as_str())) => Self::Unclear,
            (Some(status @ 200..600), None) => Self::Response(status, streamed.unwrap_or_default().to_vec()),
            (Some(status @ 200..600), Some(Value::String(body))) => {
                Self::Response(status, streamed.unwrap_or(body.as_bytes()).to_vec())
            }
            _ => Self::Unclear,
        }
    }
}
