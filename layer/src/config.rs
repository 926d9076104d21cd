//! The configuration: variables that begin with `IDEMPOTENCY_`, and the entries of a JSON file if a variable names one.
//! The layer checks all settings when it starts.

mod jwt;
mod key;
mod source;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod value;

pub(crate) use key::KeyOf;

use std::{fmt, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderName, StatusCode};
use lambda_idempotency::{
    Builder, Error, Idempotency,
    lambda::http::{EXPOSED_HEADERS, HttpLayer},
    settings::{Execution, Mode, Settings},
    store::{NamedStore, Store},
};

use crate::{
    callers::Callers,
    event::{ClaimField, Kind},
    limited::Limited,
    recorded,
};
use jwt::JwtDraft;
use source::Values;
use value::Read;

/// The beginning of every variable's name.
const PREFIX: &str = "IDEMPOTENCY_";
/// The proxy's default port if the layer runs as an extension.
const PORT: u16 = 9415;

/// Whether Lambda takes a snapshot of this process at the end of its init (SnapStart).
pub(crate) fn is_snapshotted() -> bool {
    std::env::var("AWS_LAMBDA_INITIALIZATION_TYPE").is_ok_and(|kind| kind == "snap-start")
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchAnswer {
    /// The list of the failed records, for an event source mapping with `ReportBatchItemFailures`.
    Report,
    /// An error, so that Lambda redelivers the whole batch.
    Fail,
}

/// How events are protected.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) key: KeyOf,
    pub(crate) compare: Option<Vec<String>>,
    pub(crate) function: Option<String>,
    pub(crate) operation: Option<String>,
    pub(crate) kind: Option<Kind>,
    /// Whether events without a key reach the function unprotected. By default (`None`), only HTTP requests do, and
    /// only if the key is the header `Idempotency-Key`.
    pub(crate) passes_unkeyed: Option<bool>,
    pub(crate) on_error: OnError,
    pub(crate) passes_internal_errors: bool,
    pub(crate) batch: BatchMode,
    /// By default (`None`), the list, but an error for Kafka's records, since Lambda may not read the list.
    pub(crate) batch_answer: Option<BatchAnswer>,
    /// Whether Kafka's records come from a share group, in no order.
    pub(crate) is_kafka_queue: bool,
    /// Whether a record whose error is recorded counts as done.
    pub(crate) acknowledges_failures: bool,
    pub(crate) batch_reserve: Option<Duration>,
    /// The source's name in place of its ARN.
    pub(crate) source_name: Option<Arc<str>>,
    /// The answer to a duplicate if the operation's own wasn't retained.
    pub(crate) not_retained: Option<serde_json::Value>,
    pub(crate) callers: Callers,
    /// The choices of the library's HTTP layer.
    pub(crate) http: HttpChoices,
    /// The statuses whose responses are recorded, or aren't, in place of the library's usual ones. The last entry that
    /// has a status counts.
    pub(crate) record_when: Vec<(RangeInclusive<u16>, bool)>,
    /// The origins of the pages that may read the layer's own answers.
    pub(crate) cors: Vec<String>,
    /// The header that marks replays.
    pub(crate) marker: HeaderName,
    pub(crate) claim_field: Option<ClaimField>,
    pub(crate) streams: bool,
    /// The largest answer of the function that's recorded, in bytes. [`Config::read`] sets the limit for the recorded
    /// form in `settings`.
    pub(crate) max_response: usize,
    pub(crate) settings: Settings,
    /// The AWS KMS key that encrypts the recorded responses.
    pub(crate) kms_key: Option<String>,
    /// How many invocations the function runs at a time.
    pub(crate) concurrency: usize,
    /// Whether the function must not run unprotected. The library rejects `IDEMPOTENCY_REQUIRED=1` in a mode other than
    /// `enforce`.
    pub(crate) is_required: bool,
    /// Whether the function is on Managed Instances, where a sandbox has several workers.
    pub(crate) is_managed: bool,
}

type HttpChoice = Arc<dyn Fn(HttpLayer) -> Result<HttpLayer, Error> + Send + Sync>;

