//! Classifies repeated effects: effects of new operations, repetitions with a known reason, and violations.
//!
//! The classification uses only facts from outside the library: which effects happened when, what the store
//! holds, the time and content of each answer, and which faults were injected when.

use super::{Audit, Book, Ended, Run, violate};
use crate::simulation::{
    config::{RESERVE, SETTLE_WITHIN, SKEW_MARGIN, Way},
    trouble::Circumstance,
};

const AT_MOST_ONCE: &str = "at most once";
/// A call that takes longer than this, in ms, counts as a network fault, even if it's answered.
const SLOW_CALL: u64 = 50;
/// The time that a retry needs, in ms: for a read and a write over the simulated network, and a pause. If a fault
/// leaves less time than this, the outcome may stay unrecorded.
const ROOM_FOR_A_REQUEST: u64 = 60;
/// The most by which a clock that jumps or stops can mismeasure a span of time, in ms.
const WRONG_CLOCKS: u64 = 2 * SKEW_MARGIN as u64;

impl Audit {
    /// Notes that a run's handler had its effect. If an earlier run of the operation had an effect too, there
    /// must be a reason.
    pub fn effect(&self, at: u64, run: usize) {
        let mut book = self.book();
        let book = &mut *book;
        self.note(book, (at, run), || format!("{at} run {run} has its effect"));
        let Some(current) = book.runs.get(run) else { return };
        let (stored, generation) = (current.stored.clone(), current.generation);
        let granted = book.grants.get(&(stored.clone(), generation.get())).copied().unwrap_or(at);
        let earlier: Vec<&Run> = book
            .runs
            .iter()
            .filter(|earlier| {
                // Runs without a claim, which have generation 0, are left out. One claim allows one effect, so a run
                // under the same generation also counts as an earlier run.
                earlier.stored == stored
                    && earlier.had_effect_at.is_some()
                    && generation.get() != 0
                    && earlier.generation <= generation
            })
            .collect();
        let repeated: Vec<&Run> =
            earlier.iter().copied().filter(|earlier| !self.has_expired(book, earlier, granted)).collect();
        let unexplained = repeated.iter().find_map(|earlier| {
            let (rule, why_not) = self.unexplained(book, earlier, granted)?;
            let number = earlier.number;
            Some((
                rule,
                format!("key {}: run {run} repeats the effect of run {number}: {why_not}", earlier.key),
            ))
        });
        let (is_repeat, is_new) = (!repeated.is_empty(), repeated.is_empty() && !earlier.is_empty());
        book.figures.repeated += u64::from(is_repeat);
        book.figures.expired += u64::from(is_new);
        book.runs[run].had_effect_at = Some(at);
        if let Some((rule, what)) = unexplained {
            violate(book, rule, what);
        }
    }

    /// Whether a claim that was granted at `granted` belongs to a new operation, because the retention of the
    /// earlier run's outcome is over. Under at-most-once, an operation without a recorded outcome never ends.
    fn has_expired(&self, book: &Book, earlier: &Run, granted: u64) -> bool {
        if earlier.is_at_most_once {
            let recorded = book.recorded.get(&earlier.stored).into_iter().flatten();
            return recorded
                .filter(|one| one.generation == earlier.generation)
                .any(|one| one.expires_at < granted);
        }
        let settled = earlier.handler_ended.or(earlier.had_effect_at).unwrap_or_default();
        granted + SKEW_MARGIN as u64 / 2 >= settled + 1000 * self.config.choices.retention
    }

