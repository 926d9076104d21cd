//! Settling in one transaction with the handler's own writes, under a claim (T8) or without one, and concluding without
//! either.
//!
//! Until it is known that a transaction was made, or definitely was not, it is the same request that is sent again:
//! every value in it was fixed when it was first sent, and the store knows it by its token. A transaction that was
//! definitely not made gives its number up, so that the next one is another to the store.

use crate::{
    outcome::Outcome,
    protocol::{
        Action, Decline, End, Event, Fault, Held, Intent, Next, Phase, Plan, open,
        settle::{self, over},
    },
    record::{Record, State, Status},
    store::{Settlement, StoreErrorKind, Write, Written},
    time::Timestamp,
};

/// How often a transaction is sent again because others have its items: with pauses that double from 25 ms up to 1.6 s,
/// some five seconds; less where the claim's time is over before.
const MAX_CONTENTION: u8 = 8;
/// How often one request may be answered doubtfully before the record is read, and how often after that.
const MAX_DOUBTS: u8 = 3;

/// A transaction under way; or a conclusion without writes of the handler's, which is a write like any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Commit {
    pub(super) basis: Basis,
    /// What is to be settled.
    pub(super) intent: Intent,
    /// The write as it was first sent.
    pub(super) write: Write,
    pub(super) submission: u32,
    /// How often others had its items.
    contention: u8,
    /// How often this very request was answered doubtfully.
    doubts: u8,
}

/// What the transaction stands on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Basis {
    /// A claim that is held.
    Claim(Held),
    /// Nothing but what was seen.
    Open(open::Basis),
}

impl Commit {
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubts > 0
    }
}

impl Basis {
    /// Whether the claim's lease, which may have been extended, leaves time; or the plan, where there is no claim.
    fn has_time_left(&self, plan: &Plan, now: Timestamp) -> bool {
        match self {
            Self::Claim(held) => plan.has_time_left(held.lease_until, now),
            Self::Open(_) => now < plan.usable_until,
        }
    }
}

/// T8: sends the completion of a claim, and the handler's own writes with it.
pub(super) fn send(plan: &Plan, now: Timestamp, held: Held, outcome: Outcome, submission: u32) -> Next {
    let intent = Intent::Commit(outcome);
    let write = Write::Settle {
        owner: held.owner,
        generation: held.generation,
        settlement: settle::settlement(plan.rules.retention, now, &intent),
    };
    begin(Basis::Claim(held), intent, write, submission)
}

/// Sends `write` for the first time.
pub(super) fn begin(basis: Basis, intent: Intent, write: Write, submission: u32) -> Next {
    submit(Commit { basis, intent, write, submission, contention: 0, doubts: 0 })
}

fn submit(commit: Commit) -> Next {
    let action = match &commit.intent {
        Intent::Commit(_) => Action::Commit { write: commit.write.clone(), submission: commit.submission },
        // Nothing goes along with it.
        _ => Action::Apply(commit.write.clone()),
    };
    (Phase::Committing(Box::new(commit)), action)
}

pub(super) fn committing(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    let is_in_doubt = commit.is_doubtful();
    match event {
        Event::Answered(Written::Applied) => over(End::Recorded),
        Event::Answered(Written::Refused(record)) => examine(plan, now, commit, record, true),
        Event::Declined => declined(commit, Decline::Condition),
        // That nothing was written this time does not say that nothing was before.
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, maybe_applied }) => {
            contended(plan, now, commit, maybe_applied)
        }
        Event::Failed(Fault { kind, maybe_applied }) if maybe_applied || is_in_doubt => {
            doubtful(commit, kind)
        }
        Event::Failed(Fault { kind, .. }) => declined(commit, Decline::Store(kind)),
        Event::Resumed => submit(commit),
        _ => (Phase::Committing(Box::new(commit)), Action::Nothing),
    }
}

