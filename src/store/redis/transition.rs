//! What each write of the contract is to the script: its conditions, what it removes and what it sets.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::{Cmd, Script, cmd};

use super::codec::{self, Field, Values, millis, text, word};
use crate::{
    record::{Generation, Owner, Status},
    store::{Seen, Settlement, Write},
    time::Timestamp,
};

/// The script that makes every transition.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

const SOURCE: &str = include_str!("transition.lua");

/// How much longer Redis keeps a record than it counts; in ms. It removes a record at that very moment by a clock of its
/// own, which the executors' clocks need not agree with to the second.
const SWEEP_MARGIN_MS: u64 = 86_400_000;

/// Ends at the last moment that Redis can tell, some 292 million years from now.
fn removal(expires_at: Timestamp) -> u64 {
    expires_at.as_millis().saturating_add(SWEEP_MARGIN_MS).min(i64::MAX as u64)
}

/// How a field has to stand to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    NoRecord,
    Equal,
    Missing,
    Less,
}

impl Relation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoRecord => "no record",
            Self::Equal => "equal",
            Self::Missing => "missing",
            Self::Less => "less",
        }
    }
}

/// One run of the script.
#[derive(Debug, Default)]
pub(super) struct Transition {
    conditions: Vec<(Relation, Field, Bytes)>,
    removed: Vec<Field>,
    /// The record's new expiry, if it gets one.
    expires_at: Option<Timestamp>,
    values: Values,
}

impl Transition {
    /// What `write` is to the script.
    pub(super) fn of(write: &Write) -> Self {
        match write {
            Write::Claim(lock) => Self::default().if_absent().sets(codec::lock(lock), lock.expires_at),
            Write::Reclaim { seen, lock } => Self::default()
                .if_status(seen.status)
                .if_held(seen.owner, seen.generation)
                .if_equal(codec::EXPIRES_AT, millis(seen.expires_at))
                .if_lease(seen.lease_until)
                .replaces(codec::lock(lock), lock.expires_at),
            Write::TakeOver { seen, lock } => {
                let mut values = codec::lock(lock);
                // The fingerprint stays: it is equal, or this would be another operation.
                values.retain(|(field, _)| *field != codec::FINGERPRINT);
                Self::default()
                    .if_status(Status::Started)
                    .if_held(seen.owner, seen.generation)
                    .if_equal(codec::LOCK_ACQUIRED_AT, millis(seen.lock_acquired_at))
                    .if_lease(seen.lease_until)
                    .replaces(values, lock.expires_at)
            }
            Write::Settle { owner, generation, settlement } => Self::default()
                .if_status(Status::Started)
                .if_held(*owner, *generation)
                .settles(settlement, vec![]),
            Write::Extend { owner, generation, lease_until, expires_at } => Self::default()
                .if_status(Status::Started)
                .if_held(*owner, *generation)
                .if_relation(Relation::Less, codec::LEASE_UNTIL, millis(*lease_until))
                .extends(*lease_until, *expires_at),
            Write::Conclude { seen, record } => {
                let found = match seen {
                    Some(seen) => Self::default().if_seen(seen),
                    None => Self::default().if_absent(),
                };
                found.replaces(codec::record(record), record.expires_at)
            }
            Write::Resolve { seen, owner, generation, settlement } => {
                let values = vec![(codec::OWNER, text(owner)), (codec::GENERATION, text(generation))];
                Self::default().if_seen(seen).settles(settlement, values)
            }
        }
    }

    fn if_relation(mut self, relation: Relation, field: Field, value: Bytes) -> Self {
        self.conditions.push((relation, field, value));
        self
    }

    fn if_absent(self) -> Self {
        self.if_relation(Relation::NoRecord, "", Bytes::new())
    }

    fn if_equal(self, field: Field, value: Bytes) -> Self {
        self.if_relation(Relation::Equal, field, value)
    }

