//! Claims the key, runs the handler and settles the claim: the core of every wrapper.

use std::{
    any::Any,
    future::{Future, Ready, ready},
    panic::resume_unwind,
};

use tracing::Instrument as _;

use crate::{
    error::{Error, ErrorKind, RecordedFailure},
    failure::ErrorPolicy,
    fingerprint::Fingerprint,
    internal::SettingsExt as _,
    invocation::{Invocation, Refusals},
    key::StoredKey,
    observe,
    protocol::{Decline, End, Refusal},
    run::{
        brake::Passage,
        claim::Begun,
        context::{OperationContext, Running, refusals_around, within},
        driver::{Declined, Driver, Ending, Inside, Way},
        handle::ClaimHandle,
        question::{Asked, without_outcome},
        refusal::{RefusedBy, alone_in_doubt, declined, refusal_error, unresolved, wrong_closure_type},
        replay::Replay,
        response::Verdict,
        right::Right,
        staging::{AnyAnswer, OnDeclined, Staged, Staging},
        watch::{Ended, caught},
    },
    settings::Execution,
    span::OperationSpan,
    store::OwnWrites,
    time::Timestamp,
};

/// One delivery of one operation.
pub(crate) struct Target<'t> {
    pub(crate) span: OperationSpan,
    pub(crate) key: StoredKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) invocation: Invocation,
    /// The latest time at which the handler is cut off. The claim's own cut-off may be earlier.
    pub(crate) cut_off: Option<Timestamp>,
    pub(crate) way: Way,
    /// The caller's own transaction, if the library began one to keep the record.
    pub(crate) inside: Option<&'t dyn Inside>,
}

/// A wrapper's answer.
pub(crate) enum Protected<T> {
    /// The handler ran now, and this is its answer.
    Ran(T),
    /// Like `Ran`, but the outcome isn't known to be stored.
    RanUnrecorded(T),
    /// The record has the outcome.
    Replayed(Replay),
}

impl Protected<()> {
    fn with<T>(self, answer: T) -> Protected<T> {
        match self {
            Self::Ran(()) => Protected::Ran(answer),
            Self::RanUnrecorded(()) => Protected::RanUnrecorded(answer),
            Self::Replayed(replay) => Protected::Replayed(replay),
        }
    }
}

/// The decision about a delivery.
enum Entry<'t> {
    /// Run the handler under this right.
    Run(Box<(Right<'t>, Staging, OperationContext)>),
    /// Run the handler without one, since the store failed and the settings allow that.
    Unprotected(OperationContext),
    Replay(Replay),
}

/// How a handler's result was settled, and so which answer counts.
pub(super) enum Finished {
    Settled(Protected<()>),
    /// The last attempt to commit the handler's writes failed.
    NotCommitted(Declined),
}

/// The step after the settlement of a handler's result.
enum Concluded<'t> {
    Settled(Protected<()>),
    /// A condition of the handler's writes failed, and its `on_declined` closure is to answer.
    Declined(Box<ToAnswer<'t>>),
}

/// A run whose `on_declined` closure is to answer, and the error if it doesn't.
struct ToAnswer<'t> {
    right: Right<'t>,
    error: Error,
    on_declined: OnDeclined,
    details: Box<dyn Any + Send + Sync>,
}

/// The message of the failure that's recorded if the handler's writes weren't applied.
const NOT_APPLIED: &str = "the handler's writes weren't applied";

/// Downcasts the answer of an `on_declined` closure to the handler's type, to judge it like a handler's result.
pub(crate) fn as_it_is<T: 'static>(answer: AnyAnswer) -> Option<Ready<T>> {
    answer.downcast::<T>().ok().map(|answer| ready(*answer))
}

pub(crate) use crate::run::question::Stopped;

/// The type of a question that isn't asked.
type NeverAsked<U> = fn(ClaimHandle) -> Ready<Asked<U>>;

