//! AWS's Runtime Interface Emulator: AWS's own Runtime API, on demand and on Managed Instances. It comes with the SAM
//! CLI, and `scripts/tools` installs it. The emulator starts a function, and accepts invocations over HTTP.
//!
//! This module is written for the emulator in version 1.170.0 of the SAM CLI. On demand, the emulator runs the given
//! command, one invocation at a time, and kills the process at the deadline. It panics if two invocations overlap. With
//! `AWS_LAMBDA_MAX_CONCURRENCY`, it emulates Managed Instances: it runs `/var/task/bootstrap` as user 993, and takes
//! several invocations at once. In this mode, it sends now + timeout × 10⁶ as the deadline. When the real timeout has
//! passed, it answers the caller, and the handler keeps running.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lambda_idempotency_rehearsal::{answer::Answer, clock, database::Database, event::Event};
use serde_json::Value;
use tokio::net::TcpStream;

use testkit::{ports::free_port, skip::skip, tools::tool};

use super::stage::{Delivers, environment, program_and_mark, without_ours};

/// How Lambda runs a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    OnDemand,
    ManagedInstances,
}

/// How many concurrent invocations Managed Instances send to a process.
pub(crate) const AT_ONCE: usize = 4;

/// The limit for a start, longer than any start takes, even on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The timeout of an invocation in tests that don't depend on it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// The emulator, and the function that it runs.
pub(crate) struct Emulator {
    process: Child,
    folder: PathBuf,
    url: String,
    timeout: Duration,
    mark: &'static str,
    client: reqwest::Client,
}

/// A function under the emulator: its command, and the line that its handler logs.
pub(crate) struct Hosted {
    pub(crate) name: &'static str,
    pub(crate) command: String,
    pub(crate) mark: &'static str,
    /// The invocation's timeout, in whole seconds.
    pub(crate) timeout: Duration,
}

impl Hosted {
    /// The example function of this name.
    pub(crate) fn example(name: &'static str) -> Self {
        let (program, mark) = program_and_mark(name);
        Self { name, command: program.into(), mark, timeout: TIMEOUT }
    }
}

impl Emulator {
    /// Starts `function` in this mode. If the emulator can't run here, returns `None`, or panics in CI.
    pub(crate) async fn start(mode: Mode, function: &Hosted, database: &Database) -> Option<Self> {
        let program = tool("aws-lambda-rie")?;
        if mode == Mode::ManagedInstances && !may_change_root() {
            skip(
                "in its Managed Instances mode, aws-lambda-rie runs /var/task/bootstrap as another user, so the tests \
                 change its root folder: run them as root, for example in a container",
            );
            return None;
        }
        // Try again if another process took the port before the emulator listened on it.
        for _ in 0..3 {
            if let Some(started) = Self::try_start(&program, mode, function, database).await {
                return Some(started);
            }
        }
        panic!("aws-lambda-rie ended during each of three starts");
    }

    async fn try_start(program: &Path, mode: Mode, function: &Hosted, database: &Database) -> Option<Self> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rie-{}-{number}", std::process::id()));
        // An earlier run with the same process id may have left its folder.
        let _ = fs::remove_dir_all(&folder);
        let (port, runtime_port) = (free_port(), free_port());
        let mut command = match mode {
            Mode::OnDemand => {
                let bootstrap = write_bootstrap(&folder, &function.command, &folder.join("written"));
                let mut command = Command::new(program);
                command.args(addresses(port, runtime_port)).arg(bootstrap);
                command
            }
            Mode::ManagedInstances => {
                fill_root(&folder, program, &function.command);
                let mut command = Command::new("chroot");
                command.arg(&folder).arg("/aws-lambda-rie").args(addresses(port, runtime_port));
                command.env("AWS_LAMBDA_MAX_CONCURRENCY", AT_ONCE.to_string());
                command.env("SSL_CERT_FILE", "/certificates");
                command
            }
        };
        let log = File::create(folder.join("log")).unwrap();
        let process = without_ours(&mut command)
            .envs(environment(database))
            .env("AWS_LAMBDA_FUNCTION_NAME", function.name)
            .env("AWS_LAMBDA_FUNCTION_TIMEOUT", function.timeout.as_secs().to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}/2015-03-31/functions/function/invocations");
        let (mark, timeout, client) = (function.mark, function.timeout, reqwest::Client::new());
        let mut started = Self { process, folder, url, timeout, mark, client };
        let end = clock::now_ms() + clock::millis(START_LIMIT);
        while clock::now_ms() < end {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Some(started);
            }
            if started.process.try_wait().unwrap().is_some() {
                return None;
            }
            clock::pause(Duration::from_millis(20)).await;
        }
        panic!("aws-lambda-rie doesn't listen after {START_LIMIT:?}: {}", started.log());
    }

    /// Invokes the function, with the caller's request id if there is one.
    pub(crate) async fn invoke(&self, request_id: Option<&str>, event: &Event) -> Answer {
        let end = clock::now_ms() + clock::millis(START_LIMIT);
        loop {
            let request = self.client.post(&self.url).header("content-type", "application/json");
            let request = match request_id {
                Some(id) => request.header("x-amzn-requestid", id),
                None => request,
            };
            let body = match request.body(event.bytes()).send().await {
                Ok(response) => response.bytes().await.unwrap(),
                Err(error) => panic!("{error:?}: {}{}", self.log(), self.written()),
            };
            let answer = self.answer(&body);
            // Managed Instances answer with this error when no worker is asking for an invocation.
            let is_busy = matches!(&answer, Answer::Error { kind, .. } if kind == "Runtime.Unavailable");
            if !is_busy || clock::now_ms() > end {
                return answer;
            }
            clock::pause(Duration::from_millis(10)).await;
        }
    }

    /// Reads the emulator's answer. Errors come as ordinary responses, and only their fields show that they're errors.
    fn answer(&self, body: &[u8]) -> Answer {
        let error: Value = serde_json::from_slice(body).unwrap_or_default();
        let field = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        match (field("errorType").as_str(), field("errorMessage")) {
            ("", _) if body.starts_with(b"Task timed out after ") => Answer::TimedOut(self.timeout),
            ("", _) => Answer::from_response(body),
            ("Sandbox.Timedout", _) => Answer::TimedOut(self.timeout),
            ("Runtime.ExitError", message) => Answer::Died(message),
            (kind, message) => Answer::Error { kind: kind.into(), message },
        }
    }

    /// Everything that the function has written.
    pub(crate) fn written(&self) -> String {
        fs::read_to_string(self.folder.join("written")).unwrap_or_default()
    }

    /// How many lines that the function has written contain `mark`.
    pub(crate) fn lines(&self, mark: &str) -> usize {
        self.written().lines().filter(|line| line.contains(mark)).count()
    }

    /// The emulator's own log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Delivers for Emulator {
    async fn deliver_event_as(&mut self, request_id: Option<&str>, event: &Event) -> Answer {
        self.invoke(request_id, event).await
    }

    async fn marks(&self) -> usize {
        self.lines(self.mark)
    }
}

