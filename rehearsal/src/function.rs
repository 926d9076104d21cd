//! Builds and starts the function under test: one process for each concurrent invocation.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot},
};

use super::{
    answer::Answer,
    event::Event,
    runs::{Runs, What},
    runtime_api::{Phase, Posted, RuntimeApi},
};
use crate::problem::{Context, Problem, Result};

const START_LIMIT: Duration = Duration::from_secs(60);
/// How many of the last lines of a process's output are kept. If the process dies, the error shows them.
const LINES_KEPT: usize = 6;

/// A function that can be started.
#[derive(Clone, Debug)]
pub struct Function {
    program: PathBuf,
    arguments: Vec<String>,
    /// A part of the line that the handler writes at each run. The rehearsal counts runs by these lines.
    run_mark: Option<String>,
    behind_layer: Option<BehindLayer>,
}

/// The settings of a function that runs behind the layer. `Function::program` is then the layer, which starts the
/// function.
#[derive(Clone, Debug)]
struct BehindLayer {
    /// The function's name.
    name: String,
    /// The layer's settings.
    settings: Vec<(String, String)>,
}

impl Function {
    /// Builds an example function of the workspace, and shows cargo's progress. Its handler writes `run_mark`
    /// at each run.
    pub async fn build_example(workspace: &Path, name: &str, run_mark: &str) -> Result<Self> {
        let choice: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
        let example = Self::build(workspace, name, choice).await?;
        Ok(Self { run_mark: Some(run_mark.into()), ..example })
    }

    /// Builds the binary `name` of the workspace, and shows cargo's progress. `choice` has further arguments
    /// for cargo, such as the profile.
    pub async fn build(workspace: &Path, name: &str, choice: &[&str]) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--bin", name, "--message-format", "json-render-diagnostics"]).args(choice);
        let build = build.current_dir(workspace).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let built = build.await.context(format!("couldn't start cargo to build the function `{name}`"))?;
        if !built.status.success() {
            return Err(Problem::new(format!(
                "the function `{name}` didn't build: see cargo's errors above"
            )));
        }
        let program = executable(&built.stdout, name)
            .ok_or_else(|| Problem::new(format!("cargo built `{name}`, but named no executable for it")))?;
        Ok(Self::at(program))
    }

    /// Uses a function that is already built: the file `program`.
    pub fn at(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), run_mark: None, behind_layer: None }
    }

    /// Links or copies the function's program into `folder`, so that a concurrent build can't change it.
    pub fn kept_in(&self, folder: &Path) -> Result<Self> {
        let program = folder.join(self.name());
        if std::fs::hard_link(&self.program, &program).is_err() {
            let copied = std::fs::copy(&self.program, &program);
            copied.context(format!(
                "couldn't copy the function {} into {}",
                self.program.display(),
                folder.display()
            ))?;
        }
        Ok(Self { program, ..self.clone() })
    }

    /// Uses a user's function: `command` starts it, and is split at white space.
    pub fn from_command(command: &str, run_mark: Option<String>) -> Result<Self> {
        Self::from_words(command.split_whitespace().map(str::to_owned), run_mark)
    }

    /// Uses a user's function: a command with these words starts it.
    pub fn from_words(words: impl IntoIterator<Item = String>, run_mark: Option<String>) -> Result<Self> {
        let mut words = words.into_iter();
        let program = words.next().ok_or_else(|| Problem::new("--function is empty: give it a command"))?;
        Ok(Self { program: program.into(), arguments: words.collect(), run_mark, behind_layer: None })
    }

    /// Puts the function behind the Lambda layer, whose program is `layer`. `settings` are environment variables.
    #[must_use]
    pub fn behind(self, layer: impl Into<PathBuf>, settings: Vec<(String, String)>) -> Self {
        let behind_layer = Some(BehindLayer { name: self.name(), settings });
        let command = ["--".to_owned(), self.program.to_string_lossy().into_owned()];
        let arguments = command.into_iter().chain(self.arguments).collect();
        Self { program: layer.into(), arguments, behind_layer, run_mark: self.run_mark }
    }

    /// Sets an environment variable of the function.
    pub(crate) fn with_variable(self, name: &str, value: &str) -> Self {
        let words = [format!("{name}={value}"), self.program.to_string_lossy().into_owned()];
        let arguments = words.into_iter().chain(self.arguments).collect();
        Self { program: "env".into(), arguments, run_mark: self.run_mark, behind_layer: self.behind_layer }
    }

    /// The program that the rehearsal starts: the function, or the layer in front of it.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Whether the handler's runs can be counted.
    pub fn counts_runs(&self) -> bool {
        self.run_mark.is_some()
    }

    /// The function's name.
    pub(crate) fn name(&self) -> String {
        if let Some(layer) = &self.behind_layer {
            return layer.name.clone();
        }
        self.program.file_name().map_or_else(|| "function".into(), |name| name.to_string_lossy().into_owned())
    }
}

/// The executable that cargo's messages name for this binary.
fn executable(messages: &[u8], name: &str) -> Option<PathBuf> {
    let messages = messages.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut named = messages.filter_map(|message: Value| {
        let ours = message.pointer("/target/name")? == name;
        let executable = message.get("executable")?.as_str()?;
        ours.then(|| PathBuf::from(executable))
    });
    named.next_back()
}

