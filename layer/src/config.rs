//! The configuration: variables that begin with `IDEMPOTENCY_`, and the entries of a JSON file if a variable names one.
//! The layer checks all settings when it starts.

mod key;
#[cfg(test)]
pub(crate) mod tests;
mod value;

pub(crate) use key::KeyOf;

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use http::Method;
use lambda_idempotency::{
    Builder, Idempotency, KeyFields,
    settings::{Execution, Mode, Settings},
    store::{NamedStore, Store},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::{event::Kind, limited::Limited, recorded};

/// The beginning of every variable's name.
const PREFIX: &str = "IDEMPOTENCY_";
/// The folder of the function's package if `LAMBDA_TASK_ROOT` isn't set. Lambda doesn't set that variable for
/// extensions.
const TASK_ROOT: &str = "/var/task";
/// The proxy's default port if the layer runs as an extension.
const PORT: u16 = 9415;

/// The settings' variables, without the prefix. The JSON file uses the same names in lower case, and has no `port`.
const NAMES: [&str; 25] = [
    "TABLE",
    "STORE",
    "KEY",
    "COMPARE",
    "OPERATION",
    "RETENTION",
    "LEASE",
    "MAX_RESPONSE",
    "ON_IN_PROGRESS",
    "ON_ERROR",
    "ON_MISSING_KEY",
    "ON_STORE_FAILURE",
    "ON_INTERNAL_ERROR",
    "EXECUTION",
    "MODE",
    "EVENT",
    "BATCH",
    "BATCH_ANSWER",
    "METHODS",
    "CALLERS",
    "CLAIM_FIELD",
    "STREAMING",
    "METRICS",
    "PORT",
    "UPSTREAM",
];
/// Allowed variables that aren't settings: `CONFIG` is the settings file's path, the library reads `REQUIRED`, and the
/// wrapper script reads the others.
const OTHERS: [&str; 4] = ["CONFIG", "REQUIRED", "EXTENSION", "WRAPPER"];

/// The place where the function finds the facts of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimField {
    /// In this field of the event, or of each record.
    Event(String),
    /// Under this name in the custom values of the client context.
    Context(String),
}

/// How the layer settles an error that the function reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnError {
    /// The key is released.
    #[default]
    Release,
    /// The error is recorded as the outcome.
    Record,
    /// Errors of these types are recorded, and others release the key.
    RecordOnly(Vec<String>),
    /// Errors of these types release the key, and others are recorded.
    RecordExcept(Vec<String>),
}

impl OnError {
    /// Whether an error of this type is recorded.
    pub(crate) fn records(&self, error_type: &str) -> bool {
        let has = |types: &[String]| types.iter().any(|name| name == error_type);
        match self {
            Self::Release => false,
            Self::Record => true,
            Self::RecordOnly(types) => has(types),
            Self::RecordExcept(types) => !has(types),
        }
    }
}

/// How a batch is handed to the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BatchMode {
    /// One event with all records that must run.
    #[default]
    Whole,
    /// One event for each record.
    Each,
}

/// The answer that Lambda gets for a batch in which some records failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BatchAnswer {
    /// The list of the failed records, for an event source mapping with `ReportBatchItemFailures`.
    #[default]
    Report,
    /// An error, so that Lambda redelivers the whole batch.
    Fail,
}

/// Which callers share idempotency keys over HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Each caller that the front end verified has its own keys. A request with credentials but without a verified
    /// caller is refused.
    #[default]
    Verified,
    /// Like `Verified`, but every request without a verified caller is refused.
    Required,
    /// All callers that the front end didn't verify share one namespace of keys.
    Shared,
}

/// How events are protected.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) key: KeyOf,
    pub(crate) compare: Option<Vec<String>>,
    pub(crate) operation: Option<String>,
    pub(crate) kind: Option<Kind>,
    /// Whether events without a key reach the function unprotected. By default (`None`), only HTTP requests do, and
    /// only if the key is the header `Idempotency-Key`.
    pub(crate) passes_unkeyed: Option<bool>,
    pub(crate) on_error: OnError,
    pub(crate) passes_internal_errors: bool,
    pub(crate) batch: BatchMode,
    pub(crate) batch_answer: BatchAnswer,
    pub(crate) methods: Option<Vec<Method>>,
    pub(crate) callers: Callers,
    pub(crate) claim_field: Option<ClaimField>,
    pub(crate) streams: bool,
    /// The largest answer of the function that's recorded, in bytes. `settings` has the limit for the recorded form.
    pub(crate) max_response: usize,
    pub(crate) settings: Settings,
    /// How many invocations the function runs at a time.
    pub(crate) concurrency: usize,
    /// Whether `IDEMPOTENCY_REQUIRED` is `1`, which means that the function must not run unprotected. The library
    /// rejects values other than 0 and 1, and rejects `1` in a mode other than `enforce`.
    pub(crate) is_required: bool,
}

