//! `idempotency release` and `complete`: an operator's write, conditional on the version that was shown.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use lambda_idempotency::{
    Resolution, StoredKey,
    protocol::{self, Intent},
    settings::Settings,
    store::{Outcome, Owner, Record, Status, Store},
    time::{Clock as _, Timestamp, system_clock},
};
use serde_json::json;

use super::{
    engine,
    inspect::absent,
    key::KeyArguments,
    read,
    response::ResponseArguments,
    view::{RuleArguments, View},
};
use crate::{
    problem::{Problem, Result},
    store::StoreArguments,
    words,
};

/// Options of `release`.
#[derive(Debug, Args)]
pub(crate) struct Release {
    #[command(flatten)]
    write: WriteArguments,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    store: StoreArguments,
}

/// Options of `complete`.
#[derive(Debug, Args)]
pub(crate) struct Complete {
    #[command(flatten)]
    write: WriteArguments,

    #[command(flatten)]
    response: ResponseArguments,

    /// How long duplicates get this outcome, from now on, such as 24h, 90s or 7d. Default: 24h, or until the record
    /// would have expired, if that's later. A record that never expires needs this option.
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    retention: Option<Duration>,

    #[command(flatten)]
    key: KeyArguments,

    #[command(flatten)]
    store: StoreArguments,
}

#[derive(Debug, Args)]
struct WriteArguments {
    /// Make the write. Without this option, the command only shows the write.
    #[arg(long)]
    confirm: bool,

    /// Write only if the record is still this version. `inspect` and the dry run show a record's version.
    #[arg(long, value_name = "VERSION")]
    if_revision: Option<String>,

    #[command(flatten)]
    rules: RuleArguments,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A write that the command makes with --confirm, and otherwise only shows.
struct Planned<'a> {
    key: StoredKey,
    store: &'a StoreArguments,
    write: &'a WriteArguments,
    resolution: Resolution,
    /// How long the record lasts from now on, if the command line or the kind of write determines it.
    retention: Option<Duration>,
    /// The command's name. With `options`, it becomes the command line that the dry run shows.
    command: &'static str,
    options: Vec<String>,
}

/// Releases a key.
pub(crate) async fn release(arguments: &Release) -> Result<ExitCode> {
    let planned = Planned {
        key: arguments.key.stored()?,
        store: &arguments.store,
        write: &arguments.write,
        resolution: Resolution::Release,
        // A release keeps the record's expiry. If the record has none, the protocol sets one, and raises this retention
        // to its minimum.
        retention: Some(Duration::from_secs(1)),
        command: "release",
        options: vec![],
    };
    planned.perform().await
}

/// Records an operation as done.
pub(crate) async fn complete(arguments: &Complete) -> Result<ExitCode> {
    let key = arguments.key.stored()?;
    let mut options = arguments.response.words();
    if let Some(retention) = arguments.retention {
        options.extend(["--retention".to_owned(), words::exact(retention)]);
    }
    let planned = Planned {
        resolution: arguments.response.resolution(&key)?,
        key,
        store: &arguments.store,
        write: &arguments.write,
        retention: arguments.retention,
        command: "complete",
        options,
    };
    planned.perform().await
}

