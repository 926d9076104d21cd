//! The protocol's transitions as DynamoDB expressions. Each has a condition. It also has an update, unless it puts a
//! whole item. `expressions.txt` lists all of them.
//!
//! Every attribute appears as a placeholder, `#` and its default name. So any name can be configured, and
//! DynamoDB's reserved words (`status`, `owner`, …) cause no errors. Placeholders `:seen_…` hold the values of
//! the record as it was seen. All other `:` placeholders hold values to write, or the claim's own values.

use std::collections::HashMap;

use super::attributes::{Attribute, AttributeNames};
use crate::{
    record::{Lock, Status},
    store::Revision,
};

/// The condition of T1, and of a conclusion ([`Write::Conclude`](crate::store::Write::Conclude)) if no record exists.
const ABSENT: &str = "attribute_not_exists(#id)";

/// The condition of T4 to T6: the record still holds this executor's claim. It doesn't test the time: a claim whose
/// lease has expired can still settle until it's taken over.
const MINE: &str = "#status = :started AND #owner = :owner AND #generation = :generation";

/// The condition of T3. It doesn't test the expiry, because only the lease decides whether a record is stale.
const STALE_AS_SEEN: &str = "#status = :started AND #owner = :seen_owner AND #generation = :seen_generation \
                             AND #lock_acquired_at = :seen_lock_acquired_at \
                             AND #lease_until = :seen_lease_until";

/// The condition of T7, which never shortens a lease.
const EXTENDS: &str = "#status = :started AND #owner = :owner AND #generation = :generation \
                       AND #lease_until < :lease_until";

/// One transition: its update and its condition.
#[derive(Debug)]
pub(super) struct Transition {
    /// The update of the item; `None` if the transition puts a whole item.
    pub(super) update: Option<String>,
    /// The condition on the item.
    pub(super) condition: String,
}

impl Transition {
    /// Puts the whole item, so nothing of the old one remains.
    fn put(condition: impl Into<String>) -> Self {
        Self { update: None, condition: condition.into() }
    }

    /// Sets and removes these attributes.
    fn update(set: &[Attribute], remove: &[Attribute], condition: impl Into<String>) -> Self {
        let set: Vec<_> = set.iter().map(|set| format!("#{0} = :{0}", set.as_str())).collect();
        let remove: Vec<_> = remove.iter().map(|remove| format!("#{}", remove.as_str())).collect();
        let mut update = format!("SET {}", set.join(", "));
        if !remove.is_empty() {
            update = format!("{update} REMOVE {}", remove.join(", "));
        }
        Self { update: Some(update), condition: condition.into() }
    }

    fn names(&self, attributes: &AttributeNames) -> HashMap<String, String> {
        let used = [self.update.as_deref().unwrap_or_default(), &self.condition];
        let placeholders = used.iter().flat_map(|expression| expression.split('#').skip(1));
        placeholders
            .filter_map(|text| {
                let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                let word = &text[..end.unwrap_or(text.len())];
                Attribute::ALL.into_iter().find(|attribute| attribute.as_str() == word)
            })
            .map(|attribute| (format!("#{}", attribute.as_str()), attributes.of(attribute).to_owned()))
            .collect()
    }
}

/// Variants of a transition, by the form of the record that was seen.
#[derive(Debug)]
pub(super) struct BySeen<T> {
    /// A STARTED record that expires.
    started: T,
    /// A STARTED record that never expires.
    lasting: T,
    /// A settled record, which has an expiry and no lease.
    settled: T,
}

impl<T> BySeen<T> {
    /// Calls `make` with each variant's condition. With `tests_lock`, the condition also tests when the claim was made.
    fn new(tests_lock: bool, make: impl Fn(String) -> T) -> Self {
        let lock = if tests_lock { " AND #lock_acquired_at = :seen_lock_acquired_at" } else { "" };
        let version = |expiry: &str, lease: &str| {
            make(format!(
                "#status = :seen_status AND #owner = :seen_owner AND #generation = :seen_generation{lock} \
                 AND {expiry}{lease}"
            ))
        };
        let (expiry, lease) = ("#expires_at = :seen_expires_at", " AND #lease_until = :seen_lease_until");
        Self {
            started: version(expiry, lease),
            lasting: version("attribute_not_exists(#expires_at)", lease),
            settled: version(expiry, ""),
        }
    }

