//! The processes of the function under test: starts them, numbers them, and reuses them while they live.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lambda_idempotency::{Key, KeyFields, Scope, StoredKey};
use lambda_idempotency_rehearsal::{
    answer::Answer,
    clock,
    event::Event,
    function::{self, Function, Sandbox},
    problem::{Context, Problem, Result},
    runs::Runs,
};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use super::{
    backend::Backend,
    effects::Effects,
    form::Form,
    gateway::{Gateway, Manners},
    job::{ARRIVES, FORM, FUNCTION, GATEWAY, KEY_FIELD, LEDGER, MARKER, PROCESS, SABOTAGE, STAND_AT},
    judge::{Promise, Said},
    ledger::Ledger,
    point::Point,
    record::Stored,
    sabotage::Sabotage,
};
use crate::wire::Lateness;

/// How many processes run at one time. Frozen ones don't count.
const RUNNING: usize = 8;
/// How long the harness waits for an expected step. If the machine is slower, the check ends with an error.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often the harness checks whether a process has reached its point.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The machine was busy if timers were late by more than this in sum.
const TOO_LATE: Duration = Duration::from_millis(100);

/// The function under test on one server, its ledger, and its processes.
#[derive(Debug)]
pub(super) struct Fleet {
    backend: Backend,
    function: Function,
    sabotage: Option<Sabotage>,
    form: Form,
    folder: PathBuf,
    ledger: Ledger,
    pub(super) effects: Effects,
    started: AtomicU64,
    idle: Mutex<Vec<Process>>,
    slots: Semaphore,
    lateness: Lateness,
}

impl Fleet {
    /// Creates a fleet on `backend`, with an empty ledger.
    pub(super) async fn new(
        backend: Backend,
        function: &Function,
        sabotage: Option<Sabotage>,
        form: Form,
    ) -> Result<Arc<Self>> {
        let folder = std::env::temp_dir().join(crate::servers::fresh_table()?);
        let ledger = folder.join("ledger");
        std::fs::create_dir_all(&ledger)
            .context(format!("couldn't create the ledger's folder {}", ledger.display()))?;
        let ledger = Ledger::at(ledger);
        Ok(Arc::new(Self {
            effects: match form.gateway() {
                Some(_) if sabotage == Some(Sabotage::AsksTooSoon) => {
                    Effects::Gateway(Gateway::start(Manners::JUST_IN_TIME).await?)
                }
                Some(manners) => Effects::Gateway(Gateway::start(manners).await?),
                None => backend.effects(form, &ledger).await?,
            },
            backend,
            function: match (form, function.kept_in(&folder)?) {
                // The function's program is the layer's program too.
                (Form::Layer, function) => function.clone().behind(function.program(), Vec::new()),
                (_, function) => function,
            },
            sabotage,
            form,
            ledger,
            folder,
            started: AtomicU64::new(0),
            idle: Mutex::default(),
            slots: Semaphore::new(RUNNING),
            lateness: Lateness::watch(),
        }))
    }

    /// The server's name in reports.
    pub(super) fn server(&self) -> &str {
        &self.backend.name
    }

    /// Returns the form under test: where the effects and the records are.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Whether the function is broken on purpose.
    pub(super) fn is_sabotaged(&self) -> bool {
        self.sabotage.is_some()
    }

    /// Whether the machine was busy since `begun`, so that a process may have missed a moment. A sabotage has no such
    /// excuse.
    pub(super) fn was_late(&self, begun: Instant) -> bool {
        !self.is_sabotaged() && self.lateness.during(clock::start(), begun.elapsed()) > TOO_LATE
    }

    /// Returns how long the function waits for an earlier attempt's effect.
    pub(super) fn arrives(&self) -> Duration {
        let asks_in_time = self.sabotage != Some(Sabotage::AsksTooSoon);
        if self.form.promise() == Promise::Reconciled && asks_in_time { ARRIVES } else { Duration::ZERO }
    }

