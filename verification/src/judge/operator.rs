//! Checks the steps of an operator.

use lambda_idempotency::{
    protocol::{Action, End, Event, Fault},
    store::Status,
};

use super::{Step, is_promised};
use crate::{
    configuration::millis,
    coverage::Mark,
    invariants::{Flaws, Invariant},
    under_test::Purpose,
};

impl Step<'_> {
    /// Whether this is an operator's step.
    pub(super) fn is_operators(&self) -> bool {
        matches!(self.event, Event::Resolve { .. }) || self.was(Purpose::Resolve)
    }

    /// Checks that an operator looks into doubt, recognises the write by its owner, and writes what was decided.
    pub(super) fn operator(&self, flaws: &mut Flaws) {
        let is_doubtful = matches!(self.event, Event::Failed(Fault { maybe_applied: true, .. }));
        flaws.unless(!is_doubtful || *self.action == Action::Read, Invariant::DoubtLookedInto);
        if let Some(record) = self.shown().filter(|record| record.owner == self.plan.owner) {
            let is_recognised = matches!(self.action, Action::Resolved(Some(told)) if told == record);
            flaws.unless(is_recognised, Invariant::OwnRecognised);
        }
        if let Some(new) = self.sends().filter(|put| Some(*put) != self.put()).map(|put| put.record()) {
            flaws.unless(new.owner == self.plan.owner, Invariant::VerdictKept);
            let least = self.now.saturating_add(millis(self.configuration.retention));
            let is_kept = new.status() == Status::Released || is_promised(new, least);
            flaws.unless(is_kept, Invariant::ExpiryPromised);
        }
    }

    pub(super) fn operators_mark(&self) -> Option<Mark> {
        match self.action {
            Action::Read => Some(Mark::OperatorAsks),
            Action::Put(put) if self.put() == Some(put) => Some(Mark::OperatorRepeats),
            Action::Put(_) if self.shown().is_some() => Some(Mark::OperatorFollows),
            Action::Resolved(Some(_)) if self.shown().is_some() => Some(Mark::OperatorRecognised),
            Action::Resolved(None) => Some(Mark::OperatorUnwritten),
            Action::Settled(End::Unresolved(None)) => Some(Mark::OperatorInDoubt),
            _ => None,
        }
    }
}
