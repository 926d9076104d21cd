//! Checks the answers to deliveries: they must be true, and in time.

use lambda_idempotency::{
    Error, ErrorKind, RunError,
    store::{Outcome, State},
};
use sha2::{Digest as _, Sha256};

use super::{Audit, Book, Ended, Recorded, violate};
use crate::simulation::{
    config::{HARD_FLOOR, RESERVE, SETTLE_WITHIN, SKEW_MARGIN, Way},
    trouble::{Circumstance, Fault, Outage, Refusal, Trouble},
};

/// How late an answer may be, in ms, since timers count only whole milliseconds.
const A_LITTLE: u64 = 5;

impl Audit {
    /// Checks the answer to a delivery.
    pub fn answered(
        &self,
        at: u64,
        executor: u32,
        key: u64,
        payload: u64,
        result: &Result<String, RunError<Refusal>>,
    ) {
        let own_run = self.book().current.get(&executor).copied();
        self.book().figures.reached.count_answer(result, own_run.is_some());
        self.check_time(executor, at, own_run);
        if self.config.outage.is_some() {
            self.check_answered(own_run, result);
        }
        match result {
            Ok(value) => {
                self.ended(executor, at, Ended::Answered);
                self.check_value(executor, key, payload, value, own_run);
            }
            Err(RunError::Idempotency(error)) => {
                self.ended(executor, at, Ended::Refused);
                self.check_refusal(at, executor, key, error, own_run);
            }
            Err(_) => {
                self.ended(executor, at, Ended::Failed);
                if let Some(run) = own_run {
                    self.check_failed(run);
                }
            }
        }
    }

    fn check_value(&self, executor: u32, key: u64, payload: u64, value: &str, own_run: Option<usize>) {
        let mut book = self.book();
        let book = &mut *book;
        let of_this_operation = format!("of key {key} with payload {payload}");
        if value
            .trim_end()
            .split_once("of key")
            .is_none_or(|(_, rest)| format!("of key{rest}") != of_this_operation)
        {
            violate(
                book,
                "a replay belongs to the operation",
                format!("a delivery of key {key} with payload {payload} is answered {value:?}"),
            );
        }
        self.check_told(book, value);
        let is_own = own_run.is_some_and(|run| value.starts_with(&format!("run {run} ")));
        // The record stores the digest of the value's JSON.
        let sha256: [u8; 32] = Sha256::digest(format!("{value:?}")).into();
        let was_recorded = book.recorded.values().flatten().any(|one| one.sha256 == Some(sha256));
        if !is_own && !was_recorded {
            violate(
                book,
                "a replay was recorded",
                format!("executor {executor} answers {value:?}, which was never recorded"),
            );
        }
        book.figures.fenced += u64::from(own_run.is_some() && !is_own);
        book.figures.completed += u64::from(is_own);
        if self.config.outage.is_some() && is_own {
            check_completed(book, own_run);
        }
        let run = own_run.and_then(|run| book.runs.get(run));
        let had_time = run.is_some_and(|run| run.handler_ended.is_none_or(|ended| self.had_time(run, ended)));
        let is_recorded = own_run.is_some_and(|run| has_outcome_of(book, run, sha256));
        let is_unprotected = run.is_some_and(|run| run.is_unprotected);
        if is_own
            && !is_unprotected
            && self.settles_definitely()
            && self.clocks_agree()
            && had_time
            && !is_recorded
        {
            let what = format!("executor {executor} answers {value:?}, which isn't the recorded outcome");
            violate(book, "a fenced answer is the successor's", what);
        }
    }

    /// Whether the schedule has no trouble that may keep an answer from being recorded. Then an executor's own answer
    /// is always the recorded one.
    fn settles_definitely(&self) -> bool {
        !Trouble::UNRECORDING.into_iter().any(|fault| self.config.has(fault))
    }

    fn check_refusal(&self, at: u64, executor: u32, key: u64, error: &Error, own_run: Option<usize>) {
        let kind = error.kind();
        let mut book = self.book();
        let book = &mut *book;
        if self.config.outage.is_some() && own_run.is_none() {
            check_given_back(book, at, executor, key, error);
        }
        if kind == ErrorKind::Mismatch && !self.config.has(Circumstance::OtherPayload) {
            violate(
                book,
                "a mismatch is genuine",
                format!("key {key}: Mismatch, but there is only one payload"),
            );
        }
        if let Some(run) = own_run {
            self.check_denied(book, run, kind);
        }
        // A store without chunks rejects a transaction whose outcome is too large for one item.
        let is_too_large = self.config.has(Fault::Unstorable) && self.config.way != Way::Claims;
        let is_refused = self.config.outage == Some(Outage::Refuse);
        if kind == ErrorKind::Corrupt || kind == ErrorKind::Invalid && !is_too_large && !is_refused {
            violate(book, "records can be read", format!("key {key}: {kind:?}"));
        }
        // With `Fault::Late`, a claim may arrive after its executor gave up on it. The executor can't know about such
        // a claim.
        if kind == ErrorKind::InProgress && own_run.is_none() && !self.config.has(Fault::Late) {
            let delivery = book.deliveries.get(&executor).copied().unwrap_or_default();
            let Some(table) = book.table.clone() else { return };
            let own = table
                .claim_of(&format!("key {key}"))
                .filter(|(owner, _)| !book.releasing.contains(owner))
                .is_some_and(|(owner, _)| book.owners.get(&owner) == Some(&(executor, delivery)));
            if own {
                violate(
                    book,
                    "executors recognise their own claims",
                    format!("executor {executor} got InProgress because of its own claim of key {key}"),
                );
            }
        }
    }

