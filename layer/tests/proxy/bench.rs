//! The bench: a simulated Runtime API, the layer's real program as its client, and a function that the test plays.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use testkit::http_server::{Received, Reply, Server};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    sync::{Mutex as AsyncMutex, mpsc, oneshot},
    task::JoinHandle,
};

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The limit for each wait of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const INIT_ERROR: &str = "/2018-06-01/runtime/init/error";
/// Lambda's answer, with the status 403, to a second report that the init failed.
pub(crate) const SECOND_INIT_ERROR: &[u8] =
    br#"{"errorType":"InvalidStateTransition","errorMessage":"State transition is not allowed"}"#;

/// An answer, as Lambda got it.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) is_error: bool,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: BTreeMap<String, String>,
}

impl Posted {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The error's type.
    pub(crate) fn error_type(&self) -> String {
        assert!(self.is_error, "{self:?}");
        self.json()["errorType"].as_str().unwrap().to_owned()
    }
}

struct Invocation {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Lambda's Runtime API and Extensions API.
pub(crate) struct Lambda {
    server: Server,
    state: Arc<State>,
}

struct State {
    queue: AsyncMutex<mpsc::UnboundedReceiver<Invocation>>,
    sender: mpsc::UnboundedSender<Invocation>,
    waiting: Mutex<BTreeMap<String, oneshot::Sender<Posted>>>,
    /// The last request id.
    last: Mutex<String>,
    /// Requests that aren't about invocations.
    others: Mutex<Vec<Received>>,
    /// The status of the answer to a posted response.
    status: Mutex<u16>,
    polls: AtomicU64,
    /// The number of deliveries that no poll has got yet.
    undelivered: AtomicU64,
    /// The events for the extension.
    events: AsyncMutex<mpsc::UnboundedReceiver<&'static str>>,
    event_sender: mpsc::UnboundedSender<&'static str>,
}

impl Lambda {
    pub(crate) async fn start() -> Self {
        let (sender, queue) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            queue: AsyncMutex::new(queue),
            sender,
            waiting: Mutex::default(),
            last: Mutex::default(),
            others: Mutex::default(),
            status: Mutex::new(202),
            polls: AtomicU64::new(0),
            undelivered: AtomicU64::new(0),
            events: AsyncMutex::new(events),
            event_sender,
        });
        let serving = Arc::clone(&state);
        let server = Server::start(move |request| {
            let serving = Arc::clone(&serving);
            async move { serving.serve(request).await }
        })
        .await;
        Self { server, state }
    }

    pub(crate) fn address(&self) -> String {
        self.server.url("").trim_start_matches("http://").to_owned()
    }

    /// Delivers an event with a timeout of one minute.
    pub(crate) fn deliver(&self, event: impl AsRef<[u8]>) -> oneshot::Receiver<Posted> {
        self.deliver_with(event, Duration::from_secs(60), &[])
    }

    /// Delivers an event with this timeout and these headers. They replace the usual headers of the same names.
    pub(crate) fn deliver_with(
        &self,
        event: impl AsRef<[u8]>,
        time: Duration,
        headers: &[(&str, &str)],
    ) -> oneshot::Receiver<Posted> {
        let request_id = format!("request-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        let deadline = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + time;
        let mut all = vec![
            ("content-type", "application/json".to_owned()),
            ("lambda-runtime-aws-request-id", request_id.clone()),
            ("lambda-runtime-invocation-id", format!("invocation-of-{request_id}")),
            ("lambda-runtime-deadline-ms", deadline.as_millis().to_string()),
            ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-west-1:1:function:f".to_owned()),
            ("lambda-runtime-trace-id", "Root=1-5".to_owned()),
        ];
        all.retain(|(usual, _)| headers.iter().all(|(name, _)| name != usual));
        all.extend(headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let headers = all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let (sender, posted) = oneshot::channel();
        self.state.last.lock().unwrap().clone_from(&request_id);
        self.state.waiting.lock().unwrap().insert(request_id, sender);
        self.state.undelivered.fetch_add(1, Ordering::Relaxed);
        self.state.sender.send(Invocation { headers, body: event.as_ref().to_vec() }).unwrap();
        posted
    }

    /// The request id of the last delivery.
    pub(crate) fn last_request(&self) -> String {
        self.state.last.lock().unwrap().clone()
    }

    /// Answers posted responses with this status from now on.
    pub(crate) fn answers(&self, status: u16) {
        *self.state.status.lock().unwrap() = status;
    }

    /// The number of polls for an invocation so far.
    pub(crate) fn polls(&self) -> u64 {
        self.state.polls.load(Ordering::Relaxed)
    }

    /// The requests so far that aren't about invocations.
    pub(crate) fn others(&self) -> Vec<Received> {
        self.state.others.lock().unwrap().clone()
    }

    /// Sends the event INVOKE to the extension.
    pub(crate) fn invoke(&self) {
        self.state.event_sender.send("{\"eventType\":\"INVOKE\"}").unwrap();
    }

    /// Sends the event SHUTDOWN to the extension, at a normal end.
    pub(crate) fn shut_down(&self) {
        let event = "{\"eventType\":\"SHUTDOWN\",\"shutdownReason\":\"spindown\"}";
        self.state.event_sender.send(event).unwrap();
    }

    /// Sends the event SHUTDOWN to the extension, after the function's process has ended.
    pub(crate) fn fail(&self) {
        let event = "{\"eventType\":\"SHUTDOWN\",\"shutdownReason\":\"failure\"}";
        self.state.event_sender.send(event).unwrap();
    }
}

impl State {
    async fn serve(&self, request: Received) -> Reply {
        let path = request.path.clone();
        if path == "/2018-06-01/runtime/invocation/next" {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let Some(Invocation { headers, body }) = self.queue.lock().await.recv().await else {
                return Reply::Silence;
            };
            self.undelivered.fetch_sub(1, Ordering::Relaxed);
            return Reply::Whole(200, headers, body);
        }
        if let Some(rest) = path.strip_prefix("/2018-06-01/runtime/invocation/") {
            let (id, kind) = rest.split_once('/').unwrap();
            let Some(waiting) = self.waiting.lock().unwrap().remove(id) else {
                return Reply::Whole(400, Vec::new(), b"{\"errorType\":\"InvalidRequestID\"}".to_vec());
            };
            let Received { headers, body, trailers, .. } = request;
            let posted = Posted { is_error: kind == "error", headers, body, trailers };
            let _ = waiting.send(posted);
            let status = *self.status.lock().unwrap();
            return Reply::Whole(status, Vec::new(), b"{\"status\":\"OK\"}".to_vec());
        }
        let is_repeated = self.others.lock().unwrap().iter().any(|other| other.path == path);
        self.others.lock().unwrap().push(request);
        match path.as_str() {
            "/2020-01-01/extension/register" => {
                let id = ("lambda-extension-identifier".to_owned(), "extension-1".to_owned());
                Reply::Whole(200, vec![id], b"{}".to_vec())
            }
            "/2020-01-01/extension/event/next" => {
                let Some(event) = self.events.lock().await.recv().await else { return Reply::Silence };
                Reply::Whole(200, Vec::new(), event.into())
            }
            INIT_ERROR if is_repeated => Reply::Whole(403, Vec::new(), SECOND_INIT_ERROR.to_vec()),
            _ => Reply::Whole(202, vec![("x-other".into(), "1".into())], b"other".to_vec()),
        }
    }
}

/// The layer's program, and the function behind it. The test sends the function's requests.
pub(crate) struct Function {
    address: String,
    /// The process id of the command that the program started. Empty for an extension, which starts no command.
    pub(crate) process: String,
    pub(crate) child: Child,
    file: PathBuf,
    lambda: Arc<State>,
}

/// A command that runs the program with these settings. Of this process's own variables, it gets only `PATH`.
pub(crate) fn program(lambda: &Lambda, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idempotency-extension"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("AWS_LAMBDA_RUNTIME_API", lambda.address())
        .env("AWS_LAMBDA_FUNCTION_NAME", "f")
        .env("IDEMPOTENCY_METRICS", "none")
        .envs(settings.iter().copied())
        .kill_on_drop(true);
    command
}

/// The path of a file that no other test uses.
pub(crate) fn fresh_path() -> PathBuf {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
    // A process of an earlier run may have had the same id, and left this file.
    let _ = std::fs::remove_file(&path);
    path
}

impl Function {
    /// Starts the program with these settings. If they don't name a store, the program keeps the records in its memory.
    pub(crate) async fn start(lambda: &Lambda, settings: &[(&str, &str)]) -> Self {
        let file = fresh_path();
        let script = format!(
            "echo \"$AWS_LAMBDA_RUNTIME_API $$\" > {0}.new; mv {0}.new {0}; exec sleep 600",
            file.display()
        );
        let mut command = program(lambda, settings);
        if !settings.iter().any(|(name, _)| matches!(*name, "IDEMPOTENCY_STORE" | "IDEMPOTENCY_TABLE")) {
            command.env("IDEMPOTENCY_STORE", "memory:");
        }
        let log = std::fs::File::create(file.with_extension("log")).unwrap();
        command.args(["--", "/bin/sh", "-c", &script]).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let (address, process) = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Ok(line) = std::fs::read_to_string(&file) {
                    let (address, process) = line.trim().split_once(' ').unwrap();
                    return (address.to_owned(), process.to_owned());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the program starts the command");
        Self { address, process, child, file, lambda: Arc::clone(&lambda.state) }
    }

    /// Starts `program`, and returns a function behind it. `address` is the address of the program's proxy.
    pub(crate) fn at(lambda: &Lambda, address: String, mut program: Command) -> Self {
        let file = fresh_path();
        let log = std::fs::File::create(file.with_extension("log")).unwrap();
        let child = program.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { address, process: String::new(), child, file, lambda: Arc::clone(&lambda.state) }
    }

    /// The text that the program and the command have written.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.file.with_extension("log")).unwrap()
    }

    /// The proxy's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request to the proxy.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Got {
        send(&self.address, method, path, headers, body).await
    }

    /// Polls for the next event.
    pub(crate) async fn next(&self) -> Got {
        let next = poll(&self.address);
        tokio::time::timeout(PATIENCE, next).await.expect("an event")
    }

    /// Polls, and returns whether no event comes within 200 ms after the layer has got all deliveries. The layer gets
    /// them only while the function polls.
    pub(crate) async fn gets_nothing(&self) -> bool {
        let next = poll(&self.address);
        let delivered = async {
            while self.lambda.undelivered.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let quiet = async {
            tokio::time::timeout(PATIENCE, delivered).await.expect("the layer gets the deliveries");
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        tokio::select! {
            biased;
            _ = next => false,
            () = quiet => true,
        }
    }

    /// Begins a poll, as an idle worker does.
    pub(crate) fn waits(&self) -> JoinHandle<Got> {
        let address = self.address.clone();
        tokio::spawn(async move { poll(&address).await })
    }

    /// Polls until `done` ends, and checks that no event comes.
    pub(crate) async fn gets_nothing_until(&self, done: impl Future<Output = ()>) {
        let next = poll(&self.address);
        tokio::select! {
            biased;
            got = next => panic!("the function got {got:?}"),
            done = tokio::time::timeout(PATIENCE, done) => done.expect("done in time"),
        }
    }

    /// Answers an event, as a runtime does.
    pub(crate) async fn respond(&self, event: &Got, body: impl Into<Bytes>) -> Got {
        self.post(event, "response", &[("content-type", "application/json")], body.into()).await
    }

    /// Reports an error.
    pub(crate) async fn fail(&self, event: &Got, error_type: &str) -> Got {
        let report =
            serde_json::json!({ "errorType": error_type, "errorMessage": "no", "stackTrace": ["a", "b"] });
        let header = ("lambda-runtime-function-error-type", error_type);
        self.post(event, "error", &[header], report.to_string().into()).await
    }

    /// Posts the answer to an event.
    pub(crate) async fn post(&self, event: &Got, kind: &str, headers: &[(&str, &str)], body: Bytes) -> Got {
        let path = format!(
            "/2018-06-01/runtime/invocation/{}/{kind}",
            event.header("lambda-runtime-aws-request-id")
        );
        self.send("POST", &path, headers, body).await
    }
}

/// Polls for the next event, as the function does.
async fn poll(address: &str) -> Got {
    send(address, "GET", "/2018-06-01/runtime/invocation/next", &[], Bytes::new()).await
}

/// Sends a signal to the process with this id. Returns whether that succeeded.
pub(crate) fn kill(signal: &str, process: &str) -> bool {
    // Small systems have no program `kill`, but every shell has `kill` built in.
    let kill = format!("kill -s {signal} {process} 2>&-");
    std::process::Command::new("/bin/sh").args(["-c", &kill]).status().unwrap().success()
}

/// Checks that a text for the layer's user names no type or method of Rust, and no feature of a package. The text is in
/// the words of the layer's variables.
pub(crate) fn assert_plain(text: &str) {
    const FORBIDDEN: [&str; 9] = [
        "::",
        "HttpLayer",
        "Builder",
        "the feature",
        "serde",
        "IgnoredAny",
        "unwrap",
        "Operation`",
        "lambda_idempotency_layer",
    ];
    for line in text.lines() {
        // A panic is a bug, and its message shows where.
        let is_panic =
            line.contains("panicked at") || line.starts_with(['\n', ' ', '[']) || line.starts_with("note: ");
        let found = FORBIDDEN.iter().find(|word| !is_panic && line.contains(*word));
        assert_eq!(found, None, "the layer's user can't know this name: {line}");
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_plain(&self.log());
        }
        // `child`, the layer's program, is killed when it's dropped. The command that it started isn't.
        if !self.process.is_empty() {
            let _ = kill("KILL", &self.process);
        }
        // Only the command that `start` gives to the program writes `file`. After `at`, there's no such file.
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(self.file.with_extension("log"));
    }
}

/// The proxy's answer.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Sends a request on a new connection.
pub(crate) async fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Got {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(8 * 1024 * 1024)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let driving = tokio::spawn(connection);
    let mut request =
        Request::builder().method(method).uri(path).header("host", "runtime").body(Full::new(body)).unwrap();
    for (name, value) in headers {
        request
            .headers_mut()
            .insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    driving.abort();
    Got { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Waits for the answer that Lambda gets.
pub(crate) async fn posted(waiting: oneshot::Receiver<Posted>) -> Posted {
    let posted = tokio::time::timeout(PATIENCE, waiting).await.expect("an answer").expect("one answer");
    let text = String::from_utf8_lossy(&posted.body);
    if text.contains("Idempotency.") || text.contains("application/problem+json") {
        // Links to the specification aren't names in Rust.
        assert_plain(&text.replace("lambda_idempotency/guide", "guide"));
    }
    posted
}
