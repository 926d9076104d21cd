//! `idempotency inspect`: one record, what the next delivery gets, and what the operator can do.

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use lambda_idempotency::{
    StoredKey,
    store::{Record, Status, Store},
    time::{Clock as _, system_clock},
};
use serde_json::json;

use super::{
    engine,
    key::KeyArguments,
    read,
    response::via,
    view::{RuleArguments, View},
};
use crate::{
    problem::{Problem, Result},
    store::StoreArguments,
    words,
};

/// Options of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Show the response too, as it's recorded. It's the function's own data: make sure that only you can see
    /// your screen. The text shows control characters escaped, and --json shows the exact response.
    #[arg(long)]
    reveal: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    store: StoreArguments,
}

/// Shows the record.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let key = arguments.key.stored()?;
    let store = arguments.store.open_any().await?;
    let Some(record) = read(&*store, &key).await? else {
        return absent(&key, &arguments.store, arguments.json);
    };
    let revealed = match arguments.reveal {
        true => reveal(&store, &key, &record).await?,
        false => None,
    };
    let view = View { key: &key, record: &record, rules: arguments.rules, now: system_clock().now() };
    if arguments.json {
        let mut document = json!({ "id": key.as_str(), "record": view.json() });
        if let Some(response) = revealed {
            document["record"]["response"]["recorded"] = in_json(&response);
        }
        words::print_json(&document)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{key}\n{}\n{}", view.lines(), view.next_delivery());
    text.push_str(&next_steps(&view, &arguments.store, arguments.reveal));
    if let Some(response) = revealed {
        text.push_str(&format!("\nThe recorded response:\n{}\n", in_text(&response)));
    }
    words::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The possible reasons for a missing record. The store can't tell which one applies.
pub(super) const NO_RECORD: &str = "  There's no record under this id. Possible reasons:
  - Nothing has claimed the key, or the record expired and was deleted. The next delivery claims the key and runs the
    handler.
  - The function derives another id for the operation, from another function name, wrapper, operation, caller, tenant
    or source. A step in the handler has its own id: `idempotency why --step` finds it.
  - The function uses another table.
";

/// Reports that there's no record under this key.
pub(super) fn absent(key: &StoredKey, store: &StoreArguments, as_json: bool) -> Result<ExitCode> {
    if as_json {
        words::print_json(&json!({ "id": key.as_str(), "record": null }))?;
    } else {
        words::print(&format!("{key}\n{NO_RECORD}  The store: {}\n", store.location()))?;
    }
    Ok(ExitCode::FAILURE)
}

async fn reveal(store: &Arc<dyn Store>, key: &StoredKey, record: &Record) -> Result<Option<Vec<u8>>> {
    if !matches!(record.status(), Status::Completed | Status::Failed) {
        return Ok(None);
    }
    match engine(store, |builder| builder)?.outcome_of(key, record).await {
        Ok(outcome) => Ok(Some(outcome.response().to_vec())),
        Err(error) if error.kind() == lambda_idempotency::ErrorKind::NotRetained => Ok(None),
        Err(error) => Err(Problem::of(&error)),
    }
}

fn in_text(response: &[u8]) -> String {
    match std::str::from_utf8(response) {
        Ok(text) => words::printable(text),
        Err(_) => format!("(binary, shown in hexadecimal)\n{}", hex(response)),
    }
}

fn in_json(response: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(response) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "hex": hex(response) }),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The operator's choices, with the commands for them.
pub(super) fn next_steps(view: &View<'_>, store: &StoreArguments, is_revealed: bool) -> String {
    let rules = view.rules.words();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let command = |name, options: &[&str]| {
        store.command_line(&[&[name, view.key.as_str()][..], options, &rules[..]].concat())
    };
    let mut options = vec!["--response", "FILE"];
    if matches!(via(view.key), "http" | "http-body") {
        options.extend(["--status", "CODE"]);
    }
    if view.record.expires_at.is_none() {
        options.extend(["--retention", "TIME"]);
    }
    let complete = command("complete", &options);
    let release = command("release", &[]);
    let lines: &[(&str, &str)] = match view.record.status() {
        Status::Started if view.is_running() => &[
            ("The handler may be running now. Wait, then inspect the record again", ""),
            ("If the executor has ended, and the operation's effect happened", &complete),
            ("If the executor has ended, and the operation's effect didn't happen", &release),
        ],
        Status::Started => &[
            ("If the operation's effect happened, record the operation as done", &complete),
            ("If the operation's effect didn't happen, let the next delivery run the handler", &release),
        ],
        Status::Completed if !view.is_expired() => &[
            ("If the recorded response is wrong, record another one", &complete),
            ("If the operation's effect was undone and must happen again", &release),
        ],
        Status::Failed if !view.is_expired() => &[
            ("If the operation's effect happened after all", &complete),
            ("To let the handler run again", &release),
        ],
        _ => return String::new(),
    };
    let mut text = "\nWhat you can do (commands that write start with a dry run):\n".to_owned();
    if view.has_response() && !is_revealed {
        text.push_str(&format!("  See the response:\n    {}\n", command("inspect", &["--reveal"])));
    }
    for (when, command) in lines {
        text.push_str(&format!("  {when}{}\n", if command.is_empty() { "." } else { ":" }));
        if !command.is_empty() {
            text.push_str(&format!("    {command}\n"));
        }
    }
    text
}
