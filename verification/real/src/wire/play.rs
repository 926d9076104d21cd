//! Plays one run: the scenario with its faults, then the same operation again without faults.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lambda_idempotency::{
    Builder, ErrorKind, Fingerprint, Idempotency, Invocation, Key, RunError, StoredKey, current,
    settings::{Execution, Recording},
    store::{BoxFuture, Owner, Store},
    time::{Clock, Timestamp, system_clock},
};
use lambda_idempotency_rehearsal::{
    clock,
    problem::{Context, Problem, Result},
    wire::Exchange,
};
use testkit::{
    clock::SetClock,
    random::{Random, fresh_seed},
};

use super::{
    answer::Answer,
    behind,
    budget::{self, Lateness, SETTLE_WITHIN, TimeOuts},
    case::Case,
    lock,
    round::{Long, TIME_LEFT},
    scenario::{Handler, Scenario, Size},
    stage::{FUNCTION, NO_TIME, Snapshot, Stage, Subject},
    watched::{Call, Interlude, Watched},
};

/// How far the last delivery's clock is ahead: longer than any lease, skew margin included, and shorter than any
/// retention.
const UNTIL_ALL_LEASES_END: Duration = Duration::from_secs(90);
/// How long Lambda waits for the answer of a function behind the layer. The lease is only slightly longer, so the last
/// delivery can take over a claim that an earlier delivery left unsettled.
const INVOCATION: Duration = Duration::from_secs(60);
/// The message of a recorded panic.
pub(super) const PANICKED: &str = "the handler panicked";

/// One run of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// The delivery's number.
    pub(super) delivery: usize,
    pub(super) generation: u64,
    pub(super) succeeded: bool,
}

/// One delivery of the operation.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) answer: Answer,
    /// How long the answer asks the caller to wait, if it does.
    pub(super) retry_after: Option<Duration>,
    pub(super) took: Duration,
    /// The total lateness of timers during the delivery.
    pub(super) late: Duration,
    /// The owners that were drawn for this delivery.
    pub(super) owners: Vec<Owner>,
    /// The record before the delivery.
    pub(super) before: Snapshot,
    /// The record after the delivery and after the arrival of all late requests that were due.
    pub(super) after: Snapshot,
}

/// Everything known about a run.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) case: Case,
    /// Whether answers say how long to wait. The layer's don't, since its errors have only a type and a message.
    pub(super) tells_waits: bool,
    pub(super) time_outs: TimeOuts,
    pub(super) fingerprint: Fingerprint,
    /// The first delivery has the faults. The second follows at once, the third after all leases have expired.
    pub(super) deliveries: Vec<Delivery>,
    /// The record after the rival's write, if there was a rival.
    pub(super) rival: Option<Snapshot>,
    pub(super) effects: Vec<Effect>,
    /// The library's store calls in the first delivery.
    pub(super) calls: Vec<Call>,
    /// The requests of the first delivery.
    pub(super) exchanges: Vec<Exchange>,
}

/// The state that the parts of a run share.
struct Run<'r> {
    stage: &'r Stage,
    case: &'r Case,
    key: Key,
    stored: StoredKey,
    payload: &'static str,
    fingerprint: Fingerprint,
    tag: u64,
    effects: Arc<Mutex<Vec<Effect>>>,
}

/// Plays `case` on `stage`.
pub(super) async fn play(stage: &Stage, case: &Case, lateness: &Lateness) -> Result<Facts> {
    let run = Run::new(stage, case).await?;
    let time_outs = TimeOuts::of(case);
    let (between, store) = stage.wire(&run.stored, case, time_outs).await?;
    let (_, made) = identity(stage, &run.key, ORIGINAL).await?;
    stage.prepare(&run.stored, case.scenario.prior, made).await?;

    let left = Arc::default();
    let watched = Watched::new(store, between.notes(), run.interlude(&left));
    let calls = watched.calls();
    let limit = budget::of_any_delivery(time_outs);
    let before = stage.snapshot(&run.stored, &system_clock()).await?;
    let first = run.deliver(0, Arc::new(watched), system_clock(), limit).await?;
    between.close().await;
    let first = run.closed(first, before, &system_clock(), lateness).await?;

    let deliveries = run.again(first, between.deliver_the_rest(), lateness).await?;
    let mut calls = lock(&calls).clone();
    for call in &mut calls {
        call.late = lateness.during(call.ended, call.took);
    }
    let rival = lock(&left).take().transpose()?;
    let exchanges = between.notes().exchanges();
    Ok(Facts { rival, calls, exchanges, ..run.facts(time_outs, deliveries) })
}

