//! Classifies a request by its part in the protocol.

use std::fmt::{self, Display};

use lambda_idempotency_core::store::Put;
use lambda_idempotency_testing::Call;
use serde_json::Value;

/// A call of the protocol: an operation of the store, and the request that performs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Meaning {
    /// T1: claims a key that has no record.
    Claim,
    /// T2: claims a key whose record is released or expired.
    Reclaim,
    /// T3: takes over a stale claim.
    TakeOver,
    /// T4: records the outcome.
    Complete,
    /// T5: records a permanent failure.
    Fail,
    /// T6: releases the key.
    Release,
    /// Reads a record: after an ambiguous answer, or because a failed condition didn't return it.
    Look,
    /// Writes a chunk of a large response.
    PartWritten,
    /// Reads a chunk of a large response.
    PartRead,
    /// The payment of the rehearsal's example function.
    Payment,
    /// Any other request.
    #[default]
    Other,
}

impl Meaning {
    /// Every meaning but `Payment` and `Other`.
    pub const ALL: [Self; 9] = [
        Self::Claim,
        Self::Reclaim,
        Self::TakeOver,
        Self::Complete,
        Self::Fail,
        Self::Release,
        Self::Look,
        Self::PartWritten,
        Self::PartRead,
    ];

    /// Returns the meaning of this put.
    #[must_use]
    pub fn of_put(put: &Put) -> Self {
        match Call::of(put) {
            Call::Claim => Self::Claim,
            Call::Reclaim => Self::Reclaim,
            Call::TakeOver => Self::TakeOver,
            // Only an operator replaces a record by a settled one of the same run.
            _ if matches!(put, Put::Replace { .. }) => Self::Other,
            Call::Complete => Self::Complete,
            Call::Fail => Self::Fail,
            Call::Release => Self::Release,
            // The operation under test neither extends a lease nor concludes without a claim.
            Call::Extend | Call::Conclude => Self::Other,
        }
    }

    /// Returns the meaning of a request, judged only by its operation and body, and not by the library's call that sent
    /// it.
    pub(super) fn of_request(operation: &str, body: &Value) -> Self {
        if operation == "TransactWriteItems" {
            return Self::of_transaction(body);
        }
        let condition = body.get("ConditionExpression").and_then(Value::as_str);
        let id = body.pointer("/Key/id/S").and_then(Value::as_str).unwrap_or_default();
        let new = |value: &str| {
            body.pointer(&format!("/ExpressionAttributeValues/:{value}")).and_then(Value::as_str)
        };
        match (operation, condition) {
            ("PutItem", None) if id_of_item(body).contains("#part#") => Self::PartWritten,
            ("PutItem", Some(_)) if !is_claimed(body) => Self::Other,
            ("PutItem", Some(condition)) if condition.starts_with("attribute_not_exists") => Self::Claim,
            ("PutItem", Some(_)) => Self::Reclaim,
            // A new owner takes the claim over. A new status settles it.
            ("UpdateItem", Some(_)) => match (new("o/B"), new("s/S")) {
                (Some(_), None) => Self::TakeOver,
                (None, Some("COMPLETED")) => Self::Complete,
                (None, Some("FAILED")) => Self::Fail,
                (None, Some("RELEASED")) => Self::Release,
                _ => Self::Other,
            },
            ("GetItem", None) if id.contains("#part#") => Self::PartRead,
            ("GetItem", None) => Self::Look,
            _ => Self::Other,
        }
    }

    /// A transaction has the meaning of the update in it that settles a claim.
    fn of_transaction(body: &Value) -> Self {
        let actions = body.get("TransactItems").and_then(Value::as_array).into_iter().flatten();
        let updates = actions.filter_map(|action| action.get("Update"));
        let mut meanings = updates.map(|update| Self::of_request("UpdateItem", update));
        meanings.find(|meaning| meaning.settles()).unwrap_or_default()
    }

    /// Whether this call writes or reads a chunk of a response. Only the DynamoDB store has chunks.
    #[must_use]
    pub const fn is_of_chunks(self) -> bool {
        matches!(self, Self::PartWritten | Self::PartRead)
    }

    /// Whether this call claims a key.
    #[must_use]
    pub const fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::Reclaim | Self::TakeOver)
    }

    /// Whether this call settles a claim.
    #[must_use]
    pub const fn settles(self) -> bool {
        matches!(self, Self::Complete | Self::Fail | Self::Release)
    }

    /// Whether the answer to this call can be a failed condition.
    #[must_use]
    pub const fn has_condition(self) -> bool {
        self.claims() || self.settles()
    }
}

