//! The marks that one step reaches.

use lambda_idempotency::{
    protocol::{Action, Decline, End, Event, Refusal},
    store::{Outcome, Settlement, State as RecordState, StoreErrorKind, Write, WriteOutcome},
};

use super::Step;
use crate::{
    coverage::{Coverage, Mark},
    model::Verdict,
};

impl Step<'_> {
    /// The marks that the step reaches.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::NONE;
        if let Some(mark) = self.phase() {
            coverage.reach(mark);
        }
        let mark = match self.action {
            Action::Claimed(held) => {
                if held.is_takeover {
                    coverage.reach(Mark::TookOver);
                }
                match self.event {
                    Event::Answered(WriteOutcome::Refused(_)) => Some(Mark::OwnByRefusal),
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
                Event::Answered(WriteOutcome::Refused(_)) => Mark::ExtendedBefore,
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
                match self.write() {
                    Some(Write::Settle { generation, .. })
                        if self.held.is_some_and(|held| held.generation != *generation) =>
                    {
                        coverage.reach(Mark::RecordedAnew);
                    }
                    Some(Write::Settle { settlement: Settlement::Complete(Outcome::Omitted, _), .. }) => {
                        coverage.reach(Mark::OmittedRecorded)
                    }
                    _ => {}
                }
                match self.verdict {
                    Verdict::Complete => Some(Mark::RecordedComplete),
                    Verdict::Fail => Some(Mark::RecordedFail),
                    Verdict::Release | Verdict::Panic if self.is_open => Some(Mark::NothingToConclude),
                    Verdict::Release | Verdict::Panic => Some(Mark::RecordedRelease),
                    Verdict::Commit => Some(Mark::RecordedCommit),
                    Verdict::Interrupt => Some(Mark::RecordedInterruption),
                    Verdict::None => None,
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
        match (self.action, self.has_run()) {
            (Action::Apply(Write::Settle { .. }), false) => Some(Mark::GivingBack),
            (Action::Apply(Write::Settle { generation, .. }), true) => {
                Some(if self.held.is_some_and(|held| held.generation == *generation) {
                    Mark::Settling
                } else {
                    Mark::RecordingSettles
                })
            }
            (Action::Commit { write: Write::Settle { generation, .. }, .. }, _) => {
                Some(if self.held.is_some_and(|held| held.generation == *generation) {
                    if self.repeats(self.action) { Mark::CommittingAgain } else { Mark::Committing }
                } else {
                    Mark::RecordingCommits
                })
            }
            (Action::Commit { .. } | Action::Apply(Write::Conclude { .. }), _) => {
                Some(if self.repeats(self.action) { Mark::ConcludingAgain } else { Mark::Concluding })
            }
            (Action::Apply(Write::Extend { .. }), _) => Some(Mark::Extending),
            (Action::Apply(write), _) if write.is_interruption() => Some(Mark::Interrupting),
            (Action::Apply(_), false) => Some(Mark::Claiming),
            (Action::Apply(_), true) => Some(Mark::Recording),
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
}
