//! The marks that one step reaches.

use lambda_idempotency::{
    protocol::{Action, Decline, End, Event, Refusal},
    store::{Generation, Outcome, Put, PutOutcome, State as RecordState, StoreErrorKind},
};

use super::Step;
use crate::{
    coverage::{Coverage, Mark},
    model::Verdict,
    under_test::{Purpose, outcome},
};

impl Step<'_> {
    /// The marks that the step reaches.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::NONE;
        if self.is_operators() {
            if let Some(mark) = self.operators_mark() {
                coverage.reach(mark);
            }
            return coverage;
        }
        if let Some(mark) = self.phase() {
            coverage.reach(mark);
        }
        if let (true, true, Event::Found(_)) = (self.is_inside(), self.has_run(), self.event) {
            match self.action {
                Action::Read => coverage.reach(Mark::LookedAgain),
                Action::Settled(End::NotCommitted(_)) => coverage.reach(Mark::RolledBack),
                _ => {}
            }
        }
        self.questions(&mut coverage);
        if let (Action::Claimed(_), Event::DidNotHappen) = (self.action, self.event) {
            coverage.reach(Mark::TookOver);
        }
        let mark = match self.action {
            Action::Claimed(held) if *self.event != Event::DidNotHappen => {
                if held.lock.mark.is_interrupted() {
                    coverage.reach(Mark::TookOver);
                }
                match self.event {
                    Event::Answered(PutOutcome::Refused(_)) => Some(Mark::OwnByRefusal),
                    Event::Found(_) => Some(Mark::OwnByRead),
                    _ => None,
                }
            }
            Action::Replay(record) => Some(match record.state {
                RecordState::Failed(_) => Mark::ReplayFailed,
                _ => Mark::ReplayCompleted,
            }),
            Action::Refused(refusal) => Some(match refusal {
                Refusal::Mismatch => Mark::Mismatch,
                Refusal::InProgress(Some(_)) => Mark::InProgressUntil,
                Refusal::InProgress(None) => Mark::InProgressUnknown,
                Refusal::OutcomeUnknown => Mark::OutcomeUnknown,
                Refusal::Unavailable => Mark::Unavailable,
                Refusal::Rejected => Mark::RefusedRejected,
                Refusal::Corrupt => Mark::Corrupt,
                Refusal::NoTimeLeft => Mark::NoTimeLeft,
                Refusal::Abandoned(_) => Mark::Abandoned,
            }),
            Action::Settled(end) => self.end(end, &mut coverage),
            Action::Open => Some(match self.shown().map(|record| &record.state) {
                None => Mark::OpenAbsent,
                Some(RecordState::Started { .. }) => Mark::OpenLock,
                Some(RecordState::Released) => Mark::OpenReleased,
                Some(RecordState::Completed(_) | RecordState::Failed(_)) => Mark::OpenExpired,
            }),
            Action::Extended(_) => Some(match self.event {
                Event::Answered(PutOutcome::Refused(_)) => Mark::ExtendedBefore,
                _ => Mark::Extended,
            }),
            Action::NotExtended => Some(match self.event {
                Event::Extend(_) => Mark::NotAskedFor,
                _ => Mark::NotExtended,
            }),
            Action::Lost => Some(Mark::Lost),
            Action::Declined(why) => Some(match why {
                Decline::Condition => Mark::DeclinedCondition,
                Decline::Store(StoreErrorKind::Conflict) => Mark::DeclinedConflict,
                Decline::Store(StoreErrorKind::Rejected) => Mark::DeclinedRejected,
                Decline::Store(StoreErrorKind::Unstorable) => Mark::DeclinedUnstorable,
                Decline::Store(StoreErrorKind::Corrupt) => Mark::DeclinedCorrupt,
                Decline::Store(_) => Mark::DeclinedUnavailable,
            }),
            _ => None,
        };
        if let Some(mark) = mark {
            coverage.reach(mark);
        }
        coverage
    }

    fn end(&self, end: &End, coverage: &mut Coverage) -> Option<Mark> {
        match end {
            End::Recorded => {
                if self.shown().is_some() {
                    coverage.reach(if self.is_commit() { Mark::OwnCommitted } else { Mark::OwnSettled });
                }
                match self.put().filter(|_| self.was(Purpose::Settle)).map(Put::record) {
                    Some(new) if !self.is_held(new.generation) => coverage.reach(Mark::RecordedAnew),
                    Some(new) if outcome(new) == Some(&Outcome::Omitted) => {
                        coverage.reach(Mark::OmittedRecorded);
                    }
                    _ => {}
                }
                match self.verdict {
                    Verdict::Complete => Some(Mark::RecordedComplete),
                    Verdict::Fail => Some(Mark::RecordedFail),
                    Verdict::Found | Verdict::FoundFailed => {
                        let is_anew = self.put().is_some_and(|put| !self.is_held(put.record().generation));
                        Some(if is_anew { Mark::FoundAnew } else { Mark::RecordedFound })
                    }
                    Verdict::NotKnown | Verdict::NotYet => Some(Mark::RecordedUnanswered),
                    Verdict::Panic if self.is_unanswered() => Some(Mark::RecordedInterruption),
                    Verdict::Release | Verdict::Panic if self.is_open => Some(Mark::NothingToConclude),
                    Verdict::Release | Verdict::Panic => Some(Mark::RecordedRelease),
                    Verdict::Commit => Some(Mark::RecordedCommit),
                    Verdict::Interrupt => Some(Mark::RecordedInterruption),
                    Verdict::None | Verdict::Absent => None,
                }
            }
            End::Superseded(record) if record.owner == self.plan.owner => Some(Mark::SupersededByOwn),
            End::Superseded(_) if self.is_open => Some(Mark::RivalStands),
            End::Superseded(_) => Some(Mark::Superseded),
            End::Fenced(Some(_)) => Some(Mark::FencedUntil),
            End::Fenced(None) => Some(Mark::FencedUnknown),
            End::Unrecorded(refusal) => match refusal {
                Refusal::Unavailable => Some(Mark::UnrecordedUnavailable),
                Refusal::Mismatch => Some(Mark::UnrecordedMismatch),
                Refusal::InProgress(_) => Some(Mark::UnrecordedConflict),
                Refusal::Rejected => Some(Mark::UnrecordedRejected),
                Refusal::Corrupt => Some(Mark::UnrecordedCorrupt),
                Refusal::OutcomeUnknown | Refusal::NoTimeLeft | Refusal::Abandoned(_) => None,
            },
            End::NotCommitted(refusal) => match refusal {
                Refusal::Mismatch => Some(Mark::NotCommittedMismatch),
                Refusal::InProgress(_) => Some(Mark::NotCommittedInProgress),
                Refusal::OutcomeUnknown => Some(Mark::NotCommittedUnknown),
                Refusal::Unavailable => Some(Mark::NotCommittedUnavailable),
                Refusal::Rejected | Refusal::Corrupt | Refusal::NoTimeLeft | Refusal::Abandoned(_) => None,
            },
            End::Unresolved(Some(_)) => Some(Mark::UnresolvedClaim),
            End::Unresolved(None) => Some(Mark::UnresolvedOpen),
        }
    }

    /// The mark of the phase that the step leads to. The machine's own phases are private. So this identifies the phase
    /// by the step's action, the event, the last request, and whether the handler has run.
    fn phase(&self) -> Option<Mark> {
        let is_again = self.repeats(self.action);
        if let Some(put) = self.sends() {
            let is_held = self.is_held(put.record().generation);
            let is_commit = matches!(self.action, Action::Commit { .. });
            return Some(match Purpose::of(put) {
                Purpose::Settle if is_commit && !is_held => Mark::RecordingCommits,
                Purpose::Settle if is_commit && is_again => Mark::CommittingAgain,
                Purpose::Settle if is_commit => Mark::Committing,
                Purpose::Settle if !self.has_run() => Mark::GivingBack,
                Purpose::Settle if is_held => Mark::Settling,
                Purpose::Settle => Mark::RecordingSettles,
                Purpose::Interrupt => Mark::Interrupting,
                Purpose::Conclude | Purpose::Resolve if is_again => Mark::ConcludingAgain,
                Purpose::Conclude | Purpose::Resolve => Mark::Concluding,
                Purpose::Extend if self.shown().is_some() => Mark::ExtendingAgain,
                Purpose::Extend => Mark::Extending,
                Purpose::Claim if self.has_run() => Mark::Recording,
                Purpose::Claim => Mark::Claiming,
            });
        }
        match (self.action, self.has_run()) {
            (Action::Read, _) if *self.event == Event::Look => Some(Mark::Looking),
            (Action::Read, true) if self.is_commit() => Some(Mark::LookingForCommit),
            (Action::Read, false) => Some(Mark::LookingForClaim),
            (Action::Read, true) if self.was_claim() => Some(Mark::LookingForRecording),
            (Action::Read, true) => Some(Mark::LookingForSettlement),
            (Action::Claimed(_), _) => Some(Mark::Held),
            (Action::Pause(_), false) => Some(Mark::Pausing),
            (Action::Pause(_), true) if self.is_commit() => Some(Mark::PausingToCommit),
            (Action::Pause(_), true) if self.was_claim() => Some(Mark::PausingToRecord),
            // After this pause, the executor reads again, since its settlement is still ambiguous.
            (Action::Pause(_), true) if self.is_asking => Some(Mark::PausingToLook),
            (Action::Pause(_), true) => Some(Mark::PausingToSettle),
            _ => None,
        }
    }

    /// Whether the claim under which the handler runs, or ran, has this generation.
    fn is_held(&self, generation: Generation) -> bool {
        self.held.is_some_and(|held| held.lock.generation == generation)
    }
}