/// Whether the request puts a STARTED record. The names of states are fixed, whereas attributes can be renamed.
fn is_claimed(body: &Value) -> bool {
    let attributes = body.get("Item").and_then(Value::as_object).into_iter().flatten();
    attributes.filter_map(|(_, value)| value.get("S")?.as_str()).any(|text| text == "STARTED")
}

fn id_of_item(body: &Value) -> &str {
    body.pointer("/Item/id/S").and_then(Value::as_str).unwrap_or_default()
}

impl Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Claim => "T1 claim",
            Self::Reclaim => "T2 reclaim",
            Self::TakeOver => "T3 takeover",
            Self::Complete => "T4 complete",
            Self::Fail => "T5 fail",
            Self::Release => "T6 release",
            Self::Look => "look",
            Self::PartWritten => "part written",
            Self::PartRead => "part read",
            Self::Payment => "payment",
            Self::Other => "other",
        })
    }
}

/// The owner that a claim writes, or that a settlement expects in the record.
pub(super) fn owner_of_request(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let updates = body.get("TransactItems").and_then(Value::as_array).into_iter().flatten();
    let update = updates.filter_map(|item| item.get("Update")).next_back().unwrap_or(&body);
    let values = |name: &str| update.pointer(&format!("/ExpressionAttributeValues/:{name}/B"));
    let owner = body.pointer("/Item/owner/B").or_else(|| values("o")).or_else(|| values("vo"))?;
    owner.as_str().map(str::to_owned)
}

/// The owner in the record that the answer to a failed condition returns.
pub(super) fn owner_of_answer(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let reasons = body.get("CancellationReasons").and_then(Value::as_array).into_iter().flatten();
    let owner = |of: &Value| of.pointer("/Item/owner/B").and_then(Value::as_str).map(str::to_owned);
    std::iter::once(&body).chain(reasons).find_map(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_classified_by_their_conditions() {
        let values = |values: Value| json!({ "ConditionExpression": "#s=:vs AND #o=:vo", "ExpressionAttributeValues": values });
        let put = |condition: &str, status: &str| json!({ "ConditionExpression": condition, "Item": { "status": { "S": status } } });
        let seen = values(json!({ ":vo": { "B": "YQ==" } }));
        let taken_over = values(json!({ ":vo": { "B": "YQ==" }, ":o": { "B": "Yg==" } }));
        let status = |status: &str| values(json!({ ":vo": { "B": "YQ==" }, ":s": { "S": status } }));
        let decided =
            values(json!({ ":vo": { "B": "YQ==" }, ":o": { "B": "Yg==" }, ":s": { "S": "FAILED" } }));
        for (meaning, operation, body) in [
            (Meaning::Claim, "PutItem", put("attribute_not_exists(#k)", "STARTED")),
            (Meaning::Reclaim, "PutItem", put("#s=:vs AND #o=:vo", "STARTED")),
            // A run without a claim stores its outcome.
            (Meaning::Other, "PutItem", put("attribute_not_exists(#k)", "COMPLETED")),
            (Meaning::TakeOver, "UpdateItem", taken_over),
            // The program under test neither extends a lease nor decides for an operator.
            (Meaning::Other, "UpdateItem", seen),
            (Meaning::Other, "UpdateItem", decided),
            (Meaning::Complete, "UpdateItem", status("COMPLETED")),
            (Meaning::Fail, "UpdateItem", status("FAILED")),
            (Meaning::Release, "UpdateItem", status("RELEASED")),
            (Meaning::Look, "GetItem", json!({ "Key": { "id": { "S": "f/o#1" } } })),
            (Meaning::PartRead, "GetItem", json!({ "Key": { "id": { "S": "f/o#1#part#a#0" } } })),
            (Meaning::PartWritten, "PutItem", json!({ "Item": { "id": { "S": "f/o#1#part#a#0" } } })),
            // The protocol never writes a record without a condition.
            (Meaning::Other, "PutItem", json!({ "Item": { "id": { "S": "f/o#1" } } })),
            (Meaning::Other, "DeleteItem", json!({})),
            (
                Meaning::Complete,
                "TransactWriteItems",
                json!({ "TransactItems": [{ "Put": {} }, { "Update": status("COMPLETED") }] }),
            ),
            (Meaning::Other, "TransactWriteItems", json!({ "TransactItems": [{ "Put": {} }] })),
        ] {
            assert_eq!(Meaning::of_request(operation, &body), meaning);
        }
    }
}
