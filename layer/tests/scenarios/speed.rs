//! Measures what the layer costs. The functions with and without the layer take turns, so that both run under the same
//! load.

use std::time::Duration;

use lambda_idempotency_rehearsal::{
    answer::Answer as Responded,
    clock,
    database::{ACCESS_KEY, Database, REGION},
    event::Event,
    function as rehearsed,
    runs::Runs,
};
use serde_json::json;

use crate::{
    ledger::Ledger,
    play::{PROGRAM, TABLE},
    runtime::Runtime,
    sandbox::{Answer, Function, Mode, Sandbox, scratch},
};

/// How many invocations each variant gets. A variant is the function without the layer, or behind the layer with
/// certain settings.
const INVOCATIONS: usize = 2000;

/// How many sandboxes each variant starts, to measure how long a start takes.
const STARTS: usize = 15;

/// The pause before each event at the simulated Runtime API. During this pause, the function that was measured last
/// sends its next poll. Without the pause, the poll would disturb the next measurement.
const PAUSE: Duration = Duration::from_millis(3);

/// The size of a large event, and of a large answer, in bytes.
const LARGE: usize = 5_900_000;

/// The timeout of each invocation.
const LIMIT: Duration = Duration::from_secs(20);

/// The variants to measure in addition to the function without the layer: a name, and the layer's settings. A store in
/// the layer's memory needs no requests, so it shows the cost of the layer alone.
const VARIANTS: [(&str, &[(&str, &str)]); 4] = [
    ("layer, mode off", &[("IDEMPOTENCY_MODE", "off"), ("IDEMPOTENCY_KEY", "/id")]),
    ("layer, no key", &[("IDEMPOTENCY_KEY", "/order"), ("IDEMPOTENCY_ON_MISSING_KEY", "pass")]),
    ("first run, memory", &[("IDEMPOTENCY_KEY", "/id"), ("IDEMPOTENCY_STORE", "memory:")]),
    ("first run, DynamoDB", &[("IDEMPOTENCY_KEY", "/id")]),
];

/// The names of the last two variants when their keys are delivered again.
const AGAIN: [&str; 2] = ["duplicate, memory", "duplicate, DynamoDB"];

/// A measured sandbox, and its times.
struct Measured {
    name: String,
    sandbox: Sandbox,
    starts: Vec<Duration>,
    times: Vec<Duration>,
    /// The layer's processor time over all invocations, in ticks of 10 ms.
    ticks: usize,
}

/// Measures all variants, and returns the table of results.
pub(crate) async fn measure(layer: &str) -> String {
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    let ledger = Ledger::new(scratch().join("ledger"));
    let environment = |settings: Option<&[(&str, &str)]>| environment(&database, &ledger, settings);
    let function = |settings: Option<&[(&str, &str)]>| {
        // If AWS_LAMBDA_INITIALIZATION_TYPE is set, the library refuses a store in memory, which other sandboxes can't
        // see.
        let layer = settings.map(|_| format!("env -u AWS_LAMBDA_INITIALIZATION_TYPE {layer} -- "));
        Function {
            runtime: Runtime::Go,
            mode: Mode::OnDemand,
            handler: "handler",
            layer: layer.unwrap_or_default(),
            is_unpacked: false,
            timeout: LIMIT.as_secs(),
            environment: environment(settings),
        }
    };
    let mut all = vec![started("no layer", &function(None)).await];
    for (name, settings) in VARIANTS {
        all.push(started(name, &function(Some(settings))).await);
    }
    for number in 0..INVOCATIONS {
        for measured in &mut all {
            let time = measured.sandbox.timed(measured.event(number).as_bytes()).await;
            measured.times.push(time);
        }
    }
    for measured in &mut all {
        measured.ticks = measured.sandbox.ticks(PROGRAM) - measured.ticks;
    }
    // Delivers the keys of the last two variants again. The layer answers these duplicates without calling the
    // function. In between, the function without the layer gets new keys, and its times are the base for the
    // duplicates' times.
    let mut again = [Vec::new(), Vec::new()];
    let base = &all[0];
    let mut alone = Vec::new();
    for number in 0..INVOCATIONS {
        alone.push(base.sandbox.timed(base.event(number + INVOCATIONS).as_bytes()).await);
        for (times, measured) in again.iter_mut().zip(&all[all.len() - AGAIN.len()..]) {
            times.push(measured.sandbox.timed(measured.event(number).as_bytes()).await);
        }
    }
    for measured in &all[all.len() - AGAIN.len()..] {
        let key = measured.key(0);
        assert_eq!(ledger.runs(&key), 1, "a duplicate of {key} ran the function");
    }
    let emulated = table(&mut all, again, alone);
    let large = large(&all).await;
    drop(all);
    // `env` starts the function like the layer does, and does nothing else.
    let mut callers = vec![Called::start("no layer", "env", environment(None)).await];
    for (name, settings) in VARIANTS {
        callers.push(Called::start(name, layer, environment(Some(settings))).await);
    }
    format!("{emulated}\n{large}\n{}", measure_callers(&mut callers).await)
}