impl Planned<'_> {
    async fn perform(self) -> Result<ExitCode> {
        let store = self.store.open_any().await?;
        let Some(record) = read(&*store, &self.key).await? else {
            return absent(&self.key, self.store, self.write.json);
        };
        let view = self.view(&record);
        if self.write.if_revision.as_ref().is_some_and(|version| *version != view.version()) {
            return self.lost(Some(&record));
        }
        if record.status() == Status::Released && self.resolution == Resolution::Release {
            return self.nothing_to_do(&record);
        }
        let retention = self.retention(&record, view.now)?;
        if self.write.confirm {
            self.make(&store, &record, retention).await
        } else {
            self.show(&record, retention)
        }
    }

    /// Returns how long the written record lasts. Without --retention, an outcome never expires before the record would
    /// have expired. If it did, a duplicate that arrives between the two times would run the handler, although the
    /// function still expects to deduplicate it.
    fn retention(&self, seen: &Record, now: Timestamp) -> Result<Duration> {
        match (self.retention, seen.expires_at) {
            (Some(retention), _) => Ok(retention),
            (None, Some(expires_at)) => Ok(Settings::default().retention.max(now.until(expires_at))),
            (None, None) => Err(Problem::new(format!(
                "{}: the record never expires, so it doesn't say how long duplicates may arrive; add --retention TIME, \
                 such as --retention 7d",
                self.key
            ))),
        }
    }

    fn view<'a>(&'a self, record: &'a Record) -> View<'a> {
        View { key: &self.key, record, rules: self.write.rules, now: system_clock().now() }
    }

    /// Shows the dry run.
    fn show(&self, record: &Record, retention: Duration) -> Result<ExitCode> {
        let view = self.view(record);
        let version = view.version();
        let mut line = vec![self.command, self.key.as_str()];
        line.extend(self.options.iter().map(String::as_str));
        let rules = self.write.rules.words();
        line.extend(rules.iter().map(String::as_str));
        line.extend(["--if-revision", &version, "--confirm"]);
        let confirm = self.store.command_line(&line);
        if self.write.json {
            let document = json!({
                "id": self.key.as_str(),
                "is_written": false,
                "is_dry_run": true,
                "record": view.json(),
                "would_become": self.status().as_str(),
                "means": self.means(&view),
                "confirm": confirm,
            });
            words::print_json(&document)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = format!("{}\n{}\n", self.key, view.lines());
        text.push_str(&format!(
            "DRY RUN: nothing was written. The record would become\n{}\n",
            self.would_become(&view, retention)
        ));
        for meaning in self.means(&view) {
            text.push_str(&format!("  - {}\n", words::wrap(&meaning, 110).join("\n    ")));
        }
        text.push_str(&format!("\nTo write it to {}:\n  {confirm}\n", self.store.location()));
        words::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn status(&self) -> Status {
        match self.resolution {
            Resolution::Release => Status::Released,
            _ => Status::Completed,
        }
    }

    fn would_become(&self, view: &View<'_>, retention: Duration) -> String {
        let intent = match self.resolution {
            Resolution::Release => Intent::Release { interrupted: false },
            _ => Intent::Complete(Outcome::Omitted),
        };
        // Let the protocol compute the expiry. The owner and the response are placeholders, which don't affect it.
        let put = protocol::resolve(view.record, Owner::from_bytes([0; 16]), intent, retention, view.now);
        let expires_at = put.record().expires_at;
        let mut lines = vec![("status", self.status().as_str().to_owned())];
        match &self.resolution {
            Resolution::Complete(bytes) => lines.push(("response", format!("{} bytes", bytes.len()))),
            Resolution::CompleteWithoutResponse => lines.push(("response", "not retained".to_owned())),
            _ => {}
        }
        lines.extend([
            ("expires", words::expiry(expires_at, view.now)),
            ("owner", "a new one, with a higher generation: a claim that still runs is fenced".to_owned()),
        ]);
        lines.into_iter().map(|(name, value)| format!("  {name:<13}{value}\n")).collect()
    }

    /// What the record means for an operator who is about to make this write.
    fn warning(&self, view: &View<'_>) -> &'static str {
        match (view.record.status(), self.resolution == Resolution::Release) {
            (Status::Started, true) if view.is_running() => {
                "ITS HANDLER MAY BE RUNNING NOW, since the claim isn't stale yet. After a release, the next delivery \
                 runs the handler a second time, concurrently. Wait until `inspect` shows the claim as stale, or make \
                 sure that its executor has ended."
            }
            (Status::Started, true) => {
                "An executor claimed the key and ended without an answer. Its effect may have happened: find out \
                 before you release, since the next delivery runs the handler again."
            }
            (Status::Started, false) if view.is_running() => {
                "Its handler may be running now, since the claim isn't stale yet: be sure that the effect happened."
            }
            (Status::Started, false) => {
                "An executor claimed the key and ended without an answer. Be sure that the effect happened: after \
                 this, no delivery runs the handler."
            }
            (Status::Completed | Status::Failed, true) if view.is_expired() => {
                "The record has expired, so it blocks nothing: the next delivery runs the handler, even without a \
                 release. A release deletes the recorded outcome."
            }
            (Status::Completed, true) => {
                "THE OPERATION IS DONE: ITS EFFECT HAPPENED. A release lets it happen again, and deletes the recorded \
                 response."
            }
            (Status::Completed, false) => "This write irrevocably replaces the recorded response.",
            (Status::Failed, true) => {
                "The operation failed permanently, and duplicates get that failure. After a release, the next delivery \
                 runs the handler again."
            }
            (Status::Failed, false) => "This write irrevocably replaces the recorded failure.",
            (Status::Released, _) => {
                "The key is free: the next delivery would run the handler. After this write, no delivery runs it."
            }
        }
    }

    /// The write's consequences for deliveries, and for a claim that is still running.
    fn means(&self, view: &View<'_>) -> Vec<String> {
        let is_release = self.resolution == Resolution::Release;
        let mut means = vec![self.warning(view).to_owned()];
        means.push(match &self.resolution {
            Resolution::Release => {
                "The next delivery claims the key, even with a different request, and runs the handler."
                    .to_owned()
            }
            Resolution::CompleteWithoutResponse => {
                "Duplicates get NotRetained (HTTP 409), and don't run.".to_owned()
            }
            _ => "Duplicates of the same request get this response, and don't run.".to_owned(),
        });
        means.extend(self.shortening(view));
        if is_release && view.record.mark.is_interrupted() {
            means.push(
                "A release says that nothing happened, so the next delivery's handler doesn't learn that an earlier \
                 attempt ended without an answer."
                    .to_owned(),
            );
        }
        if view.record.status() == Status::Started {
            means.push(if is_release {
                "If this claim's executor still runs, and finishes while the key is free, it records its own outcome. \
                 If another delivery has claimed the key by then, the executor is fenced, and its caller gets \
                 InProgress or that delivery's outcome."
                    .to_owned()
            } else {
                "If this claim's executor still runs, its own outcome is refused, and its caller gets the outcome \
                 recorded here."
                    .to_owned()
            });
        }
        means
    }

    /// Warns if --retention ends before the record would have expired. If the record never expires, the operator has to
    /// give --retention, so the warning is milder.
    fn shortening(&self, view: &View<'_>) -> Option<String> {
        let retention = self.retention.filter(|_| self.resolution != Resolution::Release)?;
        let until = view.now.saturating_add(retention).rounded_up_to_second();
        let Some(expires_at) = view.record.expires_at else {
            return Some(
                "The record never expires. The outcome does, after --retention: a duplicate that arrives later runs \
                 the handler again."
                    .to_owned(),
            );
        };
        if expires_at <= until {
            return None;
        }
        Some(
            "THIS --retention ENDS BEFORE THE RECORD WOULD HAVE EXPIRED: a duplicate that arrives later runs the \
             handler again."
                .to_owned(),
        )
    }

    async fn make(&self, store: &Arc<dyn Store>, seen: &Record, retention: Duration) -> Result<ExitCode> {
        let engine = engine(store, |builder| builder.retention(retention))?;
        let resolved = engine.resolve(&self.key, seen, self.resolution.clone()).await;
        let Some(record) = resolved.map_err(|error| Problem::of(&error))? else {
            return self.lost(read(&**store, &self.key).await?.as_ref());
        };
        let view = self.view(&record);
        if self.write.json {
            words::print_json(
                &json!({ "id": self.key.as_str(), "is_written": true, "record": view.json() }),
            )?;
        } else {
            words::print(&format!("{}\n{}\nWritten. {}", self.key, view.lines(), view.next_delivery()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reports that the record changed after it was shown, and shows its current version, so that the operator can
    /// decide again.
    fn lost(&self, record: Option<&Record>) -> Result<ExitCode> {
        let Some(record) = record else {
            return absent(&self.key, self.store, self.write.json);
        };
        let view = self.view(record);
        if self.write.json {
            words::print_json(
                &json!({ "id": self.key.as_str(), "is_written": false, "record": view.json() }),
            )?;
        } else {
            words::print(&format!("{}\n{}\n", self.key, view.lines()))?;
        }
        eprintln!(
            "idempotency: nothing was written: the record changed after it was shown. Inspect this version, and \
             decide again"
        );
        Ok(ExitCode::FAILURE)
    }

    fn nothing_to_do(&self, record: &Record) -> Result<ExitCode> {
        if self.write.json {
            let view = self.view(record).json();
            words::print_json(&json!({ "id": self.key.as_str(), "is_written": false, "record": view }))?;
        } else {
            words::print(&format!("{}\n  It's already released: nothing to do.\n", self.key))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
