//! `idempotency run-again`: lets the next deliveries of a function's unresolved at-most-once claims run.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use lambda_idempotency::{
    Resolution, StoredKey,
    store::{Record, Store},
    time::{Clock as _, system_clock},
};
use serde_json::json;

use super::{
    engine,
    list::{function_of, read_until, row},
    view::{RuleArguments, View},
};
use crate::{
    problem::{Problem, Result},
    store::StoreArguments,
    words,
};

/// Options of `run-again`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The function whose claims to release.
    #[arg(long, value_name = "NAME")]
    function: String,

    /// Only claims that were made longer ago than this, such as 1h, 30m or 7d.
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    older_than: Option<Duration>,

    /// Make the writes. Without this option, the command only shows the records.
    #[arg(long)]
    confirm: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    store: StoreArguments,
}

/// How many records were released, had changed, or couldn't be written.
#[derive(Default)]
struct Written {
    released: usize,
    changed: usize,
    problems: Vec<String>,
}

/// Releases the unresolved at-most-once claims of the function.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let now = system_clock().now();
    let store = arguments.store.open().await?;
    let found = read_until(&store, usize::MAX, |key, record| {
        let Ok(record) = record else { return false };
        let view = View { key, record, rules: arguments.rules, now };
        function_of(key) == arguments.function
            && view.is_unresolved()
            && arguments.older_than.is_none_or(|age| view.age() > age)
    });
    let found: Vec<_> =
        found.await?.into_iter().filter_map(|(key, record)| Some((key, record.ok()?))).collect();
    if arguments.confirm {
        let store = arguments.store.open_any().await?;
        return arguments.told(&arguments.release(&store, &found).await?);
    }
    if arguments.json {
        let view = |(key, record)| View { key, record, rules: arguments.rules, now }.json();
        let records: Vec<_> = found.iter().map(|(key, record)| view((key, record))).collect();
        words::print_json(&json!({ "is_dry_run": true, "released": 0, "records": records }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if found.is_empty() {
        words::print("no matching claims: nothing to release\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = found.iter().map(|(key, record)| row(key, Ok(record), arguments.rules, now));
    let rows: Vec<_> = rows.collect();
    let mut text = words::table(&["status", "claimed", "until", "attempt", "id", "request id"], &rows);
    text.push_str(&format!("DRY RUN: nothing was written. {}", arguments.meaning(found.len())));
    words::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Arguments {
    /// Says what the writes would mean, and how to make them.
    fn meaning(&self, count: usize) -> String {
        let mut line = vec!["run-again", "--function", &self.function];
        let older_than = self.older_than.map(words::exact);
        line.extend(older_than.iter().flat_map(|age| ["--older-than", age.as_str()]));
        let rules = self.rules.words();
        line.extend(rules.iter().map(String::as_str));
        line.push("--confirm");
        format!(
            "{} would be released.\n  - These operations may have had their effects, and would have them again: their \
             next deliveries run.\n  - Each handler learns that an earlier attempt ended without an answer.\n  - If an \
             executor still runs, its claim is fenced.\n\nTo write it to {}:\n  {}\n",
            words::count(count, "claim"),
            self.store.location(),
            self.store.command_line(&line)
        )
    }

    /// Releases each record, unless it has changed since it was read.
    async fn release(&self, store: &Arc<dyn Store>, found: &[(StoredKey, Record)]) -> Result<Written> {
        let engine = engine(store, |builder| builder)?;
        let mut written = Written::default();
        for (key, seen) in found {
            match engine.resolve(key, seen, Resolution::RunAgain).await {
                Ok(Some(_)) => written.released += 1,
                Ok(None) => written.changed += 1,
                Err(error) => written.problems.push(Problem::of(&error).to_string()),
            }
        }
        Ok(written)
    }

    fn told(&self, written: &Written) -> Result<ExitCode> {
        let Written { released, changed, problems } = written;
        if self.json {
            words::print_json(&json!({
                "is_dry_run": false, "released": released, "changed": changed, "problems": problems,
            }))?;
        } else {
            let mut text = format!("{} released\n", words::count(*released, "claim"));
            if *changed > 0 {
                let changed = words::count(*changed, "record");
                text.push_str(&format!("{changed} changed in between, and nothing was written to them\n"));
            }
            words::print(&text)?;
            problems.iter().for_each(|problem| eprintln!("idempotency: {problem}"));
        }
        Ok(match (problems.len(), changed) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::FAILURE,
            _ => ExitCode::from(2),
        })
    }
}
