//! What the layer costs: the same function behind it and without it, in turns, so that both meet the same machine.

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

/// What's measured beside the function alone: a name, and the layer's settings.
const VARIANTS: [(&str, &[(&str, &str)]); 3] = [
    ("layer, mode off", &[("IDEMPOTENCY_MODE", "off"), ("IDEMPOTENCY_KEY", "/id")]),
    ("layer, no key", &[("IDEMPOTENCY_KEY", "/order"), ("IDEMPOTENCY_ON_MISSING_KEY", "pass")]),
    ("layer, first run", &[("IDEMPOTENCY_KEY", "/id")]),
];

/// The measured sandbox, and its times.
struct Measured {
    name: String,
    sandbox: Sandbox,
    starts: Vec<Duration>,
    times: Vec<Duration>,
}

/// Measures, and returns the table.
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
            environment.push(("IDEMPOTENCY_TABLE".into(), TABLE.into()));
            environment.push(("IDEMPOTENCY_METRICS".into(), "none".into()));
            environment
                .extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        }
        let layer = settings.map(|_| format!("{layer} ")).unwrap_or_default();
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
            let event =
                format!(r#"{{"id":"{}-{number}","do":"effect"}}"#, measured.name.replace([' ', ','], ""));
            let time = measured.sandbox.timed(event.as_bytes()).await;
            measured.times.push(time);
        }
    }
    // The same keys again, which the layer answers alone.
    let mut again = Vec::new();
    let last = all.last().unwrap();
    for number in 0..INVOCATIONS {
        let event = format!(r#"{{"id":"{}-{number}","do":"effect"}}"#, last.name.replace([' ', ','], ""));
        again.push(last.sandbox.timed(event.as_bytes()).await);
    }
    table(&mut all, again)
}

async fn started(name: &str, function: &Function) -> Measured {
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let sandbox = Sandbox::start(function).await;
        starts.push(sandbox.timed(br#"{"id":"start","do":"effect"}"#).await);
    }
    let sandbox = Sandbox::start(function).await;
    sandbox.timed(br#"{"id":"start","do":"effect"}"#).await;
    Measured { name: name.into(), sandbox, starts, times: Vec::new() }
}

impl Sandbox {
    async fn timed(&self, event: &[u8]) -> Duration {
        let begun = clock::start();
        let answer = self.invoke(event, &[]).await;
        assert!(matches!(answer, Answer::Payload(_)), "{answer:?}");
        begun.elapsed()
    }
}

fn table(all: &mut [Measured], mut again: Vec<Duration>) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (base_50, base_99) = (quantile(&mut all[0].times, 50), quantile(&mut all[0].times, 99));
    let base_start = quantile(&mut all[0].starts, 50);
    let mut text = format!(
        "{INVOCATIONS} invocations each, in ms\n{:20} {:>8} {:>8} {:>10} {:>10} {:>12} {:>14}\n",
        "", "p50", "p99", "p50 added", "p99 added", "start added", "resident KiB"
    );
    for measured in all {
        let (p50, p99) = (quantile(&mut measured.times, 50), quantile(&mut measured.times, 99));
        let start = quantile(&mut measured.starts, 50);
        let _ = writeln!(
            text,
            "{:20} {:8.2} {:8.2} {:10.2} {:10.2} {:12.1} {:14}",
            measured.name,
            ms(p50),
            ms(p99),
            ms(p50) - ms(base_50),
            ms(p99) - ms(base_99),
            ms(start) - ms(base_start),
            measured.sandbox.resident(PROGRAM),
        );
    }
    let _ = writeln!(
        text,
        "{:20} {:8.2} {:8.2} {:10.2} {:10.2}",
        "layer, duplicate",
        ms(quantile(&mut again, 50)),
        ms(quantile(&mut again, 99)),
        ms(quantile(&mut again, 50)) - ms(base_50),
        ms(quantile(&mut again, 99)) - ms(base_99),
    );
    text
}

/// The time that this share of all is at most, in percent.
fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
