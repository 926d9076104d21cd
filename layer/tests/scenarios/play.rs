//! Plays scenarios in sandboxes, and checks the results. A play is one run of a scenario.

use std::{
    collections::{HashMap, HashSet},
    process::ExitStatus,
    sync::{Arc, RwLock},
    time::Duration,
};

use lambda_idempotency_rehearsal::{clock, database::Database};
use lambda_idempotency_verification_real::wire::{HttpWay, Meaning, Proxy};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    ledger::Ledger,
    runtime::{Runtime, own_program},
    sandbox::{Answer, Function, Mode, Sandbox, scratch},
    scenario::{Event, Scenario, Source, Step, Then},
};

/// The layer's program.
pub(crate) const PROGRAM: &str = "idempotency-extension";

/// The table of records.
pub(crate) const TABLE: &str = "records";

/// The timeout of one attempt of a request from the layer to its store. The proxy derives its delays from this timeout.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How long the steps `Until`, `Arrives` and `Effect` wait, at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A function with a timeout of at most this many seconds is started before its scenario, because its start could take
/// longer than the timeout.
const SHORT: u64 = 8;

/// The key of deliveries that only start the function.
const WARM_UP: &str = "warm-up";

/// The number of sandboxes for concurrent deliveries to an on-demand function. Each takes one invocation at a time.
const FLEET: usize = 4;

/// Sandboxes of one function with one configuration, their table's proxy, and their ledger.
#[derive(Debug)]
pub(crate) struct Stage {
    function: Function,
    fleet: RwLock<Vec<Arc<Sandbox>>>,
    proxy: Proxy,
    ledger: Ledger,
}

