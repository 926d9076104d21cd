//! The binary, an embedded DynamoDB, and records in it.

use std::{
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    types::AttributeValue,
};
use lambda_idempotency::{
    Fingerprint, Idempotency, Key, StoredKey,
    settings::Execution,
    store::{
        Generation, Lock, Mark, Outcome, Owner, Put, PutOutcome, Record, State, Store, StoredResponse,
        dynamodb::DynamoDbStore,
    },
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::Value;
use testkit::emulator::Emulator;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::Instant,
};

pub(crate) const TABLE: &str = "idempotency-tests";
/// Values that no command may show without `--reveal`.
pub(crate) const KEY: &str = "secret-order-17";
pub(crate) const RESPONSE: &str = r#"{"receipt":"secret-receipt"}"#;
pub(crate) const CALLER: &str = "secret-caller";

/// A file that's deleted when the test drops it.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = std::env::temp_dir().join(format!("idempotency-cli-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks for exit code 2, and one line that contains all of `words`.
    #[track_caller]
    pub(crate) fn is_bad_input(&self, words: &[&str]) {
        assert_eq!(self.code, 2, "{self:?}");
        assert_eq!((self.err.lines().count(), self.out.as_str()), (1, ""), "{self:?}");
        assert!(self.err.starts_with("idempotency: "), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} isn't in {}", self.err);
        }
    }
}

/// How long to wait for a command, or for its next line.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a command that runs the binary. The binary inherits none of the test's environment variables.
fn command(environment: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idempotency"));
    command.env_clear().env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true");
    // If a DNS server doesn't answer, the command gives up before `PATIENCE` is over.
    command.env("RES_OPTIONS", "timeout:1 attempts:1");
    command.envs(environment.iter().copied()).args(arguments).kill_on_drop(true);
    command
}

/// Runs the binary with these environment variables. It must not panic, or show a secret without `--reveal`.
pub(crate) async fn run_in(environment: &[(&str, &str)], arguments: &[&str]) -> Answer {
    let output = tokio::time::timeout(PATIENCE, command(environment, arguments).output());
    let Output { status, stdout, stderr } = output.await.expect("the command ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let answer = Answer { code: status.code().unwrap(), out: text(stdout), err: text(stderr) };
    assert!(!answer.err.contains("panicked") && !answer.err.contains("backtrace"), "{answer:?}");
    let words = format!("{}{}", answer.out, answer.err);
    if !arguments.contains(&"--reveal") {
        assert!(!words.contains("secret"), "{answer:?}");
    }
    answer
}

/// A command that runs until it's dropped.
pub(crate) struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// The deadline for reading all expected lines.
    end: Instant,
}

impl Running {
    /// Reads lines up to and including the first one that contains `words`.
    pub(crate) async fn lines_until(&mut self, words: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        while !seen.last().is_some_and(|line| line.contains(words)) {
            let next = tokio::time::timeout(self.end - Instant::now(), self.lines.next_line()).await;
            let line = next.unwrap_or_else(|_| panic!("no {words:?} after {seen:?}")).unwrap();
            let line = line.unwrap_or_else(|| panic!("the command ended without {words:?}: {seen:?}"));
            assert!(!line.contains("secret"), "{line}");
            seen.push(line);
        }
        seen
    }

    /// Closes the pipe that the command writes to, and returns the command's exit code.
    pub(crate) async fn close(self) -> i32 {
        let Self { mut process, lines, .. } = self;
        drop(lines);
        let status = tokio::time::timeout(PATIENCE, process.wait()).await.expect("the command ends");
        status.unwrap().code().unwrap()
    }
}

