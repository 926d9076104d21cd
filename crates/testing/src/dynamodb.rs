//! Writes that a handler stages for DynamoDB.

use std::{any::Any, sync::OnceLock};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Region},
};
use lambda_idempotency::{
    kit::dynamodb::{DescribedWrite, described as describe},
    store::dynamodb::{DynamoDbStore, Transaction},
};
use lambda_idempotency_core::{
    StoredKey,
    store::{OwnWrites, StoreError, Transactions as _},
};

use super::effect::{Guard, Origin, StagedEffect};

/// Checks writes for DynamoDB against its limits, such as one write per item. Sends no request. `None` if the writes are
/// for another store.
pub(super) fn checked(key: &StoredKey, writes: &OwnWrites) -> Option<Result<(), StoreError>> {
    static STORE: OnceLock<Option<DynamoDbStore>> = OnceLock::new();
    let any: &dyn Any = writes;
    if !any.is::<Transaction>() {
        return None;
    }
    let make = || {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("eu-central-1"));
        DynamoDbStore::new(Client::from_conf(config.build()), "idempotency").ok()
    };
    Some(STORE.get_or_init(make).as_ref()?.check(key, writes))
}

/// Returns a handler's writes for DynamoDB as effects. `None` if the writes are for another store.
pub(super) fn described(writes: &OwnWrites) -> Option<Vec<StagedEffect>> {
    let writes: &dyn Any = writes;
    let described = describe(writes.downcast_ref::<Transaction>()?);
    // A condition on one item often protects the writes of the other items, such as a version of all of them. A
    // condition that an item is absent doesn't.
    let is_protected = described.iter().any(|write| guard(&write.condition, false) == Guard::Strong);
    let effect = |write: DescribedWrite| {
        let guard = if is_protected { Guard::Strong } else { guard(&write.condition, true) };
        (write.name, write.detail, Origin::Staged(write.item, guard))
    };
    Some(described.into_iter().map(effect).collect())
}

/// Returns how a condition of DynamoDB's protects a write. `is_own` says whether it's the condition of this write, and
/// not of another write in the same transaction.
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

#[cfg(test)]
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
