//! Checks the properties that every run must have, whatever happened on the wire.
//!
//! The judge relies on the table's contents, on what the server did and on what the callers were answered. It
//! uses the library's own reports only where it can check them against that.

mod answers;
mod calls;
mod standing;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt::{self, Display, Write as _},
    time::Duration,
};

use lambda_idempotency::{
    ErrorKind,
    store::{Record, State, Status, StoreErrorKind},
    testing::Fault,
    time::Timestamp,
};

use super::{
    case::Retries,
    meaning::Meaning,
    play::{Answer, Facts, failure, is_response_of},
    scenario::Baseline,
    stage::{PRIOR, RIVAL, Said, Snapshot},
    watched::Told,
};

/// The library's default, which all runs use.
const SKEW_MARGIN: Duration = Duration::from_secs(2);

/// An outcome that the protocol doesn't promise to prevent. Each is allowed only if its reason is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gap {
    /// The handler ran, its outcome couldn't be stored in time, and the caller got the response.
    Unrecorded,
    /// The handler ran a second time after that, once the lease had ended.
    RanAgain,
    /// The handler ran and was fenced by a successor that never finished. Another ran after both.
    Fenced,
    /// The handler failed, and the key couldn't be released in time.
    NotReleased,
    /// A claim was applied, but the library learned neither of it nor of its release. Nothing ran, the caller
    /// had to wait, and the end of the lease frees the key.
    Ghost,
    /// The outcome is stored without its response, because its chunks couldn't be written.
    NotKept,
}

impl Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unrecorded => "ran, answered, outcome not stored",
            Self::RanAgain => "ran again after that",
            Self::Fenced => "ran, fenced by a successor that never finished, ran again after both",
            Self::NotReleased => "failed, key not released",
            Self::Ghost => "left a claim that the library doesn't know of; nothing ran",
            Self::NotKept => "outcome stored without its response",
        })
    }
}

/// The judge's findings.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    /// The violations.
    pub(super) violations: Vec<String>,
    pub(super) gaps: BTreeSet<Gap>,
    /// Store calls that failed without a fault, because the machine was too busy.
    pub(super) unplanned: usize,
}

/// The promise of a record to a delivery of the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Promise {
    Runs,
    InProgress,
    Mismatch,
    OutcomeUnknown,
    NotRetained,
    Value(String),
    Failure(String),
    Unreadable(String),
}

/// Judges a run.
pub(super) fn judge(facts: &Facts) -> Verdict {
    let mut judge = Judge { facts, verdict: Verdict::default() };
    judge.calls();
    judge.standing();
    judge.first_answer();
    judge.later_answers();
    judge.effects();
    judge.without_cause();
    judge.verdict
}

struct Judge<'f> {
    facts: &'f Facts,
    verdict: Verdict,
}

