//! `idempotency list`: the records of the store.

use std::{collections::HashSet, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use lambda_idempotency::{
    StoredKey,
    store::{Record, Status, StoreError},
    time::{Clock as _, SystemClock, Timestamp},
};
use serde_json::json;

use super::view::{RuleArguments, View};
use crate::{
    problem::Result,
    store::{OpenStore, StoreArguments},
    words,
};

/// Options of `list`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only STARTED records whose lease expired more than the skew margin ago, and their count: their
    /// executors ended without an answer. Reads the whole store.
    #[arg(long, conflicts_with = "status")]
    unresolved: bool,

    /// Only unresolved records that were claimed longer ago than this, such as 1h, 30m or 7d.
    #[arg(long, value_name = "TIME", requires = "unresolved", value_parser = words::duration)]
    older_than: Option<Duration>,

    /// Only records with this status. Unreadable records are always listed.
    #[arg(long, value_enum, value_name = "STATUS")]
    status: Option<Wanted>,

    /// List at most this many. Without --unresolved, the command reads only as much of the store as that
    /// takes.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    store: StoreArguments,
}

/// A status on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    Started,
    Completed,
    Failed,
    Released,
}

impl Wanted {
    const fn status(self) -> Status {
        match self {
            Self::Started => Status::Started,
            Self::Completed => Status::Completed,
            Self::Failed => Status::Failed,
            Self::Released => Status::Released,
        }
    }
}

type Found = (StoredKey, Result<Record, StoreError>);

/// The records found, oldest first, and whether there are more.
#[derive(Debug)]
struct Listed {
    found: Vec<Found>,
    has_more: bool,
    /// How many unresolved records the whole store has, listed or not.
    unresolved: usize,
    /// How many records couldn't be read.
    unreadable: usize,
}

/// Lists the records.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.store.open().await?;
    let now = SystemClock.now();
    let found = collect(&store, arguments, now).await?;
    let listed = Listed::new(found, arguments.limit as usize);
    if arguments.json {
        print_json(&listed, arguments, now)?;
    } else {
        print(&listed, arguments, now)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The matching records: at least one more than the limit, if there are enough. A count needs all of them.
async fn collect(store: &OpenStore, arguments: &Arguments, now: Timestamp) -> Result<Vec<Found>> {
    let limit = if arguments.unresolved { usize::MAX } else { arguments.limit as usize };
    let (mut found, mut position, mut seen) = (Vec::new(), None, HashSet::new());
    loop {
        let page = store.scan(position).await?;
        let wanted = page.records.into_iter().filter(|(key, record)| arguments.wants(key, record, now));
        found.extend(wanted.filter(|(key, _)| seen.insert(key.clone())));
        if found.len() > limit || page.next.is_none() {
            return Ok(found);
        }
        position = page.next;
    }
}

impl Listed {
    fn new(mut found: Vec<Found>, limit: usize) -> Self {
        // Oldest first, since those have waited longest for an operator. Unreadable records come before all
        // others.
        found.sort_by_key(|(key, record)| {
            (record.as_ref().ok().map(|record| record.lock_acquired_at), key.clone())
        });
        let unreadable = found.iter().filter(|(_, record)| record.is_err()).count();
        let (unresolved, has_more) = (found.len() - unreadable, found.len() > limit);
        found.truncate(limit);
        Self { found, has_more, unresolved, unreadable }
    }
}

fn print_json(listed: &Listed, arguments: &Arguments, now: Timestamp) -> Result<()> {
    let records: Vec<_> =
        listed.found.iter().map(|(key, record)| as_json(key, record, arguments.rules, now)).collect();
    let mut document = json!({ "records": records, "has_more": listed.has_more });
    if arguments.unresolved {
        document["unresolved"] = listed.unresolved.into();
        document["unreadable"] = listed.unreadable.into();
    }
    words::print_json(&document)
}

fn print(listed: &Listed, arguments: &Arguments, now: Timestamp) -> Result<()> {
    let Listed { found, has_more, unresolved, unreadable } = listed;
    let mut text = String::new();
    if !found.is_empty() {
        let rows: Vec<_> = found.iter().map(|(key, record)| row(key, record, arguments.rules, now)).collect();
        text = words::table(&["status", "claimed", "until", "attempt", "id", "request id"], &rows);
    } else if !arguments.unresolved {
        text.push_str("no matching records\n");
    }
    if arguments.unresolved {
        text.push_str(&format!("{} unresolved\n", words::count(*unresolved, "operation")));
        if *unreadable > 0 {
            text.push_str(&format!("{} unreadable\n", words::count(*unreadable, "record")));
        }
    }
    words::print(&text)?;
    if *has_more {
        eprintln!("More records match: use a larger --limit than {}.", found.len());
    }
    Ok(())
}

impl Arguments {
    fn wants(&self, key: &StoredKey, record: &Result<Record, StoreError>, now: Timestamp) -> bool {
        let Ok(record) = record else { return true };
        if self.unresolved {
            let view = View { key, record, rules: self.rules, now };
            return view.is_stale() && self.older_than.is_none_or(|age| view.age() > age);
        }
        self.status.is_none_or(|wanted| wanted.status() == record.status())
    }
}

fn row(
    key: &StoredKey,
    record: &Result<Record, StoreError>,
    rules: RuleArguments,
    now: Timestamp,
) -> Vec<String> {
    let view = match record {
        Ok(record) => View { key, record, rules, now },
        Err(error) => {
            let blank = String::new;
            return vec!["UNREADABLE".into(), blank(), blank(), blank(), key.to_string(), error.to_string()];
        }
    };
    let until = match view.record.lease_until() {
        Some(lease_until) => {
            let stale = if view.is_stale() { ", stale" } else { "" };
            let ends = if lease_until > now { "ends" } else { "ended" };
            format!("lease {ends} {}{stale}", words::relative(lease_until, now))
        }
        None if view.record.status() == Status::Released => "free".to_owned(),
        None => match view.record.expires_at {
            Some(expires_at) => format!("expires {}", words::relative(expires_at, now)),
            None => "never expires".to_owned(),
        },
    };
    let interrupted = if view.record.interrupted { ", interrupted" } else { "" };
    vec![
        view.record.status().as_str().to_owned(),
        words::relative(view.record.lock_acquired_at, now),
        until,
        format!("{}{interrupted}", view.record.attempt),
        key.to_string(),
        view.record.request_id.as_deref().unwrap_or_default().to_owned(),
    ]
}

fn as_json(
    key: &StoredKey,
    record: &Result<Record, StoreError>,
    rules: RuleArguments,
    now: Timestamp,
) -> serde_json::Value {
    match record {
        Ok(record) => View { key, record, rules, now }.json(),
        Err(error) => json!({ "id": key.as_str(), "status": null, "unreadable": error.to_string() }),
    }
}