/// Plays `case` on `stage` while the server of `store` has a long fault.
pub(super) async fn play_through(
    stage: &Stage,
    case: &Case,
    store: Arc<dyn Store>,
    long: &Long,
    lateness: &Lateness,
) -> Result<Facts> {
    let run = Run::new(stage, case).await?;
    let before = stage.snapshot(&run.stored, &system_clock()).await?;
    let first = run.deliver(0, store, system_clock(), TIME_LEFT).await?;
    long.is_over().await;
    let first = run.closed(first, before, &system_clock(), lateness).await?;
    let deliveries = run.again(first, async {}, lateness).await?;
    Ok(run.facts(TimeOuts::of(case), deliveries))
}

const ORIGINAL: &str = "order 17, 12.50 EUR";
const ANOTHER: &str = "order 17, 13.50 EUR";

/// An answered delivery whose record isn't read yet.
struct Answered {
    answer: Answer,
    retry_after: Option<Duration>,
    took: Duration,
    ended: Instant,
    owners: Vec<Owner>,
}

/// The record after the rival's write, once the rival has written.
type Left = Arc<Mutex<Option<Result<Snapshot>>>>;

/// An answer, and how long it asks the caller to wait.
type Told = (Answer, Option<Duration>);

/// Returns the record's key, and the request's fingerprint.
async fn identity(stage: &Stage, key: &Key, order: &str) -> Result<(StoredKey, Fingerprint)> {
    if stage.subject == Subject::Layer {
        let deadline = system_clock().now().saturating_add(INVOCATION);
        return behind::identity(behind::event(key.as_str(), order), deadline).await;
    }
    let operation = Idempotency::builder(Arc::clone(&stage.direct)).function(FUNCTION).build();
    let operation = operation.and_then(|engine| engine.operation("charge")).context("invalid operation")?;
    let fingerprint = Fingerprint::of(order).context("couldn't compute the fingerprint")?;
    Ok((operation.stored_key(key), fingerprint))
}

impl<'r> Run<'r> {
    async fn new(stage: &'r Stage, case: &'r Case) -> Result<Self> {
        let random = Owner::random().context("couldn't draw a key")?;
        let key = Key::new(random.to_string()).context("invalid key")?;
        let payload = if case.scenario.is_another_request { ANOTHER } else { ORIGINAL };
        let (stored, fingerprint) = identity(stage, &key, payload).await?;
        let (tag, effects) = (fresh_seed(), Arc::default());
        Ok(Self { stage, case, stored, key, payload, fingerprint, tag, effects })
    }

    /// Delivers the operation twice more after its first delivery, without faults: at once, and when all leases have
    /// ended. Awaits `arrives` between the two.
    async fn again(
        &self,
        first: Delivery,
        arrives: impl Future<Output = ()>,
        lateness: &Lateness,
    ) -> Result<Vec<Delivery>> {
        let direct = Arc::clone(&self.stage.direct);
        let patience = Duration::from_secs(120);
        let second = self.deliver(1, Arc::clone(&direct), system_clock(), patience).await?;
        arrives.await;
        let second = self.closed(second, first.after.clone(), &system_clock(), lateness).await?;

        let ahead = SetClock::system().ahead(UNTIL_ALL_LEASES_END);
        let before = Snapshot { at: ahead.now(), ..second.after.clone() };
        let third = self.deliver(2, direct, ahead.clone(), patience).await?;
        let third = self.closed(third, before, &ahead, lateness).await?;
        Ok(vec![first, second, third])
    }

    /// Returns the facts of a run without a rival, whose calls and requests nobody watched.
    fn facts(&self, time_outs: TimeOuts, deliveries: Vec<Delivery>) -> Facts {
        Facts {
            case: self.case.clone(),
            tells_waits: self.stage.subject == Subject::Library,
            time_outs,
            fingerprint: self.fingerprint,
            deliveries,
            rival: None,
            effects: lock(&self.effects).clone(),
            calls: Vec::new(),
            exchanges: Vec::new(),
        }
    }

