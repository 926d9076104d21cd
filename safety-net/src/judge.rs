//! What one step of the machine must not do, whatever the world around it, and what it shows to have
//! been reached.

use lambda_idempotency::{
    Outcome, Record, State as RecordState, Timestamp,
    protocol::{Action, End, Event, Fault, Held, Plan, Refusal},
    store::{Settlement, StoreErrorKind, Write, Written},
};

use crate::{
    configuration::{Configuration, DAY, millis},
    coverage::{Coverage, Mark},
    invariants::{Flaws, Invariant},
    model::Verdict,
};

/// The least that a lock stays beyond its lease, and the lease of a claim that only records an outcome:
/// the law's numbers (DESIGN.md, section 6), not the library's own constants.
const LOCK_RETENTION: i64 = DAY;
const RECORDING_LEASE: i64 = 10_000;

/// One step, seen from outside.
#[derive(Debug)]
pub struct Step<'a> {
    /// The space that is explored.
    pub configuration: &'a Configuration,
    /// What the delivery's claim was meant to be.
    pub plan: &'a Plan,
    /// How the handler ended, if it has run.
    pub verdict: Verdict,
    /// The claim that it runs, or ran, under.
    pub held: Option<&'a Held>,
    /// The last write that was sent.
    pub write: Option<&'a Write>,
    /// What happened.
    pub event: &'a Event,
    /// The executor's clock.
    pub now: Timestamp,
    /// What the machine makes of it.
    pub action: &'a Action,
}