/// The question of an operation without a reconciler.
pub(crate) fn never_asked<U>() -> Option<NeverAsked<U>> {
    None
}

/// Like [`protect_caught`], but resumes the handler's panic.
///
/// # Errors
///
/// As [`protect_caught`].
pub(crate) async fn protect<T, U, Fut, Again>(
    driver: &Driver,
    target: Target<'_>,
    handler: impl FnOnce() -> Fut,
    judge: impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    again: impl FnMut(AnyAnswer) -> Option<Again>,
) -> Result<Protected<U>, Error>
where
    Fut: Future<Output = T>,
    Again: Future<Output = T>,
{
    protect_asking(driver, target, handler, judge, again, never_asked()).await
}

/// Like [`protect`], for an operation that may have a reconciler.
///
/// # Errors
///
/// As [`protect_caught`].
pub(crate) async fn protect_asking<T, U, Fut, Again, Asking>(
    driver: &Driver,
    target: Target<'_>,
    handler: impl FnOnce() -> Fut,
    judge: impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    again: impl FnMut(AnyAnswer) -> Option<Again>,
    question: Option<impl FnOnce(ClaimHandle) -> Asking>,
) -> Result<Protected<U>, Error>
where
    Fut: Future<Output = T>,
    Again: Future<Output = T>,
    Asking: Future<Output = Asked<U>>,
{
    protect_caught(driver, target, handler, judge, again, question).await.map_err(|stopped| match stopped {
        Stopped::Refused(error) => error,
        // The runtime gets the original panic.
        Stopped::Panicked(payload) => resume_unwind(payload),
    })
}

/// Claims the key, runs `handler` under the claim, and settles the claim.
///
/// `judge` turns the handler's result into the verdict, which says how to settle the claim, and into the caller's
/// answer. Writes that the handler has staged are committed with the outcome. If a condition of these writes fails,
/// `again` turns the answer of the handler's `on_declined` closure into a result. `again` returns `None` if the
/// answer has the wrong type.
///
/// If an earlier attempt ended without an answer, and the driver's rules say so, `question` is asked before `handler`.
///
/// # Errors
///
/// As [`Operation::begin`](crate::Operation::begin), when nothing ran; [`ErrorKind::InProgress`] or
/// [`ErrorKind::OutcomeUnknown`] when the handler was cut off, or when another claim took over and is
/// still running; [`ErrorKind::Declined`], and the other errors of a transaction that isn't applied; or
/// the handler's panic.
///
/// If idempotency isn't enforced, the handler runs without a claim, and the only errors are its panic and those of
/// its own writes.
pub(crate) async fn protect_caught<T, U, Fut, Again, Asking>(
    driver: &Driver,
    target: Target<'_>,
    handler: impl FnOnce() -> Fut,
    judge: impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    again: impl FnMut(AnyAnswer) -> Option<Again>,
    question: Option<impl FnOnce(ClaimHandle) -> Asking>,
) -> Result<Protected<U>, Stopped>
where
    Fut: Future<Output = T>,
    Again: Future<Output = T>,
    Asking: Future<Output = Asked<U>>,
{
    let span = target.span.clone();
    let running = protect_within(driver, target, handler, judge, again, question);
    let ended = running.instrument(span.span().clone()).await;
    match &ended {
        Ok(Protected::Replayed(replay)) => replay.shown_in(&span),
        Err(Stopped::Refused(error)) => span.refused(error.kind()),
        Err(Stopped::Panicked(_)) => span.ended("panicked"),
        // Recorded by `finish`, which knows the verdict.
        Ok(Protected::Ran(_) | Protected::RanUnrecorded(_)) => {}
    }
    ended
}