    fn interlude(&self, left: &Left) -> Option<Interlude> {
        let (at, rival) = self.case.scenario.rival?;
        let (stage, key, left) = (self.stage.clone(), self.stored.clone(), Arc::clone(left));
        let fingerprint = self.fingerprint;
        let comes = async move {
            let came = match stage.rival(&key, rival, fingerprint).await {
                Ok(()) => stage.snapshot(&key, &system_clock()).await,
                Err(problem) => Err(problem),
            };
            *lock(&left) = Some(came);
        };
        Some((at, Box::pin(comes)))
    }

    async fn deliver(
        &self,
        nth: usize,
        store: Arc<dyn Store>,
        clock_of_engine: impl Clock,
        limit: Duration,
    ) -> Result<Answered> {
        let owners: Arc<Mutex<Vec<Owner>>> = Arc::default();
        let settle_within = match &self.case.long {
            Some(long) if nth == 0 => long.settle_within,
            _ => Some(SETTLE_WITHIN),
        };
        let now = clock_of_engine.now();
        let configured = configured(clock_of_engine, Arc::clone(&owners), settle_within);
        let start = clock::start();
        let mut running = match self.stage.subject {
            Subject::Library => tokio::spawn(self.by_library(nth, store, now, configured)?),
            Subject::Layer => tokio::spawn(self.by_layer(nth, store, now, configured)),
        };
        let (answer, retry_after) = match tokio::time::timeout(limit, &mut running).await {
            Ok(Ok(told)) => told?,
            Ok(Err(_)) => (Answer::Panicked, None),
            Err(_) => {
                running.abort();
                (Answer::Hung, None)
            }
        };
        let (took, ended) = (start.elapsed(), clock::start());
        let owners = lock(&owners).clone();
        Ok(Answered { answer, retry_after, took, ended, owners })
    }

    /// Returns the handler of this delivery. The handler notes its effect, with the claim's generation.
    fn handler(&self, nth: usize) -> impl FnOnce(u64) -> Result<String, String> + Send + use<> {
        let scenario = self.case.scenario;
        let (handler, size) = match nth {
            0 => (scenario.handler, scenario.size),
            _ => (Handler::Succeeds, Size::Small),
        };
        let (response, effects) = (response(nth, size, self.tag), Arc::clone(&self.effects));
        move |generation| {
            lock(&effects).push(Effect {
                delivery: nth,
                generation,
                succeeded: handler == Handler::Succeeds,
            });
            match handler {
                Handler::Succeeds => Ok(response),
                Handler::Fails => Err(failure(nth)),
                // Unlike `panic!`, this prints no message.
                Handler::Panics => std::panic::resume_unwind(Box::new(PANICKED)),
            }
        }
    }

