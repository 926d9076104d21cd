//! Shadow mode: claims the key and records the outcome beside the handler, in a separate namespace, and reports what
//! enforcing would have done.
//!
//! Nothing here has an effect on the handler or its answer. The claim is sent while the handler runs, in the same
//! task: Lambda freezes a process as soon as it has answered, so a spawned task would stop in the middle of a
//! request. Once the handler has ended, the requests to the store get [`MOST`] in total. Requests that aren't
//! answered by then are dropped and counted as failed.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    error::ErrorKind,
    fingerprint::Fingerprint,
    future::BoxFuture,
    internal::SettingsExt as _,
    internal::StoredResponseExt as _,
    invocation::Invocation,
    key::StoredKey,
    observe::{self, Would},
    outcome::Outcome,
    protocol::{End, Event, Refusal, State},
    record::Record,
    run::{
        context::refuse_within_itself,
        driver::{Driver, Opened, Way},
        limits,
        refusal::{Refused, RefusedBy},
        replay::outcome_of,
        response::Verdict,
        watch::{CutOff, Ended, caught, watch},
    },
    settings::Mode,
    store::StoreError,
    time::{Stopwatch, Timestamp},
};

/// The most time that shadow mode adds to one delivery. A healthy store answers sooner, and callers hardly notice it.
const MOST: Duration = Duration::from_millis(100);

/// The state of the key in the shadow's namespace.
enum Found {
    /// Enforcing would run the handler. `true` means that enforcing would take over a stale claim.
    Free(Box<State>, bool),
    /// Enforcing would replay this outcome.
    Recorded(Box<Record>),
    /// Enforcing would refuse the delivery with this kind of error.
    Refused(ErrorKind),
    /// It's unknown what enforcing would do, for example because the store failed or was too slow.
    Unknown(Option<StoreError>),
}

/// Shadow mode's work beside one delivery; without it, idempotency is switched off.
pub(super) struct Beside {
    shadow: Option<Shadow>,
    asking: Asking,
}

/// The request that finds out what enforcing would do (`Waiting`), or its answer (`Found`).
enum Asking {
    // The lock is never taken. It makes a `Claim` that has this future `Sync`.
    Waiting(Mutex<BoxFuture<'static, Found>>),
    Found(Found),
}

struct Shadow {
    driver: Driver,
    /// The operation's own key, for the report.
    id: StoredKey,
    /// The key in the shadow's namespace.
    key: StoredKey,
    invocation: Invocation,
    /// The time that's left of [`MOST`].
    left: Duration,
}

/// Returns whether to run a delivery that enforcing would refuse as `kind` before any request to the store. If
/// idempotency isn't enforced, the delivery runs. This function then counts the delivery and, in shadow mode, reports
/// it.
pub(crate) fn lets_pass(driver: &Driver, kind: &'static str) -> bool {
    if driver.settings.is_enforced() {
        return false;
    }
    observe::not_enforced();
    if driver.settings.mode == Mode::Shadow {
        observe::shadow(None, &Would::Refuse(kind), None);
    }
    true
}

impl Beside {
    /// Begins a delivery of `key` that isn't enforced. Sends no request until it's polled.
    pub(super) fn new(
        driver: &Driver,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
        way: Way,
    ) -> Self {
        observe::not_enforced();
        let is_nested = refuse_within_itself(key);
        if driver.settings.mode != Mode::Shadow {
            return Self { shadow: None, asking: Asking::Found(Found::Unknown(None)) };
        }
        let shadow = Shadow {
            driver: driver.clone(),
            id: key.clone(),
            key: key.in_shadow(),
            invocation: invocation.clone(),
            left: MOST,
        };
        let asking = match is_nested {
            Err(error) => Asking::Found(Found::Refused(error.kind())),
            Ok(()) => Asking::Waiting(Mutex::new(Box::pin(asked(
                driver.clone(),
                shadow.key.clone(),
                fingerprint,
                invocation.clone(),
                way,
            )))),
        };
        Self { shadow: Some(shadow), asking }
    }

    /// Waits for the answer, however long that takes.
    pub(super) async fn wait(&mut self) {
        if let Asking::Waiting(question) = &mut self.asking {
            self.asking = Asking::Found(unlocked(question).await);
        }
    }

    /// Waits for the answer, in the time that's left.
    pub(super) async fn wait_in_time(&mut self) {
        if let (Asking::Waiting(question), Some(shadow)) = (&mut self.asking, &mut self.shadow) {
            let found = shadow.in_time(unlocked(question)).await;
            self.asking = Asking::Found(found.unwrap_or(Found::Unknown(None)));
        }
    }

    /// Extends the shadow's lease, in the time that's left.
    pub(super) async fn extend(&mut self, until: Timestamp) {
        let (Some(shadow), Asking::Found(Found::Free(state, _))) = (&mut self.shadow, &mut self.asking)
        else {
            return;
        };
        if state.held().is_none() {
            return;
        }
        let (driver, key) = (shadow.driver.clone(), shadow.key.clone());
        let extending =
            async { driver.drive(&key, state, Event::Extend(until), &driver.to_store(None)).await };
        let _ = shadow.in_time(Box::pin(extending)).await;
    }

