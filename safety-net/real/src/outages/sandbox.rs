//! A sandbox: one store, one engine, one operation at a time; and the ledger that counts the effects outside of both.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use lambda_idempotency::{Clock as _, Idempotency, Invocation, Key, RunError, Store, StoredKey, Timestamp};
use lambda_idempotency_cli::{
    problem::{Context, Problem, Result},
    rehearse::clock,
};
use tokio::sync::{Semaphore, watch};

use crate::site::Ahead;

/// What every operation has left when the trouble begins, and a delivery without trouble at its beginning.
pub(super) const TIME_LEFT: Duration = Duration::from_secs(30);
/// How often a delivery that was refused is repeated, and how long after.
const REPETITIONS: u32 = 60;
const REPEATED_AFTER: Duration = Duration::from_millis(500);

/// How often each key's handler had its effect. The library knows nothing of it.
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

/// Where the handlers of a round wait until all are there, and learn when the trouble begins.
#[derive(Clone, Debug)]
pub(super) struct Bell {
    arrived: Arc<Semaphore>,
    rung: watch::Receiver<Option<Instant>>,
}

impl Bell {
    /// A bell, and what rings it.
    pub(super) fn new() -> (Self, watch::Sender<Option<Instant>>) {
        let (ringer, rung) = watch::channel(None);
        (Self { arrived: Arc::new(Semaphore::new(0)), rung }, ringer)
    }

    /// Waits until so many handlers are there.
    pub(super) async fn all_are_there(&self, handlers: u32) -> Result<()> {
        self.arrived.acquire_many(handlers).await.map(drop).context("the handlers' bell")
    }

    /// A handler is there, and goes on so long after the bell's time.
    async fn wait(mut self, after: Duration) {
        self.arrived.add_permits(1);
        // It ends with the ringer at the latest: then nobody waits for this handler either.
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
    /// When its handler returns, after the bell's time.
    pub(super) returns_after: Duration,
    /// When its invocation ends.
    pub(super) deadline: Timestamp,
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) answer: Answer,
    /// How long the engine took from the handler's return to the answer.
    pub(super) settled_in: Duration,
    /// How often a delivery was refused before one ran.
    pub(super) refused: u64,
}

/// What the caller got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Value(String),
    Error(String),
    /// None by the deadline: Lambda would have killed the invocation.
    Killed,
}

/// A store and an engine, as one process has them.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    engine: Idempotency,
    clock: Ahead,
}

impl Sandbox {
    /// On this store, by a clock that is so much ahead.
    pub(super) fn new(
        store: Arc<dyn Store>,
        ahead: Duration,
        settle_within: Option<Duration>,
    ) -> Result<Self> {
        let clock = Ahead(ahead);
        let mut builder = Idempotency::builder(store).function("outages").clock(clock);
        if let Some(limit) = settle_within {
            builder = builder.settle_within(limit);
        }
        Ok(Self { engine: builder.build().context("the engine")?, clock })
    }

    /// The key as it is stored.
    pub(super) fn stored(&self, key: &str) -> Result<StoredKey> {
        let operation = self.engine.operation("charge").context("an operation")?;
        Ok(operation.stored_key(&Key::new(key).context("a key")?))
    }

    /// Delivers the operation until it has run, as a caller does whom the library told that nothing ran.
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

    /// Delivers an operation while nothing is in trouble.
    pub(super) async fn deliver_now(&self, key: &str, ledger: &Ledger) -> Result<Answer> {
        let deadline = self.clock.now().saturating_add(TIME_LEFT);
        self.run(key, deadline, || async { ledger.note(key) }).await
    }

    /// Runs something, so that the sandbox has its connections and the first round doesn't wait for them.
    pub(super) async fn warm_up(&self, nth: usize) -> Result<()> {
        let mut last = None;
        for attempt in 0..REPETITIONS {
            let answer = self.deliver_now(&format!("warm-up-{nth}-{attempt}"), &Ledger::default()).await?;
            if matches!(answer, Answer::Value(_)) {
                return Ok(());
            }
            last = Some(answer);
        }
        Err(Problem::new(format!("a sandbox doesn't get warm: {last:?}")))
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
        let operation = engine.operation("charge").context("an operation")?;
        let running = operation.run(Key::new(key).context("a key")?, key, handler);
        Ok(match tokio::time::timeout(now.until(deadline), running).await {
            Ok(Ok(value)) => Answer::Value(value),
            Ok(Err(RunError::Idempotency(error))) => Answer::Error(error.to_string()),
            Ok(Err(error)) => Answer::Error(format!("{error:?}")),
            Err(_) => Answer::Killed,
        })
    }
}

/// What the handler answers.
pub(super) fn response_to(key: &str) -> String {
    format!("done: {key}")
}
