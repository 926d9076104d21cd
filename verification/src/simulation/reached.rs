//! Every setting, entry point, write and answer that the schedules must reach, with its count.
//!
//! A new item must be listed here. The public enums are matched without a wildcard, so the compiler reports a
//! variant that isn't listed. For the other items, `tests/reached.rs` reads the sources.

use std::fmt::{self, Write as _};

use lambda_idempotency::{
    ErrorKind, RunError,
    settings::{Execution, Recording},
    store::{Put, Status},
};
use lambda_idempotency_testing::Call;

use super::{
    config::{Choices, Config, Way},
    trouble::Refusal,
};
use crate::under_test::Purpose;

macro_rules! items {
    ($($group:literal { $($item:ident $what:literal)* })*) => {
        /// An item that the schedules must reach.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Item {
            $($(#[doc = $what] $item,)*)*
        }

        impl Item {
            /// All items, each with its group and name.
            pub const ALL: &[(Self, &'static str, &'static str)] =
                &[$($((Self::$item, $group, $what),)*)*];
        }
    };
}

items! {
    "settings (schedules with each)" {
        AtLeastOnce "`Execution::AtLeastOnce`"
        AtMostOnce "`Execution::AtMostOnce`"
        ReleasesErrors "`on_handler_error` releases"
        RecordsErrors "`on_handler_error` records"
        RefusesInProgress "no `wait_in_progress`"
        Waits "a `wait_in_progress`"
        RefusesUnprotected "no `fail_open`"
        MayRunUnprotected "`fail_open`"
        NoCache "no `local_cache`"
        Caches "a `local_cache`"
        RetentionShortest "`retention` 90 s"
        RetentionShort "`retention` 5 min"
        RetentionHour "`retention` 1 h"
        RetentionDay "`retention` 24 h"
        RetentionLong "`retention` 90 days"
        EndsProcesses "a platform that ends a process at its deadline"
        LetsRun "a platform that lets a process run past its deadline: Managed Instances"
        DefaultLease "a lease to the deadline"
        Extends "a `lease_extension`"
    }
    "entry points" {
        Claims "`Operation::run` (schedules)"
        Transactions "effects in the outcome's transaction (schedules)"
        Mixed "`optimistic` and `optimistic_reading_first` beside claims (schedules)"
        OneProcess "concurrent deliveries in one process (schedules)"
        ClaimCompleted "`Claim::complete`"
        ClaimFailed "`Claim::fail`"
        ClaimReleased "`Claim::release`"
        ClaimReplayed "`Begun::Replay` or `Settled::Superseded`"
        RunsUnprotected "a handler that runs without protection"
    }
    "an operator" {
        OperatorCompletes "records a response"
        OperatorOmits "completes without a response"
        OperatorFails "records a failure"
        OperatorReleases "releases the key"
        OperatorMeetsHandler "settles a claim while its handler runs"
        OperatorLost "finds that the record changed"
    }
    "applied writes" {
        T1 "T1 claim"
        T2 "T2 reclaim"
        T3 "T3 takeover"
        T4 "T4 complete"
        T5 "T5 fail"
        T6 "T6 release"
        T7 "T7 extend"
        Conclusion "a conclusion without a claim"
        Resolution "an operator's write"
    }
    "answers" {
        Own "the handler's result"
        Replayed "a replay"
        HandlersError "the handler's error"
        RecordedError "a recorded failure"
        Mismatch "`ErrorKind::Mismatch`"
        InProgress "`ErrorKind::InProgress`"
        OutcomeUnknown "`ErrorKind::OutcomeUnknown`"
        NotRetained "`ErrorKind::NotRetained`"
        Unavailable "`ErrorKind::Unavailable`"
        Unrecorded "`ErrorKind::Unrecorded`"
        Declined "`ErrorKind::Declined`"
    }
}

/// How often each item was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached([u64; Item::ALL.len()]);

impl Default for Reached {
    fn default() -> Self {
        Self([0; Item::ALL.len()])
    }
}

impl Reached {
    /// Counts `item` once.
    pub fn count(&mut self, item: Item) {
        self.0[item as usize] += 1;
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(all, one)| *all += one);
    }

    /// How often `item` was reached.
    pub fn of(&self, item: Item) -> u64 {
        self.0[item as usize]
    }

    /// The items that no schedule reached.
    pub fn missing(&self) -> impl Iterator<Item = &'static str> {
        Item::ALL.iter().filter(|(item, ..)| self.of(*item) == 0).map(|(_, _, what)| *what)
    }

    /// Counts the settings of a schedule.
    pub fn count_settings(&mut self, config: &Config) {
        let Choices { retention, records, waits, caches, .. } = config.choices;
        let unprotected = config.may_run_unprotected();
        let by = |is_set, yes, no| if is_set { yes } else { no };
        let execution = by(config.at_most_once, Execution::AtMostOnce, Execution::AtLeastOnce);
        self.count(match execution {
            Execution::AtLeastOnce => Item::AtLeastOnce,
            Execution::AtMostOnce => Item::AtMostOnce,
        });
        self.count(match if records { Recording::Record } else { Recording::Release } {
            Recording::Release => Item::ReleasesErrors,
            Recording::Record => Item::RecordsErrors,
        });
        self.count(if waits { Item::Waits } else { Item::RefusesInProgress });
        self.count(if unprotected { Item::MayRunUnprotected } else { Item::RefusesUnprotected });
        self.count(if caches { Item::Caches } else { Item::NoCache });
        self.count(match retention {
            ..300 => Item::RetentionShortest,
            300..3600 => Item::RetentionShort,
            3600..86_400 => Item::RetentionHour,
            86_400 => Item::RetentionDay,
            _ => Item::RetentionLong,
        });
        self.count(if config.choices.lets_run { Item::LetsRun } else { Item::EndsProcesses });
        self.count(if config.extends { Item::Extends } else { Item::DefaultLease });
        self.count(match config.way {
            Way::Claims => Item::Claims,
            Way::Transactions => Item::Transactions,
            Way::Mixed => Item::Mixed,
        });
        if config.shares {
            self.count(Item::OneProcess);
        }
    }

    /// Counts a put that was applied.
    pub fn count_put(&mut self, put: &Put) {
        self.count(match (Purpose::of(put), put.record().status()) {
            (Purpose::Claim, _) => match Call::of(put) {
                Call::Claim => Item::T1,
                Call::TakeOver => Item::T3,
                _ => Item::T2,
            },
            (Purpose::Settle, Status::Completed) => Item::T4,
            (Purpose::Settle, Status::Failed) => Item::T5,
            (Purpose::Settle, _) => Item::T6,
            (Purpose::Extend | Purpose::Interrupt, _) => Item::T7,
            (Purpose::Conclude, _) => Item::Conclusion,
            (Purpose::Resolve, _) => Item::Resolution,
        });
    }

    /// Counts an answer to a delivery. `has_run` tells whether the delivery's handler ran.
    pub fn count_answer(&mut self, result: &Result<String, RunError<Refusal>>, has_run: bool) {
        let item = match result {
            Ok(_) if has_run => Item::Own,
            Ok(_) => Item::Replayed,
            Err(RunError::Handler(_)) => Item::HandlersError,
            Err(RunError::Recorded(_)) => Item::RecordedError,
            Err(RunError::Idempotency(error)) => match of_kind(error.kind()) {
                Some(item) => item,
                None => return,
            },
            Err(_) => return,
        };
        self.count(item);
    }
}

/// The item of an error kind. `None` for a kind without an item: `tests/reached.rs` names a test for each such
/// kind.
fn of_kind(kind: ErrorKind) -> Option<Item> {
    let name = kind.as_str();
    let is_it =
        |what: &str| what.strip_prefix("`ErrorKind::").and_then(|what| what.strip_suffix('`')) == Some(name);
    Item::ALL.iter().find(|(_, _, what)| is_it(what)).map(|(item, ..)| *item)
}

impl fmt::Display for Reached {
    /// Prints a table, group by group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("| reached by the simulation | times |\n|---|---:|")?;
        let mut before = "";
        for (item, group, what) in Item::ALL {
            if *group != before {
                write!(f, "\n| **{group}** | |")?;
                before = group;
            }
            let mut count = self.of(*item).to_string();
            if count == "0" {
                count.clear();
                let _ = write!(count, "**NEVER**");
            }
            write!(f, "\n| {what} | {count} |")?;
        }
        Ok(())
    }
}
