//! Requests to the test's records: applied at once, or after their sender has given up.

use std::any::Any;

use super::effect::{Guard, Origin};
use crate::{
    internal::testing::Transaction,
    internal::testing::TransactionExt as _,
    key::StoredKey,
    outcome::Outcome,
    record::State,
    store::{OwnWrites, Put},
};

/// A handler's own write as an effect: its name, its details, and where it comes from.
pub(super) type StagedEffect = (String, String, Origin);

/// A handler's own writes.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Empty for writes of DynamoDB's type: the bench can't check their conditions, so it treats them as met.
    pub(super) writes: Transaction,
    pub(super) effects: Vec<StagedEffect>,
    pub(super) token: String,
}

impl Own {
    pub(super) fn new(writes: &OwnWrites, token: &str) -> Self {
        let any: &dyn Any = writes;
        Self {
            writes: any.downcast_ref().cloned().unwrap_or_default(),
            effects: described(writes).unwrap_or_default(),
            token: token.to_owned(),
        }
    }
}

/// A write of the protocol, alone or in one transaction with the handler's own writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) key: &'a StoredKey,
    pub(super) put: &'a Put,
    pub(super) own: Option<&'a Own>,
}

/// A request whose sender has given up on it.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) delivery: usize,
    pub(super) key: StoredKey,
    pub(super) put: Put,
    pub(super) own: Option<Own>,
}

impl Request<'_> {
    /// Whether the request has a response to store.
    pub(super) fn has_response(self) -> bool {
        let (State::Completed(outcome) | State::Failed(outcome)) = &self.put.record().state else {
            return false;
        };
        matches!(outcome, Outcome::Retained(_))
    }
}

/// Returns a handler's writes as effects. `None` if the test's store doesn't know their type.
pub(super) fn described(writes: &OwnWrites) -> Option<Vec<StagedEffect>> {
    let writes: &dyn Any = writes;
    if let Some(own) = writes.downcast_ref::<Transaction>() {
        let effect = |(name, item, detail): (_, _, _)| (name, detail, Origin::Staged(item, Guard::None));
        return Some(own.described().into_iter().map(effect).collect());
    }
    #[cfg(feature = "dynamodb")]
    if let Some(own) = writes.downcast_ref::<crate::store::dynamodb::Transaction>() {
        let described = own.described();
        // A condition on one item often protects the writes of the other items, such as a version of all of them. A
        // condition that an item is absent doesn't.
        let is_protected = described.iter().any(|write| guard(&write.condition, false) == Guard::Strong);
        let effect = |write: crate::store::dynamodb::DescribedWrite| {
            let guard = if is_protected { Guard::Strong } else { guard(&write.condition, true) };
            (write.name, write.detail, Origin::Staged(write.item, guard))
        };
        return Some(described.into_iter().map(effect).collect());
    }
    None
}

/// Returns how a condition of DynamoDB's protects a write. `is_own` says whether it's the condition of this write, and
/// not of another write in the same transaction.
#[cfg(feature = "dynamodb")]
fn guard(condition: &str, is_own: bool) -> Guard {
    let condition = condition.to_lowercase();
    let terms = condition.split(" and ").map(|term| term.trim_matches([' ', '(']));
    let guards = terms.map(|term| match term {
        "" => Guard::None,
        _ if term.starts_with("attribute_exists") => Guard::Weak,
        _ if term.starts_with("attribute_not_exists") && !is_own => Guard::Weak,
        // At least this much: `cents >= :cents`.
        _ if term.contains('>') && !term.contains(['<']) && !term.starts_with(':') => Guard::Weak,
        _ => Guard::Strong,
    });
    guards.max_by_key(|guard| *guard as u8).unwrap_or(Guard::None)
}

#[cfg(all(test, feature = "dynamodb"))]
mod tests {
    use super::{Guard, guard};

    #[test]
    fn conditions_protect_more_or_less() {
        for (condition, own, others) in [
            ("", Guard::None, Guard::None),
            ("attribute_exists(id)", Guard::Weak, Guard::Weak),
            ("attribute_exists(id) AND cents >= :cents", Guard::Weak, Guard::Weak),
            ("attribute_not_exists(id)", Guard::Strong, Guard::Weak),
            ("cents = :old", Guard::Strong, Guard::Strong),
            ("attribute_exists(id) AND (version = :version)", Guard::Strong, Guard::Strong),
            ("version < :version", Guard::Strong, Guard::Strong),
            (":version > version", Guard::Strong, Guard::Strong),
        ] {
            assert_eq!((guard(condition, true), guard(condition, false)), (own, others), "{condition}");
        }
    }
}
