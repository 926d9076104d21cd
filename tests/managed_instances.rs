//! Functions under `lambda_runtime`'s real loop. The tests start this program again as the function, and send it events
//! through their own Runtime API.
//!
//! They check short leases on Lambda Managed Instances, where one process runs several invocations at once and isn't
//! killed at their deadlines, the types of the errors that Lambda reports, and the restore from a SnapStart snapshot.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::{
    collections::HashMap,
    env,
    error::Error as StdError,
    fmt, fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{Client, types::AttributeValue};
use lambda_idempotency::{
    Failure, Idempotency, Key, RunError, StoredKey, current,
    lambda::{self, typed},
    store::memory::MemoryStore,
    store::{BoxFuture, Owner, Record, Status, Store, dynamodb::DynamoDbStore},
    time::{Clock, Timestamp, system_clock},
};
use lambda_runtime::{Diagnostic, LambdaEvent};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{
        Mutex as AsyncMutex, Notify, mpsc,
        oneshot::{self, error::TryRecvError},
        watch,
    },
};
use tower::{Layer, ServiceExt as _, service_fn};

use testkit::emulator::{Emulator, client, fresh_table};
use testkit::http_server::{Received, Reply, Server};
use testkit::links::{Death, Links};
use testkit::unpaused::unpaused;

/// The environment variables that make this program run as the function: its table, and its store's URL.
const TABLE: &str = "MANAGED_INSTANCES_TABLE";
const STORE: &str = "MANAGED_INSTANCES_STORE";
/// The environment variable that makes this program run as a function with a step: how its error leaves it.
const ERROR: &str = "MANAGED_INSTANCES_ERROR";
/// The environment variables that make this program run as a function that Lambda takes a snapshot of: a folder of files
/// that exist from a moment on, and whether the monotonic clock jumps `ahead` or `back`.
const MOMENTS: &str = "MANAGED_INSTANCES_MOMENTS";
const JUMPS: &str = "MANAGED_INSTANCES_JUMPS";
/// The environment variable that makes this program draw owners.
const OWNERS: &str = "MANAGED_INSTANCES_OWNERS";

/// The library extends the lease when a third of it has passed. If no extension succeeds, the library cuts the handler
/// off [`GRACE`] before the lease expires. Another delivery can take over [`MARGIN`] after the lease expires. All of
/// these times are long, so that the tests don't fail if the machine pauses for seconds.
const LEASE: Duration = Duration::from_secs(12);
const GRACE: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_secs(1);
/// The time limit of ordinary invocations. No test lasts that long.
const DEADLINE: Duration = Duration::from_secs(600);

#[derive(Clone, Deserialize, Serialize)]
struct Work {
    id: String,
    millis: u64,
}

/// Counts the run in the table, then sleeps for `millis`. A run that took over the key doesn't sleep.
async fn work(client: Client, table: String, work: Work) -> Result<String, lambda_runtime::Error> {
    let key = AttributeValue::S(format!("effect {}", work.id));
    let update = client.update_item().table_name(table).key("id", key).update_expression("ADD n :one");
    update.expression_attribute_values(":one", AttributeValue::N("1".into())).send().await?;
    if !current().is_some_and(|claim| claim.is_takeover()) {
        system_clock().sleep(Duration::from_millis(work.millis)).await;
    }
    Ok(format!("done {}", work.id))
}

/// Runs the function if [`TABLE`] and [`STORE`] are set. In the tests' own process they aren't set, and this test does
/// nothing.
#[tokio::test]
async fn function() {
    let (Ok(table), Ok(endpoint)) = (env::var(TABLE), env::var(STORE)) else { return };
    let client = client(&endpoint);
    let builder = Idempotency::builder(DynamoDbStore::new(client.clone(), &table).unwrap()).function("work");
    let builder = builder.settings(|s| {
        s.lease_extension = Some(LEASE);
        s.lease_grace = GRACE;
        s.skew_margin = MARGIN;
    });
    let idempotency = builder.build().unwrap();
    let handler =
        service_fn(move |event: LambdaEvent<Work>| work(client.clone(), table.clone(), event.payload));
    let service = idempotency.events(|work: &Work| Key::new(&work.id)).layer(handler);
    lambda_runtime::run_concurrent(service).await.unwrap();
}

