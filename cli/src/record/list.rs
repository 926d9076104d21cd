//! `idempotency list`: the records of the store.

use std::{
    collections::{BTreeMap, HashSet},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, ValueEnum};
use lambda_idempotency::{
    StoredKey,
    store::{Mark, Outcome, Place, Record, State, Status, StoreError},
    time::{Clock as _, Timestamp, system_clock},
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
    /// Only STARTED records whose lease expired more than the skew margin ago, or that are marked as unanswered. Their
    /// executors ended without an answer. The command also counts these records, so it reads the whole store.
    #[arg(long, conflicts_with = "status")]
    unresolved: bool,

    /// Only unresolved records that were claimed longer ago than this, such as 1h, 30m or 7d.
    #[arg(long, value_name = "TIME", requires = "unresolved", value_parser = words::duration)]
    older_than: Option<Duration>,

    /// Only records in this state. Unreadable records are always listed.
    #[arg(long, visible_alias = "state", value_enum, value_name = "STATUS")]
    status: Option<Wanted>,

    /// Only records of this function.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,

    /// Count the records by function and state instead of listing them. Reads the whole store.
    #[arg(long, conflicts_with_all = ["unresolved", "limit"])]
    counts: bool,

    /// List at most this many records. Without --unresolved, the command stops reading the store when it has found
    /// more than this many.
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

/// A value of `--status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    Started,
    /// STARTED, and the lease hasn't expired, or expired within the skew margin.
    Running,
    /// STARTED, and the lease expired more than the skew margin ago.
    Stale,
    Completed,
    Failed,
    Released,
    /// Settled, and expired more than the skew margin ago.
    Expired,
}

impl Wanted {
    fn fits(self, view: &View<'_>) -> bool {
        let status = view.record.status();
        match self {
            Self::Started => status == Status::Started,
            Self::Running => view.is_running(),
            Self::Stale => view.is_stale(),
            Self::Completed => status == Status::Completed,
            Self::Failed => status == Status::Failed,
            Self::Released => status == Status::Released,
            Self::Expired => status != Status::Started && view.is_expired(),
        }
    }
}

/// A record, or why it can't be read.
pub(super) type Found = (StoredKey, Result<Record, StoreError>);

/// The records found, oldest first, and whether there are more.
#[derive(Debug)]
struct Listed {
    found: Vec<Found>,
    has_more: bool,
    /// How many readable records were found, listed or not. With --unresolved, all of them are unresolved.
    unresolved: usize,
    /// How many records couldn't be read.
    unreadable: usize,
}

/// Lists the records.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.store.open().await?;
    let now = system_clock().now();
    let found = collect(&store, arguments, now).await?;
    if arguments.counts {
        print_counts(&found, arguments, now)?;
        return Ok(ExitCode::SUCCESS);
    }
    let listed = Listed::new(found, arguments.limit as usize);
    if arguments.json {
        print_json(&listed, arguments, now)?;
    } else {
        print(&listed, arguments, now)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The name of the function that `key` belongs to.
pub(super) fn function_of(key: &StoredKey) -> &str {
    key.as_str().split_once('/').map_or(key.as_str(), |(function, _)| function)
}

/// Reads every record of the store.
pub(super) async fn every_record(store: &OpenStore) -> Result<Vec<Found>> {
    read_until(store, usize::MAX, |_, _| true).await
}

/// Reads the matching records, until it has more than the limit. With --unresolved or --counts, reads the whole store.
async fn collect(store: &OpenStore, arguments: &Arguments, now: Timestamp) -> Result<Vec<Found>> {
    let limit = if arguments.unresolved || arguments.counts { usize::MAX } else { arguments.limit as usize };
    read_until(store, limit, |key, record| arguments.wants(key, record, now)).await
}

/// Reads the records that `wants` accepts, until it has more than `limit`.
pub(super) async fn read_until(
    store: &OpenStore,
    limit: usize,
    wants: impl Fn(&StoredKey, &Result<Record, StoreError>) -> bool,
) -> Result<Vec<Found>> {
    let (mut found, mut position, mut seen) = (Vec::new(), None, HashSet::new());
    loop {
        let page = store.scan(position).await?;
        let wanted = page.records.into_iter().filter(|(key, record)| wants(key, record));
        found.extend(wanted.filter(|(key, _)| seen.insert(key.clone())).map(without_response));
        if found.len() > limit || page.next.is_none() {
            return Ok(found);
        }
        position = page.next;
    }
}

/// Drops the bytes of the response, which no listing shows: the records of the whole store must fit into memory.
fn without_response((key, mut record): Found) -> Found {
    if let Ok(record) = &mut record
        && let State::Completed(Outcome::Retained(response)) | State::Failed(Outcome::Retained(response)) =
            &mut record.state
        && let Place::Inline(kept) = &mut response.place
    {
        drop(std::mem::take(kept));
    }
    (key, record)
}

impl Listed {
    fn new(mut found: Vec<Found>, limit: usize) -> Self {
        // The oldest records come first, since they've waited longest for an operator. Unreadable records come before
        // all others.
        found.sort_by_key(|(key, record)| {
            (record.as_ref().ok().map(|record| record.lock_acquired_at), key.clone())
        });
        let unreadable = found.iter().filter(|(_, record)| record.is_err()).count();
        let (unresolved, has_more) = (found.len() - unreadable, found.len() > limit);
        found.truncate(limit);
        Self { found, has_more, unresolved, unreadable }
    }
}

/// The states that `--counts` distinguishes. `state` puts each record into one of them.
const STATES: [&str; 7] = ["running", "stale", "completed", "failed", "released", "expired", "unreadable"];

fn state(
    key: &StoredKey,
    record: &Result<Record, StoreError>,
    rules: RuleArguments,
    now: Timestamp,
) -> &'static str {
    let Ok(record) = record else { return "unreadable" };
    let view = View { key, record, rules, now };
    match record.status() {
        Status::Started if view.is_stale() => "stale",
        Status::Started => "running",
        _ if view.is_expired() => "expired",
        Status::Completed => "completed",
        Status::Failed => "failed",
        Status::Released => "released",
    }
}

