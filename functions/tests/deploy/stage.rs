//! Starts functions, as Lambda would, and the DynamoDB that they use, with a table of records and a table of payments.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use lambda_idempotency_rehearsal::{
    answer::Answer,
    database::{ACCESS_KEY, Database, REGION},
    event::Event,
    function::{Function, Sandbox},
    runs::Runs,
};

/// The functions: each one's name, program, and the line that its handler logs.
const FUNCTIONS: [(&str, &str, &str); 4] = [
    ("payments", env!("CARGO_BIN_EXE_payments"), "creating payment"),
    ("orders", env!("CARGO_BIN_EXE_orders"), "shipping an order"),
    ("receipts", env!("CARGO_BIN_EXE_receipts"), "writing a receipt"),
    ("refunds", env!("CARGO_BIN_EXE_refunds"), "refunding"),
];

/// The log filter: the library at every level, and other crates only up to DEBUG: at TRACE, the runtime and the AWS SDK
/// log whole events, answers and records.
pub(crate) const LOUD: &str = "debug,lambda_idempotency=trace";

pub(crate) const TABLE: &str = "records";
pub(crate) const PAYMENTS: &str = "payments";
const LIMIT: Duration = Duration::from_secs(20);

/// The project's folder.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of the functions that make claims: all except `outbox`.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.into_iter().map(|(name, ..)| name)
}

/// The function's program, and the line that its handler logs.
pub(crate) fn program_and_mark(name: &str) -> (&'static str, &'static str) {
    let (_, program, mark) = FUNCTIONS.into_iter().find(|(known, ..)| *known == name).expect("a function");
    (program, mark)
}

/// Starts a database in memory, with the tables that the functions need.
pub(crate) async fn database() -> Database {
    let database = Database::embedded().await.unwrap();
    database.create_idempotency_table(TABLE).await.unwrap();
    database.create_payments_table(PAYMENTS).await.unwrap();
    database
}

/// The environment variables that Lambda sets for any function, and one that keeps the AWS SDK from asking EC2's
/// metadata service.
pub(crate) fn lambdas_environment() -> Vec<(&'static str, String)> {
    vec![
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256".into()),
        ("AWS_LAMBDA_LOG_FORMAT", "JSON".into()),
        ("AWS_REGION", REGION.into()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
        ("AWS_EC2_METADATA_DISABLED", "true".into()),
    ]
}

/// A function's environment variables.
pub(crate) fn environment(database: &Database) -> Vec<(&'static str, String)> {
    let mut environment = lambdas_environment();
    environment.extend([
        ("AWS_ENDPOINT_URL_DYNAMODB", database.endpoint().to_string()),
        ("IDEMPOTENCY_TABLE", TABLE.into()),
        ("PAYMENTS_TABLE", PAYMENTS.into()),
    ]);
    environment
}

/// Removes the variables that `command` mustn't inherit from this test: those of `cargo test`, of a real AWS account
/// and of the library, and the log filter.
pub(crate) fn without_ours(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_cargos = text.starts_with("CARGO") && text != "CARGO_HOME" && text != "CARGO_TARGET_DIR";
        if is_cargos || text.starts_with("AWS_") || text.starts_with("IDEMPOTENCY_") || text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command
}

/// A process that events are delivered to.
pub(crate) trait Delivers {
    /// Delivers this event, under this request id or a fresh one.
    async fn deliver_event_as(&mut self, request_id: Option<&str>, event: &Event) -> Answer;

    /// How often the handler's log line has been written so far.
    async fn marks(&self) -> usize;

    /// Delivers this event.
    async fn deliver_event(&mut self, event: &Event) -> Answer {
        self.deliver_event_as(None, event).await
    }

    /// Delivers `events/<path>.json`.
    async fn deliver(&mut self, path: &str) -> Answer {
        let event = Event::read(&project().join("events").join(format!("{path}.json"))).unwrap();
        self.deliver_event(&event).await
    }
}

/// One process of a function.
pub(crate) struct Running {
    sandbox: Sandbox,
    marks: Runs,
    recording: Option<Recording>,
}

/// A file with a process's output, and the text to count in it.
struct Recording {
    file: PathBuf,
    mark: &'static str,
}

impl Running {
    /// Starts the function `name`, and counts its handler's runs.
    pub(crate) async fn start(name: &str, database: &Database) -> Self {
        let (_, mark) = program_and_mark(name);
        Self::watching(name, mark, database).await
    }

    /// Starts the function `name`, and counts the lines of its output that contain `mark`.
    pub(crate) async fn watching(name: &str, mark: &str, database: &Database) -> Self {
        Self::command(program_and_mark(name).0, mark, database).await
    }

    /// Starts this command as a function, and counts the lines of its output that contain `mark`.
    pub(crate) async fn command(command: &str, mark: &str, database: &Database) -> Self {
        let function = Function::from_command(command, Some(mark.into())).unwrap();
        let marks = Runs::default();
        let sandbox = Sandbox::start(&function, &environment(database), marks.clone()).await.unwrap();
        Self { sandbox, marks, recording: None }
    }

    /// Starts this command as a function with the most verbose logs, and records its output in `file`.
    pub(crate) async fn recorded(
        command: &str,
        mark: &'static str,
        database: &Database,
        file: PathBuf,
    ) -> Self {
        let script = project().join("functions/tests/deploy/recorded.sh");
        let command = format!("sh {} {} {command}", script.display(), file.display());
        let function = Function::from_command(&command, None).unwrap();
        let mut environment = environment(database);
        environment.push(("RUST_LOG", LOUD.into()));
        let marks = Runs::default();
        let sandbox = Sandbox::start(&function, &environment, marks.clone()).await.unwrap();
        Self { sandbox, marks, recording: Some(Recording { file, mark }) }
    }
}

impl Delivers for Running {
    async fn deliver_event_as(&mut self, request_id: Option<&str>, event: &Event) -> Answer {
        let delivery = match request_id {
            Some(id) => self.sandbox.deliver_as(id, event, LIMIT),
            None => self.sandbox.deliver(event, LIMIT),
        };
        self.sandbox.answer(delivery).await
    }

    async fn marks(&self) -> usize {
        if let Some(Recording { file, mark }) = &self.recording {
            return fs::read_to_string(file).unwrap().lines().filter(|line| line.contains(mark)).count();
        }
        self.sandbox.catch_up().await;
        self.marks.count()
    }
}
