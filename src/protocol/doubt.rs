//! Tracks a transaction that's declined when it's sent again after an ambiguous answer: its first attempt may
//! still be on its way.
//!
//! A stored settlement fences that attempt, or finds its outcome if it was first. Without one, the library
//! mustn't report that nothing was applied.

use crate::{
    protocol::{Action, End, Phase, Rules},
    time::Timestamp,
};

/// The doubt before a step.
pub(super) struct Doubt {
    is_in_doubt: bool,
    /// Whether the transaction that was sent to the store had an ambiguous answer before.
    is_doubtful: bool,
    /// Set while settling: when the key becomes claimable, or `None` inside if there's no claim.
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

    /// Returns whether anything is in doubt after `action`, and the action to report in its place.
    pub(super) fn told(self, action: Action) -> (bool, Action) {
        let is_in_doubt = self.is_in_doubt || self.is_doubtful && matches!(action, Action::Declined(_));
        let action = match (&action, self.settles) {
            // Without a claim, a release stores nothing that would fence the attempt.
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