fn print_counts(found: &[Found], arguments: &Arguments, now: Timestamp) -> Result<()> {
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for (key, record) in found {
        let of = counts.entry(function_of(key)).or_default();
        *of.entry(state(key, record, arguments.rules, now)).or_default() += 1;
    }
    let in_state = |of: &BTreeMap<&str, usize>, state: &str| of.get(state).copied().unwrap_or_default();
    if arguments.json {
        let functions = counts.iter().map(|(function, of)| {
            let states: serde_json::Map<_, _> =
                STATES.iter().map(|state| ((*state).to_owned(), in_state(of, state).into())).collect();
            json!({ "function": function, "states": states, "records": of.values().sum::<usize>() })
        });
        return words::print_json(
            &json!({ "functions": functions.collect::<Vec<_>>(), "records": found.len() }),
        );
    }
    let mut rows = Vec::new();
    for (function, of) in &counts {
        let named = STATES.iter().filter_map(|state| Some((state, of.get(state)?)));
        rows.extend(
            named.map(|(state, count)| vec![(*function).to_owned(), (*state).to_owned(), count.to_string()]),
        );
    }
    rows.push(vec!["all".to_owned(), String::new(), found.len().to_string()]);
    words::print(&words::table(&["function", "state", "records"], &rows))
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
        let of = |(key, record): &Found| row(key, record.as_ref(), arguments.rules, now);
        let rows: Vec<_> = found.iter().map(of).collect();
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
    if found.is_empty() {
        eprintln!("The store: {}", arguments.store.location());
    }
    if *has_more {
        eprintln!("More records match: use a larger --limit than {}.", found.len());
    }
    Ok(())
}

impl Arguments {
    fn wants(&self, key: &StoredKey, record: &Result<Record, StoreError>, now: Timestamp) -> bool {
        if self.function.as_deref().is_some_and(|name| name != function_of(key)) {
            return false;
        }
        let Ok(record) = record else { return true };
        let view = View { key, record, rules: self.rules, now };
        if self.unresolved {
            let is_unresolved = view.is_stale() || view.record.mark == Mark::Unanswered;
            return is_unresolved && self.older_than.is_none_or(|age| view.age() > age);
        }
        self.status.is_none_or(|wanted| wanted.fits(&view))
    }
}

pub(super) fn row(
    key: &StoredKey,
    record: Result<&Record, &StoreError>,
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
            let once = if view.record.is_at_most_once_claim() { ", at most once" } else { "" };
            format!("lease {ends} {}{stale}{once}", words::relative(lease_until, now))
        }
        None if view.record.status() == Status::Released => "free".to_owned(),
        None => match view.record.expires_at {
            Some(expires_at) => format!("expires {}", words::relative(expires_at, now)),
            None => "never expires".to_owned(),
        },
    };
    let mark = view.record.mark.name().map(|name| format!(", {name}")).unwrap_or_default();
    vec![
        view.record.status().as_str().to_owned(),
        words::relative(view.record.lock_acquired_at, now),
        until,
        format!("{}{mark}", view.record.attempt),
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
        Err(error) => unreadable(key, &error.to_string()),
    }
}

/// The JSON of a record that can't be read. `reason` says why.
pub(super) fn unreadable(key: &StoredKey, reason: &str) -> serde_json::Value {
    json!({ "id": key.as_str(), "status": null, "unreadable": reason })
}