    /// Waits for permission to run a process. Only a few processes run at a time, so that none is slowed down too much.
    pub(super) async fn slot(&self) -> Result<SemaphorePermit<'_>> {
        self.slots.acquire().await.context("the semaphore for processes is closed")
    }

    /// Returns a process that waits for an event: an idle one, or a new one.
    pub(super) async fn process(&self) -> Result<Process> {
        // Release the lock before a process starts.
        let idle = self.idle.lock().await.pop();
        match idle {
            Some(process) => Ok(process),
            None => self.start(None).await,
        }
    }

    /// Starts a new process. It pauses when it reaches `point`.
    pub(super) async fn start(&self, point: Option<Point>) -> Result<Process> {
        let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
        let marker = self.folder.join(format!("standing-{number}"));
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let mut environment = vec![
            ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128".into()),
            (FORM, self.form.name().into()),
            (LEDGER, path(self.ledger.folder())),
            (PROCESS, number.to_string()),
            (MARKER, path(&marker)),
        ];
        environment.extend(self.backend.environment());
        if self.form == Form::Layer {
            environment.extend(self.backend.layers_environment());
            // Any sabotage puts the layer into shadow mode, in which it lets every delivery run.
            environment.extend(self.sabotage.map(|_| ("IDEMPOTENCY_MODE", "shadow".into())));
        }
        if let Effects::Gateway(gateway) = &self.effects {
            environment.push((GATEWAY, gateway.address()));
        }
        environment.extend(point.map(|point| (STAND_AT, point.name().into())));
        environment.extend(self.sabotage.map(|sabotage| (SABOTAGE, sabotage.name().into())));
        let sandbox = Sandbox::start(&self.function, &environment, Runs::default()).await?;
        Ok(Process { sandbox, number, delivered: 0, marker })
    }

    /// Keeps a living process for the next event, or kills it if enough processes are idle. Without this limit, every
    /// round would leave one more idle process, with one more connection to the database.
    pub(super) async fn give_back(&self, mut process: Process) {
        let mut idle = self.idle.lock().await;
        if process.sandbox.is_alive() && idle.len() < RUNNING {
            idle.push(process);
        }
    }

    /// Reads a key's record.
    pub(super) async fn record(&self, key: &str) -> Result<Option<Stored>> {
        // Operations store their records under `run:job`, and the event layer under `event`.
        let is_operation = self.form == Form::PostgresTransaction || self.form.gateway().is_some();
        let via = if is_operation { "run:job" } else { "event" };
        let scope = Scope::new(FUNCTION, via).context("invalid scope")?;
        let id = StoredKey::new(&scope, &self.key(key)?);
        self.backend.record(&id).await
    }

    /// Computes the key as the function or the layer does.
    fn key(&self, key: &str) -> Result<Key> {
        if self.form != Form::Layer {
            return Key::new(key).context("invalid key");
        }
        let fields = KeyFields::new([KEY_FIELD]).context("invalid fields")?.all_required();
        let event = serde_json::json!({ "key": key }).to_string();
        let key = fields.key_of(event.as_bytes()).context("invalid event")?;
        key.ok_or_else(|| Problem::new("the event has no key"))
    }

    /// Ends all processes. Deletes the tables if they're on a DynamoDB that outlives this process.
    pub(super) async fn disband(&self) -> Result<()> {
        self.idle.lock().await.clear();
        self.backend.clear().await
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Files left over in the temporary folder do no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A process of the function. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    sandbox: Sandbox,
    number: u64,
    delivered: u64,
    marker: PathBuf,
}

/// An event that was handed to a process.
#[derive(Debug)]
pub(super) struct Handed {
    /// The name of the run that this event starts.
    pub(super) run: String,
    delivery: function::Delivery,
}

impl Process {
    /// Hands the process an event.
    pub(super) fn deliver(&mut self, event: &Event, limit: Duration) -> Handed {
        self.delivered += 1;
        let run = format!("{}-{}", self.number, self.delivered);
        // The request id is the run's name, because a function behind the layer can't count the deliveries: it sees
        // only those that the layer lets run.
        let delivery = self.sandbox.deliver_as(&run, event, limit);
        Handed { run, delivery }
    }

    /// Returns the process's answer, or `None` if it gives none within `time`.
    pub(super) async fn said_within(&mut self, handed: &mut Handed, time: Duration) -> Option<Said> {
        self.sandbox.watch(&mut handed.delivery, time).await.map(said)
    }

    /// Waits for the process's answer.
    pub(super) async fn said(&mut self, handed: &mut Handed) -> Result<Said> {
        let said = self.said_within(handed, PATIENCE).await;
        said.ok_or_else(|| {
            Problem::new(format!("run {} gave no answer within {} s", handed.run, PATIENCE.as_secs()))
        })
    }

    /// Sends SIGKILL. If the process had answered before, returns that answer.
    pub(super) async fn kill(&mut self, handed: &mut Handed) -> Result<Said> {
        self.sandbox.kill().await?;
        match self.sandbox.watch(&mut handed.delivery, PATIENCE).await {
            Some(Answer::Died(_)) => Ok(Said::Nothing),
            Some(answer) => Ok(said(answer)),
            None => Err(Problem::new("a process survived SIGKILL")),
        }
    }

    /// Sends SIGSTOP.
    pub(super) async fn freeze(&self) -> Result<()> {
        self.sandbox.freeze().await
    }

    /// Sends SIGCONT. If the process pauses at a point, it continues from there.
    pub(super) async fn thaw(&self) -> Result<()> {
        // The marker exists only while the process pauses at a point, so this may fail.
        let _ = std::fs::remove_file(&self.marker);
        self.sandbox.thaw().await
    }

    /// Waits until the process pauses at its point. Returns its answer if it answers before it reaches the point.
    pub(super) async fn stands(&mut self, handed: &mut Handed) -> Result<Option<Said>> {
        let patience = clock::start();
        while patience.elapsed() < PATIENCE {
            if self.marker.exists() {
                return Ok(None);
            }
            if let Some(said) = self.said_within(handed, LOOK_AGAIN).await {
                return Ok(Some(said));
            }
        }
        Err(Problem::new(format!("run {} neither reached its point nor answered", handed.run)))
    }
}

fn said(answer: Answer) -> Said {
    match answer {
        Answer::Payload(bytes) => Said::Response(bytes),
        Answer::Error { kind, message } => Said::Error(kind, message),
        Answer::Died(how) => Said::Lost(how),
        other => Said::Lost(format!("gave an unexpected answer: {other}")),
    }
}