/// The checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) store: NamedStore,
    pub(crate) rules: Rules,
    pub(crate) has_metrics: bool,
    pub(crate) port: u16,
    /// The Runtime API from which the layer gets the function's events, if it isn't Lambda's own.
    pub(crate) upstream: Option<String>,
}

impl Rules {
    /// Builds the library's `Idempotency` on `store`.
    ///
    /// # Errors
    ///
    /// The library's error message, if it refuses the settings.
    pub(crate) fn open(&self, store: Arc<dyn Store>) -> Result<Idempotency, String> {
        self.open_with(store, |builder| builder)
    }

    /// Like [`open`](Self::open). `with` can set more on the builder, such as a test's clock.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn open_with(
        &self,
        store: Arc<dyn Store>,
        with: impl FnOnce(Builder) -> Builder,
    ) -> Result<Idempotency, String> {
        self.build(with(Idempotency::builder(Limited::new(store)).settings(self.settings.clone())))
    }

    fn build(&self, mut builder: Builder) -> Result<Idempotency, String> {
        if let Some(operation) = &self.operation {
            builder = builder.operation(operation);
        }
        builder.build().map_err(|error| error.to_string())
    }
}

/// The settings' values, and where each comes from, for error messages.
struct Values<'e> {
    environment: &'e dyn Fn(&str) -> Option<String>,
    file: BTreeMap<String, String>,
    path: Option<PathBuf>,
}

impl Values<'_> {
    /// The value of `IDEMPOTENCY_<name>`, from the environment or the file.
    fn get(&self, name: &str) -> Option<String> {
        let value = (self.environment)(&format!("{PREFIX}{name}"));
        value.filter(|value| !value.is_empty()).or_else(|| self.file.get(name).cloned())
    }

    /// The setting's name in error messages.
    fn named(&self, name: &str) -> String {
        match (&self.path, self.file.contains_key(name)) {
            (Some(path), true) => format!("`{}` in {}", name.to_lowercase(), path.display()),
            _ => format!("{PREFIX}{name}"),
        }
    }

    /// The parsed value; `None` if it isn't set.
    ///
    /// # Errors
    ///
    /// A sentence that names the setting and says what's wrong with it.
    fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let value = self.get(name).as_deref().map(|value| parse(value.trim())).transpose();
        value.map_err(|problem| format!("{}: {problem}", self.named(name)))
    }
}

impl Config {
    /// Reads and checks the configuration of this process.
    ///
    /// # Errors
    ///
    /// A sentence that says what's wrong, and where.
    pub(crate) fn of_process() -> Result<Self, String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        Self::read(names, &|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path))
    }

    /// Reads and checks the configuration of an environment.
    ///
    /// # Errors
    ///
    /// As [`of_process`](Self::of_process).
    pub(crate) fn read(
        names: impl Iterator<Item = String>,
        environment: &dyn Fn(&str) -> Option<String>,
        file: impl FnOnce(&PathBuf) -> std::io::Result<String>,
    ) -> Result<Self, String> {
        let values = values(names, environment, file)?;
        let mode = values.parsed("MODE", |mode| mode.parse::<Mode>().map_err(|error| error.to_string()))?;
        let has_metrics = values.parsed("METRICS", |metrics| match metrics {
            "cloudwatch" => Ok(true),
            "none" => Ok(false),
            _ => Err(value::unknown(metrics, "cloudwatch or none")),
        })?;
        let port = values.parsed("PORT", |port| {
            port.parse().ok().filter(|port| *port != 0).ok_or_else(|| value::unknown(port, "a port's number"))
        })?;
        let rules = rules(&values, mode.unwrap_or_default())?;
        let store = match rules.settings.mode {
            // The layer doesn't use a store in this mode.
            Mode::Off => NamedStore::Memory,
            Mode::Enforce | Mode::Shadow => {
                let lookup = |name: &str| match name.strip_prefix(PREFIX) {
                    Some(name) => values.get(name),
                    None => environment(name),
                };
                let named = NamedStore::from_variables(lookup);
                named.map_err(|error| format!("IDEMPOTENCY_TABLE or IDEMPOTENCY_STORE: {error}"))?
            }
        };
        let port = port.unwrap_or(PORT);
        let upstream = values.parsed("UPSTREAM", |address| value::upstream(address, port))?;
        Ok(Self { store, rules, has_metrics: has_metrics.unwrap_or(true), port, upstream })
    }
}

