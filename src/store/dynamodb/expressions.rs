//! The protocol's transitions as DynamoDB reads them: one condition and one update each, as data.
//!
//! Every attribute stands as a placeholder, `#` and its default name, so that any name can be
//! configured and DynamoDB's reserved words (`status`, `owner`, …) do no harm. Values that a record was
//! seen to have are `:seen_…`; the others are what is written, or the claim's own.

use std::collections::HashMap;

use super::attributes::{Attribute, AttributeNames};

/// T4 to T6: the claim is mine and stands. No test of the time: a lease that has run out but was not
/// taken over may still be settled.
const MINE: &str = "#status = :started AND #owner = :owner AND #generation = :generation";

/// One transition.
#[derive(Debug)]
pub(super) struct Transition {
    /// What it changes in the item; `None` if it puts a whole item.
    pub(super) update: Option<&'static str>,
    /// What must be true of the item.
    pub(super) condition: &'static str,
}

/// T1, absent → STARTED.
pub(super) const CLAIM: Transition = Transition { update: None, condition: "attribute_not_exists(#id)" };

/// T2, a settled record → STARTED. The whole item is put, so nothing of the old outcome stays.
pub(super) const RECLAIM_SETTLED: Transition = Transition {
    update: None,
    condition: "#status = :seen_status AND #owner = :seen_owner AND #generation = :seen_generation \
                AND #expires_at = :seen_expires_at",
};

/// T2, a STARTED record that is both stale and expired → STARTED.
pub(super) const RECLAIM_STARTED: Transition = Transition {
    update: None,
    condition: "#status = :seen_status AND #owner = :seen_owner AND #generation = :seen_generation \
                AND #expires_at = :seen_expires_at AND #lease_until = :seen_lease_until",
};

const STALE_AS_SEEN: &str = "#status = :started AND #owner = :seen_owner AND #generation = :seen_generation \
                             AND #lock_acquired_at = :seen_lock_acquired_at \
                             AND #lease_until = :seen_lease_until";

/// T3, stale STARTED → STARTED, by an invocation that has a request id.
pub(super) const TAKE_OVER: Transition = Transition {
    update: Some(
        "SET #owner = :owner, #generation = :generation, #attempt = :attempt, \
         #lock_acquired_at = :lock_acquired_at, #lease_until = :lease_until, #expires_at = :expires_at, \
         #request_id = :request_id",
    ),
    condition: STALE_AS_SEEN,
};

/// T3 by an invocation that has none: the earlier one's must not stay.
pub(super) const TAKE_OVER_NAMELESS: Transition = Transition {
    update: Some(
        "SET #owner = :owner, #generation = :generation, #attempt = :attempt, \
         #lock_acquired_at = :lock_acquired_at, #lease_until = :lease_until, #expires_at = :expires_at \
         REMOVE #request_id",
    ),
    condition: STALE_AS_SEEN,
};

/// T4 and T5 with the response in the record.
pub(super) const SETTLE_INLINE: Transition = Transition {
    update: Some(
        "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding, \
         #response_length = :response_length, #response_sha256 = :response_sha256, #response = :response \
         REMOVE #lease_until",
    ),
    condition: MINE,
};

/// T4 and T5 with the response in siblings.
pub(super) const SETTLE_PARTS: Transition = Transition {
    update: Some(
        "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding, \
         #response_length = :response_length, #response_sha256 = :response_sha256 \
         REMOVE #lease_until",
    ),
    condition: MINE,
};

/// T4 and T5 with no response.
pub(super) const SETTLE_OMITTED: Transition = Transition {
    update: Some(
        "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding \
         REMOVE #lease_until",
    ),
    condition: MINE,
};

/// T6: the expiry stays.
pub(super) const RELEASE: Transition =
    Transition { update: Some("SET #status = :status REMOVE #lease_until"), condition: MINE };

/// Every transition, in the order of [`Plans`].
const ALL: [Transition; 9] = [
    CLAIM,
    RECLAIM_SETTLED,
    RECLAIM_STARTED,
    TAKE_OVER,
    TAKE_OVER_NAMELESS,
    SETTLE_INLINE,
    SETTLE_PARTS,
    SETTLE_OMITTED,
    RELEASE,
];

