//! A function under AWS's Runtime Interface Emulator, with or without the layer.
//!
//! This was written for the emulator in version 1.170.0 of the SAM CLI. In on-demand mode, the emulator runs the given
//! command, one invocation at a time, and kills the process at the deadline. With `AWS_LAMBDA_MAX_CONCURRENCY`, it
//! emulates Managed Instances: it runs `/var/task/bootstrap` as user 993, and takes several invocations at once. In
//! this mode, it sends a wrong deadline: a million times the timeout from now. When the timeout has passed, it answers,
//! but the handler runs on. The emulator gets its own `/var/task` in a mount namespace, which needs root.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lambda_idempotency_rehearsal::{
    clock,
    database::{ACCESS_KEY, REGION},
};
use serde_json::Value;
use tokio::net::TcpStream;

use testkit::{ports::free_port, skip::skip, tools::tool};

use crate::{ledger::Ledger, play::PROGRAM, runtime::Runtime};

/// How Lambda runs a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    OnDemand,
    ManagedInstances,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::OnDemand, Self::ManagedInstances];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on demand",
            Self::ManagedInstances => "managed",
        }
    }

    /// Whether the emulator can run in this mode on this machine.
    pub(crate) fn is_possible(self) -> bool {
        self == Self::OnDemand || has_namespaces()
    }
}

/// Whether this process can start a process that has its own mounts. Panics in CI if it can't.
pub(crate) fn has_namespaces() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/var"]).stderr(Stdio::null());
    let is_possible = unshare.status().is_ok_and(|ended| ended.success());
    if !is_possible {
        skip(
            "aws-lambda-rie needs its own /var/task on Managed Instances, and its own /opt for a layer: run the tests \
             as root, where mount namespaces are allowed",
        );
    }
    is_possible
}

/// How many concurrent invocations Managed Instances send to a process.
const AT_ONCE: usize = 8;

/// The file of settings in the function's package.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios/config.json");

/// The layer's program and its wrapper script.
const LAYER: &str = env!("CARGO_BIN_EXE_idempotency-extension");
const WRAPPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/idempotency-wrapper");

/// How many lines of the emulator's log are shown if it doesn't answer.
const LINES_SHOWN: usize = 5;

/// The limit for a start, longer than any start takes, even on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The function to start, and how.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) runtime: Runtime,
    pub(crate) mode: Mode,
    pub(crate) handler: &'static str,
    /// The command to put in front of the function's command: the layer's program, or nothing.
    pub(crate) layer: String,
    /// Whether the layer is where Lambda unpacks it: the program in `/opt/extensions`, the wrapper script in `/opt`.
    pub(crate) is_unpacked: bool,
    /// The invocation's timeout, in whole seconds.
    pub(crate) timeout: u64,
    pub(crate) environment: Vec<(String, String)>,
}

/// The emulator's answer to an invocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Payload(Vec<u8>),
    Error {
        kind: String,
        message: String,
    },
    TimedOut,
    /// The process ended.
    Died(String),
}

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    process: Mutex<Child>,
    folder: PathBuf,
    url: String,
    client: reqwest::Client,
    /// Each invocation in on-demand mode holds this lock, because the emulator panics if a second invocation arrives.
    /// `None` on Managed Instances.
    one_at_a_time: Option<tokio::sync::Mutex<()>>,
}

impl Sandbox {
    pub(crate) async fn start(function: &Function) -> Self {
        // Another process can take the port before the emulator listens on it.
        for _ in 0..3 {
            if let Some(started) = Self::try_start(function).await {
                return started;
            }
        }
        panic!("aws-lambda-rie exited during each of three starts");
    }

