//! Settling in one transaction with the handler's own writes, under a claim (T8) or without one, and concluding without
//! either.
//!
//! Until it is known that a transaction was made, or definitely was not, it is the same request that is sent again:
//! every value in it was fixed when it was first sent, and the store knows it by its token. A transaction that was
//! definitely not made gives its number up, so that the next one is another to the store.

use crate::{
    protocol::{
        Action, Decline, End, Event, Fault, Held, Intent, Next, Phase, Plan, Task, acquire, open,
        settle::{self, over},
    },
    record::{Record, State, Status},
    store::{Settlement, StoreErrorKind, Write, Written},
    time::Timestamp,
};

/// A transaction under way; or a conclusion without writes of the handler's, which is a write like any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Commit {
    pub(super) basis: Basis,
    /// What is to be settled.
    pub(super) task: Task,
    /// The write as it was first sent.
    pub(super) write: Write,
    pub(super) submission: u32,
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

    /// Whether it may have been made, and its record may have expired since. Then nobody can tell from the record's absence
    /// that it was not; and without a claim, nothing would keep it from being made a second time.
    fn may_have_come_and_gone(&self, plan: &Plan, now: Timestamp) -> bool {
        let expires_at = match &self.write {
            Write::Conclude { record, .. } => record.expires_at,
            _ => None,
        };
        let soon = now.saturating_add(plan.rules.skew_margin);
        self.is_doubtful() && expires_at.is_some_and(|expires_at| expires_at <= soon)
    }
}

/// T8: sends the completion of a claim, and the handler's own writes with it.
///
/// It counts until after the lease has ended, however short the retention is: a transaction that was declined in doubt
/// may be made while its handler runs on, and a record that is swept under it would free the key.
pub(super) fn send(plan: &Plan, now: Timestamp, held: Held, task: Task, submission: u32) -> Next {
    let retention = plan.rules.retention.max(now.until(plan.rules.claimable_at(held.lease_until)));
    let Some(settlement) = settle::outcome(retention, now, &task.intent) else {
        return settle::begin(plan, now, held, task, submission);
    };
    let write = Write::Settle { owner: held.owner, generation: held.generation, settlement };
    begin(Basis::Claim(held), task, write, submission)
}

/// Sends `write` for the first time.
pub(super) fn begin(basis: Basis, task: Task, write: Write, submission: u32) -> Next {
    submit(Commit { basis, task, write, submission, doubts: 0 })
}

fn submit(commit: Commit) -> Next {
    let action = match &commit.task.intent {
        Intent::Commit(_) => Action::Commit { write: commit.write.clone(), submission: commit.submission },
        // Nothing goes along with it.
        _ => Action::Apply(commit.write.clone()),
    };
    (Phase::Committing(Box::new(commit)), action)
}

pub(super) fn committing(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Answered(Written::Applied) => over(End::Recorded),
        Event::Answered(Written::Refused(record)) => examine(plan, now, commit, record, true),
        Event::Declined => declined(commit, Decline::Condition),
        // Others have one of its items, or it is itself still on its way from before. That nothing was written this
        // time does not say that nothing was before.
        Event::Failed(Fault { kind: StoreErrorKind::Conflict, maybe_applied }) => {
            let doubts = commit.doubts.saturating_add(maybe_applied.into());
            not_made(plan, now, Commit { doubts, ..commit }, StoreErrorKind::Conflict)
        }
        Event::Failed(Fault { kind, maybe_applied }) if maybe_applied || commit.is_doubtful() => {
            doubtful(plan, now, commit, kind)
        }
        Event::Failed(Fault {
            kind: kind @ (StoreErrorKind::Unstorable | StoreErrorKind::Corrupt), ..
        }) => declined(commit, Decline::Store(kind)),
        Event::Failed(Fault { kind, .. }) => not_made(plan, now, commit, kind),
        Event::Resumed => submit_again(plan, now, commit),
        _ => (Phase::Committing(Box::new(commit)), Action::Nothing),
    }
}