    fn if_status(self, status: Status) -> Self {
        self.if_equal(codec::STATUS, word(status.as_str()))
    }

    fn if_held(self, owner: Owner, generation: Generation) -> Self {
        self.if_equal(codec::OWNER, text(owner)).if_equal(codec::GENERATION, text(generation))
    }

    fn if_lease(self, lease_until: Option<Timestamp>) -> Self {
        match lease_until {
            Some(lease_until) => self.if_equal(codec::LEASE_UNTIL, millis(lease_until)),
            None => self.if_relation(Relation::Missing, codec::LEASE_UNTIL, Bytes::new()),
        }
    }

    fn if_seen(self, seen: &Seen) -> Self {
        self.if_status(seen.status)
            .if_held(seen.owner, seen.generation)
            .if_equal(codec::LOCK_ACQUIRED_AT, millis(seen.lock_acquired_at))
            .if_lease(seen.lease_until)
            .if_equal(codec::EXPIRES_AT, millis(seen.expires_at))
    }

    fn sets(mut self, values: Values, expires_at: Timestamp) -> Self {
        self.values = values;
        self.expires_at = Some(expires_at);
        self
    }

    /// Removes what a STARTED record does not have: a removal makes the script's first write one that needs no memory,
    /// so that a claim which stands can also be extended where memory is full.
    fn extends(mut self, lease_until: Timestamp, expires_at: Timestamp) -> Self {
        self.removed = vec![codec::RESPONSE];
        let values = vec![(codec::LEASE_UNTIL, millis(lease_until)), (codec::EXPIRES_AT, millis(expires_at))];
        self.sets(values, expires_at)
    }

    /// Sets `values`, and leaves nothing of what only some records have.
    fn replaces(mut self, values: Values, expires_at: Timestamp) -> Self {
        let is_set = |field: &Field| values.iter().any(|(set, _)| set == field);
        self.removed = codec::OPTIONAL.into_iter().filter(|field| !is_set(field)).collect();
        self.sets(values, expires_at)
    }

    /// Settles, and sets `values` beside it. The invocation's name stays: it is the claim's.
    fn settles(self, settlement: &Settlement, mut values: Values) -> Self {
        values.push((codec::STATUS, word(settlement.status().as_str())));
        let expires_at = match settlement {
            Settlement::Complete(outcome, expires_at) | Settlement::Fail(outcome, expires_at) => {
                values.extend(codec::outcome(outcome));
                values.push((codec::EXPIRES_AT, millis(*expires_at)));
                Some(*expires_at)
            }
            Settlement::Release => None,
        };
        let mut settled = self.replaces(values, expires_at.unwrap_or_default());
        settled.removed.retain(|field| *field != codec::REQUEST_ID);
        settled.expires_at = expires_at;
        settled
    }

    /// The command that runs the script where Redis has it.
    pub(super) fn by_digest(&self, key: &str) -> Cmd {
        self.command("EVALSHA", SCRIPT.get_hash(), key)
    }

    /// The command that brings the script along.
    pub(super) fn by_source(&self, key: &str) -> Cmd {
        self.command("EVAL", SOURCE, key)
    }

    fn command(&self, name: &str, script: &str, key: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(1).arg(key).arg(self.conditions.len());
        for (relation, field, value) in &self.conditions {
            command.arg(relation.as_str()).arg(*field).arg(&**value);
        }
        command.arg(self.removed.len());
        for field in &self.removed {
            command.arg(*field);
        }
        command.arg(self.expires_at.map(|at| removal(at).to_string()).unwrap_or_default());
        for (field, value) in &self.values {
            command.arg(*field).arg(&**value);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_removes_a_record_a_day_after_it_has_expired_and_no_later_than_it_can_tell() {
        assert_eq!(removal(Timestamp::from_secs(1_800_000_000)), 1_800_086_400_000);
        assert_eq!(removal(Timestamp::from_millis(u64::MAX)), i64::MAX as u64);
    }
}