    /// Returns the variant for the version `seen`. `None` if no record can have this version: a STARTED record has a
    /// lease, and a settled record has an expiry and no lease.
    pub(super) fn of(&self, seen: &Revision) -> Option<&T> {
        match (seen.status, seen.lease_until, seen.expires_at) {
            (Status::Started, Some(_), Some(_)) => Some(&self.started),
            (Status::Started, Some(_), None) => Some(&self.lasting),
            (Status::Completed | Status::Failed | Status::Released, None, Some(_)) => Some(&self.settled),
            _ => None,
        }
    }
}

/// Variants of a settling transition. Each field says what its variant stores.
#[derive(Debug)]
pub(super) struct Settling<T> {
    /// The response, in the record.
    pub(super) inline: T,
    /// The response, in chunks.
    pub(super) chunks: T,
    /// An outcome without its response.
    pub(super) omitted: T,
    /// No outcome.
    pub(super) release: T,
    /// No outcome, and the mark that an attempt was interrupted.
    pub(super) release_interrupted: T,
}

impl<T> Settling<T> {
    fn map<U>(self, f: impl Fn(T) -> U) -> Settling<U> {
        let Self { inline, chunks, omitted, release, release_interrupted } = self;
        Settling {
            inline: f(inline),
            chunks: f(chunks),
            omitted: f(omitted),
            release: f(release),
            release_interrupted: f(release_interrupted),
        }
    }
}

/// T4 to T6.
fn settle() -> Settling<Transition> {
    settling(&[Attribute::Status], &[], MINE)
}

/// An operator's write. It removes the old outcome's attributes, except those that it sets.
fn resolve(condition: &str) -> Settling<Transition> {
    use Attribute::{Generation, Owner, Response, ResponseEncoding, ResponseLength, ResponseSha256, Status};
    let outcome = [ResponseEncoding, ResponseLength, ResponseSha256, Response];
    settling(&[Status, Owner, Generation], &outcome, condition)
}

/// Returns a transition for each way to store an outcome, and for a release. Each transition sets `always`, the expiry
/// and its own attributes. It removes the lease, and the attributes in `old` that it doesn't set.
fn settling(always: &[Attribute], old: &[Attribute], condition: &str) -> Settling<Transition> {
    use Attribute::{
        ExpiresAt, Interrupted, LeaseUntil, Response, ResponseEncoding, ResponseLength, ResponseSha256,
    };
    let transition = |sets: &[Attribute], removes: &[Attribute]| {
        let set = [always, &[ExpiresAt], sets].concat();
        let mut remove = [&[LeaseUntil], removes].concat();
        remove.extend(old.iter().filter(|attribute| !set.contains(attribute)));
        Transition::update(&set, &remove, condition)
    };
    Settling {
        inline: transition(&[ResponseEncoding, ResponseLength, ResponseSha256, Response], &[]),
        chunks: transition(&[ResponseEncoding, ResponseLength, ResponseSha256], &[]),
        omitted: transition(&[ResponseEncoding], &[]),
        release: transition(&[], &[Interrupted]),
        release_interrupted: transition(&[Interrupted], &[]),
    }
}

/// T3. It removes the optional attributes that the new claim doesn't have.
fn take_over(has_expiry: bool, is_interrupted: bool, has_request_id: bool) -> Transition {
    use Attribute::{
        Attempt, ExpiresAt, Generation, Interrupted, LeaseUntil, LockAcquiredAt, Owner, RequestId,
    };
    let mut set = vec![Owner, Generation, Attempt, LockAcquiredAt, LeaseUntil];
    let mut remove = Vec::new();
    for (attribute, has) in
        [(ExpiresAt, has_expiry), (Interrupted, is_interrupted), (RequestId, has_request_id)]
    {
        if has { &mut set } else { &mut remove }.push(attribute);
    }
    Transition::update(&set, &remove, STALE_AS_SEEN)
}

/// T7.
fn extend() -> Transition {
    Transition::update(&[Attribute::LeaseUntil, Attribute::ExpiresAt], &[], EXTENDS)
}

/// T7 that removes the expiry, so that the record never expires.
fn extend_lasting() -> Transition {
    Transition::update(&[Attribute::LeaseUntil], &[Attribute::ExpiresAt], EXTENDS)
}

