//! The Lambda Runtime API, version 2018-06-01, for one sandbox: hands out events, and takes the responses.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot, watch};

use super::{
    clock,
    http::{self, HangUp, Server},
};

const VERSION: &str = "/2018-06-01";
const FUNCTION_ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:";

/// The header with an invocation's id. A runtime sends the id back with the response. The request id isn't enough,
/// because the caller may choose it and use it again.
const INVOCATION_ID: &str = "lambda-runtime-invocation-id";

/// Numbers the invocations of this process, so that two invocations share a request id only if
/// [`RuntimeApi::deliver_as`] gets the same id twice.
static INVOCATIONS: AtomicU64 = AtomicU64::new(1);

/// The function's answer to an invocation, as posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Its response.
    Response(Bytes),
    /// A function error: its type and its message.
    Error(String, String),
}

/// How far the process has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The process hasn't asked for an event yet.
    Starting,
    /// The process has asked for its first event.
    Ready,
    /// The process reported that it can't start, with this error.
    InitError(String),
}

/// An invocation on its way to the function.
#[derive(Debug)]
struct Invocation {
    request_id: String,
    id: String,
    event: Bytes,
    time_limit: Duration,
}

/// The latest invocation under a request id, until its response is posted.
#[derive(Debug)]
struct Unanswered {
    id: String,
    /// The deadline in epoch milliseconds; `None` until the function receives the event.
    deadline: Option<u64>,
    waiting: oneshot::Sender<Posted>,
}

#[derive(Debug)]
struct Shared {
    function: String,
    queue: AsyncMutex<mpsc::UnboundedReceiver<Invocation>>,
    unanswered: Mutex<HashMap<String, Unanswered>>,
    phase: watch::Sender<Phase>,
}

/// The Runtime API of one sandbox.
#[derive(Debug)]
pub(crate) struct RuntimeApi {
    server: Server,
    invocations: mpsc::UnboundedSender<Invocation>,
    shared: Arc<Shared>,
}

impl RuntimeApi {
    /// Listens on a free loopback port.
    pub(crate) async fn start(function: &str) -> io::Result<Self> {
        let (invocations, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            function: function.to_owned(),
            queue: AsyncMutex::new(queue),
            unanswered: Mutex::default(),
            phase: watch::Sender::new(Phase::Starting),
        });
        let for_server = Arc::clone(&shared);
        let server = Server::start(move |request| Arc::clone(&for_server).handle(request)).await?;
        Ok(Self { server, invocations, shared })
    }

    /// The value for `AWS_LAMBDA_RUNTIME_API`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Waits until the function has asked for its first event, or has reported that it can't start.
    pub(crate) async fn started(&self) -> Phase {
        let mut phase = self.shared.phase.subscribe();
        let started = phase.wait_for(|phase| *phase != Phase::Starting).await;
        started.map_or(Phase::Starting, |phase| phase.clone())
    }

    /// Hands the event to the function when it next asks for one. The time limit starts at that moment, as on Lambda.
    pub(crate) fn deliver(&self, event: Bytes, time_limit: Duration) -> oneshot::Receiver<Posted> {
        self.deliver_as(fresh_id(), event, time_limit)
    }

    /// Hands over the event like [`Self::deliver`], but under this request id. Lambda's retries of an asynchronous
    /// invoke share one request id.
    pub(crate) fn deliver_as(
        &self,
        request_id: String,
        event: Bytes,
        time_limit: Duration,
    ) -> oneshot::Receiver<Posted> {
        let ((waiting, answer), id) = (oneshot::channel(), fresh_id());
        let unanswered = Unanswered { id: id.clone(), deadline: None, waiting };
        self.shared.unanswered().insert(request_id.clone(), unanswered);
        // The receiver lives in `shared`, which lives as long as `self`, so this can't fail.
        let _ = self.invocations.send(Invocation { request_id, id, event, time_limit });
        answer
    }
}

fn fresh_id() -> String {
    let number = INVOCATIONS.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id())
}