    /// Checks a delivery in a campaign of outages. If its handler returned a result, the answer must be that result.
    fn check_answered(&self, own_run: Option<usize>, result: &Result<String, RunError<Refusal>>) {
        let mut book = self.book();
        let Some(run) = own_run.and_then(|run| book.runs.get(run)) else { return };
        let is_own = result.as_ref().is_ok_and(|value| value.starts_with(&format!("run {} ", run.number)));
        if run.handler_ended.is_some() && !is_own {
            let what = format!(
                "key {}: run {} returned a result, but the answer is {result:?}",
                run.key, run.number
            );
            violate(&mut book, "the answer is the operation's result", what);
        }
    }

    /// Checks that a delivery was answered as early as the library promises. If the handler ended too late for that,
    /// the answer must follow at once.
    fn check_time(&self, executor: u32, at: u64, own_run: Option<usize>) {
        let mut book = self.book();
        let book = &mut *book;
        if self.has_wrong_clocks() || book.frozen.contains(&executor) {
            return;
        }
        let deadline = book.deadlines.get(&executor).copied();
        let run = own_run.and_then(|run| book.runs.get(run));
        let is_unprotected = run.is_some_and(|run| run.is_unprotected);
        let (reserve, floor) = (RESERVE.as_millis() as u64, HARD_FLOOR.as_millis() as u64);
        let by = match (deadline, run.map(|run| run.handler_ended)) {
            (Some(deadline), None) => deadline - reserve,
            // A settlement must end by the deadline less the reserve. If at most the reserve is left until then,
            // the settlement's first call may last until the floor. So a result less than twice the reserve before
            // the deadline may be recorded inside the reserve.
            (Some(deadline), Some(Some(ended)))
                if self.config.outage.is_some() && ended + 2 * reserve + A_LITTLE < deadline =>
            {
                deadline - reserve
            }
            (Some(deadline), Some(Some(ended))) => ended.max(deadline - floor),
            // This platform lets a process run past its deadline, so the library must end the handler.
            (Some(deadline), Some(None)) if self.config.choices.lets_run && !is_unprotected => deadline,
            (None, Some(Some(ended))) if self.config.outage.is_some() => {
                ended + SETTLE_WITHIN.as_millis() as u64
            }
            _ => return,
        };
        if at > by + A_LITTLE {
            let what = format!("executor {executor} answers at {at}, but should answer by {by}");
            violate(book, "answers are in time", what);
        }
    }

    /// Checks a delivery that the platform ended at its deadline. The handler must have run until then, or
    /// else the library was too slow.
    pub(super) fn check_killed(&self, executor: u32, at: u64) {
        let mut book = self.book();
        let book = &mut *book;
        let run = book.current.get(&executor).and_then(|&run| book.runs.get(run));
        let is_handlers = run.is_some_and(|run| run.handler_ended.is_none_or(|ended| ended + A_LITTLE >= at));
        if is_handlers || self.has_wrong_clocks() || book.frozen.contains(&executor) {
            return;
        }
        let what =
            format!("executor {executor} is killed at its deadline, {at}, but its handler wasn't running");
        violate(book, "answers are in time", what);
    }
}

/// Checks an executor that answers with its own run's result: the record must be completed, with a response.
fn check_completed(book: &mut Book, run: Option<usize>) {
    let (Some(run), Some(table)) = (run.and_then(|run| book.runs.get(run)), &book.table) else { return };
    let record = table.record(&run.stored);
    let is_completed =
        record.as_ref().is_some_and(|record| matches!(record.state, State::Completed(Outcome::Retained(_))));
    if !is_completed {
        let what = format!("key {}: run {} is answered, but the record is {record:?}", run.key, run.number);
        violate(book, "an answered operation is completed", what);
    }
}

/// Checks a delivery whose handler didn't run, if the answer is `Unavailable`. The delivery must leave no claim
/// behind, or report when the claim's lease ends.
fn check_given_back(book: &mut Book, at: u64, executor: u32, key: u64, error: &Error) {
    if error.kind() != ErrorKind::Unavailable {
        return;
    }
    let delivery = book.deliveries.get(&executor).copied().unwrap_or_default();
    let Some(table) = book.table.clone() else { return };
    let Some((owner, lease_until)) = table.claim_of(&format!("key {key}")) else { return };
    // `retry_after` comes from the executor's own clock, so the check allows for the skew margin.
    let told = error.retry_after().map_or(0, |wait| wait.as_millis() as u64) + SKEW_MARGIN as u64;
    if book.owners.get(&owner) == Some(&(executor, delivery)) && at + told < lease_until {
        let what = format!(
            "executor {executor} reports `retry_after` {:?} for key {key}, but its claim lasts {} ms",
            error.retry_after(),
            lease_until - at
        );
        violate(book, "a refused claim is released", what);
    }
}

/// Whether this run's outcome was recorded, under the run's own generation or a later one. `sha256` is the digest of
/// the run's answer. An outcome that was recorded without its response has no digest to compare, and counts too.
fn has_outcome_of(book: &Book, run: usize, sha256: [u8; 32]) -> bool {
    let Some(run) = book.runs.get(run) else { return false };
    let is_of_run = |one: &Recorded| {
        one.generation >= run.generation && one.sha256.is_none_or(|recorded| recorded == sha256)
    };
    book.recorded.get(&run.stored).is_some_and(|all| all.iter().any(is_of_run))
}