/// As [`protect_caught`], within the operation's span.
async fn protect_within<T, U, Fut, Again, Asking>(
    driver: &Driver,
    target: Target<'_>,
    handler: impl FnOnce() -> Fut,
    mut judge: impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    mut again: impl FnMut(AnyAnswer) -> Option<Again>,
    question: Option<impl FnOnce(ClaimHandle) -> Asking>,
) -> Result<Protected<U>, Stopped>
where
    Fut: Future<Output = T>,
    Again: Future<Output = T>,
    Asking: Future<Output = Asked<U>>,
{
    let key = target.key.clone();
    let driver = &Driver { span: target.span.clone(), ..driver.begun(&target.invocation) };
    let counts = driver.settings.fail_open && driver.settings.is_enforced();
    // Until the delivery ends, this process knows of it.
    let passage = counts.then(|| driver.shared.brake.enter(&key));
    let (mut right, staging, context) = match Box::pin(enter(driver, target, passage.as_ref())).await? {
        Entry::Run(entered) => *entered,
        Entry::Replay(replay) => return Ok(Protected::Replayed(replay)),
        Entry::Unprotected(context) => {
            let refusals = context.refusals.clone();
            let running = Box::pin(within(context, async {
                judged(driver, &key, &mut judge, handler().await, &refusals).1
            }));
            let answer = caught(running).await.map_err(Stopped::Panicked)?;
            driver.span.ended("unprotected");
            return Ok(Protected::RanUnrecorded(answer));
        }
    };
    if let (true, Some(question), Some(claim)) = (right.is_asking(), question, context.claim.clone()) {
        let asking = Box::pin(within(context.of_question(), question(claim)));
        right = match right.watch(driver.clock(), asking).await.answered() {
            Ok((verdict, answer)) => {
                return Box::pin(reconciled(driver, right, verdict))
                    .await
                    .map(|settled| settled.with(answer));
            }
            Err(ended) => Box::pin(without_outcome(driver, right, ended)).await?,
        };
    }
    let refusals = context.refusals.clone();
    // Judging the result, such as serialising it, runs the user's code too, and may panic. So it's part of the watched
    // future. That future is boxed, since every future that contains it would otherwise reserve its size again.
    let running = Box::pin(within(context.clone(), async {
        let result = handler().await;
        Ok(judged(driver, &key, &mut judge, result, &refusals))
    }));
    let mut ended: Ended<Result<_, Error>> = right.watch(driver.clock(), running).await;
    right.report_run(&ended);
    // The error for which `on_declined` was called, if it was called.
    let mut declined_error: Option<Error> = None;
    loop {
        // Accepts no more writes, even if a task that outlives the handler still has the `Staging`.
        let staged = staging.close();
        let (verdict, answer) = match ended.answered() {
            Ok(judged) => judged,
            Err(ended) => {
                let unanswered = Box::pin(unanswered(driver, right, &refusals, ended, declined_error));
                return unanswered.await.map(Protected::Replayed);
            }
        };
        // Boxed like the handler's future, since the settlement's future is the largest one here.
        let declined = match Box::pin(conclude(driver, right, &refusals, verdict, staged)).await? {
            Concluded::Settled(settled) => return Ok(settled.with(answer)),
            Concluded::Declined(declined) => *declined,
        };
        let (on_declined, details) = (declined.on_declined, declined.details);
        (right, declined_error) = (declined.right, Some(declined.error));
        staging.reopen();
        let answering =
            answer_declined(driver, &key, &refusals, on_declined, &*details, &mut judge, &mut again);
        let answering = Box::pin(within(context.clone(), answering));
        ended = right.watch(driver.clock(), answering).await;
    }
}

// The functions below name no type of the user's, so that they're compiled only once.

