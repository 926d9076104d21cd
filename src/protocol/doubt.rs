//! A transaction that is declined when it is sent again, after a doubtful answer: its first attempt may be on its way.
//!
//! A settlement that is stored fences it, and finds it where it was first. Where none is stored, nobody may be told that
//! it is not made.

use crate::{
    protocol::{Action, End, Phase, Rules},
    time::Timestamp,
};

/// What was in doubt before a step.
pub(super) struct Doubt {
    is_in_doubt: bool,
    /// Whether the transaction that is with the store was answered doubtfully before.
    is_doubtful: bool,
    /// What is being settled: from when on its key can be claimed; `None` in it where there is no claim.
    settles: Option<Option<Timestamp>>,
}

impl Doubt {
    pub(super) fn of(rules: &Rules, phase: &Phase, is_in_doubt: bool) -> Self {
        let (is_doubtful, settles) = match phase {
            Phase::Committing(commit) => (commit.is_doubtful(), None),
            Phase::Settling { held, .. } | Phase::LookingForSettlement { held, .. } => {
                (false, Some(Some(rules.claimable_at(held.lease_until))))
            }
            Phase::Open(_) => (false, Some(None)),
            _ => (false, None),
        };
        Self { is_in_doubt, is_doubtful, settles }
    }

    /// Whether anything is in doubt after `action`, and what to tell in its place.
    pub(super) fn told(self, action: Action) -> (bool, Action) {
        let is_in_doubt = self.is_in_doubt || self.is_doubtful && matches!(action, Action::Declined(_));
        let action = match (&action, self.settles) {
            // Without a claim, who gives nothing back has stored nothing.
            (Action::Settled(End::Unrecorded(_)), Some(until @ Some(_)))
            | (Action::Settled(End::Recorded), Some(until @ None))
                if is_in_doubt =>
            {
                Action::Settled(End::Unresolved(until))
            }
            _ => action,
        };
        (is_in_doubt, action)
    }
}