    async fn try_start(function: &Function) -> Option<Self> {
        let folder = scratch();
        let output = folder.join("output");
        open_to_all(&output);
        let command = function.runtime.command(function.handler, &function.layer);
        let bootstrap = folder.join("bootstrap");
        // The command ends with an `exec`, so that no shell stays between the emulator and the function.
        let text = format!("#!/bin/sh\nexec >>'{}' 2>&1\n{command}\n", output.display());
        fs::write(&bootstrap, text).unwrap();
        fs::set_permissions(&bootstrap, Permissions::from_mode(0o755)).unwrap();
        let (port, runtime_port) = (free_port(), free_port());
        let log = File::create(folder.join("log")).unwrap();
        let process = emulator(function, &bootstrap, port, runtime_port)
            .envs(environment(function))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}/2015-03-31/functions/function/invocations");
        let one_at_a_time = (function.mode == Mode::OnDemand).then(tokio::sync::Mutex::default);
        let process = Mutex::new(process);
        let client = reqwest::Client::builder().no_proxy().timeout(START_LIMIT * 2).build().unwrap();
        let started = Self { process, folder, url, client, one_at_a_time };
        let end = clock::now_ms() + clock::millis(START_LIMIT);
        while clock::now_ms() < end {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Some(started);
            }
            if started.emulators_end().is_some() {
                return None;
            }
            clock::pause(Duration::from_millis(10)).await;
        }
        panic!("aws-lambda-rie doesn't listen after {START_LIMIT:?}: {}", started.log());
    }

    /// Invokes the function with these headers, in addition to the content type.
    pub(crate) async fn invoke(&self, event: &[u8], headers: &[(&str, &str)]) -> Answer {
        let _turn = match &self.one_at_a_time {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let end = clock::now_ms() + clock::millis(START_LIMIT);
        loop {
            let mut request = self.client.post(&self.url).header("content-type", "application/json");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let sending = async { request.body(event.to_vec()).send().await?.bytes().await };
            let answer = match sending.await {
                Ok(body) => answer(&body),
                Err(error) => {
                    let log = self.log();
                    let end: Vec<_> = log.lines().rev().take(LINES_SHOWN).collect();
                    let ended = self.emulators_end();
                    Answer::Died(format!(
                        "the emulator ({ended:?}) didn't answer: {error:?}. Its log, last line first: {end:?}"
                    ))
                }
            };
            // On Managed Instances, the emulator answers `Runtime.Unavailable` when no worker is polling.
            let is_busy = matches!(&answer, Answer::Error { kind, .. } if kind == "Runtime.Unavailable");
            if !is_busy || clock::now_ms() > end {
                return answer;
            }
            clock::pause(Duration::from_millis(20)).await;
        }
    }

    /// How the emulator's process ended. `None` while it runs.
    pub(crate) fn emulators_end(&self) -> Option<ExitStatus> {
        self.process.lock().unwrap().try_wait().unwrap()
    }

    fn emulator(&self) -> u32 {
        self.process.lock().unwrap().id()
    }

    /// Sends SIGKILL to the emulator's descendants that run `program`. Returns how many there were.
    pub(crate) fn kill(&self, program: &str) -> usize {
        let below = processes_below(self.emulator());
        let named = |process: &&u32| {
            fs::read_link(format!("/proc/{process}/exe"))
                .is_ok_and(|path| path.file_name().is_some_and(|name| name.to_string_lossy() == program))
        };
        let found: Vec<_> = below.iter().filter(named).collect();
        for process in &found {
            signal("KILL", **process);
        }
        found.len()
    }

    /// The resident memory of the emulator's descendants that run `program`, in KiB.
    pub(crate) fn resident(&self, program: &str) -> usize {
        self.sum(program, "status", |status| kib(status, "VmRSS:"))
    }

    /// The peak resident memory of the emulator's descendants that run `program`, in KiB. It's the peak since their
    /// start, or since [`forget_peak`](Self::forget_peak).
    pub(crate) fn peak(&self, program: &str) -> usize {
        self.sum(program, "status", |status| kib(status, "VmHWM:"))
    }

    /// Resets the peaks to the current resident memory ("/proc/PID/clear_refs", proc(5)).
    pub(crate) fn forget_peak(&self, program: &str) {
        for process in self.running(program) {
            fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
        }
    }

    /// The processor time so far of the emulator's descendants that run `program`, in ticks of 10 ms.
    pub(crate) fn ticks(&self, program: &str) -> usize {
        self.sum(program, "stat", |stat| {
            // The process's name can contain anything, so count the words after it, from 0. Words 11 and 12 are the
            // user time and the kernel time.
            let words = stat.rsplit(')').next()?.split_whitespace().skip(11).take(2);
            words.map(|word| word.parse::<usize>().ok()).sum()
        })
    }

    /// The emulator's descendants whose program is `program`.
    fn running(&self, program: &str) -> Vec<u32> {
        let is_it = |process: &u32| {
            let path = fs::read_link(format!("/proc/{process}/exe"));
            path.is_ok_and(|path| path.file_name().is_some_and(|name| name.to_string_lossy() == program))
        };
        processes_below(self.emulator()).into_iter().filter(is_it).collect()
    }

    /// Reads a number from a `/proc` file of each process that runs `program`, and returns the sum.
    fn sum(&self, program: &str, file: &str, read: impl Fn(&str) -> Option<usize>) -> usize {
        let of = |process| read(&fs::read_to_string(format!("/proc/{process}/{file}")).ok()?);
        self.running(program).into_iter().filter_map(of).sum()
    }

    /// Everything that the layer and the function have written.
    pub(crate) fn output(&self) -> String {
        text(&self.folder.join("output"))
    }

    /// The emulator's own log.
    pub(crate) fn log(&self) -> String {
        text(&self.folder.join("log"))
    }
}