/// A transition, and the attribute names that its `#` placeholders stand for in one table.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) transition: Transition,
    /// Attribute names by placeholder, for exactly the placeholders that the expressions use. DynamoDB rejects unused
    /// names.
    pub(super) names: HashMap<String, String>,
}

/// All plans of one table, built once. A request only clones the few names that it sends.
#[derive(Debug)]
pub(super) struct Plans {
    /// T1 (absent → STARTED), and a conclusion if no record exists (absent → settled).
    pub(super) absent: Plan,
    /// T2, an expired or released record → STARTED.
    pub(super) reclaim: BySeen<Plan>,
    /// T3, indexed by the optional fields of the new claim: 1 for an expiry, plus 2 for an earlier interruption, plus 4
    /// for a request id.
    take_over: [Plan; 8],
    pub(super) settle: Settling<Plan>,
    pub(super) extend: Plan,
    pub(super) extend_lasting: Plan,
    /// A conclusion, an expired or released record → settled.
    pub(super) conclude: BySeen<Plan>,
    pub(super) resolve: BySeen<Settling<Plan>>,
}

impl Plans {
    pub(super) fn new(attributes: &AttributeNames) -> Self {
        let plan = |transition: Transition| Plan { names: transition.names(attributes), transition };
        Self {
            absent: plan(Transition::put(ABSENT)),
            reclaim: BySeen::new(false, |version| plan(Transition::put(version))),
            take_over: std::array::from_fn(|has| plan(take_over(has & 1 > 0, has & 2 > 0, has & 4 > 0))),
            settle: settle().map(plan),
            extend: plan(extend()),
            extend_lasting: plan(extend_lasting()),
            conclude: BySeen::new(true, |version| plan(Transition::put(version))),
            resolve: BySeen::new(true, |version| resolve(&version).map(plan)),
        }
    }

    /// T3, stale STARTED → STARTED.
    pub(super) fn take_over(&self, lock: &Lock) -> &Plan {
        // The pattern names every field. If an optional field is added to `Lock`, a takeover must set it or remove it.
        let Lock {
            owner: _,
            generation: _,
            attempt: _,
            fingerprint: _,
            lock_acquired_at: _,
            lease_until: _,
            expires_at,
            interrupted,
            request_id,
        } = lock;
        let has = [expires_at.is_some(), *interrupted, request_id.is_some()];
        let [expiry, interrupted, request_id] = has.map(usize::from);
        &self.take_over[expiry + 2 * interrupted + 4 * request_id]
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fmt::Write as _};

    use super::*;

    /// Every transition, by its name.
    fn all() -> Vec<(String, Transition)> {
        let mut all = vec![("T1 claim, and conclude, absent".to_owned(), Transition::put(ABSENT))];
        let by_seen = |name: &str, tests_lock| {
            let BySeen { started, lasting, settled } = BySeen::new(tests_lock, |version| version);
            [("STARTED", started), ("STARTED without expiry", lasting), ("settled", settled)]
                .map(|(seen, version)| (format!("{name}, {seen}"), version))
        };
        let put = |(name, version)| (name, Transition::put(version));
        all.extend(by_seen("T2 reclaim", false).map(put));
        for (expiry, interrupted, request_id) in (0..8).map(|has| (has & 1 == 0, has & 2 == 0, has & 4 == 0))
        {
            let with = [("expiry", expiry), ("interruption", interrupted), ("request id", request_id)];
            let with: Vec<_> = with.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
            let name = format!(
                "T3 take over, with {}",
                if with.is_empty() { "nothing".into() } else { with.join(", ") }
            );
            all.push((name, take_over(expiry, interrupted, request_id)));
        }
        all.push(("T7 extend".to_owned(), extend()));
        all.push(("T7 extend, without expiry".to_owned(), extend_lasting()));
        all.extend(by_seen("conclude", true).map(put));
        let settlements = |[settle, release]: [&str; 2], transitions| {
            let Settling { inline, chunks, omitted, release: released, release_interrupted } = transitions;
            [
                (format!("{settle}, response in the record"), inline),
                (format!("{settle}, response in chunks"), chunks),
                (format!("{settle}, response omitted"), omitted),
                (release.to_owned(), released),
                (format!("{release}, interrupted"), release_interrupted),
            ]
        };
        all.extend(settlements(["T4/T5 complete or fail", "T6 release"], settle()));
        for (name, version) in by_seen("operator", true) {
            let names = [format!("{name}: complete or fail"), format!("{name}: release")];
            all.extend(settlements(names.each_ref().map(String::as_str), resolve(&version)));
        }
        all
    }

