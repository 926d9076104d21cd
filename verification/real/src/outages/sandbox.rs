//! A sandbox has its own store and its own `Idempotency`, and runs one operation at a time. The ledger counts effects
//! outside of the library.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use lambda_idempotency::{
    Idempotency, Invocation, Key, RunError, StoredKey,
    store::Store,
    time::{Clock as _, Timestamp},
};
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Problem, Result},
};
use tokio::sync::{Semaphore, watch};

use crate::site::Ahead;

/// The time that an invocation has left when the outage begins, or the whole time of an invocation without an outage.
pub(super) const TIME_LEFT: Duration = Duration::from_secs(30);
/// The maximum number of repetitions of a refused delivery.
const REPETITIONS: u32 = 60;
/// The pause before a refused delivery is repeated.
const REPEATED_AFTER: Duration = Duration::from_millis(500);

/// How often each key's handler had its effect. The library doesn't know this ledger.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<HashMap<String, u64>>>);

impl Ledger {
    pub(super) fn note(&self, key: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn effects_of(&self, key: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or_default()
    }
}

/// Holds the handlers of a round until all have started. The bell then rings, and each handler returns a while later.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    arrived: Arc<Semaphore>,
    rung: watch::Receiver<Option<Instant>>,
}

impl Bell {
    /// Creates a bell, and the sender that rings it.
    pub(super) fn new() -> (Self, watch::Sender<Option<Instant>>) {
        let (ringer, rung) = watch::channel(None);
        (Self { arrived: Arc::new(Semaphore::new(0)), rung }, ringer)
    }

    /// Waits until this many handlers have arrived.
    pub(super) async fn all_are_there(&self, handlers: u32) -> Result<()> {
        self.arrived.acquire_many(handlers).await.map(drop).context("the handlers' semaphore is closed")
    }

    /// Reports that a handler has arrived, and waits until `after` has passed since the bell rang.
    async fn wait(mut self, after: Duration) {
        self.arrived.add_permits(1);
        // The wait fails only when the sender is dropped, and then the check has ended.
        let Ok(begins) = self.rung.wait_for(Option::is_some).await.map(|rung| *rung) else { return };
        let at = begins.map(|begins| begins + after);
        let left = at.map(|at| at.saturating_duration_since(clock::start()));
        clock::pause(left.unwrap_or_default()).await;
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) key: String,
    /// How long after the bell the handler returns.
    pub(super) returns_after: Duration,
    /// When the invocation ends.
    pub(super) deadline: Timestamp,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) answer: Answer,
    /// How long the library took from the handler's return to the answer.
    pub(super) settled_in: Duration,
    /// How many deliveries the library refused before a delivery ran the handler.
    pub(super) refused: u64,
}

/// The answer that the caller got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Value(String),
    Error(String),
    /// No answer by the deadline: Lambda would have killed the invocation.
    Killed,
}

/// A store and an `Idempotency`, as in one process.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    engine: Idempotency,
    clock: Ahead,
}

impl Sandbox {
    /// Creates a sandbox on `store`. The sandbox's clock is ahead of the system's clock by `ahead`.
    pub(super) fn new(
        store: Arc<dyn Store>,
        ahead: Duration,
        settle_within: Option<Duration>,
    ) -> Result<Self> {
        let clock = Ahead(ahead);
        let mut builder = Idempotency::builder(store).function("outages").clock(clock);
        if let Some(limit) = settle_within {
            builder = builder.settings(|s| s.settle_within = limit);
        }
        Ok(Self { engine: builder.build().context("couldn't build the engine")?, clock })
    }

    /// Returns the stored form of the key.
    pub(super) fn stored(&self, key: &str) -> Result<StoredKey> {
        let operation = self.engine.operation("charge").context("invalid operation")?;
        Ok(operation.stored_key(&Key::new(key).context("invalid key")?))
    }

    /// Delivers the operation until its handler has run. If the library refuses a delivery, retries the delivery, as a
    /// caller would.
    pub(super) async fn deliver(&self, operation: &Operation, bell: &Bell, ledger: &Ledger) -> Result<Run> {
        let mut refused = 0;
        loop {
            let returned = OnceLock::new();
            let handler = || async {
                bell.clone().wait(operation.returns_after).await;
                ledger.note(&operation.key);
                let _first = returned.set(clock::start());
            };
            let answer = self.run(&operation.key, operation.deadline, handler).await?;
            let settled_in = returned.get().map(Instant::elapsed);
            match settled_in {
                None if refused < u64::from(REPETITIONS) => {
                    refused += 1;
                    clock::pause(REPEATED_AFTER).await;
                }
                settled_in => {
                    return Ok(Run { answer, settled_in: settled_in.unwrap_or_default(), refused });
                }
            }
        }
    }

    /// Delivers an operation outside of an outage.
    pub(super) async fn deliver_now(&self, key: &str, ledger: &Ledger) -> Result<Answer> {
        let deadline = self.clock.now().saturating_add(TIME_LEFT);
        self.run(key, deadline, || async { ledger.note(key) }).await
    }

    /// Runs an operation, so that the sandbox is connected and the first round doesn't wait for connections.
    pub(super) async fn warm_up(&self, nth: usize) -> Result<()> {
        let mut last = None;
        for attempt in 0..REPETITIONS {
            let answer = self.deliver_now(&format!("warm-up-{nth}-{attempt}"), &Ledger::default()).await?;
            if matches!(answer, Answer::Value(_)) {
                return Ok(());
            }
            last = Some(answer);
        }
        Err(Problem::new(format!("couldn't warm up a sandbox: {last:?}")))
    }

    async fn run<Effect>(
        &self,
        key: &str,
        deadline: Timestamp,
        effect: impl FnOnce() -> Effect,
    ) -> Result<Answer>
    where
        Effect: Future<Output = ()>,
    {
        let now = self.clock.now();
        let engine = self.engine.for_invocation(Invocation::entered(now, deadline, "outages"));
        let handler = || async {
            effect().await;
            Ok::<_, String>(response_to(key))
        };
        let operation = engine.operation("charge").context("invalid operation")?;
        let running = operation.run(Key::new(key).context("invalid key")?, key, handler);
        Ok(match tokio::time::timeout(now.until(deadline), running).await {
            Ok(Ok(value)) => Answer::Value(value),
            Ok(Err(RunError::Idempotency(error))) => Answer::Error(error.to_string()),
            Ok(Err(error)) => Answer::Error(format!("{error:?}")),
            Err(_) => Answer::Killed,
        })
    }
}

/// Returns the handler's response.
pub(super) fn response_to(key: &str) -> String {
    format!("done: {key}")
}