/// Decides what a delivery may do.
async fn enter<'t>(
    driver: &Driver,
    target: Target<'t>,
    passage: Option<&Passage<'_>>,
) -> Result<Entry<'t>, Stopped> {
    let Target { key, fingerprint, invocation, cut_off, way, inside, .. } = target;
    let is_inside = inside.is_some();
    let invocation = invocation.cut_off_at(cut_off);
    let begun = Right::begin(driver, &key, fingerprint, &invocation, way, inside).await;
    let invocation = invocation.cut_off_at(None);
    // If the store failed, or no time was left to ask it, nothing is known of the key. In each other case, the key has a
    // record, or runs now.
    let is_known = begun.as_ref().err().is_none_or(|refused| {
        let is_by_store = matches!(refused.by, RefusedBy::Store | RefusedBy::StoreTooLate);
        !is_by_store && refused.error.kind() != ErrorKind::Unavailable
    });
    if let Some(passage) = passage.filter(|_| is_known) {
        passage.knows_the_key();
    }
    let right = match begun {
        Ok(Begun::Claimed(right)) => right,
        Ok(Begun::Replay(replay)) => return Ok(Entry::Replay(replay)),
        Err(refused)
            if refused.by == RefusedBy::Store
                && !is_inside
                && passage.is_some_and(Passage::may_run_unprotected) =>
        {
            observe::unprotected("store failure");
            return Ok(Entry::Unprotected(OperationContext::unprotected(invocation)));
        }
        Err(refused) => return Err(refused.error.into()),
    };
    let staging = Staging::new(driver.store().clone(), key.clone());
    let refusals = Refusals::inside(refusals_around(&invocation));
    let context = OperationContext {
        invocation,
        claim: right.handle(way),
        // A handler in the caller's transaction writes there.
        staging: (!is_inside).then(|| staging.clone()),
        refusals,
        running: Some(Running::inside(key)),
    };
    Ok(Entry::Run(Box::new((right, staging, context))))
}

/// Records the outcome that the question found.
async fn reconciled(
    driver: &Driver,
    mut right: Right<'_>,
    verdict: Verdict,
) -> Result<Protected<()>, Stopped> {
    match finish(driver, &mut right, verdict, None).await? {
        Finished::Settled(settled) => Ok(settled),
        Finished::NotCommitted(Declined { why, store_error, .. }) => {
            Err(declined(right.key(), why, store_error, false).into())
        }
    }
}

/// Ends an operation whose handler gave no answer. `declined_error` is the error for which `on_declined` was called, if it
/// was called.
async fn unanswered(
    driver: &Driver,
    mut right: Right<'_>,
    refusals: &Refusals,
    ended: Ended<Error>,
    declined_error: Option<Error>,
) -> Result<Replay, Stopped> {
    match (ended, declined_error) {
        (Ended::Returned(error), _) => {
            let why = "a condition of the handler's writes failed";
            give_up(driver, right, refusals, why, error).await
        }
        // The handler has run, and only its `on_declined` closure didn't begin. So under at-most-once, the handler must not
        // run again.
        (Ended::NotBegun, Some(error)) => give_up(driver, right, refusals, NOT_APPLIED, error).await,
        (Ended::NotBegun, None) => Err(release_unrun(driver, right).await.into()),
        (Ended::Panicked(payload), _) => {
            let key = right.key().clone();
            observe::panicked(&key, right.generation());
            // The caller gets the panic, however the settlement ends.
            let _ = right.settle(panic_verdict(driver, &key, refusals)).await;
            Err(Stopped::Panicked(payload))
        }
        (Ended::CutOff, _) => {
            let error = right.cut_off(driver).await;
            right.give_up().await;
            Err(error.into())
        }
    }
}

