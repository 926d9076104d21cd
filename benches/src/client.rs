//! Runs the library in a process that a harness measures from outside, to compare it with other libraries.
//!
//! It reads one JSON command per line on standard input, and writes one JSON answer per line on standard
//! output. The event is the JSON in the environment variable `BENCH_PAYLOAD`, with the idempotency key as its
//! `payment_id`. The handler waits `handler_ms`, and returns the JSON in `BENCH_RESPONSE`, with `payment_id` and
//! `execution` added. `execution` holds the process id and a counter, so that a result shows which run returned it.
//!
//! | `cmd` | fields | does | answers |
//! |---|---|---|---|
//! | `run` | `n`, `prefix`, `cache` | `n` calls one after another, keys `PREFIX-0`…; `cache`: with the local cache | `returned`, `executed`, `errors` by kind, `wall_ns` |
//! | `dup` | `n`, `prefix`, `width`, `handler_ms` | `n` times, each with a new key: `width` calls at once | as `run` |
//! | `batch` | `n`, `prefix`, `width` | an SQS event of `n` records, delivered to the library's worker, which runs `width` at once | as `run` |
//! | `one` | `key`, `handler_ms`, `remaining_ms`, `fail`, `value` | one call, the deadline `remaining_ms` away | `outcome` (`returned` or `raised`), `value` or `error`, `executed`, `wall_ms` |
//! | `exit` | | ends the process | |
//!
//! It answers an unknown command with `{"unsupported": …}`.
//!
//! `BENCH_TABLE` names the table. `AWS_ENDPOINT_URL_DYNAMODB`, `AWS_REGION` and so on set the endpoint, the
//! Region and the credentials.
//!
//! ```text
//! bench_client [--skew-margin-ms N] [--lease-grace-ms N]
//! ```
//!
//! The defaults are the library's. Set both to 1 in a harness whose leases expire after a fraction of a
//! second. With the defaults, a claim would block its key for seconds after its lease has expired.

use std::{
    collections::BTreeMap,
    fmt,
    io::{BufRead as _, Write as _},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
};
use futures_util::future::join_all;
use lambda_idempotency::{
    Idempotency, Invocation, Key, RunError,
    lambda::batch::SqsMessage,
    store::dynamodb::DynamoDbStore,
    time::{Clock as _, system_clock},
};
use lambda_runtime::{LambdaEvent, tower::Service as _};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

type Failure = Box<dyn std::error::Error>;

/// The time until the invocation's deadline, if a command doesn't set it.
const REMAINING_MS: u64 = 30_000;

/// The size of the local cache in bytes, for a command that asks for one.
const LOCAL_CACHE: usize = 16 * 1024 * 1024;

/// A command. A field that's missing in the JSON has its default.
#[derive(Clone, Deserialize)]
#[serde(default)]
struct Command {
    cmd: String,
    n: u64,
    prefix: String,
    width: usize,
    cache: bool,
    key: String,
    handler_ms: u64,
    remaining_ms: u64,
    fail: bool,
    /// JSON text that the handler returns instead of `BENCH_RESPONSE`.
    value: Option<String>,
}

impl Default for Command {
    fn default() -> Self {
        Self {
            cmd: String::new(),
            n: 1,
            prefix: String::new(),
            width: 2,
            cache: false,
            key: String::new(),
            handler_ms: 0,
            remaining_ms: REMAINING_MS,
            fail: false,
            value: None,
        }
    }
}

/// The handler's own error.
#[derive(Debug)]
struct HandlerError(String);

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandlerError {}

type Called = Result<Value, RunError<HandlerError>>;

#[derive(Clone)]
struct Bench {
    idempotency: Idempotency,
    /// Like `idempotency`, but with the local cache.
    cached: Idempotency,
    payload: Value,
    response: Value,
    executed: Arc<AtomicU64>,
}