/// Others have one of its items, or it is itself still on its way from before.
fn contended(plan: &Plan, now: Timestamp, commit: Commit, maybe_applied: bool) -> Next {
    let doubts = commit.doubts.saturating_add(maybe_applied.into());
    if commit.contention >= MAX_CONTENTION || !commit.basis.has_time_left(plan, now) {
        return if doubts > 0 {
            (Phase::LookingForCommit(Box::new(Commit { doubts: MAX_DOUBTS, ..commit })), Action::Read)
        } else {
            declined(commit, Decline::Store(StoreErrorKind::Conflict))
        };
    }
    let nth = commit.contention;
    // Definitely not made, and nothing of it is on its way: the next is another to the store.
    let submission = if doubts == 0 { commit.submission.saturating_add(1) } else { commit.submission };
    let again = Commit { contention: nth + 1, submission, doubts, ..commit };
    (Phase::Committing(Box::new(again)), Action::Pause(nth))
}

/// The same request is sent once more; then the record is looked at.
fn doubtful(commit: Commit, kind: StoreErrorKind) -> Next {
    let doubts = commit.doubts.saturating_add(1);
    let commit = Commit { doubts, ..commit };
    if doubts == 1 && kind != StoreErrorKind::Corrupt {
        return submit(commit);
    }
    (Phase::LookingForCommit(Box::new(commit)), Action::Read)
}

pub(super) fn looking(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, commit, record, false),
        Event::Failed(_) => unresolved(&commit),
        _ => (Phase::LookingForCommit(Box::new(commit)), Action::Nothing),
    }
}

/// The write was refused, or all its answers were doubtful: what does the record say?
fn examine(plan: &Plan, now: Timestamp, commit: Commit, record: Option<Record>, is_refused: bool) -> Next {
    if let Some(record) = &record
        && settle::is_own_outcome(plan.owner, record)
    {
        // An earlier transaction of this claim, declined and made all the same, stands where it differs.
        return over(if is_as_written(&commit.write, record) {
            End::Recorded
        } else {
            End::Superseded(record.clone())
        });
    }
    match &commit.basis {
        Basis::Claim(held) if record.as_ref().is_some_and(|record| stands(held, record)) => {
            // It was not made by then, and may be on its way.
            if is_refused || commit.doubts >= MAX_DOUBTS {
                return unresolved(&commit);
            }
            submit(commit)
        }
        // The record is gone, and whether it had the outcome, and the writes were made, nobody can tell.
        Basis::Claim(_) if record.is_none() && commit.doubts > 0 => unresolved(&commit),
        Basis::Claim(_) => settle::fenced(plan, now, commit.intent, record),
        Basis::Open(basis) if !is_refused && basis.is_as_seen(record.as_ref()) => {
            if commit.doubts >= MAX_DOUBTS {
                return unresolved(&commit);
            }
            submit(commit)
        }
        Basis::Open(basis) => {
            let basis = open::Basis { losses: basis.losses + 1, ..basis.clone() };
            open::lost(plan, now, basis, commit.submission, commit.intent, record)
        }
    }
}

fn unresolved(commit: &Commit) -> Next {
    over(End::Unresolved(match &commit.basis {
        Basis::Claim(held) => Some(held.lease_until),
        Basis::Open(_) => None,
    }))
}

/// Definitely not made: whoever runs the handler decides what to do.
fn declined(commit: Commit, why: Decline) -> Next {
    let submissions = commit.submission.saturating_add(1);
    let phase = match commit.basis {
        Basis::Claim(held) => Phase::Held { held, submissions },
        Basis::Open(basis) => Phase::Open(open::Basis { submissions, ..basis }),
    };
    (phase, Action::Declined(why))
}

fn stands(held: &Held, record: &Record) -> bool {
    record.owner == held.owner && record.generation == held.generation && record.status() == Status::Started
}

/// Whether the record is what `write` makes of it.
fn is_as_written(write: &Write, record: &Record) -> bool {
    match write {
        Write::Settle { settlement: Settlement::Complete(outcome, _), .. } => {
            record.state == State::Completed(outcome.clone())
        }
        Write::Conclude { record: written, .. } => record == written,
        _ => false,
    }
}
