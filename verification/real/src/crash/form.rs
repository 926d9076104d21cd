//! The places where the function under test can have its effect. The place decides how many effects are allowed.

use std::time::Duration;

use super::{
    gateway::Manners,
    job::{ASKING_LIMIT, LAYER_LIMIT, LIMIT},
    judge::Promise,
};
use crate::site::Kind;

/// Where the function has its effect. Unless a variant says otherwise, the record is in DynamoDB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The effect is in a file, outside of any transaction, under a claim.
    #[default]
    Ledger,
    /// The effect is in a table, in the completion's own transaction (T8).
    Transaction,
    /// The effect is in a table, in one transaction with the completed record. There's no claim.
    Optimistic,
    /// The effect is in a file, under a claim. The record is in PostgreSQL.
    Postgres,
    /// The effect is in a PostgreSQL table, in one transaction with the record.
    PostgresTransaction,
    /// The effect is in a file, under a claim. The record is in Redis.
    Redis,
    /// The effect is in a file. The function doesn't use the library, and runs behind the Lambda layer.
    Layer,
    /// The effect is a charge at a gateway without deduplication, and an operation with a reconciler asks for it. The
    /// charge is on its way for less than `effects_arrive_within`.
    Reconciled,
    /// As `Reconciled`. The record is in PostgreSQL.
    ReconciledPostgres,
    /// As `Reconciled`. The record is in Redis.
    ReconciledRedis,
    /// As `Reconciled`, but some charges are on their way for longer than `effects_arrive_within`.
    ReconciledLate,
    /// As `Reconciled`, but without a reconciler.
    Unreconciled,
}

impl Form {
    /// Every form.
    pub const ALL: [Self; 12] = [
        Self::Ledger,
        Self::Transaction,
        Self::Optimistic,
        Self::Postgres,
        Self::PostgresTransaction,
        Self::Redis,
        Self::Layer,
        Self::Reconciled,
        Self::ReconciledPostgres,
        Self::ReconciledRedis,
        Self::ReconciledLate,
        Self::Unreconciled,
    ];

    /// Returns the kind of server that keeps the form's records.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Ledger | Self::Transaction | Self::Optimistic | Self::Layer => Kind::DynamoDb,
            Self::Reconciled | Self::ReconciledLate | Self::Unreconciled => Kind::DynamoDb,
            Self::Postgres | Self::PostgresTransaction | Self::ReconciledPostgres => Kind::Postgres,
            Self::Redis | Self::ReconciledRedis => Kind::Redis,
        }
    }

    /// Returns the form's name, on the command line and in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Transaction => "transaction",
            Self::Optimistic => "optimistic",
            Self::Postgres => "postgres",
            Self::PostgresTransaction => "postgres-transaction",
            Self::Redis => "redis",
            Self::Layer => "layer",
            Self::Reconciled => "reconciled",
            Self::ReconciledPostgres => "reconciled-postgres",
            Self::ReconciledRedis => "reconciled-redis",
            Self::ReconciledLate => "reconciled-late",
            Self::Unreconciled => "unreconciled",
        }
    }

    /// Returns the form with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// Returns how many effects a key may have.
    pub const fn promise(self) -> Promise {
        match self {
            Self::Ledger | Self::Postgres | Self::Redis | Self::Layer => Promise::AtLeastOnce,
            Self::Transaction | Self::Optimistic | Self::PostgresTransaction => Promise::ExactlyOnce,
            Self::Reconciled | Self::ReconciledPostgres | Self::ReconciledRedis | Self::ReconciledLate => {
                Promise::Reconciled
            }
            Self::Unreconciled => Promise::Unreconciled,
        }
    }

    /// Returns how the gateway behaves that has the effects, for the forms that use one.
    pub const fn gateway(self) -> Option<Manners> {
        match self {
            Self::Reconciled | Self::ReconciledPostgres | Self::ReconciledRedis | Self::Unreconciled => {
                Some(Manners::IN_TIME)
            }
            Self::ReconciledLate => Some(Manners::LATE),
            _ => None,
        }
    }

    /// Whether processes may be frozen at random moments. A process that's frozen while it sends a charge sends it after
    /// the question, which no reconciler can know of.
    pub const fn freezes(self) -> bool {
        self.cuts_off() && self.gateway().is_none()
    }

    /// The forms that `kills` runs for this one, each with a divisor of the number of kills.
    pub const fn compared(self) -> &'static [(Self, u64)] {
        match self {
            Self::Reconciled => &[(Self::ReconciledLate, 5), (Self::Unreconciled, 5)],
            _ => &[],
        }
    }

    /// Whether the library can cut the handler off. The layer can't, because the function is another process. So behind
    /// the layer, a function that was frozen beyond its lease still has its effect, and its answer is fenced.
    pub const fn cuts_off(self) -> bool {
        !matches!(self, Self::Layer)
    }

    /// Returns the time limit of an ordinary invocation.
    pub const fn limit(self) -> Duration {
        match self {
            Self::Layer => LAYER_LIMIT,
            _ if self.gateway().is_some() => ASKING_LIMIT,
            _ => LIMIT,
        }
    }

    /// Whether a delivery claims its key before the function runs.
    pub const fn claims(self) -> bool {
        !matches!(self, Self::Optimistic | Self::PostgresTransaction)
    }
}