    #[test]
    fn expressions_match_the_pinned_file() {
        let mut shown = String::new();
        for (name, Transition { update, condition }) in all() {
            let _ = writeln!(shown, "{name}\n  if {condition}");
            if let Some(update) = update {
                let _ = writeln!(shown, "  {update}");
            }
        }
        // These expressions determine what a claim can do to a record. A change to `expressions.txt` changes the
        // protocol (`guide::protocol`). After such a change, the model checker must explore the protocol again.
        assert_eq!(shown, include_str!("expressions.txt"));
    }

    /// The attribute placeholders in these expressions, as whole words.
    fn placeholders(expressions: &[&str]) -> HashSet<String> {
        let words = expressions.iter().flat_map(|expression| {
            expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '#'))
        });
        words.filter(|word| word.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn operator_writes_leave_no_old_outcome() {
        let operators: Vec<_> = all().into_iter().filter(|(name, _)| name.starts_with("op")).collect();
        assert_eq!(operators.len(), 15);
        for (name, Transition { update, .. }) in operators {
            let touched = placeholders(&[&update.unwrap()]);
            for attribute in
                ["#lease_until", "#response_encoding", "#response_length", "#response_sha256", "#response"]
            {
                assert!(touched.contains(attribute), "{name} leaves {attribute} unchanged");
            }
        }
    }

    #[test]
    fn updates_set_or_remove_optional_attributes() {
        for (name, Transition { update, .. }) in all() {
            let touched = placeholders(&[&update.unwrap_or_default()]);
            let wanted: &[&str] = match &name {
                name if name.starts_with("T3") => &["#expires_at", "#interrupted", "#request_id"],
                name if name.starts_with("T6") || name.contains(": release") => {
                    &["#expires_at", "#interrupted"]
                }
                name if name.starts_with("T4") || name.starts_with("T7") => &["#expires_at"],
                _ => &[],
            };
            for attribute in wanted {
                assert!(touched.contains(*attribute), "{name} leaves {attribute} unchanged");
            }
        }
    }

    #[test]
    fn only_used_attribute_names_are_sent() {
        let attributes: AttributeNames = "status:s".parse().unwrap();
        for (_, transition) in all() {
            let names = transition.names(&attributes);
            let used =
                placeholders(&[transition.update.as_deref().unwrap_or_default(), &transition.condition]);
            assert_eq!(names.keys().cloned().collect::<HashSet<_>>(), used);
            if let Some(name) = names.get("#status") {
                assert_eq!(name, "s");
            }
        }
    }

    #[test]
    fn takeovers_write_only_present_optional_fields() {
        let plans = Plans::new(&AttributeNames::default());
        let lock = |expires_at, interrupted, request_id: Option<&str>| Lock {
            owner: crate::record::Owner::from_bytes([1; 16]),
            generation: crate::record::Generation::new(1),
            attempt: 1,
            fingerprint: crate::fingerprint::Fingerprint::from_digest([1; 32]),
            lock_acquired_at: crate::time::Timestamp::from_millis(1),
            lease_until: crate::time::Timestamp::from_millis(2),
            expires_at,
            interrupted,
            request_id: request_id.map(Into::into),
        };
        for expires_at in [None, Some(crate::time::Timestamp::from_millis(1000))] {
            for interrupted in [false, true] {
                for request_id in [None, Some("invocation")] {
                    let plan = plans.take_over(&lock(expires_at, interrupted, request_id));
                    let update = plan.transition.update.as_deref().unwrap();
                    for (text, sets) in [
                        ("#expires_at = :expires_at", expires_at.is_some()),
                        ("#interrupted = :interrupted", interrupted),
                        ("#request_id = :request_id", request_id.is_some()),
                    ] {
                        assert_eq!(update.contains(text), sets, "{update}");
                    }
                }
            }
        }
    }
}