impl Drop for Sandbox {
    /// Sends SIGTERM to the emulator, which then kills the function. SIGKILL would end only the emulator.
    fn drop(&mut self) {
        let emulator = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        signal("TERM", emulator.id());
        for _ in 0..300 {
            if !matches!(emulator.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The emulator may have ended already.
        let _ = emulator.kill();
        let _ = emulator.wait();
        for process in processes_with_stdout(&self.folder.join("output")) {
            signal("KILL", process);
        }
        if std::env::var_os("KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Reads a line such as `VmRSS:  10240 kB` from a process's status.
fn kib(status: &str, name: &str) -> Option<usize> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The file's text. Functions may write bytes that aren't UTF-8.
fn text(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// Creates a new folder for one sandbox, or for files that several sandboxes share.
pub(crate) fn scratch() -> PathBuf {
    static USED: AtomicUsize = AtomicUsize::new(0);
    let number = USED.fetch_add(1, Ordering::SeqCst);
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("layer-{}-{number}", std::process::id()));
    // An earlier run with the same process id may have left its folder.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    // On Managed Instances, the function runs as another user, and writes to files in this folder. That user must be
    // able to enter the folder, whatever the umask is.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn open_to_all(file: &Path) {
    File::create(file).unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
}

fn emulator(function: &Function, bootstrap: &Path, port: u16, runtime_port: u16) -> Command {
    let program = tool("aws-lambda-rie").expect("aws-lambda-rie").display().to_string();
    let bootstrap = bootstrap.display();
    let mut script = String::from("set -e\n");
    if function.is_unpacked {
        script += &format!(
            "mount -t tmpfs tmpfs /opt\nmkdir /opt/extensions\ncp {LAYER} /opt/extensions/idempotency\ncp {WRAPPER} /opt/\n\
             [ -z \"${{OTHER_EXTENSION:-}}\" ] || cp \"$OTHER_EXTENSION\" /opt/extensions/\n"
        );
    }
    if function.mode == Mode::ManagedInstances {
        script +=
            &format!("mount -t tmpfs tmpfs /var\nmkdir /var/task\ncp {bootstrap} {CONFIG} /var/task/\n");
    }
    script += &format!(
        "exec {program} --runtime-interface-emulator-address 127.0.0.1:{port} --runtime-api-address 127.0.0.1:{runtime_port}"
    );
    if function.mode == Mode::OnDemand {
        script += &format!(" {bootstrap}");
    }
    let has_mounts = function.is_unpacked || function.mode == Mode::ManagedInstances;
    let mut command = Command::new(if has_mounts { "unshare" } else { "sh" });
    command.args(if has_mounts { &["-m", "sh", "-c"][..] } else { &["-c"] }).arg(script);
    if function.mode == Mode::ManagedInstances {
        command.env("AWS_LAMBDA_MAX_CONCURRENCY", AT_ONCE.to_string());
    }
    // Removes the variables of `cargo test`, and those that name a real AWS account.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO", "AWS_", "IDEMPOTENCY_", "RUST_LOG"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

fn environment(function: &Function) -> Vec<(String, String)> {
    let ours = [
        ("AWS_LAMBDA_FUNCTION_NAME", format!("{}-function", function.runtime.name())),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256".into()),
        ("AWS_LAMBDA_FUNCTION_TIMEOUT", function.timeout.to_string()),
        ("AWS_REGION", REGION.into()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
        ("AWS_SECRET_ACCESS_KEY", ACCESS_KEY.into()),
        ("AWS_EC2_METADATA_DISABLED", "true".into()),
    ];
    let ours = ours.map(|(name, value)| (name.to_owned(), value)).into_iter();
    ours.chain(function.environment.iter().cloned()).collect()
}

/// Reads the emulator's answer. Errors come as ordinary responses, and only their fields show that they're errors.
fn answer(body: &[u8]) -> Answer {
    let error: Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    match (field("errorType").as_str(), field("errorMessage")) {
        ("", _) if body.starts_with(b"Task timed out after ") => Answer::TimedOut,
        // When the process ends, the emulator answers with the error that the start reported, and with nothing if it
        // reported none. This error stays: if the first start timed out, each later end is answered with nothing.
        ("", _) if body.is_empty() => Answer::Died("the emulator's answer is empty".into()),
        ("", _) => Answer::Payload(body.to_vec()),
        ("Sandbox.Timedout", _) => Answer::TimedOut,
        ("Runtime.ExitError", message) => Answer::Died(message),
        (kind, message) => Answer::Error { kind: kind.into(), message },
    }
}

fn signal(name: &str, process: u32) {
    // It's fine if the process has ended.
    let _ = Command::new("sh").arg("-c").arg(format!("kill -{name} {process} 2>/dev/null")).status();
}

/// The processes whose standard output is `file`. A killed layer leaves its function as a child of process 1, where
/// [`processes_below`] can't find it.
fn processes_with_stdout(file: &Path) -> Vec<u32> {
    let is_output = |process: &u32| fs::read_link(format!("/proc/{process}/fd/1")).is_ok_and(|to| to == file);
    processes().filter(is_output).collect()
}

/// All processes of this machine.
fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes that `process` has started, directly or indirectly.
fn processes_below(process: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for number in processes() {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // After the process's name, which can contain anything, come the state and the parent.
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (number, parent)));
    }
    let mut below = vec![process];
    let mut at = 0;
    while let Some(&parent) = below.get(at) {
        below.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    below.split_off(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_sandboxes_leave_no_function_running() {
    if tool("aws-lambda-rie").is_none() || !Runtime::Node.is_installed() {
        return;
    }
    let ledger = Ledger::new(scratch().join("ledger"));
    // When the layer is killed below, the running function becomes a child of process 1.
    let sandbox = Sandbox::start(&Function {
        runtime: Runtime::Node,
        mode: Mode::OnDemand,
        handler: "handler",
        layer: format!("{LAYER} -- "),
        is_unpacked: false,
        timeout: 100,
        environment: [("IDEMPOTENCY_MODE", "off"), ("LEDGER", &ledger.file().display().to_string())]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    })
    .await;
    let works = async {
        while ledger.effects("order-1") == 0 {
            clock::pause(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        answer = sandbox.invoke(br#"{"id":"order-1","do":"effect sleep:90000"}"#, &[]) => panic!("{answer:?}"),
        works = tokio::time::timeout(START_LIMIT, works) => works.expect("the function has its effect"),
    }
    let mut running = processes_with_stdout(&sandbox.folder.join("output"));
    assert!(running.len() > 1, "expected processes of the layer and of the function, got {running:?}");
    assert_eq!(sandbox.kill(PROGRAM), 1, "{running:?}");
    drop(sandbox);
    // A killed process needs a moment to end.
    let end = clock::now_ms() + clock::millis(START_LIMIT);
    while !running.is_empty() {
        assert!(clock::now_ms() < end, "still running: {running:?}");
        clock::pause(Duration::from_millis(10)).await;
        running.retain(|process| fs::read_link(format!("/proc/{process}/exe")).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deaths_after_a_slow_start_are_seen() {
    if tool("aws-lambda-rie").is_none() || !Runtime::Go.is_installed() {
        return;
    }
    let folder = scratch();
    let started = folder.join("started").display().to_string();
    let once = format!("[ -e {started} ] || {{ touch {started}; sleep 60; }}");
    let ledger = folder.join("ledger").display().to_string();
    let sandbox = Sandbox::start(&Function {
        runtime: Runtime::Go,
        mode: Mode::OnDemand,
        handler: "handler",
        layer: format!("sh -c '{once}; exec \"$@\"' sh "),
        is_unpacked: false,
        timeout: 10,
        environment: vec![("LEDGER".into(), ledger)],
    })
    .await;
    assert_eq!(sandbox.invoke(br#"{"id":"order-1","do":"effect"}"#, &[]).await, Answer::TimedOut);
    let answer = sandbox.invoke(br#"{"id":"order-1","do":"kill"}"#, &[]).await;
    assert!(matches!(answer, Answer::Died(_)), "{answer:?}");
    let answer = sandbox.invoke(br#"{"id":"order-1","do":"effect"}"#, &[]).await;
    assert!(matches!(answer, Answer::Payload(_)), "{answer:?}");
}
