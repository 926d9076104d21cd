//! Translates a put into the script's arguments: conditions, fields to remove and fields to set.

use std::sync::LazyLock;

use redis::{Cmd, Script, cmd};

use super::codec::bytes_of;
use lambda_idempotency_core::{
    store::{
        Put, Status,
        toolkit::{self as codec, Field, SWEEP_MARGIN, Value},
    },
    time::Timestamp,
};

/// The script that applies every transition.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

const SOURCE: &str = concat!(include_str!("fitness.lua"), include_str!("transition.lua"));

/// What a claim checks in the same step, before it's written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Nothing,
    /// That the user may run every command that a later transition needs. Otherwise, the handler would run, and its
    /// outcome couldn't be recorded.
    Commands,
    /// Also that the server doesn't evict records.
    All,
}

impl Check {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Commands => "commands",
            Self::All => "all",
        }
    }
}

/// The longest value that Redis accepts by default (`proto-max-bulk-len`), in bytes.
const LONGEST_VALUE: usize = 512 << 20;

/// Returns the time at which Redis removes the record, in ms since the Unix epoch: at most the largest time that Redis
/// can represent, some 292 million years from now.
fn removal(expires_at: Timestamp) -> u64 {
    expires_at.saturating_add(SWEEP_MARGIN).as_millis().min(i64::MAX as u64)
}

/// How a condition compares a field with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    NoRecord,
    Equal,
    Missing,
}

impl Relation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoRecord => "no record",
            Self::Equal => "equal",
            Self::Missing => "missing",
        }
    }
}

/// How a field's value is compared, and with which value.
type Condition<'p> = (Relation, Field, Option<Value<'p>>);

/// The arguments of one run of the script.
#[derive(Debug)]
pub(super) struct Transition<'p> {
    conditions: Vec<Condition<'p>>,
    removed: Vec<Field>,
    /// When the record expires. Redis removes it [`SWEEP_MARGIN`] later. `None` means never.
    expires_at: Option<Timestamp>,
    values: Vec<(Field, Value<'p>)>,
    /// Whether a handler runs once this write is applied.
    claims: bool,
}

impl<'p> Transition<'p> {
    /// Translates `put`.
    pub(super) fn of(put: &'p Put) -> Self {
        let new = put.record();
        let (conditions, is_same_claim) = match put {
            Put::Create(_) => (vec![(Relation::NoRecord, Field::Id, None)], false),
            Put::Replace { seen, new } => {
                let version = Field::VERSION.map(|field| condition(field, codec::value(field, seen)));
                (version.into(), new.is_claim_of(seen))
            }
            Put::Mine { held, .. } => {
                (codec::claim(held).map(|(field, value)| condition(field, Some(value))).into(), true)
            }
        };
        let fields = if is_same_claim { &Field::STATE[..] } else { &Field::RECORD[..] };
        let (mut values, mut removed) = (Vec::with_capacity(fields.len()), Vec::new());
        for field in fields {
            match codec::value(*field, new) {
                Some(value) => values.push((*field, value)),
                None => removed.push(*field),
            }
        }
        let claims = new.status() == Status::Started && !is_same_claim;
        // A first claim removes nothing, so a full Redis refuses it: the script's first write needs memory.
        if matches!(put, Put::Create(_)) && claims {
            removed.clear();
        }
        Self { conditions, removed, expires_at: new.expires_at, values, claims }
    }

    /// Whether a handler runs once this write is applied. Only such a write checks the server: a handler that has run
    /// must be able to record its outcome on any server.
    pub(super) const fn claims(&self) -> bool {
        self.claims
    }

    /// Whether a value is longer than Redis accepts.
    pub(super) fn is_too_large(&self) -> bool {
        self.values.iter().any(|(_, value)| bytes_of(value).len() > LONGEST_VALUE)
    }

    /// The command that runs the script by its digest, if Redis has it.
    pub(super) fn by_digest(&self, key: &str, check: Check) -> Cmd {
        self.command("EVALSHA", SCRIPT.get_hash(), key, check)
    }

    /// The command that sends the script itself.
    pub(super) fn by_source(&self, key: &str, check: Check) -> Cmd {
        self.command("EVAL", SOURCE, key, check)
    }

    fn command(&self, name: &str, script: &str, key: &str, check: Check) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(1).arg(key).arg(self.conditions.len());
        for (relation, field, value) in &self.conditions {
            let value = value.as_ref().map(bytes_of).unwrap_or_default();
            command.arg(relation.as_str()).arg(field.name()).arg(&*value);
        }
        command.arg(self.removed.len());
        for field in &self.removed {
            command.arg(field.name());
        }
        command.arg(self.expires_at.map(|at| removal(at).to_string()).unwrap_or_default());
        command.arg(check.as_str());
        for (field, value) in &self.values {
            command.arg(field.name()).arg(&*bytes_of(value));
        }
        command
    }
}

const fn condition(field: Field, value: Option<Value<'_>>) -> Condition<'_> {
    (if value.is_some() { Relation::Equal } else { Relation::Missing }, field, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_times_stay_within_redis_range() {
        assert_eq!(removal(Timestamp::from_secs(1_800_000_000)), 1_800_086_400_000);
        assert_eq!(removal(Timestamp::from_millis(u64::MAX)), i64::MAX as u64);
    }
}
