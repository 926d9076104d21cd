//! Measures what the layer costs. The function with and without the layer takes turns, so that both meet the same load.

use std::{fmt::Write as _, time::Duration};

use lambda_idempotency_rehearsal::{clock, database::Database};

use crate::{
    ledger::Ledger,
    play::{PROGRAM, TABLE},
    runtime::Runtime,
    sandbox::{Answer, Function, Mode, Sandbox, scratch},
};

/// How many invocations each variant gets.
const INVOCATIONS: usize = 2000;

/// How many sandboxes each variant starts to measure the start.
const STARTS: usize = 15;

/// The variants to measure beside the function without the layer: a name, and the layer's settings. A store in the
/// layer's memory takes no time.
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
    let function = |settings: Option<&[(&str, &str)]>| {
        let mut environment = vec![
            ("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), database.endpoint().to_string()),
            ("LEDGER".to_owned(), ledger.file().display().to_string()),
        ];
        if let Some(settings) = settings {
            if !settings.iter().any(|(name, _)| *name == "IDEMPOTENCY_STORE") {
                environment.push(("IDEMPOTENCY_TABLE".into(), TABLE.into()));
            }
            environment.push(("IDEMPOTENCY_METRICS".into(), "none".into()));
            environment
                .extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        }
        // If this variable is set, the library refuses a store in memory, which other sandboxes wouldn't see.
        let layer = settings.map(|_| format!("env -u AWS_LAMBDA_INITIALIZATION_TYPE {layer} "));
        let layer = layer.unwrap_or_default();
        Function {
            runtime: Runtime::Go,
            mode: Mode::OnDemand,
            handler: "handler",
            layer,
            is_unpacked: false,
            timeout: 20,
            environment,
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
    // Delivers the same keys again, which the layer answers alone, in turns with the function without the layer.
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
    table(&mut all, again, alone)
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

fn table(all: &mut [Measured], again: [Vec<Duration>; 2], mut alone: Vec<Duration>) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (base_50, base_99) = (quantile(&mut all[0].times, 50), quantile(&mut all[0].times, 99));
    let base_start = quantile(&mut all[0].starts, 50);
    let mut text = format!(
        "{INVOCATIONS} invocations each, in ms\n{:20} {:>8} {:>8} {:>10} {:>10} {:>10} {:>12} {:>14}\n",
        "", "p50", "p99", "p50 added", "p99 added", "processor", "start added", "resident KiB"
    );
    let mut line = |name: &str, times: &mut [Duration], base: (Duration, Duration), rest: String| {
        let (p50, p99) = (ms(quantile(times, 50)), ms(quantile(times, 99)));
        let (more_50, more_99) = (p50 - ms(base.0), p99 - ms(base.1));
        let _ = writeln!(text, "{name:20} {p50:8.2} {p99:8.2} {more_50:10.2} {more_99:10.2}{rest}");
    };
    for measured in all {
        let start = ms(quantile(&mut measured.starts, 50)) - ms(base_start);
        let processor = measured.ticks as f64 * 10.0 / INVOCATIONS as f64;
        let resident = measured.sandbox.resident(PROGRAM);
        let rest = format!(" {processor:10.3} {start:12.1} {resident:14}");
        line(&measured.name, &mut measured.times, (base_50, base_99), rest);
    }
    let base = (quantile(&mut alone, 50), quantile(&mut alone, 99));
    line("no layer, later", &mut alone, base, String::new());
    for (name, mut times) in AGAIN.into_iter().zip(again) {
        line(name, &mut times, base, String::new());
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text + &format!("load: {}", load.trim())
}

/// Sorts the times, and returns this percentile of them.
fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
