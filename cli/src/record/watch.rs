//! `idempotency watch`: polls the store, and shows claims, takeovers and outcomes as they happen.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use lambda_idempotency::{
    StoredKey,
    store::{Record, Status},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use super::{
    list::{Found, every_record, function_of, unreadable},
    view::{RuleArguments, View},
};
use crate::{problem::Result, store::StoreArguments, words};

/// The maximum length of a printed line, in characters.
const WIDTH: usize = 80;
/// How many digits of a record's id a line shows: enough to tell records apart.
const DIGITS: usize = 8;

/// Options of `watch`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Watch only the records of this function.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,

    /// Show only these changes. Can be repeated.
    #[arg(long = "only", value_enum, value_name = "CHANGE")]
    only: Vec<Change>,

    /// How long to wait between two reads of the store.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = words::duration)]
    interval: Duration,

    /// Stop after this time. Default: watch until the command is interrupted.
    #[arg(long = "for", value_name = "TIME", value_parser = words::duration)]
    length: Option<Duration>,

    /// Show whole ids, for `inspect`. Lines may then be longer than 80 characters.
    #[arg(long)]
    full_ids: bool,

    /// Print one JSON object in each line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    store: StoreArguments,
}

/// How a record changed between two reads of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Change {
    /// A handler's run began.
    Claimed,
    /// A run began after an earlier run that ended without an answer.
    Takeover,
    /// The lease of a run expired: its executor ended without an answer.
    Stale,
    Completed,
    Failed,
    Released,
    /// The record expired and was deleted.
    Deleted,
    /// The record is in the store, but it can't be read.
    Unreadable,
}

impl Change {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Takeover => "takeover",
            Self::Stale => "stale",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Deleted => "deleted",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One record, as one read of the store found it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// The record, or the reason why it can't be read.
    record: Result<Record, String>,
    is_stale: bool,
}

/// Watches the store.
pub(crate) async fn main(arguments: &Arguments) -> Result<ExitCode> {
    let store = arguments.store.open().await?;
    let clock = system_clock();
    let (end, began) = (arguments.length.map(|length| clock.now().saturating_add(length)), clock.monotonic());
    // Both clocks end the watch: the wall clock may be set back.
    let has_lasted = |length| clock.monotonic().saturating_duration_since(began) >= length;
    let mut before: Option<HashMap<StoredKey, Seen>> = None;
    loop {
        let found = every_record(&store).await?;
        let now = clock.now();
        let seen = arguments.seen(found, now);
        let is_read = match &before {
            None => arguments.begin(&seen, now)?,
            Some(before) => arguments.tell(before, &seen, now)?,
        };
        before = Some(seen);
        let is_over = end.is_some_and(|end| clock.now() >= end) || arguments.length.is_some_and(has_lasted);
        if !is_read || is_over {
            return Ok(ExitCode::SUCCESS);
        }
        // Stop as soon as the reader has closed the pipe, as `grep -m1` does after its first match: DynamoDB bills each
        // read.
        tokio::select! {
            () = clock.sleep(arguments.interval) => {}
            () = words::reader_gone() => return Ok(ExitCode::SUCCESS),
        }
    }
}

impl Arguments {
    /// Returns the records of the wanted function, including unreadable ones: a record that's left out here would be
    /// reported as deleted.
    fn seen(&self, found: Vec<Found>, now: Timestamp) -> HashMap<StoredKey, Seen> {
        let wanted = |key: &StoredKey| self.function.as_deref().is_none_or(|name| function_of(key) == name);
        let seen = found.into_iter().filter(|(key, _)| wanted(key)).map(|(key, record)| {
            let view = |record| View { key: &key, record, rules: self.rules, now };
            let is_stale = record.as_ref().is_ok_and(|record| view(record).is_stale());
            (key, Seen { record: record.map_err(|error| error.to_string()), is_stale })
        });
        seen.collect()
    }

    fn begin(&self, seen: &HashMap<StoredKey, Seen>, now: Timestamp) -> Result<bool> {
        if self.json {
            return words::print_if_read(&format!(
                "{}\n",
                json!({ "at": words::moment(now), "change": null, "records": seen.len() })
            ));
        }
        words::print_if_read(&format!(
            "Watching {}, with a read every {}. Press Ctrl-C to stop.\n\
             Replays leave no trace in the store: see the metric idempotency_replayed.\n\n{:<8}  {:<10}  {:<7}  {}\n",
            words::count(seen.len(), "record"),
            words::exact(self.interval),
            "time",
            "change",
            "attempt",
            "id"
        ))
    }

    fn tell(
        &self,
        before: &HashMap<StoredKey, Seen>,
        after: &HashMap<StoredKey, Seen>,
        now: Timestamp,
    ) -> Result<bool> {
        let found = after.iter().filter_map(|(key, seen)| Some((key, seen, change(before.get(key), seen)?)));
        let gone = before.iter().filter(|(key, _)| !after.contains_key(*key));
        let all = found.chain(gone.map(|(key, seen)| (key, seen, Change::Deleted)));
        let is_wanted = |change: &Change| self.only.is_empty() || self.only.contains(change);
        let mut changes: Vec<_> = all.filter(|(.., change)| is_wanted(change)).collect();
        changes.sort_by_key(|(key, seen, _)| {
            (seen.record.as_ref().ok().map(|record| record.generation), (*key).clone())
        });
        let lines = changes.into_iter().map(|(key, seen, change)| match self.json {
            true => self.in_json(key, seen, change, now),
            false => self.in_text(key, seen, change, now),
        });
        words::print_if_read(&lines.collect::<String>())
    }

