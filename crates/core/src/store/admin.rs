//! Types for operators' tools: a store's records, page by page, and its table's problems.

use std::fmt;

use crate::{key::StoredKey, record::Record, store::StoreError};

/// One page of a store's records, from its method `scan`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// The records, each with its key. A record that can't be decoded is an error.
    pub records: Vec<(StoredKey, Result<Record, StoreError>)>,
    /// The position of the next page; `None` if this is the last page. Only the store that returned this text can read
    /// it.
    pub next: Option<String>,
}

impl Page {
    /// A page with these records, and the position of the next one.
    pub fn new(records: Vec<(StoredKey, Result<Record, StoreError>)>, next: Option<String>) -> Self {
        Self { records, next }
    }
}

/// Joins the parts of a scan's position into one text, for [`Page::next`].
pub fn position(parts: impl IntoIterator<Item = String>) -> String {
    serde_json::Value::from_iter(parts).to_string()
}

/// Splits a scan's position into its parts.
pub fn parts(position: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(position).map_err(|_| foreign())
}

/// The error for a position that another store returned.
pub fn foreign() -> StoreError {
    StoreError::new(
        super::StoreErrorKind::Rejected,
        "the scan's position is from another store; start without a position, or use one from this store",
    )
}

/// A problem of a store's table, from its method `check_table`. `Display` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableProblem {
    /// The table doesn't exist.
    Missing,
    /// DynamoDB: the table isn't ready for use.
    NotActive {
        /// Its status, as DynamoDB reports it.
        status: String,
    },
    /// DynamoDB: the table's keys don't match the configuration.
    Keys {
        /// The configured keys.
        expected: String,
        /// The table's keys.
        found: String,
    },
    /// DynamoDB: the table has no TTL, so old records stay and cost storage.
    NoTimeToLive {
        /// The attribute that needs the TTL.
        attribute: String,
    },
    /// DynamoDB: the table's TTL is on another attribute than the records' expiry.
    OtherTimeToLive {
        /// The attribute that needs the TTL.
        expected: String,
        /// The attribute that has the TTL.
        found: String,
    },
    /// DynamoDB: the table's capacity is provisioned, so DynamoDB throttles requests beyond it, and deliveries are
    /// refused. Not an error if the capacity is monitored; see [`is_note`](Self::is_note).
    Provisioned,
    /// DynamoDB: the table is replicated to other Regions with eventual consistency, so two Regions can both claim
    /// a key.
    Replicated {
        /// The Regions.
        regions: Vec<String>,
        /// The Region whose replica was checked, if it's known.
        own: Option<String>,
    },
    /// DynamoDB: the table is a global table with multi-Region strong consistency, so it has neither TTL nor
    /// transactions; see [`is_note`](Self::is_note).
    StronglyConsistent {
        /// The Regions.
        regions: Vec<String>,
    },
    /// PostgreSQL: the table lacks the marker of its schema's version.
    Unmarked,
    /// PostgreSQL: the table's schema version isn't the one that this library needs.
    Schema {
        /// The version that the table has.
        found: i64,
        /// The version that the library needs.
        needed: i64,
    },
    /// PostgreSQL: the user lacks permissions that the store needs.
    Privileges {
        /// The missing permissions.
        missing: Vec<String>,
    },
    /// PostgreSQL: the table has no index for the sweep, so every sweep reads the whole table.
    NoIndex,
    /// PostgreSQL: the server is a standby, which rejects writes and may lag behind.
    Standby,
    /// PostgreSQL: the table is unlogged: a crash of the server empties it.
    Unlogged,
    /// PostgreSQL: the server answers before a commit is on disk, so a crash of the server can lose the most recent
    /// claims and outcomes. Not an error if that's intended; see [`is_note`](Self::is_note).
    AsynchronousCommit,
    /// Redis: the server has an eviction policy that removes live records when its memory is full.
    Evicts {
        /// The server's address.
        server: String,
        /// The policy.
        policy: String,
    },
    /// Redis: the server doesn't say its eviction policy, or the user may not ask; see [`is_note`](Self::is_note).
    EvictionUnknown {
        /// The server's address.
        server: String,
    },
}

impl TableProblem {
    /// Whether the problem is only a note: the table works, and its owner may have chosen this setting.
    pub const fn is_note(&self) -> bool {
        matches!(
            self,
            Self::Provisioned
                | Self::NoIndex
                | Self::AsynchronousCommit
                | Self::EvictionUnknown { .. }
                | Self::StronglyConsistent { .. }
        )
    }
}

impl fmt::Display for TableProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the table doesn't exist"),
            Self::NotActive { status } => write!(f, "the table is {status}, not ACTIVE"),
            Self::Keys { expected, found } => {
                write!(f, "the table has the key {found}, but the configuration says {expected}")
            }
            Self::NoTimeToLive { attribute } => {
                write!(f, "the table has no TTL; enable it on the attribute `{attribute}`")
            }
            Self::OtherTimeToLive { expected, found } => {
                write!(f, "the table's TTL is on the attribute `{found}`, but the records expire by `{expected}`")
            }
            Self::Provisioned => f.write_str(
                "the table's capacity is provisioned: a burst beyond it is throttled, and those deliveries are \
                 refused; switch to on-demand capacity, or scale the capacity with the load",
            ),
            Self::Replicated { regions, .. } => write!(
                f,
                "the table is replicated to {} with eventual consistency: two Regions can both claim a key, and one \
                 Region's outcome can overwrite the other's",
                regions.join(", ")
            ),
            Self::StronglyConsistent { regions } => write!(
                f,
                "the table is a global table in {} with strong consistency, which has neither TTL nor transactions: \
                 expired records stay, and handlers can't stage writes",
                regions.join(", ")
            ),
            Self::Unmarked => f.write_str("the table lacks the marker of its schema version"),
            Self::Schema { found, needed } if found > needed => {
                write!(f, "its schema has version {found}, but this library needs version {needed}; update the library")
            }
            Self::Schema { found, needed } => write!(
                f,
                "its schema has version {found}, but this library needs version {needed}; there is no migration. \
                 Drop the table and its marker table (the same name followed by `_schema`), which deletes all \
                 records, and recreate both with `idempotency table create`"
            ),
            Self::Privileges { missing } => write!(f, "the user lacks {}; grant it", missing.join(", ")),
            Self::NoIndex => f.write_str("the table has no index for the sweep: every sweep reads the whole table"),
            Self::Standby => f.write_str("the server is a standby; connect to the primary"),
            Self::Unlogged => f.write_str("the table is unlogged: a crash of the server empties it"),
            Self::AsynchronousCommit => f.write_str(
                "synchronous_commit is off: a crash of the server can lose the most recent claims and outcomes, and \
                 those operations run again",
            ),
            Self::Evicts { server, policy } => write!(
                f,
                "{server} has the eviction policy {policy}: when its memory is full, it removes live records, and their \
                 operations run again"
            ),
            Self::EvictionUnknown { server } => write!(f, "the eviction policy of {server} is unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_mismatches_say_how_to_fix_them() {
        let said = |found, needed| TableProblem::Schema { found, needed }.to_string();
        assert!(said(1, 2).contains("recreate both with `idempotency table create`"));
        assert!(said(4, 3).contains("update the library"));
    }
}
