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

/// T4 to T6.
const SETTLE: Settling<Transition> = Settling {
    inline: Transition {
        update: Some(
            "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding, \
             #response_length = :response_length, #response_sha256 = :response_sha256, #response = :response \
             REMOVE #lease_until",
        ),
        condition: MINE,
    },
    parts: Transition {
        update: Some(
            "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding, \
             #response_length = :response_length, #response_sha256 = :response_sha256 \
             REMOVE #lease_until",
        ),
        condition: MINE,
    },
    omitted: Transition {
        update: Some(
            "SET #status = :status, #expires_at = :expires_at, #response_encoding = :response_encoding \
             REMOVE #lease_until",
        ),
        condition: MINE,
    },
    // The expiry stays.
    release: Transition { update: Some("SET #status = :status REMOVE #lease_until"), condition: MINE },
};

/// T7. A lease is never shortened.
pub(super) const EXTEND: Transition = Transition {
    update: Some("SET #lease_until = :lease_until, #expires_at = :expires_at"),
    condition: "#status = :started AND #owner = :owner AND #generation = :generation \
                AND #lease_until < :lease_until",
};

/// A STARTED record is the very version that was seen.
const STARTED_AS_SEEN: &str = "#status = :seen_status AND #owner = :seen_owner AND #generation = :seen_generation \
     AND #lock_acquired_at = :seen_lock_acquired_at AND #expires_at = :seen_expires_at \
     AND #lease_until = :seen_lease_until";

/// The same of a settled record, which has no lease.
const SETTLED_AS_SEEN: &str = "#status = :seen_status AND #owner = :seen_owner AND #generation = :seen_generation \
     AND #lock_acquired_at = :seen_lock_acquired_at AND #expires_at = :seen_expires_at";

/// Without a claim, absent → settled. The whole item is put, here and in the two that follow.
pub(super) const CONCLUDE_ABSENT: Transition =
    Transition { update: None, condition: "attribute_not_exists(#id)" };

/// Without a claim, a STARTED record that no longer counts → settled.
pub(super) const CONCLUDE_STARTED: Transition = Transition { update: None, condition: STARTED_AS_SEEN };

/// Without a claim, a settled record that no longer counts → settled.
pub(super) const CONCLUDE_SETTLED: Transition = Transition { update: None, condition: SETTLED_AS_SEEN };

/// An operator's write on a STARTED record.
const RESOLVE_STARTED: Settling<Transition> = resolve(STARTED_AS_SEEN);

/// The same on a settled record.
const RESOLVE_SETTLED: Settling<Transition> = resolve(SETTLED_AS_SEEN);

/// Of the old lease and the old outcome, it removes whatever it does not set.
const fn resolve(condition: &'static str) -> Settling<Transition> {
    Settling {
        inline: Transition {
            update: Some(
                "SET #status = :status, #owner = :owner, #generation = :generation, #expires_at = :expires_at, \
                 #response_encoding = :response_encoding, #response_length = :response_length, \
                 #response_sha256 = :response_sha256, #response = :response \
                 REMOVE #lease_until",
            ),
            condition,
        },
        parts: Transition {
            update: Some(
                "SET #status = :status, #owner = :owner, #generation = :generation, #expires_at = :expires_at, \
                 #response_encoding = :response_encoding, #response_length = :response_length, \
                 #response_sha256 = :response_sha256 \
                 REMOVE #lease_until, #response",
            ),
            condition,
        },
        omitted: Transition {
            update: Some(
                "SET #status = :status, #owner = :owner, #generation = :generation, #expires_at = :expires_at, \
                 #response_encoding = :response_encoding \
                 REMOVE #lease_until, #response_length, #response_sha256, #response",
            ),
            condition,
        },
        // The expiry stays.
        release: Transition {
            update: Some(
                "SET #status = :status, #owner = :owner, #generation = :generation \
                 REMOVE #lease_until, #response_encoding, #response_length, #response_sha256, #response",
            ),
            condition,
        },
    }
}

