//! Classifies a request by its part in the protocol.

use std::fmt::{self, Display};

use lambda_idempotency::{store::Put, testing::Call};
use serde_json::Value;

use super::way::Medium;

/// A call of the protocol: an operation of the store, and the request that performs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// Any other request, which is a violation.
    Other,
}

impl Meaning {
    /// Every meaning but `Other`.
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
    pub(super) fn of_put(put: &Put) -> Self {
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
        let condition = body.get("ConditionExpression").and_then(Value::as_str);
        let id = body.pointer("/Key/id/S").and_then(Value::as_str).unwrap_or_default();
        let new = |value: &str| {
            body.pointer(&format!("/ExpressionAttributeValues/:{value}")).and_then(Value::as_str)
        };
        match (operation, condition) {
            ("PutItem", None) if id_of_item(body).contains("#part#") => Self::PartWritten,
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

    /// Whether this call can happen over this medium. Only the DynamoDB store keeps chunks of a response.
    pub(super) const fn happens_over(self, medium: Medium) -> bool {
        matches!(medium, Medium::Http) || !matches!(self, Self::PartWritten | Self::PartRead)
    }

    /// Whether this call claims a key.
    pub(super) const fn claims(self) -> bool {
        matches!(self, Self::Claim | Self::Reclaim | Self::TakeOver)
    }

    /// Whether this call settles a claim.
    pub(super) const fn settles(self) -> bool {
        matches!(self, Self::Complete | Self::Fail | Self::Release)
    }

    /// Whether the answer to this call can be a failed condition.
    pub(super) const fn has_condition(self) -> bool {
        self.claims() || self.settles()
    }
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
            Self::Other => "other",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_classified_by_their_conditions() {
        let values = |values: Value| json!({ "ConditionExpression": "#s=:vs AND #o=:vo", "ExpressionAttributeValues": values });
        let seen = values(json!({ ":vo": { "B": "YQ==" } }));
        let taken_over = values(json!({ ":vo": { "B": "YQ==" }, ":o": { "B": "Yg==" } }));
        let status = |status: &str| values(json!({ ":vo": { "B": "YQ==" }, ":s": { "S": status } }));
        let decided =
            values(json!({ ":vo": { "B": "YQ==" }, ":o": { "B": "Yg==" }, ":s": { "S": "FAILED" } }));
        for (meaning, operation, body) in [
            (Meaning::Claim, "PutItem", json!({ "ConditionExpression": "attribute_not_exists(#k)" })),
            (Meaning::Reclaim, "PutItem", seen.clone()),
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
        ] {
            assert_eq!(Meaning::of_request(operation, &body), meaning);
        }
    }
}
