//! The effects as the harness reads them: in files, in a DynamoDB table, or in a PostgreSQL table.

use std::sync::Arc;

use aws_sdk_dynamodb::{
    Client,
    error::DisplayErrorContext,
    types::{AttributeValue, Update},
};
use lambda_idempotency::store::postgres::tokio_postgres;
use lambda_idempotency_rehearsal::problem::{Context, Problem, Result};

use super::{
    gateway::{Gateway, Log},
    ledger::{Ledger, Line},
};

/// The effects as the harness reads them.
#[derive(Clone, Debug)]
pub(super) enum Effects {
    /// Files: one per key, with one line per effect.
    Files(Ledger),
    /// A table: one item per key, with a list of lines.
    Table(EffectsTable),
    /// A PostgreSQL table: one row per effect.
    Rows(EffectsRows),
    /// The log of a gateway.
    Gateway(Gateway),
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
            Self::Gateway(gateway) => Ok(gateway.settled(key).await.lines()),
        }
    }

    /// Lists the keys that still have effects. [`forget`](Self::forget) deletes a key's effects.
    pub(super) async fn keys(&self) -> Result<Vec<String>> {
        match self {
            Self::Files(ledger) => ledger.keys(),
            Self::Table(table) => table.keys().await,
            Self::Rows(rows) => rows.keys().await,
            Self::Gateway(gateway) => Ok(gateway.jobs()),
        }
    }

    /// Deletes the effects of a key. The harness does this once the judge has found no violation for the key.
    pub(super) async fn forget(&self, key: &str) -> Result<()> {
        match self {
            Self::Files(ledger) => ledger.forget(key),
            Self::Table(table) => table.forget(key).await,
            Self::Rows(rows) => rows.forget(key).await,
            Self::Gateway(gateway) => {
                gateway.forget(key);
                Ok(())
            }
        }
    }

    /// Returns what the gateway knows of a key, if the effects are there.
    pub(super) async fn log(&self, key: &str) -> Log {
        match self {
            Self::Gateway(gateway) => gateway.settled(key).await,
            _ => Log::default(),
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

/// Effects in a PostgreSQL table, one row per effect.
#[derive(Clone, Debug)]
pub(super) struct EffectsRows {
    pub(super) client: Arc<tokio_postgres::Client>,
    pub(super) table: String,
}

impl EffectsRows {
    pub(super) async fn lines(&self, key: &str) -> Result<Vec<Line>> {
        let sql = format!("SELECT line FROM {} WHERE key = $1 ORDER BY n", self.table);
        let rows = self.client.query(&sql, &[&key]).await.context("couldn't read the effects")?;
        rows.iter().map(|row| serde_json::from_str(row.get(0)).context("invalid ledger line")).collect()
    }

    pub(super) async fn keys(&self) -> Result<Vec<String>> {
        let sql = format!("SELECT DISTINCT key FROM {}", self.table);
        let rows = self.client.query(&sql, &[]).await.context("couldn't list the keys that have effects")?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub(super) async fn forget(&self, key: &str) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE key = $1", self.table);
        self.client.execute(&sql, &[&key]).await.map(drop).context("couldn't delete the effects")
    }
}