    fn by_library(
        &self,
        nth: usize,
        store: Arc<dyn Store>,
        now: Timestamp,
        configured: impl FnOnce(Builder) -> Builder,
    ) -> Result<BoxFuture<'static, Result<Told>>> {
        let scenario = self.case.scenario;
        let Scenario { at_most_once, records_errors, .. } = scenario;
        let engine = configured(Idempotency::builder(store))
            .execution(if *at_most_once { Execution::AtMostOnce } else { Execution::AtLeastOnce })
            .settings(|s| {
                s.on_handler_error = if *records_errors { Recording::Record } else { Recording::Release }
            })
            .build()
            .context("couldn't build the engine")?;
        let long = self.case.long.clone().filter(|_| nth == 0);
        let left = match &long {
            Some(_) => Some(TIME_LEFT),
            None if scenario.is_short_of_time && nth == 0 => Some(TimeOuts::SHORT.attempt),
            None => None,
        };
        let engine = match left {
            Some(left) => {
                engine.for_invocation(Invocation::entered(now, now.saturating_add(left), "short of time"))
            }
            None => engine,
        };
        let (key, payload, handler) = (self.key.clone(), self.payload, self.handler(nth));
        Ok(Box::pin(async move {
            let operation = || async {
                if let Some(long) = &long {
                    long.handle().await;
                }
                handler(current().map_or(0, |claim| claim.generation().get()))
            };
            let result = match engine.operation("charge") {
                Ok(charge) => charge.run(key, payload, operation).await,
                Err(error) => Err(error.into()),
            };
            let retry_after = match &result {
                Err(RunError::Idempotency(error)) => error.retry_after(),
                _ => None,
            };
            Ok((answer_of(result), retry_after))
        }))
    }

    fn by_layer(
        &self,
        nth: usize,
        store: Arc<dyn Store>,
        now: Timestamp,
        configured: impl FnOnce(Builder) -> Builder + Send + 'static,
    ) -> BoxFuture<'static, Result<Told>> {
        let (scenario, handler) = (self.case.scenario, Box::new(self.handler(nth)));
        let event = behind::event(self.key.as_str(), self.payload);
        let deadline = now.saturating_add(INVOCATION);
        Box::pin(async move {
            let (own_error, event) = (failure(nth), (event, deadline));
            let answer = behind::deliver(scenario, store, configured, event, &own_error, handler).await?;
            Ok((answer, None))
        })
    }

    async fn closed(
        &self,
        answered: Answered,
        before: Snapshot,
        clock_of_engine: &dyn Clock,
        lateness: &Lateness,
    ) -> Result<Delivery> {
        let Answered { answer, retry_after, took, ended, owners } = answered;
        let after = self.stage.snapshot(&self.stored, clock_of_engine).await?;
        let late = lateness.during(ended, took);
        Ok(Delivery { answer, retry_after, took, late, owners, before, after })
    }
}

/// Returns a function that configures the library's builder. The builder gets a source of owners, which adds each drawn
/// owner to `owners`.
fn configured(
    clock_of_engine: impl Clock,
    owners: Arc<Mutex<Vec<Owner>>>,
    settle_within: Option<Duration>,
) -> impl FnOnce(Builder) -> Builder {
    let draw = move || {
        let owner = Owner::random()?;
        lock(&owners).push(owner);
        Ok(owner)
    };
    move |builder| {
        let builder = builder.function(FUNCTION).clock(clock_of_engine).owner_source(draw);
        match settle_within {
            Some(limit) => builder.settings(|s| s.settle_within = limit),
            None => builder,
        }
    }
}

fn answer_of(result: Result<String, RunError<String>>) -> Answer {
    match result {
        Ok(value) => Answer::Value(value),
        Err(RunError::Handler(failure)) => Answer::HandlerFailed(failure),
        Err(RunError::Recorded(failure)) => Answer::Recorded(failure.error_message),
        Err(RunError::Idempotency(error)) if error.to_string().contains(NO_TIME) => Answer::NoTimeLeft,
        Err(RunError::Idempotency(error)) => Answer::Refused(error.kind()),
        // The judge never accepts `Invalid`, so an unknown variant is a violation.
        Err(_) => Answer::Refused(ErrorKind::Invalid),
    }
}

/// Returns the handler's error in this delivery.
pub(super) fn failure(nth: usize) -> String {
    format!("the failure of delivery {nth}")
}

/// Returns the handler's response in this delivery. No two responses are the same, and large ones don't compress.
fn response(nth: usize, size: Size, tag: u64) -> String {
    let length = match size {
        Size::Small => 0,
        Size::Large => 600,
        Size::Huge => 560 * 1024,
    };
    let mut random = Random::new(tag);
    let mut response = format!("the response of delivery {nth}, {tag:016x}: ");
    while response.len() < length {
        let bits = random.bits();
        // Characters that JSON doesn't escape, six bits each.
        response.extend((0..10).map(|digit| {
            char::from(
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                    [(bits >> (6 * digit)) as usize & 63],
            )
        }));
    }
    response
}

/// Whether `text` is the response of this delivery.
pub(super) fn is_response_of(nth: usize, text: &str) -> bool {
    text.starts_with(&format!("the response of delivery {nth}, "))
}

impl Facts {
    /// Returns the delivery with the faults.
    pub(super) fn first(&self) -> Result<&Delivery> {
        self.deliveries.first().ok_or_else(|| Problem::new("the run has no delivery"))
    }
}