    /// Records the handler's outcome, in the time that's left, and reports what enforcing would have done. Only the
    /// first call does so.
    pub(super) async fn conclude(&mut self, verdict: Verdict) {
        self.wait_in_time().await;
        let Some(mut shadow) = self.shadow.take() else { return };
        let found = match std::mem::replace(&mut self.asking, Asking::Found(Found::Unknown(None))) {
            Asking::Found(found) => found,
            Asking::Waiting(_) => Found::Unknown(None),
        };
        let (would, cause) = match found {
            Found::Refused(kind) => (Would::Refuse(kind.as_str()), None),
            Found::Unknown(cause) => (Would::Unknown, cause),
            Found::Recorded(record) => (Would::Replay(is_same(&record, &verdict)), None),
            Found::Free(state, is_takeover) => shadow.record(state, is_takeover, verdict).await,
        };
        observe::shadow(Some(&shadow.id), &would, cause.as_ref());
    }
}

fn unlocked<T>(lock: &mut Mutex<T>) -> &mut T {
    lock.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Asks what enforcing would do. A panic in the store counts as the store's failure.
async fn asked(
    driver: Driver,
    key: StoredKey,
    fingerprint: Fingerprint,
    invocation: Invocation,
    way: Way,
) -> Found {
    let asking = ask(&driver, &key, fingerprint, &invocation, way);
    caught(asking).await.unwrap_or(Found::Unknown(None))
}

impl Shadow {
    /// Runs `work`, and stops it when the time that's left of [`MOST`] is over or the caller's answer is due. `None` if
    /// `work` was stopped or panicked.
    async fn in_time<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let clock = self.driver.clock();
        let begun = clock.now();
        let limits = limits::unextended(&self.driver.settings, begun, &self.invocation);
        let end = begun.saturating_add(self.left);
        let end = limits.answer_by.map_or(end, |answer_by| answer_by.min(end));
        let ended = watch(work, clock, &CutOff::at(Some(end)), None).await;
        self.left = self.left.saturating_sub(begun.until(clock.now()));
        match ended {
            Ended::Returned(value) => Some(value),
            Ended::Panicked(_) | Ended::CutOff | Ended::NotBegun => None,
        }
    }

    async fn record(
        &mut self,
        mut state: Box<State>,
        is_takeover: bool,
        verdict: Verdict,
    ) -> (Would, Option<StoreError>) {
        let (driver, key, compared) = (self.driver.clone(), self.key.clone(), verdict.clone());
        let requests = driver.to_store(None);
        let settling = Box::pin(driver.settle(&key, &mut state, verdict, &requests, false));
        let Some(ending) = self.in_time(settling).await else { return (Would::Unknown, None) };
        let would = match ending.end {
            End::Recorded if is_takeover => Would::TakeOver,
            End::Recorded => Would::Run,
            End::Superseded(record) => Would::Replay(is_same(&record, &compared)),
            End::Fenced(_) => Would::Refuse(ErrorKind::InProgress.as_str()),
            End::Unrecorded(Refusal::Mismatch) | End::NotCommitted(Refusal::Mismatch) => {
                Would::Refuse(ErrorKind::Mismatch.as_str())
            }
            End::Unrecorded(_) | End::NotCommitted(_) | End::Unresolved(_) => Would::Unknown,
        };
        (would, ending.store_error)
    }
}

async fn ask(
    driver: &Driver,
    key: &StoredKey,
    fingerprint: Fingerprint,
    invocation: &Invocation,
    way: Way,
) -> Found {
    // The lease isn't extended automatically. It lasts until the deadline, so that a long run isn't treated as stale.
    let limits = limits::unextended(&driver.settings, driver.now(), invocation);
    let Ok(owner) = driver.owner() else { return Found::Unknown(None) };
    let mut state = driver.machine(owner, fingerprint, invocation, limits);
    let event = match way {
        Way::Claimed => Event::Begin,
        Way::Optimistic { reads_first: true } => Event::Look,
        Way::Optimistic { reads_first: false } => return Found::Free(state, false),
    };
    let stopwatch = Stopwatch::start();
    let driven = driver.drive(key, &mut state, event, &driver.to_store(None)).await;
    observe::asked(stopwatch);
    let (opened, store_error) = driven.opened();
    let refusal = match opened {
        Ok(Opened::Claimed(held)) => return Found::Free(state, held.lock.mark.is_interrupted()),
        Ok(Opened::Open) => return Found::Free(state, false),
        Ok(Opened::Recorded(record)) => return Found::Recorded(record),
        Err(refusal) => refusal,
    };
    // Not `open`, whose error would hide the store's own.
    let refused = Refused::of(key, refusal, None, &state, driver.now());
    match refused.by {
        RefusedBy::Store | RefusedBy::StoreTooLate => Found::Unknown(store_error),
        RefusedBy::Rule | RefusedBy::Outcome => Found::Refused(refused.error.kind()),
    }
}

/// Whether the recorded outcome is the same as the handler's outcome now. `None` if that's unknown: one of them wasn't
/// kept, or the recorded one is encrypted.
fn is_same(record: &Record, verdict: &Verdict) -> Option<bool> {
    let (Outcome::Retained(recorded), is_failure) = outcome_of(record)? else { return None };
    match verdict {
        Verdict::Complete(response, _) => Some(!is_failure && recorded.is_of(response)?),
        Verdict::Fail(Some(failure)) => Some(is_failure && recorded.is_of(failure)?),
        Verdict::CompleteOmitted | Verdict::Fail(None) => None,
        Verdict::Release { .. } | Verdict::Unanswered { .. } => Some(false),
    }
}
