//! Drives the machine: performs its actions, and feeds the answers back.

use std::{any::Any, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    claim::{Claim, Replay, Settled, Turned, outcome_of},
    engine::{Begun, Engine, Verdict, bounded::bounded},
    error::{Error, ErrorKind},
    fingerprint::Fingerprint,
    future::BoxFuture,
    invocation::Invocation,
    key::StoredKey,
    observe,
    outcome::{Outcome, Place, StoredResponse},
    protocol::{Action, End, Event, Fault, Input, Intent, Refusal, State, step},
    record::{Lock, Owner, Record},
    store::{CommitOutcome, OwnWrites, StoreError, StoreErrorKind, Write, WriteOutcome},
    time::{Stopwatch, Timestamp},
};

/// The first pause after a transaction conflict; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// A process that reaches a call this long after the call's limit was frozen, and its deadline has passed.
const FROZEN: Duration = Duration::from_secs(1);
/// The limit of each call by which such a process records its outcome, or reads what happened to it. Lambda
/// no longer waits for its answer. But a recorded effect isn't repeated, and the log tells the truth.
const AFTER_A_FREEZE: Duration = Duration::from_millis(500);
/// The wait to suggest to a caller if it's unknown how long the other claim's lease lasts.
pub(super) const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// Why a claim failed.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) by: RefusedBy,
}

/// The source of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedBy {
    /// A rule.
    Rule,
    /// The store, which failed before the claim.
    Store,
    /// An outcome that exists and couldn't be read.
    Outcome,
}

/// The result of driving the machine.
pub(super) struct Driven {
    pub(super) state: Box<State>,
    /// The machine's last action.
    pub(super) action: Action,
    /// The store's last error on the way.
    pub(super) store_error: Option<StoreError>,
    /// The last answered write, if it was applied.
    applied: Option<Write>,
    /// The store's details about a failed condition of the handler's writes.
    declined: Option<Box<dyn Any + Send + Sync>>,
}

impl Refused {
    pub(super) fn of(refusal: Refusal, error: Error) -> Self {
        let by = match refusal {
            Refusal::Unavailable | Refusal::Abandoned(_) | Refusal::Rejected => RefusedBy::Store,
            _ => RefusedBy::Rule,
        };
        Self { error, by }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, by: RefusedBy::Rule }
    }
}

impl Engine {
    /// Claims `key`, or finds its outcome, in one attempt.
    pub(super) async fn ask(
        self: &Arc<Self>,
        key: &StoredKey,
        fingerprint: Fingerprint,
        invocation: &Invocation,
    ) -> Result<Begun, Refused> {
        let (stopwatch, now) = (Stopwatch::start(), self.clock.now());
        if let Some(answer) = self.recall(key, fingerprint, now) {
            observe::asked(stopwatch);
            return answer;
        }
        let ticket = self.ticket(invocation);
        let timing = self.timing(now, invocation);
        let state = self.plan((self.owners)()?, fingerprint, invocation, timing);
        let Driven { state, action, store_error, applied, .. } =
            self.drive(key, state, Event::Begin, None).await;
        observe::asked(stopwatch);
        let refusal = match action {
            Action::Claimed(held) => {
                observe::claimed(key, &held);
                let lock = applied.as_ref().filter(|_| ticket.is_some()).and_then(Write::lock);
                return Ok(Begun::Claimed(Claim::new(
                    Arc::clone(self),
                    key.clone(),
                    state,
                    held,
                    timing,
                    lock.cloned().map(Box::new),
                )));
            }
            Action::Replay(record) => {
                let refused = |error| Refused { error, by: RefusedBy::Outcome };
                let replay = self.replay(key, &record, timing.limits.answer_by).await.map_err(refused)?;
                self.keep_copy(ticket, key, &record, &replay.response);
                return Ok(Begun::Replay(replay));
            }
            Action::Refused(refusal) => refusal,
            _ => Refusal::Unavailable,
        };
        Err(Refused::of(refusal, refusal_error(key, refusal, store_error, self.clock.now())))
    }

    /// Settles the claim that `state` holds. If a copy of the outcome may be cached, `copied` holds the
    /// response, and the claim's record if there's a claim.
    pub(crate) async fn settle(
        &self,
        key: &StoredKey,
        state: Box<State>,
        intent: Intent,
        copied: Option<(Option<Box<Lock>>, Bytes)>,
    ) -> Settled {
        match self.settle_with(key, state, intent, None, copied).await {
            Ok(settled) => settled,
            // Only a transaction can be declined.
            Err(Turned { store_error, .. }) => {
                Settled { end: End::Unrecorded(Refusal::Unavailable), store_error }
            }
        }
    }