    /// The rule that an effect breaks by repeating the effect of `earlier`, and why. `None` if the repetition
    /// has a known reason.
    fn unexplained(&self, book: &Book, earlier: &Run, granted: u64) -> Option<(&'static str, &'static str)> {
        const RULE: &str = "a repeated effect has a reason";
        if !self.clocks_agree() {
            return None;
        }
        // An effect may repeat after an unprotected run, and after an operator settled a claim whose handler was
        // still running.
        let overruled = (earlier.stored.clone(), earlier.generation.get());
        if earlier.is_unprotected || book.overruled.contains(&overruled) {
            return None;
        }
        if earlier.is_at_most_once {
            return Some((AT_MOST_ONCE, "at most one run is allowed"));
        }
        if self.config.outage.is_some() {
            return Some((
                RULE,
                "each outage was shorter than the time left, and there were no other faults",
            ));
        }
        let recorded = book.recorded.get(&earlier.stored).into_iter().flatten();
        if recorded.into_iter().any(|one| one.generation == earlier.generation && granted <= one.expires_at) {
            return Some((RULE, "the earlier run's outcome was recorded, and hadn't expired"));
        }
        let was_released = book.released.contains(&(earlier.stored.clone(), earlier.generation.get()));
        if !was_released && granted <= earlier.lease_until {
            return Some((RULE, "the earlier run's lease hadn't expired"));
        }
        let Some(handler_ended) = earlier.handler_ended else {
            return match earlier.ended {
                // The run crashed, was dropped or cut off, panicked, or returned an error.
                Some(_) => None,
                None if earlier.was_frozen || earlier.has_failed || earlier.has_panicked => None,
                None => Some((RULE, "the earlier run outlived its lease without being frozen")),
            };
        };
        if matches!(earlier.ended, Some((_, Ended::Crashed | Ended::Dropped))) {
            return None;
        }
        self.had_time(earlier, handler_ended)
            .then_some((RULE, "after the last fault, the earlier run had time to record its outcome"))
    }

    /// Whether a run whose handler returned at `handler_ended` had time to record its outcome after the last
    /// fault.
    pub(super) fn had_time(&self, run: &Run, handler_ended: u64) -> bool {
        let trouble = run.trouble_until.max(handler_ended);
        let clocks = if self.has_wrong_clocks() { WRONG_CLOCKS } else { 0 };
        trouble + ROOM_FOR_A_REQUEST + clocks < run.settle_by(handler_ended)
    }

    /// Whether clocks jump, stop or are off by more than the skew margin, so that a deadline may be earlier or later
    /// than it should be.
    pub(super) fn has_wrong_clocks(&self) -> bool {
        self.config.has(Circumstance::SkewBeyond)
            || self.config.has(Circumstance::Jump)
            || self.config.has(Circumstance::Stand)
    }

    /// The time, in ms, that the delivery of a run has left at `at` to record its outcome.
    pub fn time_left(&self, run: usize, at: u64) -> u64 {
        self.book().runs.get(run).map_or(0, |run| run.settle_by(at).saturating_sub(at))
    }

    /// Notes that a call to the store ended: it was answered, it failed, or its caller gave up.
    pub fn call_ended(&self, executor: u32, began: u64, ended: u64, is_answered: bool) {
        if is_answered && ended - began <= SLOW_CALL {
            return;
        }
        let mut book = self.book();
        let book = &mut *book;
        if !is_answered {
            book.failed.insert(executor);
        }
        if let Some(run) = book.current.get(&executor).and_then(|&run| book.runs.get_mut(run)) {
            run.trouble_until = run.trouble_until.max(ended);
        }
    }

