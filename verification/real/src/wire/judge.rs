//! Checks the properties that every run must have, whatever happened on the wire.
//!
//! The judge relies on the table's contents, the server's answers and the callers' answers. It uses the library's own
//! reports only where that evidence can confirm them.

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
    time::Timestamp,
};
use lambda_idempotency_testing::Fault;

use lambda_idempotency_rehearsal::wire::Meaning;

use super::{
    answer::Answer,
    case::Retries,
    play::{Facts, failure, is_response_of},
    scenario::{Baseline, Rival},
    stage::{PRIOR, RIVAL, Said, Snapshot},
    told::Told,
    way::Medium,
};

/// The library's default skew margin, which all runs use.
const SKEW_MARGIN: Duration = Duration::from_secs(2);

/// A bad result that the protocol doesn't promise to prevent. The judge allows it only if there's a reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gap {
    /// The handler ran, and the caller got its outcome, but the outcome couldn't be stored in time.
    Unrecorded,
    /// The handler's first outcome is `Unrecorded`, and the handler ran a second time once the lease had ended.
    RanAgain,
    /// The handler ran and was fenced by a successor that never finished. A later delivery ran the handler again.
    Fenced,
    /// The handler failed, and the key couldn't be released in time.
    NotReleased,
    /// The server applied a claim, but the library didn't learn of it, and couldn't release it. The handler didn't run,
    /// the caller has to wait, and the end of the lease frees the key.
    Ghost,
    /// The outcome is stored without its response, because the response's chunks couldn't be written.
    NotKept,
}

impl Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unrecorded => "the caller got the handler's outcome, but it wasn't stored",
            Self::RanAgain => "the handler ran again, since the first outcome wasn't stored",
            Self::Fenced => {
                "the run was fenced by a successor that never finished, so a later delivery ran again"
            }
            Self::NotReleased => "the handler failed, and the key wasn't released",
            Self::Ghost => "the delivery left a claim unknown to the library, and no handler ran",
            Self::NotKept => "the outcome was stored without its response",
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

/// The answer that a record promises to a delivery of this run's request.
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

    /// Returns how often the handler ran in this delivery.
    fn ran(&self, delivery: usize) -> usize {
        self.facts.effects.iter().filter(|effect| effect.delivery == delivery).count()
    }

    /// Whether this delivery drew the record's owner.
    fn is_of(&self, delivery: usize, record: &Record) -> bool {
        let delivery = self.facts.deliveries.get(delivery);
        delivery.is_some_and(|delivery| delivery.owners.contains(&record.owner))
    }

    /// Returns what the record in `found` promised to this run's request when the record was read.
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

    /// Checks that each generation had at most one effect, and an at-most-once operation at most one in total. The
    /// handler may succeed twice only if the first outcome was lost: it couldn't be stored, or the first delivery was
    /// fenced.
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
            // `first_answer` has already checked that a successor holds the claim.
            self.verdict.gaps.insert(Gap::Fenced);
        } else {
            self.must(successes <= 1, || {
                format!("the effect was repeated, although its outcome wasn't lost: {:?}", facts.effects)
            });
        }
    }

    /// Checks runs without a fault, or with a single fault from which the library recovers. They must give the
    /// scenario's usual answer.
    fn without_cause(&mut self) {
        let facts = self.facts;
        let scenario = facts.case.scenario;
        let hit: Vec<_> = facts.exchanges.iter().filter_map(|e| Some((e.meaning, e.fault?))).collect();
        let is_got_over = match hit.as_slice() {
            [] => true,
            // The library doesn't retry the write or the read of a chunk.
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
                "with at most one fault, the answer should have been {:?}, but it was {answer:?}",
                scenario.baseline
            )
        });
        let mut gaps = self.verdict.gaps.clone();
        // The rival causes this gap even without faults.
        gaps.remove(&Gap::Fenced);
        self.must(gaps.is_empty(), || {
            format!("with at most one fault, there should be no gaps, but there are {gaps:?}")
        });
        let made: Vec<_> = facts.exchanges.iter().map(|exchange| exchange.meaning).collect();
        // If the SDK retries, a busy machine causes extra requests that don't show as failed calls.
        let is_exact = hit.is_empty() && facts.case.retries == Retries::None;
        // DynamoDB sends no item if the record is gone, so the store reads it. The other stores' answers show it.
        let is_shown = facts.case.medium != Medium::Http && matches!(scenario.rival, Some((_, Rival::Gone)));
        let expected: Vec<_> =
            scenario.requests.iter().copied().filter(|made| !is_shown || *made != Meaning::Look).collect();
        self.must(!is_exact || made == expected, || {
            format!("without a fault, the requests should have been {expected:?}, but they were {made:?}")
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

/// Describes a record by its status, owner, generation and outcome.
fn shown(facts: &Facts, found: &Snapshot) -> String {
    let Some(record) = &found.record else { return "no record".into() };
    let owner = (0..facts.deliveries.len())
        .find(|nth| facts.deliveries[*nth].owners.contains(&record.owner))
        .map_or_else(|| "of another owner".to_owned(), |nth| format!("of delivery {nth}"));
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

/// Describes everything that's known about a run, for the person who investigates it.
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

/// Returns the status of a settled record that makes this promise.
fn status_of(promise: &Promise) -> Option<Status> {
    match promise {
        Promise::Value(_) => Some(Status::Completed),
        Promise::Failure(_) => Some(Status::Failed),
        _ => None,
    }
}

impl Facts {
    /// Whether any store call in the first delivery had a result that `what` accepts.
    fn was_told(&self, what: impl Fn(Meaning, &Told) -> bool) -> bool {
        self.calls.iter().any(|call| what(call.meaning, &call.told))
    }

    /// Returns how many claims, reclaims and takeovers lost to another delivery, conflicted with its transaction, or
    /// got an ambiguous answer. After too many, the library may answer "in progress", but not right after an ambiguous
    /// answer, since it must then read the record. So returns 0 unless the last of these writes lost or conflicted.
    fn claims_lost(&self) -> usize {
        let is_claim = |meaning| matches!(meaning, Meaning::Claim | Meaning::Reclaim | Meaning::TakeOver);
        let is_lost = |told: &Told| {
            matches!(told, Told::Refused(_) | Told::Failed { kind: StoreErrorKind::Conflict, .. })
        };
        let is_ambiguous = |told: &Told| matches!(told, Told::Failed { maybe_applied: true, .. });
        let claims: Vec<_> = self.calls.iter().filter(|call| is_claim(call.meaning)).collect();
        if !claims.last().is_some_and(|last| is_lost(&last.told)) {
            return 0;
        }
        claims.into_iter().filter(|call| is_lost(&call.told) || is_ambiguous(&call.told)).count()
    }
}