    /// Settles together with the handler's own writes, or settles an optimistic run.
    ///
    /// # Errors
    ///
    /// The unchanged machine, if the transaction was definitely not applied.
    pub(crate) async fn settle_with(
        &self,
        key: &StoredKey,
        state: Box<State>,
        intent: Intent,
        writes: Option<&OwnWrites>,
        copied: Option<(Option<Box<Lock>>, Bytes)>,
    ) -> Result<Settled, Turned<Box<State>>> {
        let ticket = copied.as_ref().and_then(|_| self.settlement_ticket());
        let stopwatch = Stopwatch::start();
        let Driven { state, action, store_error, applied, declined } =
            self.drive(key, state, Event::Settle(intent), writes).await;
        observe::settling_ended(stopwatch);
        let end = match action {
            Action::Settled(end) => end,
            Action::Declined(why) => {
                return Err(Turned { right: state, why, details: declined, store_error });
            }
            _ => End::Unrecorded(Refusal::Unavailable),
        };
        // Caches the record that's now stored: the lock, as the store's contract says that the write has
        // changed it. If anything came in between, such as a successor, it's another record, and nothing is
        // cached.
        if matches!(end, End::Recorded)
            && let (Some((lock, response)), Some(settled)) = (copied, applied)
            && let Some(record) = left_by(settled, lock)
        {
            self.keep_copy(ticket, key, &record, &response);
        }
        Ok(Settled { end, store_error })
    }

    /// Performs actions until the machine has an answer. `writes` are the handler's own, for a transaction.
    pub(super) async fn drive(
        &self,
        key: &StoredKey,
        mut state: Box<State>,
        mut event: Event,
        writes: Option<&OwnWrites>,
    ) -> Driven {
        let (mut store_error, mut applied, mut declined) = (None, None, None);
        let is_settling = matches!(event, Event::Settle(_));
        loop {
            let now = self.clock.now();
            let (next, action) = step(*state, Input { now, event });
            *state = next;
            let until = match state.call_until(now) {
                Some(until) if is_settling && until.saturating_add(FROZEN) < now => {
                    Some(now.saturating_add(AFTER_A_FREEZE))
                }
                until => until,
            };
            event = match action {
                Action::Apply(write) => match self.in_time(now, until, self.store.apply(key, &write)).await {
                    Ok(written) => {
                        applied = (written == WriteOutcome::Applied).then_some(write);
                        Event::Answered(written)
                    }
                    Err(error) => failed(error, &mut store_error),
                },
                Action::Commit { write, submission } => {
                    match self
                        .in_time(now, until, Box::pin(self.commit(key, &write, writes, submission)))
                        .await
                    {
                        Ok(CommitOutcome::Answered(written)) => {
                            applied = (written == WriteOutcome::Applied).then_some(write);
                            Event::Answered(written)
                        }
                        Ok(CommitOutcome::Declined(details)) => {
                            declined = Some(details);
                            Event::Declined
                        }
                        Err(error) => failed(error, &mut store_error),
                    }
                }
                Action::Read => match self.in_time(now, until, self.store.read(key)).await {
                    Ok(record) => Event::Found(record),
                    Err(error) => failed(error, &mut store_error),
                },
                Action::Pause(nth) => {
                    let pause = pause(nth, state.plan().owner);
                    self.clock.sleep(state.pause_for(pause, now)).await;
                    Event::Resumed
                }
                action => return Driven { state, action, store_error, applied, declined },
            };
        }
    }

    /// Awaits `call` until the time `until`; after that, the error is ambiguous.
    pub(crate) async fn in_time<T>(
        &self,
        now: Timestamp,
        until: Option<Timestamp>,
        call: BoxFuture<'_, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        bounded(&*self.clock, now, until, call).await
    }

    /// Sends one submission of a transaction.
    async fn commit(
        &self,
        key: &StoredKey,
        write: &Write,
        writes: Option<&OwnWrites>,
        submission: u32,
    ) -> Result<CommitOutcome, StoreError> {
        let rejected = |why: &'static str| Err(StoreError::new(StoreErrorKind::Rejected, why));
        let Some(transactions) = self.store.transactions() else {
            return rejected("this store makes no transactions with writes of a handler's own");
        };
        let (Some(writes), Some((owner, generation))) = (writes, write.settled_as()) else {
            return rejected("there is nothing to put into the transaction");
        };
        let token = key.derive(&format!("transaction {submission} of {owner} in generation {generation}"));
        transactions.commit(key, write, writes, &token).await
    }

    /// Returns the outcome that `record` holds, inline or in chunks, by the time `until`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotRetained`], [`ErrorKind::Corrupt`], or [`ErrorKind::Unavailable`] if a chunk couldn't
    /// be read.
    pub(crate) async fn replay(
        &self,
        key: &StoredKey,
        record: &Record,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        let replay = self.outcome_in(key, record, until).await?;
        observe::replayed(key, record);
        Ok(replay)
    }