impl Bench {
    /// The handler, which the library makes idempotent.
    async fn handle(&self, event: &Value, command: &Command) -> Result<Value, HandlerError> {
        let nth = self.executed.fetch_add(1, Ordering::Relaxed) + 1;
        if command.handler_ms > 0 {
            system_clock().sleep(Duration::from_millis(command.handler_ms)).await;
        }
        if command.fail {
            return Err(HandlerError("the handler failed, as requested".into()));
        }
        if let Some(value) = &command.value {
            return serde_json::from_str(value).map_err(|error| HandlerError(error.to_string()));
        }
        let mut response = self.response.clone();
        response["payment_id"] = event["payment_id"].clone();
        response["execution"] = format!("{}-{nth}", std::process::id()).into();
        Ok(response)
    }

    /// Delivers the event in its own invocation.
    async fn call(&self, event: &Value, command: &Command) -> Called {
        let now = system_clock().now();
        let deadline = now.saturating_add(Duration::from_millis(command.remaining_ms));
        let key = Key::new(event["payment_id"].as_str().unwrap_or_default())?;
        let idempotency = if command.cache { &self.cached } else { &self.idempotency };
        idempotency
            .for_invocation(Invocation::entered(now, deadline, "bench-request"))
            .operation("charge")?
            .run(key, event, || self.handle(event, command))
            .await
    }

    async fn call_with(&self, key: String, command: &Command) -> Called {
        self.call(&self.event(key), command).await
    }

    fn event(&self, key: String) -> Value {
        let mut event = self.payload.clone();
        event["payment_id"] = key.into();
        event
    }

    async fn answer(&self, command: &Command) -> Value {
        let before = self.executed.load(Ordering::Relaxed);
        let began = stopwatch();
        let mut tally = Tally::default();
        match command.cmd.as_str() {
            "run" => {
                for nth in 0..command.n {
                    tally.count(self.call_with(format!("{}-{nth}", command.prefix), command).await);
                }
            }
            "dup" => {
                for nth in 0..command.n {
                    let key = format!("{}-{nth}", command.prefix);
                    let calls = (0..command.width).map(|_| self.call_with(key.clone(), command));
                    join_all(calls).await.into_iter().for_each(|called| tally.count(called));
                }
            }
            "batch" => self.batch(command, &mut tally).await,
            "one" => {
                let called = self.call_with(command.key.clone(), command).await;
                let mut answer = match called {
                    Ok(value) => json!({ "outcome": "returned", "value": value }),
                    Err(error) => json!({ "outcome": "raised", "error": told(&error) }),
                };
                answer["executed"] = (self.executed.load(Ordering::Relaxed) - before).into();
                answer["wall_ms"] = (began.elapsed().as_secs_f64() * 1e3).into();
                return answer;
            }
            unknown => return json!({ "unsupported": unknown }),
        }
        json!({
            "returned": tally.returned,
            "executed": self.executed.load(Ordering::Relaxed) - before,
            "errors": tally.errors,
            "wall_ns": u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        })
    }

    /// Delivers an SQS event of `n` records to a worker that runs at most `width` of them at once.
    async fn batch(&self, command: &Command, tally: &mut Tally) {
        let Some(width) = NonZeroUsize::new(command.width) else { return };
        let records = (0..command.n).map(|nth| {
            let body = self.event(format!("{}-{nth}", command.prefix)).to_string();
            json!({ "messageId": nth.to_string(), "body": body, "eventSource": "aws:sqs" })
        });
        let event = json!({ "Records": records.collect::<Vec<_>>() }).to_string();
        let key = |message: &SqsMessage| Key::from_json(message, "/payment_id");
        let (bench, command_of) = (self.clone(), command.clone());
        let handler = move |message: SqsMessage| {
            let (bench, command) = (bench.clone(), command_of.clone());
            async move { Ok::<_, lambda_idempotency::Failure>(bench.handle(&message.json()?, &command).await?) }
        };
        let mut worker = self.idempotency.sqs(key, handler).concurrency(width);
        let mut context = lambda_runtime::Context::default();
        let deadline = system_clock().now().saturating_add(Duration::from_millis(command.remaining_ms));
        context.deadline = deadline.as_millis();
        let answer = match RawValue::from_string(event) {
            Ok(event) => worker.call(LambdaEvent::new(event, context)).await.map_err(RunError::from),
            Err(error) => Err(RunError::Handler(HandlerError(error.to_string()))),
        };
        match answer {
            Ok(answer) => {
                let returned = answer.get().matches("itemIdentifier").count() as u64;
                tally.returned += command.n - returned;
                if returned > 0 {
                    *tally.errors.entry("Returned").or_default() += returned;
                }
            }
            Err(error) => tally.count(Err(error)),
        }
    }
}

