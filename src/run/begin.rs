//! Claims a key or finds its outcome, and waits for another delivery's outcome if the settings allow it.

use std::time::Duration;

use crate::{
    error::ErrorKind,
    fingerprint::Fingerprint,
    invocation::Invocation,
    key::StoredKey,
    observe,
    protocol::{Event, Refusal},
    record::{Owner, Record},
    run::{
        cache::Ticket,
        claim::{Begun, Claim},
        context::refuse_within_itself,
        driver::{Driver, Opened, spread},
        limits,
        limits::wait_until,
        refusal::{Refused, RefusedBy},
        replay::Replay,
    },
    time::{Stopwatch, Timestamp},
};

/// The first pause between two polls, about as long as a short handler runs. Each further pause is twice as long, up to
/// [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// A second more makes little difference to a caller that has waited for seconds, and each poll is a request.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Claims `key`, or finds its outcome. While another claim is live, polls for as long as the settings say.
pub(crate) async fn begin(
    driver: &Driver,
    key: &StoredKey,
    fingerprint: Fingerprint,
    invocation: &Invocation,
) -> Result<Begun, Refused> {
    refuse_within_itself(key).inspect_err(|error| observe::refused(key, error, false))?;
    let until = wait_until(&driver.settings, driver.now(), invocation);
    let mut polls = 0;
    loop {
        let refused = match attempt(driver, key, fingerprint, invocation).await {
            Ok(begun) => return Ok(begun),
            Err(refused) => refused,
        };
        if refused.error.kind() == ErrorKind::InProgress
            && let Some(until) = until
        {
            let pause = pause(polls, driver.owner()?);
            polls += 1;
            let left = driver.now().until(until);
            if !left.is_zero() {
                // The last pause ends at `until`, and one more attempt follows.
                driver.clock().sleep(pause.min(left)).await;
                continue;
            }
        }
        return Err(refused.reported(key));
    }
}

/// Claims `key`, or finds its outcome, in one attempt.
async fn attempt(
    driver: &Driver,
    key: &StoredKey,
    fingerprint: Fingerprint,
    invocation: &Invocation,
) -> Result<Begun, Refused> {
    let (stopwatch, now) = (Stopwatch::start(), driver.now());
    let cache = driver.cache();
    if let Some(answer) = cache.and_then(|cache| cache.recall(&driver.rules(), key, fingerprint, now)) {
        observe::asked(stopwatch);
        return answer.map(Begun::Replay);
    }
    let ticket = cache.and_then(|cache| cache.ticket_in(invocation));
    let limits = limits::of(&driver.settings, now, invocation);
    let mut state = driver.machine(driver.owner()?, fingerprint, invocation, limits);
    let opened = driver.open(key, &mut state, Event::Begin, &driver.to_store(None)).await;
    observe::asked(stopwatch);
    match opened? {
        Opened::Claimed(held) => {
            observe::claimed(key, &held);
            driver.span.claimed(&held.lock);
            let is_copied = ticket.is_some();
            Ok(Begun::Claimed(Claim::new(driver.clone(), key.clone(), state, held, is_copied)))
        }
        Opened::Recorded(record) => {
            replayed(driver, key, &record, ticket, limits.answer_by).await.map(Begun::Replay)
        }
        Opened::Open => Err(Refused::of(key, Refusal::Unavailable, None, &state, driver.now())),
    }
}

/// Reads the outcome in `record`, and caches it if `ticket` allows that.
pub(super) async fn replayed(
    driver: &Driver,
    key: &StoredKey,
    record: &Record,
    ticket: Option<Ticket>,
    until: Option<Timestamp>,
) -> Result<Replay, Refused> {
    let refused = |error| Refused { error, by: RefusedBy::Outcome };
    let replay = driver.replay(key, record, until).await.map_err(refused)?;
    if let Some(cache) = driver.cache() {
        cache.keep_copy(ticket, key, record, replay.response());
    }
    Ok(replay)
}

/// Returns the `nth` pause. The owner's random bits keep waiting deliveries from polling at the same time.
fn pause(nth: u32, owner: Owner) -> Duration {
    spread(FIRST_WAIT.saturating_mul(1 << nth.min(5)).min(LONGEST_WAIT), owner.as_bytes()[0])
}
