//! For a run without a claim: checks the step after its conclusion has met another delivery's record.

use lambda_idempotency::{
    protocol::{Action, End, Refusal},
    store::State as RecordState,
};

use super::Step;
use crate::invariants::{Flaws, Invariant};

impl Step<'_> {
    /// Checks the step after a conclusion has met another delivery's record. A live record of another request must end
    /// the run as a mismatch. A live outcome of the same request must supersede the run's outcome, and an expired
    /// outcome must not.
    pub(super) fn rivals(&self, flaws: &mut Flaws) {
        let Some(record) = self.shown().filter(|record| record.owner != self.plan.owner) else { return };
        let matches = record.fingerprint == self.plan.fingerprint;
        let is_expired = record.expires_at.is_some_and(|expires_at| self.has_passed(expires_at));
        let (is_live, is_settled) = match record.state {
            RecordState::Started { lease_until } => (!(self.has_passed(lease_until) && is_expired), false),
            RecordState::Completed(_) | RecordState::Failed(_) => (!is_expired, true),
            RecordState::Released => (false, false),
        };
        if is_live && !matches {
            let refused = Action::Settled(End::NotCommitted(Refusal::Mismatch));
            flaws.unless(*self.action == refused, Invariant::MismatchHarmless);
        }
        if is_live && is_settled && matches {
            let stands = matches!(self.action, Action::Settled(End::Superseded(other)) if other == record);
            flaws.unless(stands, Invariant::ReplayTrue);
        }
        if !is_live && is_settled {
            let is_replayed = matches!(self.action, Action::Settled(End::Superseded(_)));
            flaws.unless(!is_replayed, Invariant::ExpiredNotReplayed);
        }
    }
}