    /// Returns the outcome like [`replay`](Self::replay), but without reporting a replay: for an operator who
    /// looks.
    pub(super) async fn outcome_in(
        &self,
        key: &StoredKey,
        record: &Record,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        let corrupt =
            |what: &str| Error::new(ErrorKind::Corrupt, format!("{key}: {what}. Look at the record"));
        let (response, is_failure) = match outcome_of(record) {
            Some((Outcome::Retained(response), is_failure)) => (response, is_failure),
            Some((Outcome::Omitted, true)) => return Err(Error::failure_not_retained(key)),
            Some((Outcome::Omitted, false)) => {
                return Err(Error::new(
                    ErrorKind::NotRetained,
                    format!("{key}: the operation is done, but its response was not kept"),
                ));
            }
            None => return Err(corrupt("the record has no outcome")),
        };
        let kept = match (&response.place, self.store.chunks()) {
            (Place::Inline(kept), _) => kept.clone(),
            (Place::Chunks(_), None) => {
                return Err(corrupt("the response is split, which this store cannot read"));
            }
            (Place::Chunks(count), Some(parts)) => self
                .in_time(
                    self.clock.now(),
                    until,
                    parts.read_chunks(key, record.owner, *count, response.length),
                )
                .await
                .map_err(|error| store_error(key, "the response could not be read", error))?,
        };
        let response = response
            .decode(&kept)
            .map_err(|damage| corrupt("the stored response is damaged").with_source(damage))?;
        Ok(Replay { is_failure, response, generation: record.generation })
    }

    /// Returns the outcome of a claim that took over from this delivery's claim, whose handler has run.
    ///
    /// # Errors
    ///
    /// As [`replay`](Self::replay), but never [`ErrorKind::Unavailable`], which would mean that nothing ran.
    /// A retry is answered from the record, so a response that can't be read right now becomes `unreadable`.
    pub(crate) async fn successors_outcome(
        &self,
        key: &StoredKey,
        record: &Record,
        unreadable: ErrorKind,
        until: Option<Timestamp>,
    ) -> Result<Replay, Error> {
        self.replay(key, record, until).await.map_err(|error| match error.kind() {
            ErrorKind::Unavailable => Error::new(
                unreadable,
                format!(
                    "{key}: this run was taken over, and its successor's response cannot be read just now"
                ),
            )
            .with_retry_after(DEFAULT_RETRY)
            .with_source(error),
            _ => error,
        })
    }

    /// Prepares a settlement: encodes the response, and writes it in chunks if it's too large for the record,
    /// by the time `until`.
    pub(crate) async fn intent(
        &self,
        key: &StoredKey,
        owner: Owner,
        verdict: Verdict,
        until: Timestamp,
    ) -> Intent {
        match verdict {
            Verdict::Complete(response) => Intent::Complete(self.outcome(key, owner, response, until).await),
            Verdict::Fail(Some(failure)) => Intent::Fail(self.outcome(key, owner, failure, until).await),
            Verdict::Release => Intent::Release { interrupted: false },
            Verdict::Interrupted => Intent::Release { interrupted: true },
            Verdict::CompleteOmitted => {
                observe::not_retained(key, None, None);
                Intent::Complete(Outcome::Omitted)
            }
            Verdict::Fail(None) => {
                observe::not_retained(key, None, None);
                Intent::Fail(Outcome::Omitted)
            }
        }
    }

    async fn outcome(&self, key: &StoredKey, owner: Owner, response: Bytes, until: Timestamp) -> Outcome {
        let length = response.len();
        if length > self.settings.max_response {
            observe::not_retained(key, Some(length), None);
            return Outcome::Omitted;
        }
        match self.keep(key, owner, response, Some(until)).await {
            Ok(stored) => Outcome::Retained(stored),
            Err(error) => {
                observe::not_retained(key, Some(length), Some(&error));
                Outcome::Omitted
            }
        }
    }

    /// Prepares `response` for the record. If it's too large, its chunks are written under `owner`. While the
    /// store fails, this is retried until the time `until`; without such a time, it's tried once.
    pub(super) async fn keep(
        &self,
        key: &StoredKey,
        owner: Owner,
        response: Bytes,
        until: Option<Timestamp>,
    ) -> Result<StoredResponse, StoreError> {
        let stored = StoredResponse::new(response);
        let Place::Inline(kept) = &stored.place else { return Ok(stored) };
        let Some(parts) = self.store.chunks().filter(|parts| kept.len() > parts.inline_limit()) else {
            return Ok(stored);
        };
        let expires_at = self.clock.now().saturating_add(self.settings.retention).rounded_up_to_second();
        let mut nth = 0;
        loop {
            let writing = parts.write_chunks(key, owner, kept, expires_at);
            let error = match self.in_time(self.clock.now(), until, writing).await {
                Ok(count) => return Ok(stored.into_chunks(count)),
                Err(error) => error,
            };
            let pause = pause(nth, owner);
            nth = nth.saturating_add(1);
            let is_final = matches!(error.kind(), StoreErrorKind::Unstorable | StoreErrorKind::Corrupt);
            let is_late = |until| self.clock.now().saturating_add(pause) >= until;
            if is_final || until.is_none_or(is_late) {
                return Err(error);
            }
            self.clock.sleep(pause).await;
        }
    }
}

