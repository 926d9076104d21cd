//! Records everything that a test run logs or prints: tracing's events and spans of every target and level, metrics,
//! and the text of errors and `Debug` values. It also records every secret that must not appear there. An audit starts
//! the run and searches its recording for the secrets (`wrappers/silence.rs`, `client/silence.rs`).

use std::{
    collections::BTreeSet,
    env,
    error::Error,
    fmt::{self, Debug, Write as _},
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
};
use serde_json::Value;
use tracing::{
    field::{Field, Visit},
    span,
};

use crate::secrets::Secrets;

/// The variable that names the recording's folder. Without it, nothing is recorded.
pub const FOLDER: &str = "IDEMPOTENCY_TEST_RECORDING";

/// Ends an entry. No recorded text contains it.
const END: &str = "\u{1e}\n";

static RECORDING: LazyLock<Option<Recording>> = LazyLock::new(|| {
    let folder = env::var_os(FOLDER)?;
    let folder = Path::new(&folder);
    tracing::subscriber::set_global_default(Told).unwrap();
    metrics::set_global_recorder(Told).unwrap();
    let file =
        |name| Mutex::new(OpenOptions::new().create(true).append(true).open(folder.join(name)).unwrap());
    Some(Recording { told: file("told"), secrets: file("secrets"), begun: file("begun") })
});

struct Recording {
    told: Mutex<File>,
    secrets: Mutex<File>,
    begun: Mutex<File>,
}

/// Starts the recording, and notes that this test is recorded. Each test calls it first.
pub fn begin() {
    // The test harness names a test's thread after the test.
    if let (Some(recording), Some(test)) = (&*RECORDING, std::thread::current().name()) {
        write(&recording.begun, test);
    }
}

/// Whether this run is recorded. A test with ten thousand repetitions may then do fewer.
pub fn is_on() -> bool {
    RECORDING.is_some()
}

/// Records the secrets that `collect` adds.
pub fn secrets(collect: impl FnOnce(&mut Secrets)) {
    begin();
    let Some(recording) = &*RECORDING else { return };
    let mut secrets = Secrets::default();
    collect(&mut secrets);
    for secret in secrets.iter() {
        write(&recording.secrets, &Value::from(secret).to_string());
    }
}

/// Records the `Debug` text of a value.
pub fn shown(value: &dyn Debug) {
    told(|| format!("shown: {value:?}\n{value:#?}"));
}

/// Records the text of an error and of each of its sources.
pub fn error(error: &dyn Error) {
    shown(&error);
    told(|| format!("said: {error}"));
    if let Some(source) = error.source() {
        self::error(source);
    }
}

fn told(text: impl FnOnce() -> String) {
    begin();
    if let Some(recording) = &*RECORDING {
        write(&recording.told, &text());
    }
}

/// Writes an entry. Unlike [`told`], this doesn't call [`begin`]: only the recorders call this, and they're installed
/// when the recording begins.
fn tell(text: &str) {
    if let Some(recording) = &*RECORDING {
        write(&recording.told, text);
    }
}

fn write(file: &Mutex<File>, entry: &str) {
    file.lock().unwrap().write_all(format!("{entry}{END}").as_bytes()).unwrap();
}

/// The recording of a run.
#[derive(Debug)]
pub struct Recorded {
    /// Every recorded text once, even if it was recorded several times.
    pub told: String,
    /// The secrets, none of which may be in `told`.
    pub secrets: Secrets,
    /// The names of the tests that called [`begin`].
    pub begun: BTreeSet<String>,
}

impl Recorded {
    /// Reads the recording in `folder`, and adds the run's output to it.
    pub fn read(folder: &Path, output: &str) -> Self {
        let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let entries = |name| {
            let text = read(name);
            text.split_terminator(END).map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let mut told: Vec<_> = entries("told").into_iter().collect();
        told.push(output.to_owned());
        let mut secrets = Secrets::default();
        for secret in entries("secrets") {
            secrets.add(serde_json::from_str::<Vec<u8>>(&secret).unwrap());
        }
        Self { told: told.join("\n"), secrets, begun: entries("begun") }
    }
}

/// The target under which the AWS SDK logs DynamoDB's answers. At TRACE, it logs each answer in full, including
/// recorded responses. The library can't prevent that, and only users who enable TRACE for this target get these logs.
/// So the recording leaves them out.
const ORCHESTRATOR: &str = "aws_smithy_runtime::client::orchestrator";
/// The target of the emulator that some tests run in their own process. The emulator logs answers at TRACE too, and the
/// recording leaves them out too.
const EMULATOR: &str = "dynoxide";

/// Records tracing's events and spans, and metrics.
#[derive(Debug)]
struct Told;

impl tracing::Subscriber for Told {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let metadata = span.metadata();
        let mut text = Text(format!("span: {} {}", metadata.target(), metadata.name()));
        span.record(&mut text);
        tell(&text.0);
        span::Id::from_u64(NEXT.fetch_add(1, Ordering::SeqCst))
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        let mut text = Text("span:".into());
        values.record(&mut text);
        tell(&text.0);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        let is_others = [ORCHESTRATOR, EMULATOR].iter().any(|others| metadata.target().starts_with(others));
        if *metadata.level() == tracing::Level::TRACE && is_others {
            return;
        }
        let mut text = Text(format!("event: {} {}", metadata.level(), metadata.target()));
        event.record(&mut text);
        tell(&text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {field}={value}").unwrap();
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        write!(self.0, " {field}={value} {value:?}").unwrap();
        if let Some(source) = value.source() {
            self.record_error(field, source);
        }
    }
}

impl metrics::Recorder for Told {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, words: SharedString) {
        tell(&format!("metric: {key:?} {unit:?} {words}"));
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, words: SharedString) {
        tell(&format!("metric: {key:?} {unit:?} {words}"));
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, words: SharedString) {
        tell(&format!("metric: {key:?} {unit:?} {words}"));
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Measured::new(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Measured::new(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Measured::new(key))
    }
}

/// A metric with its name and labels.
struct Measured(String);

impl Measured {
    fn new(key: &Key) -> Arc<Self> {
        Arc::new(Self(format!("metric: {} {key:?}", key.name())))
    }

    fn tell(&self, value: impl fmt::Display) {
        tell(&format!("{}: {value}", self.0));
    }
}

impl CounterFn for Measured {
    fn increment(&self, value: u64) {
        self.tell(value);
    }

    fn absolute(&self, value: u64) {
        self.tell(value);
    }
}

impl GaugeFn for Measured {
    fn increment(&self, value: f64) {
        self.tell(value);
    }

    fn decrement(&self, value: f64) {
        self.tell(value);
    }

    fn set(&self, value: f64) {
        self.tell(value);
    }
}

impl HistogramFn for Measured {
    fn record(&self, value: f64) {
        self.tell(value);
    }
}