impl Judge<'_> {
    fn must(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.verdict.violations.push(otherwise());
        }
    }

    /// How often the handler ran in this delivery.
    fn ran(&self, delivery: usize) -> usize {
        self.facts.effects.iter().filter(|effect| effect.delivery == delivery).count()
    }

    /// Whether this delivery was the last to write the record.
    fn is_of(&self, delivery: usize, record: &Record) -> bool {
        let delivery = self.facts.deliveries.get(delivery);
        delivery.is_some_and(|delivery| delivery.owners.contains(&record.owner))
    }

    /// The promise of `found` to this run's request when it was read.
    fn promise(&self, found: &Snapshot) -> Promise {
        let Some(record) = &found.record else { return Promise::Runs };
        let is_expired = record.expires_at.is_some_and(|expires_at| has_passed(expires_at, found));
        let matches = record.fingerprint == self.facts.fingerprint;
        match &record.state {
            State::Started { lease_until } => {
                let is_stale = has_passed(*lease_until, found);
                if !(matches || is_stale && is_expired) {
                    Promise::Mismatch
                } else if !is_stale {
                    Promise::InProgress
                } else if self.facts.case.scenario.at_most_once {
                    Promise::OutcomeUnknown
                } else {
                    Promise::Runs
                }
            }
            State::Released => Promise::Runs,
            State::Completed(_) | State::Failed(_) if is_expired => Promise::Runs,
            State::Completed(_) | State::Failed(_) if !matches => Promise::Mismatch,
            State::Completed(_) => said(found, Promise::Value),
            State::Failed(_) => said(found, Promise::Failure),
        }
    }

    /// Checks that each generation had at most one effect, and that a second effect follows only a lost outcome.
    fn effects(&mut self) {
        let facts = self.facts;
        let generations: BTreeSet<_> = facts.effects.iter().map(|effect| effect.generation).collect();
        self.must(generations.len() == facts.effects.len(), || {
            format!("a generation had more than one effect: {:?}", facts.effects)
        });
        self.must(!facts.case.scenario.at_most_once || facts.effects.len() <= 1, || {
            format!("an at-most-once operation had more than one effect: {:?}", facts.effects)
        });
        let successes = facts.effects.iter().filter(|effect| effect.succeeded).count();
        let first = facts.deliveries.first().map(|first| &first.answer);
        let is_fenced = first == Some(&Answer::Refused(ErrorKind::InProgress));
        if successes > 1 && self.verdict.gaps.contains(&Gap::Unrecorded) {
            self.verdict.gaps.insert(Gap::RanAgain);
        } else if successes > 1 && is_fenced {
            // The check of the answer also checks that a successor is there.
            self.verdict.gaps.insert(Gap::Fenced);
        } else {
            self.must(successes <= 1, || {
                format!("the effect was repeated, but its outcome could be stored: {:?}", facts.effects)
            });
        }
    }

    /// Checks runs with no fault, or with one that the protocol handles: they must show no effect of a fault.
    fn without_cause(&mut self) {
        let facts = self.facts;
        let scenario = facts.case.scenario;
        let hit: Vec<_> = facts.exchanges.iter().filter_map(|e| Some((e.meaning, e.fault?))).collect();
        let is_got_over = match hit.as_slice() {
            [] => true,
            // The library doesn't wait for a chunk that can't be written or read.
            [(Meaning::PartWritten | Meaning::PartRead, _)] => false,
            // Throttling is a definite rejection. Without SDK retries, only settlements are retried.
            [(meaning, way)] if way.amounts_to() == Fault::Throttle => {
                meaning.settles() || facts.case.retries != Retries::None
            }
            [_] => true,
            _ => false,
        };
        if !is_got_over || self.verdict.unplanned > 0 || scenario.baseline == Baseline::Any {
            return;
        }
        let answer = facts.deliveries.first().map(|delivery| &delivery.answer);
        self.must(answer.is_some_and(|answer| is_baseline(scenario.baseline, answer)), || {
            format!(
                "expected {:?}, since at most one thing went wrong; the answer was {answer:?}",
                scenario.baseline
            )
        });
        let mut gaps = self.verdict.gaps.clone();
        // The rival causes this gap.
        gaps.remove(&Gap::Fenced);
        self.must(gaps.is_empty(), || {
            format!("unexpected gaps, since at most one thing went wrong: {gaps:?}")
        });
        let made: Vec<_> = facts.exchanges.iter().map(|exchange| exchange.meaning).collect();
        // An SDK that retries hides the failures of a busy machine.
        let is_exact = hit.is_empty() && facts.case.retries == Retries::None;
        self.must(!is_exact || made == scenario.requests, || {
            format!(
                "expected the requests {:?}, since nothing went wrong; there were {made:?}",
                scenario.requests
            )
        });
    }
}

fn is_baseline(baseline: Baseline, answer: &Answer) -> bool {
    match (baseline, answer) {
        (Baseline::Own, Answer::Value(text)) => is_response_of(0, text),
        (Baseline::OwnFailure, Answer::Recorded(text)) => *text == failure(0),
        (Baseline::OwnFailure, answer) => matches!(answer, Answer::HandlerFailed(_) | Answer::Panicked),
        (Baseline::Prior, Answer::Value(text) | Answer::Recorded(text)) => text == PRIOR,
        (Baseline::Rival, Answer::Value(text) | Answer::Recorded(text)) => text == RIVAL,
        (Baseline::InProgress, answer) => *answer == Answer::Refused(ErrorKind::InProgress),
        (Baseline::Mismatch, answer) => *answer == Answer::Refused(ErrorKind::Mismatch),
        (Baseline::OutcomeUnknown, answer) => *answer == Answer::Refused(ErrorKind::OutcomeUnknown),
        (Baseline::NotRetained, answer) => *answer == Answer::Refused(ErrorKind::NotRetained),
        (Baseline::Any, _) => true,
        _ => false,
    }
}