    fn in_json(&self, key: &StoredKey, seen: &Seen, change: Change, now: Timestamp) -> String {
        let record = match &seen.record {
            Ok(record) => View { key, record, rules: self.rules, now }.json(),
            Err(reason) => unreadable(key, reason),
        };
        let line = json!({ "at": words::moment(now), "change": change.as_str(), "id": key.as_str(), "record": record });
        format!("{line}\n")
    }

    fn in_text(&self, key: &StoredKey, seen: &Seen, change: Change, now: Timestamp) -> String {
        let moment = words::moment(now);
        let time = moment.split_once('T').map_or(moment.as_str(), |(_, time)| time);
        let time: String = time.chars().take(8).collect();
        let attempt = seen.record.as_ref().map(|record| record.attempt.to_string()).unwrap_or_default();
        let begun = format!("{time}  {:<10}  {attempt:<7}  ", change.as_str());
        let id = if self.full_ids {
            key.to_string()
        } else {
            shortened(key.as_str(), WIDTH - begun.chars().count())
        };
        format!("{begun}{id}\n")
    }
}

/// Returns how a record changed between two reads. If it changed several times, this is the last change. A record that
/// has become readable is shown like a new one.
fn change(before: Option<&Seen>, after: &Seen) -> Option<Change> {
    if before == Some(after) {
        return None;
    }
    let Ok(record) = &after.record else {
        let is_known = before.is_some_and(|before| before.record.is_err());
        return (!is_known).then_some(Change::Unreadable);
    };
    let was = before.and_then(|before| before.record.as_ref().ok());
    let is_new_claim = was.is_none_or(|was| was.generation != record.generation);
    Some(match record.status() {
        Status::Started
            if after.is_stale && !before.is_some_and(|before| before.is_stale && !is_new_claim) =>
        {
            Change::Stale
        }
        Status::Started if is_new_claim && record.mark.is_interrupted() => Change::Takeover,
        Status::Started if is_new_claim => Change::Claimed,
        // Only the lease was extended.
        Status::Started => return None,
        now if !is_new_claim && was.map(Record::status) == Some(now) => return None,
        Status::Completed => Change::Completed,
        Status::Failed => Change::Failed,
        Status::Released => Change::Released,
    })
}

/// Shortens an id to `DIGITS` digits of its hash, and to at most `width` characters.
fn shortened(id: &str, width: usize) -> String {
    let (scope, digits) = id.split_once('#').unwrap_or((id, ""));
    let digits: String = digits.chars().take(DIGITS).collect();
    let room = width.saturating_sub(DIGITS + 2);
    if scope.chars().count() <= room {
        return format!("{scope}#{digits}");
    }
    let end: String = scope.chars().rev().take(room.saturating_sub(1)).collect();
    format!("…{}#{digits}", end.chars().rev().collect::<String>())
}

#[cfg(test)]
mod tests {
    use lambda_idempotency::{
        Fingerprint,
        settings::Execution,
        store::{Generation, Lock, Owner, State},
    };

    use super::*;

    fn seen(generation: u64, state: Option<State>, interrupted: bool, is_stale: bool) -> Seen {
        let lock = Lock {
            owner: Owner::from_bytes([0; 16]),
            generation: Generation::new(generation),
            attempt: 1,
            fingerprint: Fingerprint::of("x").unwrap(),
            lock_acquired_at: Timestamp::from_millis(1),
            lease_until: Timestamp::from_millis(2),
            execution: Execution::AtLeastOnce,
            expires_at: None,
            mark: bool::into(interrupted),
            request_id: None,
            trace: None,
        };
        let record = Record::from(lock);
        Seen { record: Ok(Record { state: state.unwrap_or(record.state.clone()), ..record }), is_stale }
    }

    #[test]
    fn each_record_change_has_one_name() {
        let claim = seen(1, None, false, false);
        let stale = seen(1, None, false, true);
        let taken_over = seen(2, None, true, false);
        let released = seen(1, Some(State::Released), false, false);
        let unreadable = |reason: &str| Seen { record: Err(reason.to_owned()), is_stale: false };
        let (corrupt, newer) = (unreadable("corrupt"), unreadable("another version"));
        for (before, after, expected) in [
            (None, &claim, Some(Change::Claimed)),
            (Some(&claim), &claim, None),
            (Some(&claim), &stale, Some(Change::Stale)),
            (Some(&stale), &stale, None),
            (Some(&stale), &taken_over, Some(Change::Takeover)),
            (Some(&claim), &released, Some(Change::Released)),
            (None, &released, Some(Change::Released)),
            (Some(&released), &taken_over, Some(Change::Takeover)),
            (Some(&claim), &corrupt, Some(Change::Unreadable)),
            (None, &corrupt, Some(Change::Unreadable)),
            (Some(&corrupt), &newer, None),
            (Some(&corrupt), &released, Some(Change::Released)),
        ] {
            assert_eq!(change(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn shortened_ids_fit_the_given_width() {
        let id = format!("{}/http:refund#{:064}", "f".repeat(128), 7);
        for width in [20, 40, 52] {
            assert_eq!(shortened(&id, width).chars().count(), width - 1);
        }
        assert_eq!(shortened("f/run#0123456789", 52), "f/run#01234567");
    }
}