/// Returns the record after `write` was applied to the claim's record, if there was one.
fn left_by(write: Write, lock: Option<Box<Lock>>) -> Option<Record> {
    match write {
        Write::Conclude { record, .. } => Some(record),
        write => write.apply_to(Some(&(*lock?).into())),
    }
}

fn failed(error: StoreError, last_error: &mut Option<StoreError>) -> Event {
    let fault = Fault { kind: error.kind(), maybe_applied: error.is_maybe_applied() };
    *last_error = Some(error);
    Event::Failed(fault)
}

/// Twice as long each time, and somewhere in the upper half of that. The owner's random bits spread the
/// contenders without another source of randomness.
fn pause(nth: u8, owner: Owner) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << nth.min(6));
    spread(whole, owner.as_bytes()[usize::from(nth) % 16])
}

/// Somewhere in the upper half of `whole`.
pub(super) fn spread(whole: Duration, bits: u8) -> Duration {
    whole / 2 + whole / 2 * u32::from(bits) / 255
}

pub(super) fn store_error(key: &StoredKey, what: &str, error: StoreError) -> Error {
    let kind = match error.kind() {
        StoreErrorKind::Corrupt => ErrorKind::Corrupt,
        StoreErrorKind::Rejected | StoreErrorKind::Unstorable => ErrorKind::Invalid,
        StoreErrorKind::Unavailable | StoreErrorKind::Conflict => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{key}: {what}")).with_source(error)
}

/// Returns the error for a claim that failed or had to be released.
pub(crate) fn refusal_error(
    key: &StoredKey,
    refusal: Refusal,
    cause: Option<StoreError>,
    now: Timestamp,
) -> Error {
    let error = match refusal {
        Refusal::Mismatch => Error::new(
            ErrorKind::Mismatch,
            format!("{key}: the idempotency key was used with another payload"),
        ),
        Refusal::InProgress(until) => in_progress(key, until, now),
        Refusal::OutcomeUnknown => Error::new(
            ErrorKind::OutcomeUnknown,
            format!(
                "{key}: an earlier run ended without an answer, and at most one may run; settle it by hand, with \
                 `idempotency inspect`"
            ),
        ),
        Refusal::NoTimeLeft => Error::new(
            ErrorKind::Unavailable,
            format!("{key}: no time is left before the invocation's deadline; nothing ran"),
        ),
        Refusal::Abandoned(until) => Error::new(
            ErrorKind::Unavailable,
            format!("{key}: the store didn't answer the claim, which may hold the key; nothing ran"),
        )
        .with_retry_after(now.until(until)),
        Refusal::Unavailable => {
            Error::new(ErrorKind::Unavailable, format!("{key}: the store could not be asked; nothing ran"))
                .with_retry_after(DEFAULT_RETRY)
        }
        Refusal::Rejected => {
            let why = cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
            return Error::new(
                ErrorKind::Invalid,
                format!("{key}: the store refuses the request{why}; nothing ran"),
            );
        }
        Refusal::Corrupt => Error::new(
            ErrorKind::Corrupt,
            format!("{key}: the stored record cannot be read; nothing ran. Look at the record"),
        ),
    };
    match cause {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}

/// Returns the error for a key that another claim holds.
pub(crate) fn in_progress(key: &StoredKey, until: Option<Timestamp>, now: Timestamp) -> Error {
    let retry_after = until.map_or(DEFAULT_RETRY, |until| now.until(until));
    Error::new(ErrorKind::InProgress, format!("{key}: another delivery of this operation is still running"))
        .with_retry_after(retry_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_twice_as_long_spread_by_the_owner_and_bounded() {
        let micros = |nth, byte| pause(nth, Owner::from_bytes([byte; 16])).as_micros();
        assert_eq!((micros(0, 0), micros(0, 255)), (12_500, 25_000));
        assert_eq!((micros(1, 0), micros(1, 255)), (25_000, 50_000));
        assert_eq!((micros(6, 255), micros(200, 255)), (1_600_000, 1_600_000));
        let mut bytes = [0; 16];
        bytes[1] = 255;
        let spread = |nth| pause(nth, Owner::from_bytes(bytes)).as_millis();
        assert_eq!((spread(1), spread(2), spread(17)), (50, 50, 1600), "a byte a pause");
    }
}