/// The choices of the library's HTTP layer, each with its setting's name.
#[derive(Clone, Default)]
pub(crate) struct HttpChoices(Vec<(&'static str, HttpChoice)>);

impl fmt::Debug for HttpChoices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl HttpChoices {
    /// The layer with these choices.
    ///
    /// # Errors
    ///
    /// The library's error, if it refuses one of them.
    pub(crate) fn of(&self, layer: HttpLayer) -> Result<HttpLayer, Error> {
        self.0.iter().try_fold(layer, |layer, (_, choose)| choose(layer))
    }

    /// # Errors
    ///
    /// A sentence that names the setting that the library refuses.
    fn check(&self, idempotency: &Idempotency) -> Result<(), String> {
        for (name, choose) in &self.0 {
            let _ = choose(idempotency.http()).map_err(|error| format!("{PREFIX}{name}: {error}"))?;
        }
        Ok(())
    }
}

impl Default for Rules {
    fn default() -> Self {
        let mut settings = Settings::default();
        // The function is another process, which the library can't stop.
        settings.cut_off = false;
        Self {
            key: KeyOf::Header,
            compare: None,
            function: None,
            operation: None,
            kind: None,
            passes_unkeyed: None,
            on_error: OnError::default(),
            passes_internal_errors: false,
            batch: BatchMode::default(),
            batch_answer: None,
            is_kafka_queue: false,
            acknowledges_failures: false,
            batch_reserve: None,
            source_name: None,
            not_retained: None,
            callers: Callers::default(),
            http: HttpChoices::default(),
            record_when: Vec::new(),
            cors: Vec::new(),
            marker: EXPOSED_HEADERS[0].clone(),
            claim_field: None,
            streams: false,
            max_response: settings.max_response,
            settings,
            kms_key: None,
            concurrency: 1,
            is_required: true,
            is_managed: false,
        }
    }
}

/// The settings that have been read, before the checks of all of them together.
struct Draft {
    /// The name of the setting that's being read.
    reading: &'static str,
    table: Option<String>,
    store: Option<String>,
    key: Option<KeyOf>,
    /// Whether a JWT names the callers, and how.
    by_jwt: bool,
    jwt: JwtDraft,
    rules: Rules,
    /// The value of `IDEMPOTENCY_REQUIRED`, if it's set.
    is_required: Option<bool>,
    /// See [`Config::is_off_anyway`].
    is_off_anyway: bool,
    has_metrics: bool,
    port: u16,
    upstream: Option<String>,
}

/// The checked configuration.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) store: NamedStore,
    pub(crate) rules: Rules,
    /// Whether the mode is `off!`: protection is off, whatever `IDEMPOTENCY_REQUIRED` says.
    pub(crate) is_off_anyway: bool,
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
        self.build(with(Idempotency::builder(Limited::new(store)).settings(|s| *s = self.settings.clone())))
    }

    fn build(&self, mut builder: Builder) -> Result<Idempotency, String> {
        if let Some(function) = &self.function {
            builder = builder.function(function);
        }
        if let Some(operation) = &self.operation {
            builder = builder.operation(operation);
        }
        let idempotency = builder.build().map_err(|error| table::in_variables(&error.to_string()))?;
        self.http.check(&idempotency)?;
        Ok(idempotency)
    }

    /// Whether a response with this status is recorded. `None` if the library decides.
    pub(crate) fn records(&self, status: StatusCode) -> Option<bool> {
        let entry = self.record_when.iter().rev().find(|(statuses, _)| statuses.contains(&status.as_u16()));
        entry.map(|(_, is_recorded)| *is_recorded)
    }
}

impl Draft {
    /// Adds a choice of the library's HTTP layer. [`HttpChoices::check`] finds the choices that the library refuses.
    #[expect(clippy::unnecessary_wraps, reason = "it's the last expression of the settings' `read`")]
    fn on_http(
        &mut self,
        choose: impl Fn(HttpLayer) -> Result<HttpLayer, Error> + Send + Sync + 'static,
    ) -> Read<()> {
        self.rules.http.0.push((self.reading, Arc::new(choose)));
        Ok(())
    }

    /// Reads each setting that has a value.
    ///
    /// # Errors
    ///
    /// A sentence that names the setting and says what's wrong with it.
    fn of(values: &Values<'_>) -> Result<Self, String> {
        let mut draft = Self {
            reading: "",
            table: None,
            store: None,
            key: None,
            by_jwt: false,
            jwt: JwtDraft::default(),
            rules: Rules::default(),
            is_required: None,
            is_off_anyway: false,
            has_metrics: true,
            port: PORT,
            upstream: None,
        };
        for setting in table::all() {
            let Some(value) = values.get(setting.name) else { continue };
            draft.reading = setting.name;
            let read = (setting.read)(&mut draft, value.trim());
            read.map_err(|wrong| values.problem(setting.name, wrong.message(setting.allowed)))?;
        }
        Ok(draft)
    }

