//! Tests the functions with the real `cargo lambda watch` and `cargo lambda invoke`. cargo-lambda's emulator runs at
//! most four processes of a function, and sends a duration where Lambda sends a deadline.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use example_functions::RETENTION;
use lambda_idempotency::{Key, Scope, StoredKey, time::Timestamp};
use lambda_idempotency_rehearsal::{clock, database::Database};
use serde_json::{Value, json};
use tokio::{net::TcpStream, process::Child};

use testkit::{ports::free_port, tools::tool};

use super::stage::{TABLE, database, environment, project, without_ours};

#[tokio::test(flavor = "multi_thread")]
async fn four_cargo_lambda_processes_run_handler_once() {
    let Some(tool) = tool("cargo-lambda") else { return };
    build().await;
    let database = database().await;
    let mut watch = Watch::start(&tool, &database).await;

    // The two calls from the operations guide.
    let first = watch.invoke_file("refunds", "events/refunds/invoke.json").await;
    let again = watch.invoke_file("refunds", "events/refunds/invoke.json").await;
    let refunded: Value = serde_json::from_str(&first.unwrap()).unwrap();
    assert_eq!(refunded["refund_id"], "refund-4001");
    assert_eq!(serde_json::from_str::<Value>(&again.unwrap()).unwrap(), refunded);
    assert_eq!(watch.runs("refunding"), 1, "{}", watch.output());
    let conflicting = watch.invoke_file("refunds", "events/refunds/invoke-conflicting.json").await;
    assert!(conflicting.unwrap_err().contains("Idempotency.Mismatch"));

    // The emulator starts a process when all others are busy. On a slow machine, it may take more than three rounds
    // until four processes run.
    let processes = || watch.runs("spawning function instance");
    for round in 0..12 {
        if round >= 3 && processes() == 4 {
            break;
        }
        twenty_at_once(&watch, &database, round).await;
    }
    assert_eq!(processes(), 4, "{}", watch.output());

    let created = watch.invoke_file("payments", "events/payments/http-api.json").await.unwrap();
    let replayed = watch.invoke_file("payments", "events/payments/http-api-again.json").await.unwrap();
    assert!(
        !created.contains("idempotent-replayed") && replayed.contains("idempotent-replayed"),
        "{replayed}"
    );
    assert_eq!(watch.runs("creating payment"), 1, "{}", watch.output());
    watch.stop().await;
}

/// Sends one refund in twenty concurrent calls to at most four processes. One call runs the handler. If the library
/// took the emulator's duration for a deadline, every lease would have expired in 1970, and each call would take over.
async fn twenty_at_once(watch: &Watch, database: &Database, round: u32) {
    let (before, id) = (watch.runs("refunding"), format!("at-once-{round}"));
    let refund = json!({ "refund_id": id, "payment_id": "payment-3001", "amount_cents": 1 }).to_string();
    let event = ["--data-ascii", refund.as_str()];
    let calls = (0..20).map(|_| watch.invoke("refunds", &event));
    let answers = futures_util::future::join_all(calls).await;

    let done: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().ok()).collect();
    assert!(!done.is_empty() && done.iter().all(|answer| *answer == done[0]), "{answers:?}");
    for refused in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(refused.contains("Idempotency.InProgress"), "{refused}");
    }
    assert_eq!(watch.runs("refunding"), before + 1, "{}", watch.output());

    let key = StoredKey::new(&Scope::new("refunds", "event").unwrap(), &Key::new(&id).unwrap());
    let record = database.record(TABLE, key.as_str()).await.unwrap();
    assert_eq!((&record["status"]["S"], &record["attempt"]["N"]), (&json!("COMPLETED"), &json!("1")));
    let number = |name: &str| record[name]["N"].as_str().unwrap().parse::<u64>().unwrap();
    let claimed = Timestamp::from_millis(number("claimed_at"));
    let kept = claimed.until(Timestamp::from_secs(number("expires_at")));
    assert!(kept >= RETENTION && kept < RETENTION + Duration::from_secs(60), "kept for {kept:?}");
}

/// Builds the functions as cargo-lambda does, so that a build error fails the test here, with the compiler's message.
async fn build() {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--locked", "--bin", "refunds", "--bin", "payments"]);
    let built = undisturbed(cargo).stdin(Stdio::null()).output().await.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Makes the command run in the project's folder, without this test's environment.
fn undisturbed(command: Command) -> tokio::process::Command {
    let mut command = command;
    without_ours(&mut command).current_dir(project());
    command.into()
}

/// A running `cargo lambda watch` and its output.
struct Watch {
    tool: PathBuf,
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Watch {
    async fn start(tool: &Path, database: &Database) -> Self {
        let port = free_port();
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cargo-lambda-{port}.log"));
        let file = File::create(&log).unwrap();
        let mut command = Command::new(tool);
        command.args(["lambda", "watch", "--ignore-changes", "--concurrency", "4"]);
        command.args(["--invoke-address", "127.0.0.1", "--invoke-port", &port.to_string()]);
        let child = undisturbed(command)
            .envs(environment(database))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let watch = Self { tool: tool.to_owned(), child, port, log };
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return watch;
            }
            clock::pause(Duration::from_millis(100)).await;
        }
        panic!("cargo lambda watch doesn't listen after a minute: {}", watch.output());
    }

    /// The function's answer to the event in a file, or its error.
    async fn invoke_file(&self, function: &str, file: &str) -> Result<String, String> {
        self.invoke(function, &["--data-file", file]).await
    }

    async fn invoke(&self, function: &str, event: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.tool);
        command.args(["lambda", "invoke", function, "--invoke-address", "127.0.0.1"]);
        command.args(["--invoke-port", &self.port.to_string()]).args(event);
        let output = undisturbed(command).stdin(Stdio::null()).output().await.unwrap();
        let Output { status, stdout, stderr } = output;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        if status.success() { Ok(text(stdout)) } else { Err(text(stderr)) }
    }

    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How many lines of the output of cargo-lambda and its functions contain `mark`.
    fn runs(&self, mark: &str) -> usize {
        self.output().lines().filter(|line| line.contains(mark)).count()
    }

    async fn stop(&mut self) {
        terminate(&self.child);
        let limit = Duration::from_secs(10);
        tokio::select! {
            ended = self.child.wait() => drop(ended.unwrap()),
            () = clock::pause(limit) => panic!("cargo lambda watch still runs {limit:?} after SIGTERM"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        terminate(&self.child);
    }
}

/// Sends SIGTERM if cargo-lambda still runs, so that it also ends its functions.
fn terminate(child: &Child) {
    if let Some(process) = child.id() {
        // It's fine if the process has just ended.
        let _ = std::process::Command::new("sh").arg("-c").arg(format!("kill -TERM {process}")).status();
    }
}