impl Step<'_> {
    fn has_run(&self) -> bool {
        self.verdict != Verdict::None
    }

    /// The record that the event shows.
    fn shown(&self) -> Option<&Record> {
        match self.event {
            Event::Answered(Written::Refused(record)) | Event::Found(record) => record.as_ref(),
            _ => None,
        }
    }

    fn has_passed(&self, time: Timestamp) -> bool {
        time.saturating_add(millis(self.configuration.skew_margin)) < self.now
    }

    /// Whether the claim that is given up has just been given back, so that nothing can be wrong with it.
    fn gives_back(&self) -> bool {
        !self.has_run() && matches!(self.write, Some(Write::Settle { .. }))
    }

    /// Whether a claim was sent last, and no settlement.
    fn was_claim(&self) -> bool {
        self.write.is_some_and(|write| write.lock().is_some())
    }

    /// What is wrong with the step.
    pub fn flaws(&self) -> Flaws {
        let mut flaws = Flaws::NONE;
        flaws.unless(*self.action != Action::Nothing, Invariant::MachineAnswers);
        self.doubt(&mut flaws);
        self.own(&mut flaws);
        if !self.has_run() && !self.gives_back() {
            self.strangers(&mut flaws);
        }
        match self.action {
            Action::Claimed(held) => {
                flaws.unless(self.is_granted(held), Invariant::GrantBeforeStart);
                flaws.unless(self.now < self.plan.usable_until, Invariant::StartInTime);
            }
            Action::Apply(write) => self.sent(write, &mut flaws),
            _ => {}
        }
        if let Event::Settle(_) = self.event {
            let is_sent = matches!(self.action, Action::Apply(Write::Settle { .. }));
            flaws.unless(is_sent, Invariant::OwnerNotRefused);
        }
        flaws
    }

    fn doubt(&self, flaws: &mut Flaws) {
        let is_doubtful = matches!(self.event, Event::Failed(Fault { maybe_applied: true, kind })
            if *kind != StoreErrorKind::Corrupt);
        // The response is there, and the caller must not wait beyond its time for a look.
        let is_too_late = self.has_run() && self.now >= self.plan.usable_until;
        if is_doubtful && !is_too_late && !self.gives_back() {
            flaws.unless(*self.action == Action::Read, Invariant::DoubtLookedInto);
        }
    }

    /// What is our own must be taken for our own.
    fn own(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner == self.plan.owner) else { return };
        let settles = |release_only: bool| {
            matches!(self.action, Action::Apply(Write::Settle { owner, generation, settlement })
                if *owner == record.owner
                    && *generation == record.generation
                    && (!release_only || *settlement == Settlement::Release))
        };
        let is_current = self.held.is_some_and(|held| held.generation == record.generation);
        let is_recognised = match (&record.state, self.verdict) {
            (RecordState::Started { .. }, Verdict::None) => {
                matches!(self.action, Action::Claimed(_)) || settles(true) || self.gives_back()
            }
            // A release has nothing to do with a claim that it was not meant for.
            (RecordState::Started { .. }, Verdict::Release) if !is_current => true,
            (RecordState::Started { .. }, _) => {
                settles(false) || matches!(self.action, Action::Settled(End::Unrecorded(_)))
            }
            (RecordState::Completed(_), Verdict::Complete)
            | (RecordState::Failed(_), Verdict::Fail)
            | (RecordState::Released, Verdict::Release)
                // Who claims anew, to record it once more, and then finds what came late, judges it as
                // anyone would: it may have expired.
                if is_current && !self.was_claim() =>
            {
                *self.action == Action::Settled(End::Recorded)
            }
            _ => true,
        };
        flaws.unless(is_recognised, Invariant::OwnRecognised);
    }

    /// What another's record must lead to.
    fn strangers(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner != self.plan.owner) else { return };
        let matches = record.fingerprint == self.plan.fingerprint;
        let is_expired = self.has_passed(record.expires_at);
        let (is_live, is_settled) = match record.state {
            RecordState::Started { lease_until } => (!(self.has_passed(lease_until) && is_expired), false),
            RecordState::Completed(_) | RecordState::Failed(_) => (!is_expired, true),
            RecordState::Released => (false, false),
        };
        if is_live && !matches {
            flaws.unless(*self.action == Action::Refused(Refusal::Mismatch), Invariant::MismatchHarmless);
        }
        if is_live && is_settled && matches {
            let is_replayed = matches!(self.action, Action::Replay(replayed) if replayed == record);
            flaws.unless(is_replayed, Invariant::ReplayTrue);
        }
        if !is_live && is_settled {
            flaws.unless(!matches!(self.action, Action::Replay(_)), Invariant::ExpiredNotReplayed);
        }
    }

    /// Whether the store has granted `held`, and this executor knows it: by the answer, or by the record.
    fn is_granted(&self, held: &Held) -> bool {
        let granted = match (self.event, self.write) {
            (Event::Answered(Written::Applied), Some(write)) => {
                write.lock().map(|lock| (lock.owner, lock.generation, lock.lease_until))
            }
            _ => self.shown().and_then(|record| {
                record.lease_until().map(|lease_until| (record.owner, record.generation, lease_until))
            }),
        };
        granted == Some((held.owner, held.generation, held.lease_until)) && held.owner == self.plan.owner
    }

    fn sent(&self, write: &Write, flaws: &mut Flaws) {
        let retention = self.configuration.retention;
        if let Some(lock) = write.lock() {
            flaws.unless(self.has_run() || self.now < self.plan.usable_until, Invariant::StartInTime);
            let recording = lock.lock_acquired_at.saturating_add(millis(RECORDING_LEASE));
            let bound =
                if self.has_run() { self.plan.lease_until.max(recording) } else { self.plan.lease_until };
            flaws.unless(lock.lease_until <= bound, Invariant::LeaseBounded);
            let least = lock.lease_until.saturating_add(millis(retention.max(LOCK_RETENTION)));
            flaws.unless(promised(lock.expires_at, least), Invariant::ExpiryPromised);
        }
        if let Write::Settle { settlement, .. } = write {
            match settlement {
                Settlement::Complete(_, expires_at) | Settlement::Fail(_, expires_at) => {
                    let least = self.now.saturating_add(millis(retention));
                    flaws.unless(promised(*expires_at, least), Invariant::ExpiryPromised);
                }
                Settlement::Release => {}
            }
        }
    }

    /// What the step shows to have been reached.
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
                    Event::Answered(Written::Refused(_)) => Some(Mark::OwnByRefusal),
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
            }),
            Action::Settled(end) => self.end(end, &mut coverage),
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
                    coverage.reach(Mark::OwnSettled);
                }
                match self.write {
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
                    Verdict::Release => Some(Mark::RecordedRelease),
                    Verdict::None => None,
                }
            }
            End::Superseded(_) => Some(Mark::Superseded),
            End::Fenced(Some(_)) => Some(Mark::FencedUntil),
            End::Fenced(None) => Some(Mark::FencedUnknown),
            End::Unrecorded(refusal) => match refusal {
                Refusal::Unavailable => Some(Mark::UnrecordedUnavailable),
                Refusal::Mismatch => Some(Mark::UnrecordedMismatch),
                Refusal::InProgress(_) => Some(Mark::UnrecordedConflict),
                Refusal::Rejected => Some(Mark::UnrecordedRejected),
                Refusal::Corrupt => Some(Mark::UnrecordedCorrupt),
                Refusal::OutcomeUnknown | Refusal::NoTimeLeft => None,
            },
            // Nothing here is in a transaction yet.
            End::NotCommitted(_) | End::Unresolved(_) => None,
        }
    }

    /// The phase that the step leads to: the machine's own phases are private, but what it does next, and
    /// whether its handler has run, tell them apart.
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
            (Action::Apply(_), false) => Some(Mark::Claiming),
            (Action::Apply(_), true) => Some(Mark::Recording),
            (Action::Read, false) => Some(Mark::LookingForClaim),
            (Action::Read, true) if self.was_claim() => Some(Mark::LookingForRecording),
            (Action::Read, true) => Some(Mark::LookingForSettlement),
            (Action::Claimed(_), _) => Some(Mark::Held),
            (Action::Pause(_), _) => Some(Mark::Pausing),
            _ => None,
        }
    }
}

/// Whether an expiry is what was promised: at `least` then, and for no more than the rounding later.
fn promised(expires_at: Timestamp, least: Timestamp) -> bool {
    least <= expires_at && expires_at <= least.saturating_add(millis(1000))
}
