//! Runs a batch: several lanes at a time, until all lanes are done or time is up.

use std::{
    collections::HashMap,
    future::{pending, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    future::select,
    stream::{FuturesUnordered, StreamExt},
};
use lambda_runtime::LambdaEvent;
use serde_json::value::RawValue;

use super::{
    Batch, answer,
    handlers::Handlers,
    lanes::{Lane, Plan, Planned, Work},
    record::{Record, Split, Way},
    visibility::{self, Shown},
};
use crate::{
    error::{Error, ErrorKind},
    failure::Failure,
    fingerprint::Fingerprint,
    future::BoxFuture,
    internal::FailureExt as _,
    internal::SettingsExt as _,
    invocation::{Invocation, Stage},
    key::StoredKey,
    lambda::event::is_own_type,
    observe,
    run::{
        context::{OperationContext, within},
        driver::Driver,
        handle::ClaimHandle,
        protect::{Protected, Stopped, Target},
        question::{Asked, NoOutcome},
        watch::{caught, until},
    },
    settings::Execution,
    span::OperationSpan,
    time::{Clock, Timestamp},
};

/// The lease of a stream's record: how long the record stays in progress after its process dies. A short lease is
/// safe, since Lambda delivers a shard's next batch, or the same batch again, only after the invocation has ended
/// ("Using Lambda to process records from Amazon Kinesis Data Streams", AWS Lambda developer guide). The lease is short
/// so that a crash uses up few retries. It's long enough that a handler may block its thread for 8 s (two thirds of the
/// lease, less the grace of 2 s), and that a handler that ends within 5 s (a third) needs no extension.
const STREAM_LEASE: Duration = Duration::from_secs(15);

/// The size of the largest event whose records are kept from the plan until they run, in bytes. The records of a larger
/// event are read a second time, so that no more of them than run are decoded in memory.
const KEPT: usize = 1 << 20;

/// How a record ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The record is acknowledged.
    Done,
    /// The record is redelivered, for this reason.
    Returned(Reason),
}

/// Why a record is redelivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The library refused the record.
    Refused(ErrorKind),
    /// Another delivery is processing the record, until this time at the latest.
    InProgress(Timestamp),
    /// The handler failed: its error's type, and the text that may be logged.
    Failed(String, String),
    FailedForGood,
    /// The handler failed permanently, but it isn't certain that the failure is recorded.
    Unrecorded,
    Panicked,
    /// An earlier record of the same group is redelivered.
    Behind,
    /// The handler did nothing.
    NotBegun,
    NoTimeLeft,
}

/// Asks for the effect of an earlier attempt at one record. A reference, so that a first run allocates nothing for it.
pub(super) type Question<'a> =
    &'a (dyn Fn(ClaimHandle) -> BoxFuture<'static, Asked<Result<(), Reason>>> + Send + Sync);

/// One delivery of a batch.
struct Delivery<'b, R> {
    batch: &'b Batch<R>,
    driver: Driver,
    records: Vec<&'b RawValue>,
    way: Way,
    planned: Vec<Planned>,
    /// The records that were read for the plan, by their places, until their handlers take them.
    kept: Mutex<Vec<Option<R>>>,
    invocation: Invocation,
    handlers: Handlers,
    /// How each record ended, by its place in the batch. `None` means that the record hasn't ended.
    fates: Mutex<Vec<Option<Fate>>>,
    /// The places of the records that may run when they're redelivered, until the batch's `on_progress` knows of them.
    untold: Mutex<Vec<usize>>,
}

impl<R: Record> Batch<R> {
    pub(super) async fn handle(&self, event: LambdaEvent<Box<RawValue>>) -> Result<Box<RawValue>, Error> {
        let LambdaEvent { payload, context } = event;
        let invocation = self.idempotency.entered(&context);
        let split = R::split(&payload).inspect_err(observe::refused_unasked)?;
        let way = Way { in_order: self.choices.in_order, by_pipe: split.by_pipe };
        let keeps = payload.get().len() <= KEPT;
        let plan = self.plan(&split, &context, way, keeps).inspect_err(observe::refused_unasked)?;
        let Split { records, by_pipe, .. } = split;
        let Plan { planned, lanes, records: kept } = plan;
        let driver = self.idempotency.driver().begun(&invocation);
        let left = invocation.deadline().map_or(Duration::ZERO, |deadline| driver.now().until(deadline));
        let invocation = invocation.with_batch_reserve(self.choices.reserve.saturating_mul(2).min(left / 3));
        let invocation = match self.short_lease().filter(|_| !by_pipe) {
            Some(length) => invocation.with_short_leases(length),
            None => invocation,
        };
        let (fates, untold) = (Mutex::new(vec![None; records.len()]), Mutex::default());
        let handlers = Handlers::default();
        let kept = Mutex::new(kept);
        let delivery = Delivery {
            batch: self,
            driver,
            records,
            way,
            planned,
            kept,
            invocation,
            handlers,
            fates,
            untold,
        };
        delivery.run(lanes).await;
        delivery.hide().await;
        delivery.answer()
    }