/// Measures how far a large event, or a large answer, raises the peak of the layer's memory above its memory before.
async fn large(all: &[Measured]) -> String {
    let mut text =
        format!("peak minus previous resident memory, per byte of a {LARGE}-byte event or answer\n");
    for Measured { name, sandbox, .. } in all.iter().skip(1) {
        let (steps, pad) = (format!("effect big:{LARGE}"), "x".repeat(LARGE));
        let events = [
            json!({ "id": format!("{name} large event"), "do": "effect", "pad": pad }),
            json!({ "id": format!("{name} large answer"), "do": steps }),
        ];
        text += &format!("{name:20}");
        for (event, what) in
            events.iter().cycle().zip(["event", "answer", "duplicate event", "duplicate answer"])
        {
            sandbox.forget_peak(PROGRAM);
            let before = sandbox.resident(PROGRAM);
            sandbox.timed(event.to_string().as_bytes()).await;
            let more = sandbox.peak(PROGRAM).saturating_sub(before) * 1024;
            text += &format!("  {what} {:.1}", more as f64 / LARGE as f64);
        }
        text.push('\n');
    }
    text
}

/// Returns the environment of the function, and of the layer with these settings.
fn environment(
    database: &Database,
    ledger: &Ledger,
    settings: Option<&[(&str, &str)]>,
) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut environment = vec![
        ("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), database.endpoint().to_string()),
        ("LEDGER".to_owned(), ledger.file().display().to_string()),
    ];
    if let Some(settings) = settings {
        if !settings.iter().any(|(name, _)| *name == "IDEMPOTENCY_STORE") {
            environment.push(owned(("IDEMPOTENCY_TABLE", TABLE)));
        }
        environment.push(owned(("IDEMPOTENCY_METRICS", "none")));
        environment.extend(settings.iter().copied().map(owned));
    }
    environment
}

