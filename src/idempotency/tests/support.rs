//! A test bench for operations: a store that fails on command, a clock that can jump, and an event recorder.

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    future::{Future, pending},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde::Serialize;

use super::bank::Bank;

use crate::{
    Builder, Idempotency, Invocation, Key, Operation, RunError, StoredKey,
    future::BoxFuture,
    run::context::{OperationContext, within},
    store::{
        Owner, Put, PutOutcome, Record, ResponseChunks, Store, StoreError, StoreErrorKind, Transactions,
        memory::MemoryStore,
    },
    time::{Clock, Timestamp},
};
use lambda_idempotency_testing::{Call, Fault};

#[derive(Debug)]
pub(super) struct TestError;

impl fmt::Display for TestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the test's own error")
    }
}

/// How one call to the scripted store ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Script {
    /// The call succeeds.
    Pass,
    /// The call meets this fault.
    Meets(Fault),
    /// The call ends in a conflict with an earlier attempt of the same transaction. That attempt may still be applied.
    InFlight,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ScriptedStore {
    pub(super) inner: MemoryStore,
    pub(super) bank: Bank,
    script: Arc<Mutex<VecDeque<Script>>>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    outage: Arc<Mutex<Option<Outage>>>,
    /// The size of the largest inline response in bytes, plus one, so that the default 0 can mean no limit.
    inline_limit: Arc<AtomicUsize>,
}

/// A period in which calls end as `script` says. Entries of `ScriptedStore::script` come first.
#[derive(Clone, Copy, Debug)]
struct Outage {
    from: tokio::time::Instant,
    until: tokio::time::Instant,
    script: Script,
}

impl ScriptedStore {
    /// From now on, for the time `length`, makes each call end as `script` says.
    pub(super) fn fail_for(&self, length: Duration, script: Script) {
        self.fail_after(Duration::ZERO, length, script);
    }

    /// Like `fail_for`, but after `delay`.
    pub(super) fn fail_after(&self, delay: Duration, length: Duration, script: Script) {
        let from = tokio::time::Instant::now() + delay;
        *self.outage.lock().unwrap() = Some(Outage { from, until: from + length, script });
    }

    fn outage(&self) -> Option<Script> {
        let outage = (*self.outage.lock().unwrap())?;
        let now = tokio::time::Instant::now();
        (outage.from <= now && now < outage.until).then_some(outage.script)
    }

    pub(super) fn limit_inline(&self, bytes: usize) {
        self.inline_limit.store(bytes + 1, Ordering::SeqCst);
    }

    pub(super) fn script(&self, script: impl IntoIterator<Item = Script>) {
        let mut scripted = self.script.lock().unwrap();
        assert!(scripted.is_empty(), "some entries of the earlier script weren't used: {scripted:?}");
        scripted.extend(script);
    }

    /// Drops the unused rest of the script.
    pub(super) fn end_script(&self) {
        self.script.lock().unwrap().clear();
    }

    pub(super) fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    pub(super) fn set(&self, key: &str, record: Record) {
        self.inner.set(&self.stored(key), Some(record));
    }

    pub(super) fn remove_all(&self) {
        for (key, _) in self.inner.all() {
            self.inner.set(&key, None);
        }
    }

    fn stored(&self, key: &str) -> StoredKey {
        StoredKey::new(&crate::Scope::new("tests", "run:step").unwrap(), &Key::new(key).unwrap())
    }

    pub(super) fn next(&self, call: &'static str) -> Result<Script, StoreError> {
        self.calls.lock().unwrap().push(call);
        let scripted = self.script.lock().unwrap().pop_front().or_else(|| self.outage());
        let script = scripted.unwrap_or(Script::Pass);
        let error = match script {
            Script::Pass => None,
            Script::InFlight => Fault::Conflict.error().map(|error| error.maybe_applied(true)),
            // `after` returns the errors of these faults, once the store has the request.
            Script::Meets(Fault::LoseAnswer | Fault::Late) => None,
            Script::Meets(fault) => fault.error(),
        };
        error.map_or(Ok(script), Err)
    }
}

/// Waits forever if `script` is the fault `silent`.
pub(super) async fn silent_if(script: Script, silent: Fault) {
    if script == Script::Meets(silent) {
        pending::<()>().await;
    }
}

/// Returns `answer`, or the error of a lost answer if `script` says so.
pub(super) fn after<T>(script: Script, answer: T) -> Result<T, StoreError> {
    match script {
        Script::Meets(Fault::LoseAnswer) => Fault::LoseAnswer.error().map_or(Ok(answer), Err),
        _ => Ok(answer),
    }
}

