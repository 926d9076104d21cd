//! The log, on standard output: one line per event, as JSON or as text.
//!
//! With the log format JSON, Lambda reads the level only from a line that has a `timestamp` in RFC 3339 and a `level`.
//! Any other line counts as INFO ("Log-level filtering", AWS Lambda developer guide). The other names are those of
//! Lambda's own runtimes.

use std::{
    env, fmt,
    fmt::Write as _,
    io::{self, Write as _},
};

use lambda_runtime::tracing::subscriber::{
    EnvFilter, Layer,
    fmt::{
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::{Context, SubscriberExt as _},
    registry::{LookupSpan, Registry},
    util::SubscriberInitExt as _,
};
use serde_json::Value;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span::{Attributes, Id},
};

/// The field of a span, and of a line, that has the invocation's request id.
const REQUEST_ID: &str = "requestId";
/// The layer's name for it in the fields of its events.
const ITS_OTHER_NAME: &str = "request_id";
/// The field that has JSON, which isn't quoted again.
const JSON: &str = "wrappers";
/// The targets of the library's and the layer's own events begin with this.
const OWN: &str = "lambda_idempotency";

/// Begins to write the process's log.
pub(crate) fn start() {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let log = Log { is_json: is_json(), write: to_standard_output };
    let filter = filter(variable("AWS_LAMBDA_LOG_LEVEL").as_deref(), variable("RUST_LOG").as_deref());
    // This fails only if the process has a log already.
    let _ = Registry::default().with(filter).with(log).try_init();
}

/// Whether the function's log format is JSON.
pub(crate) fn is_json() -> bool {
    env::var("AWS_LAMBDA_LOG_FORMAT").is_ok_and(|format| format.eq_ignore_ascii_case("json"))
}

/// The span of an invocation. Each line that's written inside it has the request id.
pub(crate) fn invocation(request_id: &str) -> tracing::Span {
    // A span that's less severe than the level would be off, and the lines without the id.
    tracing::error_span!("invocation", requestId = request_id)
}

/// The events to log. `level` is the function's log level, and `rust_log` the directives of `tracing-subscriber`. Only
/// the library's and the layer's own events are below WARN: at DEBUG, the AWS SDK writes about 40 lines per event.
/// Directives with a target, such as `hyper=debug`, add more.
fn filter(level: Option<&str>, rust_log: Option<&str>) -> EnvFilter {
    let directives = rust_log.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty());
    let (with_target, alone): (Vec<&str>, Vec<&str>) =
        directives.partition(|part| part.contains(['=', '[', ':']));
    let level = match level.or_else(|| alone.last().copied()) {
        // Lambda has one more level, and drops ERROR lines itself.
        Some(level) if level.eq_ignore_ascii_case("fatal") => LevelFilter::ERROR,
        level => level.and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO),
    };
    let others = level.min(LevelFilter::WARN);
    let directives =
        [format!("{others},{OWN}={level}")].into_iter().chain(with_target.iter().map(ToString::to_string));
    EnvFilter::builder().parse_lossy(directives.collect::<Vec<_>>().join(","))
}

fn to_standard_output(line: &str) {
    // Nobody reads the log, and nothing else can say so.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Writes each event in one line.
struct Log<W> {
    is_json: bool,
    write: W,
}

/// A span's request id.
struct RequestId(String);

impl<S, W> Layer<S> for Log<W>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: Fn(&str) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut line = Line::default();
        attributes.record(&mut line);
        if let (Some(request_id), Some(span)) = (line.request_id, context.span(id)) {
            span.extensions_mut().insert(RequestId(request_id));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.request_id.is_none() {
            let mut spans = context.event_scope(event).into_iter().flatten();
            line.request_id =
                spans.find_map(|span| span.extensions().get::<RequestId>().map(|RequestId(id)| id.clone()));
        }
        let mut time = String::new();
        // Writing into a string can't fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let level = *event.metadata().level();
        (self.write)(&match self.is_json {
            true => line.json(&time, level),
            false => line.text(&time, level),
        });
    }
}

/// An event's fields.
#[derive(Default)]
struct Line {
    message: String,
    request_id: Option<String>,
    others: Vec<(&'static str, Value)>,
}

impl Line {
    fn json(&self, time: &str, level: Level) -> String {
        let mut line =
            format!(r#"{{"timestamp":"{time}","level":"{level}","message":{}"#, quoted(&self.message));
        if let Some(id) = &self.request_id {
            let _ = write!(line, r#","{REQUEST_ID}":{}"#, quoted(id));
        }
        for (name, value) in &self.others {
            let _ = write!(line, ",{}:{value}", quoted(name));
        }
        line.push_str("}\n");
        line
    }

    fn text(&self, time: &str, level: Level) -> String {
        let mut line = format!("{time} {level} {}", one_line(&self.message));
        if let Some(id) = &self.request_id {
            let _ = write!(line, " {REQUEST_ID}={}", one_word(id));
        }
        for (name, value) in &self.others {
            let _ = match value {
                Value::String(text) => write!(line, " {name}={}", one_word(text)),
                value => write!(line, " {name}={value}"),
            };
        }
        line.push('\n');
        line
    }

    fn add(&mut self, field: &Field, value: Value) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            value => value.to_string(),
        };
        match field.name() {
            "message" => self.message = text(value),
            REQUEST_ID | ITS_OTHER_NAME => self.request_id = Some(text(value)),
            JSON => self.others.push((JSON, serde_json::from_str(&text(value)).unwrap_or_default())),
            name => self.others.push((name, value)),
        }
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, in_variables(&format!("{value:?}")).into());
    }
}

