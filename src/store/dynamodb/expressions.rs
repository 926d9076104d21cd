//! A put as a DynamoDB request: what it sets and removes, and its condition. `expressions.txt` lists all forms.
//!
//! Every attribute appears as a placeholder, so any name can be configured, and DynamoDB's reserved words (`status`,
//! `owner`, …) cause no errors. Placeholders are short, because each request sends them: `#s` is the status's name,
//! `:s` its new value, and `:vs` its value in the version that was seen.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::{
    attributes::{AttributeNames, as_seen, name_of, to_set},
    codec::attribute,
};
use crate::{
    record::{Record, Status},
    store::{
        Put,
        toolkit::{self as codec, Field, Value},
    },
};

/// The parts of a request that depend on the put. The maps hold exactly the placeholders that the expressions use,
/// since DynamoDB rejects others.
#[derive(Debug)]
pub(super) struct Expressions<'n> {
    attributes: &'n AttributeNames,
    /// The update of the item; `None` if the request puts the whole item, so that nothing of the old one remains.
    pub(super) update: Option<String>,
    pub(super) condition: String,
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
}

impl<'n> Expressions<'n> {
    pub(super) fn of(put: &Put, attributes: &'n AttributeNames) -> Self {
        let mut it = Self {
            attributes,
            update: None,
            condition: String::with_capacity(64),
            names: HashMap::with_capacity(12),
            values: HashMap::with_capacity(12),
        };
        match put {
            Put::Create(_) => it.require_absent(Field::Id),
            Put::Replace { seen, new } => {
                if !put.begins_anew() {
                    it.set(Field::RECORD.into_iter().filter(|field| may_change(*field, seen, new)), new);
                }
                // A settled record has no lease, so its status says that there's none.
                for field in Field::VERSION {
                    match codec::value(field, seen) {
                        Some(value) => it.require(field, value),
                        None if field == Field::LeaseUntil => {}
                        None => it.require_absent(field),
                    }
                }
            }
            Put::Mine { held, new } => {
                it.set(Field::STATE, new);
                for (field, value) in codec::claim(held) {
                    it.require(field, value);
                }
            }
        }
        it
    }

    fn require(&mut self, field: Field, value: Value<'_>) {
        let name = self.name(field);
        self.and();
        self.condition.push_str(name);
        self.condition.push('=');
        self.condition.push_str(as_seen(field));
        self.values.insert(as_seen(field).to_owned(), attribute(field, value));
    }

    fn require_absent(&mut self, field: Field) {
        let name = self.name(field);
        self.and();
        self.condition.push_str("attribute_not_exists(");
        self.condition.push_str(name);
        self.condition.push(')');
    }

    fn and(&mut self) {
        if !self.condition.is_empty() {
            self.condition.push_str(" AND ");
        }
    }

    /// Sets the fields that `new` has, and removes the others.
    fn set(&mut self, fields: impl IntoIterator<Item = Field>, new: &Record) {
        let (mut update, mut removed) = (String::with_capacity(96), String::new());
        for field in fields {
            let name = self.name(field);
            match codec::value(field, new) {
                Some(value) => {
                    update.push_str(if update.is_empty() { "SET " } else { "," });
                    update.push_str(name);
                    update.push('=');
                    update.push_str(to_set(field));
                    self.values.insert(to_set(field).to_owned(), attribute(field, value));
                }
                None => {
                    removed.push_str(if removed.is_empty() { " REMOVE " } else { "," });
                    removed.push_str(name);
                }
            }
        }
        update.push_str(&removed);
        self.update = Some(update);
    }

    fn name(&mut self, field: Field) -> &'static str {
        self.names.insert(name_of(field).to_owned(), self.attributes.of(field).to_owned());
        name_of(field)
    }
}