fn environment(endpoint: &str) -> [(&'static str, &str); 5] {
    [
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
        ("IDEMPOTENCY_TABLE", TABLE),
    ]
}

pub(crate) struct Bench {
    emulator: Emulator,
    pub(crate) client: Client,
    pub(crate) store: DynamoDbStore,
}

impl Bench {
    /// Starts an emulator without a table.
    pub(crate) async fn empty() -> Self {
        let emulator = Emulator::start().await;
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
            .endpoint_url(emulator.endpoint());
        let client = Client::from_conf(config.build());
        // Long timeouts, so that no slow write is retried. If the first attempt was applied, its record would make the
        // retry fail.
        let store = DynamoDbStore::builder(TABLE).client(client.clone());
        let store = store.attempt_timeout(PATIENCE).operation_timeout(PATIENCE).build().await.unwrap();
        Self { emulator, client, store }
    }

    pub(crate) async fn new() -> Self {
        let bench = Self::empty().await;
        assert_eq!(bench.run(&["table", "create"]).await.code, 0);
        bench
    }

    pub(crate) fn endpoint(&self) -> String {
        self.emulator.endpoint().to_owned()
    }

    /// The store as the commands print it.
    pub(crate) fn location(&self) -> String {
        let endpoint = self.emulator.endpoint().trim_end_matches('/');
        format!("dynamodb://{TABLE}, Region eu-west-1, endpoint {endpoint}")
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Answer {
        run_in(&environment(self.emulator.endpoint()), arguments).await
    }

    /// Starts the binary, to read its lines while it runs.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = command(&environment(self.emulator.endpoint()), arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Running { process, lines, end: Instant::now() + PATIENCE }
    }

    /// The function that the records belong to.
    pub(crate) fn function(&self) -> Idempotency {
        Idempotency::builder(self.store.clone()).function("payments").build().unwrap()
    }

    /// Claims `operation`. The lease ends in `lease_left` seconds. A negative number means that it has ended already.
    pub(crate) async fn claim(&self, operation: &str, lease_left: i64) -> (StoredKey, Record) {
        self.claim_as(operation, lease_left, |lock| lock).await
    }

    /// Claims `operation` like [`claim`](Self::claim), but changes the claim's lock first.
    pub(crate) async fn claim_as(
        &self,
        operation: &str,
        lease_left: i64,
        change: impl FnOnce(Lock) -> Lock,
    ) -> (StoredKey, Record) {
        let now = system_clock().now().as_millis();
        let lease_until = Timestamp::from_millis(now.saturating_add_signed(lease_left * 1000));
        let lock = Lock {
            owner: Owner::random().unwrap(),
            generation: Generation::new(now - 60_000),
            attempt: 1,
            fingerprint: Fingerprint::of(KEY).unwrap(),
            lock_acquired_at: Timestamp::from_millis(now - 60_000),
            lease_until,
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_millis(now + 86_400_000).rounded_up_to_second()),
            mark: Mark::None,
            request_id: Some("8f5c1a66-7d4e-4b1e-9c0a-3d1f2b7a9e10".into()),
            trace: None,
        };
        let lock = change(lock);
        let scope = self.function().scope("run").unwrap();
        let scope = lambda_idempotency::Scope::new(scope.function(), operation).unwrap();
        let key = StoredKey::new(&scope, &Key::new(KEY).unwrap());
        let record = lock.into();
        create(&self.store, &key, &record).await;
        (key, record)
    }

    /// Claims `operation` and settles the claim.
    pub(crate) async fn settled(&self, operation: &str, settlement: Settlement) -> (StoredKey, Record) {
        let (key, record) = self.claim(operation, 60).await;
        let settled = settle(&self.store, &key, record, settlement).await;
        (key, settled)
    }

    /// Writes an item with this id that isn't a readable record.
    pub(crate) async fn put_unreadable(&self, id: &str) {
        let mut request = self.client.put_item().table_name(TABLE);
        for (name, value) in [("id", id), ("response", KEY), ("status", CALLER)] {
            request = request.item(name, AttributeValue::S(value.to_owned()));
        }
        request.send().await.unwrap();
    }

    pub(crate) async fn record(&self, key: &StoredKey) -> Record {
        self.store.read(key).await.unwrap().unwrap()
    }
}

/// A settled claim's state, and when its record expires.
pub(crate) type Settlement = (State, Timestamp);

/// Stores `record`, which must be its key's first.
pub(crate) async fn create(store: &impl Store, key: &StoredKey, record: &Record) {
    assert_eq!(store.put(key, &Put::Create(record.clone())).await.unwrap(), PutOutcome::Applied);
}

/// Settles the claim in `record`, and returns the record afterwards.
pub(crate) async fn settle(
    store: &impl Store,
    key: &StoredKey,
    record: Record,
    (state, expires_at): Settlement,
) -> Record {
    let held = record.lock_until(record.lease_until().unwrap());
    let new = Record { state, expires_at: Some(expires_at), ..record };
    let put = Put::Mine { held, new: new.clone() };
    assert_eq!(store.put(key, &put).await.unwrap(), PutOutcome::Applied);
    new
}

/// An outcome with [`RESPONSE`] that expires in this many seconds.
pub(crate) fn completed(secs: u64) -> Settlement {
    let response = StoredResponse::new(RESPONSE.into());
    (State::Completed(Outcome::Retained(response)), in_secs(secs))
}

/// A release. Its record expires after a day.
pub(crate) fn released() -> Settlement {
    (State::Released, in_secs(86_400))
}

fn in_secs(secs: u64) -> Timestamp {
    system_clock().now().saturating_add(Duration::from_secs(secs)).rounded_up_to_second()
}
