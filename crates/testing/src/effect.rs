//! The effects of a test: calls to the ledger, and staged writes.

/// An effect that happened.
#[derive(Clone, Debug)]
pub(super) struct Happened {
    pub(super) name: String,
    pub(super) detail: String,
    pub(super) key: Option<String>,
    pub(super) receipt: String,
    pub(super) delivery: usize,
    /// Whether the delivery held a claim, or commits the effect together with the outcome.
    pub(super) is_claimed: bool,
    /// Whether the effect happened after the delivery's answer. Never set for a staged write: if its transaction
    /// arrives late, the handler made no mistake.
    pub(super) is_late: bool,
    pub(super) origin: Origin,
}

/// Where an effect comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// [`Ledger::record`](super::Ledger::record).
    Recorded,
    /// [`Ledger::call`](super::Ledger::call).
    Called,
    /// [`Ledger::send`](super::Ledger::send).
    Sent,
    /// A staged write of this item, with this condition.
    Staged(String, Guard),
}

/// The condition of a staged write of DynamoDB's type. The bench can't check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "dynamodb"),
    expect(dead_code, reason = "only DynamoDB's writes have such conditions")
)]
pub(super) enum Guard {
    /// No condition, or one that the bench checks.
    None,
    /// The item must exist, or have at least this much.
    Weak,
    /// Any other condition: another write of the item may make it fail.
    Strong,
}

/// A handler's own write as an effect: its name, its details, and where it comes from.
pub(super) type StagedEffect = (String, String, Origin);

impl Happened {
    pub(super) const fn is_staged(&self) -> bool {
        matches!(self.origin, Origin::Staged(..))
    }

    /// Returns the part of the effect that's the same whatever other operations did before: for a staged write, the
    /// item without its value.
    pub(super) fn what(&self) -> &str {
        match &self.origin {
            Origin::Staged(item, _) => item,
            Origin::Recorded | Origin::Called | Origin::Sent => &self.detail,
        }
    }
}