/// Runs a step once for each id, and its `millis` are the payload. With 0 milliseconds, the step fails permanently.
async fn step(idempotency: &Idempotency, work: &Work) -> Result<String, RunError<Failure>> {
    let charge = async || match work.millis {
        0 => Err(Failure::permanent("CardDeclined", "the bank said no")),
        _ => Ok("charged".to_owned()),
    };
    idempotency.operation("charge")?.run(Key::new(&work.id)?, &work.millis, charge).await
}

/// A user's error that has the step's error as its source, and doesn't show it in its text.
#[derive(Debug)]
struct NoTrip(Box<dyn StdError + Send + Sync>);

impl fmt::Display for NoTrip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no trip")
    }
}

impl StdError for NoTrip {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

impl From<NoTrip> for Diagnostic {
    fn from(error: NoTrip) -> Self {
        Self { error_type: "NoTrip".to_owned(), error_message: error.to_string() }
    }
}

/// Runs the function with a step if [`ERROR`] is set.
#[tokio::test]
async fn function_with_step() {
    let Ok(error) = env::var(ERROR) else { return };
    let idempotency = Idempotency::builder(MemoryStore::new()).function("work").build().unwrap();
    let own = idempotency.clone();
    let step = move |event: LambdaEvent<Work>| {
        let idempotency = own.clone();
        async move { step(&idempotency, &event.payload).await }
    };
    type Boxed = lambda_runtime::Error;
    let boxed = || service_fn(step.clone()).map_err(Boxed::from);
    let context = |error: Boxed| anyhow::Error::from_boxed(error).context("booking the hotel");
    let ended = match error.as_str() {
        "boxed" => lambda::run(boxed()).await,
        "in a context" => lambda::run(boxed().map_err(|error| Boxed::from(NoTrip(error)))).await,
        "anyhow" => lambda::run(boxed().map_err(context)).await,
        "boxed anyhow" => lambda::run(boxed().map_err(context).map_err(Boxed::from)).await,
        "RunError" => lambda::run(service_fn(step)).await,
        "RunError of anyhow" => lambda::run(boxed().map_err(context).map_err(RunError::Handler)).await,
        "Failure" => lambda::run(boxed().map_err(Failure::from)).await,
        "by typed" => lambda_runtime::run(boxed().map_err(typed)).await,
        "in a layer" => {
            let layer = idempotency.events(|work: &Work| Key::new(format!("{} {}", work.id, work.millis)));
            lambda_runtime::run(layer.layer(boxed())).await
        }
        "chosen" => lambda::run(boxed().map_err(NoTrip)).await,
        "text" => lambda::run(boxed().map_err(|error| error.to_string())).await,
        "other" => lambda::run(boxed().map_err(|_| Boxed::from(std::io::Error::other("down")))).await,
        "lambda_runtime's run" => lambda_runtime::run(boxed()).await,
        other => panic!("unknown: {other}"),
    };
    ended.unwrap();
}

/// The clocks of a process that's restored a day after its snapshot was made.
#[derive(Debug)]
struct Restored {
    restored: PathBuf,
    jumps_ahead: bool,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Clock for Restored {
    fn now(&self) -> Timestamp {
        let now = system_clock().now();
        if self.restored.exists() { now } else { now.saturating_sub(DAY) }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        system_clock().sleep(duration)
    }

    fn monotonic(&self) -> Instant {
        let now = system_clock().monotonic();
        match (self.restored.exists(), self.jumps_ahead) {
            (false, _) => now,
            (true, true) => now + DAY,
            (true, false) => now.checked_sub(DAY).expect("a monotonic clock may be negative"),
        }
    }
}

/// Runs the function that Lambda takes a snapshot of, if [`MOMENTS`] is set. One step runs in its init, and one while it
/// waits for the restore.
#[tokio::test]
async fn function_in_a_snapshot() {
    let Some(moments) = env::var_os(MOMENTS).map(PathBuf::from) else { return };
    let jumps_ahead = env::var(JUMPS).unwrap() == "ahead";
    let builder = Idempotency::builder_from_env().await.unwrap().settings(|s| s.local_cache = 1 << 20);
    let idempotency =
        builder.clock(Restored { restored: moments.join("restored"), jumps_ahead }).build().unwrap();
    let work = |id: &str| Work { id: id.to_owned(), millis: 1 };
    step(&idempotency, &work("init")).await.unwrap();
    let (own, late) = (idempotency.clone(), work("late"));
    tokio::spawn(async move {
        while !moments.join("late").exists() {
            sleep(5).await;
        }
        step(&own, &late).await.unwrap();
    });
    let handler = service_fn(move |event: LambdaEvent<Work>| {
        let idempotency = idempotency.for_context(&event.context);
        async move { step(&idempotency, &event.payload).await }
    });
    lambda::run(handler).await.unwrap();
}

/// Draws owners if [`OWNERS`] is set.
#[expect(clippy::print_stdout, reason = "the test that starts this program reads them")]
#[test]
fn owners() {
    if env::var_os(OWNERS).is_some() {
        (0..3).for_each(|_| println!("owner {}", Owner::random().unwrap()));
    }
}

/// The answer to an invocation: the response, or the error's type.
type Posted = Result<String, String>;

/// The header with an invocation's id. The runtime receives it with the event, and sends it back with the answer.
const INVOCATION_ID: &str = "lambda-runtime-invocation-id";

/// An invocation without an answer.
struct Pending {
    event: String,
    deadline: Timestamp,
    answer: oneshot::Sender<Posted>,
}

/// The invocations without an answer, by id.
#[derive(Default)]
struct Unanswered(Mutex<HashMap<String, Pending>>);

impl Unanswered {
    /// Accepts an answer, or rejects it if it's late or doesn't name an unanswered invocation.
    fn answered(&self, id: Option<&String>, posted: Posted) -> Reply {
        let pending = id.and_then(|id| self.0.lock().unwrap().remove(id));
        match pending {
            Some(pending) if system_clock().now() < pending.deadline => {
                let _ = pending.answer.send(posted);
                Reply::Whole(202, vec![], b"{\"status\":\"OK\"}".to_vec())
            }
            _ => Reply::Whole(410, vec![], b"{\"errorType\":\"InvokeTimeout\"}".to_vec()),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// A function process with its Runtime API.
struct Function {
    process: Child,
    invocations: mpsc::UnboundedSender<String>,
    unanswered: Arc<Unanswered>,
    /// Ends the wait for the restore.
    restored: Arc<Notify>,
    _server: Server,
}

impl Function {
    async fn start(store: &str, table: &str) -> Self {
        Self::start_as("function", &[(TABLE, table), (STORE, store), ("AWS_LAMBDA_MAX_CONCURRENCY", "4")], 4)
            .await
    }

    /// Starts the function that this test of the program runs, and waits until it has polled this often.
    async fn start_as(test: &str, variables: &[(&str, &str)], least_polls: usize) -> Self {
        let (invocations, queue) = mpsc::unbounded_channel::<String>();
        let (queue, unanswered) = (Arc::new(AsyncMutex::new(queue)), Arc::<Unanswered>::default());
        let (answers, polls) = (unanswered.clone(), Arc::new(AtomicUsize::new(0)));
        let (polled, restored) = (polls.clone(), Arc::<Notify>::default());
        let restores = restored.clone();
        let server = Server::start(move |received: Received| {
            let (queue, answers, polled) = (queue.clone(), answers.clone(), polled.clone());
            let restores = restores.clone();
            async move {
                let path: Vec<_> = received.path.trim_start_matches('/').split('/').collect();
                match path[2..] {
                    ["restore", "next"] => {
                        polled.fetch_add(1, Ordering::SeqCst);
                        restores.notified().await;
                        Reply::Whole(200, vec![], vec![])
                    }
                    [_, "next"] => {
                        polled.fetch_add(1, Ordering::SeqCst);
                        let Some(id) = queue.lock().await.recv().await else {
                            return Reply::Dropped;
                        };
                        next(&id, &answers.0.lock().unwrap()[&id])
                    }
                    [_, _, how] => {
                        let body = String::from_utf8(received.body).unwrap();
                        let posted = match how {
                            "response" => Ok(serde_json::from_str(&body).unwrap()),
                            _ => {
                                let error: Value = serde_json::from_str(&body).unwrap();
                                Err(error["errorType"].as_str().unwrap().to_owned())
                            }
                        };
                        answers.answered(received.headers.get(INVOCATION_ID), posted)
                    }
                    _ => Reply::Whole(404, vec![], vec![]),
                }
            }
        })
        .await;
        let address = server.url("").replace("http://", "");
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env("AWS_LAMBDA_RUNTIME_API", address)
            .env("AWS_LAMBDA_INITIALIZATION_TYPE", "lambda-managed-instances")
            .env("AWS_LAMBDA_FUNCTION_NAME", "work")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256")
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while polls.load(Ordering::SeqCst) < least_polls {
            assert_eq!(process.try_wait().unwrap(), None, "the function's process ended before it polled");
            sleep(20).await;
        }
        Self { process, invocations, unanswered, restored, _server: server }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Sends the function an event: the work `id`, which takes `millis`. The function runs up to four invocations at
    /// once.
    fn deliver(&self, id: &str, millis: u64) -> oneshot::Receiver<Posted> {
        self.deliver_within(id, millis, DEADLINE)
    }

    fn deliver_within(&self, id: &str, millis: u64, limit: Duration) -> oneshot::Receiver<Posted> {
        let (answer, answered) = oneshot::channel();
        let event = serde_json::to_string(&Work { id: id.to_owned(), millis }).unwrap();
        let pending = Pending { event, deadline: system_clock().now().saturating_add(limit), answer };
        let invocation = Owner::random().unwrap().to_string();
        self.unanswered.0.lock().unwrap().insert(invocation.clone(), pending);
        self.invocations.send(invocation).unwrap();
        answered
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn next(id: &str, pending: &Pending) -> Reply {
    let headers = [
        ("lambda-runtime-aws-request-id", format!("request-{id}")),
        (INVOCATION_ID, id.to_owned()),
        ("lambda-runtime-deadline-ms", pending.deadline.as_millis().to_string()),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-west-1:123456789012:function:work".into()),
        ("content-type", "application/json".into()),
    ];
    let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Reply::Whole(200, headers, pending.event.clone().into_bytes())
}

/// Starts a proxy to the store. Returns its URL, and a switch that cuts its connections.
async fn cable(upstream: SocketAddr) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, (cut, is_cut)) = (format!("http://{}", listener.local_addr().unwrap()), watch::channel(false));
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut is_cut = is_cut.clone();
            tokio::spawn(async move {
                let forwarded = async {
                    let mut far = TcpStream::connect(upstream).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                };
                tokio::select! {
                    _ = is_cut.wait_for(|is_cut| *is_cut) => {}
                    _ = forwarded => {}
                }
            });
        }
    });
    (url, cut)
}

struct Bench {
    client: Client,
    store: DynamoDbStore,
    table: String,
    url: String,
    cut: watch::Sender<bool>,
    emulator: Emulator,
}

fn address(emulator: &Emulator) -> SocketAddr {
    emulator.endpoint().trim_start_matches("http://").parse().unwrap()
}

impl Bench {
    async fn new() -> Self {
        let emulator = Emulator::start().await;
        let (client, table) = (emulator.client(), fresh_table());
        let store = DynamoDbStore::new(client.clone(), &table).unwrap();
        let _ = store.create_table().await.unwrap();
        let (url, cut) = cable(address(&emulator)).await;
        Self { client, store, table, url, cut, emulator }
    }