/// Settles as the verdict says, with the handler's writes if there are any. If their last attempt failed, gives up, or lets
/// the handler's `on_declined` closure answer.
async fn conclude<'t>(
    driver: &Driver,
    mut right: Right<'t>,
    refusals: &Refusals,
    verdict: Verdict,
    staged: Staged,
) -> Result<Concluded<'t>, Stopped> {
    let Declined { why, details, store_error, is_in_doubt } =
        match finish(driver, &mut right, verdict, staged.writes).await? {
            Finished::Settled(settled) => return Ok(Concluded::Settled(settled)),
            Finished::NotCommitted(declined_by) => declined_by,
        };
    // The caller gets this error only if the next settlement has fenced every attempt at the transaction. So the error
    // never says that the transaction is in doubt.
    let error = declined(right.key(), why, store_error, false);
    observe::not_committed(right.key(), &error, is_in_doubt);
    match (why, details, staged.on_declined) {
        (Decline::Condition, Some(details), Some(on_declined)) => {
            Ok(Concluded::Declined(Box::new(ToAnswer { right, error, on_declined, details })))
        }
        _ => {
            let replay = give_up(driver, right, refusals, NOT_APPLIED, error).await?;
            Ok(Concluded::Settled(Protected::Replayed(replay)))
        }
    }
}

/// Gives up on an operation: its writes weren't applied, and no `on_declined` closure gave an answer. Settles the
/// operation as if the handler had returned an error. Callers box the future, so that no other path reserves its size.
async fn give_up(
    driver: &Driver,
    mut right: Right<'_>,
    refusals: &Refusals,
    message: &str,
    error: Error,
) -> Result<Replay, Stopped> {
    // A transient store failure isn't an outcome of the operation, even if the settings record errors: the
    // caller should retry. Under at-most-once, the failure is recorded anyway, since the handler has run.
    let passes = error.kind() == ErrorKind::Unavailable;
    let verdict = match (&right, driver.settings.execution) {
        (Right::Unenforced(_), _) if passes => Verdict::Release { interrupted: true },
        (_, Execution::AtLeastOnce) if passes => Verdict::Release { interrupted: false },
        _ => failure(driver, right.key(), refusals, "Declined", message),
    };
    let Ending { end, store_error } = right.settle(verdict).await;
    let (key, answer_by) = (right.key(), right.limits().answer_by);
    match end {
        // The record has a successor's outcome, or the outcome of an earlier attempt of the same transaction
        // that was applied after all.
        End::Superseded(record) => {
            Ok(driver.successors_outcome(key, &record, ErrorKind::InProgress, answer_by).await?)
        }
        // No settlement is known to be stored, so nothing fences an earlier attempt that may still be on its way.
        End::Unresolved(until) => Err(unresolved(key, until, store_error, driver.now()).into()),
        _ => Err(error.into()),
    }
}

/// Judges the result of the handler of `key`.
fn judged<T, U>(
    driver: &Driver,
    key: &StoredKey,
    judge: &mut impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    result: T,
    refusals: &Refusals,
) -> (Verdict, U) {
    let (verdict, answer) = judge(result, error_policy(driver, refusals));
    (passed_on(key, verdict, refusals), answer)
}

/// If the verdict records nothing, passes a refusal on to the next outer operation.
fn passed_on(key: &StoredKey, verdict: Verdict, refusals: &Refusals) -> Verdict {
    if verdict.is_without_outcome() {
        refusals.pass_on(key);
    }
    verdict
}

/// Decides whether a handler's failure is recorded.
fn error_policy(driver: &Driver, refusals: &Refusals) -> ErrorPolicy {
    ErrorPolicy {
        on_error: driver.settings.effective_on_handler_error(),
        execution: driver.settings.execution,
        is_step_refused: refusals.is_any(),
    }
}

/// Returns the verdict for a handler of `key` that failed without an error of its own.
fn failure(
    driver: &Driver,
    key: &StoredKey,
    refusals: &Refusals,
    error_type: &str,
    message: &str,
) -> Verdict {
    let verdict = match error_policy(driver, refusals).records() {
        false => Verdict::Release { interrupted: false },
        true => Verdict::failure(&RecordedFailure::new(error_type, message)),
    };
    passed_on(key, verdict, refusals)
}

