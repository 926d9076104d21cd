//! Performs the testing kit's faults on writes, reads and processes.

use lambda_idempotency::store::{Outcome, StoreErrorKind};
use lambda_idempotency_testing::Fault;

use super::{Checker, Happening, Heard};
use crate::{
    coverage::Mark,
    model::{Late, Slot, Stage},
    under_test::{Protocol, outcome},
};

impl<P: Protocol> Checker<'_, P> {
    /// Lets `fault` strike an executor, its write or its read. Returns `None` if the fault changes nothing,
    /// or can't happen here.
    pub(super) fn strike(&mut self, it: &mut Happening, at: u8, fault: Fault) -> Option<()> {
        let slot = *it.slot(at);
        let is_read = slot.stage == Stage::Reading;
        // If the client has sent the write twice, an error of the second attempt says nothing about the first.
        let mut may_be_applied = fault.is_ambiguous() || (slot.is_retried && !is_read);
        let mark = match fault {
            Fault::Die => {
                self.effect_is_left(it, at);
                it.slot(at).end();
                it.reach(crashed(&slot));
                return Some(());
            }
            Fault::Retry => {
                self.apply_unanswered(it, at)?;
                it.retry(at, Mark::SdkRetry);
                return Some(());
            }
            Fault::RetryLate => {
                it.put_in_flight(at)?;
                it.retry(at, Mark::SdkRetryLate);
                return Some(());
            }
            Fault::LoseAnswer => {
                self.apply_unanswered(it, at)?;
                Mark::AnswerLost
            }
            Fault::LoseRequest => Mark::NotApplied,
            Fault::Late => {
                it.put_in_flight(at)?;
                Mark::LateSent
            }
            Fault::Throttle if is_read => Mark::ReadFailed,
            Fault::Throttle => Mark::Throttled,
            Fault::Conflict => {
                let is_late = self.is_transaction(slot.write)
                    && it.explored.late.iter().any(|late| late.write == slot.write);
                // The conflicting transaction may be an earlier attempt at this same transaction.
                may_be_applied |= is_late;
                if may_be_applied { Mark::ConflictDoubtful } else { Mark::Conflict }
            }
            Fault::Refuse => Mark::Rejected,
            Fault::Unstorable => {
                // Only a response can be refused for good.
                let Some(Outcome::Retained(_)) = outcome(self.put(slot.write)?.record()) else { return None };
                it.slot(at).is_unstorable = true;
                Mark::Unstorable
            }
            Fault::Unreadable if is_read => Mark::ReadUnreadable,
            Fault::Unreadable => Mark::Unreadable,
            // `faults::choices` offers no other fault.
            _ => return None,
        };
        it.reach(mark);
        self.fail(it, at, fault.error_kind()?, may_be_applied);
        Some(())
    }

    /// Applies the executor's write, and loses the response. Returns `None` if the write would change
    /// nothing, since the result is then the same as for a lost write.
    fn apply_unanswered(&mut self, it: &mut Happening, at: u8) -> Option<()> {
        let (write, sender) = it.sent_by(at);
        (!self.store(it, write, sender)?.changes_nothing()).then_some(())
    }

    /// The store answers with an error, or doesn't answer. The executor learns of the failure at once. To explore
    /// an executor that learns of it later, the checker offers the same choice at a later moment.
    fn fail(&mut self, it: &mut Happening, at: u8, kind: StoreErrorKind, maybe_applied: bool) {
        self.step(it, at, Heard::Failed(kind, maybe_applied));
    }
}

impl Happening {
    /// Notes that the client (the SDK) sends the executor's write again.
    fn retry(&mut self, at: u8, mark: Mark) {
        let slot = self.slot(at);
        (slot.is_retried, slot.is_urgent) = (true, true);
        self.reach(mark);
    }

    pub(super) fn put_in_flight(&mut self, at: u8) -> Option<()> {
        let (write, sender) = self.sent_by(at);
        *self.explored.late.iter_mut().find(|late| late.write == 0)? = Late { write, sender };
        Some(())
    }
}

/// The mark for an executor that dies in its current stage.
fn crashed(slot: &Slot) -> Mark {
    let has_run = slot.held != 0 || slot.is_open;
    match slot.stage {
        Stage::Running | Stage::Extending if slot.is_question => Mark::CrashAsking,
        Stage::Extending => Mark::CrashExtending,
        Stage::Applying if has_run => Mark::CrashSettling,
        Stage::Idle | Stage::Applying => Mark::CrashSending,
        Stage::Reading => Mark::CrashReading,
        Stage::Answered => Mark::CrashAnswered,
        Stage::Pausing => Mark::CrashPausing,
        Stage::Running => Mark::CrashRunning,
    }
}