/// The results of a command's calls.
#[derive(Default)]
struct Tally {
    returned: u64,
    errors: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn count(&mut self, called: Called) {
        match called {
            Ok(_) => self.returned += 1,
            Err(error) => *self.errors.entry(kind(&error)).or_default() += 1,
        }
    }
}

fn kind(error: &RunError<HandlerError>) -> &'static str {
    match error {
        RunError::Handler(_) => "HandlerError",
        RunError::Recorded(_) => "Recorded",
        RunError::Idempotency(error) => error.kind().as_str(),
        _ => "Other",
    }
}

/// The error's kind and text, and its sources.
fn told(error: &RunError<HandlerError>) -> Vec<String> {
    let behind = std::iter::successors(std::error::Error::source(error), |&error| error.source());
    std::iter::once(format!("{}: {error}", kind(error))).chain(behind.map(ToString::to_string)).collect()
}

#[expect(clippy::disallowed_methods, reason = "the example only measures time with it")]
fn stopwatch() -> Instant {
    Instant::now()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn bench() -> Result<Bench, Failure> {
    let mut config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(variable("AWS_REGION").unwrap_or_else(|| "us-east-1".into())))
        .credentials_provider(Credentials::new(
            variable("AWS_ACCESS_KEY_ID").unwrap_or_else(|| "AKIDEXAMPLE".into()),
            variable("AWS_SECRET_ACCESS_KEY").unwrap_or_else(|| "secret".into()),
            variable("AWS_SESSION_TOKEN"),
            None,
            "environment",
        ));
    if let Some(endpoint) = variable("AWS_ENDPOINT_URL_DYNAMODB") {
        if endpoint.starts_with("http://") {
            // The endpoint has no TLS, so no TLS library has to be set up.
            config = config.http_client(aws_smithy_http_client::Builder::new().build_http());
        }
        config = config.endpoint_url(endpoint);
    }
    let table = variable("BENCH_TABLE").unwrap_or_else(|| "idem".into());
    let store = DynamoDbStore::new(Client::from_conf(config.build()), table)?;
    let mut builder = Idempotency::builder(store.clone()).function("bench");
    let mut cached = Idempotency::builder(store).function("bench").settings(|s| s.local_cache = LOCAL_CACHE);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let value = Duration::from_millis(value.parse()?);
        (builder, cached) = match name.as_str() {
            "--skew-margin-ms" => {
                (builder.settings(|s| s.skew_margin = value), cached.settings(|s| s.skew_margin = value))
            }
            "--lease-grace-ms" => {
                (builder.settings(|s| s.lease_grace = value), cached.settings(|s| s.lease_grace = value))
            }
            _ => return Err(format!("unknown option {name}").into()),
        };
    }
    let json = |name| serde_json::from_str(&variable(name).unwrap_or_else(|| "{}".into()));
    Ok(Bench {
        idempotency: builder.build()?,
        cached: cached.build()?,
        payload: json("BENCH_PAYLOAD")?,
        response: json("BENCH_RESPONSE")?,
        executed: Arc::default(),
    })
}

fn main() -> Result<(), Failure> {
    let bench = bench()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for line in std::io::stdin().lock().lines() {
            let command: Command = serde_json::from_str(&line?)?;
            if command.cmd == "exit" {
                break;
            }
            let answer = Box::pin(bench.answer(&command)).await;
            let mut output = std::io::stdout().lock();
            writeln!(output, "{answer}")?;
            output.flush()?;
        }
        Ok(())
    })
}