/// What settles a record, by what it leaves there.
#[derive(Debug)]
pub(super) struct Settling<T> {
    /// The response, in the record.
    pub(super) inline: T,
    /// The response, in siblings.
    pub(super) parts: T,
    /// An outcome without its response.
    pub(super) omitted: T,
    /// No outcome.
    pub(super) release: T,
}

impl<T> Settling<T> {
    fn map<U>(self, f: impl Fn(T) -> U) -> Settling<U> {
        let Self { inline, parts, omitted, release } = self;
        Settling { inline: f(inline), parts: f(parts), omitted: f(omitted), release: f(release) }
    }
}

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
    pub(super) settle: Settling<Plan>,
    pub(super) extend: Plan,
    pub(super) conclude_absent: Plan,
    pub(super) conclude_started: Plan,
    pub(super) conclude_settled: Plan,
    pub(super) resolve_started: Settling<Plan>,
    pub(super) resolve_settled: Settling<Plan>,
}

impl Plans {
    pub(super) fn new(attributes: &AttributeNames) -> Self {
        let plan = |transition: Transition| Plan { names: transition.names(attributes), transition };
        Self {
            claim: plan(CLAIM),
            reclaim_settled: plan(RECLAIM_SETTLED),
            reclaim_started: plan(RECLAIM_STARTED),
            take_over: plan(TAKE_OVER),
            take_over_nameless: plan(TAKE_OVER_NAMELESS),
            settle: SETTLE.map(plan),
            extend: plan(EXTEND),
            conclude_absent: plan(CONCLUDE_ABSENT),
            conclude_started: plan(CONCLUDE_STARTED),
            conclude_settled: plan(CONCLUDE_SETTLED),
            resolve_started: RESOLVE_STARTED.map(plan),
            resolve_settled: RESOLVE_SETTLED.map(plan),
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

    /// Every transition, by its name.
    fn all() -> Vec<(String, Transition)> {
        let mut all = vec![
            ("T1 claim".to_owned(), CLAIM),
            ("T2 reclaim, settled".to_owned(), RECLAIM_SETTLED),
            ("T2 reclaim, STARTED".to_owned(), RECLAIM_STARTED),
            ("T3 take over".to_owned(), TAKE_OVER),
            ("T3 take over, no request id".to_owned(), TAKE_OVER_NAMELESS),
            ("T7 extend".to_owned(), EXTEND),
            ("conclude, absent".to_owned(), CONCLUDE_ABSENT),
            ("conclude, STARTED".to_owned(), CONCLUDE_STARTED),
            ("conclude, settled".to_owned(), CONCLUDE_SETTLED),
        ];
        for ([settle, release], Settling { inline, parts, omitted, release: released }) in [
            (["T4/T5 complete or fail", "T6 release"], SETTLE),
            (["operator, STARTED: complete or fail", "operator, STARTED: release"], RESOLVE_STARTED),
            (["operator, settled: complete or fail", "operator, settled: release"], RESOLVE_SETTLED),
        ] {
            all.extend([
                (format!("{settle}, response in the record"), inline),
                (format!("{settle}, response in siblings"), parts),
                (format!("{settle}, response omitted"), omitted),
                (release.to_owned(), released),
            ]);
        }
        all
    }

    #[test]
    fn the_expressions_are_pinned() {
        let mut shown = String::new();
        for (name, Transition { update, condition }) in all() {
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
    fn what_an_operator_does_not_set_of_an_outcome_it_removes() {
        for (name, Transition { update, .. }) in all().into_iter().filter(|(name, _)| name.starts_with("op"))
        {
            let update = update.unwrap();
            for attribute in
                ["#lease_until", "#response_encoding", "#response_length", "#response_sha256", "#response"]
            {
                assert!(mentions(update, attribute), "{name} leaves {attribute}");
            }
        }
    }

    #[test]
    fn names_are_exactly_those_that_are_used() {
        let attributes = AttributeNames { status: "s".into(), ..AttributeNames::default() };
        for (_, transition) in all() {
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