    /// Whether Lambda reads the records in order, and one batch of a shard or partition at a time.
    fn is_stream(&self) -> bool {
        R::IS_STREAM || R::IS_PARTITIONED && !self.choices.is_queue
    }

    /// The short lease of a stream's records. Under at-most-once there are no takeovers, so a short lease gains
    /// nothing.
    fn short_lease(&self) -> Option<Duration> {
        let settings = self.idempotency.settings();
        let is_short = self.is_stream() && settings.execution == Execution::AtLeastOnce;
        is_short.then(|| STREAM_LEASE.max(settings.lease_grace.saturating_mul(3)))
    }
}

impl<R: Record> Delivery<'_, R> {
    /// Runs the lanes until all have ended or the response is due. If handlers are never cut off, this waits for them
    /// past the deadline, as [`Settings::cut_off`](crate::settings::Settings::cut_off) says.
    async fn run(&self, lanes: Vec<Lane>) {
        let mut waiting = lanes.into_iter();
        let width = self.batch.choices.concurrency.get();
        let mut running: FuturesUnordered<_> =
            waiting.by_ref().take(width).map(|lane| self.lane(lane)).collect();
        self.progressed(running.len());
        let all = async {
            while running.next().await.is_some() {
                running.extend(waiting.next().map(|lane| self.lane(lane)));
                self.progressed(running.len());
            }
        };
        // A record that's still running when the response is due has no fate. `answer` then decides the fate.
        match self.batch.idempotency.settings().cut_off {
            true => _ = until(self.clock(), self.invocation.end_of(Stage::Response), all).await,
            false => _ = select(pin!(all), pin!(self.overdue())).await,
        }
        // Dropping a handler's future may panic. The response must be sent anyway.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(running)));
    }

    /// Waits until the response is due and no handler is running, and then for settlements: for half of the time until
    /// the deadline, or until the end of hiding if that's later. After the deadline, nothing waits for the response, so
    /// settlements have all the time they need.
    async fn overdue(&self) {
        let (clock, Some(answer_at)) = (self.clock(), self.invocation.end_of(Stage::Response)) else {
            return pending().await;
        };
        until(clock, Some(answer_at), pending::<()>()).await;
        self.handlers.idle().await;
        let now = clock.now();
        match (self.invocation.end_of(Stage::Hiding), self.invocation.deadline()) {
            (Some(last), Some(deadline)) if now < deadline => {
                let half = now.saturating_add(now.until(deadline) / 2);
                until(clock, Some(last.max(half)), pending::<()>()).await;
            }
            _ => pending().await,
        }
    }

    fn clock(&self) -> &dyn Clock {
        self.driver.clock()
    }

    /// Runs a lane's records one after the other.
    async fn lane(&self, lane: Lane) {
        let mut seen: HashMap<&StoredKey, (Fingerprint, Fate)> = HashMap::new();
        let mut is_blocked = false;
        for place in lane.places {
            let fate =
                if is_blocked { Fate::Returned(Reason::Behind) } else { self.one(place, &mut seen).await };
            is_blocked |= lane.is_ordered && fate != Fate::Done;
            self.ended(place, fate);
        }
    }

    /// Tells the batch's `on_progress` how many lanes are running, and which records may run when they're redelivered.
    fn progressed(&self, lanes: usize) {
        let Some(call) = &self.batch.on_progress else { return };
        let places = std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
        let planned = places.into_iter().filter_map(|place| self.planned.get(place));
        call(lanes, &planned.map(|planned| planned.identifier.as_str()).collect::<Vec<_>>());
    }

    fn ended(&self, place: usize, fate: Fate) {
        if let Fate::Returned(reason) = &fate {
            self.tell(place, reason);
            if reason.may_run() && self.batch.on_progress.is_some() {
                self.untold.lock().unwrap_or_else(PoisonError::into_inner).push(place);
            }
        }
        if let Some(slot) = self.fates.lock().unwrap_or_else(PoisonError::into_inner).get_mut(place) {
            *slot = Some(fate);
        }
    }

    /// Runs one record. If an earlier record of the lane asked for the same operation, `seen` has that record's fate,
    /// and this record gets the same fate without running.
    async fn one<'s>(&'s self, place: usize, seen: &mut HashMap<&'s StoredKey, (Fingerprint, Fate)>) -> Fate {
        let (Some(planned), Some(raw)) = (self.planned.get(place), self.records.get(place)) else {
            return Fate::Returned(Reason::NoTimeLeft);
        };
        let (key, fingerprint) = match &planned.work {
            Work::Protected(key, fingerprint) => (key, *fingerprint),
            Work::Unprotected => return self.unprotected(place, raw).await,
            Work::Refused(kind, _) => return Fate::Returned(Reason::Refused(*kind)),
        };
        // If idempotency isn't enforced, duplicates run too.
        match seen.get(key).filter(|_| self.batch.idempotency.settings().is_enforced()) {
            Some((same, fate)) if *same == fingerprint => return fate.clone(),
            Some((_, Fate::Done)) => return Fate::Returned(Reason::Refused(ErrorKind::Mismatch)),
            // If this record took the key, the earlier one would be a mismatch for ever, and block its shard.
            Some((_, Fate::Returned(reason))) if self.batch.is_stream() && reason.may_run() => {
                return Fate::Returned(Reason::Behind);
            }
            // The key is new, or an earlier record with another payload failed. A queue has no order.
            _ => {}
        }
        let fate = self.protected(place, key, fingerprint, raw).await;
        seen.insert(key, (fingerprint, fate.clone()));
        fate
    }

    async fn protected(
        &self,
        place: usize,
        key: &StoredKey,
        fingerprint: Fingerprint,
        raw: &RawValue,
    ) -> Fate {
        if self.is_late() {
            return Fate::Returned(Reason::NoTimeLeft);
        }
        let record = match self.record(place, raw) {
            Ok(record) => record,
            Err(error) => return Fate::Returned(Reason::Refused(error.kind())),
        };
        let driver = &self.driver;
        let target = Target {
            span: OperationSpan::new(key, || record.trace()),
            key: key.clone(),
            fingerprint,
            invocation: self.invocation.clone(),
            cut_off: self.invocation.end_of(Stage::Handlers),
            way: self.batch.idempotency.way(),
            inside: None,
        };
        let question = self.batch.question.as_ref().map(|ask| {
            // The record was moved into its handler, and is read again only for the question.
            move |claim| match R::read(raw, self.way).record {
                Ok(record) => ask(claim, record),
                Err(error) => Box::pin(ready(Err(NoOutcome::failed(error)))),
            }
        });
        let question = question.as_ref().map(|question| -> Question<'_> { question });
        let handlers = (&self.handlers, place);
        match self.batch.handler.protected(driver, target, record, handlers, question).await {
            Ok(Protected::Ran(Ok(())) | Protected::RanUnrecorded(Ok(()))) => Fate::Done,
            Ok(Protected::Ran(Err(Reason::FailedForGood))) => self.failed_permanently(),
            Ok(Protected::RanUnrecorded(Err(reason))) => Fate::Returned(unrecorded(reason)),
            Ok(Protected::Ran(Err(reason))) => Fate::Returned(reason),
            Ok(Protected::Replayed(replay)) if replay.is_failure() => self.failed_permanently(),
            Ok(Protected::Replayed(_)) => Fate::Done,
            Err(Stopped::Panicked(_)) => Fate::Returned(Reason::Panicked),
            Err(Stopped::Refused(error)) if error.is_of_failure() => self.failed_permanently(),
            // The operation is done, and a batch doesn't need its response.
            Err(Stopped::Refused(error)) if error.kind() == ErrorKind::NotRetained => Fate::Done,
            Err(Stopped::Refused(error)) if error.kind() == ErrorKind::InProgress => {
                let wait = error.retry_after().unwrap_or_default();
                let until = driver.now().saturating_add(wait);
                Fate::Returned(Reason::InProgress(until))
            }
            Err(Stopped::Refused(error)) => Fate::Returned(Reason::Refused(error.kind())),
        }
    }

    async fn unprotected(&self, place: usize, raw: &RawValue) -> Fate {
        let record = match self.record(place, raw) {
            _ if self.is_late() => return Fate::Returned(Reason::NoTimeLeft),
            Ok(record) => record,
            Err(error) => return Fate::Returned(Reason::Refused(error.kind())),
        };
        observe::unprotected("missing key");
        let surroundings = OperationContext::unprotected(self.invocation.clone());
        let handler = self.handlers.run(place, self.batch.handler.unprotected(record));
        match caught(within(surroundings, handler)).await {
            Ok(Ok(())) => Fate::Done,
            Ok(Err(failure)) => Fate::Returned(unrecorded(Reason::of(&failure))),
            Err(_) => Fate::Returned(Reason::Panicked),
        }
    }

    /// Takes the record that was read for the plan, or else reads it.
    fn record(&self, place: usize, raw: &RawValue) -> Result<R, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get_mut(place).and_then(Option::take);
        kept.map_or_else(|| R::read(raw, self.way).record, Ok)
    }

    fn failed_permanently(&self) -> Fate {
        if self.batch.choices.acknowledges_permanent_failures {
            return Fate::Done;
        }
        Fate::Returned(Reason::FailedForGood)
    }

    fn is_late(&self) -> bool {
        self.invocation.end_of(Stage::Claims).is_some_and(|at| self.driver.now() >= at)
    }

    /// Hides messages that another delivery is processing, until that delivery's lease expires.
    async fn hide(&self) {
        let Some(visibility) = &self.batch.visibility else { return };
        let now = self.driver.now();
        let messages: Vec<_> = {
            let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
            let waits = fates.iter().zip(&self.records).filter_map(|(fate, raw)| match fate {
                Some(Fate::Returned(Reason::InProgress(until))) => {
                    Some((R::read(raw, self.way).record.ok()?.receipt()?, *until))
                }
                _ => None,
            });
            let shown = |((queue_arn, receipt_handle), until)| {
                let seconds = visibility::seconds(now.until(until));
                Shown { queue_arn, receipt_handle, seconds }
            };
            waits.map(shown).collect()
        };
        let within = self.invocation.end_of(Stage::Hiding).map(|at| now.until(at));
        if !messages.is_empty() && within != Some(Duration::ZERO) {
            visibility.hide(&messages, within).await;
        }
    }

    /// Returns the response. It lists the records to redeliver, including the unfinished ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AllFailed`] if every record's handler failed, and `fail_if_all_fail` is set.
    /// [`ErrorKind::BatchFailed`] if a record must be redelivered, and Lambda doesn't read the response.
    fn answer(self) -> Result<Box<RawValue>, Error> {
        let mut fates = std::mem::take(&mut *self.fates.lock().unwrap_or_else(PoisonError::into_inner));
        for (place, fate) in fates.iter_mut().enumerate() {
            // If a record has no fate but its handler has succeeded, the outcome couldn't be recorded in time. A
            // redelivery would run the handler again, so the record is acknowledged.
            *fate = fate.take().or_else(|| self.handlers.has_succeeded(place).then_some(Fate::Done));
        }
        for place in (0..).zip(&fates).filter_map(|(place, fate)| fate.is_none().then_some(place)) {
            self.tell(place, &Reason::NoTimeLeft);
        }
        self.refuse_if_all_failed(&fates)?;
        let returned = fates.iter().zip(&self.planned).filter(|(fate, _)| **fate != Some(Fate::Done));
        // A pipe isn't documented to read a response for Kafka's records.
        if self.batch.choices.fails_whole || R::IS_PARTITIONED && self.way.by_pipe {
            self.refuse_if_any_failed(returned.clone().count())?;
        }
        // Lambda redelivers a stream's records from the first listed record on, so listing more of them changes
        // nothing. A pipe isn't documented to do the same, so its response lists all of them.
        let named = returned.take(if R::IS_STREAM && !self.way.by_pipe { 1 } else { usize::MAX });
        answer::naming(named.map(|(_, planned)| R::listed(&planned.identifier)))
    }

    /// Fails the invocation if a record must be redelivered.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BatchFailed`] if `returned` isn't 0.
    fn refuse_if_any_failed(&self, returned: usize) -> Result<(), Error> {
        if returned == 0 {
            return Ok(());
        }
        let (all, source) = (self.planned.len(), R::SOURCE);
        let message = format!(
            "{returned} of {all} records of the `{source}` batch aren't done, so the source redelivers the whole batch. \
             The records that are done don't run again"
        );
        Err(Error::new(ErrorKind::BatchFailed, message))
    }

    /// Reports a batch of which no record is acknowledged, unless all its records [wait](Reason::is_waiting).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AllFailed`] if every record's handler failed, and `fail_if_all_fail` is set.
    fn refuse_if_all_failed(&self, fates: &[Option<Fate>]) -> Result<(), Error> {
        let all = |test: fn(&Reason) -> bool| {
            fates.iter().all(|fate| matches!(fate, Some(Fate::Returned(reason)) if test(reason)))
        };
        if fates.contains(&Some(Fate::Done)) || all(Reason::is_waiting) {
            return Ok(());
        }
        observe::all_failed(R::SOURCE, fates.len());
        if !self.batch.choices.fails_if_all_fail || !all(Reason::is_of_handler) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::AllFailed,
            format!(
                "the handlers of all {} records of the `{}` batch failed; Lambda redelivers all these records",
                fates.len(),
                R::SOURCE
            ),
        ))
    }

    fn tell(&self, place: usize, reason: &Reason) {
        let Some(planned) = self.planned.get(place) else { return };
        let (kind, detail) = match reason {
            Reason::Refused(kind) => match &planned.work {
                Work::Refused(_, why) => (kind.as_str(), why.as_ref()),
                _ => (kind.as_str(), ""),
            },
            Reason::InProgress(_) => (ErrorKind::InProgress.as_str(), "another delivery is processing it"),
            Reason::Failed(error_type, detail) if detail.is_empty() && is_own_type(error_type) => {
                ("HandlerError", error_type.as_str())
            }
            Reason::Failed(_, detail) if detail.is_empty() => {
                ("HandlerError", "its handler returned an error")
            }
            Reason::Failed(_, detail) => ("HandlerError", detail.as_str()),
            Reason::FailedForGood => ("Failed", "it failed permanently; its handler doesn't run again"),
            Reason::Unrecorded => ("Unrecorded", "it failed permanently, but the failure isn't stored"),
            Reason::Panicked => ("Panic", "its handler panicked"),
            Reason::Behind => ("Behind", "an earlier record of its group is redelivered"),
            Reason::NotBegun => ("NotBegun", "its handler did nothing, and waits for the redelivery"),
            Reason::NoTimeLeft => ("NoTimeLeft", "the invocation ran out of time"),
        };
        let refused = match (reason, &planned.work) {
            (Reason::Refused(kind), Work::Refused(..)) => Some(*kind),
            _ => None,
        };
        observe::returned(R::SOURCE, &planned.identifier, kind, detail, refused);
        // The kit knows a failure's own text: see `Reason::of`.
        if !matches!(reason, Reason::Failed(..)) {
            crate::error::made::note_reason(|| format!("{kind}: {detail}"));
        }
    }
}