impl Shared {
    fn unanswered(&self) -> MutexGuard<'_, HashMap<String, Unanswered>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(self: Arc<Self>, request: Request<Bytes>) -> Result<Response<Bytes>, HangUp> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().strip_prefix(VERSION).unwrap_or_default();
        let path: Vec<&str> = path.split('/').skip(1).collect();
        let invocation = parts.headers.get(INVOCATION_ID).and_then(|id| id.to_str().ok());
        match (parts.method, path.as_slice()) {
            (Method::GET, ["runtime", "invocation", "next"]) => self.next().await,
            (Method::POST, ["runtime", "invocation", id, "response"]) => {
                Ok(self.answered(id, invocation, Posted::Response(body)))
            }
            (Method::POST, ["runtime", "invocation", id, "error"]) => {
                let (kind, message) = function_error(&body);
                Ok(self.answered(id, invocation, Posted::Error(kind, message)))
            }
            (Method::POST, ["runtime", "init", "error"]) => {
                let (kind, message) = function_error(&body);
                self.phase.send_replace(Phase::InitError(format!("{kind}: {message}")));
                Ok(accepted())
            }
            _ => Ok(refused(StatusCode::NOT_FOUND, "NotFound", "no such operation")),
        }
    }

    /// Serves the long poll. If the client disconnects while waiting, no event is lost, because none has been
    /// taken from the queue.
    async fn next(&self) -> Result<Response<Bytes>, HangUp> {
        let mut queue = self.queue.lock().await;
        self.phase.send_if_modified(|phase| {
            let first = *phase == Phase::Starting;
            if first {
                *phase = Phase::Ready;
            }
            first
        });
        let Some(Invocation { request_id, id, event, time_limit }) = queue.recv().await else {
            return Err(HangUp);
        };
        let limit = clock::millis(time_limit);
        let deadline = clock::now_ms().saturating_add(limit);
        if let Some(unanswered) =
            self.unanswered().get_mut(&request_id).filter(|unanswered| unanswered.id == id)
        {
            unanswered.deadline = Some(deadline);
        }
        Response::builder()
            .header("content-type", "application/json")
            .header("lambda-runtime-aws-request-id", &request_id)
            .header(INVOCATION_ID, id)
            .header("lambda-runtime-deadline-ms", deadline)
            .header("lambda-runtime-invoked-function-arn", format!("{FUNCTION_ARN}{}", self.function))
            .header(
                "lambda-runtime-trace-id",
                format!("Root=1-{:08x}-{:024x};Sampled=0", deadline / 1000, limit),
            )
            .body(event)
            .map_err(|_| HangUp)
    }

    /// Passes the function's answer to the caller of `deliver`. As on Lambda, the function gets an error if its answer
    /// is late, or belongs to an earlier invocation under the same request id. The caller still gets a late answer,
    /// because it shows what a process does after it was frozen past its deadline.
    fn answered(&self, request_id: &str, invocation: Option<&str>, posted: Posted) -> Response<Bytes> {
        let mut all = self.unanswered();
        let Some(latest) = all.get(request_id) else {
            return refused(
                StatusCode::BAD_REQUEST,
                "InvalidRequestID",
                "no invocation with this id awaits a response",
            );
        };
        let rejected = || refused(StatusCode::GONE, "InvokeTimeout", "Invoke timeout");
        if invocation.is_some_and(|id| id != latest.id) {
            return rejected();
        }
        let Some(Unanswered { deadline, waiting, .. }) = all.remove(request_id) else { return rejected() };
        let is_late = deadline.is_some_and(|deadline| clock::now_ms() > deadline);
        // The caller of `deliver` may have stopped waiting, for example after a deadline. Then the response is dropped,
        // as on Lambda.
        let _ = waiting.send(posted);
        if is_late { rejected() } else { accepted() }
    }
}

fn accepted() -> Response<Bytes> {
    http::json(StatusCode::ACCEPTED, &json!({ "status": "OK" }))
}

fn refused(status: StatusCode, kind: &str, message: &str) -> Response<Bytes> {
    http::json(status, &json!({ "errorType": kind, "errorMessage": message }))
}