impl Drop for Emulator {
    /// Sends SIGTERM to the emulator, so that it kills the function. After a SIGKILL, the function would run on.
    fn drop(&mut self) {
        let _ = Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.process.id())).status();
        for _ in 0..500 {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // The emulator may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn addresses(port: u16, runtime_port: u16) -> [String; 4] {
    [
        "--runtime-interface-emulator-address".into(),
        format!("127.0.0.1:{port}"),
        "--runtime-api-address".into(),
        format!("127.0.0.1:{runtime_port}"),
    ]
}

/// Writes the script that Lambda starts. The script replaces itself with the function, which writes directly to a
/// file, so that a line is in the file before the answer is sent.
fn write_bootstrap(folder: &Path, command: &str, written: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let bootstrap = folder.join("bootstrap");
    fs::write(&bootstrap, format!("#!/bin/sh\nexec {command} >>'{}' 2>&1\n", written.display())).unwrap();
    fs::set_permissions(&bootstrap, Permissions::from_mode(0o755)).unwrap();
    bootstrap
}

fn may_change_root() -> bool {
    Command::new("chroot")
        .args(["/", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|ended| ended.success())
}

/// Puts the emulator, the function, the shell and their libraries into a folder, which the emulator uses as the
/// machine's root. On Managed Instances, the emulator starts only `/var/task/bootstrap`, as user 993.
fn fill_root(root: &Path, emulator: &Path, command: &str) {
    let mut words: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
    let program = words.iter_mut().find(|word| word.starts_with('/')).expect("a program by its path");
    put(root, Path::new(program), "/function");
    "/function".clone_into(program);
    put(root, emulator, "/aws-lambda-rie");
    for shell in ["/bin/sh", "/usr/bin/env"] {
        put(root, Path::new(shell), shell);
    }
    write_bootstrap(&root.join("var/task"), &words.join(" "), Path::new("/written"));
    // The AWS SDK panics without a certificate, though the tests' database needs none.
    let machines = [
        &std::env::var("SSL_CERT_FILE").unwrap_or_default(),
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    ];
    let certificates = machines.into_iter().map(Path::new).find(|file| file.is_file());
    copy(
        certificates.expect("no CA certificates found: install the package ca-certificates"),
        &root.join("certificates"),
    );
    // The function's standard input, and the file for its output, which user 993 must be able to write.
    fs::create_dir_all(root.join("dev")).unwrap();
    for file in ["dev/null", "written"] {
        fs::write(root.join(file), "").unwrap();
        fs::set_permissions(root.join(file), Permissions::from_mode(0o666)).unwrap();
    }
}

/// Puts a program into this root folder, together with the libraries that it's linked to.
fn put(root: &Path, program: &Path, as_path: &str) {
    copy(program, &root.join(as_path.trim_start_matches('/')));
    let linked = Command::new("ldd").arg(program).output().unwrap();
    for word in
        String::from_utf8_lossy(&linked.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let library = Path::new(word.trim_end_matches(':'));
        if library != program {
            copy(library, &root.join(word.trim_start_matches('/')));
        }
    }
}

/// Hard-links the file, since the functions are large. Copies it if a hard link isn't possible.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let from = from.canonicalize().unwrap();
    if !to.exists() && fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to).unwrap();
    }
}