async fn started(name: &str, function: &Function) -> Measured {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let sandbox = Sandbox::start(function).await;
        starts.push(sandbox.timed(br#"{"id":"start","do":"effect"}"#).await);
    }
    let sandbox = Sandbox::start(function).await;
    sandbox.timed(br#"{"id":"start","do":"effect"}"#).await;
    let ticks = sandbox.ticks(PROGRAM);
    Measured { name: name.into(), sandbox, starts, times: Vec::new(), ticks }
}

impl Measured {
    fn key(&self, number: usize) -> String {
        format!("{}-{number}", self.name.replace([' ', ','], ""))
    }

    fn event(&self, number: usize) -> String {
        format!(r#"{{"id":"{}","do":"effect"}}"#, self.key(number))
    }
}

impl Sandbox {
    async fn timed(&self, event: &[u8]) -> Duration {
        let begun = clock::start();
        let answer = self.invoke(event, &[]).await;
        assert!(matches!(answer, Answer::Payload(_)), "{answer:?}");
        begun.elapsed()
    }
}

/// A function at a simulated Runtime API, and how long its callers waited.
struct Called {
    name: &'static str,
    sandbox: rehearsed::Sandbox,
    first: Vec<Duration>,
    again: Vec<Duration>,
}

impl Called {
    /// Starts the Go function behind `program`.
    async fn start(name: &'static str, program: &str, environment: Vec<(String, String)>) -> Self {
        let command = ["sh", "-c", &Runtime::Go.command("handler", "")].map(str::to_owned);
        let function = rehearsed::Function::from_words(command, None).unwrap().behind(program, environment);
        let account = [
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.to_owned()),
        ];
        let sandbox = rehearsed::Sandbox::start(&function, &account, Runs::default()).await.unwrap();
        Self { name, sandbox, first: Vec::new(), again: Vec::new() }
    }

    /// Measures the time until the Runtime API has the response.
    async fn timed(&mut self, number: usize) -> Duration {
        clock::pause(PAUSE).await;
        let event = Event::new(json!({ "id": format!("{}-{number}", self.name), "do": "effect" }));
        let begun = clock::start();
        let delivery = self.sandbox.deliver(&event, LIMIT);
        let answer = self.sandbox.answer(delivery).await;
        let time = begun.elapsed();
        assert!(matches!(answer, Responded::Payload(_)), "{answer:?}");
        time
    }
}

/// Measures how long the callers wait. Lambda answers a caller as soon as it has the response ("Performance and
/// functionality improvements for AWS Lambda extensions", AWS Compute Blog). The emulator answers only after the
/// function's next poll, so this measurement uses a simulated Runtime API.
async fn measure_callers(callers: &mut [Called]) -> String {
    for number in 0..INVOCATIONS {
        for called in &mut *callers {
            let time = called.timed(number).await;
            called.first.push(time);
        }
    }
    for number in 0..INVOCATIONS {
        for called in &mut *callers {
            let time = called.timed(number).await;
            called.again.push(time);
        }
    }
    let Called { first, again, .. } = &mut callers[0];
    let bases = [first, again].map(|times| (quantile(times, 50), quantile(times, 99)));
    let mut text = format!("until the Runtime API has the response, in ms\n{HEADER}\n");
    for called in &mut *callers {
        text += &line(called.name, &mut called.first, bases[0], "");
    }
    let most = callers.len() - AGAIN.len();
    for (name, called) in AGAIN.into_iter().zip(&mut callers[most..]) {
        text += &line(name, &mut called.again, bases[1], "");
    }
    text
}

/// The titles of the first columns.
const HEADER: &str = "                          p50      p99  p50 added  p99 added";

/// Formats a line of a table: the median and the 99th percentile of the times, and how much longer they are than the
/// base's.
fn line(name: &str, times: &mut [Duration], base: (Duration, Duration), rest: &str) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (p50, p99) = (ms(quantile(times, 50)), ms(quantile(times, 99)));
    let (more_50, more_99) = (p50 - ms(base.0), p99 - ms(base.1));
    format!("{name:20} {p50:8.2} {p99:8.2} {more_50:10.2} {more_99:10.2}{rest}\n")
}

fn table(all: &mut [Measured], again: [Vec<Duration>; 2], mut alone: Vec<Duration>) -> String {
    let base = (quantile(&mut all[0].times, 50), quantile(&mut all[0].times, 99));
    let base_start = quantile(&mut all[0].starts, 50).as_secs_f64();
    let mut text = format!(
        "until the emulator answers, {INVOCATIONS} invocations each, in ms\n{HEADER}  processor  start added   resident KiB\n"
    );
    for measured in all {
        let start = (quantile(&mut measured.starts, 50).as_secs_f64() - base_start) * 1e3;
        let processor = measured.ticks as f64 * 10.0 / INVOCATIONS as f64;
        let resident = measured.sandbox.resident(PROGRAM);
        let rest = format!(" {processor:10.3} {start:12.1} {resident:14}");
        text += &line(&measured.name, &mut measured.times, base, &rest);
    }
    let base = (quantile(&mut alone, 50), quantile(&mut alone, 99));
    text += &line("no layer, later", &mut alone, base, "");
    for (name, mut times) in AGAIN.into_iter().zip(again) {
        text += &line(name, &mut times, base, "");
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text + &format!("load: {}\n", load.trim())
}

/// Sorts the times, and returns this percentile of them.
fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
