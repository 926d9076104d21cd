//! Judges whether the protocol's promises allow the outcome of one key.
//!
//! The evidence is the ledger's lines, what the harness did to each run, what the run answered, and the record.
//! Slowness alone is never a violation: Lambda would have killed a run that hadn't answered by its deadline. A run that
//! answers in time has no excuse for a wrong answer: before its deadline, no successor can have taken over, since all
//! processes share the machine's clock.

mod asked;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, fmt, ops::AddAssign};

use lambda_idempotency_rehearsal::clock::millis;

use super::{
    gateway::Log,
    job::{GRACE, MARGIN, RESERVE, TOLD_TO_FAIL, UNKNOWN},
    ledger::Line,
    record::Stored,
};

/// The effects that a key may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// If the effect is outside the store's transaction: one, plus one for each crash between effect and completion.
    AtLeastOnce,
    /// If the effect is in the store's transaction: exactly one.
    ExactlyOnce,
    /// If the effect is at a gateway that's asked: one, plus one for each that was on its way when the question said
    /// that there was none.
    Reconciled,
    /// If the effect is at a gateway, without a reconciler: one, plus one for each run that ended without an answer.
    Unreconciled,
}

/// The harness's action on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Nothing.
    Spared,
    /// SIGKILL.
    Killed,
    /// SIGSTOP until after the run's lease, then SIGCONT.
    Froze,
}

/// An invocation's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A response, as bytes.
    Response(Vec<u8>),
    /// A function error: its type and its message.
    Error(String, String),
    /// Nothing, as expected after SIGKILL.
    Nothing,
    /// The process ended without a SIGKILL from the harness, or gave an unexpected answer.
    Lost(String),
}

impl Said {
    /// Whether the answer asks for a retry: it's "in progress" or "unavailable".
    pub fn is_not_now(&self) -> bool {
        match self {
            Self::Error(kind, _) => {
                matches!(kind.as_str(), "Idempotency.InProgress" | "Idempotency.Unavailable")
            }
            _ => false,
        }
    }

    /// Whether the handler doesn't know whether its charge happened.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Error(kind, _) if kind == UNKNOWN)
    }

    /// Whether the handler failed because the event told it to.
    pub fn is_told_failure(&self) -> bool {
        matches!(self, Self::Error(kind, _) if kind == TOLD_TO_FAIL)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Response(bytes) => write!(f, "answered {}", String::from_utf8_lossy(bytes)),
            Self::Error(kind, message) => write!(f, "failed with {kind}: {message}"),
            Self::Nothing => f.write_str("gave no answer"),
            Self::Lost(how) => f.write_str(how),
        }
    }
}

/// One invocation, as the harness saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The run's name.
    pub run: String,
    /// The harness's action on the run.
    pub deed: Deed,
    /// The run's answer.
    pub said: Said,
    /// When the harness received the answer, in ms since the epoch.
    pub said_at: u64,
}

/// The evidence about one key.
#[derive(Clone, Debug)]
pub struct Case {
    /// The key.
    pub key: String,
    /// The promise for this key.
    pub promise: Promise,
    /// The key's effects, in order.
    pub lines: Vec<Line>,
    /// The gateway's log, if the effects are there.
    pub log: Log,
    /// The key's deliveries. The last one has been answered.
    pub deliveries: Vec<Delivery>,
    /// The completed records that the harness read before the end.
    pub seen: Vec<Stored>,
    /// The record at the end.
    pub record: Option<Stored>,
}

/// The numbers of a key without violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// The number of effects.
    pub effects: u64,
    /// Runs that were killed, were frozen or ran out of time between their effect and their completion.
    pub crashes_in_the_gap: u64,
    /// Runs that were killed before they had an effect.
    pub killed_before: u64,
    /// Runs that were killed between their effect and their completion.
    pub killed_in_the_gap: u64,
    /// Runs that were killed once their completion was stored.
    pub killed_after: u64,
    /// Runs that continued after a freeze and were fenced.
    pub fenced: u64,
    /// Runs with an effect that isn't the recorded one, because they answered too late. The harness neither killed nor
    /// froze them.
    pub slow: u64,
    /// Claims of the key after its first claim.
    pub later_claims: u64,
    /// Runs that didn't know whether their charge happened.
    pub unknown: u64,
    /// Second charges: the earlier one was on its way for too long, when the question said that there was none.
    pub late: u64,
    /// Questions that found the charge.
    pub happened: u64,
    /// Questions that found no charge.
    pub absent: u64,
    /// Questions that the gateway couldn't answer yet, or didn't answer.
    pub not_known: u64,
}