    async fn function(&self) -> Function {
        Function::start(&self.url, &self.table).await
    }

    async fn effects(&self, id: &str) -> u32 {
        let key = AttributeValue::S(format!("effect {id}"));
        let get = self.client.get_item().table_name(&self.table).key("id", key).consistent_read(true);
        let item = get.send().await.unwrap().item;
        item.map_or(0, |item| item["n"].as_n().unwrap().parse().unwrap())
    }

    /// Waits until the handler has begun.
    async fn has_begun(&self, id: &str, answer: &mut oneshot::Receiver<Posted>) {
        let begins = async {
            while self.effects(id).await == 0 {
                assert_eq!(
                    answer.try_recv(),
                    Err(TryRecvError::Empty),
                    "{id} was answered before its handler began"
                );
                sleep(20).await;
            }
        };
        tokio::time::timeout(DEADLINE / 10, begins).await.expect("the handler must begin");
    }

    async fn record(&self, id: &str) -> Record {
        let builder = Idempotency::builder(self.store.clone()).function("work");
        let scope = builder.build().unwrap().scope("event").unwrap();
        let key = StoredKey::new(&scope, &Key::new(id).unwrap());
        self.store.read(&key).await.unwrap().expect("the key must have a record")
    }

    /// Returns the record of the step of the work `id`.
    async fn step(&self, id: &str) -> Option<Record> {
        let idempotency = Idempotency::builder(self.store.clone()).function("work").build().unwrap();
        let key = idempotency.operation("charge").unwrap().stored_key(&Key::new(id).unwrap());
        self.store.read(&key).await.unwrap()
    }

