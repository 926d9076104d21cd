//! The proxy's edge, for fuzzing: sends a function's bytes through the real connection code, without a socket.
//!
//! A Lambda in memory hands out an event, its duplicate, and another event. First the fuzzer's bytes arrive on one
//! connection. Then a correct runtime polls and answers.

use std::{
    cell::Cell,
    collections::VecDeque,
    panic::{set_hook, take_hook},
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use lambda_idempotency::{
    store::memory::MemoryStore,
    time::{Clock as _, system_clock},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::{
    config::Config,
    proxy::{Protection, Proxy},
    server,
    telemetry::Telemetry,
    upstream::{
        AnyBody, BoxError, ERROR_TYPE, INVOCATION_ID, MAX_HEAD, REQUEST_ID, Upstream, VERSION, answer, empty,
        full,
    },
};

/// The limit for recorded answers. It's low, so that small inputs exceed it.
const MAX_RESPONSE: usize = 200;
/// How long to wait until the layer is idle. The clock is paused, so this time passes once no task has work left.
const IDLE: Duration = Duration::from_millis(1);
/// The runtime's answer to each event.
const OWN_ANSWER: &[u8] = b"\"own\"";
/// The end of the path of an error post for the first event.
const ERROR_OF_FIRST: &[u8] = b"/invocation/x/error";
/// Request ids and events: an event, its duplicate, and another event.
const EVENTS: [(&str, &[u8]); 3] = [("x", b"{\"id\":1}"), ("y", b"{\"id\":1}"), ("z", b"{\"id\":2}")];

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
    body: Bytes,
}

#[derive(Debug, Default)]
struct State {
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

    /// Opens a connection to the Runtime API.
    fn connect(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let lambda = self.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| lambda.clone().serve(request));
            let _ = http1_server().serve_connection(TokioIo::new(far), service).await;
        });
        near
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

fn http1_server() -> hyper::server::conn::http1::Builder {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.max_buf_size(MAX_HEAD);
    builder
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts this thread's panics. Tokio catches the panics of tasks, so the test would miss them.
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

/// Checks the layer with `data`: the size of the pieces in one byte, then the bytes of the function's first connection.
///
/// Call it on a Tokio runtime with one thread and a paused clock.
///
/// # Panics
///
/// If the layer panics, answers a duplicate in another way than its event, or stops serving.
pub async fn check(data: &[u8]) {
    watch_panics();
    let panics = PANICS.get();
    let lambda = Lambda::default();
    let proxy = proxy(&lambda);
    lambda.state().queue.push_back(0);
    let (piece, bytes) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let heard = talk(&proxy, usize::from(piece), bytes).await;
    assert!(heard.is_empty() || heard.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&heard));
    let first = lambda.clone().state().events[0].clone();
    lambda.state().queue.extend([1, 2]);
    let runs = run(&proxy).await;
    let has_error = bytes.windows(ERROR_OF_FIRST.len()).any(|part| part == ERROR_OF_FIRST);
    judge(&lambda, first, has_error, &runs);
    assert_eq!(PANICS.get(), panics, "the layer panicked");
}

fn proxy(lambda: &Lambda) -> Proxy {
    let lookup = |name: &str| {
        SETTINGS.iter().find(|(setting, _)| *setting == name).map(|(_, value)| (*value).to_owned())
    };
    let none = |_: &std::path::PathBuf| Err(std::io::ErrorKind::NotFound.into());
    let rules = match Config::read(std::iter::empty(), &lookup, none) {
        Ok(config) => config.rules,
        Err(problem) => panic!("{problem}"),
    };
    let store = Arc::new(MemoryStore::new());
    let builder = lambda_idempotency::Idempotency::builder(store).function("fuzz");
    let idempotency = match builder.settings(rules.settings.clone()).build() {
        Ok(idempotency) => idempotency,
        Err(error) => panic!("{error}"),
    };
    let lambda = lambda.clone();
    let upstream = Upstream::in_memory(move || lambda.connect());
    let protection = Protection::new(idempotency, rules, upstream.clone(), Telemetry::default());
    Proxy::new(upstream, Some(protection))
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
    // A connection that breaks is fine. A panic of its task is counted.
    let _ = serving.await;
    heard
}

/// Polls and answers like a runtime, until no event is left. Returns the request ids of the events that it got.
async fn run(proxy: &Proxy) -> Vec<String> {
    let (function, layer) = tokio::io::duplex(64 * 1024);
    tokio::spawn(server::connection(layer, proxy.clone()));
    let mut got = Vec::new();
    let running = async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(function)).await?;
        tokio::spawn(connection);
        loop {
            let poll = Request::get(format!("{VERSION}/invocation/next")).header("host", "r").body(empty())?;
            let event = sender.send_request(poll).await?;
            let Some(id) = event.headers().get(REQUEST_ID).cloned() else { return Ok(()) };
            let id = id.to_str()?.to_owned();
            event.into_body().collect().await?;
            got.push(id.clone());
            let response = Request::post(format!("{VERSION}/invocation/{id}/response")).header("host", "r");
            let answered = sender.send_request(response.body(full(OWN_ANSWER))?).await?;
            assert_eq!(answered.status(), StatusCode::ACCEPTED, "the layer rejected the answer to {id}");
            answered.into_body().collect().await?;
        }
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

/// Checks that Lambda got the answers that the layer promises. `first` is the first event's state after the bytes, and
/// `has_error` tells whether they may contain an error post for it.
fn judge(lambda: &Lambda, first: (bool, Option<Answered>), has_error: bool, runs: &[String]) {
    let (was_handed_out, answered) = first;
    let told = format!("first {answered:?}, then {runs:?}, {:?}", lambda.state().events);
    let has_run = |id: &str| runs.iter().any(|run| run == id);
    assert_eq!(has_run("x"), !was_handed_out, "{told}");
    assert!(has_run("z"), "the other event never ran: {told}");
    assert_eq!(lambda.answer_to(2).map(|answer| answer.body), Some(OWN_ANSWER.into()), "{told}");
    let Some(again) = lambda.answer_to(1) else { panic!("no answer to the duplicate: {told}") };
    let refused = |kind: &str| again.is_error && String::from_utf8_lossy(&again.body).contains(kind);
    let Some(first) = answered.or_else(|| lambda.answer_to(0)) else {
        // The connection broke while the event was running, or in an answer that's too large to record.
        let is_refused = refused("Idempotency.InProgress") || refused("Idempotency.NotRetained");
        // An error that's too large to record releases the key before its last bytes arrive, and they may never do.
        let is_released = has_error && has_run("y") && again.body == OWN_ANSWER;
        assert!(is_refused && !has_run("y") || is_released, "{told}");
        return;
    };
    if first.is_error || first.is_broken {
        assert!(has_run("y"), "the key wasn't released: {told}");
    } else if first.body.len() > MAX_RESPONSE {
        assert!(refused("Idempotency.NotRetained") && !has_run("y"), "{told}");
    } else {
        assert!(!has_run("y") && !again.is_error && again.body == first.body, "{told}");
    }
}