fn has_passed(time: Timestamp, found: &Snapshot) -> bool {
    time.saturating_add(SKEW_MARGIN) < found.at
}

fn said(found: &Snapshot, promise: fn(String) -> Promise) -> Promise {
    match &found.outcome {
        Some(Said::Text(text)) => promise(text.clone()),
        Some(Said::Omitted) => Promise::NotRetained,
        Some(Said::Unreadable(why)) => Promise::Unreadable(why.clone()),
        None => Promise::Unreadable("a settled record without an outcome".into()),
    }
}

/// Describes a record by its status, its owner and its outcome only.
fn shown(facts: &Facts, found: &Snapshot) -> String {
    let Some(record) = &found.record else { return "no record".into() };
    let owner = (0..facts.deliveries.len())
        .find(|nth| facts.deliveries[*nth].owners.contains(&record.owner))
        .map_or_else(|| "of another".to_owned(), |nth| format!("of delivery {nth}"));
    let mut shown = format!("{} {owner}, generation {}", record.status().as_str(), record.generation);
    match &found.outcome {
        Some(Said::Text(text)) => {
            let _ = write!(shown, ": {:?}", text.chars().take(60).collect::<String>());
        }
        Some(other) => {
            let _ = write!(shown, ": {other:?}");
        }
        None => {}
    }
    shown
}

/// Everything known about a run, for the person who investigates it.
pub(super) fn describe(facts: &Facts, verdict: &Verdict) -> String {
    let mut text = format!("{}\n", facts.case);
    for (nth, exchange) in facts.exchanges.iter().enumerate() {
        let _ = writeln!(text, "  request {nth}: {exchange}");
    }
    for (nth, call) in facts.calls.iter().enumerate() {
        let _ = writeln!(text, "  call {nth}: {call}");
    }
    if let Some(rival) = &facts.rival {
        let _ = writeln!(text, "  the rival left {}", shown(facts, rival));
    }
    for (nth, delivery) in facts.deliveries.iter().enumerate() {
        let answer: String = format!("{:?}", delivery.answer).chars().take(120).collect();
        let _ = writeln!(
            text,
            "  delivery {nth}: found {}\n    answered {answer} after {:.1} ms\n    left {}",
            shown(facts, &delivery.before),
            delivery.took.as_secs_f64() * 1e3,
            shown(facts, &delivery.after)
        );
    }
    let _ = writeln!(text, "  effects: {:?}; gaps: {:?}", facts.effects, verdict.gaps);
    for violation in &verdict.violations {
        let _ = writeln!(text, "  VIOLATION: {violation}");
    }
    text
}

/// The status of a settled record that makes this promise.
fn status_of(promise: &Promise) -> Option<Status> {
    match promise {
        Promise::Value(_) => Some(Status::Completed),
        Promise::Failure(_) => Some(Status::Failed),
        _ => None,
    }
}

impl Facts {
    /// Whether the library got such a result in the first delivery.
    fn was_told(&self, what: impl Fn(Meaning, &Told) -> bool) -> bool {
        self.calls.iter().any(|call| what(call.meaning, &call.told))
    }

    /// How many claims, reclaims and takeovers lost to another, or conflicted with its transaction. Too many
    /// mean that it's in progress.
    fn claims_lost(&self) -> usize {
        let is_claim = |meaning| matches!(meaning, Meaning::Claim | Meaning::Reclaim | Meaning::TakeOver);
        let is_lost = |told: &Told| {
            matches!(told, Told::Refused(_) | Told::Failed { kind: StoreErrorKind::Conflict, .. })
        };
        self.calls.iter().filter(|call| is_claim(call.meaning) && is_lost(&call.told)).count()
    }
}