impl Stage {
    /// Starts the sandboxes, the proxy and the ledger for `scenario`.
    pub(crate) async fn start(
        scenario: &Scenario,
        runtime: Runtime,
        mode: Mode,
        layer: Option<&str>,
        database: &Database,
    ) -> Self {
        let proxy = Proxy::before(database.endpoint().clone(), ATTEMPT).await.unwrap();
        let ledger = Ledger::new(scratch().join("ledger"));
        let mut environment = vec![
            ("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), proxy.endpoint()),
            ("LEDGER".to_owned(), ledger.file().display().to_string()),
        ];
        if layer.is_some() {
            environment.push(("IDEMPOTENCY_TABLE".into(), TABLE.into()));
        }
        let settings =
            scenario.settings.iter().filter(|(name, _)| layer.is_some() || !name.starts_with("IDEMPOTENCY"));
        environment.extend(settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let is_concurrent =
            scenario.steps.iter().any(|step| matches!(step, Step::AtOnce(..) | Step::Start(..)));
        let function = Function {
            runtime,
            mode,
            handler: scenario.handler,
            layer: layer.map(|layer| format!("{layer} ")).unwrap_or_default(),
            is_unpacked: false,
            timeout: scenario.timeout,
            environment,
        };
        let count = if is_concurrent && mode == Mode::OnDemand { FLEET } else { 1 };
        let mut fleet = Vec::new();
        for _ in 0..count {
            fleet.push(Arc::new(Sandbox::start(&function).await));
        }
        let stage = Self { function, fleet: RwLock::new(fleet), proxy, ledger };
        if scenario.timeout <= SHORT || is_concurrent {
            stage.warm_up().await;
        }
        stage
    }

    fn fleet(&self) -> Vec<Arc<Sandbox>> {
        self.fleet.read().unwrap().clone()
    }

    /// The sandbox with this index, which wraps around after the last sandbox.
    fn sandbox(&self, at: usize) -> Arc<Sandbox> {
        let fleet = self.fleet();
        Arc::clone(&fleet[at % fleet.len()])
    }

    /// Starts the function in every sandbox, because a start can take longer than a short timeout.
    async fn warm_up(&self) {
        for sandbox in self.fleet() {
            for _ in 0..10 {
                let answer = sandbox.invoke(&Event::Plain("", "effect").bytes(WARM_UP), &[]).await;
                if answer != Answer::TimedOut {
                    break;
                }
            }
        }
    }

    /// Plays one scenario with this key.
    ///
    /// # Errors
    ///
    /// The first result that differs from the scenario.
    pub(crate) async fn play(&self, scenario: &Scenario, key: &str) -> Result<(), String> {
        let mut play = Play {
            stage: self,
            key,
            seen: HashSet::new(),
            latest: HashMap::new(),
            started: None,
            has_ended: false,
            from: self.proxy.log().len(),
        };
        for (at, step) in scenario.steps.iter().enumerate() {
            play.step(step).await.map_err(|problem| format!("step {}: {problem}", at + 1))?;
        }
        play.totals(scenario)
    }

    /// How an emulator ended, if one did.
    pub(crate) fn emulators_end(&self) -> Option<ExitStatus> {
        self.fleet().iter().find_map(|sandbox| sandbox.emulators_end())
    }

    /// The ledger, the requests to the store, and the output of the sandboxes, for the report of a failure.
    pub(crate) fn told(&self) -> String {
        let ledger = std::fs::read_to_string(self.ledger.file()).unwrap_or_default();
        let mut told = format!("ledger:\n{ledger}\nstore: {:?}\n", self.proxy.arrived());
        for sandbox in self.fleet() {
            told += &format!("written:\n{}\nemulator:\n{}\n", sandbox.output(), sandbox.log());
        }
        told
    }
}

/// One run of a scenario.
struct Play<'a> {
    stage: &'a Stage,
    key: &'a str,
    /// The function's runs whose responses the play has seen.
    seen: HashSet<String>,
    /// The response of each key's latest run.
    latest: HashMap<&'static str, Vec<u8>>,
    started: Option<(Event, JoinHandle<Answer>)>,
    /// Whether a process has ended, so that the next delivery starts the function.
    has_ended: bool,
    /// The number of requests that the store got before this play.
    from: usize,
}

impl Play<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Send(event, then) => {
                let answer = self.send(0, event).await;
                self.judge(event, *then, &answer)
            }
            Step::Until(event, then) => {
                let end = clock::now_ms() + clock::millis(PATIENCE);
                loop {
                    let answer = self.send(0, event).await;
                    // After a process has ended, the next deliveries may time out because they also start the function,
                    // or be refused because the start left the layer no time for its store.
                    let is_start = self.has_ended && (answer == Answer::TimedOut || is_unavailable(&answer));
                    self.has_ended = is_start;
                    if !(is_start || is_in_progress(&answer)) || clock::now_ms() > end {
                        return self.judge(event, *then, &answer);
                    }
                    clock::pause(Duration::from_millis(250)).await;
                }
            }
            Step::AtOnce(count, event) => self.at_once(*count, event).await,
            Step::Start(event) => {
                let sandbox = self.stage.sandbox(0);
                let (bytes, headers) = (event.bytes(self.key), event.headers());
                let sending = tokio::spawn(async move { sandbox.invoke(&bytes, headers).await });
                self.started = Some((event.clone(), sending));
                Ok(())
            }
            Step::Finish(then) => {
                let (event, sending) = self.started.take().ok_or("nothing was started")?;
                let answer = sending.await.map_err(|error| error.to_string())?;
                self.judge(&event, *then, &answer)
            }
            Step::Break(meaning, requests, fault) => {
                self.stage.proxy.break_from(*meaning, *requests, *fault);
                Ok(())
            }
            Step::Heal => {
                self.expect_fault()?;
                self.stage.proxy.heal();
                Ok(())
            }
            Step::Deliver(until) => {
                self.stage.proxy.deliver(*until).await;
                Ok(())
            }
            Step::Arrives(meaning) => {
                let end = clock::now_ms() + clock::millis(PATIENCE);
                while !self.requests().iter().any(|(arrived, _)| arrived == meaning) {
                    if clock::now_ms() > end {
                        return Err(format!(
                            "no request came to {meaning}; the store got {:?}",
                            self.requests()
                        ));
                    }
                    clock::pause(Duration::from_millis(5)).await;
                }
                Ok(())
            }
            Step::Effect => {
                let end = clock::now_ms() + clock::millis(PATIENCE);
                while self.stage.ledger.effects(self.key) == 0 {
                    if clock::now_ms() > end {
                        return Err("the function had no effect".into());
                    }
                    clock::pause(Duration::from_millis(5)).await;
                }
                Ok(())
            }
            Step::Pause(ms) => {
                clock::pause(Duration::from_millis(*ms)).await;
                Ok(())
            }
            Step::KillLayer => {
                self.has_ended = true;
                self.kill(PROGRAM)
            }
            Step::KillFunction => {
                self.has_ended = true;
                self.kill_function()
            }
            Step::Restart => {
                let started = Sandbox::start(&self.stage.function).await;
                // Dropping the old sandbox stops it.
                drop(std::mem::replace(&mut *self.stage.fleet.write().unwrap(), vec![Arc::new(started)]));
                Ok(())
            }
        }
    }

    /// Otherwise, the play would show nothing.
    fn expect_fault(&self) -> Result<(), String> {
        if self.stage.proxy.has_unused_fault() {
            Err("the planned fault didn't happen".into())
        } else {
            Ok(())
        }
    }

    fn kill(&self, program: &str) -> Result<(), String> {
        match self.stage.sandbox(0).kill(program) {
            0 => Err(format!("there's no process of {program} to kill")),
            _ => Ok(()),
        }
    }

    fn kill_function(&self) -> Result<(), String> {
        let own = own_program();
        let own = own.file_name().unwrap_or_default().to_string_lossy();
        let programs: &[&str] = match self.stage.function.runtime {
            Runtime::Rust => &[&own],
            Runtime::Python => {
                &["python3", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14"]
            }
            Runtime::Node => &["node"],
            Runtime::Java => &["java"],
            Runtime::Go => &["function"],
        };
        let killed: usize = programs.iter().map(|program| self.stage.sandbox(0).kill(program)).sum();
        if killed == 0 { Err("there's no process of the function to kill".into()) } else { Ok(()) }
    }

    /// Sends the event to the sandbox with this index. Between the steps `Start` and `Finish`, the index counts from
    /// the second sandbox, because the first one runs the started delivery.
    async fn send(&self, at: usize, event: &Event) -> Answer {
        let at = if self.started.is_some() { at + 1 } else { at };
        self.stage.sandbox(at).invoke(&event.bytes(self.key), event.headers()).await
    }

    async fn at_once(&mut self, count: usize, event: &Event) -> Result<(), String> {
        let sending: Vec<_> = (0..count)
            .map(|at| {
                let sandbox = self.stage.sandbox(at);
                let (bytes, headers) = (event.bytes(self.key), event.headers());
                tokio::spawn(async move { sandbox.invoke(&bytes, headers).await })
            })
            .collect();
        let mut responses = Vec::new();
        for sending in sending {
            match sending.await.map_err(|error| error.to_string())? {
                answer if is_in_progress(&answer) => {}
                Answer::Payload(bytes) => responses.push(bytes),
                other => return Err(format!("one of {count} deliveries got {}", shown(&other))),
            }
        }
        let Some(first) = responses.first() else { return Err("no delivery got a response".into()) };
        if responses.iter().any(|response| body_of(response) != body_of(first)) {
            return Err("concurrent deliveries got different responses".into());
        }
        self.seen.extend(run_of(first));
        self.latest.insert(event.suffix(), first.clone());
        Ok(())
    }

    /// The requests of this play, without those by which a layer connects while the function's runtime starts, and
    /// without the SDK's own retries, which a slow machine can cause.
    fn requests(&self) -> Vec<(Meaning, Option<HttpWay>)> {
        let exchanges = self.stage.proxy.log().exchanges().split_off(self.from);
        let of_events = exchanges.iter().filter(|exchange| exchange.first_attempt && !exchange.is_warm_up());
        of_events.map(|exchange| (exchange.meaning, exchange.fault)).collect()
    }

    fn judge(&mut self, event: &Event, then: Then, answer: &Answer) -> Result<(), String> {
        let found = || Err(format!("expected {then:?}, got {}", shown(answer)));
        self.has_ended |= matches!(answer, Answer::Died(_) | Answer::TimedOut);
        match (then, answer) {
            (Then::Anything, _) | (Then::TimesOut, Answer::TimedOut) => Ok(()),
            (Then::Dies, Answer::Died(_)) => Ok(()),
            (Then::Fails, Answer::Error { .. } | Answer::Died(_)) => Ok(()),
            (Then::Throws(name), Answer::Error { kind, .. })
                if *kind == self.stage.function.runtime.error_type(name) =>
            {
                Ok(())
            }
            (Then::Refuses(name), Answer::Error { kind, .. }) if *kind == format!("Idempotency.{name}") => {
                Ok(())
            }
            (Then::Runs, Answer::Payload(bytes)) => self.is_new(event, bytes),
            (Then::Answers, Answer::Payload(bytes)) if run_of(bytes).is_some() => {
                self.seen.extend(run_of(bytes));
                self.latest.insert(event.suffix(), bytes.clone());
                Ok(())
            }
            (Then::RunsWith(text), Answer::Payload(bytes)) => {
                self.is_new(event, bytes)?;
                // The runtime clients put different spaces into JSON.
                let compact = String::from_utf8_lossy(bytes).replace("\": ", "\":").replace(", \"", ",\"");
                if compact.contains(&text.replace("KEY", self.key)) { Ok(()) } else { found() }
            }
            (Then::Replays, Answer::Payload(bytes)) if self.latest.get(event.suffix()) == Some(bytes) => {
                Ok(())
            }
            (Then::Responds(status), Answer::Payload(bytes)) => {
                self.is_new(event, bytes)?;
                if status_of(bytes) == Some(status) && header_of(bytes, "idempotent-replayed").is_none() {
                    Ok(())
                } else {
                    found()
                }
            }
            (Then::RespondsAgain(status), Answer::Payload(bytes)) => {
                let latest = self.latest.get(event.suffix());
                let is_same = latest.is_some_and(|latest| {
                    body_of(latest) == body_of(bytes)
                        && header_of(latest, "content-type") == header_of(bytes, "content-type")
                });
                let is_marked = header_of(bytes, "idempotent-replayed").as_deref() == Some("true");
                if is_same && is_marked && status_of(bytes) == Some(status) { Ok(()) } else { found() }
            }
            (Then::Declines(status, header), Answer::Payload(bytes)) => {
                let has_header = header.is_empty() || header_of(bytes, header).is_some();
                let is_problem = header_of(bytes, "content-type")
                    .is_some_and(|kind| kind.starts_with("application/problem+json"));
                if status_of(bytes) == Some(status) && has_header && is_problem { Ok(()) } else { found() }
            }
            (Then::Fail(records), Answer::Payload(bytes)) => {
                let Event::Batch(source, _) = event else { return Err("only a batch has failures".into()) };
                self.failed(*source, records, bytes)
            }
            _ => found(),
        }
    }

    /// Notes a response, and checks that it comes from a new run: no earlier response in this play came from this run.
    fn is_new(&mut self, event: &Event, bytes: &[u8]) -> Result<(), String> {
        let run = run_of(bytes).ok_or_else(|| format!("not a function's response: {}", short(bytes)))?;
        if !self.seen.insert(run.clone()) {
            return Err(format!("expected a new run, got {run} again"));
        }
        self.latest.insert(event.suffix(), bytes.to_vec());
        Ok(())
    }

    fn failed(&self, source: Source, records: &[&str], bytes: &[u8]) -> Result<(), String> {
        let answer: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let listed = answer["batchItemFailures"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<_> = listed
            .iter()
            .filter_map(|failure| failure["itemIdentifier"].as_str())
            .map(str::to_owned)
            .collect();
        let mut expected: Vec<_> = records.iter().map(|record| source.name_of(self.key, record)).collect();
        found.sort();
        expected.sort();
        if found == expected {
            Ok(())
        } else {
            Err(format!("expected {expected:?} to fail, found {found:?}"))
        }
    }

    fn totals(&self, scenario: &Scenario) -> Result<(), String> {
        self.expect_fault()?;
        let ledger = &self.stage.ledger;
        for (suffix, runs, effects) in &scenario.totals {
            let key = format!("{}{suffix}", self.key);
            let (ran, had) = (ledger.runs(&key), ledger.effects(&key));
            if !runs.holds(ran) || !effects.holds(had) {
                return Err(format!(
                    "the key `{key}` has {ran} runs and {had} effects, not {runs:?} and {effects:?}"
                ));
            }
        }
        if let Some(expected) = scenario.order
            && ledger.order(self.key) != expected
        {
            return Err(format!("effects in the order {:?}, not {expected:?}", ledger.order(self.key)));
        }
        if let Some(expected) = scenario.requests
            && self.requests().len() != expected
        {
            let arrived = self.requests();
            return Err(format!("{} requests to the store, not {expected}: {arrived:?}", arrived.len()));
        }
        if let Some(text) = scenario.writes
            && !self.stage.fleet().iter().any(|sandbox| sandbox.output().contains(text))
        {
            return Err(format!("the layer and the function never wrote `{text}`"));
        }
        Ok(())
    }
}

/// Whether the answer is a refusal because another delivery is running: an error, an HTTP response, or a batch whose
/// records failed.
fn is_in_progress(answer: &Answer) -> bool {
    match answer {
        Answer::Error { kind, .. } => kind == "Idempotency.InProgress",
        Answer::Payload(bytes) => {
            let answer: Value = serde_json::from_slice(bytes).unwrap_or_default();
            answer["statusCode"] == 409
                || answer["batchItemFailures"].as_array().is_some_and(|all| !all.is_empty())
        }
        _ => false,
    }
}

fn is_unavailable(answer: &Answer) -> bool {
    matches!(answer, Answer::Error { kind, .. } if kind == "Idempotency.Unavailable")
}

/// The id of the run that gave this response, from the response itself or from its HTTP body.
fn run_of(bytes: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(bytes).ok()?;
    let body = answer["body"].as_str();
    if let Some(run) = body.and_then(|body| body.strip_prefix("run ")) {
        return Some(run.into());
    }
    let inner: Value = body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or(answer);
    inner["run"].as_str().map(str::to_owned)
}

fn status_of(bytes: &[u8]) -> Option<u16> {
    let answer: Value = serde_json::from_slice(bytes).ok()?;
    answer["statusCode"].as_u64()?.try_into().ok()
}

/// The body of an HTTP response, or the whole answer if it isn't an HTTP response.
fn body_of(bytes: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(bytes).unwrap_or_default();
    answer["body"].as_str().map_or_else(|| String::from_utf8_lossy(bytes).into_owned(), str::to_owned)
}

fn header_of(bytes: &[u8], name: &str) -> Option<String> {
    let answer: Value = serde_json::from_slice(bytes).ok()?;
    let find = |headers: &Value| {
        let headers = headers.as_object()?;
        headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
    };
    let value = find(&answer["headers"]).or_else(|| find(&answer["multiValueHeaders"]))?;
    let first = value.as_array().and_then(|values| values.first()).unwrap_or(&value).clone();
    Some(first.as_str().map_or_else(|| first.to_string(), str::to_owned))
}

/// How a report shows a timeout.
const TIMED_OUT: &str = "a timeout";

/// Whether this problem can come from a machine that was late: a timeout or a refusal came. A wrong count never does.
pub(crate) fn can_be_lateness(problem: &str) -> bool {
    [TIMED_OUT, "Idempotency.InProgress", "Idempotency.Unavailable"].iter().any(|came| problem.contains(came))
}

fn shown(answer: &Answer) -> String {
    match answer {
        Answer::Payload(bytes) => short(bytes),
        Answer::Error { kind, message } => format!("the error {kind}: {}", short(message.as_bytes())),
        Answer::TimedOut => TIMED_OUT.into(),
        Answer::Died(message) => format!("a dead process: {message}"),
    }
}

fn short(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(300).collect()
}