impl Reason {
    /// Whether the record is redelivered because a handler failed, now or in an earlier delivery. `Behind` counts too,
    /// since the caller tests all records, and so the earlier record of the group.
    fn is_of_handler(&self) -> bool {
        matches!(
            self,
            Self::Failed(..) | Self::FailedForGood | Self::Unrecorded | Self::Panicked | Self::Behind
        )
    }

    /// Whether the record waits for another delivery, or for an earlier record of its group.
    fn is_waiting(&self) -> bool {
        matches!(self, Self::InProgress(_) | Self::Behind | Self::NotBegun)
    }

    /// Whether the record's handler may run in the next delivery.
    fn may_run(&self) -> bool {
        match self {
            Self::Refused(kind) => matches!(kind, ErrorKind::Unavailable | ErrorKind::Fenced),
            Self::FailedForGood => false,
            _ => true,
        }
    }

    pub(super) fn of(failure: &Failure) -> Self {
        crate::error::made::note_reason(|| format!("HandlerError: {failure}"));
        match failure.recorded() {
            Some(_) => Self::FailedForGood,
            None if failure.is_not_begun() => Self::NotBegun,
            None => Self::Failed(failure.error_type().to_owned(), failure.own_text().unwrap_or_default()),
        }
    }
}

/// Turns [`Reason::FailedForGood`] into [`Reason::Unrecorded`], for a failure that wasn't recorded. The batch's record
/// mustn't be acknowledged, since no trace of the failure would remain.
fn unrecorded(reason: Reason) -> Reason {
    if reason == Reason::FailedForGood { Reason::Unrecorded } else { reason }
}