impl Store for ScriptedStore {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        let call = match Call::of(put) {
            Call::Claim => "claim",
            Call::Reclaim => "reclaim",
            Call::TakeOver => "take over",
            Call::Extend => "extend",
            Call::Conclude => "conclude",
            Call::Complete | Call::Fail | Call::Release => match put {
                Put::Mine { .. } => "settle",
                _ => "resolve",
            },
        };
        Box::pin(async move {
            let script = self.next(call)?;
            silent_if(script, Fault::Silence).await;
            let written = self.inner.put(key, put).await?;
            silent_if(script, Fault::SilenceAfter).await;
            after(script, written)
        })
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let script = self.next("read")?;
            silent_if(script, Fault::Silence).await;
            silent_if(script, Fault::SilenceAfter).await;
            after(script, self.inner.read(key).await?)
        })
    }

    fn chunks(&self) -> Option<&dyn ResponseChunks> {
        Some(self)
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }
}

/// A store that keeps records, but has no chunks and no transactions.
#[derive(Debug, Default)]
pub(super) struct Plain(MemoryStore);

impl Store for Plain {
    fn put<'a>(&'a self, key: &'a StoredKey, put: &'a Put) -> BoxFuture<'a, Result<PutOutcome, StoreError>> {
        self.0.put(key, put)
    }

    fn read<'a>(&'a self, key: &'a StoredKey) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        self.0.read(key)
    }
}

/// Accepts chunks, and drops them.
impl ResponseChunks for ScriptedStore {
    fn inline_limit(&self) -> usize {
        self.inline_limit.load(Ordering::SeqCst).wrapping_sub(1)
    }

    fn write_chunks<'a>(
        &'a self,
        _: &'a StoredKey,
        _: Owner,
        _: &'a Bytes,
        _: Timestamp,
    ) -> BoxFuture<'a, Result<u32, StoreError>> {
        Box::pin(async move {
            let script = self.next("write chunks")?;
            silent_if(script, Fault::Silence).await;
            after(script, 1)
        })
    }

    fn read_chunks<'a>(
        &'a self,
        _: &'a StoredKey,
        _: Owner,
        _: u32,
        _: u64,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move {
            let script = self.next("read chunks")?;
            silent_if(script, Fault::Silence).await;
            Err(StoreError::new(StoreErrorKind::Corrupt, "no such chunk"))
        })
    }
}

/// Tokio's clock plus a jump. `now` includes the jump, and `sleep` ignores it.
#[derive(Clone, Debug)]
struct TestClock {
    start: tokio::time::Instant,
    jump: Arc<AtomicU64>,
    jump_later: JumpLater,
}

/// How many more reads of the clock get the time without the jump, and the length of the jump in ms.
type JumpLater = Arc<Mutex<Option<(u32, u64)>>>;

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        let mut later = self.jump_later.lock().unwrap();
        match later.take() {
            Some((0, ms)) => self.jump.store(ms, Ordering::SeqCst),
            Some((reads, ms)) => *later = Some((reads - 1, ms)),
            None => {}
        }
        Timestamp::from_millis(1_795_000_000_000 + self.jump.load(Ordering::SeqCst))
            .saturating_add(self.start.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Runs `future` as if in another process, outside the handler's context.
pub(super) fn elsewhere<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let context = OperationContext { running: None, ..OperationContext::unprotected(Invocation::unknown()) };
    within(context, future)
}

#[derive(Clone)]
pub(super) struct Bench {
    pub(super) idempotency: Idempotency,
    pub(super) store: ScriptedStore,
    /// The clock's jump: how many milliseconds its time is ahead of tokio's.
    pub(super) jump: Arc<AtomicU64>,
    /// The name of the operation that the bench runs.
    pub(super) name: &'static str,
    clock: TestClock,
    runs: Arc<AtomicUsize>,
}

impl Bench {
    pub(super) fn operation(&self) -> Operation {
        self.idempotency.operation(self.name).unwrap()
    }

    pub(super) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(super) fn with(configure: impl FnOnce(Builder) -> Builder) -> Self {
        let store = ScriptedStore::default();
        let start = tokio::runtime::Handle::try_current()
            .map_or_else(|_| std::time::Instant::now().into(), |_| tokio::time::Instant::now());
        let clock = TestClock { start, jump: Arc::default(), jump_later: JumpLater::default() };
        Self::over(store, clock, Arc::default(), configure)
    }

    fn over(
        store: ScriptedStore,
        clock: TestClock,
        runs: Arc<AtomicUsize>,
        configure: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let builder = Idempotency::builder(store.clone()).function("tests").clock(clock.clone());
        let idempotency = configure(builder).build().unwrap();
        Self { idempotency, store, jump: clock.jump.clone(), name: "step", clock, runs }
    }

    /// Returns a bench for another process: another `Idempotency` over the same store, with the same clock.
    pub(super) fn beside(&self, configure: impl FnOnce(Builder) -> Builder) -> Self {
        Self::over(self.store.clone(), self.clock.clone(), Arc::clone(&self.runs), configure)
    }