/// The library's message, with the layer's variable in place of the method that sets the cipher. No other message that the
/// layer's user can get names a method.
pub(crate) fn in_variables(message: &str) -> String {
    message.replace("Builder::cipher", "IDEMPOTENCY_CIPHER")
}

/// The text as a JSON string.
fn quoted(text: &str) -> Value {
    text.into()
}

/// The text without line breaks and other control characters, which could forge a line.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// The text, in quotes if it isn't one word.
fn one_word(text: &str) -> String {
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"') {
        true => quoted(text).to_string(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The lines that `logs` writes.
    fn lines(is_json: bool, level: Option<&str>, rust_log: Option<&str>, logs: impl FnOnce()) -> Vec<String> {
        let written = Arc::new(Mutex::new(Vec::new()));
        let keeps = Arc::clone(&written);
        let log = Log { is_json, write: move |line: &str| keeps.lock().unwrap().push(line.to_owned()) };
        let subscriber = Registry::default().with(filter(level, rust_log)).with(log);
        tracing::subscriber::with_default(subscriber, logs);
        written.lock().unwrap().clone()
    }

    #[test]
    fn json_lines_have_what_lambda_reads() {
        let lines = lines(true, Some("WARN"), None, || {
            let _in = invocation("r-1").entered();
            let detail = "a \"quoted\"\nline";
            tracing::warn!(target: "lambda_idempotency", event = "fenced", id = %"f/event#1", n = 7_u64, is = true, detail, "lost");
            tracing::error!(request_id = "r-2", none = None::<u64>, "{}", "broke\noff");
            tracing::info!("not at this level");
        });
        let parsed: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [fenced, broken] = parsed.as_slice() else { panic!("{lines:?}") };
        for line in &parsed {
            let time = line["timestamp"].as_str().unwrap();
            let (date, clock) = time.split_once('T').unwrap();
            assert!(date.len() == 10 && clock.len() == 16 && clock.ends_with('Z'), "{time}");
        }
        let expected = serde_json::json!({
            "timestamp": fenced["timestamp"], "level": "WARN", "message": "lost", "requestId": "r-1",
            "event": "fenced", "id": "f/event#1", "n": 7, "is": true, "detail": "a \"quoted\"\nline",
        });
        assert_eq!(*fenced, expected);
        let expected = serde_json::json!({
            "timestamp": broken["timestamp"], "level": "ERROR", "message": "broke\noff", "requestId": "r-2",
        });
        assert_eq!(*broken, expected);
        assert!(lines.iter().all(|line| line.matches('\n').count() == 1), "{lines:?}");
    }

    #[test]
    fn text_lines_are_plain() {
        let lines = lines(false, None, None, || {
            let _in = invocation("r-1").entered();
            tracing::warn!(event = "fenced", cause = "no\nroute to host", n = 7_u64, empty = "", "lost\nit");
        });
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        let (time, line) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z'), "{time}");
        let expected =
            "WARN lost\\nit requestId=r-1 event=fenced cause=\"no\\nroute to host\" n=7 empty=\"\"\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn only_own_events_are_below_warn() {
        let said = |level: Option<&str>, rust_log: Option<&str>| -> String {
            let logs = || {
                for write in [
                    || tracing::debug!(target: "lambda_idempotency", "a"),
                    || tracing::info!(target: "lambda_idempotency_layer::proxy", "b"),
                    || tracing::warn!(target: "lambda_idempotency", "c"),
                    || tracing::error!(target: "lambda_idempotency_layer", "d"),
                    || tracing::debug!(target: "aws_smithy_runtime::client", "e"),
                    || tracing::info!(target: "aws_config", "f"),
                    || tracing::warn!(target: "hyper_util", "g"),
                    || tracing::error!(target: "rustls", "h"),
                ] {
                    write();
                }
            };
            let lines = lines(true, level, rust_log, logs);
            let message = |line: &String| -> String {
                let line: Value = serde_json::from_str(line).unwrap();
                line["message"].as_str().unwrap().to_owned()
            };
            lines.iter().map(message).collect()
        };
        for (level, rust_log, expected) in [
            (None, None, "bcdgh"),
            (Some("DEBUG"), None, "abcdgh"),
            (Some("TRACE"), None, "abcdgh"),
            (Some("INFO"), None, "bcdgh"),
            (Some("warn"), None, "cdgh"),
            (Some("ERROR"), None, "dh"),
            (Some("FATAL"), None, "dh"),
            (Some("loud"), None, "bcdgh"),
            (None, Some("debug"), "abcdgh"),
            (None, Some("error"), "dh"),
            (None, Some("off"), ""),
            // The level that Lambda sets has precedence.
            (Some("INFO"), Some("debug"), "bcdgh"),
            (None, Some("aws_smithy_runtime=debug"), "bcdegh"),
            (None, Some("my_function=trace"), "bcdgh"),
            (None, Some("warn,aws_config=info"), "cdfgh"),
        ] {
            assert_eq!(said(level, rust_log), expected, "{level:?} {rust_log:?}");
        }
    }
}
