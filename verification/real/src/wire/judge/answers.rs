//! Checks that the answers to callers are true and match the table.

use lambda_idempotency::{
    ErrorKind,
    store::{Record, Status},
};

use super::{Gap, Judge, Meaning, PRIOR, Promise, RIVAL, Said, Told, shown, status_of};
use crate::wire::{
    answer::Answer,
    budget::{MAX_LOSSES, SETTLE_WITHIN},
    play::{Delivery, PANICKED, failure, is_response_of},
    scenario::Handler,
    told::Brief,
};

impl Judge<'_> {
    /// Checks the answer of the delivery with the faults.
    pub(super) fn first_answer(&mut self) {
        let facts = self.facts;
        let Some(first) = facts.deliveries.first() else { return };
        let scenario = facts.case.scenario;
        let records = scenario.records_errors || scenario.at_most_once;
        let (ran, handler) = (self.ran(0), scenario.handler);
        self.must(ran <= 1, || format!("the handler ran {ran} times in one delivery"));
        match &first.answer {
            Answer::Value(text) if is_response_of(0, text) => {
                self.must(ran == 1 && handler == Handler::Succeeds, || {
                    "the answer is the handler's response, but the handler didn't run".into()
                });
                self.recorded(first, Status::Completed, text);
            }
            Answer::Value(text) => self.replayed(first, &Promise::Value(text.clone())),
            Answer::Recorded(text) if *text == failure(0) && records => {
                self.recorded(first, Status::Failed, text);
            }
            Answer::Recorded(text) => self.replayed(first, &Promise::Failure(text.clone())),
            Answer::HandlerFailed(text) => {
                let is_its = ran == 1 && handler == Handler::Fails && *text == failure(0);
                self.must(is_its, || {
                    "the answer is the handler's error, but the handler didn't return this error".into()
                });
                if records { self.recorded(first, Status::Failed, text) } else { self.released(first) }
            }
            Answer::Panicked => {
                self.must(ran == 1 && handler == Handler::Panics, || {
                    "the answer says that the handler panicked, but \
                    it didn't"
                        .into()
                });
                if records { self.recorded(first, Status::Failed, PANICKED) } else { self.released(first) }
            }
            Answer::NoTimeLeft => {
                self.must(scenario.is_short_of_time, || {
                    "the answer is NoTimeLeft, but time wasn't short".into()
                });
                self.nothing_ran(first);
            }
            Answer::Refused(kind) => self.refused(first, *kind),
            // `Judge::calls` reports a delivery without an answer.
            Answer::Hung => {}
        }
    }

    /// Checks that the answer is the outcome in the prior record or in the rival's record.
    fn replayed(&mut self, first: &Delivery, answer: &Promise) {
        let said = [PRIOR, RIVAL].iter().any(|known| match answer {
            Promise::Value(text) | Promise::Failure(text) => text == known,
            _ => false,
        });
        let by_prior = self.ran(0) == 0 && self.promise(&first.before) == *answer;
        let by_rival = self.facts.rival.as_ref().is_some_and(|rival| self.promise(rival) == *answer);
        let status = status_of(answer);
        self.must(said && (by_prior || by_rival), || {
            format!("the answer isn't the recorded outcome ({status:?}): {answer:?}")
        });
    }

    fn refused(&mut self, first: &Delivery, kind: ErrorKind) {
        let facts = self.facts;
        let (ran, before) = (self.ran(0), self.promise(&first.before));
        let rival = facts.rival.as_ref().map(|rival| self.promise(rival));
        let failed = facts.was_told(|_, told| told.is_failure());
        let is_true = match kind {
            ErrorKind::InProgress => {
                // If the library can't read the chunks of the successor's outcome, it answers "in progress".
                let unread =
                    facts.was_told(|meaning, told| meaning == Meaning::PartRead && told.is_failure());
                rival == Some(Promise::InProgress)
                    || ran == 0 && before == Promise::InProgress
                    || ran == 0 && facts.claims_lost() >= MAX_LOSSES as usize
                    || ran == 1 && unread && rival.as_ref().and_then(status_of).is_some()
            }
            ErrorKind::Mismatch => ran == 0 && before == Promise::Mismatch,
            ErrorKind::OutcomeUnknown => ran == 0 && before == Promise::OutcomeUnknown,
            ErrorKind::NotRetained => {
                rival == Some(Promise::NotRetained) || ran == 0 && before == Promise::NotRetained
            }
            // The answer claims that nothing ran, and that the store failed. Check both.
            ErrorKind::Unavailable => ran == 0 && failed,
            _ => false,
        };
        self.must(is_true, || {
            format!(
                "unexpected {kind:?}: the handler ran {ran} times, and the delivery found {}{}",
                shown(facts, &first.before),
                facts.rival.as_ref().map(|r| format!(", then {}", shown(facts, r))).unwrap_or_default()
            )
        });
        if ran == 0 {
            self.nothing_ran(first);
        }
    }

    /// Checks that the handler didn't run. If this delivery left a claim, checks that the library didn't learn of the
    /// claim, or had no time left to use it.
    fn nothing_ran(&mut self, first: &Delivery) {
        let facts = self.facts;
        let ran = self.ran(0);
        self.must(ran == 0, || format!("the answer says that nothing ran, but the handler ran {ran} times"));
        let Some(record) = first.after.record.as_ref().filter(|record| self.is_of(0, record)) else { return };
        let left = || shown(facts, &first.after);
        let has_no_time = first.answer == Answer::NoTimeLeft;
        let gave_back = facts.was_told(|meaning, _| meaning == Meaning::Release);
        match record.status() {
            Status::Started => {
                let learned = self.learned_of_its_claim();
                self.must(!learned || has_no_time, || {
                    format!("the library didn't recognise its own claim; stored: {}", left())
                });
                self.must(gave_back, || format!("a claim in doubt wasn't released; stored: {}", left()));
                let free_at = first.retry_after.map(|wait| first.after.at.saturating_add(wait));
                self.must(has_no_time || !facts.tells_waits || free_at >= record.lease_until(), || {
                    let wait = first.retry_after;
                    format!("the claim may outlast the reported wait of {wait:?}; stored: {}", left())
                });
                self.verdict.gaps.insert(Gap::Ghost);
            }
            Status::Released => {
                self.must(gave_back && (has_no_time || !self.learned_of_its_claim()), || {
                    format!("a claim was released without a reason; stored: {}", left())
                });
            }
            Status::Completed | Status::Failed => {
                self.must(false, || format!("an outcome was stored, but nothing ran; stored: {}", left()));
            }
        }
    }

    /// Whether an answer showed the library its claim before it gave up. A release that gives a claim in doubt back comes
    /// after that. If it's refused and the claim arrives before the record is read, the refusal shows the claim.
    fn learned_of_its_claim(&self) -> bool {
        let owners = self.facts.deliveries.first().map(|first| first.owners.as_slice()).unwrap_or_default();
        self.facts.was_told(|meaning, told| {
            let is_mine = |record: Brief| record.status == Status::Started && owners.contains(&record.owner);
            let shows = meaning != Meaning::Release && told.record().is_some_and(is_mine);
            *told == Told::Applied && meaning.claims() || shows
        })
    }

    /// Checks that the record holds the handler's outcome, unless the library couldn't store it in time.
    fn recorded(&mut self, first: &Delivery, status: Status, text: &str) {
        let facts = self.facts;
        let left = || shown(facts, &first.after);
        let mine = first.after.record.as_ref().filter(|record| self.is_of(0, record));
        match (mine.map(Record::status), &first.after.outcome) {
            (Some(found), Some(Said::Text(said))) if found == status => {
                self.must(said == text, || {
                    format!("the record doesn't hold the outcome that the answer gives; stored: {}", left())
                });
            }
            (Some(found), Some(Said::Omitted)) if found == status => {
                let failed =
                    facts.was_told(|meaning, told| meaning == Meaning::PartWritten && told.is_failure());
                self.must(failed, || format!("the response wasn't kept; stored: {}", left()));
                self.verdict.gaps.insert(Gap::NotKept);
            }
            (Some(found), _) if found != Status::Started => {
                self.must(false, || {
                    format!("the record doesn't hold the outcome that the answer gives; stored: {}", left())
                });
            }
            (found, _) => {
                // The record is this delivery's and still STARTED, or the rival replaced it.
                let is_explained = found.is_some() || facts.rival.is_some();
                let unresolved = self.is_unresolved();
                self.must(is_explained && unresolved, || {
                    format!("the outcome wasn't stored, although there was time; the record is {}", left())
                });
                self.verdict.gaps.insert(Gap::Unrecorded);
            }
        }
    }

    /// Checks that the key is released, unless the library couldn't release it in time.
    fn released(&mut self, first: &Delivery) {
        let facts = self.facts;
        let left = || shown(facts, &first.after);
        let mine = first.after.record.as_ref().filter(|record| self.is_of(0, record));
        match mine.map(Record::status) {
            Some(Status::Released) => {}
            Some(Status::Started) => {
                let unresolved = self.is_unresolved();
                self.must(unresolved, || {
                    format!("the key wasn't released, although there was time; the record is {}", left())
                });
                self.verdict.gaps.insert(Gap::NotReleased);
            }
            Some(_) => self.must(false, || format!("the key wasn't released; stored: {}", left())),
            None => {
                self.must(facts.rival.is_some(), || format!("the key wasn't released; stored: {}", left()))
            }
        }
    }

    /// Whether the library tried to settle until its time was over, without learning the result: a call failed, and no
    /// call reported success.
    fn is_unresolved(&self) -> bool {
        let facts = self.facts;
        let owners = facts.deliveries.first().map(|first| first.owners.as_slice()).unwrap_or_default();
        let settled = facts.was_told(|meaning, told| {
            let is_mine = |record: Brief| record.status != Status::Started && owners.contains(&record.owner);
            meaning.settles() && *told == Told::Applied || told.record().is_some_and(is_mine)
        });
        let begun = facts.calls.iter().position(|call| call.meaning.settles()).unwrap_or(facts.calls.len());
        let failed = facts.calls.iter().skip(begun).any(|call| call.told.is_failure());
        let is_out_of_time = facts.deliveries.first().is_some_and(|first| first.took >= SETTLE_WITHIN);
        failed && !settled && is_out_of_time
    }

    /// Checks the answers to the deliveries without faults. Each must be exactly what the record promised.
    pub(super) fn later_answers(&mut self) {
        let facts = self.facts;
        for (nth, delivery) in facts.deliveries.iter().enumerate().skip(1) {
            let (promise, ran) = (self.promise(&delivery.before), self.ran(nth));
            let is_kept = match (&promise, &delivery.answer) {
                (Promise::Runs, Answer::Value(text)) => is_response_of(nth, text),
                (Promise::InProgress, answer) => *answer == Answer::Refused(ErrorKind::InProgress),
                (Promise::Mismatch, answer) => *answer == Answer::Refused(ErrorKind::Mismatch),
                (Promise::OutcomeUnknown, answer) => *answer == Answer::Refused(ErrorKind::OutcomeUnknown),
                (Promise::NotRetained, answer) => *answer == Answer::Refused(ErrorKind::NotRetained),
                (Promise::Value(promised), Answer::Value(text)) => promised == text,
                (Promise::Failure(promised), Answer::Recorded(text)) => promised == text,
                _ => false,
            };
            let runs = usize::from(promise == Promise::Runs);
            self.must(is_kept && ran == runs, || {
                let answer: String = format!("{:?}", delivery.answer).chars().take(120).collect();
                format!(
                    "delivery {nth} should get {promise:?}, but got {answer}, and the handler ran {ran} times"
                )
            });
            if runs == 1 {
                self.settled_by(nth, delivery);
            }
        }
        // After all leases have ended, the key must be settled. The record may stay STARTED in two cases: only an
        // operator can settle an at-most-once operation, and a claim of another request isn't taken over.
        if let Some(last) = facts.deliveries.last() {
            let status = last.after.record.as_ref().map(Record::status);
            let is_settled = matches!(status, Some(Status::Completed | Status::Failed));
            let waits = facts.case.scenario.at_most_once || self.promise(&last.before) == Promise::Mismatch;
            self.must(is_settled || waits && status == Some(Status::Started), || {
                format!("the key isn't settled at the end: {}", shown(facts, &last.after))
            });
        }
    }

    fn settled_by(&mut self, nth: usize, delivery: &Delivery) {
        let facts = self.facts;
        let is_mine = delivery.after.record.as_ref().is_some_and(|record| self.is_of(nth, record));
        let says = match (&delivery.after.outcome, &delivery.answer) {
            (Some(Said::Text(said)), Answer::Value(text)) => said == text,
            _ => false,
        };
        self.must(is_mine && says, || {
            format!(
                "the record doesn't hold the outcome of delivery {nth}: {}",
                shown(facts, &delivery.after)
            )
        });
    }
}
