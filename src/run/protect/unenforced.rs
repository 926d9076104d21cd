//! Runs a handler while idempotency is switched off or in shadow mode. The handler's answer always counts.

use std::future::{Future, pending};

use super::{NOT_APPLIED, Stopped, Target, answer_declined, failure, judged, panic_verdict};
use crate::{
    error::{Error, ErrorKind},
    failure::ErrorPolicy,
    invocation::Refusals,
    observe,
    protocol::Decline,
    run::{
        alone::{Alone, commit_alone},
        context::{OperationContext, Running, refusals_around, refuse_within_itself, within},
        driver::Driver,
        lease::Timing,
        optimistic::Way,
        refusal::declined,
        response::Verdict,
        shadow::{Asking, Beside, Found, unclaimed_handle},
        staging::{AnyAnswer, Staging},
        watch::{CutOff, Ended, watch},
    },
};

/// Runs `handler` without a claim, and commits the writes that it has staged.
///
/// Returns the answer that `judge` makes of the handler's result. In shadow mode, the library also claims the key
/// and records the outcome, both in the shadow's namespace.
///
/// # Errors
///
/// The handler's panic, and the errors of a transaction of staged writes.
pub(super) async fn unenforced<T, U, Fut, Again>(
    driver: &Driver,
    target: Target,
    handler: impl FnOnce() -> Fut,
    mut judge: impl FnMut(T, ErrorPolicy) -> (Verdict, U),
    mut again: impl FnMut(AnyAnswer) -> Option<Again>,
) -> Result<U, Stopped>
where
    Fut: Future<Output = T>,
    Again: Future<Output = T>,
{
    let Target { key, fingerprint, invocation, way, .. } = target;
    let driver = &driver.begun(&invocation);
    let beside = Beside::new(driver, &key, &invocation);
    let mut asking = match refuse_within_itself(&key) {
        Ok(()) => beside.asking(fingerprint, way),
        Err(error) => Asking::Found(Found::Refused(error.kind())),
    };
    let timing = Timing::of(&driver.settings, driver.now(), &invocation);
    let staging = Staging::new(driver.store().clone(), key.clone());
    let refusals = Refusals::inside(refusals_around(&invocation));
    let context = OperationContext {
        invocation,
        claim: (way == Way::Claimed).then(|| unclaimed_handle(driver, &key, &timing)),
        staging: Some(staging.clone()),
        refusals: refusals.clone(),
        running: Some(Running::inside(key.clone())),
    };
    let running = Box::pin(within(context.clone(), async {
        let result = handler().await;
        Ok(judged(driver, &key, &mut judge, result, &refusals))
    }));
    let mut ended = with_company(driver, running, &mut asking).await;
    let mut declined_error: Option<Error> = None;
    loop {
        let staged = staging.close();
        let (verdict, answer) = match ended {
            Ended::Returned(Ok(judged)) => judged,
            Ended::Returned(Err(error)) => {
                beside.conclude(asking, failure(driver, &key, &refusals, "Declined", NOT_APPLIED)).await;
                return Err(Stopped::Refused(error));
            }
            Ended::Panicked(payload) => {
                observe::panicked(&key, None);
                beside.conclude(asking, panic_verdict(driver, &key, &refusals)).await;
                return Err(Stopped::Panicked(payload));
            }
            // Unreachable: there's no limit.
            Ended::CutOff | Ended::NotBegun => {
                let stopped = || Error::new(ErrorKind::Unavailable, "the handler was stopped");
                return Err(Stopped::Refused(declined_error.unwrap_or_else(stopped)));
            }
        };
        let Some(writes) = staged.writes.filter(|_| verdict.is_success()) else {
            beside.conclude(asking, verdict).await;
            return Ok(answer);
        };
        let error = match Box::pin(commit_alone(driver, &key, timing.limits, &*writes)).await {
            Ok(Alone::Applied) => {
                beside.conclude(asking, verdict).await;
                return Ok(answer);
            }
            Ok(Alone::Declined(details)) => {
                let error = declined(&key, Decline::Condition, None, false);
                match staged.on_declined {
                    Some(on_declined) => {
                        observe::not_committed(&key, &error, false);
                        declined_error = Some(error);
                        staging.reopen();
                        let answering = answer_declined(
                            driver,
                            &key,
                            &refusals,
                            on_declined,
                            &*details,
                            &mut judge,
                            &mut again,
                        );
                        let answering = Box::pin(within(context.clone(), answering));
                        ended = with_company(driver, answering, &mut asking).await;
                        continue;
                    }
                    None => error,
                }
            }
            Err(error) => error,
        };
        observe::not_committed(&key, &error, false);
        let verdict = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Unrecorded => Verdict::Interrupted,
            _ => failure(driver, &key, &refusals, "Declined", NOT_APPLIED),
        };
        beside.conclude(asking, verdict).await;
        return Err(Stopped::Refused(error));
    }
}

/// Polls the handler until it ends. Each poll of the handler is followed by a poll of shadow mode's request.
async fn with_company<T>(driver: &Driver, running: impl Future<Output = T>, asking: &mut Asking) -> Ended<T> {
    let company = Box::pin(async {
        asking.wait().await;
        // If this future ended, `watch` would cut the handler off.
        pending().await
    });
    watch(running, driver.clock(), &CutOff::at(None), Some(company)).await
}