/// Returns the verdict for a handler of `key` that panicked.
fn panic_verdict(driver: &Driver, key: &StoredKey, refusals: &Refusals) -> Verdict {
    match failure(driver, key, refusals, "Panic", "the handler panicked") {
        // A reconciler may find the panicked handler's effect.
        _ if driver.rules().reconcile.is_some() => Verdict::Unanswered { until: None },
        // The handler gave no answer, and the next run must learn of that.
        Verdict::Release { .. } => Verdict::Release { interrupted: true },
        recorded => recorded,
    }
}

/// Runs the handler's `on_declined` closure, and judges its answer.
///
/// # Errors
///
/// The closure's answer has another type than the handler's.
async fn answer_declined<T, U, Again>(
    driver: &Driver,
    key: &StoredKey,
    refusals: &Refusals,
    on_declined: OnDeclined,
    details: &(dyn Any + Send + Sync),
    judge: &mut impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    again: &mut impl FnMut(AnyAnswer) -> Option<Again>,
) -> Result<(Verdict, U), Error>
where
    Again: Future<Output = T>,
{
    match on_declined(details).and_then(again) {
        Some(answer) => {
            let result = answer.await;
            Ok(judged(driver, key, judge, result, refusals))
        }
        None => Err(wrong_closure_type::<T>(key)),
    }
}

/// Settles as the verdict says. If the verdict is a success, the writes that the handler staged are committed too.
pub(super) async fn finish(
    driver: &Driver,
    right: &mut Right<'_>,
    verdict: Verdict,
    writes: Option<Box<OwnWrites>>,
) -> Result<Finished, Error> {
    let writes = writes.as_deref().filter(|_| verdict.is_success());
    let (name, is_released) = (verdict.name(), verdict.is_without_outcome());
    // If the handler ran under a claim and has no transaction, its effects have happened, whether or not the record is
    // written.
    let has_happened = writes.is_none() && matches!(right, Right::Claim(_));
    let is_unenforced = matches!(right, Right::Unenforced(_));
    let ending = match writes {
        None => right.settle(verdict).await,
        Some(writes) => match right.settle_with(verdict, writes).await {
            Ok(ending) => ending,
            Err(declined) => return Ok(Finished::NotCommitted(declined)),
        },
    };
    let (key, answer_by) = (right.key(), right.limits().answer_by);
    let settled = match ending.end {
        // No settlement fences these writes.
        End::Unresolved(_) if is_unenforced => return Err(alone_in_doubt(key, ending.store_error)),
        End::Recorded if is_unenforced => Protected::RanUnrecorded(()),
        // A release records no outcome, so the handler's own answer is the only one. The exception: the handler's
        // declined transaction was applied after all, or may still be applied.
        ref end if is_released && !matches!(end, End::Superseded(_) | End::Unresolved(_)) => {
            Protected::Ran(())
        }
        // The effects have happened, and an error would guarantee a second run.
        End::Unrecorded(_) | End::NotCommitted(_) if has_happened => Protected::RanUnrecorded(()),
        end => match right.concluded(driver, end, ending.store_error)? {
            None => Protected::Ran(()),
            Some(record) => {
                let outcome = driver.successors_outcome(key, &record, ErrorKind::InProgress, answer_by).await;
                Protected::Replayed(outcome?)
            }
        },
    };
    match settled {
        Protected::Ran(()) => driver.span.ended(name),
        Protected::RanUnrecorded(()) if is_unenforced => driver.span.ended("unenforced"),
        Protected::RanUnrecorded(()) => driver.span.ended("unrecorded"),
        Protected::Replayed(_) => {}
    }
    Ok(Finished::Settled(settled))
}

/// Releases the claim of a process that was frozen between its claim and its handler. Nothing ran, so the
/// next delivery may run at once, even under at-most-once.
async fn release_unrun(driver: &Driver, mut right: Right<'_>) -> Error {
    // If the release fails, the claim is like one that was dropped.
    let _ = right.settle(Verdict::Release { interrupted: false }).await;
    refusal_error(right.key(), Refusal::NoTimeLeft, None, driver.now())
}