/// One process of the function, with its own Runtime API.
#[derive(Debug)]
pub struct Sandbox {
    child: Child,
    /// The process group of the child and all processes that it started; `None` after [`Self::kill`].
    group: Option<u32>,
    api: RuntimeApi,
    output: Output,
    runs: Runs,
}

/// An event that was handed to a sandbox.
#[derive(Debug)]
pub struct Delivery {
    answer: oneshot::Receiver<Posted>,
    limit: Duration,
}

impl Sandbox {
    /// Starts a process and waits until it asks for its first event. Its handler's runs are added to `runs`.
    pub async fn start(
        function: &Function,
        environment: &[(&'static str, String)],
        runs: Runs,
    ) -> Result<Self> {
        let name = function.name();
        let api = RuntimeApi::start(&name).await.context("no free port on loopback for the Runtime API")?;
        let mut command = Command::new(&function.program);
        isolate(&mut command);
        // Lambda freezes and kills all processes of a sandbox together, so they share a process group here. The
        // function isn't always the only process: the layer, a shell or a package manager may have started it.
        command.process_group(0);
        if let Some(layer) = &function.behind_layer {
            command.envs(layer.settings.iter().map(|(name, value)| (name, value)));
        }
        let mut child = command
            .args(&function.arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .env("AWS_LAMBDA_RUNTIME_API", api.address().to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", &name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context(format!("couldn't start the function {}", function.program.display()))?;
        let output = Output::read(&mut child, function.run_mark.clone(), runs.clone());
        let group = child.id();
        let mut sandbox = Self { child, group, api, output, runs };
        sandbox.await_first_poll().await?;
        Ok(sandbox)
    }

    async fn await_first_poll(&mut self) -> Result<()> {
        let went_wrong = tokio::select! {
            phase = self.api.started() => match phase {
                Phase::Ready => return Ok(()),
                Phase::InitError(words) => format!("the function reported that it can't start: {words}"),
                Phase::Starting => "the emulated Runtime API stopped".into(),
            },
            _ = self.child.wait() => "the function ended before it asked for its first event".into(),
            () = super::clock::pause(START_LIMIT) => {
                format!("the function didn't ask for an event within {} s", START_LIMIT.as_secs())
            }
        };
        Err(Problem::new(format!("{went_wrong}{}", self.output.tail().await)))
    }

    /// Hands an event to the process.
    pub fn deliver(&self, event: &Event, limit: Duration) -> Delivery {
        self.runs.note(What::Delivered(event.summary()));
        Delivery { answer: self.api.deliver(event.bytes(), limit), limit }
    }

    /// Hands over an event under this request id, as Lambda does when it retries an asynchronous invoke.
    pub fn deliver_as(&self, request_id: impl Into<String>, event: &Event, limit: Duration) -> Delivery {
        self.runs.note(What::Delivered(event.summary()));
        Delivery { answer: self.api.deliver_as(request_id.into(), event.bytes(), limit), limit }
    }

    /// Waits for the response. Kills the process at the deadline, as Lambda does.
    pub async fn answer(&mut self, mut delivery: Delivery) -> Answer {
        let limit = delivery.limit;
        self.answer_within(&mut delivery, limit).await
    }

    /// Waits for the response, and kills the process if there's none after `limit`. Unlike [`Self::answer`], it ignores
    /// the event's own deadline.
    pub async fn answer_within(&mut self, delivery: &mut Delivery, limit: Duration) -> Answer {
        if let Some(answer) = self.watch(delivery, limit).await {
            return answer;
        }
        self.runs.note(What::Unanswered(format!("no answer in {} s", limit.as_secs())));
        // If the process has just ended, the kill fails. That's fine.
        let _ = self.kill().await;
        self.output.catch_up().await;
        Answer::TimedOut(limit)
    }

    /// Waits for the response. If there's none after `limit`, leaves the process running, and returns `None`.
    pub async fn watch(&mut self, delivery: &mut Delivery, limit: Duration) -> Option<Answer> {
        let answer = tokio::select! {
            biased;
            Ok(posted) = &mut delivery.answer => {
                let answer = Answer::from_posted(posted);
                self.runs.note(What::Answered(answer.clone().of_batch().to_string(), answer.is_success()));
                answer
            }
            status = self.child.wait() => {
                let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                self.runs.note(What::Unanswered(format!("no answer: the process ended, {how}")));
                Answer::Died(format!("the process ended, {how}{}", self.output.tail().await))
            }
            () = super::clock::pause(limit) => return None,
        };
        self.output.catch_up().await;
        Some(answer)
    }

    /// Waits until all output so far has been read, so that its runs are counted.
    pub async fn catch_up(&self) {
        self.output.catch_up().await;
    }

    /// Whether the process can take another event.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGKILL to the process and all that it started, and waits for the process to end.
    pub async fn kill(&mut self) -> Result<()> {
        self.signal("KILL").await?;
        self.child.kill().await.context("couldn't kill the function's process")?;
        self.group = None;
        Ok(())
    }

    /// Sends SIGSTOP: the process and all that it started execute nothing until [`Self::thaw`].
    pub async fn freeze(&self) -> Result<()> {
        self.signal("STOP").await
    }

    /// Sends SIGCONT.
    pub async fn thaw(&self) -> Result<()> {
        self.signal("CONT").await
    }

    /// Sends the signal to the process group, with the shell's built-in `kill`, which needs no `unsafe` code and no
    /// further crate.
    async fn signal(&self, signal: &'static str) -> Result<()> {
        let Some(group) = self.child.id() else {
            return Err(Problem::new(format!("SIG{signal}: the function's process has already ended")));
        };
        let sent = Command::new("sh").arg("-c").arg(format!("kill -s {signal} -- -{group}")).status();
        let sent = sent.await.context(format!("couldn't send SIG{signal}: `sh` didn't start"))?;
        self.runs.note(What::Signal(signal));
        if sent.success() { Ok(()) } else { Err(Problem::new(format!("couldn't send SIG{signal}: {sent}"))) }
    }
}

impl Drop for Sandbox {
    /// Kills the whole process group. If only the child were killed, the processes that it started would keep running.
    fn drop(&mut self) {
        let Some(group) = self.group else { return };
        let kill = format!("kill -s KILL -- -{group} 2>/dev/null");
        // If the processes have ended, the kill fails. That's fine.
        let _ = std::process::Command::new("sh").arg("-c").arg(kill).status();
    }
}

/// Removes this process's AWS variables from the command's environment, so that the function can't reach real
/// resources by accident. Also removes variables that would change the library's settings or hide a run's log line.
fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("AWS_")
            || text.starts_with("_X_AMZN_")
            || text.starts_with("IDEMPOTENCY_")
            || text == "RUST_LOG"
        {
            command.env_remove(&name);
        }
    }
}

/// Reads a process's output: keeps its last lines, and counts the lines that mark a run.
#[derive(Debug)]
struct Output {
    last: Arc<Mutex<VecDeque<String>>>,
    requests: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Output {
    fn read(child: &mut Child, run_mark: Option<String>, runs: Runs) -> Self {
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let (requests, asked) = mpsc::unbounded_channel();
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            let keeper = Keeper { last: Arc::clone(&last), run_mark, runs };
            tokio::spawn(keeper.read(out, err, asked));
        }
        Self { last, requests }
    }

    /// Waits until the reader has read everything that the process wrote before this call. Callers use this after the
    /// process has sent a response or a request. The earlier output is then already in the pipes, and the reader
    /// polls its pipes before it answers this call.
    async fn catch_up(&self) {
        let (sender, done) = oneshot::channel();
        if self.requests.send(sender).is_ok() {
            // The reader stops at the end of both pipes, because it has then read everything. A request that's sent at
            // that moment may stay in the channel, unanswered, until all senders are dropped. In that case, `closed`
            // ends the wait.
            tokio::select! {
                _ = done => {}
                () = self.requests.closed() => {}
            }
        }
    }

    /// The last lines, to append to a message.
    async fn tail(&self) -> String {
        self.catch_up().await;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_empty() {
            return String::new();
        }
        format!("; its last output:\n  {}", last.iter().map(String::as_str).collect::<Vec<_>>().join("\n  "))
    }
}

#[derive(Debug)]
struct Keeper {
    last: Arc<Mutex<VecDeque<String>>>,
    run_mark: Option<String>,
    runs: Runs,
}

impl Keeper {
    async fn read(
        self,
        out: impl AsyncRead + Unpin,
        err: impl AsyncRead + Unpin,
        mut asked: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    ) {
        let (mut out, mut err) = (Some(BufReader::new(out)), Some(BufReader::new(err)));
        let (mut out_line, mut err_line) = (Vec::new(), Vec::new());
        while out.is_some() || err.is_some() {
            tokio::select! {
                biased;
                more = line(&mut out, &mut out_line) => self.keep(more, &mut out, &mut out_line),
                more = line(&mut err, &mut err_line) => self.keep(more, &mut err, &mut err_line),
                // If the waiter is gone, the send fails. That's fine.
                Some(done) = asked.recv() => { let _ = done.send(()); }
            }
        }
    }

    fn keep<R>(&self, more: bool, reader: &mut Option<R>, line: &mut Vec<u8>) {
        if !more {
            *reader = None;
        }
        if line.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if self.run_mark.as_ref().is_some_and(|mark| text.contains(mark.as_str())) {
            self.runs.add(text.clone());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(text);
        if last.len() > LINES_KEPT {
            last.pop_front();
        }
    }
}

/// Reads up to the end of a line into `into`, which keeps a partial read if this future is dropped. Returns
/// false at the end of the pipe. Without a reader, the future stays pending.
async fn line<R: AsyncRead + Unpin>(reader: &mut Option<BufReader<R>>, into: &mut Vec<u8>) -> bool {
    match reader {
        Some(reader) => matches!(reader.read_until(b'\n', into).await, Ok(read) if read > 0),
        None => std::future::pending().await,
    }
}