/// A transition with the names that its placeholders have in one table.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) transition: Transition,
    /// Exactly the placeholders that the expressions use: DynamoDB refuses a name that none does.
    pub(super) names: HashMap<String, String>,
}

/// All plans of one table, made once: a request only clones the few names that it sends.
#[derive(Debug)]
pub(super) struct Plans {
    pub(super) claim: Plan,
    pub(super) reclaim_settled: Plan,
    pub(super) reclaim_started: Plan,
    pub(super) take_over: Plan,
    pub(super) take_over_nameless: Plan,
    pub(super) settle_inline: Plan,
    pub(super) settle_parts: Plan,
    pub(super) settle_omitted: Plan,
    pub(super) release: Plan,
}

impl Plans {
    pub(super) fn new(attributes: &AttributeNames) -> Self {
        let [
            claim,
            reclaim_settled,
            reclaim_started,
            take_over,
            take_over_nameless,
            settle_inline,
            settle_parts,
            settle_omitted,
            release,
        ] = ALL.map(|transition| Plan { names: transition.names(attributes), transition });
        Self {
            claim,
            reclaim_settled,
            reclaim_started,
            take_over,
            take_over_nameless,
            settle_inline,
            settle_parts,
            settle_omitted,
            release,
        }
    }
}

impl Transition {
    fn names(&self, attributes: &AttributeNames) -> HashMap<String, String> {
        let used = [self.update.unwrap_or_default(), self.condition];
        let uses = |placeholder: &str| used.iter().any(|expression| mentions(expression, placeholder));
        Attribute::ALL
            .into_iter()
            .map(|attribute| (format!("#{}", attribute.as_str()), attributes.of(attribute).to_owned()))
            .filter(|(placeholder, _)| uses(placeholder))
            .collect()
    }
}

/// Whether `expression` has `placeholder` as a whole word: `#response` is not in `#response_length`.
fn mentions(expression: &str, placeholder: &str) -> bool {
    expression.match_indices(placeholder).any(|(at, _)| {
        let next = expression[at + placeholder.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn the_expressions_are_pinned() {
        let mut shown = String::new();
        let names = [
            "T1 claim",
            "T2 reclaim, settled",
            "T2 reclaim, STARTED",
            "T3 take over",
            "T3 take over, no request id",
            "T4/T5 complete or fail, response in the record",
            "T4/T5 complete or fail, response in siblings",
            "T4/T5 complete or fail, response omitted",
            "T6 release",
        ];
        for (name, Transition { update, condition }) in names.into_iter().zip(&ALL) {
            let _ = writeln!(shown, "{name}\n  if {condition}");
            if let Some(update) = update {
                let _ = writeln!(shown, "  {update}");
            }
        }
        // What a claim may do to a record is decided here: a change of this file is a change of the
        // protocol (DESIGN.md, section 6), and needs its proof.
        assert_eq!(shown, include_str!("expressions.txt"));
    }

    #[test]
    fn names_are_exactly_those_that_are_used() {
        let attributes = AttributeNames { status: "s".into(), ..AttributeNames::default() };
        for transition in &ALL {
            let names = transition.names(&attributes);
            let text = format!("{} {}", transition.update.unwrap_or_default(), transition.condition);
            let used: std::collections::HashSet<&str> = text
                .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '#'))
                .filter(|word| word.starts_with('#'))
                .collect();
            assert_eq!(names.keys().map(String::as_str).collect::<std::collections::HashSet<_>>(), used);
            if let Some(name) = names.get("#status") {
                assert_eq!(name, "s");
            }
        }
    }

    #[test]
    fn the_names_are_whole_words() {
        assert!(mentions("SET #response = :response", "#response"));
        assert!(!mentions("SET #response_length = :x", "#response"));
        assert!(mentions("SET #response_length = :x, #response = :y", "#response"));
        assert!(mentions("REMOVE #lease_until", "#lease_until"));
    }
}
