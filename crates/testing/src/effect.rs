//! The effects of a test: calls to the ledger, and staged writes.

use std::fmt;

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

/// An effect that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effect {
    /// The effect's name: `charge`.
    pub name: String,
    /// The details that the fake passed.
    pub detail: String,
    /// The idempotency key that the remote system got.
    pub key: Option<String>,
    /// The receipt that the remote system gave.
    pub receipt: String,
    /// The number of the delivery in which the effect happened, from 1.
    pub delivery: usize,
}

/// A remote system's answer to a question for an effect, from [`Ledger::find`](super::Ledger::find).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The effect happened.
    Found(Effect),
    /// The remote system has the request, but hasn't done it yet. Ask again later.
    OnItsWay,
    /// The remote system knows nothing of it.
    Nothing,
}

/// A remote system gave no answer, so the effect may have happened. A retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no answer from the remote system; the effect may have happened")
    }
}

impl std::error::Error for NoAnswer {}

impl From<&Happened> for Effect {
    fn from(happened: &Happened) -> Self {
        Self {
            name: happened.name.clone(),
            detail: happened.detail.clone(),
            key: happened.key.clone(),
            receipt: happened.receipt.clone(),
            delivery: happened.delivery + 1,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delivery {}: {} ({})", self.delivery, self.name, self.detail)?;
        match &self.key {
            Some(key) => write!(f, " under the key {key}"),
            None => Ok(()),
        }
    }
}
