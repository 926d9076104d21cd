//! A record in text and in JSON, without the content of its response.

use std::time::Duration;

use clap::Args;
use lambda_idempotency::{
    StoredKey,
    protocol::{self, NextDelivery, Outlook, Rules},
    settings::{Execution, Settings},
    store::{Mark, Outcome, Place, Record, State, Status},
    time::Timestamp,
};
use serde_json::{Value, json};

use crate::words;

/// The function's settings that determine a record's current state.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct RuleArguments {
    /// The function's `skew_margin`, such as 2s or 500ms. A lease or a record counts as expired only when it ended
    /// more than this margin ago. Default: 2s, or, for `why`, the description's margin.
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    skew_margin: Option<Duration>,
}

impl RuleArguments {
    /// The same rules, with the description's skew margin if the command line has none.
    pub(super) fn or_described(self, skew_margin_ms: Option<u64>) -> Self {
        Self { skew_margin: self.skew_margin.or(skew_margin_ms.map(Duration::from_millis)) }
    }

    /// Returns the command line's words that set these rules.
    pub(super) fn words(self) -> Vec<String> {
        let margin = self.skew_margin.map(words::exact);
        margin.map_or_else(Vec::new, |margin| vec!["--skew-margin".to_owned(), margin])
    }
}

/// A record and its current state.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) key: &'a StoredKey,
    pub(super) record: &'a Record,
    pub(super) rules: RuleArguments,
    pub(super) now: Timestamp,
}