    async fn lease_until(&self, id: &str) -> Timestamp {
        self.record(id).await.lease_until().expect("the record must have an active claim")
    }
}

async fn sleep(millis: u64) {
    system_clock().sleep(Duration::from_millis(millis)).await;
}

const IN_PROGRESS: &str = "Idempotency.InProgress";

#[tokio::test]
async fn concurrent_handlers_outlive_leases_without_duplicates() {
    let bench = Bench::new().await;
    let function = bench.function().await;
    let mut running: Vec<_> = ["a", "b", "c"].map(|id| (id, function.deliver(id, 30_000))).into();
    for (id, answer) in &mut running {
        bench.has_begun(id, answer).await;
    }
    let first = bench.lease_until("a").await;
    assert!(
        first < system_clock().now().saturating_add(LEASE),
        "the lease must be short, not last until the deadline"
    );
    system_clock().sleep(system_clock().now().until(first) + Duration::from_millis(2)).await;
    for id in ["a", "b", "c"] {
        assert!(first < system_clock().now(), "the first lease must have expired");
        assert!(bench.lease_until(id).await > system_clock().now(), "{id}: the lease must be extended");
        assert_eq!(function.deliver(id, 30_000).await.unwrap(), Err(IN_PROGRESS.to_owned()));
    }
    for (id, answer) in running {
        assert_eq!(answer.await.unwrap(), Ok(format!("done {id}")));
        assert_eq!(bench.effects(id).await, 1);
        assert_eq!(function.deliver(id, 30_000).await.unwrap(), Ok(format!("done {id}")), "replayed");
    }
}

#[tokio::test]
async fn killed_process_frees_key_after_lease_expiry() {
    let bench = Bench::new().await;
    let killed = bench.function().await;
    let mut lost = killed.deliver("d", 100_000);
    bench.has_begun("d", &mut lost).await;
    let other = bench.function().await;
    assert_eq!(other.deliver("d", 100_000).await.unwrap(), Err(IN_PROGRESS.to_owned()));
    drop(killed);
    let lease_until = bench.lease_until("d").await;
    assert!(lease_until < system_clock().now().saturating_add(LEASE));
    let answer = loop {
        match other.deliver("d", 100_000).await.unwrap() {
            Err(error) => assert_eq!(error, IN_PROGRESS),
            Ok(answer) => break answer,
        }
        assert!(system_clock().now() < lease_until.saturating_add(MARGIN * 10), "the key is still claimed");
        sleep(50).await;
    };
    assert!(system_clock().now() > lease_until.saturating_add(MARGIN), "the key was free too early");
    assert_eq!(
        (answer.as_str(), bench.effects("d").await, bench.record("d").await.attempt),
        ("done d", 2, 2)
    );
}

#[tokio::test]
async fn failed_extensions_stop_handlers_before_expiry() {
    let bench = Bench::new().await;
    let function = bench.function().await;
    let (mut cut_off, other) = (function.deliver("e", 100_000), function.deliver("f", 100));
    assert_eq!(other.await.unwrap(), Ok("done f".to_owned()));
    bench.has_begun("e", &mut cut_off).await;
    bench.cut.send_replace(true);
    assert_eq!(cut_off.await.unwrap(), Err(IN_PROGRESS.to_owned()));
    let now = system_clock().now();
    let lease_until = bench.lease_until("e").await;
    assert!(now < lease_until, "cut off at {now:?}, after its lease expired at {lease_until:?}");
    assert!(now.until(lease_until) <= GRACE + Duration::from_millis(50), "the handler was cut off too early");
    assert_eq!(bench.effects("e").await, 1);
}

#[tokio::test]
async fn late_answers_are_rejected_and_work_continues() {
    let bench = Bench::new().await;
    let function = bench.function().await;
    let late = function.deliver_within("g", 100_000, Duration::from_secs(8));
    assert!(late.await.is_err(), "the late answer must be rejected with 410");
    assert!(function.unanswered.is_empty());
    assert_eq!(bench.effects("g").await, 1);
    assert_eq!(function.deliver("h", 100).await.unwrap(), Ok("done h".to_owned()));
}

/// Returns the types that Lambda reports for two errors of a step: a mismatch, and a recorded failure.
async fn reported(error: &str) -> [String; 2] {
    let function = Function::start_as("function_with_step", &[(ERROR, error)], 1).await;
    assert_eq!(function.deliver("a", 1).await.unwrap(), Ok("charged".to_owned()), "{error}");
    let refused = function.deliver("a", 2).await.unwrap().expect_err("a mismatch");
    [refused, function.deliver("b", 0).await.unwrap().expect_err("a permanent failure")]
}

#[tokio::test]
async fn error_types_survive_boxes_and_contexts() {
    let typed = [
        "boxed",
        "in a context",
        "anyhow",
        "boxed anyhow",
        "RunError",
        "RunError of anyhow",
        "Failure",
        "by typed",
        "in a layer",
    ];
    for error in typed {
        assert_eq!(reported(error).await, ["Idempotency.Mismatch", "CardDeclined"], "{error}");
    }
}

#[tokio::test]
async fn other_errors_keep_their_types() {
    let boxed = "&alloc::boxed::Box<dyn core::error::Error + core::marker::Send + core::marker::Sync>";
    let text = "&alloc::string::String";
    for (error, stays) in
        [("chosen", "NoTrip"), ("text", text), ("other", boxed), ("lambda_runtime's run", boxed)]
    {
        assert_eq!(reported(error).await, [stays, stays], "{error}");
    }
}

/// Takes a snapshot of a function, and restores it: the process is stopped, its connections die, and its clocks jump.
/// Returns how long its first invocation then takes, and how many requests went to dead connections. Without SnapStart,
/// the process is only stopped.
async fn restored(initialization: &str, jumps: &str, death: Death) -> (Duration, usize) {
    let bench = Bench::new().await;
    let links = Links::before(address(&bench.emulator));
    let store = format!("dynamodb://{}?endpoint=http://{}&region=eu-west-1", bench.table, links.address());
    let moments = env::temp_dir().join(&bench.table);
    fs::create_dir(&moments).unwrap();
    let begins = |moment: &str| fs::write(moments.join(moment), "").unwrap();
    let variables = [
        ("AWS_LAMBDA_INITIALIZATION_TYPE", initialization),
        ("IDEMPOTENCY_STORE", &store),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        (MOMENTS, moments.to_str().unwrap()),
        (JUMPS, jumps),
    ];
    let function = Function::start_as("function_in_a_snapshot", &variables, 1).await;
    let before = links.made();
    begins("late");
    while bench.step("late").await.is_none_or(|record| record.status() != Status::Completed) {
        sleep(5).await;
    }
    // Without SnapStart, a slow attempt can make a second connection too.
    let is_snapshotted = initialization == "snap-start";
    assert!(!is_snapshotted || links.made() > before, "the snapshot has a connection of the init");
    function.signal("-STOP");
    begins("restored");
    links.kill(death);
    function.signal("-CONT");
    let start = system_clock().monotonic();
    function.restored.notify_one();
    assert_eq!(function.deliver("first", 1).await.unwrap(), Ok("charged".to_owned()));
    let took = start.elapsed();
    let mut owners = Vec::new();
    for id in ["init", "late", "first"] {
        owners.push(bench.step(id).await.unwrap().owner);
    }
    assert!(owners[0] != owners[1] && !owners[..2].contains(&owners[2]), "{owners:?}");
    fs::remove_dir_all(moments).unwrap();
    (took, links.lost())
}

#[tokio::test]
async fn first_invocation_after_restore_is_prompt() {
    // A dead connection costs at least 1 s.
    let prompt = Duration::from_millis(950);
    for (death, jumps) in [(Death::Closes, "ahead"), (Death::Swallows, "ahead"), (Death::Swallows, "back")] {
        let restored = async || restored("snap-start", jumps, death).await;
        let (took, lost) = unpaused(restored, |(took, _)| *took < prompt).await;
        assert!(took < prompt && lost == 0, "{death:?}, {jumps}: {took:?}, {lost} requests lost");
    }
}

/// Shows that the test above can fail. Here nothing tells the process that its connections died.
#[tokio::test]
async fn unannounced_dead_connection_costs_an_attempt() {
    let (took, lost) = restored("on-demand", "ahead", Death::Swallows).await;
    assert!(took >= Duration::from_secs(1) && lost > 0, "{took:?}, {lost} requests lost");
}

/// A library that answers in place of the operating system's random generator: the `n`th answer is all `n`.
#[cfg(target_os = "linux")]
const NUMBERED: &str = "#include <string.h>\n\
    long getrandom(void *to, size_t length, unsigned flags) {\n\
    static unsigned char n; memset(to, ++n, length); return length; }";

/// Otherwise processes that are restored from one snapshot could draw the same owners.
#[cfg(target_os = "linux")]
#[test]
fn each_owner_comes_from_the_system() {
    let folder = env::temp_dir().join(fresh_table());
    fs::create_dir(&folder).unwrap();
    let [source, library] = ["numbered.c", "numbered.so"].map(|name| folder.join(name));
    fs::write(&source, NUMBERED).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.unwrap().success());
    let mut process = Command::new(env::current_exe().unwrap());
    process.args(["--exact", "owners", "--nocapture"]).env(OWNERS, "1").env("LD_PRELOAD", &library);
    let printed = String::from_utf8(process.output().unwrap().stdout).unwrap();
    // On one processor, the harness prints the test's name before the first of them.
    let owners: Vec<_> =
        printed.lines().filter_map(|line| Owner::from_hex(line.rsplit_once("owner ")?.1)).collect();
    let numbers: Vec<_> = owners.iter().map(|owner| owner.as_bytes()[0]).collect();
    assert!(numbers.len() == 3 && numbers.is_sorted_by(|one, next| one < next), "{printed}");
    assert!(owners.iter().zip(numbers).all(|(owner, number)| *owner.as_bytes() == [number; 16]), "{printed}");
    fs::remove_dir_all(folder).unwrap();
}