/// The type and the message of an error report.
fn function_error(body: &[u8]) -> (String, String) {
    let report: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| report.get(name).and_then(Value::as_str).unwrap_or("(not said)").to_owned();
    (field("errorType"), field("errorMessage"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    async fn call(api: &RuntimeApi, method: Method, path: &str, body: &'static str) -> Response<Bytes> {
        call_of(api, method, path, body, None).await
    }

    /// Calls like a runtime that sends this invocation's id back.
    async fn call_of(
        api: &RuntimeApi,
        method: Method,
        path: &str,
        body: &'static str,
        invocation: Option<&str>,
    ) -> Response<Bytes> {
        let to = format!("http://{}", api.address()).parse().unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/2018-06-01/runtime/{path}"))
            .header("host", "runtime")
            .header(INVOCATION_ID, invocation.unwrap_or_default())
            .body(Bytes::from(body))
            .unwrap();
        if invocation.is_none() {
            request.headers_mut().remove(INVOCATION_ID);
        }
        http::send(&to, request).await.unwrap()
    }

    async fn next(api: &RuntimeApi) -> (String, u64, Bytes) {
        let response = call(api, Method::GET, "invocation/next", "").await;
        assert_eq!(response.status(), StatusCode::OK);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("lambda-runtime-invoked-function-arn").ends_with(":function:payments"));
        assert!(header("lambda-runtime-trace-id").starts_with("Root=1-"));
        let deadline = header("lambda-runtime-deadline-ms").parse().unwrap();
        (header("lambda-runtime-aws-request-id"), deadline, response.into_body())
    }

    #[tokio::test]
    async fn event_is_delivered_and_response_returned() {
        let api = RuntimeApi::start("payments").await.unwrap();
        let answer = api.deliver(Bytes::from("{\"n\":1}"), LIMIT);
        let before = clock::now_ms();
        let (id, deadline, event) = next(&api).await;
        assert_eq!(event, "{\"n\":1}");
        assert!(
            (before + 3_000..=clock::now_ms() + 3_000).contains(&deadline),
            "the deadline must be in epoch ms"
        );

        let posted = call(&api, Method::POST, &format!("invocation/{id}/response"), "\"done\"").await;
        assert_eq!(posted.status(), StatusCode::ACCEPTED);
        assert_eq!(answer.await.unwrap(), Posted::Response(Bytes::from("\"done\"")));
    }

    #[tokio::test]
    async fn retry_keeps_the_first_request_id() {
        let api = RuntimeApi::start("payments").await.unwrap();
        for _ in 0..2 {
            let answer = api.deliver_as("5c0f7b1e".into(), Bytes::from("{}"), LIMIT);
            assert_eq!(next(&api).await.0, "5c0f7b1e");
            call(&api, Method::POST, "invocation/5c0f7b1e/response", "1").await;
            assert_eq!(answer.await.unwrap(), Posted::Response(Bytes::from("1")));
        }
    }

    /// Takes the next invocation, and returns its request id and its invocation id.
    async fn next_ids(api: &RuntimeApi) -> (String, String) {
        let response = call(api, Method::GET, "invocation/next", "").await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        (header("lambda-runtime-aws-request-id"), header(INVOCATION_ID))
    }

    #[tokio::test]
    async fn response_answers_only_its_own_invocation() {
        let api = RuntimeApi::start("payments").await.unwrap();
        let _timed_out = api.deliver_as("chosen".into(), Bytes::from("{}"), LIMIT);
        let (_, first) = next_ids(&api).await;
        let mut answer = api.deliver_as("chosen".into(), Bytes::from("{}"), LIMIT);
        let (_, second) = next_ids(&api).await;
        assert_ne!(first, second);
        let path = "invocation/chosen/response";
        let stale = call_of(&api, Method::POST, path, "1", Some(&first)).await;
        assert_eq!(stale.status(), StatusCode::GONE);
        assert!(answer.try_recv().is_err(), "the first invocation's response must not answer the second");
        let posted = call_of(&api, Method::POST, path, "2", Some(&second)).await;
        assert_eq!(posted.status(), StatusCode::ACCEPTED);
        assert_eq!(answer.await.unwrap(), Posted::Response(Bytes::from("2")));
    }

    #[tokio::test]
    async fn a_late_response_is_rejected_with_410() {
        let api = RuntimeApi::start("payments").await.unwrap();
        for how in ["response", "error"] {
            let answer = api.deliver(Bytes::from("{}"), Duration::from_millis(50));
            let (request, id) = next_ids(&api).await;
            clock::pause(Duration::from_millis(80)).await;
            let path = format!("invocation/{request}/{how}");
            let late = call_of(&api, Method::POST, &path, "{}", Some(&id)).await;
            assert_eq!(late.status(), StatusCode::GONE, "{how}");
            assert!(answer.await.is_ok(), "the caller of `deliver` must get the late response");
        }
    }

    #[tokio::test]
    async fn function_error_keeps_its_type() {
        let api = RuntimeApi::start("payments").await.unwrap();
        let answer = api.deliver(Bytes::from("{}"), LIMIT);
        let (id, ..) = next(&api).await;
        let report = r#"{"errorType":"Idempotency.InProgress","errorMessage":"later"}"#;
        call(&api, Method::POST, &format!("invocation/{id}/error"), report).await;
        assert_eq!(answer.await.unwrap(), Posted::Error("Idempotency.InProgress".into(), "later".into()));
    }

    #[tokio::test]
    async fn each_invocation_accepts_one_response() {
        let api = RuntimeApi::start("payments").await.unwrap();
        let _answer = api.deliver(Bytes::from("{}"), LIMIT);
        let (id, ..) = next(&api).await;
        let path = format!("invocation/{id}/response");
        assert_eq!(call(&api, Method::POST, &path, "1").await.status(), StatusCode::ACCEPTED);
        assert_eq!(call(&api, Method::POST, &path, "2").await.status(), StatusCode::BAD_REQUEST);
        let unknown = call(&api, Method::POST, "invocation/unknown/response", "1").await;
        assert_eq!(unknown.status(), StatusCode::BAD_REQUEST);
    }

    #[tokio::test]
    async fn abandoned_long_poll_loses_no_event() {
        let api = RuntimeApi::start("payments").await.unwrap();
        tokio::select! {
            _ = next(&api) => panic!("the poll returned, although there was no event"),
            phase = api.started() => assert_eq!(phase, Phase::Ready),
        }
        // The poll holds the queue until the server sees that its client left.
        let left = tokio::time::timeout(Duration::from_secs(20), api.shared.queue.lock()).await;
        drop(left.expect("the server sees that its client left"));
        let _answer = api.deliver(Bytes::from("{\"n\":2}"), LIMIT);
        assert_eq!(next(&api).await.2, "{\"n\":2}");
    }

    #[tokio::test]
    async fn init_error_is_reported() {
        let api = RuntimeApi::start("payments").await.unwrap();
        let report = r#"{"errorType":"Runtime.InitError","errorMessage":"no table"}"#;
        call(&api, Method::POST, "init/error", report).await;
        assert_eq!(api.started().await, Phase::InitError("Runtime.InitError: no table".into()));
    }
}