impl View<'_> {
    /// Whether the record is stale or expired, and what the next delivery gets under this `execution`.
    fn outlook(&self, execution: Execution) -> Outlook {
        let Settings { skew_margin, retention, .. } = Settings::default();
        let skew_margin = self.rules.skew_margin.unwrap_or(skew_margin);
        protocol::outlook(
            &Rules { skew_margin, retention, execution, reconcile: None },
            self.record,
            self.now,
        )
    }

    pub(super) fn is_stale(&self) -> bool {
        self.outlook(Execution::AtLeastOnce).is_stale
    }

    pub(super) fn is_expired(&self) -> bool {
        self.outlook(Execution::AtLeastOnce).is_expired
    }

    /// How long ago the claim was made.
    pub(super) fn age(&self) -> Duration {
        self.record.lock_acquired_at.until(self.now)
    }

    /// Whether the record is an at-most-once claim that ended without an answer: no delivery runs until an operator
    /// settles it, not even in a function that runs at least once.
    pub(super) fn is_unresolved(&self) -> bool {
        self.outlook(Execution::AtLeastOnce).next == NextDelivery::OutcomeUnknown
    }

    /// Whether the handler of the record's claim may be running.
    pub(super) fn is_running(&self) -> bool {
        self.record.status() == Status::Started && !self.is_stale()
    }

    /// The version of the record, for `--if-revision`. Every change of the record changes its version, except an
    /// extension of its lease.
    pub(super) fn version(&self) -> String {
        let Record { generation, expires_at, .. } = self.record;
        let status = self.record.status().as_str();
        match (self.record.status(), expires_at) {
            // A lease may be extended every few seconds, and the claim stays the same, so the version doesn't include
            // the lease.
            (Status::Started, _) => format!("{status}-{generation}"),
            (_, Some(expires_at)) => format!("{status}-{generation}-{}", expires_at.as_millis()),
            (_, None) => format!("{status}-{generation}-never"),
        }
    }

    /// The status, whether the record is stale or expired, and when its lease or the record itself ends or ended.
    pub(super) fn state(&self) -> String {
        let status = self.record.status().as_str();
        let relative = |time| words::relative(time, self.now);
        let expires = self.record.expires_at.map(relative);
        match (self.record.lease_until(), self.record.status()) {
            (Some(lease), _) if self.is_stale() => {
                let expired = if self.is_expired() { " and expired" } else { "" };
                format!("{status}, stale{expired}: its lease ended {}", relative(lease))
            }
            (Some(lease), _) if self.record.mark == Mark::Unanswered => {
                format!(
                    "{status}, unanswered: nothing runs, and the next attempt may begin {}",
                    relative(lease)
                )
            }
            (Some(lease), _) if lease > self.now => {
                format!("{status}, live: its lease ends {}", relative(lease))
            }
            (Some(lease), _) => {
                format!("{status}, live: its lease ended {}, within the skew margin", relative(lease))
            }
            (None, Status::Released) => format!("{status}: the key is free"),
            (None, _) => match expires {
                Some(expires) if self.is_expired() => format!("{status}, expired {expires}"),
                Some(expires) => format!("{status}, live: replayed until it expires {expires}"),
                None => format!("{status}, live: replayed, and never expires"),
            },
        }
    }

    /// The record as text: one line per field, with the field's name.
    pub(super) fn lines(&self) -> String {
        let Record {
            owner,
            generation,
            attempt,
            fingerprint,
            lock_acquired_at,
            execution,
            expires_at,
            mark,
            request_id,
            trace,
            ..
        } = self.record;
        let at = |time| words::moment_and_distance(time, self.now);
        let mut lines = vec![
            ("status", self.state()),
            ("claimed", format!("{}, attempt {attempt}", at(*lock_acquired_at))),
        ];
        if *execution == Execution::AtMostOnce {
            lines
                .push(("execution", "at most once: the handler of this claim never starts again".to_owned()));
        }
        let interrupted = "an earlier attempt ended without an answer: its effect may have happened";
        match mark {
            Mark::None => {}
            Mark::Interrupted => lines.push(("interrupted", interrupted.to_owned())),
            Mark::Unanswered => lines.push((
                "unanswered",
                "this claim ended without an answer, and nothing runs under it: its effect may have happened"
                    .to_owned(),
            )),
            Mark::Reconciled => lines.push((
                "reconciled",
                "an attempt ended without an answer, and the outcome was found by asking the remote system"
                    .to_owned(),
            )),
        }
        if let Some(lease_until) = self.record.lease_until() {
            lines.push(("lease until", at(lease_until)));
        }
        lines.extend([
            ("expires", words::expiry(*expires_at, self.now)),
            ("response", self.response()),
            ("request id", request_id.as_deref().unwrap_or("not known").to_owned()),
        ]);
        lines.extend(trace.as_ref().map(|trace| ("trace", trace.to_string())));
        lines.extend([
            ("owner", owner.to_string()),
            ("generation", generation.to_string()),
            ("fingerprint", fingerprint.to_string()),
            ("version", self.version()),
        ]);
        lines.into_iter().map(|(name, value)| format!("  {name:<13}{value}\n")).collect()
    }

    /// Whether the record has a response.
    pub(super) fn has_response(&self) -> bool {
        matches!(
            &self.record.state,
            State::Completed(Outcome::Retained(_)) | State::Failed(Outcome::Retained(_))
        )
    }

    /// Whether a delivery with another payload is refused.
    pub(super) fn blocks_others(&self) -> bool {
        let next = self.outlook(Execution::AtLeastOnce).next;
        // A stale claim refuses another payload, too, until its record expires.
        !matches!(next, NextDelivery::ClaimsAnew)
    }

    /// Describes the stored response, without its content.
    fn response(&self) -> String {
        let outcome = match &self.record.state {
            State::Started { .. } | State::Released => return "none".to_owned(),
            State::Completed(outcome) | State::Failed(outcome) => outcome,
        };
        let Outcome::Retained(response) = outcome else {
            return "not retained: duplicates learn only that the operation is done".to_owned();
        };
        let place = match &response.place {
            Place::Inline(kept) => format!("{} bytes in the record", kept.len()),
            Place::Chunks(count) => format!("in {count} chunks beside the record"),
        };
        let how = if response.deflated { "compressed" } else { "uncompressed" };
        format!("{} bytes, {how}, {place}", response.length)
    }

    /// Describes what the next delivery gets, and what a different request with the same key gets.
    pub(super) fn next_delivery(&self) -> String {
        let mut text = self.same_request();
        if self.blocks_others() {
            text.push_str("A different request with this key is refused: Mismatch (HTTP 422).\n");
        }
        text
    }

    /// Describes what the next delivery of the same request gets.
    fn same_request(&self) -> String {
        let [more, once] =
            [Execution::AtLeastOnce, Execution::AtMostOnce].map(|execution| self.outlook(execution).next);
        match more {
            NextDelivery::Replayed => {
                let what = match self.record.state {
                    State::Failed(_) => "the recorded failure",
                    State::Completed(Outcome::Omitted) => "NotRetained (HTTP 409), since the record has no response",
                    _ => "the recorded response",
                };
                format!("If the same request arrives now, it gets {what}, and the handler doesn't run.\n")
            }
            NextDelivery::InProgress(until) => format!(
                "If the same request arrives within the next {}, it's refused: InProgress (HTTP 409).\n",
                words::span(self.now.until(until))
            ),
            NextDelivery::OutcomeUnknown => {
                "The function runs at most once. If the same request arrives, it's refused until you settle the \
                 record: OutcomeUnknown (HTTP 409).\nThe record doesn't say whether the operation's effect happened.\n"
                    .to_owned()
            }
            NextDelivery::TakesOver | NextDelivery::ClaimsAnew if once == NextDelivery::OutcomeUnknown => {
                "If the same request arrives now, it takes over the claim, and the handler runs again. In a function \
                 that runs\nat most once, it's refused until you settle the record: OutcomeUnknown (HTTP 409).\n"
                    .to_owned()
            }
            NextDelivery::TakesOver | NextDelivery::ClaimsAnew => {
                "The next delivery claims the key and runs the handler.\n".to_owned()
            }
        }
    }

    /// The record as JSON.
    pub(super) fn json(&self) -> Value {
        let record = self.record;
        let word = |execution| match self.outlook(execution).next {
            NextDelivery::Replayed => "replayed",
            NextDelivery::InProgress(_) => "in_progress",
            NextDelivery::OutcomeUnknown => "outcome_unknown",
            NextDelivery::TakesOver => "takes_over",
            NextDelivery::ClaimsAnew => "claims_anew",
        };
        let lease_until = record.lease_until();
        json!({
            "id": self.key.as_str(),
            "status": record.status().as_str(),
            "is_stale": self.is_stale(),
            "is_expired": self.is_expired(),
            "attempt": record.attempt,
            "interrupted": record.mark.is_interrupted(),
            "mark": record.mark.name(),
            "generation": record.generation.get(),
            "owner": record.owner.to_string(),
            "request_id": record.request_id.as_deref(),
            "trace": record.trace.as_deref(),
            "execution": match record.execution {
                Execution::AtLeastOnce => "at_least_once",
                Execution::AtMostOnce => "at_most_once",
            },
            "fingerprint": record.fingerprint.to_string(),
            "lock_acquired_at": words::moment(record.lock_acquired_at),
            "lock_acquired_at_ms": record.lock_acquired_at.as_millis(),
            "lease_until": lease_until.map(words::moment),
            "lease_until_ms": lease_until.map(Timestamp::as_millis),
            "expires_at": record.expires_at.map(words::moment),
            "expires_at_ms": record.expires_at.map(Timestamp::as_millis),
            "response": self.response_json(),
            "version": self.version(),
            "next_delivery": {
                "at_least_once": word(Execution::AtLeastOnce),
                "at_most_once": word(Execution::AtMostOnce),
            },
            "now_ms": self.now.as_millis(),
        })
    }

    fn response_json(&self) -> Value {
        let (State::Completed(outcome) | State::Failed(outcome)) = &self.record.state else {
            return Value::Null;
        };
        let Outcome::Retained(response) = outcome else { return json!({ "is_retained": false }) };
        let (kept_bytes, parts) = match &response.place {
            // `list` and `watch` drop the response's bytes, so the number of bytes in the record isn't known.
            Place::Inline(kept) if kept.is_empty() && response.length > 0 => (None, None),
            Place::Inline(kept) => (Some(kept.len()), None),
            Place::Chunks(count) => (None, Some(count)),
        };
        let encoding = if response.deflated { "deflate" } else { "identity" };
        json!({
            "is_retained": true,
            "bytes": response.length,
            "encoding": encoding,
            "sha256": response.sha256.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "inline_bytes": kept_bytes,
            "parts": parts,
        })
    }
}