/// Whether an update of `seen` to `new` must set or remove `field`. It leaves out what's certainly the same in the stored
/// record: what the condition compares, what never changes under one claim, and, in a STARTED record, everything else.
/// The status is always set, since an update must set something.
fn may_change(field: Field, seen: &Record, new: &Record) -> bool {
    let may_differ = seen.status() != Status::Started && field.is_settled();
    field == Field::Status && seen == new
        || may_differ
        || codec::value(field, seen) != codec::value(field, new)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, fmt::Write as _};

    use bytes::Bytes;

    use super::*;
    use crate::{
        fingerprint::Fingerprint,
        outcome::{Outcome, StoredResponse},
        record::{Generation, Lock, Mark, Owner, State},
        settings::Execution,
        time::Timestamp,
    };

    fn lock() -> Lock {
        Lock {
            owner: Owner::from_bytes([1; 16]),
            generation: Generation::new(1),
            attempt: 1,
            fingerprint: Fingerprint::from_digest([1; 32]),
            lock_acquired_at: Timestamp::from_millis(1),
            lease_until: Timestamp::from_millis(2),
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_secs(3)),
            mark: Mark::None,
            request_id: Some("invocation".into()),
            trace: None,
        }
    }

    /// Every form of a put, by its name.
    fn all() -> Vec<(&'static str, Put)> {
        let held = lock();
        let once = Execution::AtMostOnce;
        let started = Record::from(held.clone());
        let lasting = Lock { execution: once, expires_at: None, ..lock() }.into();
        let settled = |record: &Record, state| Record {
            state,
            expires_at: Some(Timestamp::from_secs(9)),
            ..record.clone()
        };
        let response = || StoredResponse::new(Bytes::from_static(b"done"));
        let (inline, chunks) = (
            State::Completed(Outcome::Retained(response())),
            State::Completed(Outcome::Retained(response().into_chunks(2))),
        );
        let omitted = State::Failed(Outcome::Omitted);
        let mine = |state| Put::Mine { held: held.clone(), new: settled(&started, state) };
        let next = Lock {
            owner: Owner::from_bytes([2; 16]),
            generation: Generation::new(2),
            attempt: 2,
            lock_acquired_at: Timestamp::from_millis(5),
            lease_until: Timestamp::from_millis(6),
            execution: Execution::AtLeastOnce,
            expires_at: Some(Timestamp::from_secs(7)),
            mark: Mark::Interrupted,
            request_id: Some("another".into()),
            trace: None,
            ..lock()
        };
        let bare =
            Lock { execution: once, expires_at: None, mark: Mark::None, request_id: None, ..next.clone() };
        let replace = |seen: &Record, new: Record| Put::Replace { seen: seen.clone(), new };
        let released = settled(&started, State::Released);
        let completed = settled(&started, inline.clone());
        let by_operator = |record: &Record, state| {
            let new = settled(record, state);
            replace(record, Record { owner: next.owner, generation: next.generation, ..new })
        };
        let interrupted = Record { mark: Mark::Interrupted, ..released.clone() };
        let extended = Lock {
            lease_until: Timestamp::from_millis(8),
            expires_at: Some(Timestamp::from_secs(8)),
            ..lock()
        };
        vec![
            ("T1 claim", Put::Create(started.clone())),
            ("T2 reclaim of a released record", replace(&released, next.clone().into())),
            ("T3 takeover", replace(&started, next.clone().into())),
            ("T3 takeover without the optional fields", replace(&started, bare.into())),
            ("T3 takeover of a claim without expiry", replace(&lasting, next.clone().into())),
            ("T4 completion", mine(inline.clone())),
            ("T4 completion, response in chunks", mine(chunks)),
            ("T5 failure, response omitted", mine(omitted)),
            ("T6 release", mine(State::Released)),
            ("T6 release, interrupted", Put::Mine { held: lock(), new: interrupted }),
            ("T7 extension", replace(&started, extended.into())),
            ("conclusion", Put::Create(settled(&next.clone().into(), inline.clone()))),
            (
                "conclusion over a released record",
                replace(&released, settled(&next.clone().into(), inline.clone())),
            ),
            ("operator's completion of a claim", by_operator(&started, inline)),
            ("operator's release of a completion", by_operator(&completed, State::Released)),
        ]
    }

    #[test]
    fn expressions_match_the_pinned_file() {
        let (names, mut shown) = (AttributeNames::default(), String::new());
        for (name, put) in all() {
            let Expressions { update, condition, .. } = Expressions::of(&put, &names);
            let _ = writeln!(shown, "{name}\n  if {condition}");
            if let Some(update) = update {
                let _ = writeln!(shown, "  {update}");
            }
        }
        // These expressions determine what a put can do to a record. A change to `expressions.txt` changes the
        // protocol (`guide::protocol`). After such a change, the model checker must explore the protocol again.
        assert_eq!(shown, include_str!("expressions.txt"), "{shown}");
    }

    /// The placeholders in these expressions that begin with `sign`, as whole words.
    fn placeholders(expressions: &Expressions<'_>, sign: char) -> HashSet<String> {
        let update = expressions.update.as_deref().unwrap_or_default();
        let text = format!("{update} {}", expressions.condition);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '#' || c == ':'));
        words.filter(|word| word.starts_with(sign)).map(str::to_owned).collect()
    }

    #[test]
    fn only_used_placeholders_are_sent() {
        let attributes: AttributeNames = "status:state".parse().unwrap();
        for (name, put) in all() {
            let expressions = Expressions::of(&put, &attributes);
            let (names, values) = (&expressions.names, &expressions.values);
            assert_eq!(
                names.keys().cloned().collect::<HashSet<_>>(),
                placeholders(&expressions, '#'),
                "{name}"
            );
            assert_eq!(
                values.keys().cloned().collect::<HashSet<_>>(),
                placeholders(&expressions, ':'),
                "{name}"
            );
            assert!(names.get("#s").is_none_or(|status| status == "state"));
        }
    }

    /// An update leaves an attribute out only if the condition compares it, or if it never changes under one claim.
    #[test]
    fn updates_leave_out_only_what_is_certain() {
        let names = AttributeNames::default();
        for (name, put) in all() {
            let expressions = Expressions::of(&put, &names);
            let Some(update) = &expressions.update else { continue };
            let sets = |placeholder: &str| update.split(['=', ',', ' ']).any(|word| word == placeholder);
            if let Put::Mine { .. } = put {
                for attribute in ["#s", "#l", "#x", "#m", "#c", "#b", "#d", "#r"] {
                    assert!(sets(attribute), "{name} leaves {attribute} as it was: {update}");
                }
            }
            if let Put::Replace { seen, .. } = put
                && seen.status() != Status::Started
            {
                for attribute in ["#m", "#c", "#b", "#d", "#r"] {
                    assert!(sets(attribute), "{name} leaves {attribute} as it was: {update}");
                }
            }
        }
    }
}
