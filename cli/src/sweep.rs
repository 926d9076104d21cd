//! `idempotency sweep`: deletes expired records from a store that doesn't delete them on its own.

use std::process::ExitCode;

use clap::Args;
use lambda_idempotency::time::{Clock as _, system_clock};
use serde_json::json;

use crate::{
    problem::{Problem, Result},
    store::{OpenStore, StoreArguments},
    words,
};

/// Options of `sweep`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Delete at most this many records in each batch. A batch is one short SQL statement.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Stop after this many batches, even if expired records are left. Default: stop when no record is left that
    /// expired over an hour ago.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batches: Option<u32>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArguments,
}

/// Sweeps the store.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let store = match arguments.store.open().await? {
        OpenStore::Postgres(store) => store,
        OpenStore::DynamoDb(_) => return not_needed("a DynamoDB table", "its TTL", arguments.json),
        OpenStore::Redis(_) => return not_needed("a Redis server", "the server", arguments.json),
    };
    let (mut deleted, mut is_clean) = (0, false);
    for _ in 0..arguments.batches.unwrap_or(u32::MAX) {
        let count =
            store.sweep(system_clock().now(), arguments.batch).await.map_err(|error| Problem::of(&error))?;
        deleted += count;
        if count < u64::from(arguments.batch) {
            is_clean = true;
            break;
        }
    }
    let table = store.table();
    if arguments.json {
        words::print_json(&json!({ "table": table, "deleted": deleted, "more": !is_clean }))?;
    } else {
        let rest = if is_clean { "" } else { "; there may be more" };
        let records = if deleted == 1 { "record" } else { "records" };
        words::print(&format!("table `{table}`: {deleted} expired {records} deleted{rest}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn not_needed(what: &str, by: &str, as_json: bool) -> Result<ExitCode> {
    if as_json {
        words::print_json(&json!({ "needs_sweeping": false }))?;
    } else {
        words::print(&format!("{what} needs no sweeping: {by} deletes expired records\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
