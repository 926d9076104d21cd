//! Checks effects that commit in one transaction with their outcome. An effect must be applied together with its
//! outcome, and at most once until the outcome expires. The answers about effects must be true.

use std::collections::{BTreeSet, HashMap};

use lambda_idempotency::{
    ErrorKind, StoredKey,
    store::{Outcome, Place, Record, State},
    time::Timestamp,
};

use super::{Audit, Book, violate};
use crate::simulation::table::Effects;

/// The effects applied in transactions.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// For each key, the run of each effect, and when its outcome expires.
    made: HashMap<StoredKey, Vec<(usize, u64)>>,
    /// Runs whose effect was reported as not applied.
    denied: BTreeSet<usize>,
}

impl Ledger {
    fn has(&self, run: usize) -> bool {
        self.made.values().flatten().any(|(made, _)| *made == run)
    }
}

impl Audit {
    /// Notes that a run has staged its effect for the transaction.
    pub fn staged(&self, at: u64, run: usize) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (at, run, 2), || format!("{at} run {run} stages its effect"));
        if let Some(run) = book.runs.get_mut(run) {
            run.has_staged = true;
        }
    }

    /// Notes that an applied transaction arrived again, and that the store repeats its first answer.
    pub fn repeated(&self, at: u64, key: &StoredKey) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (at, key, 3), || format!("{at} {key}: an applied transaction is sent again"));
        book.figures.repeats_known += 1;
    }

    /// Notes that a condition on the handler's own writes failed.
    pub fn declined(&self, at: u64, key: &StoredKey) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (at, key, 4), || format!("{at} {key}: declined"));
        book.figures.declined += 1;
    }

    /// Checks effects that were applied although the record wasn't written, which only a broken store does.
    /// `record` is the current record.
    pub fn committed(&self, at: u64, key: &StoredKey, effects: &Effects, record: Option<&Record>) {
        let mut book = self.book();
        self.check_effects(&mut book, at, key, effects, record);
    }

    /// Checks effects that were applied together with `record`.
    pub(super) fn check_effects(
        &self,
        book: &mut Book,
        at: u64,
        key: &StoredKey,
        effects: &Effects,
        record: Option<&Record>,
    ) {
        for &run in &effects.0 {
            self.note(book, (at, key, run), || format!("{at} {key}: the effect of run {run} is applied"));
            book.figures.committed += 1;
            let is_of_key = book.runs.get(run).is_some_and(|run| run.stored == *key);
            let goes_with_it = record.and_then(run_of).is_none_or(|of| of == run)
                && record.is_some_and(|record| matches!(record.state, State::Completed(_)));
            if !is_of_key || !goes_with_it {
                let what = format!("{key}: the effect of run {run} was applied at {at} without its outcome");
                violate(book, "effects go with their outcome", what);
            }
            if book.ledger.denied.contains(&run) {
                let what = format!(
                    "{key}: the effect of run {run} was applied at {at}, but was reported as not applied"
                );
                violate(book, "denied effects never happen", what);
            }
            let expires_at = record.and_then(|record| record.expires_at).map_or(0, Timestamp::as_millis);
            let made = book.ledger.made.entry(key.clone()).or_default();
            let counts = made.iter().find(|(_, until)| at <= *until).map(|(earlier, _)| *earlier);
            made.push((run, expires_at));
            if let Some(earlier) = counts.filter(|_| self.clocks_agree()) {
                let what = format!(
                    "{key}: the effect of run {run} at {at} repeats the effect of run {earlier}, whose record is live"
                );
                violate(book, "effects are applied once", what);
            }
        }
    }

    /// Checks a record that was written without any effect: it must not be the outcome of a run that staged an
    /// effect.
    pub(super) fn check_no_effect(&self, book: &mut Book, key: &StoredKey, record: &Record) {
        let State::Completed(_) = record.state else { return };
        let Some(run) = run_of(record) else { return };
        let has_staged = book.runs.get(run).is_some_and(|run| run.has_staged);
        if has_staged && !book.ledger.has(run) {
            let what = format!("{key}: the outcome of run {run} was stored without its effect");
            violate(book, "effects go with their outcome", what);
        }
    }

    /// Checks that the answer `value` tells the truth about the effect of the run that it names.
    pub(super) fn check_told(&self, book: &mut Book, value: &str) {
        let Some((run, rest)) = numbered(value) else { return };
        if !book.runs.get(run).is_some_and(|run| run.has_staged) {
            return;
        }
        let is_made = book.ledger.has(run);
        if rest.starts_with("of key") {
            if !is_made {
                violate(
                    book,
                    "answered effects have happened",
                    format!("{value:?} is answered, but the effect of run {run} wasn't applied"),
                );
            }
            return;
        }
        // The transaction was declined, and the handler gave this answer instead.
        deny(book, run, &format!("{value:?}"));
    }

    /// Checks a delivery whose handler ran, and which was answered with an error of this kind. If this kind means that
    /// the handler's effect wasn't applied, the effect must never be applied.
    pub(super) fn check_denied(&self, book: &mut Book, run: usize, kind: ErrorKind) {
        let says_so = matches!(
            kind,
            ErrorKind::Unavailable
                | ErrorKind::Declined
                | ErrorKind::Mismatch
                | ErrorKind::OutcomeUnknown
                | ErrorKind::Invalid
        );
        if !says_so || !book.runs.get(run).is_some_and(|run| run.has_staged) {
            return;
        }
        deny(book, run, &format!("{kind:?}"));
    }

    /// Checks a delivery that was answered with its handler's own error. After that answer, the handler's effect must
    /// never be applied.
    pub(super) fn check_failed(&self, run: usize) {
        let mut book = self.book();
        if book.runs.get(run).is_some_and(|run| run.has_staged) {
            deny(&mut book, run, "the handler's error");
        }
    }
}

fn deny(book: &mut Book, run: usize, answer: &str) {
    book.ledger.denied.insert(run);
    if book.ledger.has(run) {
        let what = format!("run {run} was answered {answer}, but its effect was applied");
        violate(book, "denied effects never happen", what);
    }
}

/// The run whose outcome the record stores, as the record's response names it. `None` if the response says that the
/// run's transaction was declined, or if the response isn't in the record itself.
fn run_of(record: &Record) -> Option<usize> {
    let State::Completed(Outcome::Retained(response)) = &record.state else { return None };
    let Place::Inline(bytes) = &response.place else { return None };
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix('"')?;
    let (run, rest) = numbered(text)?;
    rest.starts_with("of key").then_some(run)
}

/// The number in `run 7 of key …`, and the text that follows it.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.strip_prefix("run ")?.split_once(' ')?;
    Some((number.parse().ok()?, rest))
}