    /// Returns a bench for another process with its own clock, which shows the same time as this bench's clock now.
    pub(super) fn apart(&self, configure: impl FnOnce(Builder) -> Builder) -> Self {
        let jump = Arc::new(AtomicU64::new(self.jump.load(Ordering::SeqCst)));
        let clock = TestClock { start: self.clock.start, jump, jump_later: JumpLater::default() };
        Self::over(self.store.clone(), clock, Arc::clone(&self.runs), configure)
    }

    /// Sets the clock's jump to two hours, so that the test can set the clock back.
    pub(super) fn ahead(self) -> Self {
        self.jump.store(2 * 3_600_000, Ordering::SeqCst);
        self
    }

    /// Sets the clock back.
    pub(super) fn set_back(&self, time: Duration) {
        self.jump.fetch_sub(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Returns the same bench with optimistic runs.
    pub(super) fn optimistic(&self, reads_first: bool) -> Self {
        let idempotency = match reads_first {
            false => self.idempotency.optimistic(),
            true => self.idempotency.optimistic_reading_first(),
        };
        Self { idempotency: idempotency.unwrap(), ..self.clone() }
    }

    /// Simulates a process that freezes for `ms` after `reads` reads of the clock.
    pub(super) fn freeze_after(&self, reads: u32, ms: u64) {
        *self.clock.jump_later.lock().unwrap() = Some((reads, ms));
    }

    pub(super) fn in_invocation(&self, deadline: Timestamp) -> Self {
        self.within(Invocation::entered(self.now(), deadline, "request"))
    }

    pub(super) fn within(&self, invocation: Invocation) -> Self {
        Self { idempotency: self.idempotency.for_invocation(invocation), ..self.clone() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.idempotency.driver().now()
    }

    /// Counts a run by a handler that isn't the bench's own.
    pub(super) fn count_run(&self) {
        self.runs.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    pub(super) fn record(&self, key: &str) -> Record {
        self.store.inner.get(&self.store.stored(key)).unwrap()
    }

    pub(super) async fn with_handler(
        &self,
        key: &str,
        payload: impl Serialize,
        handler: impl Future<Output = Result<String, TestError>>,
    ) -> Result<String, RunError<TestError>> {
        self.operation().run(Key::new(key).unwrap(), &payload, || handler).await
    }

    pub(super) async fn run(
        &self,
        key: &str,
        payload: impl Serialize,
    ) -> Result<String, RunError<TestError>> {
        let runs = Arc::clone(&self.runs);
        let handler = async move { Ok(format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1)) };
        self.with_handler(key, payload, handler).await
    }

    pub(super) async fn fail(
        &self,
        key: &str,
        payload: impl Serialize,
    ) -> Result<String, RunError<TestError>> {
        self.with_handler(key, payload, async { Err(TestError) }).await
    }

    pub(super) async fn hang(
        &self,
        key: &str,
        payload: impl Serialize,
    ) -> Result<String, RunError<TestError>> {
        self.with_handler(key, payload, pending()).await
    }

    /// Runs a handler that panics, and returns the panic's payload.
    pub(super) async fn panic(&self, key: &str, payload: impl Serialize) -> Box<dyn Any + Send> {
        let run = self.with_handler(key, payload, async { std::panic::panic_any("the handler's own panic") });
        let mut run = std::pin::pin!(run);
        std::future::poll_fn(|cx| {
            match std::panic::catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx))) {
                Ok(poll) => poll.map(|result| panic!("the handler didn't panic: {result:?}")),
                Err(payload) => std::task::Poll::Ready(payload),
            }
        })
        .await
    }

    /// Claims the key, and drops the run's future while the handler runs. So nothing settles the claim.
    pub(super) async fn abandon(&self, key: &str, payload: impl Serialize) {
        self.abandon_with(key, payload, async { Ok(String::new()) }).await;
    }

    /// Like `abandon`, but first runs `report` inside the handler, and returns its result.
    pub(super) async fn abandon_with(
        &self,
        key: &str,
        payload: impl Serialize,
        report: impl Future<Output = Result<String, TestError>>,
    ) -> String {
        let reported = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&reported);
        let handler = async move {
            *shared.lock().unwrap() = Some(report.await.unwrap());
            pending().await
        };
        let run = self.with_handler(key, payload, handler);
        let mut run = std::pin::pin!(run);
        while reported.lock().unwrap().is_none() {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(run.as_mut().poll(cx))).await;
            assert!(polled.is_pending(), "the handler didn't start: {polled:?}");
        }
        reported.lock().unwrap().take().unwrap()
    }

    /// Returns the events that the library logs while `future` runs.
    pub(super) fn recorded<F: Future>(&self, future: F) -> impl Future<Output = Vec<String>> {
        let logged = testkit::logged::logged(future);
        async { logged.await.1.events }
    }
}