/// It was not made this time: it is sent again after a pause, for as long as there is time.
fn not_made(plan: &Plan, now: Timestamp, commit: Commit, kind: StoreErrorKind) -> Next {
    let Commit { basis, task, write, submission, doubts } = commit;
    match task.again(plan, now) {
        Ok((task, nth)) => {
            // Definitely not made, and nothing of it is on its way: the next is another to the store.
            let submission = if doubts == 0 { submission.saturating_add(1) } else { submission };
            let again = Commit { basis, task, write, submission, doubts };
            (Phase::Committing(Box::new(again)), Action::Pause(nth))
        }
        Err(task) => {
            let commit = Commit { basis, task, write, submission, doubts };
            if commit.is_doubtful() {
                return (Phase::LookingForCommit(Box::new(commit)), Action::Read);
            }
            declined(commit, Decline::Store(kind))
        }
    }
}

/// The same request is sent once more; then the record is looked at.
fn doubtful(plan: &Plan, now: Timestamp, commit: Commit, kind: StoreErrorKind) -> Next {
    let doubts = commit.doubts.saturating_add(1);
    let commit = Commit { doubts, ..commit };
    if doubts == 1 && kind != StoreErrorKind::Corrupt {
        return submit_again(plan, now, commit);
    }
    (Phase::LookingForCommit(Box::new(commit)), Action::Read)
}

fn submit_again(plan: &Plan, now: Timestamp, commit: Commit) -> Next {
    if commit.may_have_come_and_gone(plan, now) {
        return (Phase::LookingForCommit(Box::new(commit)), Action::Read);
    }
    submit(commit)
}

pub(super) fn looking(plan: &Plan, now: Timestamp, commit: Commit, event: Event) -> Next {
    match event {
        Event::Found(record) => examine(plan, now, commit, record, false),
        Event::Failed(Fault { kind: StoreErrorKind::Corrupt, .. }) => unresolved(plan, &commit),
        Event::Failed(_) => retry(plan, now, commit, |commit| Phase::LookingForCommit(Box::new(commit))),
        Event::Resumed => (Phase::LookingForCommit(Box::new(commit)), Action::Read),
        _ => (Phase::LookingForCommit(Box::new(commit)), Action::Nothing),
    }
}

/// In doubt: the same again after a pause; without the time for it, nobody can say.
fn retry(plan: &Plan, now: Timestamp, commit: Commit, phase: impl FnOnce(Commit) -> Phase) -> Next {
    let Commit { basis, task, write, submission, doubts } = commit;
    match task.again(plan, now) {
        Ok((task, nth)) => (phase(Commit { basis, task, write, submission, doubts }), Action::Pause(nth)),
        Err(task) => unresolved(plan, &Commit { basis, task, write, submission, doubts }),
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
            if is_refused {
                return unresolved(plan, &commit);
            }
            retry(plan, now, commit, |commit| Phase::Committing(Box::new(commit)))
        }
        // The record is gone, and whether it had the outcome, and the writes were made, nobody can tell.
        Basis::Claim(_) if record.is_none() && commit.doubts > 0 => unresolved(plan, &commit),
        Basis::Claim(_) => acquire::to_record(plan, now, commit.task, record),
        Basis::Open(basis) if !is_refused && basis.is_as_seen(record.as_ref()) => {
            retry(plan, now, commit, |commit| Phase::Committing(Box::new(commit)))
        }
        Basis::Open(basis) => {
            let may_be_anew = !commit.may_have_come_and_gone(plan, now);
            let basis = open::Basis { losses: basis.losses + 1, ..basis.clone() };
            open::lost(plan, now, basis, commit.submission, commit.task, record, may_be_anew)
        }
    }
}

fn unresolved(plan: &Plan, commit: &Commit) -> Next {
    over(End::Unresolved(match &commit.basis {
        Basis::Claim(held) => Some(plan.rules.claimable_at(held.lease_until)),
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