/// Reads the rules. In mode `off`, the layer needs no key.
fn rules(values: &Values<'_>, mode: Mode) -> Result<Rules, String> {
    let is_on = mode != Mode::Off;
    let kind = values.parsed("EVENT", |kind| match kind {
        "event" => Ok(Kind::Event),
        "http" => Ok(Kind::Http),
        "sqs" | "fifo" => Ok(Kind::Sqs),
        "kinesis" => Ok(Kind::Kinesis),
        "dynamodb" => Ok(Kind::DynamoDb),
        _ => Err(value::unknown(kind, "event, http, sqs, fifo, kinesis or dynamodb")),
    })?;
    let key = match values.parsed("KEY", KeyOf::parse)? {
        Some(key) => key,
        None if !is_on => KeyOf::Header,
        None => KeyOf::usual(kind).ok_or_else(|| {
            "IDEMPOTENCY_KEY isn't set: set it to a JSON Pointer such as /orderId, to `header`, or to a source such \
             as `eventbridge`"
                .to_owned()
        })?,
    };
    if let Some(problem) = kind.filter(|_| is_on).and_then(|kind| key.misfit(kind)) {
        return Err(format!("{}: {problem}", values.named("KEY")));
    }
    let compare = values.parsed("COMPARE", |fields| {
        let fields = value::list(fields)?;
        for field in &fields {
            KeyFields::new([field.as_str()]).map_err(|error| error.to_string())?;
        }
        Ok(fields)
    })?;
    let is_batch = matches!(kind, Some(Kind::Sqs | Kind::Kinesis | Kind::DynamoDb));
    let claim_field = values.parsed("CLAIM_FIELD", value::claim_field)?;
    if is_batch && matches!(claim_field, Some(ClaimField::Context(_))) {
        return Err(format!(
            "{}: a batch's records share one client context; set a field's name, and each record gets that field",
            values.named("CLAIM_FIELD")
        ));
    }
    let max_response = values.parsed("MAX_RESPONSE", value::number)?;
    let max_response = max_response.unwrap_or_else(|| Settings::default().max_response);
    let settings = settings(values, mode, max_response)?;
    let passes_internal_errors = values.parsed("ON_INTERNAL_ERROR", value::passes)?.unwrap_or(false);
    if passes_internal_errors && settings.execution == Execution::AtMostOnce {
        return Err(format!(
            "{}: under at-most-once, no event may run unprotected; use refuse",
            values.named("ON_INTERNAL_ERROR")
        ));
    }
    let concurrency = (values.environment)("AWS_LAMBDA_MAX_CONCURRENCY").and_then(|most| most.parse().ok());
    Ok(Rules {
        key,
        compare,
        operation: values.get("OPERATION"),
        kind,
        passes_unkeyed: values.parsed("ON_MISSING_KEY", value::passes)?,
        on_error: values.parsed("ON_ERROR", value::on_error)?.unwrap_or_default(),
        passes_internal_errors,
        batch: values.parsed("BATCH", value::batch)?.unwrap_or_default(),
        batch_answer: values.parsed("BATCH_ANSWER", value::batch_answer)?.unwrap_or_default(),
        methods: values.parsed("METHODS", value::methods)?,
        callers: values.parsed("CALLERS", value::callers)?.unwrap_or_default(),
        claim_field,
        streams: values.parsed("STREAMING", value::flag)?.unwrap_or(false),
        max_response,
        settings,
        concurrency: concurrency.unwrap_or(1).max(1),
        is_required: (values.environment)("IDEMPOTENCY_REQUIRED").as_deref() == Some("1"),
    })
}

