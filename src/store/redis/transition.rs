//! Translates each write of the contract into the script's arguments: conditions, fields to remove and fields to set.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::{Cmd, Script, cmd};

use super::codec::{self, Field, Values, millis, text, word};
use crate::{
    record::{Generation, Owner, Status},
    store::{Revision, Settlement, Write},
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

/// How long Redis keeps a record after it expires, in ms. Redis removes records by its own clock, which may differ
/// from the executors' clocks.
const SWEEP_MARGIN_MS: u64 = 86_400_000;

/// The longest value that Redis accepts by default (`proto-max-bulk-len`), in bytes.
const LONGEST_VALUE: usize = 512 << 20;

/// Returns the time at which Redis removes the record, in ms since the Unix epoch: at most the largest time that Redis
/// can represent, some 292 million years from now.
fn removal(expires_at: Timestamp) -> u64 {
    expires_at.as_millis().saturating_add(SWEEP_MARGIN_MS).min(i64::MAX as u64)
}

/// How a condition compares a field with a value.
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

/// The arguments of one run of the script.
#[derive(Debug, Default)]
pub(super) struct Transition {
    conditions: Vec<(Relation, Field, Bytes)>,
    removed: Vec<Field>,
    /// When the record expires. Redis removes it [`SWEEP_MARGIN_MS`] later. `None` means never.
    expires_at: Option<Timestamp>,
    values: Values,
    /// Whether a handler runs once this write is applied.
    claims: bool,
}

impl Transition {
    /// Translates `write`.
    pub(super) fn of(write: &Write) -> Self {
        let claims = matches!(write, Write::Claim(_) | Write::Reclaim { .. } | Write::TakeOver { .. });
        Self { claims, ..Self::parts_of(write) }
    }

    fn parts_of(write: &Write) -> Self {
        match write {
            Write::Claim(lock) => Self::default().if_absent().sets(codec::lock(lock), lock.expires_at),
            Write::Reclaim { seen, lock } => Self::default()
                .if_status(seen.status)
                .if_held(seen.owner, seen.generation)
                .if_time(codec::EXPIRES_AT, seen.expires_at)
                .if_time(codec::LEASE_UNTIL, seen.lease_until)
                .replaces(codec::lock(lock), lock.expires_at)
                .forgets_the_trace(),
            Write::TakeOver { seen, lock } => {
                let mut values = codec::lock(lock);
                // Keep the stored fingerprint. It equals the lock's, since T3 is only for equal fingerprints.
                values.retain(|(field, _)| *field != codec::FINGERPRINT);
                Self::default()
                    .if_status(Status::Started)
                    .if_held(seen.owner, seen.generation)
                    .if_equal(codec::LOCK_ACQUIRED_AT, millis(seen.lock_acquired_at))
                    .if_time(codec::LEASE_UNTIL, seen.lease_until)
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
                found.replaces(codec::record(record), record.expires_at).forgets_the_trace()
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

    fn if_time(self, field: Field, time: Option<Timestamp>) -> Self {
        match time {
            Some(time) => self.if_equal(field, millis(time)),
            None => self.if_relation(Relation::Missing, field, Bytes::new()),
        }
    }

    fn if_seen(self, seen: &Revision) -> Self {
        self.if_status(seen.status)
            .if_held(seen.owner, seen.generation)
            .if_equal(codec::LOCK_ACQUIRED_AT, millis(seen.lock_acquired_at))
            .if_time(codec::LEASE_UNTIL, seen.lease_until)
            .if_time(codec::EXPIRES_AT, seen.expires_at)
    }

    fn sets(mut self, values: Values, expires_at: Option<Timestamp>) -> Self {
        self.values = values;
        self.expires_at = expires_at;
        self
    }

    /// Extends the lease. Also removes `response`, which a STARTED record doesn't have: the script's first write is
    /// then a removal, which Redis accepts even when its memory is full. So a full Redis still extends leases.
    fn extends(mut self, lease_until: Timestamp, expires_at: Option<Timestamp>) -> Self {
        self.removed = vec![codec::RESPONSE];
        let mut values = vec![(codec::LEASE_UNTIL, millis(lease_until))];
        match codec::expiry(expires_at) {
            Some(expiry) => values.push(expiry),
            None => self.removed.push(codec::EXPIRES_AT),
        }
        self.sets(values, expires_at)
    }

    /// Sets `values`, and removes all other optional fields.
    fn replaces(mut self, values: Values, expires_at: Option<Timestamp>) -> Self {
        let is_set = |field: &Field| values.iter().any(|(set, _)| set == field);
        self.removed = codec::optional().filter(|field| !is_set(field)).collect();
        self.sets(values, expires_at)
    }

    /// Also removes the earlier record's `trace_id`.
    fn forgets_the_trace(mut self) -> Self {
        self.removed.push(codec::TRACE_ID);
        self
    }

    /// Settles the record, and also sets `values`. The claim's request id stays. Only a release changes `interrupted`.
    fn settles(self, settlement: &Settlement, mut values: Values) -> Self {
        values.push((codec::STATUS, word(settlement.status().as_str())));
        let mut stays: Vec<_> = codec::kept_when_settled().collect();
        let expires_at = match settlement {
            Settlement::Complete(outcome, expires_at) | Settlement::Fail(outcome, expires_at) => {
                values.extend(codec::outcome(outcome));
                stays.push(codec::INTERRUPTED);
                Some(*expires_at)
            }
            Settlement::Release { expires_at, interrupted } => {
                values.extend(codec::interrupted(*interrupted));
                Some(*expires_at)
            }
        };
        values.extend(codec::expiry(expires_at));
        let mut settled = self.replaces(values, expires_at);
        settled.removed.retain(|field| !stays.contains(field));
        settled
    }

    /// Whether a handler runs once this write is applied. Only such a write checks the server: a handler that has run
    /// must be able to record its outcome on any server.
    pub(super) const fn claims(&self) -> bool {
        self.claims
    }

    /// Whether a value is longer than Redis accepts.
    pub(super) fn is_too_large(&self) -> bool {
        self.values.iter().any(|(_, value)| value.len() > LONGEST_VALUE)
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
            command.arg(relation.as_str()).arg(*field).arg(&**value);
        }
        command.arg(self.removed.len());
        for field in &self.removed {
            command.arg(*field);
        }
        command.arg(self.expires_at.map(|at| removal(at).to_string()).unwrap_or_default());
        command.arg(check.as_str());
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
    fn removal_times_stay_within_redis_range() {
        assert_eq!(removal(Timestamp::from_secs(1_800_000_000)), 1_800_086_400_000);
        assert_eq!(removal(Timestamp::from_millis(u64::MAX)), i64::MAX as u64);
    }
}