    /// Checks a run that begins. No run may begin after an at-most-once run of the same operation. Under at-least-once,
    /// the handler must learn of it if an earlier attempt of its operation may have had an effect.
    pub(super) fn check_began(&self, book: &mut Book, run: usize, is_takeover: bool) {
        self.check_at_most_once(book, run);
        if book.runs.get(run).is_some_and(|current| current.is_at_most_once) {
            return;
        }
        // With transactions, the key may have been released because a transaction was declined. With several
        // payloads, the earlier run may belong to another operation.
        if is_takeover || self.config.way != Way::Claims || self.config.has(Circumstance::OtherPayload) {
            return;
        }
        let Some(current) = book.runs.get(run) else { return };
        let recorded = book.recorded.get(&current.stored).into_iter().flatten();
        let last_outcome = recorded.map(|one| one.generation).max();
        // An operator who releases the key decides that no attempt so far had an effect.
        let is_overruled = |earlier: &Run| {
            let decisions = book.overruled.iter().filter(|(key, _)| *key == earlier.stored);
            decisions.into_iter().any(|(_, generation)| *generation >= earlier.generation.get())
        };
        let interrupted = book.runs.iter().find(|earlier| {
            earlier.stored == current.stored
                && earlier.generation < current.generation
                && last_outcome.is_none_or(|outcome| outcome < earlier.generation)
                && !earlier.has_failed
                && !earlier.is_unprotected
                && !is_overruled(earlier)
        });
        if let Some(earlier) = interrupted {
            let what = format!(
                "key {}: the handler of run {run} didn't learn that run {} was interrupted",
                current.key, earlier.number
            );
            violate(book, "an interrupted attempt is reported", what);
        }
    }
    fn check_at_most_once(&self, book: &mut Book, run: usize) {
        let Some(current) = book.runs.get(run).filter(|_| self.clocks_agree()) else { return };
        let granted = book.grants.get(&(current.stored.clone(), current.generation.get())).copied();
        let earlier = book.runs.iter().find(|earlier| {
            earlier.is_at_most_once
                && earlier.stored == current.stored
                && earlier.generation < current.generation
                && !self.has_expired(book, earlier, granted.unwrap_or_default())
                && !book.overruled.contains(&(earlier.stored.clone(), earlier.generation.get()))
        });
        if let Some(earlier) = earlier {
            let what = format!("key {}: run {run} starts after run {}", current.key, earlier.number);
            violate(book, AT_MOST_ONCE, what);
        }
    }
}

impl Run {
    /// The time by which the run's outcome has to be recorded, if its handler returns at `at`: the earliest
    /// of the deadline less the reserve, the end of the settlement's retries, and the lease's end.
    fn settle_by(&self, at: u64) -> u64 {
        let by = (at + SETTLE_WITHIN.as_millis() as u64).min(self.lease_until);
        let reserve = RESERVE.as_millis() as u64;
        self.deadline.map_or(by, |deadline| by.min(deadline.saturating_sub(reserve)))
    }
}

#[cfg(test)]
mod tests {
    use lambda_idempotency::store::Generation;

    use super::*;
    use crate::simulation::{config::Config, deliveries::stored_key};

    /// Returns the rule that two runs break if they have their effects under these generations, during both leases.
    fn broken_by(generations: [u64; 2]) -> Option<&'static str> {
        let config = Config { faults: 0, at_most_once: false, outage: None, ..Config::from_seed(1) };
        let audit = Audit::new(config, false);
        for (number, generation) in generations.into_iter().enumerate() {
            let run = Run::new(number, 1, stored_key(1), Generation::new(generation), 30_000);
            audit.book().runs.push(run);
            audit.effect(1000, number);
        }
        let violation = audit.book().violation.take();
        violation.map(|violation| violation.rule)
    }

    #[test]
    fn one_claim_allows_one_effect() {
        let rule = Some("a repeated effect has a reason");
        assert_eq!(broken_by([7, 7]), rule);
        assert_eq!(broken_by([7, 8]), rule);
        assert_eq!(broken_by([0, 0]), None, "runs without a claim are left out");
    }

    /// Returns the rule that the third run of a key breaks if it doesn't learn of the first two. An operator has
    /// settled the claims with the generations `overruled`.
    fn broken_by_third_run(overruled: &[u64]) -> Option<&'static str> {
        let config = Config { at_most_once: false, way: Way::Claims, ..Config::from_seed(1) };
        let audit = Audit::new(Config { faults: 0, ..config }, false);
        let mut book = audit.book();
        book.overruled.extend(overruled.iter().map(|generation| (stored_key(1), *generation)));
        for (number, generation) in [7, 8, 9].into_iter().enumerate() {
            book.runs.push(Run::new(number, 1, stored_key(1), Generation::new(generation), 30_000));
        }
        audit.check_began(&mut book, 2, false);
        book.violation.take().map(|violation| violation.rule)
    }

    #[test]
    fn operators_decision_covers_earlier_attempts() {
        let rule = Some("an interrupted attempt is reported");
        assert_eq!(broken_by_third_run(&[]), rule);
        assert_eq!(broken_by_third_run(&[7]), rule, "the operator decided before the second run");
        assert_eq!(broken_by_third_run(&[8]), None);
    }
}