    /// The store. In mode `off`, the layer doesn't use it.
    fn store(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<NamedStore, String> {
        if self.rules.settings.mode == Mode::Off {
            return Ok(NamedStore::Memory);
        }
        let named = NamedStore::from_variables(|name| match name {
            "IDEMPOTENCY_TABLE" => self.table.clone(),
            "IDEMPOTENCY_STORE" => self.store.clone(),
            _ => environment(name),
        });
        named.map_err(|error| store_problem(&error.to_string()))
    }

    /// The source of keys. In mode `off`, the layer needs none.
    fn key(&mut self, values: &Values<'_>) -> Result<KeyOf, String> {
        let (is_on, kind) = (self.rules.settings.mode != Mode::Off, self.rules.kind);
        let key = match self.key.take().or_else(|| KeyOf::usual(kind)) {
            Some(key) => key,
            None if !is_on => KeyOf::Header,
            None => {
                return Err(
                    "IDEMPOTENCY_KEY isn't set: set it to a JSON Pointer such as /orderId, to `header`, or \
                            to a source such as `eventbridge`"
                        .to_owned(),
                );
            }
        };
        match kind.filter(|_| is_on).and_then(|kind| key.misfit(kind)) {
            Some(problem) => Err(values.problem("KEY", problem)),
            None => Ok(key),
        }
    }

    /// The callers, with the verification of their JWTs.
    fn finish_callers(
        &mut self,
        values: &Values<'_>,
        read: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let jwt = std::mem::take(&mut self.jwt);
        if self.by_jwt {
            let jwt = jwt.finish(read).map_err(|(name, problem)| values.problem(name, problem))?;
            self.rules.callers = Callers::Jwt(Box::new(jwt));
        } else if let Some(name) = jwt.first_set() {
            return Err(values.problem(name, "it has no effect unless IDEMPOTENCY_CALLERS is jwt"));
        }
        Ok(())
    }

    /// Checks the settings that contradict each other.
    fn check(&self, values: &Values<'_>) -> Result<(), String> {
        let Rules { kind, claim_field, settings, passes_internal_errors, .. } = &self.rules;
        let is_batch = matches!(kind, Some(Kind::Sqs | Kind::Kinesis | Kind::DynamoDb));
        if is_batch && matches!(claim_field, Some(ClaimField::Context(_))) {
            let problem = "a batch's records share one client context; set a field's name, and each record gets that \
                           field";
            return Err(values.problem("CLAIM_FIELD", problem));
        }
        let passing =
            [("ON_INTERNAL_ERROR", *passes_internal_errors), ("ON_STORE_FAILURE", settings.fail_open)];
        if settings.execution == Execution::AtMostOnce
            && let Some((name, _)) = passing.iter().find(|(_, passes)| *passes)
        {
            return Err(values.problem(name, "under at-most-once, no event may run unprotected; use refuse"));
        }
        if settings.execution == Execution::AtMostOnce && !self.rules.record_when.is_empty() {
            let problem = "under at-most-once, every response is recorded, since it may have come after an effect; \
                           leave this setting out";
            return Err(values.problem("RECORD_WHEN", problem));
        }
        // The layer would poll itself.
        let own = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{}", self.port));
        if let Some(address) = self.upstream.as_ref().filter(|address| own.contains(address)) {
            let problem = format!("`{address}` is the layer's own address; use the other proxy's address");
            return Err(values.problem("UPSTREAM", problem));
        }
        Ok(())
    }
}

/// The message for a store that the library refuses.
fn store_problem(error: &str) -> String {
    // The library's user switches a feature on. The layer's user has a built program.
    let is_missing = |name: &&str| error.ends_with("enable the feature") && error.contains(name);
    match ["postgres", "redis"].into_iter().find(is_missing) {
        Some(name) => format!(
            "IDEMPOTENCY_STORE names a store that this build of the layer doesn't have; build the layer with \
             `layer/package --features {name}`"
        ),
        None => format!("IDEMPOTENCY_TABLE or IDEMPOTENCY_STORE: {error}"),
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
        file: impl Fn(&PathBuf) -> std::io::Result<String>,
    ) -> Result<Self, String> {
        let values = Values::of(names, environment, &file)?;
        let mut draft = Draft::of(&values)?;
        let key = draft.key(&values)?;
        draft.check(&values)?;
        draft.finish_callers(&values, |path| {
            file(&source::in_package(environment, path)).map_err(|error| format!("it can't be read: {error}"))
        })?;
        let store = draft.store(environment)?;
        let Draft { mut rules, is_required, is_off_anyway, has_metrics, port, upstream, .. } = draft;
        rules.key = key;
        rules.settings.max_response = recorded::limit(rules.max_response);
        rules.is_required = is_required.unwrap_or(rules.settings.mode == Mode::Enforce);
        // Only Managed Instances set this variable ("Lambda Managed Instances", AWS Lambda developer guide).
        let concurrency = environment("AWS_LAMBDA_MAX_CONCURRENCY");
        rules.is_managed = concurrency.is_some();
        rules.concurrency = concurrency.and_then(|most| most.parse().ok()).unwrap_or(1).max(1);
        Ok(Self { store, rules, is_off_anyway, has_metrics, port, upstream })
    }
}