fn settings(values: &Values<'_>, mode: Mode, max_response: usize) -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings.mode = mode;
    // The function is another process, which the library can't stop.
    settings.cut_off = false;
    if let Some(retention) = values.parsed("RETENTION", value::duration)? {
        settings.retention = retention;
    }
    settings.lease_extension = values.parsed("LEASE", value::duration)?;
    settings.max_response = recorded::limit(max_response);
    let wait_in_progress = values.parsed("ON_IN_PROGRESS", |policy| match policy.split_once(':') {
        None if policy == "refuse" => Ok(Duration::ZERO),
        Some(("wait", time)) => value::duration(time),
        _ => Err(value::unknown(policy, "refuse, or wait:TIME such as wait:20s")),
    })?;
    settings.wait_in_progress = wait_in_progress.unwrap_or_default();
    let passes = values.parsed("ON_STORE_FAILURE", value::passes)?.unwrap_or(false);
    settings.fail_open = passes;
    let execution = values.parsed("EXECUTION", |execution| match execution {
        "at-least-once" => Ok(Execution::AtLeastOnce),
        "at-most-once" => Ok(Execution::AtMostOnce),
        _ => Err(value::unknown(execution, "at-least-once or at-most-once")),
    })?;
    settings.execution = execution.unwrap_or_default();
    Ok(settings)
}

/// Checks the variables' names, and reads the settings file if there's one.
fn values<'e>(
    names: impl Iterator<Item = String>,
    environment: &'e dyn Fn(&str) -> Option<String>,
    file: impl FnOnce(&PathBuf) -> std::io::Result<String>,
) -> Result<Values<'e>, String> {
    for name in names {
        let Some(setting) = name.strip_prefix(PREFIX) else { continue };
        if !NAMES.contains(&setting) && !OTHERS.contains(&setting) {
            return Err(format!("{name} isn't a setting of the layer; the settings are {}", all_names()));
        }
    }
    let path = environment("IDEMPOTENCY_CONFIG").filter(|path| !path.is_empty());
    let Some(path) = path else { return Ok(Values { environment, file: BTreeMap::new(), path: None }) };
    let root = environment("LAMBDA_TASK_ROOT").unwrap_or_else(|| TASK_ROOT.to_owned());
    let path = PathBuf::from(root).join(path);
    let text = file(&path)
        .map_err(|error| format!("IDEMPOTENCY_CONFIG: {} can't be read: {error}", path.display()))?;
    let file = in_file(&text).map_err(|problem| format!("{}: {problem}", path.display()))?;
    for name in file.keys() {
        let variable = format!("{PREFIX}{name}");
        if environment(&variable).is_some_and(|value| !value.is_empty()) {
            return Err(format!("{variable} is set, and so is {}; keep one", shown(&path, name)));
        }
    }
    Ok(Values { environment, file, path: Some(path) })
}

fn shown(path: &std::path::Path, name: &str) -> String {
    format!("`{}` in {}", name.to_lowercase(), path.display())
}

/// Reads the settings of the file, and returns them by their names in `NAMES`.
fn in_file(text: &str) -> Result<BTreeMap<String, String>, String> {
    use serde_json::Value;
    let Entries(parsed) = serde_json::from_str(text).map_err(|error| {
        format!("it isn't a JSON object (line {}, column {})", error.line(), error.column())
    })?;
    let text_of = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    };
    let mut settings = BTreeMap::new();
    for (name, value) in parsed {
        let variable = name.to_uppercase();
        if name != name.to_lowercase() || !NAMES.contains(&variable.as_str()) {
            return Err(format!("`{name}` isn't a setting of the layer; the settings are {}", all_names()));
        }
        if variable == "PORT" {
            let problem = "`port` can't be in the file, because the wrapper script reads the port from the \
                environment";
            return Err(format!("{problem}; set the variable IDEMPOTENCY_PORT instead"));
        }
        let text = match &value {
            Value::Array(parts) => {
                parts.iter().map(text_of).collect::<Option<Vec<_>>>().map(|all| all.join(","))
            }
            value => text_of(value),
        };
        let text = text.filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| {
            format!("`{name}` must be a number, a boolean, a nonempty string, or a nonempty list")
        })?;
        if settings.insert(variable, text).is_some() {
            return Err(format!("`{name}` appears twice; keep one"));
        }
    }
    Ok(settings)
}

/// All entries of a JSON object. A map would keep only the last entry of each name.
struct Entries(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

fn all_names() -> String {
    NAMES.map(|name| format!("{PREFIX}{name}")).join(", ")
}
