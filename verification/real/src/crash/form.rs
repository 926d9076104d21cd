//! The places where the function under test can have its effect. The place decides how many effects are allowed.

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    error::DisplayErrorContext,
    types::{AttributeValue, Update},
};
use lambda_idempotency_rehearsal::problem::{Context, Problem, Result};

use super::{
    backend::EffectsRows,
    job::{LAYER_LIMIT, LIMIT},
    judge::Promise,
    ledger::{Ledger, Line},
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
}

impl Form {
    /// Every form.
    pub const ALL: [Self; 7] = [
        Self::Ledger,
        Self::Transaction,
        Self::Optimistic,
        Self::Postgres,
        Self::PostgresTransaction,
        Self::Redis,
        Self::Layer,
    ];

    /// Returns the kind of server that keeps the form's records.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Ledger | Self::Transaction | Self::Optimistic | Self::Layer => Kind::DynamoDb,
            Self::Postgres | Self::PostgresTransaction => Kind::Postgres,
            Self::Redis => Kind::Redis,
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
        }
    }

    /// Whether the library can cut the handler off. The layer can't, because the function is another process. So behind
    /// the layer, a function that was frozen beyond its lease still has its effect, and its answer is fenced.
    pub const fn cuts_off(self) -> bool {
        !matches!(self, Self::Layer)
    }

    /// Returns the time limit of an ordinary invocation.
    pub const fn limit(self) -> Duration {
        if self.cuts_off() { LIMIT } else { LAYER_LIMIT }
    }

    /// Whether a delivery claims its key before the function runs.
    pub const fn claims(self) -> bool {
        !matches!(self, Self::Optimistic | Self::PostgresTransaction)
    }
}

/// The effects as the harness reads them.
#[derive(Clone, Debug)]
pub(super) enum Effects {
    /// Files: one per key, with one line per effect.
    Files(Ledger),
    /// A table: one item per key, with a list of lines.
    Table(EffectsTable),
    /// A PostgreSQL table: one row per effect.
    Rows(EffectsRows),
}

/// A table of effects.
#[derive(Clone, Debug)]
pub(super) struct EffectsTable {
    pub(super) client: Client,
    pub(super) name: String,
}

impl Effects {
    /// Reads the effects of a key, in order.
    pub(super) async fn lines(&self, key: &str) -> Result<Vec<Line>> {
        match self {
            Self::Files(ledger) => ledger.lines(key),
            Self::Table(table) => table.lines(key).await,
            Self::Rows(rows) => rows.lines(key).await,
        }
    }

    /// Lists the keys that still have effects. [`forget`](Self::forget) deletes a key's effects.
    pub(super) async fn keys(&self) -> Result<Vec<String>> {
        match self {
            Self::Files(ledger) => ledger.keys(),
            Self::Table(table) => table.keys().await,
            Self::Rows(rows) => rows.keys().await,
        }
    }

    /// Deletes the effects of a key. The harness does this once the judge has found no violation for the key.
    pub(super) async fn forget(&self, key: &str) -> Result<()> {
        match self {
            Self::Files(ledger) => ledger.forget(key),
            Self::Table(table) => table.forget(key).await,
            Self::Rows(rows) => rows.forget(key).await,
        }
    }
}

/// Builds the write that adds `line` to the effects of `key`. The write has no condition, so if it's applied twice, the
/// table shows two effects.
///
/// # Errors
///
/// If the write can't be built.
pub fn append(table: &str, key: &str, line: &Line) -> Result<Update> {
    let line = serde_json::to_string(line).context("invalid ledger line")?;
    let list = |lines| AttributeValue::L(lines);
    Update::builder()
        .table_name(table)
        .key("id", AttributeValue::S(key.to_owned()))
        .update_expression("SET effects = list_append(if_not_exists(effects, :none), :line)")
        .expression_attribute_values(":none", list(vec![]))
        .expression_attribute_values(":line", list(vec![AttributeValue::S(line)]))
        .build()
        .context("couldn't build the effect's write")
}

impl EffectsTable {
    async fn lines(&self, key: &str) -> Result<Vec<Line>> {
        let id = AttributeValue::S(key.to_owned());
        let read =
            self.client.get_item().table_name(&self.name).key("id", id).consistent_read(true).send().await;
        let read = read
            .map_err(|error| DisplayErrorContext(&error).to_string())
            .context("couldn't read the effects")?;
        let Some(lines) = read.item().and_then(|item| item.get("effects")) else { return Ok(Vec::new()) };
        let lines = lines.as_l().map_err(|_| Problem::new("the effects aren't a list"))?;
        let read = |line: &AttributeValue| {
            let text = line.as_s().map_err(|_| Problem::new("an effect isn't text"))?;
            serde_json::from_str(text).context("invalid ledger line")
        };
        lines.iter().map(read).collect()
    }

    async fn keys(&self) -> Result<Vec<String>> {
        let scan = self.client.scan().table_name(&self.name).consistent_read(true).into_paginator();
        let items: std::result::Result<Vec<_>, _> = scan.items().send().collect().await;
        let items = items
            .map_err(|error| DisplayErrorContext(&error).to_string())
            .context("couldn't list the keys that have effects")?;
        Ok(items.iter().filter_map(|item| item.get("id")?.as_s().ok().cloned()).collect())
    }

    async fn forget(&self, key: &str) -> Result<()> {
        let id = AttributeValue::S(key.to_owned());
        let deleted = self.client.delete_item().table_name(&self.name).key("id", id).send().await;
        deleted
            .map(drop)
            .map_err(|error| DisplayErrorContext(&error).to_string())
            .context("couldn't delete the effects")
    }
}