impl AddAssign for Finding {
    fn add_assign(&mut self, other: Self) {
        self.effects += other.effects;
        self.crashes_in_the_gap += other.crashes_in_the_gap;
        self.killed_before += other.killed_before;
        self.killed_in_the_gap += other.killed_in_the_gap;
        self.killed_after += other.killed_after;
        self.fenced += other.fenced;
        self.slow += other.slow;
        self.later_claims += other.later_claims;
        self.unknown += other.unknown;
        self.late += other.late;
        self.happened += other.happened;
        self.absent += other.absent;
        self.not_known += other.not_known;
    }
}

/// A violation, with the evidence.
#[derive(Clone, Debug)]
pub struct Violation(String);

impl Violation {
    /// Creates a violation with this description.
    pub(super) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Case {
    /// Judges the key.
    ///
    /// # Errors
    ///
    /// If the evidence shows a violation.
    pub fn judge(&self) -> Result<Finding, Violation> {
        self.find().map_err(|what| self.violation(&what))
    }

    /// Returns a violation that the caller has found, with this key's evidence.
    pub fn violation(&self, what: &str) -> Violation {
        let mut text = format!("key {}: {what}", self.key);
        for line in &self.lines {
            text += &format!("\n  effect: {line}");
        }
        text += &self.log.to_string();
        for delivery in &self.deliveries {
            let Delivery { run, deed, said, said_at } = delivery;
            text += &format!("\n  run {run}: {deed:?}, {said}, at {said_at}");
        }
        for stored in &self.seen {
            text += &format!("\n  seen before: {stored}");
        }
        text += &match &self.record {
            Some(record) => format!("\n  at the end: {record}"),
            None => "\n  at the end: no record".into(),
        };
        Violation(text)
    }

    fn find(&self) -> Result<Finding, String> {
        let record = self.settled()?;
        self.same_answer_everywhere(record)?;
        if self.seen.iter().any(|seen| seen != record) {
            return Err("a stored outcome was replaced".into());
        }
        self.nothing_else_said()?;
        if matches!(self.promise, Promise::Reconciled | Promise::Unreconciled) {
            return self.find_charges(record);
        }
        if self.promise == Promise::ExactlyOnce {
            let effect = self.one_effect(record)?;
            return Ok(self.figures(effect, &[], record));
        }
        self.no_live_claim_taken()?;
        let recorded = self.recorded_effect(record)?;
        let excuses = self.other_effects(recorded, record)?;
        Ok(self.figures(recorded, &excuses, record))
    }

    /// Checks that there's exactly one effect, and that it's from the run that the record names. Only for forms that
    /// write effect and record in one transaction.
    fn one_effect(&self, record: &Stored) -> Result<&Line, String> {
        let [effect] = self.lines.as_slice() else {
            let count = self.lines.len();
            return Err(format!(
                "its effect should happen exactly once, since it's in the outcome's transaction, but happened {count} times"
            ));
        };
        // A run without a claim doesn't know its generation, and writes 0.
        if effect.generation != 0 && effect.generation != record.generation {
            return Err("its effect and its record have different generations".into());
        }
        let response = serde_json::to_vec(&effect.run).map_err(|error| error.to_string())?;
        if record.response.as_ref() != Some(&response) {
            return Err("its effect and its record are from different runs".into());
        }
        Ok(effect)
    }

    /// Checks that the record holds an outcome at the end.
    fn settled(&self) -> Result<&Stored, String> {
        let record = self.record.as_ref().ok_or("there's no record")?;
        if record.status != "COMPLETED" {
            return Err(format!("its record is {}, not COMPLETED", record.status));
        }
        Ok(record)
    }

    fn same_answer_everywhere(&self, record: &Stored) -> Result<(), String> {
        let mut answered = false;
        for delivery @ Delivery { run, said, .. } in &self.deliveries {
            if let Said::Response(bytes) = said {
                answered = true;
                if Some(bytes) != record.response.as_ref() && !self.is_too_late(delivery) {
                    return Err(format!("run {run} answered with a response that isn't the record's"));
                }
            }
        }
        if answered { Ok(()) } else { Err("no delivery got an answer".into()) }
    }

    /// Whether the answer came so late that it may differ from the record: shortly before the deadline, the library
    /// stops trying to record the outcome. If another delivery answered first, a frozen run has no such excuse, because
    /// it must replay that delivery's outcome.
    fn is_too_late(&self, delivery: &Delivery) -> bool {
        let mut lines = self.lines.iter().filter(|line| line.run == delivery.run);
        let mut others = self.deliveries.iter().filter(|other| other.run != delivery.run);
        lines.any(|line| delivery.said_at >= answer_by(line))
            && match delivery.deed {
                Deed::Spared => true,
                Deed::Killed => false,
                Deed::Froze => !others
                    .any(|other| matches!(other.said, Said::Response(_)) && other.said_at < delivery.said_at),
            }
    }

    /// Checks that every answer is a response, a request to retry, or a failure that the event asked for, and that no
    /// process ended unless the harness killed it.
    fn nothing_else_said(&self) -> Result<(), String> {
        for Delivery { run, deed, said, .. } in &self.deliveries {
            let is_explained = match said {
                Said::Response(_) => true,
                Said::Error(..) => said.is_not_now() || said.is_told_failure() || said.is_unknown(),
                Said::Nothing => *deed == Deed::Killed,
                Said::Lost(_) => false,
            };
            if !is_explained {
                return Err(format!("run {run} {said}"));
            }
        }
        Ok(())
    }

    /// Checks that no claim was made during the lease of an earlier claim. A claim's generation is the time of the
    /// claim, by the clock that also set the leases.
    fn no_live_claim_taken(&self) -> Result<(), String> {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_by_key(|line| line.generation);
        for pair in lines.windows(2) {
            let [earlier, later] = pair else { continue };
            if earlier.generation == later.generation {
                return Err(format!("generation {} had two effects", later.generation));
            }
            if later.generation <= earlier.lease_until + millis(MARGIN) {
                return Err(format!(
                    "generation {} claimed the key during the lease of generation {}",
                    later.generation, earlier.generation
                ));
            }
        }
        Ok(())
    }

    /// Finds the effect of the run whose outcome the record holds.
    fn recorded_effect(&self, record: &Stored) -> Result<&Line, String> {
        let recorded = self.lines.iter().find(|line| line.generation == record.generation);
        let recorded = recorded.ok_or("no effect has the record's generation")?;
        let response = serde_json::to_vec(&recorded.run).map_err(|error| error.to_string())?;
        if record.response.as_ref() != Some(&response) {
            return Err("the record's response isn't from the run with the record's generation".into());
        }
        Ok(recorded)
    }

    /// Checks every effect but the recorded one: each must belong to a run that the harness interrupted, or that
    /// answered too late. Returns the deliveries of these runs.
    fn other_effects(&self, recorded: &Line, record: &Stored) -> Result<Vec<&Delivery>, String> {
        let mut runs = HashSet::from([recorded.run.as_str()]);
        let mut excuses = Vec::new();
        for line in self.lines.iter().filter(|line| *line != recorded) {
            if !runs.insert(&line.run) {
                return Err(format!("run {} had two effects", line.run));
            }
            if line.generation > record.generation {
                return Err(format!("run {} ran under a later claim than the recorded one", line.run));
            }
            let delivery = self.deliveries.iter().find(|delivery| delivery.run == line.run);
            let delivery = delivery.ok_or(format!("no delivery started run {}", line.run))?;
            if delivery.deed == Deed::Spared && !self.is_too_late(delivery) {
                return Err(format!(
                    "run {} had an effect that isn't the recorded one, but the run was neither killed nor \
                     frozen, and it answered in time",
                    line.run
                ));
            }
            excuses.push(delivery);
        }
        Ok(excuses)
    }

    fn figures(&self, recorded: &Line, excuses: &[&Delivery], record: &Stored) -> Finding {
        let count = |deliveries: &[&Delivery], deed: Deed| {
            deliveries.iter().filter(|delivery| delivery.deed == deed).count() as u64
        };
        let all: Vec<&Delivery> = self.deliveries.iter().collect();
        let killed_in_the_gap = count(excuses, Deed::Killed);
        let killed_after =
            all.iter().filter(|one| one.deed == Deed::Killed && one.run == recorded.run).count() as u64;
        Finding {
            effects: self.lines.len() as u64,
            crashes_in_the_gap: excuses.len() as u64,
            killed_before: count(&all, Deed::Killed) - killed_in_the_gap - killed_after,
            killed_in_the_gap,
            killed_after,
            fenced: count(excuses, Deed::Froze),
            slow: count(excuses, Deed::Spared),
            later_claims: u64::from(record.attempt.saturating_sub(1)),
            ..Finding::default()
        }
    }
}

/// Returns the time from which the library may stop trying to record the outcome of the run that wrote this line. It's
/// the deadline minus the reserve.
fn answer_by(line: &Line) -> u64 {
    line.lease_until.saturating_sub(millis(GRACE + RESERVE))
}
